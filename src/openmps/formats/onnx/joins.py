"""Operators that exporters write for one layer, joined again: biases added behind it, group normalization in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openmps.formats.onnx.model import Array, Attribute, Model, Node
from openmps.formats.onnx.uses import Uses, other

OF_CHANNELS = "of_channels"
"""The attribute of a group normalization with scales and shifts of each channel, whatever the version."""
SHAPE = "shape"
"""That of its result's shape, as far as the model says it."""


def with_layers(model: Model, wanted: Sequence[str], *, biases: bool) -> Model:
    """The model with each group normalization that is written by an instance normalization as one operator.

    With ``biases`` what is added behind a convolution, a product or a factor of each channel is an input of that
    operator, its third. Not where a value between is read elsewhere, or is one of those ``wanted``.
    """
    if any(node.operator == "InstanceNormalization" for node in model.nodes):
        model = _exchanged(model, Uses(model, wanted), "InstanceNormalization")
    return _exchanged(model, Uses(model, wanted), "Add") if biases else model


def _exchanged(model: Model, uses: Uses, operator: str) -> Model:
    """The model with what is found around each operator of a type: the last node of it becomes the whole."""
    find = _group_normalization if operator == "InstanceNormalization" else _with_biases
    made: dict[int, Node] = {}
    gone, varying = set[int](), uses.varying()
    for node in model.nodes:
        is_one = node.operator == operator and not node.domain and varying.intersection(node.inputs)
        found = find(uses, node) if is_one else None
        if found is not None and not gone.intersection(map(id, found[0])):
            gone.update(map(id, found[0]))
            made[id(found[0][-1])] = found[1]
    nodes = (made.get(id(node)) if id(node) in gone else node for node in model.nodes)
    return replace(model, nodes=tuple(node for node in nodes if node is not None))


_Found = tuple[Sequence[Node], Node]
"""What goes, the last at the end, and what comes in its place."""


# --- biases -----------------------------------------------------------------------------------------------------------


def _with_biases(uses: Uses, add: Node) -> _Found | None:
    """A layer without biases, and the row that is added behind it."""
    for name in add.inputs:
        layer = uses.makers.get(name)
        row = uses.constant(other(add, name))
        if layer is None or row is None or layer.domain or uses.reader(layer) is not add or len(add.inputs) != 2:
            continue
        if len(layer.inputs) == 2 and layer.inputs[1] != layer.inputs[0] and _fits(uses, layer, row):
            inputs = (*layer.inputs, other(add, name))
            return (layer, add), replace(layer, inputs=inputs, outputs=add.outputs, name=layer.title)
    return None


def _fits(uses: Uses, layer: Node, row: Array) -> bool:
    """Whether a constant is one number for each channel of a layer's result, with its axes."""
    if row.size < 2:
        return False
    if layer.operator in ("MatMul", "Gemm"):
        return row.shape[-1] == row.size and row.ndim <= 2 and layer.attributes.get("beta", 1) == 1
    if layer.operator in ("Conv", "ConvTranspose"):
        weights = uses.constant(layer.inputs[1])
        rank = 0 if weights is None else weights.ndim
        return rank > 2 and row.ndim in (rank - 1, rank) and row.shape[1 - rank] == row.size
    factors = [value for name in layer.inputs if (value := uses.constant(name)) is not None]
    return layer.operator == "Mul" and len(factors) == 1 and factors[0].shape == row.shape


# --- group normalization ----------------------------------------------------------------------------------------------


def _group_normalization(uses: Uses, middle: Node) -> _Found | None:
    """``Reshape(x, [0, groups, -1])``, an instance normalization by 1 and 0, the shape again, factors and shifts."""
    before = uses.maker(middle.inputs[0], "Reshape") if len(middle.inputs) == 3 else None
    behind = uses.reader(middle)
    if before is None or behind is None or behind.operator != "Reshape" or behind.inputs[0] != middle.outputs[0]:
        return None
    source, groups = before.inputs[0], _groups(uses, before)
    rows = [uses.constant(name) for name in middle.inputs[1:]]
    shape = _shape(uses, behind, source)
    if groups is None or shape is None or any(row is None for row in rows):
        return None
    if not all(np.all(row == value) for row, value in zip(rows, (1, 0), strict=True)):
        return None
    steps, inputs = [before, middle, behind], [source]
    for operator in ("Mul", "Add"):
        following = uses.reader(steps[-1])
        row = None if following is None else _row(uses, following, operator, steps[-1].outputs[0])
        if following is None or row is None:
            break
        steps.append(following)
        inputs.append(row)
    if len(inputs) == 2:  # a factor alone, which is an operator of its own
        steps, inputs = steps[:3], inputs[:1]
    attributes: dict[str, Attribute] = {"num_groups": groups, OF_CHANNELS: 1, SHAPE: shape}
    attributes |= {name: value for name, value in middle.attributes.items() if name == "epsilon"}
    made = Node(middle.title, "GroupNormalization", "", tuple(inputs), steps[-1].outputs, attributes)
    return steps, made


def _groups(uses: Uses, before: Node) -> int | None:
    shape = uses.constant(before.inputs[1]) if len(before.inputs) == 2 else None
    if shape is None or shape.shape != (3,) or shape.dtype.kind != "i" or shape[1] < 1:
        return None
    return int(shape[1])


def _shape(uses: Uses, behind: Node, source: str) -> list[int] | None:
    """The shape that the result gets: as the source's, which is -1 throughout, or numbers."""
    if len(behind.inputs) != 2:
        return None
    maker, shape = uses.makers.get(behind.inputs[1]), uses.constant(behind.inputs[1])
    if maker is not None and maker.operator == "Shape" and maker.inputs[0] == source:
        return [] if not maker.attributes.get("start", 0) and "end" not in maker.attributes else None
    is_row = shape is not None and shape.ndim == 1 and shape.dtype.kind == "i"
    return [int(length) for length in shape] if is_row and shape is not None else None


def _row(uses: Uses, node: Node, operator: str, name: str) -> str | None:
    """The constant of one number a channel that a node multiplies a value with, or adds to it."""
    if node.operator != operator or len(node.inputs) != 2:
        return None
    row = uses.constant(other(node, name))
    is_row = row is not None and row.ndim >= 3 and row.size == row.shape[-3] > 1
    return other(node, name) if is_row else None
