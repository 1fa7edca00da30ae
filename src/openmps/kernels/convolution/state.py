"""Weights of convolutions that travel as states (MPSCNNConvolution.h, macOS 10.13.4)."""

from __future__ import annotations

from copy import deepcopy
from types import NoneType
from typing import Self, overload

from openmps.checks import Shown, of_kind, store
from openmps.core.lifetime import check_is_open
from openmps.core.state.resources import MPSStateResourceList
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.runtime.binding import Binding, HeldTensor
from openmps.selectors import takes

_BYTES = 4


def buffer_of(state: MPSState, index: int) -> MTLBuffer:
    """Resource ``index`` of a state of buffers; raises if the state is temporary and used up."""
    buffer = state.resource_at_index(index)
    assert isinstance(buffer, MTLBuffer)
    return buffer


class MPSCNNConvolutionWeightsAndBiasesState(MPSState):
    """Weights and biases on the device, float32, OHWI (MPSCNNConvolution.h, macOS 10.13.4).

    From buffers, ``(weights=…, biases=…)``, with byte offsets and the descriptor that says how many numbers are meant
    (macOS 10.15), so that one buffer may hold both; or ``(device, cnn_convolution_descriptor)`` with new buffers of
    zeros, allocated when they are first asked for. ``biases`` may be None.

    Raises:
        MPSTypeError: Neither buffers nor a device and a descriptor, or arguments of other types.
        MPSArgumentError: An offset is no multiple of 4, or a buffer ends before the descriptor's numbers do.
        MPSDeviceError: Buffers of different devices.

    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> doubled = mps.MPSCNNConvolutionWeightsAndBiasesState(weights=device.new_buffer(data=np.float32([2])))
    >>> convolution.reload_weights_and_biases(command_buffer, doubled)
    >>> convolution.destination_image_allocator = mps.MPSImage.default_allocator()
    >>> y = convolution.encode(command_buffer, x)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> y.numpy().ravel()
    array([6., 8.], dtype=float32)
    """

    rounded_weights: Binding = HeldTensor(None)
    """Where a kernel keeps these weights rounded to float16: updates write that, too. For those who extend the
    framework."""

    weights_offset = Shown[int]("_weights_offset", "Bytes before the first weight (macOS 10.15).")
    biases_offset = Shown[int]("_biases_offset", "Bytes before the first bias (macOS 10.15).")

    @overload
    def __init__(self, weights: MTLBuffer, biases: MTLBuffer | None, /) -> None: ...
    @overload
    def __init__(
        self,
        weights: MTLBuffer,
        weights_offset: int,
        biases: MTLBuffer | None,
        biases_offset: int,
        cnn_convolution_descriptor: MPSCNNConvolutionDescriptor,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice | None = None,
        cnn_convolution_descriptor: MPSCNNConvolutionDescriptor | None = None,
        *,
        weights: MTLBuffer | None = None,
        biases: MTLBuffer | None = None,
        weights_offset: int = 0,
        biases_offset: int = 0,
    ) -> None: ...
    @takes(
        {"weights": MTLBuffer, "biases": (MTLBuffer, NoneType)},
        {
            "weights": MTLBuffer,
            "weights_offset": int,
            "biases": (MTLBuffer, NoneType),
            "biases_offset": int,
            "cnn_convolution_descriptor": object,
        },
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
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
            of_kind(name, argument, buffer, MTLBuffer, "Make one with device.new_buffer(data=…)")
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

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """The numbers in buffers of its own, which no kernel multiplies with."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        for name, value in vars(self).items():
            if name != "rounded_weights":
                store(twin, name, deepcopy(value, memo))
        return twin

    @property
    def weights(self) -> MTLBuffer:
        """The weights' buffer. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return buffer_of(self, 0)

    @property
    def biases(self) -> MTLBuffer | None:
        """The biases' buffer, or None. Raises as `weights` does."""
        return buffer_of(self, 1) if self.resource_count > 1 else None

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
