"""Fusions of batch normalizations with the neurons behind them, in both directions.

`handed_on`, `stored_again`, `loaded_again`: gradients of a sum are the gradient of the sum itself; the equations that
only hand it on go, and so do roundings of what was rounded. The numbers of an input are made once of its bytes, for all
who read them.

`normalized_neuron`: a normalization, an image added to it, if one is, and the neuron behind, a rectifier or without an
added image GeLU, become one equation, and the image between them never exists. In the gradient pass, without an added
image, the neuron's gradient becomes a part of the sums for gamma and beta and of the gradient of the source, which
compute the neuron's source again. With an added image, whose gradient others read, it becomes one equation with the
sums, and with the sum of two gradients before it; the forward equation keeps a bit for each number for it.

It needs a neuron that alone reads what lies before it, besides its own gradient; without an added image that
gradient must be read by the normalization's gradients alone, which normalize the same source with the same numbers.
Images that come out, and images that others read, stand in its way.

`normalized_pooling`: a max pooling that alone reads such a neuron without an added image becomes one equation with it,
and the pooling's gradient a part of those two that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openmps.ops.normalization.batch_normalization import DataGradient, Normalize, ParameterSums
from openmps.ops.normalization.normalized_neuron import (
    NormalizedNeuron,
    NormalizedNeuronGradient,
    NormalizedNeuronSums,
    PassedSums,
)
from openmps.ops.normalization.normalized_pooling import (
    NormalizedPooling,
    NormalizedPoolingGradient,
    NormalizedPoolingSums,
    can_be_pooled,
)
from openmps.ops.op import Equation, Op
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination, CombinationGradient
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient
from openmps.ops.pooling.pooling import MaxPooling, MaxPoolingGradient
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.rule import Change, Site

_SUM = Combination(Arithmetic.ADD)


def handed_on(site: Site, equation: Equation) -> Change | None:
    """Nothing for the gradient of a sum's operand, which is that of the sum."""
    op, (gradient, *others) = equation.op, equation.reads
    assert isinstance(op, CombinationGradient)
    is_same = (op.primary_scale, op.axes) == (1.0, ()) and others == [-1, -1]
    return _instead(site, equation, gradient) if is_same else None


def loaded_again(site: Site, equation: Equation) -> Change | None:
    """The numbers of an input that were made of its bytes for another equation."""
    read = equation.reads[0]
    if read not in site.inputs:
        return None
    alike = [each for each in site.flow.readers(read) if each.op == equation.op]
    first = next((each for each in alike if each.writes[0] not in site.flow.outputs), equation)
    return None if first is equation else _instead(site, equation, first.writes[0])


def stored_again(site: Site, first: Equation, equation: Equation) -> Change | None:
    """Nothing for a rounding of numbers that were rounded."""
    return _instead(site, equation, first.writes[0]) if equation.reads[0] == first.writes[0] else None


def _instead(site: Site, equation: Equation, value: int) -> Change | None:
    """Another value in the place of what an equation gives; not where that comes out."""
    made = equation.writes[0]
    return None if made in site.flow.outputs else Change({id(equation): []}, {made: value})


def normalized_neuron(site: Site, *match: Equation) -> Change | None:
    """A neuron with the normalization before it, and an image that is added between."""
    kept = site.new_value()
    return _change(_changes(site.flow, match[-1], kept))


def normalized_pooling(site: Site, first: Equation, _: Equation) -> Change | None:
    """A max pooling with the normalization and rectifier before it."""
    assert isinstance(first.op, NormalizedNeuron)
    return _change(_pooled(site.flow, first, first.op, site.new_value())) if len(first.reads) == _ALONE else None


def _change(made: dict[int, Equation]) -> Change | None:
    """The same, without equations that give nothing."""
    return Change({place: [each] if each.writes else [] for place, each in made.items()}) if made else None


_ALONE = 6
"""What a normalization with a neuron reads where no image is added: the images, and five rows."""


def _pooled(flow: DataFlow, first: Equation, op: NormalizedNeuron, spare: int) -> dict[int, Equation]:
    """What becomes of equations, by their identity, if a pooling can be fused with the neuron before it."""
    uses = flow.inner_uses(first.writes[0]) or ()
    pools = [equation for equation in uses if isinstance(equation.op, MaxPooling)]
    backs = [equation for equation in uses if isinstance(equation.op, MaxPoolingGradient)]
    if (
        len(uses) != len(pools) + len(backs)
        or len(pools) != 1
        or len(backs) != 1
        or flow.inner_uses(first.writes[1]) != []
    ):
        return {}
    (pool, back), windows = (pools[0], backs[0]), vars(pools[0].op)
    result, choice = pool.writes
    if not can_be_pooled(op, **windows) or vars(back.op) != windows:
        return {}
    if flow.inner_uses(choice) != [back] or back.reads[2] != choice or flow.origin(back.reads[0]) == first.writes[0]:
        return {}
    stored = flow.stored_half(back.writes[0])
    passed = back.writes[0] if stored is None else stored
    users = flow.inner_uses(passed)
    if not users or not all(_goes_back(flow, op, passed, first, equation) for equation in users):
        return {}
    changes = {id(pool): Equation(NormalizedPooling(**windows, normalized=op), first.reads, (result, choice, spare))}
    for equation in users:
        rounds = stored is not None
        if isinstance(equation.op, NormalizedNeuronSums):
            new: Op = NormalizedPoolingSums(**windows, sums=equation.op, rounds=rounds)
        else:
            assert isinstance(equation.op, NormalizedNeuronGradient)
            new = NormalizedPoolingGradient(**windows, gradient=equation.op, rounds=rounds)
        changes[id(equation)] = Equation(
            new, (flow.origin(back.reads[0]), choice, spare, *equation.reads[1:]), equation.writes
        )
    return changes


def _goes_back(flow: DataFlow, op: NormalizedNeuron, passed: int, first: Equation, equation: Equation) -> bool:
    """Whether an equation is a gradient of this normalization and neuron, and of ``passed``."""
    if not isinstance(equation.op, NormalizedNeuronSums | NormalizedNeuronGradient):
        return False
    its, mine = equation.op, (op.epsilon, op.neuron, op.rounds, op.keeps_type)
    return (
        (its.epsilon, its.neuron, its.rounds, its.keeps_type) == mine
        and flow.origin(equation.reads[0]) == passed
        and tuple(map(flow.origin, equation.reads[1 : _ALONE + 1])) == tuple(map(flow.origin, first.reads))
    )


class _Front(NamedTuple):
    """The equations in front of a neuron."""

    normalization: Equation
    op: Normalize
    is_stored: bool
    """Whether the normalization's result is stored as float16."""
    other: tuple[int, ...] = ()
    """The image that is added, if one is."""
    stores_sum: bool = False


def _changes(flow: DataFlow, neuron: Equation, spare: int) -> dict[int, Equation]:
    """What becomes of equations, by their identity, if a neuron can be fused with what lies before it.

    ``spare`` is a value that nobody uses.
    """
    front, uses = _front(flow, neuron), flow.inner_uses(flow.origin(neuron.reads[0]))
    if front is None or uses is None or not isinstance(neuron.op, Neuron):
        return {}
    stored = flow.stored_half(neuron.writes[0])
    x, *rows = front.normalization.reads
    keeps_type = front.op.is_rounded and flow.origin(x) == x
    op = NormalizedNeuron(
        front.op.epsilon, neuron.op, front.is_stored, keeps_type, stored is not None, front.stores_sum
    )
    result = neuron.writes[0] if stored is None else stored
    place = neuron if stored is None else flow.makers[stored]
    changes = {id(place): Equation(op, (x, *rows, *front.other), (result, spare))}
    others = [equation for equation in uses if equation is not neuron]
    if not others:
        return changes
    (gradient, *more) = others
    if more or not _is_gradient_of(op.neuron, gradient):
        return {}
    back = _masked(flow, op, front, gradient, spare) if front.other else _back(flow, op, front, gradient)
    return {} if back is None else changes | back


def _masked(
    flow: DataFlow, op: NormalizedNeuron, front: _Front, gradient: Equation, kept: int
) -> dict[int, Equation] | None:
    """The gradient pass behind an added image."""
    stored = flow.stored_half(gradient.writes[0])
    passed = gradient.writes[0] if stored is None else stored
    x, *rows = front.normalization.reads
    sums = [
        equation
        for equation in flow.inner_uses(passed) or ()
        if isinstance(equation.op, ParameterSums)
        and len(equation.reads) == 5
        and _is_of(flow, op, passed, x, rows, equation)
    ]
    if len(sums) != 1:
        return None
    before, stores_sum = flow.made(gradient.reads[0])
    reads = (flow.origin(gradient.reads[0]),)
    if before is not None and before.op == _SUM and flow.inner_uses(flow.origin(gradient.reads[0])) == [gradient]:
        reads = tuple(map(flow.origin, before.reads))
    else:
        stores_sum = False
    new = PassedSums(op.epsilon, op.neuron, stores_sum, stored is not None)
    equation = Equation(new, (kept, flow.origin(x), *rows[:3], *reads), (passed, *sums[0].writes))
    place = gradient if stored is None else flow.makers[stored]
    return {id(place): equation, id(sums[0]): Equation(sums[0].op, (), ())}


def _front(flow: DataFlow, neuron: Equation) -> _Front | None:
    """What lies between a normalization and a neuron."""
    before, is_stored = flow.made(neuron.reads[0])
    if before is None:
        return None
    if isinstance(before.op, Normalize):
        return _Front(before, before.op, is_stored)
    if before.op != _SUM or before.writes[1] in flow.outputs or flow.inner_uses(before.writes[1]):
        return None
    for place, value in enumerate(before.reads):
        maker, was_stored = flow.made(value)
        if maker is not None and isinstance(maker.op, Normalize) and flow.inner_uses(flow.origin(value)) == [before]:
            return _Front(maker, maker.op, was_stored, (flow.origin(before.reads[1 - place]),), is_stored)
    return None


def _back(flow: DataFlow, op: NormalizedNeuron, front: _Front, gradient: Equation) -> dict[int, Equation] | None:
    """The gradient pass without an added image."""
    stored = flow.stored_half(gradient.writes[0])
    passed = gradient.writes[0] if stored is None else stored
    users = flow.inner_uses(passed)
    x, *rows = front.normalization.reads
    if users is None or not all(_is_of(flow, op, passed, x, rows, equation) for equation in users):
        return None
    changes: dict[int, Equation] = {}
    for equation in users:
        is_sum = isinstance(equation.op, ParameterSums)
        made = (op.epsilon, op.neuron, op.rounds, op.keeps_type, stored is not None)
        is_wide = flow.origin(equation.reads[1]) != equation.reads[1]
        new = NormalizedNeuronSums(*made) if is_sum else NormalizedNeuronGradient(*made, is_wide)
        reads = flow.origin(gradient.reads[0]), flow.origin(x), *rows, *equation.reads[5 if is_sum else 6 :]
        changes[id(equation)] = Equation(new, reads, equation.writes)
    return changes


def _is_of(flow: DataFlow, op: NormalizedNeuron, passed: int, x: int, rows: list[int], equation: Equation) -> bool:
    """Whether an equation is a gradient of this normalization, of what the neuron let pass."""
    if not isinstance(equation.op, ParameterSums | DataGradient) or equation.op.epsilon != op.epsilon:
        return False
    return is_normalization_gradient(flow, equation, passed, (x, *rows))


def is_normalization_gradient(flow: DataFlow, equation: Equation, passed: int, rows: Sequence[int]) -> bool:
    """Whether an equation is a gradient, of ``passed``, of the normalization of these images and rows."""
    gradient, source, *its = equation.reads
    known = 3 if isinstance(equation.op, ParameterSums) else 4
    return (
        flow.origin(gradient) == passed
        and flow.origin(source) == flow.origin(rows[0])
        and [flow.row(value) for value in its[:known]] == list(rows[1 : known + 1])
    )


def _is_gradient_of(neuron: Neuron, equation: Equation) -> bool:
    """Whether an equation is the gradient of a neuron."""
    return isinstance(equation.op, NeuronGradient) and vars(equation.op) == vars(neuron)
