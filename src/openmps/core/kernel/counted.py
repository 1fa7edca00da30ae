"""Kernels whose encodes draw random numbers: each encode has a number, from which they follow."""

from __future__ import annotations

from functools import partial

from openmps.checks import Checked, store
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch, StateT
from openmps.core.training_state import TrainingState, check_names, whole_number

SEED = partial(integer, most=2**64 - 1, rule="must be an integer of 0 to 2**64 - 1")
"""The check of a seed."""


STEP = "step"
"""The number that counts encodes."""


class CountedKernel(MPSCNNKernel[StateT]):
    """A kernel that counts its encodes: ``at.number(STEP)`` is the number of each, any other one does not count it."""

    batch_share = KernelProperty[int](
        0,
        integer,
        """Which share of a batch is encoded here, where processes share it in equal parts; counted from 0, the default.

        Random numbers are those of the images at their places in the whole batch. Our addition.
        """,
    )

    _step: int
    step = Checked[int](
        0,
        partial(integer, most=2**63 - 1, rule="must be an integer of 0 to 2**63 - 1"),
        """The number of the next encode, counted from 0, which its random numbers follow from.

        Copies and archives keep it, so that training goes on with the numbers that it would have had. Our addition.
        """,
    )

    def _number(self, name: str, states: MPSStateBatch | None) -> int:
        """The number of this encode."""
        step = self._step
        if name == STEP:
            store(self, "_step", step + 1)  # counted whole; see core/numbers.py
        return step

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps: how many encodes this kernel has seen. Our addition."""
        return {"encodes": self._step}

    def restore_training_state(self, state: TrainingState) -> None:
        """Draw the random numbers of the encodes to come as the kernel would that gave ``state``. Our addition."""
        check_names(self.name, state, {"encodes"})
        self.step = whole_number(self.name, state, "encodes")
