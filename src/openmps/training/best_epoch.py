"""The best epoch of a training so far, by its test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from openmps.checks import described
from openmps.core.training_state import TrainingState, check_names, finite_number, numbers, whole_number
from openmps.errors import MPSArgumentError
from openmps.training.inference import Evaluation

_WHO = "best epoch"
_PREFIX = "kept "


class BestEpoch:
    """The epoch with the highest test accuracy; of equal ones that with the least loss, and the first of those.

    With the shapes of a network's arrays it holds that epoch's arrays, which checkpoints keep, too.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]] | None) -> None:
        self._shapes = shapes
        self.epoch = 0
        """0 before the first test."""
        self.arrays: dict[str, NDArray[np.float32]] = {}
        self.evaluation: Evaluation | None = None
        """Its test, where this process has seen it."""
        self._accuracy, self._loss = 0.0, 0.0

    def __repr__(self) -> str:
        return described(self, self.epoch, accuracy=self._accuracy, loss=self._loss)

    def note(self, epoch: int, evaluation: Evaluation, arrays: Mapping[str, NDArray[np.float32]]) -> bool:
        """Hear of the test of an epoch, and of its arrays; whether it is the best one."""
        is_better = (evaluation.accuracy, -evaluation.loss) > (self._accuracy, -self._loss)
        if self.epoch and not is_better:
            return False
        self.epoch, self.evaluation = epoch, evaluation
        self._accuracy, self._loss = evaluation.accuracy, evaluation.loss
        if self._shapes is not None:
            self.arrays = {name: array.copy() for name, array in arrays.items()}
        return True

    def training_state(self) -> TrainingState:
        """Epoch, test and arrays."""
        kept = {f"{_PREFIX}{name}": array for name, array in self.arrays.items()}
        return {"epoch": self.epoch, "accuracy": self._accuracy, "loss": self._loss, **kept}

    def restore_training_state(self, state: TrainingState) -> None:
        """Take over what `training_state` gave."""
        epoch = whole_number(_WHO, state, "epoch")
        accuracy, loss = finite_number(_WHO, state, "accuracy"), finite_number(_WHO, state, "loss")
        if not 0 <= accuracy <= 1:
            raise MPSArgumentError(_WHO, "state 'accuracy'", "must be 0 to 1", accuracy)
        shapes = {f"{_PREFIX}{name}": shape for name, shape in (self._shapes or {}).items()} if epoch else {}
        check_names(_WHO, state, {"epoch", "accuracy", "loss", *shapes})
        arrays = {name.removeprefix(_PREFIX): numbers(_WHO, state, name, shape) for name, shape in shapes.items()}
        self.epoch, self._accuracy, self._loss, self.arrays, self.evaluation = epoch, accuracy, loss, arrays, None
