"""Parameters of normalizations that travel: gamma and beta, mean and variance.

Batch and instance normalization reload from them, optimizers write them. (MPSCNNNormalizationWeights.h, macOS 10.13.4;
MPSCNNBatchNormalization.h, macOS 10.14.)
"""

from __future__ import annotations

from typing import Self

from openmps.checks import whole
from openmps.core.lifetime import check_is_open
from openmps.core.state.resources import MPSStateResourceList
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLBuffer

_BYTES = 4


class ChannelStatePair(MPSState):
    """Two buffers of float32, one number a feature channel each. Use one of the subclasses."""

    _names: tuple[str, str] = ("first", "second")

    def _take(self, first: MTLBuffer, second: MTLBuffer) -> None:
        name = type(self).__name__
        for argument, buffer in zip(self._names, (first, second), strict=True):
            if not isinstance(buffer, MTLBuffer):
                remedy = "Make one with device.new_buffer(data=…)"
                raise MPSTypeError(name, argument, "must be an MTLBuffer", type(buffer).__name__, remedy)
            if buffer.length % _BYTES:
                rule = "must hold float32 numbers, a multiple of 4 bytes"
                raise MPSArgumentError(name, argument, rule, f"{buffer.length} bytes")
        super().__init__(resources=[first, second])

    @classmethod
    def temporary_state(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, command_buffer: CommandBuffer, number_of_feature_channels: int
    ) -> Self:
        """A state with private buffers that lives on ``command_buffer``; its read count starts at 1.

        It is large enough for images of up to ``number_of_feature_channels`` feature channels.
        """
        name = f"{cls.__name__}.temporary_state"
        device = check_is_open(name, command_buffer).device
        rule = "must be a positive integer"
        channels = whole(name, "number_of_feature_channels", number_of_feature_channels, rule=rule)
        size = device.check_length(name, "number_of_feature_channels", _BYTES * channels)
        state = cls.__new__(cls)
        MPSState.__init__(state, device, resource_list=MPSStateResourceList(buffer_sizes=[size, size]))
        state.make_temporary(command_buffer)
        return state

    def check_holds(self, who: str, argument: str, channels: int) -> None:
        """Raise unless there is a number in both buffers for each of ``channels`` feature channels."""
        for index, name in enumerate(self._names):
            size = self.buffer_size_at_index(index)
            if size < _BYTES * channels:
                rule = f"must hold {_BYTES * channels} bytes, a float32 for each of {channels} feature channel(s)"
                raise MPSArgumentError(who, f"{argument}.{name}", rule, f"{size} bytes")

    def _buffer(self, index: int) -> MTLBuffer:
        buffer = self.resource_at_index(index)
        assert isinstance(buffer, MTLBuffer)
        return buffer


class MPSCNNNormalizationGammaAndBetaState(ChannelStatePair):
    """Scales and shifts of a normalization, one a feature channel (MPSCNNNormalizationWeights.h, macOS 10.13.4).

    From float32 buffers, ``(gamma, beta)``, or for one command buffer by `temporary_state`. Batch and instance
    normalizations reload from it; optimizers write it.

    Raises:
        MPSTypeError: ``gamma`` or ``beta`` is no buffer.
        MPSArgumentError: A buffer does not hold whole float32 numbers.
        MPSDeviceError: Buffers of different devices.

    >>> import numpy as np, openmps as mps
    >>> device = mps.mtl_device("cpu")
    >>> ones, zeros = (device.new_buffer(data=np.float32([number] * 3)) for number in (1, 0))
    >>> mps.MPSCNNNormalizationGammaAndBetaState(ones, zeros).gamma.length
    12
    """

    _names = ("gamma", "beta")

    def __init__(self, gamma: MTLBuffer, beta: MTLBuffer) -> None:
        self._take(gamma, beta)

    @property
    def gamma(self) -> MTLBuffer:
        """The scales. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return self._buffer(0)

    @property
    def beta(self) -> MTLBuffer:
        """The shifts. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return self._buffer(1)


class MPSCNNNormalizationMeanAndVarianceState(ChannelStatePair):
    """Means and variances of a normalization, one a feature channel (MPSCNNBatchNormalization.h, macOS 10.14).

    From float32 buffers, ``(mean, variance)``, or for one command buffer by `temporary_state`. Batch normalizations
    reload from it.

    Raises:
        MPSTypeError: ``mean`` or ``variance`` is no buffer.
        MPSArgumentError: A buffer does not hold whole float32 numbers.
        MPSDeviceError: Buffers of different devices.

    >>> mps.MPSCNNNormalizationMeanAndVarianceState(zeros, ones).variance is ones
    True
    """

    _names = ("mean", "variance")

    def __init__(self, mean: MTLBuffer, variance: MTLBuffer) -> None:
        self._take(mean, variance)

    @property
    def mean(self) -> MTLBuffer:
        """The means. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return self._buffer(0)

    @property
    def variance(self) -> MTLBuffer:
        """The variances. Raises `MPSLifetimeError` if the state is temporary and was read for the last time."""
        return self._buffer(1)
