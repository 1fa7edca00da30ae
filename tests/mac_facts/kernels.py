"""CNN kernels on Float32 images, destination given, stride 1, edge mode as it comes (C, macOS 27.0)."""

from __future__ import annotations

from typing import Any

import numpy as np

import openmps as mps
from channel_sources import BatchChannels
from mac_facts.fact import DEVICE, Fact, encoded, image, row, set_up

NINE, SIXTEEN, SIGNED = np.arange(1, 10), np.arange(1, 17), np.arange(-8, 8)
NO_OFFSET = {"offset": mps.MPSOffset(0, 0, 0)}
DIGITS = 2e-6
"""Numbers are printed with six to nine digits; the programs that were compared differ by up to 1.4e-6."""
FOUR = np.array([[[0.5, -1.0, 2.0, 3.0], [1.0, 1.0, 1.0, -4.0]]], np.float32)
POWERS = row(1, 3, 5, 7, 6, 14, 18, 22, 14, 30, 34, 38, 22, 46, 50, 54)


class _Given(BatchChannels):
    """A batch normalization of one channel with the numbers of the fact."""

    def gamma(self) -> Any:
        return [2.0]

    def beta(self) -> Any:
        return [0.5]

    def mean(self) -> Any:
        return [4.0]

    def variance(self) -> Any:
        return [1.5]


def _neighbours(size: int, before: int) -> np.ndarray:
    """The window of each pixel of 1..16, zeros outside, ``[16, size * size]``."""
    padded = np.pad(SIXTEEN.reshape(4, 4).astype(np.float64), size)
    first = size - before
    return np.array(
        [padded[first + y :, first + x :][:size, :size].ravel() for y in range(4) for x in range(4)], np.float64
    )


def _sums_of_nine() -> np.ndarray:
    padded = np.pad(NINE.reshape(3, 3), 1)
    return np.array([padded[y : y + 3, x : x + 3].sum() for y in range(3) for x in range(3)], np.float32)


def _average(size: int, numbers: Any, side: int = 0, **properties: Any) -> np.ndarray:
    kernel = set_up(mps.MPSCNNPoolingAverage(DEVICE, size, size), **NO_OFFSET, **properties)
    return encoded(kernel, image(numbers), width=side, height=side)


def _spatial(size: int) -> np.ndarray:
    return encoded(set_up(mps.MPSCNNSpatialNormalization(DEVICE, size, size), **NO_OFFSET), image(SIXTEEN))


def _contrast(alpha: float) -> np.ndarray:
    kernel = set_up(mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), alpha=alpha, **NO_OFFSET)
    return encoded(kernel, image(SIXTEEN))


def _cross(channels: Any, size: int) -> np.ndarray:
    return encoded(mps.MPSCNNCrossChannelNormalization(DEVICE, size), image(channels))


def _batch_normalized() -> np.ndarray:
    kernel = mps.MPSCNNBatchNormalization(DEVICE, _Given(1))
    kernel.epsilon = 0.25
    return encoded(kernel, image(NINE))


def _cross_expected(channels: np.ndarray, size: int) -> np.ndarray:
    """``x / (1 + sum of squares / size)^5`` over channels k - size/2 to k + (size - 1)/2."""
    pixels = channels.reshape(-1, channels.shape[-1]).astype(np.float64)
    found = np.empty_like(pixels)
    for k in range(pixels.shape[1]):
        window = pixels[:, max(0, k - size // 2) : k + (size - 1) // 2 + 1]
        found[:, k] = pixels[:, k] / (1.0 + (window**2).sum(1) / size) ** 5
    return found.reshape(-1)


def _spatial_expected(size: int) -> np.ndarray:
    return SIXTEEN / (1.0 + (_neighbours(size, size // 2) ** 2).sum(1) / size**2) ** 5


def _contrast_expected() -> np.ndarray:
    windows = _neighbours(3, 1)
    mean = windows.mean(1)
    return (SIXTEEN - mean) / (2.0**-10 + (windows**2).mean(1) - mean**2) ** 0.5


def _soft(channels: np.ndarray, *, log: bool) -> np.ndarray:
    shares = np.exp(channels.astype(np.float64))
    shares /= shares.sum(-1, keepdims=True)
    return (np.log(shares) if log else shares).reshape(-1)


def _properties(thing: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(thing, name) for name in names)


POOLING = [
    Fact(
        "average-divides-by-window",
        "the window's area divides, pixels outside count as 0",
        "A, B",
        _sums_of_nine() / np.float32(9),
        lambda: _average(3, NINE),
    ),
    Fact(
        "average-zero-pad-size",
        "zeroPadSize 1 changes nothing",
        "A",
        _sums_of_nine() / np.float32(9),
        lambda: _average(3, NINE, zero_pad_size_x=1, zero_pad_size_y=1),
    ),
    Fact(
        "maximum-3",
        "maxima of 3x3 windows",
        "B",
        row(5, 6, 6, 8, 9, 9, 8, 9, 9),
        lambda: encoded(set_up(mps.MPSCNNPoolingMax(DEVICE, 3, 3), **NO_OFFSET), image(NINE)),
    ),
    Fact(
        "average-2-into-2",
        "a window of 2 begins one pixel before",
        "A",
        row(0.25, 0.75, 1.25, 3),
        lambda: _average(2, NINE, 2),
    ),
    Fact(
        "average-2-into-3",
        "the same with more results",
        "A",
        row(0.25, 0.75, 1.25, 1.25, 3, 4, 2.75, 6, 7),
        lambda: _average(2, NINE),
    ),
    Fact("average-2-into-4", "the same of 1..16, times 4", "A", POWERS, lambda: _average(2, SIXTEEN) * np.float32(4)),
    Fact(
        "fresh-pooling-edge-mode",
        "the edge mode of a fresh pooling kernel is Zero",
        "A",
        mps.MPSImageEdgeMode.ZERO,
        lambda: mps.MPSCNNPoolingAverage(DEVICE, 3, 3).edge_mode,
    ),
    Fact(
        "fresh-image-3",
        "a fresh image holds zeros",
        "A",
        np.zeros(9, np.float32),
        lambda: mps.MPSImage(DEVICE, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 3, 1)).numpy(),
    ),
    Fact(
        "fresh-image-4",
        "a fresh image holds zeros",
        "A",
        np.zeros(16, np.float32),
        lambda: mps.MPSImage(DEVICE, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 4, 4, 1)).numpy(),
    ),
]

NEURONS = [
    Fact(
        "relu-0",
        "0 below 0",
        "B",
        np.maximum(SIGNED, 0).astype(np.float32),
        lambda: encoded(mps.MPSCNNNeuronReLU(DEVICE, 0.0), image(SIGNED)),
    ),
    Fact(
        "relu-quarter",
        "a below 0",
        "A",
        row(-2, -1.75, -1.5, -1.25, -1, -0.75, -0.5, -0.25, 0, 1, 2, 3, 4, 5, 6, 7),
        lambda: encoded(mps.MPSCNNNeuronReLU(DEVICE, 0.25), image(SIGNED)),
    ),
    Fact(
        "relu-parameters",
        "a, b and c of a fresh ReLU kernel with a 0",
        "A",
        (0.0, 0.0, 0.0),
        lambda: _properties(mps.MPSCNNNeuronReLU(DEVICE, 0.0), "a", "b", "c"),
    ),
    Fact(
        "linear",
        "2 x + 0.5",
        "A",
        (2 * SIXTEEN + 0.5).astype(np.float32),
        lambda: encoded(mps.MPSCNNNeuronLinear(DEVICE, 2.0, 0.5), image(SIXTEEN)),
    ),
    Fact(
        "absolute",
        "|x|",
        "A",
        np.abs(SIGNED).astype(np.float32),
        lambda: encoded(mps.MPSCNNNeuronAbsolute(DEVICE), image(SIGNED)),
    ),
    Fact(
        "sigmoid",
        "1 / (1 + e^-x) at 1",
        "A",
        [0.731058598],
        lambda: encoded(mps.MPSCNNNeuronSigmoid(DEVICE), image(SIXTEEN)),
        DIGITS,
    ),
    Fact(
        "tanh",
        "3 tanh(x / 2) at 1",
        "A",
        [1.38635159],
        lambda: encoded(mps.MPSCNNNeuronTanH(DEVICE, 3.0, 0.5), image(SIXTEEN)),
        DIGITS,
    ),
]

NORMALIZATION = [
    Fact("batch-normalization-first", "epsilon set after construction counts", "A", [-4.0356], _batch_normalized, 1e-5),
    Fact(
        "batch-normalization",
        "gamma (x - mean) / sqrt(variance + epsilon) + beta",
        "B",
        2 * (NINE - 4) / np.sqrt(1.75) + 0.5,
        _batch_normalized,
        DIGITS,
    ),
    Fact(
        "softmax-over-channels",
        "at each pixel over its channels",
        "A",
        [0.268941432, 0.731058598, 0.731058598, 0.268941432],
        lambda: encoded(mps.MPSCNNSoftMax(DEVICE), image([[[1, 2], [2, 1]]])),
        DIGITS,
    ),
    Fact(
        "softmax-of-one-channel",
        "one channel gives 1",
        "A",
        np.ones(9, np.float32),
        lambda: encoded(mps.MPSCNNSoftMax(DEVICE), image(NINE)),
    ),
    Fact(
        "softmax-of-four",
        "the formula",
        "B",
        _soft(FOUR, log=False),
        lambda: encoded(mps.MPSCNNSoftMax(DEVICE), image(FOUR)),
        DIGITS,
    ),
    Fact(
        "log-softmax-of-four",
        "the formula",
        "B",
        _soft(FOUR, log=True),
        lambda: encoded(mps.MPSCNNLogSoftMax(DEVICE), image(FOUR)),
        DIGITS,
    ),
    Fact(
        "spatial-defaults",
        "alpha 1, beta 5, delta 1",
        "A",
        (1.0, 5.0, 1.0),
        lambda: _properties(mps.MPSCNNSpatialNormalization(DEVICE, 3, 3), "alpha", "beta", "delta"),
    ),
    Fact(
        "spatial-3-corner", "centred, divided by 9, zeros outside", "A", [2.48832257e-05], lambda: _spatial(3), DIGITS
    ),
    Fact("spatial-3", "the formula", "B", _spatial_expected(3), lambda: _spatial(3), 3e-6),
    Fact(
        "spatial-2",
        "a window of even size begins one before",
        "B",
        [0.32768, 0.03468, 0.00216],
        lambda: _spatial(2),
        2e-3,
    ),
    Fact(
        "contrast-defaults",
        "alpha 0, beta 0.5, delta 2^-10, p0 1, pm 0, ps 1",
        "A",
        (0.0, 0.5, 2.0**-10, 1.0, 0.0, 1.0),
        lambda: _properties(
            mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), "alpha", "beta", "delta", "p0", "pm", "ps"
        ),
    ),
    Fact(
        "contrast-alpha-0",
        "(x - mean) / delta^beta, the mean over all nine places",
        "A",
        [-17.7777786],
        lambda: _contrast(0.0),
        DIGITS,
    ),
    Fact(
        "contrast-alpha-1", "the variance is E[x^2] - mean^2", "B", _contrast_expected(), lambda: _contrast(1.0), DIGITS
    ),
    Fact(
        "cross-channel-defaults",
        "alpha 1, beta 5, delta 1, size 3",
        "A",
        (1.0, 5.0, 1.0, 3),
        lambda: _properties(mps.MPSCNNCrossChannelNormalization(DEVICE, 3), "alpha", "beta", "delta", "kernel_size"),
    ),
    Fact(
        "cross-channel-divisor",
        "the size divides; channel 1 of (1, 2, 5)",
        "A",
        [1.24184335e-05],
        lambda: _cross([[[1, 2, 5]]], 3)[1:],
        DIGITS,
    ),
    Fact("cross-channel-3-of-four", "the formula", "B", _cross_expected(FOUR, 3), lambda: _cross(FOUR, 3), 1e-5),
    Fact("cross-channel-1-of-four", "the formula", "B", _cross_expected(FOUR, 1), lambda: _cross(FOUR, 1), 1e-5),
]

FACTS = [*POOLING, *NEURONS, *NORMALIZATION]
