"""The filters of `bench.filter_cases` as one would write them in PyTorch, operation by operation, on any device.

A peer gets the elements of a picture as they are stored, ``[1, C, H, W]`` channels-last, and gives those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.filter_cases import SHARPEN, UNEVEN

Peer = Callable[[Tensor], Tensor]
GRAY = (0.299, 0.587, 0.114)
LAPLACE = ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0))
SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))


def numbers(x: Tensor) -> Tensor:
    """What elements stand for."""
    return x.float() / 255.0 if x.dtype == torch.uint8 else x


def rounded(x: Tensor) -> Tensor:
    """Bytes."""
    return x.clamp(0.0, 1.0).mul(255.0).round_().to(torch.uint8)


def in_numbers(of: Peer) -> Peer:
    """A peer that computes in numbers, stored as the source is."""
    return lambda x: rounded(of(numbers(x))) if x.dtype == torch.uint8 else of(x)


def padded(x: Tensor, rows: int, columns: int) -> Tensor:
    return functional.pad(x, [columns, columns, rows, rows], mode="replicate")


def weighed(x: Tensor, weights: Any) -> Tensor:
    """Windows by weights, channel by channel."""
    kernel = torch.as_tensor(weights, dtype=x.dtype, device=x.device)
    (rows, columns), channels = kernel.shape, x.shape[1]
    region = padded(x, rows // 2, columns // 2)
    return functional.conv2d(region, kernel.expand(channels, 1, -1, -1), groups=channels)


def along_both(x: Tensor, weights: Tensor) -> Tensor:
    return weighed(weighed(x, weights[:, None]), weights[None])


def bell(sigma: float) -> Tensor:
    reach = math.ceil(3.7 * sigma)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / sigma).square())
    return (weights / weights.sum()).float()


def triangle(size: int) -> Tensor:
    weights = (size // 2 + 1) - torch.arange(-(size // 2), size // 2 + 1).abs().float()
    return weights / weights.sum()


def mean(size: int) -> Peer:
    return lambda x: functional.avg_pool2d(padded(x, size // 2, size // 2), size, 1)


def largest(size: int) -> Peer:
    return lambda x: functional.max_pool2d(padded(x, size // 2, size // 2), size, 1)


def sobel(x: Tensor) -> Tensor:
    steps = torch.tensor(SOBEL)
    return torch.hypot(weighed(x, steps), weighed(x, steps.T))


def gray(x: Tensor) -> Tensor:
    return sum(x[:, channel : channel + 1] * weight for channel, weight in enumerate(GRAY))  # type: ignore[return-value]


def premultiplied(x: Tensor) -> Tensor:
    return torch.cat([x[:, :3] * x[:, 3:], x[:, 3:]], 1)


def scaled(x: Tensor) -> Tensor:
    size = x.shape[2] * 3 // 4, x.shape[3] * 3 // 4
    return functional.interpolate(x, size, mode="bilinear", align_corners=False)


def moments(x: Tensor) -> Tensor:
    variance, average = torch.var_mean(numbers(x), (2, 3), correction=0)
    return torch.stack([average, variance], 2)[:, :, None]


PEERS: dict[str, Peer] = {
    "MPSImageConvolution 3x3": in_numbers(lambda x: weighed(x, SHARPEN)),
    "MPSImageConvolution 5x5, float32": lambda x: weighed(x, UNEVEN),
    "MPSImageLaplacian, float32": lambda x: weighed(x, LAPLACE),
    "MPSImageSobel, float32": sobel,
    "MPSImageBox 5": in_numbers(mean(5)),
    "MPSImageBox 51": in_numbers(mean(51)),
    "MPSImageTent 9": in_numbers(lambda x: along_both(x, triangle(9))),
    **{
        f"MPSImageGaussianBlur {sigma:g}": in_numbers(lambda x, sigma=sigma: along_both(x, bell(sigma)))
        for sigma in (1.0, 3.0, 10.0)
    },
    "MPSImageGaussianBlur 3, float32": lambda x: along_both(x, bell(3.0)),
    "MPSImageAreaMax 3": in_numbers(largest(3)),
    "MPSImageAreaMax 25": in_numbers(largest(25)),
    "MPSImageThresholdBinary": in_numbers(lambda x: (x > 0.5).float()),
    "MPSImageThresholdToZero of colours": in_numbers(lambda x: torch.where(gray(x) > 0.5, gray(x), 0.0)),
    "MPSImageAdd": in_numbers(lambda x: 0.25 * x + 0.5 * x + 0.1),
    "MPSImageSubtract, float32": lambda x: 0.25 * x - x,
    "MPSImageMultiply": in_numbers(lambda x: x * x),
    "MPSImageDivide, float32": lambda x: x / (2.0 * x),
    "MPSImageConversion to float32": numbers,
    "MPSImageConversion to premultiplied": in_numbers(premultiplied),
    "MPSImageTranspose": lambda x: x.transpose(2, 3).contiguous(memory_format=torch.channels_last),
    "MPSImageBilinearScale to 3/4": in_numbers(scaled),
    "MPSImageStatisticsMeanAndVariance": moments,
    "MPSImageStatisticsMinAndMax": lambda x: torch.stack([*torch.aminmax(x)]).view(1, 1, 1, 2),
    "MPSImageReduceRowMean, float32": lambda x: x.mean(3, keepdim=True),
    "MPSImageReduceColumnMax": lambda x: x.amax(2, keepdim=True),
    "MPSImageIntegral, float32": lambda x: x.double().cumsum(2).cumsum(3).float(),
}
"""By the names of cases. Medians, histograms, distances and Canny's edges are no short compositions."""
CHAIN = (
    "MPSImageConversion to premultiplied", "MPSImageGaussianBlur 1", "MPSImageConvolution 3x3", "MPSImageAreaMax 3",
    "MPSImageMultiply",
)  # fmt: skip
"""Filters of RGBA bytes that follow one another in a command buffer."""
