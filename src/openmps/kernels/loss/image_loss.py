"""What the separate loss kernels share: labels and weights are images, beside the sources (MPSCNNLoss.h, 10.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Stack
from openmps.core.kernel.arguments import single
from openmps.core.kernel.checks import Images, check_sources
from openmps.core.kernel.encode import ImageKernel, Plan
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.kernels.loss.properties import AdjustableLossProperties
from openmps.ops.loss import LossParameters
from openmps.types import MPSCNNLossType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class LabelImages(MPSState):
    """The labels and weights of one encode, as the encode path takes what is not a source: read like a state.

    ``states`` are what the forward encode left, if the encode was given that, and ``parameters`` what they carry.
    """

    def __init__(
        self,
        device: MTLDevice,
        labels: Images,
        weights: Images | None,
        states: MPSStateBatch | None = None,
        parameters: LossParameters | None = None,
    ) -> None:
        super().__init__(device)
        self.labels = labels
        self.weights = weights
        self.states = states
        self.parameters = parameters

    @property
    def images(self) -> tuple[Images, ...]:
        """Labels, and weights if there are any."""
        return (self.labels,) if self.weights is None else (self.labels, self.weights)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the arguments of `images` are called."""
        return ("labels", "weights")[: len(self.images)]

    def stacks(self) -> list[Stack]:
        """The images as an encode sees them."""
        return [
            images.stack(0, images.number_of_images) if isinstance(images, MPSImage) else images.stack()
            for images in self.images
        ]

    def count_read(self, amount: int = 1) -> None:
        """Take a read from every temporary image and state."""
        for images in self.images:
            images.count_read(amount)
        for state in self.states.counted() if self.states is not None else ():
            state.count_read(amount)


def images_of(who: str, argument: str, images: object, *, is_batch: bool) -> Images:
    """A batch, or one image object."""
    return as_batch(who, argument, images) if is_batch else single(who, argument, images)


def optional(who: str, argument: str, images: object, *, is_batch: bool) -> Images | None:
    """As `images_of`, or None where there are none."""
    return None if images is None else images_of(who, argument, images, is_batch=is_batch)


class ImageLoss(AdjustableLossProperties, ImageKernel):
    """The encode path of losses that take labels and weights as images.

    Offsets and the pixels of clip rectangles must be left alone: labels, weights and results lie over the predictions.
    """

    _predictions = 0
    """The source that holds the predictions."""

    def _result_size(self, predictions: Extent) -> tuple[int, int]:
        """Columns and rows of the result."""
        return predictions.width, predictions.height

    def _operands(
        self, labels: object, weights: object, *, is_batch: bool, states: MPSStateBatch | None = None
    ) -> LabelImages:
        return LabelImages(
            self.device,
            images_of(self.name, "labels", labels, is_batch=is_batch),
            optional(self.name, "weights", weights, is_batch=is_batch),
            states,
        )

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def plan(
        self,
        sources: tuple[Extent, ...],
        destination: Extent,
        states: MPSStateBatch | None = None,
        *,
        is_batch: bool = False,
    ) -> Plan:
        """As for every kernel; nothing may be placed elsewhere, and labels and weights must fit the predictions."""
        plan = super().plan(sources, destination, states, is_batch=is_batch)
        self._check_placement()
        needed = self._result_size(sources[self._predictions])
        if (plan.target.width, plan.target.height) != needed:
            raise MPSArgumentError(
                self.name,
                self._destination_argument,
                f"must have at least {needed[0]}x{needed[1]} pixels, and the clip rectangle must not cut them",
                f"{plan.target.width}x{plan.target.height} pixels to write",
            )
        operands = label_images(states)
        if operands is not None:
            self._check_labels(operands, plan.sources[self._predictions], plan.images)
        return plan

    def _check_placement(self) -> None:
        origin = self._clip_rect.origin
        offsets = [(source.offset.x, source.offset.y) for source in self._sources]
        if any(place != (0, 0) for place in (*offsets, (origin.x, origin.y))):
            raise MPSArgumentError(
                self.name,
                "offset and clip_rect",
                "must be left at their defaults: labels and results lie over the predictions",
                f"offsets {offsets}, clip rectangle at {(origin.x, origin.y)}",
                "Cut the images first",
            )

    def _check_labels(self, operands: LabelImages, source: SourceRecord, count: int) -> None:
        extent = source.extent
        size = f"{extent.width}x{extent.height}"
        for argument, stack in zip(operands.arguments, operands.stacks(), strict=True):
            found = stack.extent
            fits = (found.width, found.height) == (extent.width, extent.height)
            if not fits or found.channels < source.channels or found.images != count:
                rule = (
                    f"must be {size} with at least {source.channels} channels, {count} image(s), like the predictions"
                )
                raise MPSArgumentError(self.name, argument, rule, str(found))
        if operands.weights is not None and self.loss_type is MPSCNNLossType.COSINE_DISTANCE:
            raise MPSArgumentError(
                self.name,
                "weights",
                "must not be given: the weight of a cosine distance is one number",
                "weights",
                "Set the weight property",
            )

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        (width, height), origin = self._result_size(sources[self._predictions]), self._clip_rect.origin
        last_x, last_y = min(destination.width, origin.x + width), min(destination.height, origin.y + height)
        return Extent(last_x, last_y, destination.channels, destination.images)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        """Sources are read whole, whatever the size of the result."""
        return super()._source_record(index, extent, extent.width, extent.height)

    def _check_operands(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        super()._check_operands(command_buffer, sources, destination, source_states, destination_states)
        operands = label_images(source_states)
        if operands is None:
            return
        plural = isinstance(sources[0], MPSImageBatch)
        names = tuple(argument[:-1] if plural else argument for argument in operands.arguments)
        check_sources(self.name, (*self._source_arguments, *names), (*sources, *operands.images), command_buffer)
        if destination is not None:
            self._check_apart(operands, destination)

    def _check_apart(self, operands: LabelImages, destination: Images) -> None:
        is_image = isinstance(destination, MPSImage)
        output = destination.stack(0, destination.number_of_images) if is_image else destination.stack()
        for argument, stack in zip(operands.arguments, operands.stacks(), strict=True):
            if output.overlaps(stack):
                rule = f"must not share memory with {argument}"
                raise MPSArgumentError(self.name, self._destination_argument, rule, None, "Encode into another image")

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        """Labels and weights are checked as images, beside the sources."""

    def _fetcher(self, source_states: MPSStateBatch | None) -> Callable[[], Any] | None:
        operands = label_images(source_states)
        if operands is None:
            return None
        stacks = operands.stacks()

        def fetch() -> tuple[Tensor, Tensor | None]:
            return stacks[0].values(), stacks[1].values() if len(stacks) > 1 else None

        return fetch


def label_images(states: MPSStateBatch | None) -> LabelImages | None:
    """The labels and weights among what an encode takes besides its sources; None when sizes alone are planned."""
    first = states[0] if states is not None and len(states) else None
    return first if isinstance(first, LabelImages) else None


def cut(operands: tuple[Tensor, Tensor | None], channels: int) -> tuple[Tensor, Tensor | None]:
    """The channels of labels and weights that the predictions have too."""
    labels, weights = operands
    return labels[:, :channels], None if weights is None else weights[:, :channels]
