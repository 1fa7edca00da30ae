"""What the separate loss kernels share: labels and weights are images, beside the sources (MPSCNNLoss.h, 10.15)."""

from __future__ import annotations

from typing import Any, NamedTuple

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.storage import Extent, Shape, Stack, Target
from openmps.core.kernel.arguments import single, states_of
from openmps.core.kernel.checks import Images, check_sources
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError
from openmps.kernels.loss.labels import too_few_channels
from openmps.kernels.loss.properties import AdjustableLossProperties
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import Channels, Load
from openmps.ops.loss.label_channels import LabelChannels
from openmps.ops.loss.loss import LossParameters
from openmps.ops.op import Value
from openmps.runtime.binding import Binding
from openmps.types import MPSCNNLossType, MPSImageFeatureChannelFormat

_OPERANDS = ("labels", "weights")
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32


class GivenImages(NamedTuple):
    """What a plan depends on of labels, weights and states."""

    shapes: tuple[Shape, ...] = ()
    """Those of the labels, and of the weights if there are any; none when sizes alone are planned."""
    carried: LossParameters | None = None
    """The values that the states of the forward encode carry."""


class LabelImages(MPSState):
    """The labels and weights of one encode, as the encode path takes what is not a source: read like a state.

    ``states`` are what the forward encode left, if the encode was given that.
    """

    labels: Images
    weights: Images | None
    states: MPSStateBatch | None

    def __init__(
        self,
        device: MTLDevice,
        labels: Images,
        weights: Images | None,
        states: MPSStateBatch | None = None,
    ) -> None:
        super().__init__(device)
        self.labels = labels
        self.weights = weights
        self.states = states

    @property
    def images(self) -> tuple[Images, ...]:
        """Labels, and weights if there are any."""
        return (self.labels,) if self.weights is None else (self.labels, self.weights)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the arguments of `images` are called."""
        return _OPERANDS[: len(self.images)]

    def stacks(self) -> list[Stack]:
        """The images as an encode sees them."""
        return [images.whole() for images in self.images]

    def count_read(self, amount: int = 1) -> None:
        """Take a read from every temporary image and state."""
        for images in self.images:
            images.count_read(amount)
        for state in self.states.counted() if self.states is not None else ():
            state.count_read(amount)


class ImageLoss(AdjustableLossProperties, ImageKernel):
    """The encode path of losses that take labels and weights as images.

    Offsets and the pixels of clip rectangles must be left alone: labels, weights and results lie over the predictions.
    """

    _predictions = 0
    """The source that holds the predictions."""

    def _result_size(self, predictions: Extent) -> tuple[int, int]:
        """Columns and rows of the result."""
        return predictions.width, predictions.height

    def _encoded(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[object, ...],
        destination: object,
        labels: object,
        weights: object,
        *,
        is_batch: bool,
        source_states: object = None,
        destination_states: object = None,
        make_state: bool | None = None,
    ) -> Any:
        """Encode an image object, or a batch, of each source; labels, weights and states are its one source state."""
        who, plural, checked = self.name, "s" if is_batch else "", as_batch if is_batch else single
        images = [checked(who, name + plural, each) for name, each in zip(self._source_arguments, sources, strict=True)]
        states = states_of(who, f"source_state{plural}", source_states)
        given = None if destination is None else checked(who, self._destination_argument + plural, destination)
        operands = LabelImages(
            self._device,
            checked(who, "labels", labels),
            None if weights is None else checked(who, "weights", weights),
            states,
        )
        encode = self._batched if is_batch else self._single
        return encode(command_buffer, images, given, destination_states, make_state, MPSStateBatch([operands]))

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _labels(self, at: LoweringContext) -> tuple[Value, Value | None]:
        """The channels of labels and weights that the predictions have too."""
        channels, found = at.sources[self._predictions].channels, list[Value]()
        for name, (extent, channel_format) in zip(_OPERANDS, (at.given or GivenImages()).shapes, strict=False):
            slot = at.buffer(name)
            if channel_format is not _FLOAT32:
                slot = Load(channel_format)(slot)
            if extent.channels != channels:
                slot = LabelChannels(channels)(slot) if name == "labels" else Channels(0, channels)(slot)
            found.append(slot)
        if not found:
            return at.buffer("labels"), None
        return found[0], found[1] if len(found) > 1 else None

    def _given(self, states: MPSStateBatch) -> GivenImages | None:
        operands = label_images(states)
        return None if operands is None else GivenImages(tuple(stack.shape for stack in operands.stacks()))

    def _memory(self, name: str, states: MPSStateBatch | None) -> Binding:
        operands = label_images(states)
        return super()._memory(name, states) if operands is None else operands.stacks()[_OPERANDS.index(name)]

    def _check_plan(
        self, records: tuple[SourceRecord, ...], target: Target, given: GivenImages | None, images: int
    ) -> None:
        """As for every kernel; nothing may be placed elsewhere, and labels and weights must fit the predictions."""
        self._check_placement()
        predictions = records[self._predictions]
        needed = self._result_size(predictions.extent)
        if (target.width, target.height) != needed:
            rule = f"must have at least {needed[0]}x{needed[1]} pixels, and the clip rectangle must not cut them"
            got = f"{target.width}x{target.height} pixels to write"
            raise MPSArgumentError(self.name, self._destination_argument, rule, got)
        if given is not None:
            self._check_labels(given, predictions, images)

    def _check_placement(self) -> None:
        origin = self.clip_rect.origin
        offsets = [(source.offset.x, source.offset.y) for source in self._sources]
        if any(place != (0, 0) for place in (*offsets, (origin.x, origin.y))):
            rule = "must be left at their defaults: labels and results lie over the predictions"
            got = f"offsets {offsets}, clip rectangle at {(origin.x, origin.y)}"
            raise MPSArgumentError(self.name, "offset and clip_rect", rule, got, "Cut the images first")

    def _check_labels(self, given: GivenImages, source: SourceRecord, count: int) -> None:
        extent = source.extent
        size = f"{extent.width}x{extent.height}"
        for argument, (found, _) in zip(_OPERANDS, given.shapes, strict=False):
            fits = (found.width, found.height) == (extent.width, extent.height)
            if not fits or found.channels < source.channels or found.images != count:
                rule = (
                    f"must be {size} with at least {source.channels} channels, {count} image(s), like the predictions"
                )
                remedy = too_few_channels(found, source.channels) if argument == "labels" else ""
                raise MPSArgumentError(self.name, argument, rule, str(found), remedy)
        if len(given.shapes) > 1 and self.loss_type is MPSCNNLossType.COSINE_DISTANCE:
            rule = "must not be given: the weight of a cosine distance is one number"
            raise MPSArgumentError(self.name, "weights", rule, "weights", "Set the weight property")

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        (width, height), origin = self._result_size(sources[self._predictions]), self.clip_rect.origin
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
            output, where, remedy = destination.whole(), self._destination_argument, "Encode into another image"
            for argument, stack in zip(operands.arguments, operands.stacks(), strict=True):
                if output.overlaps(stack):
                    raise MPSArgumentError(self.name, where, f"must not share memory with {argument}", None, remedy)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        """Labels and weights are checked as images, beside the sources."""


def label_images(states: MPSStateBatch | None) -> LabelImages | None:
    """The labels and weights among what an encode takes besides its sources; None when sizes alone are planned."""
    first = states[0] if states is not None and len(states) else None
    return first if isinstance(first, LabelImages) else None
