"""Float32 convolutions whose windows are one pixel each, on the CPU: products of matrices whose rows are pixels.

torch gives such a convolution to MKL image by image, or to oneDNN in its own order, by the number of threads and
images; all images at once, in the order in which they lie, are one product, forward and in both gradients::

    Y = X Wᵀ + b        dX = G W        dW = Gᵀ X

Each function returns None where a convolution is not of this kind; `convolution` beside it computes it then, whose
numbers these equal within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window, pitch_of
from openmps.ops.matrix.products import product, product_of_rows

_MANY_PIXELS = 1 << 14
"""For which oneDNN sums the weights' gradient faster than MKL."""


def pixel_convolution(x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, groups: int) -> Tensor | None:
    """`convolution` of an image [N, I, H, W] by weights OHWI."""
    if (pixels := _pixels(x, window, groups, x.dtype)) is None or (biases is not None and biases.dtype != x.dtype):
        return None
    return _image(product_of_rows(pixels, weights.flatten(1), biases), x)


def pixel_gradients(
    gradient: Tensor, x: Tensor, weights: Tensor, window: Window, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None] | None:
    """The gradients of the source and of the weights, OHWI, of `convolution_gradient`; None for one not ``wanted``."""
    flow, pixels = (_pixels(each, window, groups, x.dtype) for each in (gradient, x))
    if flow is None or pixels is None:
        return None
    source = _image(product(flow, weights.flatten(1)), x) if wanted[0] else None
    if not wanted[1] or len(pixels) < _MANY_PIXELS:
        return source, torch.mm(flow.t(), pixels).view(weights.shape) if wanted[1] else None
    return source, _by_onednn(flow, pixels, weights)


def _by_onednn(flow: Tensor, pixels: Tensor, weights: Tensor) -> Tensor:
    """``Gᵀ X`` of many pixels by oneDNN's gradient of a convolution's weights.

    torch calls it for many images alone, so that pixels are given as such.
    """
    images = next(images for images in (64, 32, 16, 1) if len(pixels) % images == 0)
    image, gradient = (each.view(images, 1, -1, each.shape[1]).permute(0, 3, 1, 2) for each in (pixels, flow))
    where: Any = None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1
    wanted = False, True, False
    found = torch.ops.aten.convolution_backward(gradient, image, weights.permute(0, 3, 1, 2), *where, wanted)
    return found[1].permute(0, 2, 3, 1).contiguous()


def _pixels(image: Tensor, window: Window, groups: int, dtype: torch.dtype) -> Tensor | None:
    """The pixels of an image, or of some of its channels, as rows; None if it lies otherwise, or windows are larger."""
    is_pixel = groups == 1 and window.size == window.stride == (1, 1) and window.is_whole
    if not is_pixel or image.is_cuda or not image.dtype == dtype == torch.float32 or not image.numel():
        return None
    images, channels, height, width = image.shape
    pitch = pitch_of(image)
    return None if pitch is None else image.as_strided((images * height * width, channels), (pitch, 1))


def _image(pixels: Tensor, like: Tensor) -> Tensor:
    """Rows as the pixels of an image of the size of another one."""
    return pixels.view(len(like), *like.shape[2:], -1).permute(0, 3, 1, 2)
