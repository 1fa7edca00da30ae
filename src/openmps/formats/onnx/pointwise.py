"""Functions of each number by itself, soft-max, and operators that change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from openmps.checks import FLT_MAX
from openmps.formats.onnx import dropouts
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.site import Builder, Site
from openmps.formats.onnx.tensors import dtype_of
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode, MPSNNMultiplicationNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.softmax import MPSCNNLogSoftMaxNode, MPSCNNSoftMaxNode
from openmps.types import MPSCNNNeuronType, MTLSize

Kind = MPSCNNNeuronType
Parameters = Callable[[Node], tuple[float, ...]]


def _neuron(kind: MPSCNNNeuronType, parameters: Parameters = lambda node: ()) -> Builder:
    def build(at: Site, node: Node) -> Picture:
        return at.neuron(node, at.picture(node), kind, *parameters(node))

    return build


def _gelu(at: Site, node: Node) -> Picture:
    kind = node.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise NodeError(f"its attribute approximate is {kind[:40]!r}, must be none or tanh")
    return at.neuron(node, at.picture(node), Kind.GELU) if kind == "none" else _tanh_gelu(at, node)


def _tanh_gelu(at: Site, node: Node) -> Picture:
    """``x (1 + tanh(u)) / 2 = x sigmoid(2 u)`` for ``u = √(2/π) (x + 0.044715 x³)``."""
    x, twice = _unshared(at.picture(node)), 2.0 * math.sqrt(2.0 / math.pi)
    square = at.neuron(node, x, Kind.POWER, 1.0, 0.0, 2.0)
    inner = _times(at, node, x, at.neuron(node, square, Kind.LINEAR, 0.044715 * twice, twice))
    return _times(at, node, x, at.neuron(node, inner, Kind.SIGMOID))


def _selu(at: Site, node: Node) -> Picture:
    alpha, gamma = node.decimal("alpha", 1.6732632423543772), node.decimal("gamma", 1.0507009873554805)
    return at.neuron(node, at.neuron(node, at.picture(node), Kind.ELU, alpha), Kind.LINEAR, gamma)


def _times(at: Site, node: Node, x: Picture, gate: Picture) -> Picture:
    return at.made(MPSNNMultiplicationNode(x.image, gate.image), x.layout, node.title)


def _unshared(picture: Picture) -> Picture:
    """A picture that is read twice."""
    return Picture(picture.image, picture.layout)


def _hard_swish(at: Site, node: Node) -> Picture:
    x = _unshared(at.picture(node))
    return _times(at, node, x, at.neuron(node, x, Kind.HARD_SIGMOID, 1 / 6, 0.5))


def _swish(at: Site, node: Node) -> Picture:
    x, alpha = _unshared(at.picture(node)), node.decimal("alpha", 1)
    inner = x if alpha == 1 else at.neuron(node, x, Kind.LINEAR, alpha)
    return _times(at, node, x, at.neuron(node, inner, Kind.SIGMOID))


def _mish(at: Site, node: Node) -> Picture:
    x = _unshared(at.picture(node))
    return _times(at, node, x, at.neuron(node, at.neuron(node, x, Kind.SOFT_PLUS), Kind.TANH))


def _prelu(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    slopes = at.spread(x, at.constant(node, 1, "slopes"), "slope")
    if slopes.size == 1:
        return at.neuron(node, x, Kind.RELU, float(slopes.reshape(())))
    return at.neuron(node, x, Kind.PRELU, data=np.array(slopes, np.float32))


def _clip(at: Site, node: Node) -> Picture:
    """Limits as attributes in old versions, as inputs in new ones."""
    low, high = node.decimal("min", -math.inf), node.decimal("max", math.inf)
    if at.opset >= 11:
        low, high = at.number(node, 1, "minimum", -math.inf), at.number(node, 2, "maximum", math.inf)
    return limited(at, node, at.picture(node), low, high)


def limited(at: Site, node: Node, x: Picture, low: float, high: float) -> Picture:
    """``min(max(x, low), high)``."""
    if math.isnan(low) or math.isnan(high) or low > high:
        raise NodeError(f"its minimum, {low}, is above its maximum, {high}: limits stand in order")
    if low == 0:
        if high >= FLT_MAX:
            return at.neuron(node, x, Kind.RELU, 0.0)
        return at.neuron(node, x, Kind.RELU_N, 0.0, high)
    made = MPSNNAdditionNode(x.image, x.image)
    made.primary_scale = made.secondary_scale = 0.5  # a sum that is x itself
    made.minimum_value, made.maximum_value = max(low, -FLT_MAX), min(high, FLT_MAX)
    return at.made(made, x.layout, node.title)


def _same(at: Site, node: Node) -> Picture:
    return at.picture(node)


def _dropout(at: Site, node: Node) -> Picture:
    training = at.optional(node, 2, "training mode")
    if training is not None and bool(training.reshape(-1)[:1].any()):
        raise NodeError("it drops out: a graph for inference has no dropout", "Export the model in evaluation mode")
    if len(node.outputs) > 1 and node.outputs[1] and at.readers[node.outputs[1]]:
        raise NodeError("its second output is a mask")
    if not node.given(dropouts.KEPT):
        return at.picture(node)
    of_channels = bool(node.integer(dropouts.OF_CHANNELS, 0))
    x = at.planar(node) if of_channels else at.picture(node)
    stride = MTLSize(0, 0, 1) if of_channels else MTLSize(1, 1, 1)
    kept, seed = node.decimal(dropouts.KEPT, 1.0), node.integer(dropouts.SEED, 0)
    return at.made(MPSCNNDropoutNode(x.image, kept, seed, stride), x.layout, node.title)


def _cast(at: Site, node: Node) -> Picture:
    dtype = dtype_of(node.integer("to", 0))
    if dtype is None or dtype.kind != "f":
        raise NodeError("it makes other than real numbers of an image", "Let the model keep real numbers")
    return at.picture(node)


def _softmax(kind: type[MPSCNNSoftMaxNode] | type[MPSCNNLogSoftMaxNode]) -> Builder:
    def build(at: Site, node: Node) -> Picture:
        x = at.picture(node)
        layout, rank = x.layout, x.layout.rank
        axis = node.integer("axis", 1 if at.opset < 13 else -1)
        if not -rank <= axis < rank:
            raise NodeError(f"its axis {axis} is none of {rank}")
        # Old versions take all axes from this one on as one.
        chosen = layout.axes[axis % rank :] if at.opset < 13 else (layout.axes[axis],)
        taken = tuple(atom for each in chosen for atom in each)
        if set(taken) == set(layout.numbers) and taken:
            x = at.mover.placed(x, layout.numbers, (), ())
        elif set(taken) != set(layout.channels):
            raise NodeError("it is not over feature channels", "Let the model keep what it is over in axis 1")
        return at.made(kind(x.image), x.layout, node.title)

    return build


BUILDERS: dict[str, Builder] = {
    "Relu": _neuron(Kind.RELU, lambda node: (0.0,)),
    "LeakyRelu": _neuron(Kind.RELU, lambda node: (node.decimal("alpha", 0.01),)),
    "PRelu": _prelu,
    "Sigmoid": _neuron(Kind.SIGMOID),
    "HardSigmoid": _neuron(Kind.HARD_SIGMOID, lambda node: (node.decimal("alpha", 0.2), node.decimal("beta", 0.5))),
    "Tanh": _neuron(Kind.TANH, lambda node: (1.0, 1.0)),
    "Abs": _neuron(Kind.ABSOLUTE),
    "Softplus": _neuron(Kind.SOFT_PLUS, lambda node: (1.0, 1.0)),
    "Softsign": _neuron(Kind.SOFT_SIGN),
    "Elu": _neuron(Kind.ELU, lambda node: (node.decimal("alpha", 1.0),)),
    "Selu": _selu,
    "Exp": _neuron(Kind.EXPONENTIAL, lambda node: (1.0, 0.0, -1.0)),
    "Log": _neuron(Kind.LOGARITHM, lambda node: (1.0, 0.0, -1.0)),
    "Sqrt": _neuron(Kind.POWER, lambda node: (1.0, 0.0, 0.5)),
    "Reciprocal": _neuron(Kind.POWER, lambda node: (1.0, 0.0, -1.0)),
    "Neg": _neuron(Kind.LINEAR, lambda node: (-1.0, 0.0)),
    "Gelu": _gelu,
    "HardSwish": _hard_swish,
    "Swish": _swish,
    "Mish": _mish,
    "Clip": _clip,
    "Softmax": _softmax(MPSCNNSoftMaxNode),
    "LogSoftmax": _softmax(MPSCNNLogSoftMaxNode),
    "Identity": _same,
    "Dropout": _dropout,
    "Cast": _cast,
}
