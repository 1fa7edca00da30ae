"""Normalization of each image by itself, over groups of feature channels.

MPSCNNInstanceNormalization.h, macOS 10.13.4, and MPSCNNGroupNormalization.h, macOS 10.15. Instance normalization is
group normalization with one channel a group. With S the pixels of a group's channels in one whole image, M of them::

    y = gamma_c * (x - mean_S) / sqrt(variance_S + epsilon) + beta_c

The variance is that of the population, divided by M. Numbers are taken from a pixel of their group before they are
summed: small differences of large numbers keep their digits, and a constant image has variance 0 exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window, read, read_adjoint
from openmps.types import MPSImageEdgeMode

_PIXELS = (2, 3)


class NormalizationGradients(NamedTuple):
    """The gradients of one normalization; those of gamma and beta are apart for each image.

    Attributes:
        source: [N, C, H, W], as the source.
        gamma: [N, C].
        beta: [N, C].
    """

    source: Tensor
    gamma: Tensor
    beta: Tensor


def group_normalization(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    window: Window,
    edge_mode: MPSImageEdgeMode,
    *,
    groups: int,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Normalize the pixels under ``window`` by the statistics of the whole images.

    Args:
        x: The sources, [N, C, H, W].
        gamma: Scales, [C].
        beta: Shifts, [C].
        window: The pixel under each result pixel; what lies outside is read as ``edge_mode`` says and does not count
            in the statistics.
        edge_mode: ``ZERO`` or ``CLAMP``.
        groups: Number of groups of consecutive channels; C must be a multiple of it.
        epsilon: Added to the variance, at least 0.

    Returns:
        The result, [N, C, window.y.read, window.x.read], and the statistics that `group_normalization_gradient` takes.
    """
    centred, statistics = _standard(x, groups, epsilon)
    scale = gamma * _each_channel(statistics[:, 1], x)
    if not _is_everything(window):
        centred = _centred(_under(x, window, edge_mode, groups), statistics)
    return torch.addcmul(_pixel(beta), centred, _pixel(scale), out=centred), statistics


def group_statistics(x: Tensor, *, groups: int, epsilon: float) -> Tensor:
    """The statistics of [N, C, H, W], for `group_normalization_gradient`: [N, 2, groups].

    Row 0 is the mean less the first pixel of the group's first channel, row 1 is ``1 / sqrt(variance + epsilon)``.
    """
    return _standard(x, groups, epsilon)[1]


def group_normalization_gradient(
    gradient: Tensor,
    x: Tensor,
    gamma: Tensor,
    statistics: Tensor,
    source: Window,
    data: Window,
    edge_mode: MPSImageEdgeMode,
) -> NormalizationGradients:
    """Return the derivatives of `group_normalization`.

    With G the incoming gradient and ``z = (x - mean) / deviation``::

        beta = sum G        gamma = sum G z        over the result pixels of one image
        source = (gamma G - mean_S(gamma G) - z mean_S(gamma G z)) / deviation

    ``mean_S`` sums over the result pixels of a group's channels and divides by the M numbers of its statistics.

    Args:
        gradient: G, [N, C, rows, columns].
        x: The sources, [N, C, H, W].
        gamma: Scales, [C].
        statistics: What the forward pass returned, or `group_statistics` of ``x``.
        source: The pixel that each result pixel was made of.
        data: Where the gradient of each result pixel lands; ``source`` in the derivative of the forward pass.
        edge_mode: ``ZERO`` or ``CLAMP``.
    """
    groups = statistics.shape[2]
    deviation = _each_channel(statistics[:, 1], x)
    centred = _centred(_shifted(x, groups), statistics)
    read_there = centred if _is_everything(source) else _centred(_under(x, source, edge_mode, groups), statistics)
    for_beta = gradient.sum(_PIXELS)
    for_gamma = (gradient * read_there).sum(_PIXELS).mul_(deviation)
    plain = _group_mean(gamma * for_beta, x, groups)
    slope = _group_mean(gamma * for_gamma, x, groups).mul_(deviation)
    # Divided by the deviation last: with a tiny one, terms that cancel must do so while they are small.
    result = read_adjoint(gradient * _pixel(gamma), data, edge_mode)
    result = result.sub_(_pixel(plain)).sub_(centred.mul_(_pixel(slope))).mul_(_pixel(deviation))
    return NormalizationGradients(result, for_gamma, for_beta)


def _standard(x: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """``x - mean``, in memory of its own, and the statistics."""
    centred = _shifted(x, groups)
    mean = _mean(centred, groups)
    centred.sub_(_pixel(_each_channel(mean, x)))
    variance = _mean(centred * centred, groups)
    return centred, torch.stack((mean, torch.rsqrt(variance + epsilon)), 1)


def _shifted(x: Tensor, groups: int) -> Tensor:
    return x - _pivot(x, groups)


def _centred(shifted: Tensor, statistics: Tensor) -> Tensor:
    """``x - mean`` in place of ``x - pivot``."""
    return shifted.sub_(_pixel(_each_channel(statistics[:, 0], shifted)))


def _under(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, groups: int) -> Tensor:
    """The pixels under a window less the pivot; those outside the image are numbers too."""
    return read(x, window, edge_mode) - _pivot(x, groups)


def _pivot(x: Tensor, groups: int) -> Tensor:
    """The first pixel of each group's first channel, for every channel of the group: [N, C, 1, 1]."""
    size = x.shape[1] // groups
    first = x[:, ::size, :1, :1]
    return first if size == 1 else first.repeat_interleave(size, 1)


def _mean(x: Tensor, groups: int) -> Tensor:
    """[N, C, H, W] to the means of its groups, [N, groups]."""
    return _group_mean(x.sum(_PIXELS), x, groups, spread=False)


def _group_mean(sums: Tensor, x: Tensor, groups: int, *, spread: bool = True) -> Tensor:
    """Sums over pixels, [N, C], to means over the groups of ``x``: for every channel, or [N, groups]."""
    pixels = x.shape[2] * x.shape[3]
    if x.shape[1] == groups:
        return sums / pixels
    means = sums.unflatten(1, (groups, -1)).sum(2) / (pixels * (x.shape[1] // groups))
    return _each_channel(means, x) if spread else means


def _each_channel(values: Tensor, x: Tensor) -> Tensor:
    """[N, groups] to [N, C]."""
    size = x.shape[1] // values.shape[1]
    return values if size == 1 else values.repeat_interleave(size, 1)


def _pixel(values: Tensor) -> Tensor:
    """[..., C] to a number for every pixel, [..., C, 1, 1]."""
    return values[..., None, None]


def _is_everything(window: Window) -> bool:
    """Whether result pixel and source pixel are the same for all of them."""
    return window.region == window.source and (window.x.first, window.y.first) == (0, 0)
