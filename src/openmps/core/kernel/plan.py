"""Plans: one encode, decided from a kernel's configuration and from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.image.batch import TemporaryTemplate
from openmps.core.image.storage import Shape, Target
from openmps.core.kernel.configuration import Configuration
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.ops.op import Function, Role
from openmps.runtime.binding import Constant


class FunctionPlan:
    """What is computed in one encode, and how its inputs are told apart."""

    __slots__ = ("constants", "function", "is_plain", "used")

    def __init__(self, function: Function, constants: Sequence[Constant]) -> None:
        self.function = function
        self.constants = tuple(constants)
        """The numbers that the function's constants stand for."""
        sources = [(Role.SOURCE, str(index)) for index in range(len(function.inputs))]
        self.is_plain = [*function.inputs] == sources
        """Whether the function reads the operands one after the other, and nothing else."""
        self.used = used_inputs(function)


class Plan(FunctionPlan):
    """One encode, decided: which images and channels are read, what is computed, where results land."""

    __slots__ = (
        "bare",
        "first_destination_image",
        "first_images",
        "images",
        "others",
        "reads_all_images",
        "record",
        "sources",
        "target",
    )

    def __init__(
        self,
        record: ForwardRecord,
        function: Function,
        constants: Sequence[Constant],
        results_per_image: int,
        cleared: int = 0,
    ) -> None:
        super().__init__(function, constants)
        self.record = record
        """What a gradient state keeps of the encode."""
        self.sources: tuple[SourceRecord, ...] = record.sources
        self.target: Target = record.target._replace(channels=record.target.channels + cleared)
        """What is written, with channels that are cleared behind those of the result."""
        self.first_images = tuple(source.first_image for source in record.sources)
        self.first_destination_image = record.first_destination_image
        self.images = record.images
        self.bare = function.only(name for name in function.outputs if name != SAVED)
        """The function of encodes that leave no state."""
        self.others = tuple(name for name in function.outputs if name not in (RESULT, SAVED))
        """Outputs that go neither to an image nor to what a state carries."""
        extents = [source.extent.images for source in record.sources]
        wanted = [record.images] * len(extents)
        self.reads_all_images = (
            not any(self.first_images)
            and extents == wanted
            and (self.first_destination_image, record.destination.images) == (0, record.images * results_per_image)
        )


class Sized:
    """What an encode without a destination makes."""

    __slots__ = ("configuration", "images_each", "is_custom", "plan", "shape", "template")

    def __init__(self, shape: Shape, images_each: int, configuration: Configuration, is_custom: bool) -> None:
        self.shape = shape
        """The whole result."""
        self.images_each = images_each
        """Images in each image object of a batch, or in the one object."""
        self.configuration = configuration
        """The kernel's properties afterwards: the padding policy, or a state, places its windows."""
        self.is_custom = is_custom
        """Whether the padding policy has a say of its own, at each encode."""
        self.template: TemporaryTemplate | None = None
        """Makes the temporary batch, once one was made."""
        self.plan: Plan | None = None
        """How the encode goes on, where the result is of this shape."""


def used_inputs(function: Function) -> tuple[bool, ...]:
    """Of each input, whether an equation or an output reads it."""
    read = set(function.output_values).union(*(equation.reads for equation in function.equations))
    return tuple(index in read for index in function.input_values)
