"""Softmax and log-softmax over feature channels, with their gradients (MPSCNNSoftMax.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.ops import softmax
from openmps.ops.geometry import read, read_adjoint
from openmps.types import MPSOffset

Function = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor, Tensor], Tensor]


class _ChannelFunction(MPSCNNKernel):
    """A function of the channels of each pixel."""

    _function: ClassVar[Function]
    _gradient_state_class = MPSNNGradientState

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        function = type(self)._function

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return function(read(values[0], source.window, source.edge_mode)), None

        return operation


class MPSCNNSoftMax(_ChannelFunction):
    """Y[k] = exp(X[k]) / sum_j exp(X[j]), over the feature channels of each pixel (MPSCNNSoftMax.h, macOS 10.13).

    Only the channels read take part; the filler channels of the last slice do not. Result as large as the source.
    """

    _function = staticmethod(softmax.softmax)


class MPSCNNLogSoftMax(_ChannelFunction):
    """Y[k] = X[k] - ln sum_j exp(X[j]), over the feature channels of each pixel (MPSCNNSoftMax.h, macOS 10.13)."""

    _function = staticmethod(softmax.log_softmax)


class _ChannelFunctionGradient(MPSCNNGradientKernel):
    """The gradient of a function of channels, from the forward RESULT."""

    _derivative: ClassVar[Gradient]

    # The secondary image is the forward result, so the sizes of the source are those of the destination.

    def _forward_extents(self, record: ForwardRecord) -> tuple[Extent, Extent]:
        return record.destination, record.destination

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        return destination

    def _differentiated(self, secondary: Extent, target: Target) -> Extent:
        return replace(secondary, width=target.width, height=target.height)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        target, secondary = record.target, self._sources[1]
        secondary.offset = MPSOffset(target.x, target.y, record.first_destination_image)
        secondary.channel_offset, secondary.channel_max_count = target.channel, target.channels

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        derivative = type(self)._derivative

        def differentiate(gradient: Tensor, result: Tensor, saved: Any) -> tuple[Tensor, None]:
            region = read(result, geometry.source, geometry.edge_mode)
            return read_adjoint(derivative(gradient, region), geometry.data, geometry.edge_mode), None

        return differentiate


class MPSCNNSoftMaxGradient(_ChannelFunctionGradient):
    """dX[k] = Y[k] (G[k] - sum_j G[j] Y[j]) (MPSCNNSoftMax.h, macOS 10.13.4).

    The secondary image, ``source_image``, is the forward RESULT Y, not its source.
    """

    _forward_kernels = (MPSCNNSoftMax,)
    _derivative = staticmethod(softmax.softmax_gradient)


class MPSCNNLogSoftMaxGradient(_ChannelFunctionGradient):
    """dX[k] = G[k] - exp(Y[k]) sum_j G[j] (MPSCNNSoftMax.h, macOS 10.13.4).

    The secondary image, ``source_image``, is the forward RESULT Y, not its source.
    """

    _forward_kernels = (MPSCNNLogSoftMax,)
    _derivative = staticmethod(softmax.log_softmax_gradient)
