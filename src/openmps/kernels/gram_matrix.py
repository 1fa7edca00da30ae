"""The Gram matrix of an image's feature channels, and its gradient (MPSCNNConvolution.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.property import KernelProperty
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import number
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.ops.gram_matrix import gram_matrix, gram_matrix_gradient

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSNNGramMatrixCalculation(MPSCNNKernel):
    """Y[c, 0, f] = alpha sum_{y,x} X[f, y, x] X[c, y, x], for each image (MPSCNNConvolution.h, macOS 10.15).

    Row 0, column f, channel c of the result holds the product of channels f and c: of C channels read it is C x 1
    pixels with C channels. Nothing is divided by the number of pixels; `alpha` may say so. The sums run over the whole
    image: there is no offset, and a clip rectangle may place the result but not cut it.
    """

    _gradient_state_class = MPSNNGradientState

    alpha = KernelProperty(1.0, number, "Factor of the result. Default 1.")

    def __init__(self, device: MTLDevice, alpha: float = 1.0) -> None:
        super().__init__(device)
        self.alpha = alpha

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        descriptor.width, descriptor.height = descriptor.feature_channels, 1

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        origin, columns = self._clip_rect.origin, self._channels_read(0, sources[0].channels)
        width, height = min(destination.width, origin.x + columns), min(destination.height, origin.y + 1)
        return replace(destination, width=width, height=height)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        if (self.offset.x, self.offset.y) != (0, 0):
            rule = "must be 0 in x and y: the sums run over the whole image"
            raise MPSArgumentError(self.name, "offset", rule, f"({self.offset.x}, {self.offset.y})")
        columns = sources[0].channels
        if target.width < columns:
            rule = f"must have room for {columns}x1 pixels (width x height) in the clip rectangle"
            remedy = "The result is as wide as the source has feature channels"
            raise MPSArgumentError(self.name, self._destination_argument, rule, f"{target.width}x1", remedy)
        alpha = self.alpha

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return gram_matrix(values[0], alpha), None

        return operation

    def _parameters(self) -> float:
        return self.alpha


class MPSNNGramMatrixCalculationGradient(MPSCNNGradientKernel):
    """dX[a, y, x] = alpha sum_c (G[c, 0, a] + G[a, 0, c]) X[c, y, x] (MPSCNNConvolution.h, macOS 10.15).

    G need not be symmetric. `alpha` is taken from the state, whenever one is passed. The secondary image is the
    forward source.
    """

    _forward_kernels = (MPSNNGramMatrixCalculation,)

    alpha = KernelProperty(1.0, number, "Factor of the result. Default 1.")

    def __init__(self, device: MTLDevice, alpha: float = 1.0) -> None:
        super().__init__(device)
        self.alpha = alpha

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        self._take_alpha(states)
        rows, columns = geometry.source.result
        channels = sources[1].channels
        if (rows, columns) != (1, channels):
            rule = f"must have {channels}x1 pixels (width x height), one column a feature channel of the source"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, f"{columns}x{rows}")
        alpha = self.alpha

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return gram_matrix_gradient(gradient, source, alpha), None

        return differentiate

    def _take_alpha(self, states: MPSStateBatch | None) -> None:
        listed = states.counted() if states is not None else []
        records = [state.record for state in listed if isinstance(state, MPSNNGradientState)]
        found: set[float] = {record.parameters for record in records if record is not None}
        if len(found) > 1:
            rule = "must come from forward encodes with the same alpha"
            remedy = "Encode their images one by one"
            raise MPSArgumentError(self.name, "gradient_states", rule, sorted(found), remedy)
        if found:
            self.alpha = found.pop()
