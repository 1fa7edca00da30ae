"""Where the windows of planned kernels lie, as other frameworks say it: padding before the first, behind the last."""

from __future__ import annotations

from typing import Any, NamedTuple

Sizes = tuple[int, int]
"""Of rows and of columns."""


class Padding(NamedTuple):
    """Rows and columns that windows reach beyond an image, less than 0 where they do not reach its edge."""

    before: Sizes
    behind: Sizes


def extents(kernel: Any) -> Sizes:
    """What a window spans, with its dilation."""
    rows, columns = (
        (getattr(kernel, f"kernel_{side}") - 1) * getattr(kernel, f"dilation_rate_{axis}") + 1
        for side, axis in (("height", "y"), ("width", "x"))
    )
    return rows, columns


def padding(kernel: Any, sizes: Sizes, results: Sizes) -> Padding:
    """That of a convolution or a pooling from an image to a result of these rows and columns."""
    taps, strides = extents(kernel), (kernel.stride_in_pixels_y, kernel.stride_in_pixels_x)
    before = taps[0] // 2 - kernel.offset.y, taps[1] // 2 - kernel.offset.x
    rows, columns = (
        (d - 1) * s + k - n - b for d, s, k, n, b in zip(results, strides, taps, sizes, before, strict=True)
    )
    return Padding(before, (rows, columns))


def transposed_padding(kernel: Any, sizes: Sizes, results: Sizes) -> Padding:
    """That of a transposed convolution, around the image with its strides between pixels."""
    taps, strides = extents(kernel), (kernel.stride_in_pixels_y, kernel.stride_in_pixels_x)
    offsets = kernel.kernel_offset_y, kernel.kernel_offset_x
    before = taps[0] // 2 - offsets[0], taps[1] // 2 - offsets[1]
    rows, columns = (
        d + k - 2 - (n - 1) * s - b for d, s, k, n, b in zip(results, strides, taps, sizes, before, strict=True)
    )
    return Padding(before, (rows, columns))
