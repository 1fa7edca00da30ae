"""Batch normalization: moments of a batch, also in pieces, and the normalization with its gradients.

Images are ``[N, C, H, W]``, everything else is one number a channel, ``[C]``. All passes subtract the mean before they
scale, and know the mean to twice the precision of a number: a large mean costs no digits of a small variance. Images
may be float16: sums and everything in between are float32 then. Where Triton runs, each pass reads its images once
(`openmps.ops.triton.normalization.batch_normalization`); the forms here are the slow ones that those must equal.
On the CPU, float32 images with means of a few deviations lose no digits worth the passes that this takes: there the
sums are those of numbers and squares as they are, by pairs (torch.sum), in as many parts for any number of threads.
(MPSCNNBatchNormalization.h, macOS 10.13.4; Ioffe and Szegedy, arXiv 1502.03167.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.elements import room_for
from openmps.ops.op import Kind, Op

_PIXELS = (0, 2, 3)
_LARGEST_MEAN, _LARGEST_MEAN_OF_SUMS = 8.0, 4.0
"""In deviations: of channels that the CPU takes as they are, without subtracting the mean first; for sums, which lose
as many digits as the square of it has, half of it."""

_PARTS, _ROWS, _NUMBERS = 16, 64, 2**17
"""Of sums over pixels: their parts, the fewest pixels of one, and the fewest numbers that are summed in parts."""


class Moments(NamedTuple):
    """Mean and variance of each channel; the mean is ``mean + correction``, the second one what rounding took."""

    mean: Tensor
    correction: Tensor
    variance: Tensor


@dataclass(frozen=True, slots=True)
class Normalization:
    """What a batch was normalized with: ``z = gamma (x - mean) / sqrt(variance + epsilon) + beta``."""

    moments: Moments
    gamma: Tensor
    beta: Tensor
    epsilon: float


class ParameterGradients(NamedTuple):
    """dL/dgamma and dL/dbeta."""

    gamma: Tensor
    beta: Tensor


def batch_moments(x: Tensor) -> Moments:
    """Mean and population variance ``sum (x - mean)^2 / M`` of the M pixels of each channel.

    The variance of a constant channel is 0, and its mean exactly that constant.
    """
    if (fast := kernels_for([x], [])) is not None:
        return Moments(*fast.moments(x))
    if _is_plain(x) and (found := _plain_moments(_wide(x))) is not None:
        return found
    first = _column(_wide(x[0, :, 0, 0]))
    centred = x - first
    mean = (first + centred.mean(_PIXELS, keepdim=True)).contiguous()
    torch.sub(x, mean, out=centred)
    correction = centred.mean(_PIXELS)
    variance = centred.square_().mean(_PIXELS).sub_(correction.square()).clamp_min_(0.0)
    return Moments(mean.view(-1), correction, variance)


def _plain_moments(x: Tensor) -> Moments | None:
    """The moments by the sums of numbers and of squares; None where means are so large that these lose digits.

    Or where squares may have vanished: a channel of one tiny number has that mean, and the variance 0.
    """
    pixels = x.numel() // x.shape[1]
    variance, mean = pixel_sums(torch.mul(x, x)).div_(pixels), pixel_sums(x).div_(pixels)
    variance.addcmul_(mean, mean, value=-1.0)
    is_exact = is_near_zero(mean, variance - torch.finfo(x.dtype).tiny, _LARGEST_MEAN_OF_SUMS)
    return Moments(mean, torch.zeros_like(mean), variance) if is_exact else None


def pixel_sums(x: Tensor) -> Tensor:
    """The sum of each channel's pixels.

    Of images with their channels beside each other the engine gives a thread some channels of every pixel, so that 16
    threads are worth about two. Large ones are summed in so many parts: each thread has pixels of its own, and what
    comes out does not depend on how many threads there are.
    """
    channels = x.shape[1]
    rows = x.numel() // channels if x.numel() else 0
    is_large = rows >= _ROWS * _PARTS and x.numel() >= _NUMBERS
    if not is_large or rows % _PARTS or not x.is_contiguous(memory_format=torch.channels_last):
        return x.sum(_PIXELS)
    return x.permute(0, 2, 3, 1).reshape(_PARTS, rows // _PARTS, channels).sum(1).sum(0)


def merged_moments(a: Moments, b: Moments, share: float) -> Moments:
    """The moments of two sets of pixels together, of which ``share`` of all pixels are in the second one.

    Every term of the variance is positive (Chan, Golub and LeVeque's pairwise scheme): nothing cancels.
    """
    difference = (b.mean - a.mean).add_(b.correction - a.correction)
    step = (difference * share).add_(a.correction)
    mean = a.mean + step
    # What the sum rounded off, exactly (Knuth's two-sum).
    kept = mean - a.mean
    correction = (a.mean - (mean - kept)).add_(step - kept)
    variance = torch.lerp(a.variance, b.variance, share).add_(difference.square_().mul_(share * (1.0 - share)))
    return Moments(mean, correction, variance)


def normalize(x: Tensor, how: Normalization, *, is_rounded: bool = False) -> Tensor:
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta``; rounded to the type of ``x`` if that is asked for."""
    if (fast := kernels_for([x], [*how.moments, how.gamma, how.beta])) is not None:
        rows = fast.Rows(*how.moments, how.gamma, how.beta)
        return fast.normalize(x, rows, how.epsilon, x.dtype if is_rounded else torch.float32)[0]
    if _is_plain(x) and is_near_zero(how.moments.mean, how.moments.variance + how.epsilon):
        result = _plain_normalize(_wide(x), how)
        return result.to(x.dtype) if is_rounded else result
    scale = how.gamma * _inverse_deviation(how.moments, how.epsilon)
    shift = how.beta - how.moments.correction * scale
    centred = x - _column(how.moments.mean)
    room = room_for(centred, x) if is_rounded else centred
    return torch.addcmul(_column(shift), centred, _column(scale), out=room)


def _plain_normalize(x: Tensor, how: Normalization) -> Tensor:
    """`normalize` of float32 images where what a mean was rounded by is nothing beside a deviation."""
    (mean, _, variance), gamma, beta = how.moments, how.gamma, how.beta
    if x.is_contiguous(memory_format=torch.channels_last):
        return torch.native_batch_norm(x, gamma, beta, mean, variance, False, 0.0, how.epsilon)[0]
    scale = gamma * _inverse_deviation(how.moments, how.epsilon)
    return torch.addcmul(_column(torch.addcmul(beta, mean, scale, value=-1.0)), x, _column(scale))


def parameter_gradients(gradient: Tensor, x: Tensor, moments: Moments, epsilon: float) -> ParameterGradients:
    """``dgamma = sum g xhat``, ``dbeta = sum g`` over the batch and its pixels, ``xhat = (x - mean) / sqrt(...)``.

    ``gradient`` is that of z: a fused neuron's derivative is in it already.
    """
    if (fast := kernels_for([gradient, x], moments)) is not None:
        return ParameterGradients(*fast.parameter_gradients(gradient, x, fast.Rows(*moments), epsilon))
    if _is_plain(x, gradient) and is_near_zero(moments.mean, moments.variance, _LARGEST_MEAN_OF_SUMS):
        flow = _wide(gradient)
        products, beta = pixel_sums(torch.mul(flow, _wide(x))), pixel_sums(flow)
        gamma = products.addcmul_(moments.mean, beta, value=-1.0).mul_(_inverse_deviation(moments, epsilon))
        return ParameterGradients(gamma, beta)
    centred = (x - _column(moments.mean)).sub_(_column(moments.correction))
    beta = gradient.sum(_PIXELS, dtype=centred.dtype)
    return ParameterGradients(centred.mul_(gradient).sum(_PIXELS).mul_(_inverse_deviation(moments, epsilon)), beta)


def data_gradient(
    gradient: Tensor,
    x: Tensor,
    moments: Moments,
    gamma: Tensor,
    epsilon: float,
    sums: ParameterGradients | None,
    pixels: Any,
) -> Tensor:
    """``gamma / sqrt(variance + epsilon) (g - dbeta / M - xhat dgamma / M)`` for each pixel of ``x``.

    ``sums`` are the parameter gradients of all M ``pixels`` that mean and variance were made of. Without them mean and
    variance are constants, and only the first term is left. The result is rounded to the type of ``x``.
    """
    if (fast := kernels_for([gradient, x], [*moments, gamma, *(sums or ())])) is not None:
        rows = fast.Rows(*moments, gamma)
        return fast.data_gradient(gradient, x, rows, epsilon, sums or (), pixels, x.dtype)
    inverse = _inverse_deviation(moments, epsilon)
    scale = gamma * inverse
    if sums is None:
        return torch.mul(gradient, _column(scale), out=torch.empty_like(gradient, dtype=x.dtype))
    slope = (scale * inverse).mul_(sums.gamma).div_(-pixels)
    level = (scale * sums.beta).div_(-pixels)
    if _is_plain(x) and is_near_zero(moments.mean, moments.variance + epsilon):
        level.addcmul_(moments.mean, slope, value=-1.0)
        result = torch.addcmul(_column(level), _wide(x), _column(slope))
        return result.addcmul_(_wide(gradient), _column(scale)).to(x.dtype)
    level -= moments.correction * slope
    centred = x - _column(moments.mean)
    torch.addcmul(_column(level), centred, _column(slope), out=centred)
    return torch.addcmul(centred, gradient, _column(scale), out=room_for(centred, x))


def _is_plain(*images: Tensor) -> bool:
    """Whether these are images that may be taken as they are, if their means are small."""
    return all(not each.is_cuda and each.dtype in (torch.float16, torch.float32) for each in images)


def is_near_zero(mean: Tensor, variance: Tensor, limit: float = _LARGEST_MEAN) -> bool:
    """Whether no channel's mean is large beside its deviation; False if one of them is not finite."""
    least, most = torch.aminmax(torch.addcmul(variance, mean, mean, value=-1.0 / limit**2))
    return least.item() >= 0.0 and most.item() < math.inf


def kernels_for(images: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Any:
    """The forms in Triton, if they take these images and rows of numbers; else None."""
    if not triton.runs_on(images[0].device):
        return None
    from openmps.ops.triton.normalization import batch_normalization as kernels

    return kernels if kernels.takes(images, rows) else None


def _inverse_deviation(moments: Moments, epsilon: float) -> Tensor:
    return (moments.variance + epsilon).rsqrt_()


def _wide(row: Tensor) -> Tensor:
    """At least float32."""
    return row.float() if row.dtype == torch.float16 else row


def _column(row: Tensor) -> Tensor:
    return row.view(1, -1, 1, 1)


# --- operations -------------------------------------------------------------------------------------------------------


def _moments(mean: Tensor, correction: Tensor | None, variance: Tensor) -> Moments:
    return Moments(mean, torch.zeros_like(mean) if correction is None else correction, variance)


class _Sums(Op, kind=Kind.REDUCTION, half=True):
    """The base of sums: float16 is summed in float32."""

    @property
    def gives_half(self) -> bool:
        """False: sums are float32."""
        return False


class BatchMoments(_Sums, of=batch_moments, results=3):
    """`batch_moments` of images: mean, correction and variance."""


class MergedMoments(Op, kind=Kind.REDUCTION, results=3):
    """`merged_moments` of three rows and of three others, and of the share of the others."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Moments:
        """See `merged_moments`."""
        return merged_moments(Moments(*operands[:3]), Moments(*operands[3:6]), operands[6])


class Normalize(Op, half=True):
    """`normalize` of images, with mean, correction (none is 0), variance, gamma and beta.

    Of float16 images the result is float32, or rounded to float16 if ``is_rounded`` says so.
    """

    epsilon: float
    is_rounded: bool = False

    @property
    def gives_half(self) -> bool:
        """If the result is rounded."""
        return self.is_rounded

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `normalize`."""
        x, mean, correction, variance, gamma, beta = operands
        how = Normalization(_moments(mean, correction, variance), gamma, beta, self.epsilon)
        return normalize(x, how, is_rounded=self.is_rounded)


class ParameterSums(_Sums, results=2):
    """`parameter_gradients` of a gradient and images, with mean, correction (none is 0) and variance.

    Two more operands are sums that the new ones join.
    """

    epsilon: float

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> ParameterGradients:
        """See `parameter_gradients`."""
        gradient, x, mean, correction, variance, *before = operands
        found = parameter_gradients(gradient, x, _moments(mean, correction, variance), self.epsilon)
        for numbers, joined in zip(found, before, strict=False):
            numbers.add_(joined)
        return found


class DataGradient(Op, half=True):
    """`data_gradient` of a gradient and images, with mean, correction (none is 0), variance and gamma.

    Three more operands are the sums for gamma and beta and the number of pixels, where the statistics are no constants.
    """

    epsilon: float

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `data_gradient`."""
        gradient, x, mean, correction, variance, gamma, *batch = operands
        sums, pixels = (ParameterGradients(*batch[:2]), batch[2]) if batch else (None, 0)
        return data_gradient(gradient, x, _moments(mean, correction, variance), gamma, self.epsilon, sums, pixels)


class JoinRows(Op, kind=Kind.STORAGE):
    """Rows of numbers, one a channel, as one tensor; a correction that is left out is 0."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        first = operands[0]
        return torch.stack([torch.zeros_like(first) if row is None else row for row in operands])


class RunningAverages(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """``running += momentum (found - running)`` of mean and variance, the latter times a factor.

    Operands are the running mean and variance, which are written, those that were found, and the factor; and so on, of
    any number of layers.
    """

    momentum: float

    def overwritten(self, operands: int) -> Iterable[int]:
        """The running ones."""
        return [place for place in range(operands) if place % _OF_A_LAYER < 2]

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See the class."""
        layers = [operands[first : first + _OF_A_LAYER] for first in range(0, len(operands), _OF_A_LAYER)]
        running = [each for layer in layers for each in layer[:2]]
        found = [each for layer in layers for each in layer[2:4]]
        scales = [scale for layer in layers for scale in (1.0, layer[4])]
        if len(layers) > 1 and running[0].is_cuda:
            # A few launches for all of them.
            steps = torch.ops.aten._foreach_mul.ScalarList(found, scales)
            torch.ops.aten._foreach_sub_.List(steps, running)
            torch.ops.aten._foreach_add_.List(running, steps, alpha=self.momentum)
            return
        for mine, new, scale in zip(running, found, scales, strict=True):
            if triton.runs_on(mine.device):
                from openmps.ops.triton.update.optimizers import update

                # A descent from the found numbers, whose regularization takes the running ones off them.
                update(("descent",), (-self.momentum,), [[new], [mine], [mine]], (), None, (scale, -1.0), "L2")
            else:
                torch.sub(mine, torch.sub(new * scale, mine), alpha=-self.momentum, out=mine)


_OF_A_LAYER = 5


class SplitRows(Op, results=5, kind=Kind.STORAGE, gives_view=True):
    """The rows that `JoinRows` joined: mean, correction, variance, gamma and beta."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See the class."""
        return tuple(operands[0].unbind(0))
