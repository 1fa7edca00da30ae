"""Gradients of a convolution's weights as sums of products of pixels: of matrices, or in Triton where pixels lie."""

from __future__ import annotations

from torch import Tensor

from openmps.ops.convolution.library_convolution import regular
from openmps.ops.convolution.triton_forms import runs_in_triton
from openmps.ops.geometry import Window, pitch_of, read
from openmps.ops.matrix.products import wide_product
from openmps.types import MPSImageEdgeMode

_COLUMN_BYTES = 2**26
"""Most memory that the pixels under the windows, written out, may take at a time."""


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Return the gradient for the weights of one group, OHWI, as products of matrices: sums in float32 at least.

    The pixels under the windows are written out, for as many images at a time as little memory holds; what a float16
    gradient and source give is never rounded to float16, which the engine's own gradient would do.
    """
    found = weights_gradient_in_place(gradient, x, window, edge_mode)
    if found is not None:
        return found
    region = regular(read(x, window, edge_mode)).permute(0, 2, 3, 1)
    images, _, _, channels = region.shape
    rows, columns = window.result
    stride, dilation = window.stride, window.dilation
    image, row, column, channel = region.stride()
    seen = region.as_strided(
        (images, rows, columns, *window.size, channels),
        (image, row * stride[0], column * stride[1], row * dilation[0], column * dilation[1], channel),
    )
    each = rows * columns * window.y.size * window.x.size * channels * x.element_size()
    together = max(1, _COLUMN_BYTES // each)
    factors = gradient.permute(0, 2, 3, 1)
    total = None
    for first in range(0, images, together):
        pixels = seen[first : first + together].flatten(0, 2).flatten(1)
        part = wide_product(factors[first : first + together].flatten(0, 2).t(), pixels)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.view(-1, *window.size, channels)


def weights_gradient_in_place(
    gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode
) -> Tensor | None:
    """`weights_gradient` of windows that are read where they lie: as one product, or in Triton; None if neither can."""
    if min(gradient.numel(), x.numel()) == 0:
        return None
    pitches = pitch_of(gradient), pitch_of(x)
    if pitches[0] is None or pitches[1] is None:
        return None
    if window.is_pixelwise and x.is_cuda:
        return wide_product(_pixels(gradient, pitches[0]).t(), _pixels(x, pitches[1])).view(-1, 1, 1, x.shape[1])
    if not runs_in_triton(gradient, x, window, edge_mode):
        return None
    from openmps.ops.triton.convolution.convolution import weights_gradient as in_place

    return in_place(gradient, x, window, pitches[0], pitches[1])


def _pixels(image: Tensor, pitch: int) -> Tensor:
    """The pixels of an image as rows."""
    images, channels, height, width = image.shape
    return image.as_strided((images * height * width, channels), (pitch, 1))
