"""Fusions around the ends of blocks: images that are normalized before they are added, and means of whole images.

`added_normalization`: a normalization whose result is only added in a `NormalizedNeuron` becomes a part of it. The
sums for its gamma and beta become a part of the other normalization's, and the gradients of both images one equation.

`spread_gradient`: the gradient of an average pooling over whole images, read by `PassedSums` alone, stays one pixel
an image.

Images that come out, and images that others read, stand in their way.
"""

from __future__ import annotations

from typing import NamedTuple

from openmps.ops.normalization.batch_normalization import DataGradient, Normalize, ParameterSums
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.normalization.projected_neuron import ProjectedGradients, ProjectedNeuron, ProjectedSums, SpreadSums
from openmps.ops.op import Equation
from openmps.ops.pooling.pooling import AveragePoolingGradient
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.rule import Change, Site
from openmps.ops.rewrite.rules.normalization import is_normalization_gradient

Changes = dict[int, list[Equation]]
_ADDED = 6
"""Where the image that is added stands among what a `NormalizedNeuron` reads."""
_GRADIENT = 5
"""Where gradients begin among what `PassedSums` read."""


def added_normalization(site: Site, added: Equation, neuron: Equation) -> Change | None:
    """The normalization of the image that is added as a part of what adds it."""
    if len(neuron.reads) <= _ADDED or not isinstance(neuron.op, NormalizedNeuron):
        return None
    return _changes(site.flow, neuron, neuron.op, added)


def spread_gradient(site: Site, spread: Equation, sums: Equation) -> Change | None:
    """The gradient of an average over whole images as one pixel an image."""
    flow, op = site.flow, sums.op
    if len(sums.reads) != _GRADIENT + 1 or not isinstance(op, PassedSums):
        return None
    gradient = sums.reads[_GRADIENT]
    maker, rounds = flow.made(gradient)
    if maker is not spread or flow.inner_uses(flow.origin(gradient)) != [sums] or not _is_whole(spread):
        return None
    assert isinstance(spread.op, AveragePoolingGradient)
    reads = (*sums.reads[:_GRADIENT], flow.origin(spread.reads[0]))
    return Change({id(sums): [Equation(SpreadSums(op, spread.op, rounds), reads, sums.writes)]})


def _is_whole(equation: Equation) -> bool:
    """Whether an equation is the gradient of one mean of all pixels of an image."""
    if not isinstance(equation.op, AveragePoolingGradient):
        return False
    window = equation.op.window
    return window.result == (1, 1) and window.size == window.source and not window.leaves_source


class _Pair(NamedTuple):
    """Two normalizations whose results are added."""

    first: tuple[int, ...]
    """Images, mean, correction, variance, gamma and beta."""
    second: tuple[int, ...]
    op: Normalize
    """The second one."""


def _changes(flow: DataFlow, neuron: Equation, op: NormalizedNeuron, normalization: Equation) -> Change | None:
    added = neuron.reads[_ADDED]
    maker, rounds = flow.made(added)
    if maker is not normalization or flow.inner_uses(flow.origin(added)) != [neuron]:
        return None
    assert isinstance(normalization.op, Normalize)
    pair = _Pair(neuron.reads[:_ADDED], normalization.reads, normalization.op)
    fused = Equation(ProjectedNeuron(op, normalization.op, rounds), (*pair.first, *pair.second), neuron.writes)
    changes: Changes = {id(neuron): [fused]}
    sums = [equation for equation in flow.inner_uses(neuron.writes[1]) or () if isinstance(equation.op, PassedSums)]
    return Change(changes | _backward(flow, sums[0], pair) if len(sums) == 1 else changes)


def _backward(flow: DataFlow, sums: Equation, pair: _Pair) -> Changes:
    """The same of the gradient pass: the sums of both, and the gradients of both images."""
    passed, users = sums.writes[0], flow.inner_uses(sums.writes[0]) or ()
    others = [
        equation for equation in users if isinstance(equation.op, ParameterSums) and len(equation.reads) == _GRADIENT
    ]
    others = [equation for equation in others if is_normalization_gradient(flow, equation, passed, pair.second)]
    if not isinstance(sums.op, PassedSums) or len(others) != 1:
        return {}
    (other,) = others
    assert isinstance(other.op, ParameterSums)
    kept, x, *rest = sums.reads
    reads = (kept, x, *rest[:3], flow.origin(pair.second[0]), *pair.second[1:4], *rest[3:])
    equation = Equation(ProjectedSums(sums.op, other.op), reads, (*sums.writes, *other.writes))
    changes: Changes = {id(sums): [equation], id(other): []}
    return changes | _data(flow, users, passed, pair, (sums.writes[1:], other.writes))


def _data(
    flow: DataFlow,
    users: list[Equation] | tuple[()],
    passed: int,
    pair: _Pair,
    sums: tuple[tuple[int, ...], tuple[int, ...]],
) -> Changes:
    """The gradients of both images, where the first of the two was."""
    given = [
        equation for equation in users if isinstance(equation.op, DataGradient) and len(equation.reads) == _GRADIENT + 4
    ]
    found = [
        next(
            (each for each in given if is_normalization_gradient(flow, each, passed, rows) and each.reads[6:8] == mine),
            None,
        )
        for rows, mine in zip((pair.first, pair.second), sums, strict=True)
    ]
    first, second = found
    if first is None or second is None or first is second:
        return {}
    is_wide = {flow.origin(each.reads[1]) != each.reads[1] for each in (first, second)}
    if len(is_wide) > 1:
        return {}
    assert isinstance(first.op, DataGradient)
    assert isinstance(second.op, DataGradient)
    images = [(flow.origin(rows[0]), *rows[1:5]) for rows in (pair.first, pair.second)]
    reads = (passed, *images[0], *images[1], *sums[0], *sums[1], first.reads[8], second.reads[8])
    op = ProjectedGradients(first.op, second.op, is_wide.pop())
    equation = Equation(op, reads, (*first.writes, *second.writes))
    earlier, later = (each for each in given if each is first or each is second)
    return {id(earlier): [equation], id(later): []}
