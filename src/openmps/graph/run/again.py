"""Encodes that are like the last one: what was checked and planned then is not checked and planned anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.storage import Shape
from openmps.core.state.batch import MPSStateBatch
from openmps.graph.compile.program import Program
from openmps.graph.run.encoding import Images
from openmps.kernels.loss.labels import LabelsBatch
from openmps.metal.device import MTLDevice


class Again(NamedTuple):
    """An encode that made no image, of ordinary images and labels in one block each.

    All that could be wrong with such operands, and all that their program depends on, is their device and their shapes.
    """

    program: Program
    settings: tuple[object, ...]
    """What the program depends on besides, as it was before it was planned: others may change it meanwhile."""
    images: list[Shape]
    labels: list[tuple[Shape | None, ...]]

    @classmethod
    def of(
        cls, program: Program, settings: tuple[object, ...], device: MTLDevice, images: Sequence[Any], labels: Any
    ) -> Again | None:
        """An encode that has just been checked; None where the next one must be checked all the same."""
        seen = [_seen(MPSImageBatch, each, device) for each in images]
        read = [_seen(LabelsBatch, each, device) for each in labels]
        if program.questions or program.policies or None in seen or None in read:
            return None
        return cls(program, settings, seen, read)

    def is_like(
        self, settings: tuple[object, ...], device: MTLDevice, images: Sequence[Images], labels: Sequence[MPSStateBatch]
    ) -> bool:
        """Whether an encode with these settings and operands is like it."""
        return (
            self.settings == settings
            and [_seen(MPSImageBatch, each, device) for each in images] == self.images
            and [_seen(LabelsBatch, each, device) for each in labels] == self.labels
        )


def _seen(kind: type[MPSImageBatch | LabelsBatch], operand: Any, device: MTLDevice) -> Any:
    """All that an encode on a device can tell of an operand; None for one that has to be looked at whole."""
    return operand.seen_on(device) if type(operand) is kind else None
