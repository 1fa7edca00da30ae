"""Convolutions of inference with the max pooling behind them, on a GPU; see `openmps.ops.rewrite.fuse`.

The slow equations are a `FusedConvolution` whose rectifier never falls and the max pooling that alone reads its result.
A pooling that reads zeros outside its source is none of these: those are not rectified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from openmps.ops.convolution.fused_convolution import FusedConvolution, PooledConvolution, PrepareConvolution
from openmps.ops.op import Equation, Function, Input
from openmps.ops.pooling.pooling import MaxPooling
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.recipe import Recipe
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RECTIFIERS = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N


def pooled_convolutions(function: Function) -> tuple[Function, set[int]]:
    """The function with poolings in the convolutions before them, and the values that are never filled any more."""
    flow, gone = DataFlow(function), set[int]()
    pools: dict[int, Equation] = {}
    for equation in function.equations:
        pool = _pool_behind(flow, equation)
        if pool is not None:
            pools[id(pool)] = equation
            gone |= {equation.writes[0], pool.reads[0], pool.writes[1]}
    equations: list[Equation] = []
    for equation in function.equations:
        if (made := pools.get(id(equation))) is not None:
            assert isinstance(made.op, FusedConvolution)
            assert isinstance(equation.op, MaxPooling)
            equations.append(Equation(PooledConvolution(made.op.how, equation.op), made.reads, equation.writes[:1]))
        elif gone.isdisjoint(equation.writes):
            equations.append(equation)
    return (function.with_equations(equations, function.value_count), gone) if pools else (function, set())


def pooled_recipes(function: Function, recipes: Mapping[Input, Recipe]) -> dict[Input, Recipe]:
    """Recipes that know the poolings behind the convolutions that they are for."""
    pools = {
        equation.reads[1]: equation.op.pooling.window
        for equation in function.equations
        if isinstance(equation.op, PooledConvolution)
    }
    found = dict(recipes)
    for prepared, value in zip(function.inputs, function.input_values, strict=True):
        if value in pools and isinstance(op := found[prepared].op, PrepareConvolution):
            found[prepared] = found[prepared]._replace(op=replace(op, pooling=pools[value]))
    return found


def _pool_behind(flow: DataFlow, equation: Equation) -> Equation | None:
    """The pooling that a convolution may take in."""
    if not isinstance(equation.op, FusedConvolution) or len(equation.reads) != 2:
        return None
    activation = equation.op.how.activation
    if activation is not None and (activation.function not in _RECTIFIERS or activation.is_gate or activation.a < 0):
        return None
    pool = flow.only_reader(flow.stored(equation.writes[0]))
    if pool is None or not isinstance(pool.op, MaxPooling) or flow.is_read(pool.writes[1]):
        return None
    return pool if pool.op.edge_mode == MPSImageEdgeMode.CLAMP or not pool.op.window.leaves_source else None
