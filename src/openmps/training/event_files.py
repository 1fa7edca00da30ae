"""Event files of a run, which TensorBoard shows: its measurements by step, and how its weights are spread."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.extras import missing_package

_WHO = "EventFiles"
_FLUSH_SECONDS = 5
_TAGS = {
    "loss": "loss/training",
    "accuracy": "accuracy/training",
    "test_loss": "loss/test",
    "test_accuracy": "accuracy/test",
    "learning_rate": "learning rate",
    "images_per_second": "images per second",
}
"""What measurements of the metrics are called in TensorBoard. Those of an epoch follow from those of its steps."""


def require_tensorboard() -> Any:
    """The class that writes event files; ``MPSError`` where TensorBoard is not installed."""
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise missing_package(_WHO, "tensorboard", "an event file", extra="tensorboard") from error


class EventFiles:
    """Event files in a folder, one more each time that a run goes on.

    What earlier files say of ``step`` and later ones, TensorBoard then takes for undone: a run goes on from its last
    checkpoint, and the axis of steps is one.

    Raises ``MPSError`` where TensorBoard is not installed, ``MPSFileError`` where a file cannot be written.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        made = require_tensorboard()
        self._folder, self._spread = folder, -1
        with self._writing():
            self._writer = made(str(folder), purge_step=step, flush_secs=_FLUSH_SECONDS)

    def __repr__(self) -> str:
        return f"EventFiles({str(self._folder)!r})"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Measurements of a step, by their names in a run's metrics; those that have no tag are left out."""
        with self._writing():
            for name, value in figures.items():
                if name in _TAGS:
                    self._writer.add_scalar(_TAGS[name], value, step)

    def log_weights(self, step: int, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """A histogram of each array of weights, as they are after a step; once a step."""
        if step == self._spread:
            return
        self._spread = step
        with self._writing():
            for name, array in arrays.items():
                self._writer.add_histogram(name.replace(".", "/"), array, step)
            self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        with self._writing():
            self._writer.close()

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            rule, got = "must take event files", error.strerror or error
            raise MPSFileError(_WHO, str(self._folder), rule, got) from error
