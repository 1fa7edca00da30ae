"""Fusions of trained convolutions with the max poolings behind them, in both directions.

`with_end`: a convolution that a `LayerEnd` without ReLU and dropout alone reads becomes one equation with it.

`with_end_gradient`: so do their gradients, where the convolution's alone reads that of the end, and gives that of the
weights alone, as in a network's first layer.

Images that come out, and images that others read, stand in their way.
"""

from __future__ import annotations

from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient
from openmps.ops.convolution.convolution_end import ConvolutionEnd, ConvolutionEndGradient
from openmps.ops.op import Equation
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient
from openmps.ops.rewrite.rule import Change, Site


def with_end(site: Site, convolution: Equation, end: Equation) -> Change | None:
    """The convolution with its end."""
    made, (x, weights, biases) = convolution.writes[0], convolution.reads
    stored = site.flow.stored(made)
    if biases != -1 or site.flow.only_reader(stored) is not end or end.reads[0] != stored:
        return None
    assert isinstance(convolution.op, Convolution)
    assert isinstance(end.op, LayerEnd)
    if end.op.window is None:
        return None
    op = ConvolutionEnd(convolution.op, end.op, stored != made)
    return Change({id(convolution): [], id(end): [Equation(op, (x, weights, end.reads[1]), end.writes)]})


def with_end_gradient(site: Site, end: Equation, convolution: Equation) -> Change | None:
    """The gradient of the convolution with that of its end."""
    flow, (made, sums) = site.flow, end.writes
    stored = flow.stored(made)
    if any(map(flow.is_read, (convolution.writes[0], convolution.writes[2]))):
        return None
    is_inner = flow.is_inner(stored, (convolution,)) and (stored == made or made not in flow.outputs)
    if not is_inner or flow.origin(convolution.reads[0]) != stored:
        return None
    assert isinstance(convolution.op, ConvolutionGradient)
    assert isinstance(end.op, LayerEndGradient)
    if end.op.window is None:
        return None
    op = ConvolutionEndGradient(end.op, convolution.op, stored != made)
    reads = (*end.reads, flow.origin(convolution.reads[1]), convolution.reads[2])
    equation = Equation(op, reads, (*convolution.writes, sums))
    return Change({id(end): [], id(convolution): [equation]})
