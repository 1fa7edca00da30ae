"""Convolutions of inference with the max pooling behind them, on a GPU; see `openmps.ops.rewrite.table`.

The slow equations are a `FusedConvolution` whose rectifier never falls and the max pooling that alone reads its result.
A pooling that reads zeros outside its source is none of these: those are not rectified.
"""

from __future__ import annotations

from dataclasses import replace

from openmps.ops.convolution.fused_convolution import (
    Activation,
    FusedConvolution,
    PooledConvolution,
    PrepareConvolution,
)
from openmps.ops.op import Equation
from openmps.ops.pooling.pooling import MaxPooling
from openmps.ops.rewrite.rule import Change, Site
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RECTIFIERS = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N


def pooled(site: Site, convolution: Equation, pool: Equation) -> Change | None:
    """The pooling in the convolution before it, whose weights are prepared for that."""
    flow, op, pooling = site.flow, convolution.op, pool.op
    assert isinstance(op, FusedConvolution)
    assert isinstance(pooling, MaxPooling)
    stored = flow.stored(convolution.writes[0])
    if len(convolution.reads) != 2 or flow.only_reader(stored) is not pool or flow.is_read(pool.writes[1]):
        return None
    if not _never_falls(op) or (pooling.edge_mode != MPSImageEdgeMode.CLAMP and pooling.window.leaves_source):
        return None
    made = Equation(PooledConvolution(op.how, pooling), convolution.reads, pool.writes[:1])
    gone = [convolution] if stored == convolution.writes[0] else [convolution, flow.makers[stored]]
    prepared = site.inputs[convolution.reads[1]]
    recipe = site.recipes[prepared]
    assert isinstance(recipe.op, PrepareConvolution)
    recipe = recipe._replace(op=replace(recipe.op, pooling=pooling.window))
    return Change({id(each): [] for each in gone} | {id(pool): [made]}, recipes={prepared: recipe})


def _never_falls(convolution: FusedConvolution) -> bool:
    """Whether there is no neuron, or one that is the larger, the larger the number."""
    neuron = convolution.how.activation
    if not isinstance(neuron, Activation):
        return neuron is None
    return neuron.function in _RECTIFIERS and not neuron.is_gate and neuron.a >= 0
