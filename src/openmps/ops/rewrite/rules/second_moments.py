"""Ends of blocks by second moments: a switchable rewrite, see `ops.normalization.second_moments` for its mathematics.

`end_by_moments`: a 1 x 1 convolution, its normalization by the batch's own statistics, another image added, and the
rectifier behind become two equations, and their gradients two more; neither what the convolution gives nor its gradient
exists. The image that is added may come from such a convolution and normalization, too. Pixels that a stride picks are
brought together first. It works on what `openmps.ops.rewrite.rules.normalization` and `projection` make.

It needs convolutions of one pixel and one group, whose weights the situation names: few enough channels read that
products with their covariance cost less than the passes over memory that go. Whatever else reads the result or the
gradient of one stands in its way, and so do statistics that are not this batch's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient
from openmps.ops.convolution.stepped_pixels import PickedPixels, SpreadPixels
from openmps.ops.geometry import Window
from openmps.ops.normalization.batch_normalization import BatchMoments, DataGradient
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.normalization.projected_neuron import ProjectedGradients, ProjectedNeuron, ProjectedSums, SpreadSums
from openmps.ops.normalization.second_moments import FoldByMoments, MomentsEnd, MomentsGradient, MomentsPassed
from openmps.ops.op import Equation
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.rule import Change, Site

_ROWS = 6
"""What a normalization reads: the images, mean, correction, variance, gamma and beta."""
_KNOWN = 4
"""How many of these its sums read."""


def end_by_moments(site: Site, _: Equation, last: Equation) -> Change | None:
    """The end of a block whose convolutions may be rewritten."""
    end = _match(site.flow, last)
    weights = [] if end is None else [site.inputs.get(each.convolution.reads[1]) for each in end.branches]
    if end is None or any(each is None or each not in site.situation.moments for each in weights):
        return None
    return Change(end.equations([site.new_value() for _ in range(end.spare)]))


class _Branch(NamedTuple):
    """A convolution and its normalization before the end of a block."""

    convolution: Equation
    moments: Equation
    gradient: Equation
    """The convolution's."""
    rows: tuple[int, ...]
    """What the normalization reads."""
    parameters: tuple[int, ...]
    """The gradients of gamma and beta."""
    epsilon: float

    def equations(
        self, flow: int, sums: int, spare: Sequence[int]
    ) -> tuple[dict[int, list[Equation]], tuple[int, int, int]]:
        """What becomes of its equations, and what the end reads of it: images, weights and shift.

        ``flow`` and ``sums`` are what the neuron lets pass and its sums; ``spare`` are values that nobody uses.
        """
        (source, *parameters), back = self.convolution.reads, self.gradient
        weights, shift, means, cross, read, found = spare
        _, mean, correction, variance, gamma, beta = self.rows
        window = _window(self.convolution)
        is_whole = window.is_whole and window.stride == (1, 1)
        first: list[Equation] = [] if is_whole else [Equation(PickedPixels(window), (source,), (read,))]
        last: list[Equation] = [] if is_whole else [Equation(SpreadPixels(window), (found,), back.writes[:1])]
        x, dx = (source, back.writes[0]) if is_whole else (read, found)
        made = (mean, correction, variance, weights, shift, means, cross)
        fold = Equation(FoldByMoments(self.epsilon), (x, *parameters, gamma, beta), made)
        known = (flow, sums, x, back.reads[2], gamma, variance, means, cross)
        gradient = Equation(MomentsGradient(self.epsilon), known, (dx, *back.writes[1:], *self.parameters))
        equations = {id(self.convolution): first, id(self.moments): [fold], id(back): [gradient, *last]}
        return equations, (x, weights, shift)


_OF_BRANCH = 6
"""Slots that a branch needs of its own, at most."""


class _End(NamedTuple):
    """What one fusion replaces."""

    branches: list[_Branch]
    end: Equation
    sums: Equation
    data: Equation

    @property
    def spare(self) -> int:
        """How many values it needs."""
        return _OF_BRANCH * len(self.branches) + 1

    def equations(self, spare: Sequence[int]) -> dict[int, list[Equation]]:
        """What becomes of equations, by their identity; ``spare`` are values that nobody uses."""
        first, reads, count = _first(self.end), self.sums.reads, len(self.branches)
        flow, sums = self.sums.writes[0], spare[-1]
        equations: dict[int, list[Equation]] = {id(self.data): []}
        ends: list[int] = []
        for place, branch in enumerate(self.branches):
            made, given = branch.equations(flow, sums, spare[_OF_BRANCH * place : _OF_BRANCH * (place + 1)])
            equations |= made
            ends += given
        ends += self.end.reads[_ROWS * count :]
        equations[id(self.end)] = [
            Equation(MomentsEnd(first.neuron, first.rounds_neuron), tuple(ends), self.end.writes)
        ]
        given = (self.end.writes[1], *reads[1 + _KNOWN * count :])
        equations[id(self.sums)] = [Equation(_passed(self.sums, first), given, (flow, sums))]
        return equations


def _first(end: Equation) -> NormalizedNeuron:
    op = end.op.first if isinstance(end.op, ProjectedNeuron) else end.op
    assert isinstance(op, NormalizedNeuron)
    return op


def _passed(sums: Equation, end: NormalizedNeuron) -> MomentsPassed:
    """What is left of the sums in the gradient pass."""
    if isinstance(sums.op, SpreadSums):
        return MomentsPassed(end.neuron, sums.op.rounds, sums.op.first.rounds_neuron, sums.op.spread)
    op = sums.op.first if isinstance(sums.op, ProjectedSums) else sums.op
    assert isinstance(op, PassedSums)
    return MomentsPassed(end.neuron, op.rounds_sum, op.rounds_neuron)


def _match(flow: DataFlow, end: Equation) -> _End | None:
    """The end of a block that an equation is a part of; None if there is none that can be rewritten."""
    normalizations = _normalizations(end)
    readers = flow.inner_uses(end.writes[1]) or () if normalizations else ()
    if len(readers) != 1 or not isinstance(readers[0].op, PassedSums | SpreadSums | ProjectedSums):
        return None
    (sums,), rows = readers, [each for each, _ in normalizations]
    data = _data(flow, sums, rows)
    if data is None or (isinstance(sums.op, ProjectedSums) != (len(rows) > 1)):
        return None
    branches: list[_Branch] = []
    for place, (row, epsilon) in enumerate(normalizations):
        parameters = sums.writes[1 + 2 * place : 3 + 2 * place]
        branch = _branch(flow, (end, sums, data), place, row, parameters, epsilon)
        if branch is None:
            return None
        branches.append(branch)
    return _End(branches, end, sums, data)


def _normalizations(end: Equation) -> list[tuple[tuple[int, ...], float]]:
    """What the normalizations of an end read, and their epsilons; none if it is no end with an image added."""
    if isinstance(end.op, ProjectedNeuron):
        return [(end.reads[:_ROWS], end.op.first.epsilon), (end.reads[_ROWS:], end.op.second.epsilon)]
    if isinstance(end.op, NormalizedNeuron) and len(end.reads) == _ROWS + 1:
        return [(end.reads[:_ROWS], end.op.epsilon)]
    return []


def _data(flow: DataFlow, sums: Equation, rows: Sequence[tuple[int, ...]]) -> Equation | None:
    """The gradient of the images of all branches, if that is all that reads the sums for gamma and beta."""
    passed, *parameters = sums.writes
    found = [each for each in flow.readers(parameters[0]) if isinstance(each.op, DataGradient | ProjectedGradients)]
    if len(found) != 1 or any(flow.readers(value) != found for value in parameters):
        return None
    (data,) = found
    known = [value for each in rows for value in each[: _ROWS - 1]]
    expected = [passed, *known, *parameters]
    if len(data.reads) != len(expected) + len(rows):
        return None
    read = [flow.row(flow.origin(value)) for value in data.reads[: len(expected)]]
    return data if read == expected else None


def _branch(
    flow: DataFlow, users: tuple[Equation, ...], place: int, rows: tuple[int, ...], parameters: tuple[int, ...],
    epsilon: float,
) -> _Branch | None:  # fmt: skip
    """A branch, if nothing but its own equations reads what is not to be made."""
    x, *statistics = rows[:_KNOWN]
    convolution, is_stored = flow.made(x)
    moments = flow.makers.get(statistics[0])
    if convolution is None or not _is_pixelwise(convolution) or flow.origin(x) != x:
        return None
    if is_stored and flow.stored_half(convolution.writes[0]) != x:
        return None
    if moments is None or not isinstance(moments.op, BatchMoments) or list(moments.writes) != statistics:
        return None
    uses = flow.inner_uses(x)
    if uses is None or {id(each) for each in uses} != {id(each) for each in (moments, *users)}:
        return None
    gradient = _gradient(flow, users[2].writes[place], convolution)
    return None if gradient is None else _Branch(convolution, moments, gradient, rows, parameters, epsilon)


def _is_pixelwise(equation: Equation) -> bool:
    """Whether an equation is a convolution of single pixels, all inside the source, with all channels."""
    if not isinstance(equation.op, Convolution) or equation.op.groups != 1:
        return False
    return equation.op.window.size == (1, 1) and not equation.op.window.leaves_source


def _window(equation: Equation) -> Window:
    assert isinstance(equation.op, Convolution)
    return equation.op.window


def _gradient(flow: DataFlow, made: int, convolution: Equation) -> Equation | None:
    """The gradient of a convolution, if nothing else reads that of its result."""
    stored = flow.stored_half(made)
    result = made if stored is None else stored
    behind = flow.inner_uses(result) or ()
    if len(behind) != 1 or not isinstance(behind[0].op, ConvolutionGradient):
        return None
    (gradient,) = behind
    fits = (
        vars(gradient.op) == vars(convolution.op)
        and flow.origin(gradient.reads[0]) == result
        and flow.origin(gradient.reads[1]) == flow.origin(convolution.reads[0])
        and gradient.reads[2] not in flow.makers
    )
    return gradient if fits else None
