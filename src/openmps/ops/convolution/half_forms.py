"""Convolutions of float16 images: which a kernel in Triton computes faster than a library, and how it divides them.

And what a library's kernel is given for a network's first layer.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode

if TYPE_CHECKING:
    from openmps.ops.triton.convolution import followed_end as ends
    from openmps.ops.triton.convolution.half_convolution import Addend, Tile

_FEW_PIXELS = 1 << 12
"""Of all images, up to which libraries leave most of a GPU idle, as was measured on an H200."""
_FEW_TERMS, _MANY_OUTPUTS = 128, 256
"""Of both images together, and outputs, where the image between costs more than slower products."""
_PROGRAMS = 128
"""About as many as an H200 has multiprocessors."""
_PIXELS, _TERMS = 64, (64, 128)
"""Of a tile, and of a program at a time; 64 terms of images that have no multiple of 128 channels."""
_MANY_RUNS = 16
"""Of terms, from which sharing them pays."""
_MOST_TAPS = 31
"""Of a row or column, a bit each."""
_MOST_NUMBERS = 1 << 31
_FOLLOWED_ENDS = {
    (64, 0, 256, 64): (1 << 12, (64, 256, 4, 3, 132)),
    (64, 64, 256, 64): (1 << 12, (64, 256, 4, 3, 132)),
    (64, 0, 256, 128): (1 << 12, (64, 256, 4, 3, 132)),
    (128, 0, 512, 128): (1 << 14, (128, 32, 8, 3)),
    (128, 0, 512, 256): (1 << 14, (128, 64, 8, 3)),
}
"""Ends of blocks that one launch makes with the convolution behind them, by the channels of a block's image, of the one
that is projected, of the result and of what follows: pixels of all images that are too few, and the division that was
fastest on an H200."""
_ROOM = 227 << 10
"""Bytes of memory that the largest of them take of a multiprocessor, as an H100 has."""
_ALIGNMENT = 16
_FIRST_LAYER = (64, 7, 7, 3), (2, 2)
"""Weights and stride that cuDNN has a kernel of four channels for. It brings images to those by two passes of its own,
which take three times as long as one of Triton."""


def half_convolution(
    x: Tensor, weights: Tensor, biases: Tensor | None, residual: Tensor | None, window: Window,
    edge_mode: MPSImageEdgeMode, rectifier: tuple[str, float, float],
    addend: tuple[Tensor, Tensor, Window] | None = None,
) -> Tensor | None:  # fmt: skip
    """The rectified sum of a convolution of one group and what is added; None where it has no such form.

    Images are channels-last without gaps. An addend is an image, weights OHWI of one pixel, and windows inside it.
    """
    if not _fits(x, weights, window) or (edge_mode != MPSImageEdgeMode.ZERO and window.leaves_source):
        return None
    if (addend is not None and not _fits(*addend)) or not triton.runs_on(x.device):
        return None
    from openmps.ops.triton.convolution import half_convolution as fast

    added = None if addend is None else fast.Addend(*addend)
    tile = tile_for(x, weights, window, added)
    return None if tile is None else fast.half_convolution(x, weights, biases, residual, window, rectifier, tile, added)


def _fits(x: Tensor, weights: Tensor, window: Window) -> bool:
    is_half = x.dtype == weights.dtype == torch.float16 and weights.is_contiguous() and x.numel() > 0
    largest = max(x.numel(), len(x) * len(weights) * math.prod(window.result))
    return is_half and max(window.size) <= _MOST_TAPS and largest < _MOST_NUMBERS


def tile_for(x: Tensor, weights: Tensor, window: Window, addend: Addend | None) -> Tile | None:
    """How the kernel divides a convolution; None where a library is faster, or runs of terms do not suit the kernel."""
    from openmps.ops.triton.addresses import has_room
    from openmps.ops.triton.convolution.half_convolution import Tile

    (outputs, *taps, inputs), pixels = weights.shape, len(x) * math.prod(window.result)
    terms = _TERMS[inputs % _TERMS[1] == 0]
    runs, left = divmod(inputs, terms)
    if left or runs & (runs - 1) or (addend is not None and addend.image.shape[1] % terms):
        return None
    if pixels > _FEW_PIXELS:
        adds = addend is not None and inputs * math.prod(taps) + addend.image.shape[1] <= _FEW_TERMS
        return Tile(_PIXELS, _MANY_OUTPUTS, terms, 1, 8, 2) if adds and outputs >= _MANY_OUTPUTS else None
    channels = 64 if terms == _TERMS[0] else 32 if pixels > 8 * _PIXELS else 16
    tiles = math.ceil(pixels / _PIXELS) * math.ceil(outputs / channels)
    is_shared = runs * math.prod(taps) >= _MANY_RUNS and addend is None and has_room(tiles)
    return Tile(_PIXELS, channels, terms, max(1, _PROGRAMS // tiles) if is_shared else 1)


def followed_tile(x: Tensor, weights: Tensor, projection: Tensor | None, after: Tensor) -> ends.Tile | None:
    """How one launch divides the end of a block and the convolution behind it; None where two launches are faster.

    ``x`` and what is added are channels-last without gaps, and all weights those of single pixels.
    """
    given = [x, weights, after] if projection is None else [x, weights, after, projection]
    is_half = all(each.dtype == torch.float16 and each.data_ptr() % _ALIGNMENT == 0 for each in given)
    channels = weights.shape[3], 0 if projection is None else projection.shape[3], len(weights), len(after)
    if channels not in _FOLLOWED_ENDS or not is_half or not all(each.is_contiguous() for each in given[1:]):
        return None
    few, divided = _FOLLOWED_ENDS[channels]
    if not few < x.numel() // x.shape[1] < _MOST_NUMBERS // channels[2] or not _is_roomy(x.device):
        return None
    from openmps.ops.triton.convolution.followed_end import Tile

    return Tile(*divided)


@cache
def _is_roomy(device: torch.device) -> bool:
    """Whether a multiprocessor has memory for any followed end."""
    return device.type == "cuda" and torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= _ROOM


def for_first_layer(image: Tensor, weights: Tensor, stride: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """An image and weights OHWI as cuDNN is to be given them: with a fourth channel of zeros where it adds one."""
    is_plain = image.is_contiguous(memory_format=torch.channels_last) and weights.is_contiguous()
    if (weights.shape, stride) != _FIRST_LAYER or not is_plain or not triton.runs_on(image.device):
        return image, weights
    from openmps.ops.triton.convolution.four_channels import four_channels

    return four_channels(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), four_channels(weights)
