"""MPSNNLossGradient: what flows back through MPSNNForwardLoss (MPSCNNLoss.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.arguments import states_of
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.encode import Operation
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.image_loss import ImageLoss, LabelImages, cut, images_of, label_images, optional
from openmps.kernels.loss.properties import checked_descriptor
from openmps.ops.loss import LossParameters, loss_gradient
from openmps.types import MPSCNNReductionType, MPSOffset

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_CARRIED = ("weight", "label_smoothing", "epsilon", "delta")


class MPSNNLossGradient(ImageLoss, MPSCNNBinaryKernel):
    """The gradient of a loss with respect to predictions, or labels (MPSCNNLoss.h, macOS 10.15).

    The primary source is the gradient of the loss image, 1x1x1 for every number of an image or of the predictions'
    size; the secondary source the predictions of the forward encode. The result, of the predictions' size, is

        gradient * weight * d(loss of the element)/d(prediction)

    with the slopes of `MPSCNNLoss`, or those of the labels with `compute_label_gradients`. The reduction type is not
    looked at: for MEAN this is the gradient of the sum. If the loss was reduced across the batch, the gradient of the
    first loss image is that of every image. States of the forward encode, where given, carry its `weight`,
    `label_smoothing`, `epsilon` and `delta`, which then stand in for this kernel's own.

    Offsets and clip rectangle must be left at their defaults. The framework encodes batches alone; `encode` for single
    image objects is an addition.
    """

    _source_arguments = ("source_gradient", "source_image")
    _destination_argument = "destination_gradient"
    _predictions = 1

    compute_label_gradients: bool
    """Whether the gradient of the labels is computed instead of that of the predictions. Default False."""

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        descriptor = checked_descriptor(self.name, loss_descriptor).copy()
        # A sum's gradient whatever the reduction: only whether there is one decides what "across the batch" means.
        self._loss = descriptor.parameters(MPSCNNReductionType.SUM)
        self._reduction = MPSCNNReductionType(descriptor.reduction_type)
        self.compute_label_gradients = False

    @property
    def reduction_type(self) -> MPSCNNReductionType:
        """The descriptor's; the gradient does not depend on it."""
        return self._reduction

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradient: MPSImage,
        source_image: MPSImage,
        labels: MPSImage,
        weights: MPSImage | None = None,
        source_state: MPSState | None = None,
        destination_gradient: MPSImage | None = None,
    ) -> MPSImage:
        """Record the gradient for one image object; see `encode_batch`."""
        destination = self._encoded(
            command_buffer,
            (
                images_of(self.name, "source_gradient", source_gradient, is_batch=False),
                images_of(self.name, "source_image", source_image, is_batch=False),
            ),
            labels,
            weights,
            states_of(self.name, "source_state", source_state),
            optional(self.name, "destination_gradient", destination_gradient, is_batch=False),
        )
        assert isinstance(destination, MPSImage)
        return destination

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[MPSImage],
        source_images: Sequence[MPSImage],
        labels: Sequence[MPSImage],
        weights: Sequence[MPSImage] | None = None,
        source_states: Sequence[MPSState] | None = None,
        destination_gradients: Sequence[MPSImage] | None = None,
    ) -> MPSImageBatch:
        """Record the gradient for a batch, as one operation.

        ``source_gradients`` are those of the loss images; the other images, and the states if there are any, are those
        of the forward encode.
        """
        destination = self._encoded(
            command_buffer,
            (
                images_of(self.name, "source_gradients", source_gradients, is_batch=True),
                images_of(self.name, "source_images", source_images, is_batch=True),
            ),
            labels,
            weights,
            states_of(self.name, "source_states", source_states),
            optional(self.name, "destination_gradients", destination_gradients, is_batch=True),
        )
        assert isinstance(destination, MPSImageBatch)
        return destination

    def _encoded(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, Images],
        labels: object,
        weights: object,
        states: MPSStateBatch | None,
        destination: Images | None,
    ) -> Images:
        operands = self._operands(labels, weights, is_batch=isinstance(sources[0], MPSImageBatch), states=states)
        return self._run(command_buffer, sources, destination, source_states=MPSStateBatch([operands]))[0]

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        gradient, predictions = images
        for source in self._sources:
            source.offset = MPSOffset(0, 0, source.offset.z)
        return MPSImageDescriptor(
            gradient.feature_channel_format,
            predictions.width,
            predictions.height,
            self._channels_read(1, predictions.feature_channels),
            self._images_to_make(images),
        )

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[1]

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        operands = label_images(states)
        if operands is None or operands.states is None:
            return
        argument = "source_states" if isinstance(images, MPSImageBatch) else "source_state"
        carried = {self._carried_by(argument, state) for state in operands.states.counted()}
        if len(carried) > 1:
            rule = "must come from forward encodes with the same weight, label_smoothing, epsilon and delta"
            raise MPSArgumentError(self.name, argument, rule, "different ones", "Encode their images one by one")
        check_states(self.name, argument, operands.states, images, command_buffer)
        operands.parameters = carried.pop() if carried else None

    def _carried_by(self, argument: str, state: MPSState) -> LossParameters:
        """The values of the forward encode that left a state."""
        if not isinstance(state, MPSNNGradientState):
            raise MPSTypeError(self.name, argument, "must be an MPSNNGradientState", type(state).__name__)
        record = state.record
        made = None if record is None else record.parameters
        if isinstance(made, LossParameters) and made.kind is self.loss_type:
            return made
        rule = f"must come from an encode of MPSNNForwardLoss with the loss type {self.loss_type.name}"
        got = "an empty state" if record is None else f"one from {record.made_by.__name__}"
        raise MPSArgumentError(self.name, argument, rule, got, "Pass it as destination state to that encode first")

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        gradient, predictions = sources
        self._check_gradient(gradient, predictions)
        parameters, channels = self._values_of(label_images(states)), predictions.channels
        of_labels = bool(self.compute_label_gradients)

        def operation(values: tuple[Tensor, ...], operands: Any) -> tuple[Tensor, None]:
            gradient, predictions = values
            labels, weights = cut(operands, channels)
            result = loss_gradient(gradient, predictions, labels, weights, parameters, of_labels=of_labels)
            return result, None

        return operation

    def _check_gradient(self, gradient: SourceRecord, predictions: SourceRecord) -> None:
        found = (gradient.extent.width, gradient.extent.height, gradient.channels)
        whole = (predictions.extent.width, predictions.extent.height, predictions.channels)
        if found not in ((1, 1, 1), whole):
            raise MPSArgumentError(
                self.name,
                self._source_arguments[0],
                f"must be 1x1x1 or {whole[0]}x{whole[1]}x{whole[2]} (width x height x channels), as the loss image",
                f"{found[0]}x{found[1]}x{found[2]}",
            )

    def _values_of(self, operands: LabelImages | None) -> LossParameters:
        """This kernel's loss with the values that the forward encode carried, if it did."""
        own = self._loss
        if self._reduction is MPSCNNReductionType.NONE:
            own = replace(own, reduce_across_batch=False)
        carried = None if operands is None else operands.parameters
        if carried is None:
            return own
        return replace(own, **{name: getattr(carried, name) for name in _CARRIED})
