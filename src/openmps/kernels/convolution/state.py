"""States of convolutions: parameter gradients, and weights that travel (MPSCNNConvolution.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import torch
from torch import Tensor

from openmps.core.lifetime import check_is_open
from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.resources import MPSStateResourceList, Slot
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.metal.memory import MTLBuffer
from openmps.types import MPSCNNConvolutionWeightsLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmps.kernels.convolution.base import ConvolutionKernel
    from openmps.kernels.convolution.forward import MPSCNNConvolution
    from openmps.kernels.convolution.transpose import MPSCNNConvolutionTranspose
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_BYTES = 4


class MPSCNNConvolutionGradientState(MPSNNGradientState):
    """The parameter gradients of one batch through a convolution (MPSCNNConvolution.h, macOS 10.13.4).

    Made by the convolution's ``result_state…`` methods, filled in by the gradient kernel: sums over the batch and all
    pixels. One object serves the whole batch, encoded at once or in pieces, and no other: once all images it was made
    for have their gradients, another encode with it raises `MPSLifetimeError`; make a new state for the next batch.

    The gradients are the state's resources 0 and 1. They are there when the command buffer of the gradient encode has
    completed; before that the CPU sees zeros or the sums of the pieces that have run. They live as long as the state
    does, or whoever holds a buffer; those of a temporary state are private to the device and go with its last read.
    """

    weights_version: int | None
    """The kernel's `weights_version` at the forward encode; None before it."""

    def __init__(self, device: MTLDevice, kernel: ConvolutionKernel) -> None:
        super().__init__(device)
        self.kernel = kernel
        """The kernel that made the state; for those who extend the framework."""
        self.weights_version = None
        self._forward_images = self._differentiated = 0
        outputs, rows, columns, inputs = kernel.convolution_descriptor.weight_shape()
        self._slots = [Slot(_BYTES * outputs * rows * columns * inputs), Slot(_BYTES * outputs)]

    @classmethod
    def temporary_state(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: the state is made by the kernel."""
        remedy = "Use temporary_result_state of the convolution"
        raise MPSTypeError(cls.__name__, "temporary_state", "is not offered by this class", None, remedy)

    @property
    def convolution(self) -> MPSCNNConvolution | None:
        """The convolution that made the state; of a transposed convolution's state its counterpart, if it has one."""
        return cast("MPSCNNConvolution", self.kernel)

    @property
    def gradient_for_weights(self) -> MTLBuffer:
        """dL/dW, float32, laid out as the data source's weights: OHWI, depthwise ``[O, rows, columns]``.

        Raises `MPSLifetimeError` if the state is temporary and was read for the last time.
        """
        return buffer_of(self, 0)

    @property
    def gradient_for_biases(self) -> MTLBuffer:
        """dL/db, float32, one number an output channel; there even if the convolution has no biases.

        Raises `MPSLifetimeError` if the state is temporary and was read for the last time.
        """
        return buffer_of(self, 1)

    @property
    def gradient_for_weights_layout(self) -> MPSCNNConvolutionWeightsLayout:
        """OHWI, the only layout (macOS 10.15)."""
        return MPSCNNConvolutionWeightsLayout.OHWI

    @property
    def images(self) -> int:
        """Images of the batch that the state was made for; 0 if nobody said."""
        return max(self._forward_images, 0 if self.source_extent is None else self.source_extent.images)

    # --- for the kernels ----------------------------------------------------------------------------------------------

    def begin(self, who: str, images: int, weights_version: int) -> None:
        """A forward encode of ``images`` images leaves this state. Raises if the state's batch is over."""
        if self._differentiated and self._differentiated >= self.images:
            self._refuse(who, "destination_state")
        self._forward_images = max(self._forward_images, images)
        self.weights_version = weights_version

    def add(self, who: str, images: int) -> Callable[[Any], None]:
        """Parameter gradients of ``images`` images are encoded; returns how the work adds them.

        Raises if the state's batch has not so many left.
        """
        if self._differentiated + images > (self.images or images):
            self._refuse(who, "gradient_state")
        self._differentiated += images
        weights, biases = self._own(0), self._own(1)

        def keep(produced: Any) -> None:
            _add(weights, produced[0])
            _add(biases, produced[1])

        return keep

    def absorb(self, produced: Any) -> None:
        """Add the gradients of one encode when it runs: a batch may come in pieces."""
        for index, gradient in enumerate(produced):
            _add(self._own(index), gradient)

    def _own(self, index: int) -> MTLBuffer:
        """A buffer of the state, whose reads were checked already."""
        assert self._device is not None
        buffer = self._slots[index].get(self._device, self.lives_on)
        assert isinstance(buffer, MTLBuffer)
        return buffer

    def _refuse(self, who: str, argument: str) -> NoReturn:
        raise MPSLifetimeError(
            who,
            argument,
            f"is good for one batch, and must not see more than the {self.images} image(s) that it was made for",
            f"{self.name} with the gradients of {self._differentiated} already",
            "Make a new state for each batch, with destination_state_is_temporary or result_state_batch; a batch that "
            "comes in pieces takes the state that result_state_batch makes for all of it",
        )


def _add(buffer: MTLBuffer, gradient: Tensor) -> None:
    flat = gradient.reshape(-1)
    if not buffer.bind_unless_allocated(flat):
        buffer.tensor(torch.float32).add_(flat)


def buffer_of(state: MPSState, index: int) -> MTLBuffer:
    """Resource ``index`` of a state of buffers; raises if the state is temporary and used up."""
    buffer = state.resource_at_index(index)
    assert isinstance(buffer, MTLBuffer)
    return buffer


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

    From buffers, ``(weights=…, biases=…)``, with byte offsets and the descriptor that says how many numbers are meant
    (macOS 10.15), so that one buffer may hold both; or ``(device, cnn_convolution_descriptor)`` with new buffers of
    zeros, allocated when they are first asked for. ``biases`` may be None.

    Raises:
        MPSTypeError: Neither buffers nor a device and a descriptor, or arguments of other types.
        MPSArgumentError: An offset is no multiple of 4, or a buffer ends before the descriptor's numbers do.
        MPSDeviceError: Buffers of different devices.
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
        name, descriptor = type(self).__name__, cnn_convolution_descriptor
        if descriptor is not None and not isinstance(descriptor, MPSCNNConvolutionDescriptor):
            rule = "must be an MPSCNNConvolutionDescriptor"
            raise MPSTypeError(name, "cnn_convolution_descriptor", rule, type(descriptor).__name__)
        self._weights_offset = _offset(name, "weights_offset", weights_offset)
        self._biases_offset = _offset(name, "biases_offset", biases_offset)
        if weights is None:
            if device is None or descriptor is None or biases is not None or weights_offset or biases_offset:
                rule = "must be weights, or device and cnn_convolution_descriptor alone"
                raise MPSTypeError(name, "arguments", rule, None)
            sizes = MPSStateResourceList(buffer_sizes=_bytes_of(name, descriptor))
            super().__init__(device, resource_list=sizes)
            return
        given = [weights] if biases is None else [weights, biases]
        for argument, buffer in zip(("weights", "biases"), given, strict=False):
            if not isinstance(buffer, MTLBuffer):
                remedy = "Make one with device.new_buffer(data=…)"
                raise MPSTypeError(name, argument, "must be an MTLBuffer", type(buffer).__name__, remedy)
        super().__init__(device, resources=given)
        if descriptor is not None:
            self.check_holds(name, "", *_bytes_of(name, descriptor))

    @classmethod
    def temporary_cnn_convolution_weights_and_biases_state(
        cls, command_buffer: CommandBuffer, cnn_convolution_descriptor: MPSCNNConvolutionDescriptor
    ) -> Self:
        """A state with new private buffers that lives on ``command_buffer``; its read count starts at 1."""
        state = cls(check_is_open(cls.__name__, command_buffer).device, cnn_convolution_descriptor)
        state.make_temporary(command_buffer)
        return state

    @property
    def weights(self) -> MTLBuffer:
        """The weights' buffer. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return buffer_of(self, 0)

    @property
    def biases(self) -> MTLBuffer | None:
        """The biases' buffer, or None. Raises as `weights` does."""
        return buffer_of(self, 1) if self.resource_count > 1 else None

    @property
    def weights_offset(self) -> int:
        """Bytes before the first weight (macOS 10.15)."""
        return self._weights_offset

    @property
    def biases_offset(self) -> int:
        """Bytes before the first bias (macOS 10.15)."""
        return self._biases_offset

    def check_holds(self, who: str, argument: str, weights: int, biases: int) -> None:
        """Raise unless there are so many bytes from the offsets on; a state without biases need hold none."""
        parts = (("weights", weights, self._weights_offset), ("biases", biases, self._biases_offset))
        for index, (part, needed, offset) in enumerate(parts[: self.resource_count]):
            held = self.buffer_size_at_index(index) - offset
            if held < needed:
                raise MPSArgumentError(who, f"{argument}{part}", f"must hold {needed} bytes", held)


def _offset(who: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value % _BYTES:
        raise MPSArgumentError(who, argument, "must be a multiple of 4 bytes, at least 0", repr(value))
    return value


def _bytes_of(who: str, descriptor: MPSCNNConvolutionDescriptor) -> list[int]:
    """Bytes of weights and of biases."""
    descriptor.validate(who)
    outputs, rows, columns, inputs = descriptor.weight_shape()
    return [_BYTES * outputs * rows * columns * inputs, _BYTES * outputs]
