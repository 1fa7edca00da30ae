"""MPSNNForwardLoss: the value of a loss alone (MPSCNNLoss.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.state import MPSState
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.image_loss import GivenImages, ImageLoss
from openmps.kernels.loss.properties import checked_descriptor
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.loss.loss import ForwardLoss, LossParameters
from openmps.ops.op import Value
from openmps.types import MPSCNNReductionType


class MPSNNForwardLoss(ImageLoss, MPSCNNKernel, leaves=MPSNNGradientState):
    """The value of a loss, as images (MPSCNNLoss.h, macOS 10.15).

    The source images hold the predictions; labels, and weights if there are any, are images of their size, whose
    surplus channels must label nothing, as in `MPSCNNLossLabels`. The result is one number an image, or with the
    reduction NONE an image of the predictions' size, in the predictions' format unless a destination is given: a sum
    may be too large for float16. The formulas are those of `MPSCNNLoss`. `weight`, `label_smoothing`, `epsilon` and
    `delta` may be changed between encodes, and reach `MPSNNLossGradient` in the gradient state. With
    `reduce_across_batch` the first loss image takes the total of the batch and the others 0.

    Offset and clip rectangle must be left at their defaults. The framework encodes batches alone; `encode` for a single
    image object is an addition.
    """

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        self._loss = checked_descriptor(self.name, loss_descriptor).parameters()

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, labels: MPSImage, weights: MPSImage | None = None,
        destination_state: MPSState | None = None, destination_image: MPSImage | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, labels: MPSImage, weights: MPSImage | None = None,
        destination_state: None = None, destination_image: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        labels: MPSImage,
        weights: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_image: MPSImage | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the loss of one image object; see `encode_batch`."""
        return self._encoded(
            command_buffer,
            (source_image,),
            destination_image,
            labels,
            weights,
            is_batch=False,
            destination_states=destination_state,
            make_state=destination_state_is_temporary,
        )

    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], labels: Sequence[MPSImage],
        weights: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_images: Sequence[MPSImage] | None = None, destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], labels: Sequence[MPSImage],
        weights: Sequence[MPSImage] | None = None, destination_states: None = None, destination_images: None = None,
        *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        labels: Sequence[MPSImage],
        weights: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_images: Sequence[MPSImage] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the losses of a batch, as one operation; the loss images are the result.

        ``labels`` and ``weights`` are an image each for every source image. Without ``destination_images`` the result
        is sized, made and returned; with them it is written there. ``destination_states`` take the values of this
        encode to the gradient; ``destination_state_is_temporary`` makes them and returns ``(images, states)``.
        """
        return self._encoded(
            command_buffer,
            (source_images,),
            destination_images,
            labels,
            weights,
            is_batch=True,
            destination_states=destination_states,
            make_state=destination_state_is_temporary,
        )

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    @property
    def _is_reduced(self) -> bool:
        return self.reduction_type is not MPSCNNReductionType.NONE

    def _result_size(self, predictions: Extent) -> tuple[int, int]:
        return (1, 1) if self._is_reduced else super()._result_size(predictions)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return 1 if self._is_reduced else channels[0]

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: GivenImages | None) -> Extent:
        return extent._replace(width=1, height=1) if self._is_reduced else extent

    def _parameters(self) -> LossParameters:
        return self._loss

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        labels, weights = self._labels(at)
        loss = self._read_by_convention(self._loss, is_weighted=weights is not None, has_gradient=False)
        return ForwardLoss(loss)(images[0], labels, weights)
