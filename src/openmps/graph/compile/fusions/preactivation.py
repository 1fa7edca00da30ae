"""Convolutions of normalized and rectified images, as in DenseNet; see `openmps.graph.compile.fusions.fusion`.

The slow steps are a `StoredNormalization` with ReLU and the `FusedConvolution` by windows of one pixel that alone reads
its result.
"""

from __future__ import annotations

from collections.abc import Mapping

from openmps.graph.compile.fusions.convolution import FusedBody
from openmps.graph.compile.preparations import Recipe
from openmps.graph.compile.readers import Readers
from openmps.ops.convolution.fused_convolution import FusedConvolution, PrepareConvolution
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution, PreparePreactivated
from openmps.ops.elements import Load, Store
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Body, Input, Step
from openmps.types import MPSCNNNeuronType


def fuse_preactivations(body: Body, recipes: Mapping[Input, Recipe]) -> FusedBody:
    """The body with its normalizations in the convolutions behind them, and the recipes with theirs."""
    if any(isinstance(step.op, (Load, Store)) for step in body.steps):
        return FusedBody(body, set(), recipes)  # Numbers are rounded to float16 between.
    readers, inputs = Readers(body), dict(zip(body.input_slots, body.inputs, strict=True))
    makers, gone, found = dict[int, Step](), set[int](), dict(recipes)
    for step in body.steps:
        behind = readers.only(step.writes[0]) if _is_rectified(step) else None
        if behind is not None and _takes_in(behind, step.writes[0]):
            makers[id(behind)] = step
            gone.add(step.writes[0])
    steps: list[Step] = []
    for step in body.steps:
        if (before := makers.get(id(step))) is not None:
            before_prepared, prepared = inputs[before.reads[1]], inputs[step.reads[1]]
            found[prepared] = _joined(found[before_prepared], found[prepared])
            steps.append(_preactivated(before, step))
        elif gone.isdisjoint(step.writes):
            steps.append(step)
    read = set(body.output_slots).union(*(step.reads for step in steps))
    unread = {before.reads[1] for before in makers.values()} - read
    kept = {each: slot for slot, each in inputs.items() if slot not in unread}
    recipes = {prepared: recipe for prepared, recipe in found.items() if prepared in kept}
    return FusedBody(body.with_steps(steps, body.slots, kept), gone, recipes)


def _is_rectified(step: Step) -> bool:
    if not isinstance(step.op, StoredNormalization) or step.op.activation is None:
        return False
    return (step.op.activation.function, step.op.activation.a) == (MPSCNNNeuronType.RELU, 0.0)


def _takes_in(behind: Step, image: int) -> bool:
    """Whether a step is a convolution of ``image`` that reads nothing outside of it."""
    if not isinstance(behind.op, FusedConvolution) or behind.reads[0] != image or image in behind.reads[1:]:
        return False
    window = behind.op.how.window
    return window.size == (1, 1) and behind.op.how.groups == 1 and not window.leaves_source


def _joined(normalization: Recipe, convolution: Recipe) -> Recipe:
    assert isinstance(normalization.op, PrepareNormalization)
    assert isinstance(convolution.op, PrepareConvolution)
    op = PreparePreactivated(normalization.op, convolution.op)
    return Recipe(op, (*normalization.reads, *convolution.reads))


def _preactivated(before: Step, step: Step) -> Step:
    assert isinstance(before.op, StoredNormalization)
    assert isinstance(step.op, FusedConvolution)
    op = PreactivatedConvolution(before.op, step.op.how)
    return Step(op, (before.reads[0], *step.reads[1:]), step.writes)
