"""Normalization of each image by itself, over groups of feature channels.

MPSCNNInstanceNormalization.h, macOS 10.13.4, and MPSCNNGroupNormalization.h, macOS 10.15. Instance normalization is
group normalization with one channel a group. With S the pixels of a group's channels in one whole image, M of them::

    y = gamma_c * (x - mean_S) / sqrt(variance_S + epsilon) + beta_c

The variance is that of the population, divided by M. Numbers are taken from a pixel of their group before they are
summed: small differences of large numbers keep their digits, and a constant image has variance 0 exactly. Images may be
float16: sums and everything in between are float32 then, and images are rounded once.

On the CPU, float32 images whose mean is no more than a few deviations lose no digits worth the passes that this takes:
their sums are those of the numbers as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.elements import room_for
from openmps.ops.geometry import Window, packed, read, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_PIXELS = (2, 3)
_LARGEST_MEAN = 4.0
"""In deviations: of groups whose numbers are summed as they are."""
_PIXELS_AT_ONCE = range(64, 2**16 + 1)
"""How many pixels such images have: of few, sums that cancel lose more; of many, those that are one long addition."""
_LEAST_IMAGE = 2**13
"""Numbers of the least image whose gradients are made by itself."""


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
    if window.is_whole and (found := _normalized_at_once(x, gamma, beta, groups, epsilon)) is not None:
        return found
    if window.is_whole and (fast := _kernels_for(x, gamma, beta)) is not None:
        statistics = fast.group_statistics(x, groups, epsilon)
        return fast.normalized(x, statistics, gamma, beta), statistics
    centred, statistics = _standard(x, groups, epsilon)
    scale = gamma * _each_channel(statistics[:, 1], x)
    if not window.is_whole:
        centred = _centred(_under(x, window, edge_mode, groups), statistics)
    return torch.addcmul(_pixel(beta), centred, _pixel(scale), out=room_for(centred, x)), statistics


def group_statistics(x: Tensor, *, groups: int, epsilon: float) -> Tensor:
    """The statistics of [N, C, H, W], for `group_normalization_gradient`: [N, 2, groups].

    Row 0 is the mean less the first pixel of the group's first channel, row 1 is ``1 / sqrt(variance + epsilon)``.
    """
    found = _normalized_at_once(x, None, None, groups, epsilon)
    if found is None and (fast := _kernels_for(x)) is not None:
        return fast.group_statistics(x, groups, epsilon)
    return _standard(x, groups, epsilon)[1] if found is None else found[1]


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
    if source.is_whole and data.is_whole and _is_plain(x) and x[0].numel() >= _LEAST_IMAGE:
        mean = statistics[:, 0] + _first(x, groups).view(-1, groups)
        if _is_near_zero(mean, statistics[:, 1]):
            return _gradient_by_images(gradient, x, gamma, mean, statistics[:, 1])
    if source.is_whole and data.is_whole and (fast := _kernels_for(x, gradient, gamma, statistics)) is not None:
        return NormalizationGradients(*fast.gradients(gradient, x, gamma, statistics))
    deviation = _each_channel(statistics[:, 1], x)
    centred = _centred(x - _pivot(x, groups), statistics)
    read_there = centred if source.is_whole else _centred(_under(x, source, edge_mode, groups), statistics)
    for_beta = gradient.sum(_PIXELS, dtype=centred.dtype)
    for_gamma = (gradient * read_there).sum(_PIXELS).mul_(deviation)
    plain, slope = (_each_channel(_group_mean(gamma * sums, x, groups), x) for sums in (for_beta, for_gamma))
    # Divided by the deviation last: with a tiny one, terms that cancel must do so while they are small.
    result = read_adjoint(gradient * _pixel(gamma), data, edge_mode)
    result = result.sub_(_pixel(plain)).sub_(centred.mul_(_pixel(slope * deviation)))
    result = torch.mul(result, _pixel(deviation), out=room_for(result, x))
    return NormalizationGradients(result, for_gamma, for_beta)


def _is_plain(x: Tensor) -> bool:
    """Whether these are images that may be summed as they are, if their mean is small."""
    return not x.is_cuda and x.dtype == torch.float32 and x.shape[2] * x.shape[3] in _PIXELS_AT_ONCE and len(x) > 0


def _is_near_zero(mean: Tensor, inverse: Tensor) -> bool:
    """Whether no group's mean is large beside its deviation; False if one of them is not finite."""
    return bool((mean * inverse).abs_().max() <= _LARGEST_MEAN) and bool(inverse.max() < torch.inf)


def _normalized_at_once(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, groups: int, epsilon: float
) -> tuple[Tensor, Tensor] | None:
    """What `group_normalization` returns, by PyTorch's kernel; None where that loses digits."""
    if not _is_plain(x):
        return None
    images, channels, height, width = x.shape
    x = packed(x)
    result, mean, inverse = torch.native_group_norm(x, gamma, beta, images, channels, height * width, groups, epsilon)
    if not _is_near_zero(mean, inverse):
        return None
    return result, torch.stack((mean - _first(x, groups).view(-1, groups), inverse), 1)


def _gradient_by_images(
    gradient: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor
) -> NormalizationGradients:
    """`group_normalization_gradient` for whole images of small means, by PyTorch's kernels, image by image.

    They add up the gradients of gamma and beta of the images that they get.
    """
    images, channels, height, width = x.shape
    groups, wanted = mean.shape[1], [True, True, True]
    gradient, x = packed(gradient), packed(x)
    result = torch.empty_like(x)
    for_gamma, for_beta = x.new_empty(images, channels), x.new_empty(images, channels)
    for image in range(images):
        one = slice(image, image + 1)
        g, pixels = gradient[one], x[one]
        if groups == channels:
            saved = mean[image], inverse[image]
            back = torch.ops.aten.native_batch_norm_backward(g, pixels, gamma, None, None, *saved, True, 0.0, wanted)
        else:
            size = 1, channels, height * width, groups
            back = torch.ops.aten.native_group_norm_backward(g, pixels, mean[one], inverse[one], gamma, *size, wanted)
        for whole, part in zip((result[one], for_gamma[image], for_beta[image]), back, strict=True):
            whole.copy_(part)
    return NormalizationGradients(result, for_gamma, for_beta)


def _kernels_for(x: Tensor, *others: Tensor) -> Any:
    """The forms in Triton, if they take these images, gradients and rows of numbers; else None."""
    if not triton.runs_on(x.device):
        return None
    from openmps.ops.triton.normalization import group_normalization as kernels

    return kernels if kernels.takes(x, *others) else None


def _standard(x: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """``x - mean``, in memory of its own, and the statistics."""
    centred = x - _pivot(x, groups)
    mean = _group_mean(centred.sum(_PIXELS), x, groups)
    centred.sub_(_pixel(_each_channel(mean, x)))
    variance = _group_mean((centred * centred).sum(_PIXELS), x, groups)
    return centred, torch.stack((mean, torch.rsqrt(variance + epsilon)), 1)


def _centred(shifted: Tensor, statistics: Tensor) -> Tensor:
    """``x - mean`` in place of ``x - pivot``."""
    return shifted.sub_(_pixel(_each_channel(statistics[:, 0], shifted)))


def _under(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, groups: int) -> Tensor:
    """The pixels under a window less the pivot; those outside the image are numbers too."""
    return read(x, window, edge_mode) - _pivot(x, groups)


def _pivot(x: Tensor, groups: int) -> Tensor:
    """The first pixel of each group's first channel, for every channel of the group: [N, C, 1, 1]."""
    size = x.shape[1] // groups
    first = _first(x, groups)
    return first if size == 1 else first.repeat_interleave(size, 1)


def _first(x: Tensor, groups: int) -> Tensor:
    """The first pixel of each group's first channel, [N, groups, 1, 1]."""
    first = x[:, :: x.shape[1] // groups, :1, :1]
    return first.float() if x.dtype == torch.float16 else first


def _group_mean(sums: Tensor, x: Tensor, groups: int) -> Tensor:
    """Sums over pixels, [N, C], to means over the groups of ``x``, [N, groups]."""
    size = x.shape[1] // groups
    return (sums if size == 1 else sums.unflatten(1, (groups, -1)).sum(2)) / (x.shape[2] * x.shape[3] * size)


def _each_channel(values: Tensor, x: Tensor) -> Tensor:
    """[N, groups] to [N, C]."""
    size = x.shape[1] // values.shape[1]
    return values if size == 1 else values.repeat_interleave(size, 1)


def _pixel(values: Tensor) -> Tensor:
    """[..., C] to a number for every pixel, [..., C, 1, 1]."""
    return values[..., None, None]


class _GroupOperation(Op, kind=Kind.REDUCTION, half=True):
    """The base of the operations: float16 may come as it is stored, numbers in between are float32."""

    groups: int
    epsilon: float


class GroupNormalization(_GroupOperation, of=group_normalization, results=2):
    """`group_normalization` of images, with gamma and beta: the result, and the statistics."""

    window: Window
    edge_mode: MPSImageEdgeMode


class GroupNormalizationGradient(_GroupOperation, results=3):
    """`group_normalization_gradient` of a gradient and images, with gamma and the statistics of the forward encode.

    Statistics that are missing, or of another number of images, are computed again.
    """

    source: Window
    data: Window
    edge_mode: MPSImageEdgeMode

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> NormalizationGradients:
        """See `group_normalization_gradient`."""
        gradient, x, gamma, statistics = operands
        if statistics is None or len(statistics) != len(gradient):
            statistics = group_statistics(x, groups=self.groups, epsilon=self.epsilon)
        return group_normalization_gradient(gradient, x, gamma, statistics, self.source, self.data, self.edge_mode)
