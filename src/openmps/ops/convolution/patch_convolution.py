"""Convolutions of few channels where Triton runs, with the max pooling, biases and rectifier behind them in one kernel.

A network's first convolution reads so few channels that a library's kernels wait for memory, and what stands behind it
reads and writes the largest images of the network again. The pooling comes before biases and rectifier, which must not
fall: the same numbers are the largest before as after.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode

_PLACES = frozenset({1, 2, 4})
"""Pixels of a pooling's window that are computed side by side."""
_LEAST_PIXELS = 1 << 12
"""Of a convolution's results: fewer are no work."""
_MOST = {
    # is pooled, is float16: numbers that the windows of a pixel read, and pixels of all results
    (True, True): ((512, 1 << 31),),
    (True, False): ((256, 1 << 18),),
    (False, True): ((64, 1 << 31), (160, 1 << 17)),
    (False, False): ((64, 1 << 18),),
}
"""For more a library's kernels are faster, or nothing was measured."""
_MOST_OUTPUTS_TO_POOL = 64
_LEAST_OUTPUTS, _MOST_OUTPUTS = 16, 64
"""Of a program; with places of a pooling's windows half of both may be the columns of its matrix."""


class Rectifier(NamedTuple):
    """A rectifier as kernels know it: ``NONE``, ``RELU``, ``LEAKY``, ``RELU_N`` or ``LEAKY_N``, its slope and limit.

    Without pooling ``GELU``, too, of a sum that was rounded to the type of the result.
    """

    name: str
    slope: float
    limit: float


NO_RECTIFIER, GELU = Rectifier("NONE", 0.0, 0.0), Rectifier("GELU", 0.0, 0.0)


class Patches(NamedTuple):
    """Windows of a convolution without gaps, and those of the max pooling behind it, if there is one."""

    window: Window
    pooling: Window | None

    @classmethod
    def of(cls, window: Window, pooling: Window | None, edge_mode: MPSImageEdgeMode) -> Patches:
        """With the pooling if there is a kernel for both, else those of the convolution alone."""
        both = cls(window, pooling)
        return both if both.fits(edge_mode) else cls(window, None)

    @property
    def inside(self) -> tuple[int, int]:
        """Rows and columns of results that are pooled."""
        return (1, 1) if self.pooling is None else self.pooling.size

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the source that the windows of a pooled pixel read."""
        facts = zip(self.window.size, self.inside, self.window.stride, strict=True)
        rows, columns = (taps + (places - 1) * stride for taps, places, stride in facts)
        return rows, columns

    def terms(self, channels: int) -> int:
        """Numbers of them."""
        return self.size[0] * self.size[1] * channels

    def fits(self, edge_mode: MPSImageEdgeMode) -> bool:
        """Whether there is a kernel for them."""
        reads_zeros = edge_mode == MPSImageEdgeMode.ZERO or not self.window.leaves_source
        is_dense = self.pooling is None or (self.pooling.dilation == (1, 1) and not self.pooling.leaves_source)
        few = self.inside[0] * self.inside[1] in _PLACES
        return reads_zeros and self.window.dilation == (1, 1) and is_dense and few

    def wins(self, images: int, weights: Tensor) -> bool:
        """Whether it is faster than a library's kernel and the passes behind it, by what was measured on an H200."""
        pixels, is_pooled = images * self.window.y.result * self.window.x.result, self.pooling is not None
        outputs, *_, channels = weights.shape
        if pixels < _LEAST_PIXELS or (is_pooled and outputs > _MOST_OUTPUTS_TO_POOL):
            return False
        most = _MOST[is_pooled, weights.dtype == torch.float16]
        return any(self.terms(channels) <= terms and pixels <= count for terms, count in most)

    def at_once(self, outputs: int) -> int:
        """Outputs of a program, a power of two."""
        most = 2 * _MOST_OUTPUTS // max(2, self.inside[0] * self.inside[1])
        return min(most, max(_LEAST_OUTPUTS, 1 << (outputs - 1).bit_length()))

    def matrix(self, weights: Tensor) -> Tensor:
        """Weights OHWI as a matrix that patches are multiplied with, ``[terms, columns]``.

        The columns are those of a block of outputs for each place of the pooling's windows, block by block; where the
        window of a place does not reach are zeros.
        """
        outputs, taps_y, taps_x, inputs = weights.shape
        (down, across), (rows, columns), at_once = self.inside, self.size, self.at_once(outputs)
        blocks = -(-outputs // at_once)
        padded = weights.new_zeros((blocks * at_once, taps_y, taps_x, inputs))
        padded[:outputs] = weights
        factors = padded.view(blocks, at_once, taps_y, taps_x, inputs).permute(2, 3, 4, 0, 1)
        matrix = weights.new_zeros((rows, columns, inputs, blocks, down, across, at_once))
        for i in range(down):
            for j in range(across):
                y, x = i * self.window.stride[0], j * self.window.stride[1]
                matrix[y : y + taps_y, x : x + taps_x, :, :, i, j] = factors
        return matrix.view(rows * columns * inputs, -1)


def prepared_matrix(weights: Tensor, patches: Patches, edge_mode: MPSImageEdgeMode, images: int) -> Tensor | None:
    """The matrix of weights OHWI of one group, for so many images on their device; None where others are faster."""
    is_float = weights.dtype in (torch.float16, torch.float32)
    fits = is_float and patches.fits(edge_mode) and patches.wins(images, weights)
    return patches.matrix(weights) if fits and triton.runs_on(weights.device) else None


def patch_convolution(
    x: Tensor, matrix: Tensor, outputs: int, biases: Tensor | None, patches: Patches,
    rectifier: Rectifier = NO_RECTIFIER,
) -> Tensor | None:  # fmt: skip
    """``rectifier(max pooling(convolution(x)) + biases)``, by a matrix; None where it is for other patches or images.

    Float16 or float32; sums are float32, and the result is rounded once. Outside the source are zeros.
    """
    results = len(x) * patches.window.y.result * patches.window.x.result * outputs
    is_plain = x.is_contiguous(memory_format=torch.channels_last) and 0 < max(results, x.numel()) < 2**31
    if not is_plain or x.dtype != matrix.dtype or len(matrix) != patches.terms(x.shape[1]):
        return None
    from openmps.ops.triton.convolution import convolution_patches as kernels

    at_once = patches.at_once(outputs)
    return kernels.patches(x, matrix, outputs, at_once, biases, patches.window, patches.pooling, rectifier)


def small_convolution(
    x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode,
    rectifier: Rectifier = NO_RECTIFIER,
) -> Tensor | None:  # fmt: skip
    """`convolution` of one group whose weights were not prepared, rectified; None where others are faster."""
    patches = Patches(window, None)
    if not triton.runs_on(x.device) or not patches.fits(edge_mode) or not patches.wins(len(x), weights):
        return None
    is_float = x.dtype in (torch.float16, torch.float32) and weights.is_contiguous()
    if not is_float:
        return None
    return patch_convolution(x, weights.flatten(1).t(), len(weights), biases, patches, rectifier)
