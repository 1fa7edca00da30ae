"""Products with constant matrices over sequences, beside recurrent layers: MatMul and Gemm of ONNX, Linear of PyTorch.

A vector is a row of a matrix here, whatever a row stands for: the steps of a sequence one behind the other, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openmps.core.vector import MPSMatrix, MPSVector
from openmps.formats.onnx.model import Array, Model, Node
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.recurrent import Row
from openmps.metal.device import MTLDevice

PRODUCTS = ("MatMul", "Gemm")
MOVERS = frozenset({
    "Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape",
    "Slice", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that move numbers, or make shapes: what lies where between layers is the caller's to see to."""
_CONSTANT = "Export the model with its weights as initializers"


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """One fully connected layer of a model: ``Y = X W + b``, a vector a row of X.

    `MPSMatrixFullyConnected` computes it, of the operands that the layer makes.
    """

    name: str
    """Of the node, or of the module."""
    weights: Row
    """W, ``[inputs, outputs]``, float32."""
    biases: Row | None
    """b, ``[outputs]``, or None."""

    def operands(self, device: MTLDevice) -> tuple[MPSMatrix, MPSVector | None]:
        """W and b on a device, for `MPSMatrixFullyConnected`."""
        biases = None if self.biases is None else MPSVector.from_numpy(device, self.biases, copy=True)
        return MPSMatrix.from_numpy(device, self.weights, copy=True), biases


def constants_of(model: Model) -> dict[str, Array]:
    """Constants of a file, those of its Constant operators, and transposed ones."""
    found = dict(model.constants)
    for node in model.nodes:
        if node.operator == "Constant" and isinstance(node.attributes.get("value"), np.ndarray):
            found[node.outputs[0]] = node.tensor("value")
        elif node.operator == "Transpose" and (array := found.get("".join(node.inputs[:1]))) is not None:
            axes = node.integers("perm", [*reversed(range(array.ndim))])
            if sorted(axes) == [*range(array.ndim)]:
                found[node.outputs[0]] = array.transpose(axes)
    return found


def readers_of(model: Model) -> dict[str, list[Node]]:
    """The nodes that read each value."""
    found: dict[str, list[Node]] = {}
    for node in model.nodes:
        for name in node.inputs:
            found.setdefault(name, []).append(node)
    return found


def dense_layer(
    node: Node, constants: Mapping[str, Array], readers: Mapping[str, Sequence[Node]]
) -> tuple[DenseLayer, Node | None]:
    """The layer of a MatMul or a Gemm, and the Add of a constant behind it that is its bias."""
    if node.fault:
        raise NodeError(node.fault)
    left, right, *more = (*node.inputs, "", "")
    if left in constants or right not in constants:
        raise NodeError("it does not multiply a value by a constant matrix on its right", _CONSTANT)
    weights = _floats("matrix", constants[right])
    if weights.ndim != 2 or not weights.size:
        raise NodeError(f"its matrix has shape {weights.shape}, and not two axes")
    if more[0] and more[0] not in constants:
        raise NodeError("its C is no constant", _CONSTANT)
    if node.operator == "MatMul" and more[0]:  # of Core ML's
        return DenseLayer(node.title, weights, _biases(constants[more[0]], weights.shape[1], 1.0)), None
    if node.operator == "MatMul":
        result = "".join(node.outputs[:1])
        behind = readers.get(result, ())
        added = [each for each in behind[0].inputs if each != result] if len(behind) == 1 else []
        if len(added) != 1 or behind[0].operator != "Add" or added[0] not in constants:
            return DenseLayer(node.title, weights, None), None
        return DenseLayer(node.title, weights, _biases(constants[added[0]], weights.shape[1], 1.0)), behind[0]
    if node.integer("transA", 0):
        raise NodeError("it transposes its first factor, by transA", "Transpose the value before it")
    weights = np.float32(node.decimal("alpha", 1.0)) * (weights.T if node.integer("transB", 0) else weights)
    biases = _biases(constants[more[0]], weights.shape[1], node.decimal("beta", 1.0)) if more[0] else None
    return DenseLayer(node.title, np.ascontiguousarray(weights), biases), None


def _biases(array: Array, outputs: int, factor: float) -> Row:
    """A number an output, of an array that may be one number, or have axes of length 1 in front."""
    numbers = _floats("bias", array)
    if numbers.size != 1 and (numbers.size, *numbers.shape[-1:]) != (outputs, outputs):
        raise NodeError(f"its bias has shape {array.shape}, and not a number an output, {outputs}")
    return np.ascontiguousarray(np.float32(factor) * np.broadcast_to(numbers.reshape(-1), (outputs,)))


def _floats(what: str, array: Array) -> Row:
    if array.dtype.name not in ("float32", "float16"):
        raise NodeError(f"its {what} is of {array.dtype}, which float32 does not hold")
    return np.ascontiguousarray(array, np.float32)
