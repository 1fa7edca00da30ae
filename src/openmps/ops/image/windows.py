"""Correlations of pictures with windows of any weights, channel by channel (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import convolution
from openmps.ops.geometry import Axis, Window
from openmps.ops.image.taps import sum_of_taps
from openmps.ops.op import Kind, Op


def correlate(region: Tensor, weights: Tensor, bias: float) -> Tensor:
    """Sums of windows of a region ``[N, C, H + kh - 1, W + kw - 1]``, with weights ``[kh, kw]``, and ``bias``.

    ``Y[n, c, y, x] = bias + sum over j, i of weights[j, i] region[n, c, y + j, x + i]``; not flipped.
    """
    if triton.runs_on(region.device):
        from openmps.ops.triton.image import taps as kernels

        if kernels.takes(region):
            return kernels.sum_of_taps(region, weights, bias)
    if region.device.type == "cpu":
        result = sum_of_taps(region, weights.tolist())
        return result.add_(bias) if bias else result
    channels = region.shape[1]
    kernel = weights.to(region.dtype)[None, :, :, None].expand(channels, -1, -1, 1).contiguous()
    (height, width), (rows, columns) = weights.shape, region.shape[2:]
    window = Window(
        Axis(columns, columns - width + 1, width, offset=width // 2),
        Axis(rows, rows - height + 1, height, offset=height // 2),
    )
    result = convolution(region, kernel, None, window, groups=channels)
    return result + bias if bias else result


def gradient_magnitude(region: Tensor) -> Tensor:
    """Sobel's: the length of the two differences over windows of 3 x 3 of a region ``[N, C, H + 2, W + 2]``."""
    across, down = sobel_pair(region)
    return torch.hypot(across, down)


def sobel_pair(region: Tensor) -> tuple[Tensor, Tensor]:
    """Differences across and down, unscaled, of windows of 3 x 3: ``[-1 0 1; -2 0 2; -1 0 1]``, and up minus down."""
    height, width = region.shape[2] - 2, region.shape[3] - 2
    steps = region[..., 2:] - region[..., :-2]
    across = steps[:, :, :height] + steps[:, :, 2:] + 2.0 * steps[:, :, 1:-1]
    steps = region[:, :, :-2] - region[:, :, 2:]
    down = steps[..., :width] + steps[..., 2:] + 2.0 * steps[..., 1:-1]
    return across, down


class Correlate(Op, kind=Kind.WINDOW):
    """`correlate` of a region with weights, the second operand."""

    bias: float

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `correlate`."""
        return correlate(operands[0], operands[1], self.bias)


class GradientMagnitude(Op, of=gradient_magnitude, kind=Kind.WINDOW):
    """`gradient_magnitude` of a region."""
