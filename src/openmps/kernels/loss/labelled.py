"""Losses that take labels objects and write the first gradient (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.arguments import states_of
from openmps.core.kernel.checks import Images
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.labels import (
    GivenLabels,
    LabelShape,
    MPSCNNLossLabels,
    blocks_of,
    given_labels,
    labels_reader,
    loss_writer,
    too_few_channels,
)
from openmps.kernels.loss.properties import LossProperties, checked_descriptor
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import Channels
from openmps.ops.loss.label_channels import LabelChannels
from openmps.ops.loss.loss import Loss
from openmps.ops.op import Role, Value
from openmps.runtime.binding import Binding
from openmps.types import MPSCNNLossType, MPSCNNReductionType

_BUFFER = Role.BUFFER


class LabelledLoss(MPSCNNKernel):
    """A loss and its gradient in one encode: the labels come, and the losses go, in an `MPSCNNLossLabels` an image."""

    # --- what a loss says ---------------------------------------------------------------------------------------------

    def _evaluated(self, at: LoweringContext, *operands: Value | None) -> tuple[Value, Value]:
        """Losses, and the gradient of the predictions, of predictions, labels and weights."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _loss_reduction(self) -> MPSCNNReductionType:
        """How the losses of an image become its loss."""
        return MPSCNNReductionType.NONE

    def _takes_weights(self) -> bool:
        """Whether labels may come with weights."""
        return True

    # --- encode -------------------------------------------------------------------------------------------------------

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        labels: MPSCNNLossLabels | Sequence[MPSCNNLossLabels],
        destination_image: MPSImage | None = None,
    ) -> MPSImage:
        """Record loss and gradient of one image object; the gradient is the result.

        ``labels`` is one object, or a sequence of one for each image if ``source_image`` holds several.
        """
        states = states_of(self.name, "labels", labels)
        return self._single(command_buffer, (source_image,), destination_image, source_states=states)

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        labels: Sequence[MPSCNNLossLabels],
        destination_images: Sequence[MPSImage] | None = None,
    ) -> MPSImageBatch:
        """Record loss and gradient of a batch, one labels object an image."""
        states = states_of(self.name, "labels", labels)
        return self._batched(command_buffer, (source_images,), destination_images, source_states=states)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        given: GivenLabels | None = at.given
        channels = at.sources[0].channels
        is_cut = given is not None and any(shape.labels.channels != channels for _, shape in given.shapes)
        labels = at.buffer("labels")
        weights = at.buffer("weights") if given is not None and given.weighted else None
        if is_cut:
            labels = LabelChannels(channels)(labels)
            weights = None if weights is None else Channels(0, channels)(weights)
        losses, gradient = self._evaluated(at, at.read(images[0]), labels, weights)
        at.gives("losses", losses)
        return gradient

    def _given(self, states: MPSStateBatch) -> GivenLabels:
        return given_labels(states)

    def _check_plan(
        self, records: tuple[SourceRecord, ...], target: Target, given: GivenLabels | None, images: int
    ) -> None:
        """As for every kernel; the labels must fit the predictions."""
        if given is None:
            return
        if given.objects != images:
            rule = f"must be one MPSCNNLossLabels an image, {images}"
            raise MPSArgumentError(self.name, "labels", rule, f"{given.objects}")
        for index, shape in given.shapes:
            self._check_label(index, shape, records[0])
        if given.weighted not in (0, given.objects):
            got = f"{given.weighted} of {given.objects}"
            raise MPSArgumentError(self.name, "labels", "must all have weights, or none", got)

    def _check_label(self, index: int, shape: LabelShape, source: SourceRecord) -> None:
        labels, losses = shape.labels, shape.losses
        size = (source.window.x.result, source.window.y.result)
        if (labels.width, labels.height) != size or labels.channels < source.channels:
            rule = f"must be {size[0]}x{size[1]} with at least {source.channels} channels, like the predictions"
            got = f"{labels.width}x{labels.height}x{labels.channels}"
            raise MPSArgumentError(self.name, f"labels[{index}]", rule, got, too_few_channels(labels, source.channels))
        if shape.has_weights and not self._takes_weights():
            rule = "must have no weights: the weight of a cosine distance is one number"
            raise MPSArgumentError(self.name, f"labels[{index}]", rule, "weights", "Set the loss descriptor's weight")
        whole = self._loss_reduction() is MPSCNNReductionType.NONE
        loss_shape = (*size, source.channels) if whole else (1, 1, 1)
        if (losses.width, losses.height, losses.channels) != loss_shape:
            rule = f"must be {loss_shape} (width, height, channels) for the reduction {self._loss_reduction().name}"
            got = (losses.width, losses.height, losses.channels)
            remedy = "Pass loss_image_size to MPSCNNLossLabels"
            raise MPSArgumentError(self.name, f"labels[{index}].loss_image()", rule, got, remedy)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        for state in states.counted():
            state.check_usable(self.name, "labels", command_buffer)
        for index, state in enumerate(states if blocks_of(states) is None else ()):
            if not isinstance(state, MPSCNNLossLabels):
                raise MPSTypeError(self.name, f"labels[{index}]", "must be an MPSCNNLossLabels", type(state).__name__)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Binding:
        return labels_reader(self._name or self.name, states, name)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Binding:
        return loss_writer(states)

    def bound(self, role: Role, name: str, plan: Plan, states: MPSStateBatch | None) -> Binding:
        """See `ImageKernel.bound`."""
        if role is _BUFFER:
            return labels_reader(self._name or self.name, states, name)
        return super().bound(role, name, plan, states)

    def given(self, states: MPSStateBatch | None) -> Hashable:
        """See `ImageKernel.given`."""
        return None if states is None else given_labels(states)

    def output_bindings(self, names: Sequence[str], states: MPSStateBatch | None) -> Sequence[Binding]:
        """See `ImageKernel.output_bindings`."""
        return [loss_writer(states)] if len(names) == 1 else super().output_bindings(names, states)


class MPSCNNLoss(LossProperties, LabelledLoss):
    """Loss and its gradient in one encode (MPSCNNLoss.h, macOS 10.13.4).

    The source image holds the predictions, the labels an `MPSCNNLossLabels` for each image; the RESULT is the gradient
    of the loss with respect to the predictions, the loss itself goes to ``labels.loss_image()``. The gradient carries
    the descriptor's `weight` (or the labels' weights) but no division by a mean: the reduction changes the reported
    value only.
    """

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        self._loss = checked_descriptor(self.name, loss_descriptor).parameters()

    def _evaluated(self, at: LoweringContext, *operands: Value | None) -> tuple[Value, Value]:
        return Loss(self._read_by_convention(self._loss, is_weighted=operands[-1] is not None))(*operands)

    def _loss_reduction(self) -> MPSCNNReductionType:
        return self.reduction_type

    def _takes_weights(self) -> bool:
        return self.loss_type is not MPSCNNLossType.COSINE_DISTANCE
