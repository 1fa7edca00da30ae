"""Arithmetic on two pictures, or on one and constants."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from openmps.checks import FLT_MAX
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.onnx.layout import Layout, unified
from openmps.formats.onnx.learning import Learns
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.pictures import OpenArithmetic, Picture, vector
from openmps.formats.onnx.pointwise import limited
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.site import Builder, Site
from openmps.graph.nodes.arithmetic import (
    MPSNNAdditionNode,
    MPSNNBinaryArithmeticNode,
    MPSNNDivisionNode,
    MPSNNMultiplicationNode,
    MPSNNSubtractionNode,
)
from openmps.graph.nodes.neuron import MPSCNNNeuronLinearNode, MPSCNNNeuronNode, MPSCNNNeuronReLUNNode
from openmps.types import MPSCNNNeuronType

_ONE, _NONE = np.ones((), np.float32), np.zeros((), np.float32)
_STRIDES = ("stride_in_feature_channels", "stride_in_pixels_y", "stride_in_pixels_x")


def both(at: Site, node: Node, kind: type[MPSNNBinaryArithmeticNode], x: Picture, y: Picture) -> Picture:
    """Two pictures, each broadcast along axes of length 1."""
    one, other = unified(x.layout, y.layout)
    x, y = Picture(x.image, one), Picture(y.image, other)
    if not all(a == b or not a or not b for a, b in zip(one.places, other.places, strict=True)):
        x, y = at.mover.planar(x), at.mover.planar(y)
        one, other = unified(x.layout, y.layout)
    made = kind(x.image, y.image)
    for stride, a, b in zip(_STRIDES, one.places, other.places, strict=True):
        if a != b:
            if a and b:
                raise NodeError("its inputs hold their axes in different places", "Let the model keep N, C, H, W here")
            setattr(made, f"{'secondary' if a else 'primary'}_{stride}", 0)
    axes = [a or b for a, b in zip(one.axes, other.axes, strict=True)]
    places = [a or b for a, b in zip(one.places, other.places, strict=True)]
    found = at.made(made, Layout(one.batch, tuple(axes), *places), node.title)
    return Picture(found.image, found.layout, None if at.trainable else OpenArithmetic(made))


def _gated(at: Site, node: Node, x: Picture, y: Picture) -> Picture:
    """A product; one with ``min(max(a x + b, 0), c)`` takes c times a hard sigmoid in its place, as of a hard swish."""
    for gate, other in ((y, x), (x, y)):
        limit = gate.image.producer
        if at.trainable or not isinstance(limit, MPSCNNNeuronReLUNNode):
            continue
        line, high = limit.sources[0].producer, limit.descriptor.b
        if not isinstance(line, MPSCNNNeuronLinearNode) or limit.descriptor.a != 0 or not high > 0:
            continue
        sigmoid = MPSNNNeuronDescriptor(MPSCNNNeuronType.HARD_SIGMOID, line.a / high, line.b / high)
        made = MPSCNNNeuronNode(line.sources[0], sigmoid)
        product = both(at, node, MPSNNMultiplicationNode, other, at.made(made, gate.layout, node.title))
        return at.affine(node, product, np.full((), high, np.float32), _NONE)
    return both(at, node, MPSNNMultiplicationNode, x, y)


def _operands(at: Site, node: Node) -> tuple[Picture | Array, Picture | Array]:
    found = at.value(node, 0), at.value(node, 1)
    if found[0] is None or found[1] is None:
        raise NodeError("an input is missing")
    return found[0], found[1]


def _binary(kind: type[MPSNNBinaryArithmeticNode], right: Any, left: Any) -> Builder:
    """``right`` and ``left`` make the operator with a constant on that side of a picture."""

    def build(at: Site, node: Node) -> Picture:
        first, second = _operands(at, node)
        if isinstance(first, Picture) and isinstance(second, Picture):
            return (_gated if kind is MPSNNMultiplicationNode else partial(both, kind=kind))(
                at, node, x=first, y=second
            )
        if isinstance(first, Picture):
            x = at.picture(node, 0)
            return right(at, node, x, _widened(at, x, second))
        x = at.picture(node, 1)
        return left(at, node, x, _widened(at, x, first))

    return build


def _widened(at: Site, x: Picture, value: Any) -> Array:
    return at.spread(x, value, "constant")


def _add(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    return at.affine(node, x, _ONE, value)


def _take_off(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    return at.affine(node, x, _ONE, -value)


def _taken_off(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    return at.affine(node, x, -_ONE, value)


def _multiply(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    """By a constant; one of a number a channel is trained. What is added behind it may be a third input."""
    place = 1 if isinstance(at.value(node, 0), Picture) else 0
    raw = at.constant(node, place, "constant")
    added = at.optional(node, 2, "biases")
    shift = _NONE if added is None else _widened(at, x, added)
    learns = None
    if value.size == raw.size > 1 and at.learning.trains(node.inputs[place]):
        order = partial(_of_channels, x.layout)
        learns = Learns(order, place, row=order)
    return at.affine(node, x, value, shift, learns)


def _of_channels(layout: Layout, array: Array) -> Array:
    """A constant of one number a channel in the order of the channels."""
    found = vector(array, layout)
    return array if found is None else found


def _divide(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    if not np.all(value):
        raise NodeError("it divides by a constant 0")
    inverse = 1 / value.astype(np.float64)
    if np.abs(inverse).max() > FLT_MAX:
        raise NodeError("it divides by a constant whose reciprocal is beyond float32", "Give it a larger constant")
    return at.affine(node, x, inverse, _NONE)


def _divided(at: Site, node: Node, x: Picture, value: Array) -> Picture:
    inverse = at.neuron(node, x, MPSCNNNeuronType.POWER, 1.0, 0.0, -1.0)
    return at.affine(node, inverse, value, _NONE)


def _sum(at: Site, node: Node) -> Picture:
    """Two inputs or more."""
    values = [at.value(node, place) for place in range(len(node.inputs))]
    places = [place for place, value in enumerate(values) if isinstance(value, Picture)]
    if not places or any(value is None for value in values):
        raise NodeError("an input is missing")
    found = at.picture(node, places[0])
    for place in places[1:]:
        found = both(at, node, MPSNNAdditionNode, found, at.picture(node, place))
    for value in values:
        if not isinstance(value, Picture):
            found = _add(at, node, found, _widened(at, found, value))
    return found


def _power(at: Site, node: Node) -> Picture:
    exponent = at.number(node, 1, "exponent", math.nan)
    if math.isnan(exponent):
        raise NodeError("its exponent is missing")
    x = at.picture(node)
    _check_axes(x, at.value(node, 1))
    if exponent == 2:  # as x x, which knows negative numbers on every device
        made = MPSNNMultiplicationNode(x.image, x.image)
        return at.made(made, x.layout, node.title)
    return at.neuron(node, x, MPSCNNNeuronType.POWER, 1.0, 0.0, exponent)


def _check_axes(x: Picture, number: Any) -> None:
    """A number of more axes than a picture has would give the result as many."""
    if number.ndim > x.layout.rank:
        raise NodeError(f"its constant has {number.ndim} axes, its other input {x.layout.rank}")


def _limit(*, is_minimum: bool) -> Builder:
    def build(at: Site, node: Node) -> Picture:
        if len(node.inputs) == 1:
            return at.picture(node)
        values = [at.value(node, place) for place in range(len(node.inputs))]
        constants = [value for value in values if value is not None and not isinstance(value, Picture)]
        if len(values) != 2 or len(constants) != 1 or constants[0].size != 1:
            rule = "it compares two images, or an image with more than one number"
            raise NodeError(rule, "Let the model limit by one number")
        place = next(place for place, value in enumerate(values) if isinstance(value, Picture))
        bound = float(constants[0].reshape(()))
        low, high = (-math.inf, bound) if is_minimum else (bound, math.inf)
        x = at.picture(node, place)
        _check_axes(x, constants[0])
        return limited(at, node, x, low, high)

    return build


BUILDERS: dict[str, Builder] = {
    "Add": _binary(MPSNNAdditionNode, _add, _add),
    "Sub": _binary(MPSNNSubtractionNode, _take_off, _taken_off),
    "Mul": _binary(MPSNNMultiplicationNode, _multiply, _multiply),
    "Div": _binary(MPSNNDivisionNode, _divide, _divided),
    "Sum": _sum,
    "Pow": _power,
    "Min": _limit(is_minimum=True),
    "Max": _limit(is_minimum=False),
}
