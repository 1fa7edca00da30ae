"""Convolutions of inference with the max pooling behind them, on a GPU; see `openmps.graph.compile.fusions.fusion`.

The slow steps are a `FusedConvolution` whose rectifier never falls and the max pooling that alone reads its result. A
pooling that reads zeros outside its source is none of these: those are not rectified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from openmps.graph.compile.preparations import Recipe
from openmps.graph.compile.readers import Readers
from openmps.ops.convolution.fused_convolution import FusedConvolution, PooledConvolution, PrepareConvolution
from openmps.ops.op import Body, Input, Step
from openmps.ops.pooling.pooling import MaxPooling
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RECTIFIERS = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N


def pooled_convolutions(body: Body) -> tuple[Body, set[int]]:
    """The body with poolings in the convolutions before them, and the slots that are never filled any more."""
    readers, gone = Readers(body), set[int]()
    pools: dict[int, Step] = {}
    for step in body.steps:
        pool = _pool_behind(readers, step)
        if pool is not None:
            pools[id(pool)] = step
            gone |= {step.writes[0], pool.reads[0], pool.writes[1]}
    steps: list[Step] = []
    for step in body.steps:
        if (made := pools.get(id(step))) is not None:
            assert isinstance(made.op, FusedConvolution)
            assert isinstance(step.op, MaxPooling)
            steps.append(Step(PooledConvolution(made.op.how, step.op), made.reads, step.writes[:1]))
        elif gone.isdisjoint(step.writes):
            steps.append(step)
    return (body.with_steps(steps, body.slots), gone) if pools else (body, set())


def pooled_recipes(body: Body, recipes: Mapping[Input, Recipe]) -> dict[Input, Recipe]:
    """Recipes that know the poolings behind the convolutions that they are for."""
    pools = {step.reads[1]: step.op.pooling.window for step in body.steps if isinstance(step.op, PooledConvolution)}
    found = dict(recipes)
    for prepared, slot in zip(body.inputs, body.input_slots, strict=True):
        if slot in pools and isinstance(op := found[prepared].op, PrepareConvolution):
            found[prepared] = found[prepared]._replace(op=replace(op, pooling=pools[slot]))
    return found


def _pool_behind(readers: Readers, step: Step) -> Step | None:
    """The pooling that a convolution may take in."""
    if not isinstance(step.op, FusedConvolution) or len(step.reads) != 2:
        return None
    activation = step.op.how.activation
    if activation is not None and (activation.function not in _RECTIFIERS or activation.is_gate or activation.a < 0):
        return None
    pool = readers.only(readers.stored(step.writes[0]))
    if pool is None or not isinstance(pool.op, MaxPooling) or readers.is_read(pool.writes[1]):
        return None
    return pool if pool.op.edge_mode == MPSImageEdgeMode.CLAMP or not pool.op.window.leaves_source else None
