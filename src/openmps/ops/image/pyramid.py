"""One level of a pyramid of pictures from another (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

from torch import Tensor

from openmps.ops.convolution.convolution import convolution
from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, read
from openmps.ops.image.windows import correlate
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode


def decimate(x: Tensor, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Weighted sums of the windows around every second pixel; weights are ``[kh, kw]``."""
    channels = x.shape[1]
    kernel = weights.to(x.dtype)[None, :, :, None].expand(channels, -1, -1, 1).contiguous()
    return convolution(x, kernel, None, window, groups=channels, edge_mode=edge_mode)


def expand(x: Tensor, weights: Tensor, height: int, width: int, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Weighted sums over a picture of height x width with pixel (y, x) at (2 y, 2 x) and zeros elsewhere.

    Outside that picture CLAMP goes on with the nearest pixels of ``x`` at even places, ZERO with nothing. The filter is
    applied as it is, without the factor 4 that keeps a picture's brightness.
    """
    rows, columns = weights.shape[0] // 2, weights.shape[1] // 2
    down, across = _samples(x.shape[ROWS], height, rows), _samples(x.shape[COLUMNS], width, columns)
    wide = x.new_zeros((*x.shape[:2], height + 2 * rows, width + 2 * columns))
    wide[:, :, rows % 2 :: 2, columns % 2 :: 2] = read(x, Window(across, down), edge_mode)
    # The last row and column of an odd size have no pixel.
    if height > 2 * x.shape[ROWS]:
        wide[:, :, rows + height - 1] = 0.0
    if width > 2 * x.shape[COLUMNS]:
        wide[..., columns + width - 1] = 0.0
    return correlate(wide, weights, 0.0)


def _samples(source: int, length: int, reach: int) -> Axis:
    """The pixels that stand at even places from ``reach`` before to ``reach`` behind so many."""
    first = -(reach // 2)
    return Axis(source, (length - 1 + reach) // 2 - first + 1, offset=first)


class Decimate(Op, kind=Kind.WINDOW):
    """`decimate` of a picture with weights, the second operand."""

    window: Window
    edge_mode: MPSImageEdgeMode

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `decimate`."""
        x, weights = operands
        return decimate(x, weights, self.window, self.edge_mode)


class Expand(Op, kind=Kind.WINDOW):
    """`expand` of a picture with weights, the second operand."""

    height: int
    width: int
    edge_mode: MPSImageEdgeMode

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `expand`."""
        x, weights = operands
        return expand(x, weights, self.height, self.width, self.edge_mode)


class Detail(Op):
    """What one level has that the next one, expanded, has not: ``bias + scale (x - expanded)``; or the way back."""

    bias: float
    scale: float
    is_inverse: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        x, expanded = operands
        if self.is_inverse:
            return (x - self.bias) / self.scale + expanded
        return self.bias + self.scale * (x - expanded)
