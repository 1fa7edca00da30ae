"""What flows back through MPSNNForwardLoss, and where gradients start (MPSCNNLoss.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openmps.checks import Shown, flag
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.image_loss import GivenImages, ImageLoss, label_images
from openmps.kernels.loss.properties import checked_descriptor
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.loss.loss import InitialGradient, LossGradient, LossParameters
from openmps.ops.op import Value
from openmps.types import MPSCNNReductionType

_CARRIED = ("weight", "label_smoothing", "epsilon", "delta")


class MPSNNInitialGradient(MPSCNNKernel):
    """Y = 1 everywhere, in an image like the source: dX/dX (MPSCNNLoss.h, macOS 10.15).

    The start of the gradients of any image: what follows multiplies by its own derivatives.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        target = at.target
        return InitialGradient(target.channels, target.height, target.width)(images[0])


class MPSNNLossGradient(ImageLoss, MPSCNNBinaryKernel):
    """The gradient of a loss with respect to predictions, or labels (MPSCNNLoss.h, macOS 10.15).

    The primary source is the gradient of the loss image, 1x1x1 for every number of an image or of the predictions'
    size; the secondary source the predictions of the forward encode. The result, of the predictions' size, is

        gradient * weight * d(loss of the element)/d(prediction)

    with the slopes of `MPSCNNLoss`, or those of the labels with `compute_label_gradients`. The reduction type is not
    looked at, but for MEAN by the convention ``loss_gradient_mean``: this is the gradient of the sum. If the loss was
    reduced across the batch, the gradient of the first loss image is that of every image. States of the forward encode,
    where given, carry its `weight`, `label_smoothing`, `epsilon` and `delta`, which then stand in for this kernel's
    own.

    Offsets and clip rectangle must be left at their defaults. The framework encodes batches alone; `encode` for single
    image objects is an addition.
    """

    _source_arguments = ("source_gradient", "source_image")
    _destination_argument = "destination_gradient"
    _predictions = 1

    compute_label_gradients = KernelProperty(
        False,
        flag,
        "Whether the gradient of the labels is computed instead of that of the predictions. Default False.",
    )
    _reduction = Setting[MPSCNNReductionType]()

    reduction_type = Shown[MPSCNNReductionType]("_reduction", "The descriptor's; the gradient does not depend on it.")

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        descriptor = checked_descriptor(self.name, loss_descriptor).copy()
        # A sum's gradient whatever the reduction: only whether there is one decides what "across the batch" means.
        self._loss = descriptor.parameters(MPSCNNReductionType.SUM)
        self._reduction = MPSCNNReductionType(descriptor.reduction_type)

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
        return self._encoded(
            command_buffer,
            (source_gradient, source_image),
            destination_gradient,
            labels,
            weights,
            is_batch=False,
            source_states=source_state,
        )

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
        return self._encoded(
            command_buffer,
            (source_gradients, source_images),
            destination_gradients,
            labels,
            weights,
            is_batch=True,
            source_states=source_states,
        )

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        self._place(0, 0, 0, 0)
        predictions = shapes[1].extent
        channels = self._channels_read(1, predictions.channels)
        return Extent(predictions.width, predictions.height, channels, self._images_to_make(shapes))

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

    def _given(self, states: MPSStateBatch) -> GivenImages | None:
        given, operands = super()._given(states), label_images(states)
        if given is None or operands is None or not operands.states:
            return given
        return given._replace(carried=self._carried_by("source_state", operands.states.counted()[0]))

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

    def _check_plan(
        self, records: tuple[SourceRecord, ...], target: Target, given: GivenImages | None, images: int
    ) -> None:
        """As for every loss; the gradient must be that of a loss image."""
        self._check_gradient(*records)
        super()._check_plan(records, target, given, images)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        labels, weights = self._labels(at)
        loss = self._read_by_convention(self._values_of(at.given), is_weighted=weights is not None)
        return LossGradient(loss, self.compute_label_gradients)(*images, labels, weights)

    def _check_gradient(self, gradient: SourceRecord, predictions: SourceRecord) -> None:
        found = (gradient.extent.width, gradient.extent.height, gradient.channels)
        whole = (predictions.extent.width, predictions.extent.height, predictions.channels)
        if found not in ((1, 1, 1), whole):
            rule = f"must be 1x1x1 or {whole[0]}x{whole[1]}x{whole[2]} (width x height x channels), as the loss image"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, f"{found[0]}x{found[1]}x{found[2]}")

    def _values_of(self, given: GivenImages | None) -> LossParameters:
        """This kernel's loss with the values that the forward encode carried, if it did."""
        own = self._loss
        if self._reduction is MPSCNNReductionType.NONE:
            own = replace(own, reduce_across_batch=False)
        if self._reduction is MPSCNNReductionType.MEAN and self.conventions["loss_gradient_mean"] == "divided":
            own = replace(own, divides_gradient=True)
        carried = None if given is None else given.carried
        if carried is None:
            return own
        return replace(own, **{name: getattr(carried, name) for name in _CARRIED})
