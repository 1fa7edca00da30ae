"""Operations that converters write in the place of one that the framework has: hard swishes behind a threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openmps.formats.onnx.model import Model, Node

_NEAR = 1e-3
"""How far numbers of float16 may be off."""


def without_thresholds(model: Model) -> Model:
    """The model with each ``w max(0, min(1, a w + b))`` of ``w``, x where it is above -b / a and else 0, as that of x.

    Below -b / a both are 0. Not where anything else reads w.
    """
    readers: dict[str, list[Node]] = {}
    for node in model.nodes:
        for name in set(node.inputs):
            readers.setdefault(name, []).append(node)
    outputs = {tensor.name for tensor in model.outputs}
    gone = {
        node.outputs[0]: node.inputs[0]
        for node in model.nodes
        if node.operator == "ThresholdedRelu"
        and node.outputs[0] not in outputs
        and _is_hard_swish(node, readers.get(node.outputs[0], []))
    }
    kept = (node for node in model.nodes if not (node.outputs and node.outputs[0] in gone))
    nodes = (replace(node, inputs=tuple(gone.get(name, name) for name in node.inputs)) for node in kept)
    return replace(model, nodes=tuple(nodes)) if gone else model


def _is_hard_swish(node: Node, readers: list[Node]) -> bool:
    """Whether a value is read by a hard sigmoid that is 0 below its threshold, and by the product with it."""
    gates = [each for each in readers if each.operator == "HardSigmoid"]
    products = [each for each in readers if each.operator == "Mul"]
    if len(gates) != 1 or len(products) != 1 or len(readers) != 2:
        return False
    slope, shift, threshold = gates[0].decimal("alpha", 0.2), gates[0].decimal("beta", 0.5), node.decimal("alpha", 1.0)
    reads_both = sorted(products[0].inputs) == sorted([node.outputs[0], gates[0].outputs[0]])
    return reads_both and threshold < 0 and bool(np.isclose(threshold * slope + shift, 0.0, atol=_NEAR))
