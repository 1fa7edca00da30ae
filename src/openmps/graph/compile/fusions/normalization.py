"""Fusions of batch normalizations with the neurons behind them, in both directions.

`identities`: gradients of a sum are the gradient of the sum itself; the steps that only hand it on go. The numbers of
an input are made once of its bytes, for all who read them.

`normalized_neurons`: a normalization, an image added to it, if one is, and the rectifier behind become one step, and
the image between them never exists. In the gradient pass, without an added image, the neuron's gradient becomes a part
of the sums for gamma and beta and of the gradient of the source, which compute the neuron's source again. With an added
image, whose gradient others read, it becomes one step with the sums, and with the sum of two gradients before it; the
forward step keeps a bit for each number for it.

It needs a rectifier that alone reads what lies before it, besides its own gradient; without an added image that
gradient must be read by the normalization's gradients alone, which normalize the same source with the same numbers.
Images that come out, and images that others read, stand in its way.

`normalized_poolings`: a max pooling that alone reads such a neuron without an added image becomes one step with it, and
the pooling's gradient a part of those two that read it.
"""

from __future__ import annotations

from typing import NamedTuple

from openmps.graph.compile.flow import STORE, Flow, filled
from openmps.ops.elements import Load
from openmps.ops.normalization.batch_normalization import DataGradient, Normalize, ParameterSums
from openmps.ops.normalization.normalized_neuron import (
    NormalizedNeuron,
    NormalizedNeuronGradient,
    NormalizedNeuronSums,
    PassedSums,
    can_follow,
)
from openmps.ops.normalization.normalized_pooling import (
    NormalizedPooling,
    NormalizedPoolingGradient,
    NormalizedPoolingSums,
    can_be_pooled,
)
from openmps.ops.op import Body, Op, Step
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination, CombinationGradient
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient
from openmps.ops.pooling.pooling import MaxPooling, MaxPoolingGradient

_SUM = Combination(Arithmetic.ADD)


def identities(body: Body) -> tuple[Body, set[int]]:
    """The body without steps that hand numbers on as they are, and the slots that are never filled any more."""
    outputs, makers = set(body.output_slots), {slot: step for step in body.steps for slot in step.writes}
    inputs, loaded = set(body.input_slots), dict[tuple[Load, int], int]()
    same: dict[int, int] = {-1: -1}
    steps: list[Step] = []
    for step in body.steps:
        reads = tuple(same.get(slot, slot) for slot in step.reads)
        maker = makers.get(reads[0])
        is_stored_again = step.op == STORE and maker is not None and maker.op == STORE
        if isinstance(step.op, Load) and reads[0] in inputs and step.writes[0] not in outputs:
            first = loaded.setdefault((step.op, reads[0]), step.writes[0])
            if first != step.writes[0]:
                same[step.writes[0]] = first
                continue
        if (is_stored_again or _is_identity(step)) and step.writes[0] not in outputs:
            same[step.writes[0]] = reads[0]
        else:
            steps.append(step._replace(reads=reads))
    if len(same) == 1:
        return body, set()
    fused = body.with_steps(steps, body.slots)
    return fused, filled(body) - filled(fused)


def _is_identity(step: Step) -> bool:
    """Whether a step gives the gradient of a sum's operand, which is that of the sum."""
    op = step.op
    return (
        isinstance(op, CombinationGradient)
        and op.operation is not Arithmetic.MULTIPLY
        and (op.primary_scale, op.axes) == (1.0, ())
        and step.reads[1:] == (-1, -1)
    )


def normalized_neurons(body: Body) -> tuple[Body, set[int]]:
    """The body with these fusions, and the slots that are never filled any more."""
    flow = Flow(body)
    changes: dict[int, Step] = {}
    slots = body.slots
    for step in body.steps:
        if can_follow(step.op):
            found = _changes(flow, step, slots)
            slots += len(found) and 1
            changes |= found
    if not changes:
        return body, set()
    # What nobody reads any more is left out by the body itself; a step without results is left out here.
    steps = [changes.get(id(step), step) for step in body.steps]
    fused = body.with_steps([step for step in steps if step.writes], slots)
    return fused, filled(body) - filled(fused)


def normalized_poolings(body: Body) -> tuple[Body, set[int]]:
    """The body with max poolings in the steps before them, and the slots that are never filled any more."""
    flow = Flow(body)
    changes: dict[int, Step] = {}
    slots = body.slots
    for step in body.steps:
        if isinstance(step.op, NormalizedNeuron) and len(step.reads) == _ALONE:
            found = _pooled(flow, step, step.op, slots)
            slots += len(found) and 1
            changes |= found
    if not changes:
        return body, set()
    fused = body.with_steps([changes.get(id(step), step) for step in body.steps], slots)
    return fused, filled(body) - filled(fused)


_ALONE = 6
"""What a normalization with a neuron reads where no image is added: the images, and five rows."""


def _pooled(flow: Flow, first: Step, op: NormalizedNeuron, spare: int) -> dict[int, Step]:
    """What becomes of steps, by their identity, if a pooling can be fused with the neuron before it."""
    uses = flow.uses(first.writes[0]) or ()
    pools = [step for step in uses if isinstance(step.op, MaxPooling)]
    backs = [step for step in uses if isinstance(step.op, MaxPoolingGradient)]
    if len(uses) != len(pools) + len(backs) or len(pools) != 1 or len(backs) != 1 or flow.uses(first.writes[1]) != []:
        return {}
    (pool, back), windows = (pools[0], backs[0]), vars(pools[0].op)
    result, choice = pool.writes
    if not can_be_pooled(op, **windows) or vars(back.op) != windows:
        return {}
    if flow.uses(choice) != [back] or back.reads[2] != choice or flow.origin(back.reads[0]) == first.writes[0]:
        return {}
    stored = flow.stored(back.writes[0])
    passed = back.writes[0] if stored is None else stored
    users = flow.uses(passed)
    if not users or not all(_goes_back(flow, op, passed, first, step) for step in users):
        return {}
    changes = {id(pool): Step(NormalizedPooling(**windows, normalized=op), first.reads, (result, choice, spare))}
    for step in users:
        rounds = stored is not None
        if isinstance(step.op, NormalizedNeuronSums):
            new: Op = NormalizedPoolingSums(**windows, sums=step.op, rounds=rounds)
        else:
            assert isinstance(step.op, NormalizedNeuronGradient)
            new = NormalizedPoolingGradient(**windows, gradient=step.op, rounds=rounds)
        changes[id(step)] = Step(new, (flow.origin(back.reads[0]), choice, spare, *step.reads[1:]), step.writes)
    return changes


def _goes_back(flow: Flow, op: NormalizedNeuron, passed: int, first: Step, step: Step) -> bool:
    """Whether a step is a gradient of this normalization and neuron, and of ``passed``."""
    if not isinstance(step.op, NormalizedNeuronSums | NormalizedNeuronGradient):
        return False
    its, mine = step.op, (op.epsilon, op.neuron, op.rounds, op.keeps_type)
    return (
        (its.epsilon, its.neuron, its.rounds, its.keeps_type) == mine
        and flow.origin(step.reads[0]) == passed
        and tuple(map(flow.origin, step.reads[1 : _ALONE + 1])) == tuple(map(flow.origin, first.reads))
    )


class _Front(NamedTuple):
    """The steps in front of a neuron."""

    normalization: Step
    op: Normalize
    is_stored: bool
    """Whether the normalization's result is stored as float16."""
    other: tuple[int, ...] = ()
    """The image that is added, if one is."""
    stores_sum: bool = False


def _changes(flow: Flow, neuron: Step, spare: int) -> dict[int, Step]:
    """What becomes of steps, by their identity, if a neuron can be fused with what lies before it.

    ``spare`` is a slot that nobody uses.
    """
    front, uses = _front(flow, neuron), flow.uses(flow.origin(neuron.reads[0]))
    if front is None or uses is None or not isinstance(neuron.op, Neuron):
        return {}
    stored = flow.stored(neuron.writes[0])
    x, *rows = front.normalization.reads
    keeps_type = front.op.is_rounded and flow.origin(x) == x
    op = NormalizedNeuron(
        front.op.epsilon, neuron.op, front.is_stored, keeps_type, stored is not None, front.stores_sum
    )
    result = neuron.writes[0] if stored is None else stored
    place = neuron if stored is None else flow.makers[stored]
    changes = {id(place): Step(op, (x, *rows, *front.other), (result, spare))}
    others = [step for step in uses if step is not neuron]
    if not others:
        return changes
    (gradient, *more) = others
    if more or not _is_gradient_of(op.neuron, gradient):
        return {}
    back = _masked(flow, op, front, gradient, spare) if front.other else _back(flow, op, front, gradient)
    return {} if back is None else changes | back


def _masked(flow: Flow, op: NormalizedNeuron, front: _Front, gradient: Step, kept: int) -> dict[int, Step] | None:
    """The gradient pass behind an added image."""
    stored = flow.stored(gradient.writes[0])
    passed = gradient.writes[0] if stored is None else stored
    x, *rows = front.normalization.reads
    sums = [
        step
        for step in flow.uses(passed) or ()
        if isinstance(step.op, ParameterSums) and len(step.reads) == 5 and _is_of(flow, op, passed, x, rows, step)
    ]
    if len(sums) != 1:
        return None
    before, stores_sum = flow.made(gradient.reads[0])
    reads = (flow.origin(gradient.reads[0]),)
    if before is not None and before.op == _SUM and flow.uses(flow.origin(gradient.reads[0])) == [gradient]:
        reads = tuple(map(flow.origin, before.reads))
    else:
        stores_sum = False
    new = PassedSums(op.epsilon, op.neuron, stores_sum, stored is not None)
    step = Step(new, (kept, flow.origin(x), *rows[:3], *reads), (passed, *sums[0].writes))
    place = gradient if stored is None else flow.makers[stored]
    return {id(place): step, id(sums[0]): Step(sums[0].op, (), ())}


def _front(flow: Flow, neuron: Step) -> _Front | None:
    """What lies between a normalization and a neuron."""
    before, is_stored = flow.made(neuron.reads[0])
    if before is None:
        return None
    if isinstance(before.op, Normalize):
        return _Front(before, before.op, is_stored)
    if before.op != _SUM or before.writes[1] in flow.outputs or flow.uses(before.writes[1]):
        return None
    for place, slot in enumerate(before.reads):
        maker, was_stored = flow.made(slot)
        if maker is not None and isinstance(maker.op, Normalize) and flow.uses(flow.origin(slot)) == [before]:
            return _Front(maker, maker.op, was_stored, (flow.origin(before.reads[1 - place]),), is_stored)
    return None


def _back(flow: Flow, op: NormalizedNeuron, front: _Front, gradient: Step) -> dict[int, Step] | None:
    """The gradient pass without an added image."""
    stored = flow.stored(gradient.writes[0])
    passed = gradient.writes[0] if stored is None else stored
    users = flow.uses(passed)
    x, *rows = front.normalization.reads
    if users is None or not all(_is_of(flow, op, passed, x, rows, step) for step in users):
        return None
    changes: dict[int, Step] = {}
    for step in users:
        is_sum = isinstance(step.op, ParameterSums)
        made = (op.epsilon, op.neuron, op.rounds, op.keeps_type, stored is not None)
        is_wide = flow.origin(step.reads[1]) != step.reads[1]
        new = NormalizedNeuronSums(*made) if is_sum else NormalizedNeuronGradient(*made, is_wide)
        reads = flow.origin(gradient.reads[0]), flow.origin(x), *rows, *step.reads[5 if is_sum else 6 :]
        changes[id(step)] = Step(new, reads, step.writes)
    return changes


def _is_of(flow: Flow, op: NormalizedNeuron, passed: int, x: int, rows: list[int], step: Step) -> bool:
    """Whether a step is a gradient of this normalization, of what the neuron let pass."""
    if not isinstance(step.op, ParameterSums | DataGradient) or step.op.epsilon != op.epsilon:
        return False
    gradient, source, *its = step.reads
    known = 3 if isinstance(step.op, ParameterSums) else 4
    return (
        flow.origin(gradient) == passed
        and flow.origin(source) == flow.origin(x)
        and [flow.row(slot) for slot in its[:known]] == rows[:known]
    )


def _is_gradient_of(neuron: Neuron, step: Step) -> bool:
    """Whether a step is the gradient of a neuron."""
    return isinstance(step.op, NeuronGradient) and vars(step.op) == vars(neuron)
