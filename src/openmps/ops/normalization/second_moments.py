"""Ends of blocks by second moments: a 1 x 1 convolution, normalized by its batch, with an image and a neuron behind it.

Of ``z = W a`` over the M pixels of a batch, mean and variance follow from those of ``a``, before z is made: with
``m = mean(a)`` and the covariance ``C = mean((a - m)(a - m)^T)`` they are ``W m`` and ``diag(W C W^T)``. So the
normalization is folded into weights, ``V = diag(s) W`` with ``s = gamma r`` and ``r = 1 / sqrt(variance + epsilon)``,
and what is left is ``neuron(V a + shift + other)`` with ``shift = beta - V m``: z is never made. Nor is its gradient.
With the gradient g of what the neuron lets pass, and ``G = sum g (a - m)^T``::

    dgamma = r diag(G W^T)              dbeta = sum g              u = s r dgamma
    dW = diag(s) G - diag(u) W C
    da = V^T g - W^T diag(u) W (a - m) / M - V^T dbeta / M

Images are ``[N, C, H, W]``, weights OHWI with one pixel. Sums are float32 at least. The numbers differ from those of
the steps one by one by what rounding z and its gradient to float16 costs, and by the rounding of V. The covariance is
a difference where Triton makes it: means of k deviations cost about log2(1 + k^2) of a float32 sum's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import convolution
from openmps.ops.convolution.fused_convolution import rounded_to_half
from openmps.ops.geometry import Axis, Window, pitch_of
from openmps.ops.normalization.normalized_neuron import unpacked
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.neuron import Neuron, neuron, neuron_gradient
from openmps.ops.pooling.pooling import AveragePoolingGradient

_FLOATS = (torch.float16, torch.float32)


class Folded(NamedTuple):
    """What a block's end multiplies with, and what its gradient needs besides."""

    mean: Tensor
    variance: Tensor
    weights: Tensor
    """OHWI, in the type of the convolution's own."""
    shift: Tensor
    means: Tensor
    """Of the source's channels."""
    cross: Tensor
    """``W C``: the covariance of each result's channel and each of the source's, [O, I]."""


def rows_of(x: Tensor) -> Tensor:
    """The pixels of an image as rows; float16 as float32."""
    rows = x.permute(0, 2, 3, 1).flatten(0, 2)
    return rows.float() if rows.dtype == torch.float16 else rows


def folded(x: Tensor, weights: Tensor, biases: Tensor | None, gamma: Tensor, beta: Tensor, epsilon: float) -> Folded:
    """The statistics of ``weights x + biases``, and the weights that normalize it; see the module."""
    if (fast := _kernels([x], [weights], [biases, gamma, beta])) is not None:
        return Folded(*fast.folded(x, weights, biases, gamma, beta, epsilon))
    rows = rows_of(x)
    means = rows.mean(0)
    centred = rows - means
    factors = weights.flatten(1).to(rows.dtype)
    cross = factors @ (centred.t() @ centred).div_(len(rows))
    variance = (cross * factors).sum(1).clamp_min_(0.0)
    mean = factors @ means
    scale = gamma * (variance + epsilon).rsqrt()
    made = scale.view(-1, 1, 1, 1) * weights
    made = rounded_to_half(made) if weights.dtype == torch.float16 else made
    # Of the weights as they are rounded: the mean of what they give is beta all the same.
    shift = beta - made.flatten(1).to(rows.dtype) @ means
    return Folded(mean if biases is None else mean + biases, variance, made, shift, means, cross)


class FoldByMoments(Op, kind=Kind.CONTRACTION, half=True, results=7):
    """`folded` of images, weights, biases, which may be left out, gamma and beta.

    Results are mean, correction, which is 0, and variance, and the other fields of `Folded`.
    """

    epsilon: float

    @property
    def gives_half(self) -> bool:
        """False: of the results the weights alone may be float16, and their reader takes them so."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor | None, ...]:
        """See the function."""
        x, weights, biases, gamma, beta = operands
        found = folded(x, weights, biases, gamma, beta, self.epsilon)
        return found.mean, torch.zeros_like(found.mean) if wanted[1] else None, *found[1:]


class MomentsEnd(Op, kind=Kind.CONTRACTION, half=True, results=2):
    """``neuron(V a + shift + other)`` of images, folded weights, shift, and the other images.

    The others may be a product, too: images, weights and shift. The second result is for `MomentsPassed`: bits, the
    neuron's source, or, of a ReLU, its result in float16, from which what was exactly 0 cannot be told from what was
    less.
    """

    neuron: Neuron
    rounds: bool
    """Whether the result is stored as float16."""

    @property
    def gives_half(self) -> bool:
        """Not by itself: the operation says what is rounded."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        x, weights, shift, other = operands[:4]
        projection: tuple[Tensor, ...] = operands[4:]
        op, dtype = self.neuron, torch.float16 if self.rounds else torch.float32
        alike, rows = ([weights, other, projection[0]], [shift, projection[1]]) if projection else ([weights], [shift])
        if (fast := _kernels([x, other], alike, rows)) is not None:
            how = fast.Activation(op.function.name, op.a, op.b)
            return fast.block_end(x, weights, shift, other, projection, how, dtype)
        z = _product(x, weights, shift)
        z = z + (_product(other, projection[0], projection[1]) if projection else other)
        y = neuron(z, op.function, op.a, op.b, op.c)
        return y.to(dtype) if self.rounds else y, z


def _product(x: Tensor, weights: Tensor, shift: Tensor) -> Tensor:
    """The convolution of single pixels, float32 at least."""
    height, width = x.shape[2:]
    x, weights = (each.float() if each.dtype == torch.float16 else each for each in (x, weights))
    return convolution(x, weights, shift, Window(x=Axis(width, width, 1), y=Axis(height, height, 1)))


class MomentsPassed(Op, kind=Kind.REDUCTION, half=True, results=2):
    """A neuron's gradient of one gradient or of the sum of two, and its sums over pixels, in parts, [P, C].

    Operands are what `MomentsEnd` kept, and the gradients.
    """

    neuron: Neuron
    rounds_sum: bool
    """Whether the sum of the gradients was stored as float16, or what is spread."""
    rounds_neuron: bool
    """Whether what the neuron let pass was."""
    spread: AveragePoolingGradient | None = None
    """The gradient is one pixel an image, for a mean of all of them."""

    @property
    def gives_half(self) -> bool:
        """Not by itself: the operation says what is rounded."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See the class."""
        kept, gradient, *more = operands
        second: Tensor | None = more[0] if more else None
        size = gradient.shape[2:] if self.spread is None else self.spread.window.source
        shape, op = (*gradient.shape[:2], *size), self.neuron
        given = [gradient] if second is None else [gradient, second]
        is_known = kept.dtype == torch.uint8
        if (is_known or kept.dtype == torch.float16) and (fast := _kernels(given, [], [])) is not None:
            dtype = torch.float16 if self.rounds_neuron else torch.float32
            return fast.passed(gradient, second, kept, shape, op.a, dtype, rounds_sum=self.rounds_sum)
        flow = gradient.float() if gradient.dtype == torch.float16 else gradient
        if self.spread is not None:
            flow = self.spread.run((True,), flow)
            assert isinstance(flow, Tensor)
        flow = flow if second is None else flow + second
        flow = flow.to(torch.float16) if self.rounds_sum else flow
        z = unpacked(kept, shape, op) if is_known else _sources(kept)
        flow = neuron_gradient(flow.to(z.dtype), z, op.function, op.a, op.b, op.c)
        flow = flow.to(torch.float16) if self.rounds_neuron else flow
        return flow, rows_of(flow).sum(0, keepdim=True)


def _sources(kept: Tensor) -> Tensor:
    """Numbers that a ReLU treats as its source, from that or from its result, which is float16."""
    return torch.where(kept <= 0, -1.0, 1.0) if kept.dtype == torch.float16 else kept


class MomentsGradients(NamedTuple):
    """The gradients of a block's end; None where one was not asked for."""

    source: Tensor | None
    weights: Tensor | None
    biases: Tensor | None
    gamma: Tensor
    beta: Tensor


def gradients(
    flow: Tensor, sums: Tensor, x: Tensor, weights: Tensor, gamma: Tensor, variance: Tensor, means: Tensor,
    cross: Tensor, epsilon: float, *, with_source: bool = True, with_biases: bool = True,
) -> MomentsGradients:  # fmt: skip
    """The gradients of source, weights, gamma and beta from that of what the neuron let pass; see the module.

    A bias changes nothing that is normalized: its gradient is 0.
    """
    biases = torch.zeros_like(gamma) if with_biases else None
    if (fast := _kernels([x, flow], [weights, flow], [sums, gamma, variance, means, cross])) is not None:
        known = gamma, variance, means, cross
        found = fast.gradients(flow, sums, x, weights, *known, epsilon, with_source=with_source)
        return MomentsGradients(found[0], found[1], biases, found[2], found[3])
    beta, rows, factors = sums.sum(0), rows_of(x), weights.flatten(1).to(cross.dtype)
    inverse = (variance + epsilon).rsqrt()
    scale = gamma * inverse
    free = rows_of(flow).t() @ (rows - means)
    for_gamma = (free * factors).sum(1) * inverse
    slope = scale * inverse * for_gamma
    for_weights = scale.view(-1, 1) * free - slope.view(-1, 1) * cross
    source = None
    if with_source:
        used = (scale.view(-1, 1) * factors).to(weights.dtype).to(rows.dtype)
        back = factors.t() @ (factors * slope.view(-1, 1)) / -len(rows)
        level = factors.t() @ (scale * beta) / -len(rows)
        found = (rows - means) @ back + level
        found = torch.addmm(found, rows_of(flow), used)
        images, channels, height, width = x.shape
        source = found.view(images, height, width, channels).permute(0, 3, 1, 2)
    return MomentsGradients(source, for_weights.view(weights.shape), biases, for_gamma, beta)


class MomentsGradient(Op, kind=Kind.CONTRACTION, half=True, results=5):
    """`gradients` of what `MomentsPassed` gave, of images, weights and gamma, and of three fields of `Folded`.

    These are the variance, the means and the cross covariance.
    """

    epsilon: float

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> MomentsGradients:
        """See the function."""
        flow, sums, x, weights, gamma, variance, means, cross = operands
        said: Any = {"with_source": wanted[0], "with_biases": wanted[2]}
        return gradients(flow, sums, x, weights, gamma, variance, means, cross, self.epsilon, **said)


def _kernels(images: Sequence[Tensor], alike: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Any:
    """The forms in Triton, if they take these: images, tensors of the first one's type, float32 numbers; else None."""
    first = images[0]
    fits = (
        triton.runs_on(first.device)
        and first.numel() > 0
        and first.shape[0] * first.shape[2] * first.shape[3] < 2**30
        and all(each.dtype in _FLOATS and pitch_of(each) is not None for each in images)
        and all(each.dtype == first.dtype for each in alike)
        and all(row is None or (row.dtype == torch.float32 and row.is_contiguous()) for row in rows)
    )
    if not fits:
        return None
    from openmps.ops.triton.normalization import second_moments as kernels

    return kernels
