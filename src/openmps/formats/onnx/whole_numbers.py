"""Whole numbers of a model: images compute in float32, which is not always what whole numbers do."""

from __future__ import annotations

import numpy as np

from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.reductions import reduced_axes
from openmps.formats.onnx.site import Site, Value
from openmps.formats.onnx.tensors import dtype_of

_PLACES = frozenset(("ArgMax", "ArgMin"))
_QUOTIENTS = frozenset(("Div", "ReduceMean"))
_COUNTING = frozenset(("Add", "Gemm", "MatMul", "Mul", "Neg", "Pow", "ReduceSum", "Sub", "Sum"))
"""Operators whose results may leave the range of their operands' type, where ONNX wraps them around."""
_NARROW = 2  # bytes of a type whose range is less than what float32 holds exactly
_CAST = "Cast to real numbers before it"


class WholeNumbers:
    """Which values of a model are whole numbers, and of what type."""

    def __init__(self, at: Site) -> None:
        self._at = at
        self.inner: set[str] = set()
        """The values that operators read."""
        self._types: dict[str, np.dtype[np.generic]] = {}

    def add(self, name: str, kind: int) -> None:
        """An input of an ONNX type of numbers."""
        dtype = dtype_of(kind)
        if dtype is not None and dtype.kind in "iu":
            self._types[name] = dtype

    def check(self, node: Node) -> None:
        """Follow the types through an operator; `NodeError` where float32 would give other numbers than ONNX."""
        if node.operator in _PLACES:
            self._types.update(dict.fromkeys(node.outputs, np.dtype(np.int64)))
            return
        dtype = next((self._types[name] for name in node.inputs if name in self._types), None)
        if dtype is None or node.operator == "Cast":
            return
        self._types.update(dict.fromkeys(node.outputs, dtype))
        is_read = any(name in self.inner for name in node.outputs)
        if is_read and node.operator in _QUOTIENTS:
            raise NodeError("it drops the fraction of whole numbers: images keep it", _CAST)
        if is_read and node.operator in _COUNTING and (dtype.kind == "u" or dtype.itemsize <= _NARROW):
            raise NodeError(f"it computes in {dtype}, which wraps around: images go on counting", _CAST)
        if why := self._rounds(node):
            raise NodeError(f"{why}: that may fall below the whole number that it is", _CAST)

    def _rounds(self, node: Node) -> str:
        """Why a result of whole numbers may be rounded; "" where it is exact."""
        values = [self._at.value(node, place) for place in range(len(node.inputs))]
        if node.operator == "Div" and not (isinstance(values[0], Picture) and _is_exact_divisor(values[1])):
            return "with a constant, images divide whole numbers by a rounded reciprocal"
        if node.operator == "Pow" and not (isinstance(values[1], np.ndarray) and np.all(values[1] == 2)):
            return "a power of whole numbers other than 2 is rounded"
        if node.operator in ("Resize", "Upsample") and node.text("mode", "nearest") != "nearest":
            return "it interpolates whole numbers"
        if node.operator == "ReduceMean" and isinstance(values[0], Picture) and self._has_two_steps(node, values[0]):
            return "a mean of whole numbers over channels and pixels is a mean of rounded means"
        return ""

    def _has_two_steps(self, node: Node, x: Picture) -> bool:
        layout = x.layout
        taken = {atom for axis in reduced_axes(self._at, node, layout.rank) for atom in layout.axes[axis]}
        return bool(taken & set(layout.channels)) and bool(taken & {*layout.rows, *layout.columns})


def _is_exact_divisor(value: Value | None) -> bool:
    """Whether a divisor is an image, or numbers with exact reciprocals: powers of 2."""
    if not isinstance(value, np.ndarray):
        return True
    fractions, _ = np.frexp(value.astype(np.float64))
    return bool(np.all(np.abs(fractions) == 0.5))
