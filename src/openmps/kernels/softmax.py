"""Softmax and log-softmax over feature channels, with their gradients (MPSCNNSoftMax.h, macOS 10.13)."""

from __future__ import annotations

from typing import ClassVar

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.ops.op import Op, Value
from openmps.ops.pointwise.softmax import LogSoftMax, LogSoftMaxGradient, SoftMax, SoftMaxGradient
from openmps.types import MPSOffset


class _ChannelFunction(MPSCNNKernel, leaves=MPSNNGradientState):
    """A function of the channels of each pixel."""

    _function: ClassVar[Op]

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return self._function(at.read(images[0]))


class MPSCNNSoftMax(_ChannelFunction):
    """Y[k] = exp(X[k]) / sum_j exp(X[j]), over the feature channels of each pixel (MPSCNNSoftMax.h, macOS 10.13).

    Only the channels read take part; the filler channels of the last slice do not. Result as large as the source.
    """

    _function = SoftMax()


class MPSCNNLogSoftMax(_ChannelFunction):
    """Y[k] = X[k] - ln sum_j exp(X[j]), over the feature channels of each pixel (MPSCNNSoftMax.h, macOS 10.13)."""

    _function = LogSoftMax()


class _ChannelFunctionGradient(MPSCNNGradientKernel):
    """The gradient of a function of channels, from the forward RESULT."""

    _derivative: ClassVar[Op]

    # The secondary image is the forward result, so the sizes of the source are those of the destination.

    def _forward_extents(self, record: ForwardRecord) -> tuple[Extent, Extent]:
        return record.destination, record.destination

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        return destination

    def _differentiated(self, secondary: Extent, target: Target) -> Extent:
        return secondary._replace(width=target.width, height=target.height)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        target = record.target
        self._change_source(
            1,
            offset=MPSOffset(target.x, target.y, record.first_destination_image),
            channel_offset=target.channel,
            channel_max_count=target.channels,
        )

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        return at.back(self._derivative(gradient, at.read(source)))


class MPSCNNSoftMaxGradient(_ChannelFunctionGradient, of=MPSCNNSoftMax):
    """dX[k] = Y[k] (G[k] - sum_j G[j] Y[j]) (MPSCNNSoftMax.h, macOS 10.13.4).

    The secondary image, ``source_image``, is the forward RESULT Y, not its source.
    """

    _derivative = SoftMaxGradient()


class MPSCNNLogSoftMaxGradient(_ChannelFunctionGradient, of=MPSCNNLogSoftMax):
    """dX[k] = G[k] - exp(Y[k]) sum_j G[j] (MPSCNNSoftMax.h, macOS 10.13.4).

    The secondary image, ``source_image``, is the forward RESULT Y, not its source.
    """

    _derivative = LogSoftMaxGradient()
