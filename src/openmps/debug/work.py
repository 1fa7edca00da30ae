"""What a step works: floating point operations, by its operation's kind and shapes, and bytes of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.ops.convolution.convolution import (
    Convolution,
    ConvolutionGradient,
    FullyConnected,
    FullyConnectedGradient,
)
from openmps.ops.convolution.convolution_half import ConvolutionHalf, ConvolutionTransposeHalf
from openmps.ops.convolution.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
from openmps.ops.convolution.followed_end import FollowedEnd
from openmps.ops.convolution.fused_convolution import FusedConvolution, PooledConvolution
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.geometry import Window
from openmps.ops.matrix.recurrent_library import PackedRecurrence
from openmps.ops.op import Action, Kind, Op
from openmps.ops.reduce.gram_matrix import GramMatrix, GramMatrixGradient

Counter = Callable[[Any, Sequence[Any], Sequence[Any], tuple[bool, ...]], int]
"""Operations of a step: of its operation, operands, results, and which results are wanted."""


def operations_of(action: Action, operands: Sequence[Any], results: Sequence[Any]) -> int:
    """Floating point operations of a step: two for each product that is summed, else one for each number.

    Sums of products are counted as their formulas write them, however they are computed. A window counts each of its
    pixels, a reduction each number that it reads; moving numbers costs none.
    """
    count = _COUNTERS.get(type(action.op), _KINDS.get(action.op.kind, _none))
    return count(action.op, operands, results, action.wanted)


def bytes_of(action: Action, operands: Sequence[Any], results: Sequence[Any]) -> int:
    """Bytes of operands and results, each once: the least that a step moves; none where the results are views."""
    if action.op.gives_view and not _is_apart(operands, results):
        return 0
    return sum(each.numel() * each.element_size() for each in (*_tensors(operands), *_tensors(results)))


def dtype_of(operands: Sequence[Any]) -> torch.dtype:
    """The type of the numbers that a step computes with."""
    return next((each.dtype for each in _tensors(operands) if each.is_floating_point()), torch.float32)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def _is_apart(operands: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether the results have memory of their own."""
    taken = {each.untyped_storage().data_ptr() for each in _tensors(operands) if each.layout is torch.strided}
    return all(each.untyped_storage().data_ptr() not in taken for each in _tensors(results))


# --- operations of sums of products -----------------------------------------------------------------------------------


def _multiplied(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """Each number of the result is a sum over the weights of its channel."""
    weights = operands[1]
    return 2 * results[0].numel() * (weights.numel() // weights.shape[0])


def _spread(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """Each number of the source goes into as many numbers as its channel has weights."""
    x, weights = operands[0], operands[1]
    return 2 * x.numel() * weights.numel() // x.shape[1]


def _multiplied_back(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """As often as forward: once for the source's gradient, once for that of the weights."""
    gradient, _, weights = operands[:3]
    each = 2 * gradient.numel() * (weights.numel() // weights.shape[0])
    return each * (int(wanted[0]) + int(any(wanted[1:])))


def _spread_back(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    _, x, weights = operands[:3]
    return 2 * x.numel() * weights.numel() // x.shape[1] * (int(wanted[0]) + int(any(wanted[1:])))


def _fused(
    op: FusedConvolution | PreactivatedConvolution | PooledConvolution,
    operands: Sequence[Any],
    results: Sequence[Any],
    wanted: tuple[bool, ...],
) -> int:
    """The packed weights do not tell their axes; the windows do, and what there was before a pooling."""
    window, (images, channels) = op.how.window, results[0].shape[:2]
    pixels = window.x.result * window.y.result
    taps = window.x.size * window.y.size
    return 2 * images * channels * pixels * taps * operands[0].shape[1] // op.how.groups


def _projected(
    op: ProjectedConvolution, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]
) -> int:
    """Both convolutions."""
    both = zip((op.how, op.projection), operands[::2], strict=True)
    return sum(_fused(FusedConvolution(how), [image], results, wanted) for how, image in both)


def _followed(op: FollowedEnd, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """All two or three convolutions."""
    y, z = results
    sources = (op.end, operands[0], y), (op.projection, operands[2], y), (op.following, y, z)
    return sum(_fused(FusedConvolution(how), [x], [made], wanted) for how, x, made in sources if how is not None)


def _gram(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    x = operands[-1]
    return 2 * x.numel() * x.shape[1]


def _packed(op: PackedRecurrence, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """A row of a step by the weights of its inputs and of its state, which do not tell their axes."""
    rows, inputs = operands[0].shape
    return 2 * rows * op.gates * op.size * (inputs + op.size)


_COUNTERS: dict[type[Op], Counter] = {
    Convolution: _multiplied,
    ConvolutionHalf: _multiplied,
    FullyConnected: _multiplied,
    FusedConvolution: _fused,
    PreactivatedConvolution: _fused,
    PooledConvolution: _fused,
    ProjectedConvolution: _projected,
    FollowedEnd: _followed,
    ConvolutionTranspose: _spread,
    ConvolutionTransposeHalf: _spread,
    ConvolutionGradient: _multiplied_back,
    FullyConnectedGradient: _multiplied_back,
    ConvolutionTransposeGradient: _spread_back,
    PackedRecurrence: _packed,
    GramMatrix: _gram,
    GramMatrixGradient: _gram,
}


# --- of everything else -----------------------------------------------------------------------------------------------


def _none(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    return 0


def _of_results(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    return sum(each.numel() for each in _tensors(results))


def _of_operands(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    return sum(each.numel() for each in _tensors(operands))


def _of_windows(op: Any, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    window: Any = getattr(op, "window", None)
    taps = window.x.size * window.y.size if isinstance(window, Window) else 1
    return taps * next((each.numel() for each in _tensors(results)), 0)


def _of_weights(op: Op, operands: Sequence[Any], results: Sequence[Any], wanted: tuple[bool, ...]) -> int:
    """A sum of products that has no formula here: over a second operand, as a convolution's."""
    given = list(_tensors(operands))
    if len(given) < 2 or not results:
        return 0
    return 2 * next(_tensors(results)).numel() * max(1, given[1].numel() // max(1, given[1].shape[0]))


_KINDS: dict[Kind, Counter] = {
    Kind.POINTWISE: _of_results,
    Kind.RANDOM: _of_results,
    Kind.REDUCTION: _of_operands,
    Kind.UPDATE: _of_operands,
    Kind.COLLECTIVE: _of_operands,
    Kind.WINDOW: _of_windows,
    Kind.CONTRACTION: _of_weights,
    Kind.CONTRACTION_GRADIENT: _of_weights,
    Kind.PREPARATION: _of_operands,
}
