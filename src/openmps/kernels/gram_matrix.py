"""The Gram matrix of an image's feature channels, and its gradient (MPSCNNConvolution.h, macOS 10.15)."""

from __future__ import annotations

from typing import Any

from openmps.checks import number
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.ops.reduce.gram_matrix import GramMatrix, GramMatrixGradient
from openmps.selectors import takes


class _Factor(MPSKernel):
    """The factor that the calculation and its gradient share."""

    alpha = KernelProperty(1.0, number, "Factor of the result. Default 1.")

    @takes()
    def __init__(self, device: MTLDevice, alpha: float = 1.0) -> None:
        super().__init__(device)
        self.alpha = alpha


class MPSNNGramMatrixCalculation(_Factor, MPSCNNKernel, leaves=MPSNNGradientState):
    """Y[c, 0, f] = alpha sum_{y,x} X[f, y, x] X[c, y, x], for each image (MPSCNNConvolution.h, macOS 10.15).

    Row 0, column f, channel c of the result holds the product of channels f and c: of C channels read it is C x 1
    pixels with C channels. Nothing is divided by the number of pixels; `alpha` may say so. The sums run over the whole
    image: there is no offset, and a clip rectangle may place the result but not cut it.
    """

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: Any) -> Extent:
        return extent._replace(width=extent.channels, height=1)

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        origin, columns = self.clip_rect.origin, self._channels_read(0, sources[0].channels)
        width, height = min(destination.width, origin.x + columns), min(destination.height, origin.y + 1)
        return destination._replace(width=width, height=height)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        if (self.offset.x, self.offset.y) != (0, 0):
            rule = "must be 0 in x and y: the sums run over the whole image"
            raise MPSArgumentError(self.name, "offset", rule, f"({self.offset.x}, {self.offset.y})")
        columns, target = at.sources[0].channels, at.target
        if target.width < columns:
            rule = f"must have room for {columns}x1 pixels (width x height) in the clip rectangle"
            remedy = "The result is as wide as the source has feature channels"
            raise MPSArgumentError(self.name, self._destination_argument, rule, f"{target.width}x1", remedy)
        return GramMatrix(self.alpha)(images[0])

    def _parameters(self) -> float:
        return self.alpha


class MPSNNGramMatrixCalculationGradient(_Factor, MPSCNNGradientKernel, of=MPSNNGramMatrixCalculation):
    """dX[a, y, x] = alpha sum_c (G[c, 0, a] + G[a, 0, c]) X[c, y, x] (MPSCNNConvolution.h, macOS 10.15).

    G need not be symmetric. `alpha` is taken from the state, whenever one is passed. The secondary image is the
    forward source.
    """

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        self.alpha = record.parameters

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        rows, columns = at.geometry.source.result
        channels = at.sources[1].channels
        if (rows, columns) != (1, channels):
            rule = f"must have {channels}x1 pixels (width x height), one column a feature channel of the source"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, f"{columns}x{rows}")
        return GramMatrixGradient(self._alpha_of(at.given))(gradient, source)

    def _alpha_of(self, given: Given | None) -> float:
        """That of the forward encodes, or this kernel's own without a state."""
        found: set[float] = set() if given is None else {record.parameters for record in given.records}
        if len(found) > 1:
            rule = "must come from forward encodes with the same alpha"
            remedy = "Encode their images one by one"
            raise MPSArgumentError(self.name, "gradient_states", rule, sorted(found), remedy)
        return found.pop() if found else self.alpha

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        """Into a given destination too, `alpha` becomes that of the states."""
        alpha = self.alpha if source_states is None else self._alpha_of(self._given(source_states))
        if alpha != self.alpha:
            self.alpha = alpha
