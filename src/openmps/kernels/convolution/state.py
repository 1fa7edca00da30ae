"""States of convolutions: parameter gradients, and weights that travel (MPSCNNConvolution.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from openmps.core.gradient_state import MPSNNGradientState
from openmps.core.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.metal.memory import MTLBuffer
from openmps.types import MPSCNNConvolutionWeightsLayout

if TYPE_CHECKING:
    from openmps.kernels.convolution.base import ConvolutionKernel
    from openmps.kernels.convolution.forward import MPSCNNConvolution
    from openmps.kernels.convolution.transpose import MPSCNNConvolutionTranspose
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSCNNConvolutionGradientState(MPSNNGradientState):
    """The parameter gradients of one batch through a convolution (MPSCNNConvolution.h, macOS 10.13.4).

    Made by the convolution's ``result_state…`` methods, filled in by the gradient kernel: sums over the batch and all
    pixels. One object serves the whole batch; make a new one for the next batch.
    """

    def __init__(self, device: MTLDevice, kernel: ConvolutionKernel) -> None:
        super().__init__(device)
        self.kernel = kernel
        """The kernel that made the state; for those who extend the framework."""
        outputs, rows, columns, inputs = kernel.convolution_descriptor.weight_shape()
        self._weights = device.new_buffer(length=4 * outputs * rows * columns * inputs)
        self._biases = device.new_buffer(length=4 * outputs)

    @property
    def convolution(self) -> MPSCNNConvolution | None:
        """The convolution that made the state; of a transposed convolution's state its counterpart, if it has one."""
        return cast("MPSCNNConvolution", self.kernel)

    @property
    def gradient_for_weights(self) -> MTLBuffer:
        """dL/dW, float32, laid out as the data source's weights: OHWI, depthwise ``[O, rows, columns]``."""
        return self._weights

    @property
    def gradient_for_biases(self) -> MTLBuffer:
        """dL/db, float32, one number an output channel; there even if the convolution has no biases."""
        return self._biases

    @property
    def gradient_for_weights_layout(self) -> MPSCNNConvolutionWeightsLayout:
        """OHWI, the only layout (macOS 10.15)."""
        return MPSCNNConvolutionWeightsLayout.OHWI

    def resource_size(self) -> int:
        """Bytes of both gradients."""
        return self._weights.length + self._biases.length

    def absorb(self, produced: Any) -> None:
        """Add the gradients of one encode: a batch may come in pieces."""
        for buffer, gradient in zip((self._weights, self._biases), produced, strict=True):
            if buffer.is_allocated:
                buffer.tensor(torch.float32).add_(gradient.reshape(-1))
            else:
                buffer.bind(gradient.reshape(-1))


class MPSCNNConvolutionTransposeGradientState(MPSCNNConvolutionGradientState):
    """The parameter gradients of one batch through a transposed convolution (MPSCNNConvolution.h, macOS 10.15).

    As `MPSCNNConvolutionGradientState`. Where the transposed convolution undoes a convolution, it also refers to that
    one's state.
    """

    convolution_gradient_state: MPSCNNConvolutionGradientState | None
    """The state of the convolution that is undone, or None."""

    def __init__(
        self,
        device: MTLDevice,
        convolution_transpose: MPSCNNConvolutionTranspose,
        convolution_gradient_state: MPSCNNConvolutionGradientState | None = None,
    ) -> None:
        super().__init__(device, convolution_transpose)
        self.convolution_gradient_state = convolution_gradient_state

    @property
    def convolution(self) -> MPSCNNConvolution | None:
        """The convolution that is undone; None if the transposed convolution has no counterpart."""
        paired = self.convolution_gradient_state
        return None if paired is None else paired.convolution

    @property
    def convolution_transpose(self) -> MPSCNNConvolutionTranspose:
        """The transposed convolution that made the state."""
        return cast("MPSCNNConvolutionTranspose", self.kernel)


class MPSCNNConvolutionWeightsAndBiasesState(MPSState):
    """Weights and biases on the device, float32, OHWI (MPSCNNConvolution.h, macOS 10.13.4).

    From buffers, ``(weights=…, biases=…)`` with byte offsets, or ``(device, cnn_convolution_descriptor=…)`` with new
    buffers of zeros. ``biases`` may be None.
    """

    def __init__(
        self,
        device: MTLDevice | None = None,
        cnn_convolution_descriptor: MPSCNNConvolutionDescriptor | None = None,
        *,
        weights: MTLBuffer | None = None,
        biases: MTLBuffer | None = None,
        weights_offset: int = 0,
        biases_offset: int = 0,
    ) -> None:
        name = type(self).__name__
        if weights is None:
            if device is None or cnn_convolution_descriptor is None:
                raise MPSTypeError(name, "arguments", "must be weights, or device and cnn_convolution_descriptor", None)
            outputs, rows, columns, inputs = cnn_convolution_descriptor.weight_shape()
            weights = device.new_buffer(length=4 * outputs * rows * columns * inputs)
            biases = device.new_buffer(length=4 * outputs)
        for argument, offset in (("weights_offset", weights_offset), ("biases_offset", biases_offset)):
            if offset < 0 or offset % 4:
                raise MPSArgumentError(name, argument, "must be a multiple of 4 bytes, at least 0", offset)
        super().__init__(resources=[weights] if biases is None else [weights, biases])
        self._weights, self._biases = weights, biases
        self._weights_offset, self._biases_offset = weights_offset, biases_offset

    @classmethod
    def temporary_cnn_convolution_weights_and_biases_state(
        cls, command_buffer: CommandBuffer, cnn_convolution_descriptor: MPSCNNConvolutionDescriptor
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state with new buffers that lives on ``command_buffer``; its read count starts at 1."""
        state = cls(command_buffer.device, cnn_convolution_descriptor)
        state.make_temporary(command_buffer)
        return state

    @property
    def weights(self) -> MTLBuffer:
        """The weights' buffer."""
        return self._weights

    @property
    def biases(self) -> MTLBuffer | None:
        """The biases' buffer, or None."""
        return self._biases

    @property
    def weights_offset(self) -> int:
        """Bytes before the first weight (macOS 10.15)."""
        return self._weights_offset

    @property
    def biases_offset(self) -> int:
        """Bytes before the first bias (macOS 10.15)."""
        return self._biases_offset
