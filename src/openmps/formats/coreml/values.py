"""Values that an ML program holds: numbers, words and lists, and weights that are packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openmps.errors import MPSFileError
from openmps.formats.coreml.blobs import KINDS, Array, Blobs, numbers_of, unpacked
from openmps.formats.coreml.packages import READER
from openmps.formats.coreml.protos import Protos
from openmps.formats.onnx.problems import NodeError

_LARGEST_TENSOR = 2 << 30
_MOST_AXES = 16
_UNPACKED = 32
"""Bytes that may be made of each byte of packed weights: a table's float32 for each bit."""
Lengths = tuple[int | None, ...]


def shape_of(tensor: Any) -> Lengths:
    """The lengths of a ``TensorType``; None for those that vary."""
    return tuple(
        int(each.constant.size) if each.WhichOneof("dimension") == "constant" else None for each in tensor.dimensions
    )


class Values:
    """Reads values; what packed weights become is bounded by the bytes that they are packed in."""

    def __init__(self, protos: Protos, blobs: Blobs, size: int) -> None:
        self._names = {number: name for name, number in protos.program.DataType.items()}
        self.blobs, self._size, self._made = blobs, size, 0

    def kind(self, tensor: Any) -> str:
        """The name of the type of a tensor's numbers."""
        return self._names.get(tensor.dataType, "")

    def value(self, value: Any, what: str) -> Any:
        """Numbers as an array; a word as text; several words, or a list, as a list.

        Raises:
            NodeError: Numbers of a type that is not read.
            MPSFileError: There are other numbers than the type says.
        """
        if value.type.WhichOneof("type") == "listType":
            return [self.value(each, what) for each in value.immediateValue.list.values]
        tensor = value.type.tensorType
        kind = self.kind(tensor)
        if kind == "STRING":
            words = [str(word) for word in value.immediateValue.tensor.strings.values]
            return words if tensor.dimensions else "".join(words[:1])
        if kind not in KINDS:
            raise NodeError(f"its constant {what[:80]!r} holds numbers of type {kind or tensor.dataType}")
        shape = _known(shape_of(tensor), what)
        if math.prod(shape) * KINDS[kind][1] > 8 * _LARGEST_TENSOR:
            raise MPSFileError(READER, what, f"must be no larger than {_LARGEST_TENSOR:,} bytes", f"shape {shape}")
        if value.WhichOneof("value") == "blobFileValue":
            place = value.blobFileValue
            self._take(math.prod(shape) if KINDS[kind][1] < 8 else 0)
            return self.blobs.array(str(place.fileName), int(place.offset), kind, shape)
        return _immediate(value.immediateValue.tensor, kind, shape, what)

    def _take(self, made: int) -> None:
        """Raise `NodeError` where packed weights become more than they can honestly be."""
        self._made += made
        if self._made > _UNPACKED * (self._size + self.blobs.size):
            raise NodeError(f"it and those before it make {self._made:,} bytes of weights that are packed in fewer")

    # --- packed weights -----------------------------------------------------------------------------------------------

    def unpack(self, operation: str, given: Mapping[str, Any]) -> Array:
        """The numbers of an operation on constants, which Core ML does when a model is loaded."""
        found = UNPACK[operation](given)
        self._take(found.nbytes)
        return found


def _known(shape: Lengths, what: str) -> tuple[int, ...]:
    known = tuple(length for length in shape if length is not None)
    if len(known) < len(shape) or len(shape) > _MOST_AXES or any(length < 0 for length in known):
        raise MPSFileError(READER, what, f"must be a constant with up to {_MOST_AXES} axes of known lengths", shape)
    return known


_FIELDS = {"floats": np.float32, "ints": np.int32, "bools": np.bool_, "longInts": np.int64, "doubles": np.float64}


def _immediate(tensor: Any, kind: str, shape: tuple[int, ...], what: str) -> Array:
    """Numbers that stand in the message."""
    field = tensor.WhichOneof("value")
    if field == "bytes":
        return numbers_of(tensor.bytes.values, kind, shape, what)
    if field not in _FIELDS:
        raise MPSFileError(READER, what, f"must hold numbers of {kind}", field or "none")
    numbers = np.array(getattr(tensor, field).values, _FIELDS[field])
    if numbers.size != math.prod(shape):
        raise MPSFileError(READER, what, f"must hold {math.prod(shape):,} numbers, for {shape}", f"{numbers.size:,}")
    return numbers.astype(KINDS[kind][0]).reshape(shape)


def _whole(given: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The shape of what is made."""
    found = tuple(int(each) for each in given[name].reshape(-1))
    if len(found) > _MOST_AXES or math.prod(found) > _LARGEST_TENSOR:
        raise NodeError(f"its shape {found[:8]} is none that a tensor has")
    return found


def _table(given: Mapping[str, Any]) -> Array:
    """A palette: indices into a table, packed; or, with tables of blocks, as numbers of few bits."""
    indices, table = given["indices"], given["lut"]
    if "shape" not in given:
        return _tables(indices, table, given.get("vector_axis"))
    shape, bits = _whole(given, "shape"), max(1, int(table.size - 1).bit_length())
    count = math.prod(shape)
    if indices.size * 8 < count * bits or table.size != 1 << bits:
        raise NodeError(f"its {indices.size:,} bytes are no {count:,} indices into a table of {table.size:,}")
    return table.reshape(-1)[unpacked(indices.reshape(-1), bits, count)].reshape(shape)


def _tables(indices: Array, tables: Array, axis: Any) -> Array:
    """A table for each block of the indices, of numbers or of rows of them along an axis."""
    *blocks, entries, row = tables.shape
    if len(blocks) != indices.ndim or any(n % b for n, b in zip(indices.shape, blocks, strict=True)):
        raise NodeError(f"its tables {tables.shape} do not fit indices {indices.shape}")
    if int(indices.max(initial=0)) >= entries:
        raise NodeError("an index is none of its table")
    which = np.arange(math.prod(blocks)).reshape(blocks)
    for place, (length, count) in enumerate(zip(indices.shape, blocks, strict=True)):
        which = np.repeat(which, length // count, place)
    found = tables.reshape(-1, entries, row)[which, indices]
    if row == 1:
        return found[..., 0]
    place = int(axis) % indices.ndim
    return np.moveaxis(found, -1, place + 1).reshape(
        [length * row if each == place else length for each, length in enumerate(indices.shape)]
    )


def _affine(given: Mapping[str, Any]) -> Array:
    """``scale (numbers - zero point)``, one of each or one for each place along an axis."""
    data, scale, axis = given["quantized_data"], given["scale"], int(given["axis"])
    shape = [-1 if place == axis % data.ndim else 1 for place in range(data.ndim)]
    zero = given.get("zero_point", np.zeros((), np.int8))
    rows = [each.reshape(shape) if each.size > 1 else each.reshape(()) for each in (zero, scale)]
    return ((data.astype(np.float32) - rows[0].astype(np.float32)) * rows[1].astype(np.float32)).reshape(data.shape)


def _blockwise(given: Mapping[str, Any]) -> Array:
    """``scale (numbers - offset)``, one of each for each block."""
    data, scale = given["data"], given["scale"]
    offset = given.get("offset", np.zeros(scale.shape, np.int8))
    if scale.ndim != data.ndim or offset.shape != scale.shape:
        raise NodeError(f"its scales {scale.shape} and offsets {offset.shape} do not fit numbers {data.shape}")
    rows = [offset.astype(np.float32), scale.astype(np.float32)]
    for place, (length, count) in enumerate(zip(data.shape, scale.shape, strict=True)):
        if not count or length % count:
            raise NodeError(f"its scales {scale.shape} do not divide numbers {data.shape}")
        rows = [np.repeat(each, length // count, place) for each in rows]
    return (data.astype(np.float32) - rows[0]) * rows[1]


def _sparse(given: Mapping[str, Any]) -> Array:
    """Zeros, but where a bit is set."""
    numbers, mask, shape = given["nonzero_data"], given["mask"], _whole(given, "shape")
    places = np.flatnonzero(np.unpackbits(mask.reshape(-1), bitorder="little")[: math.prod(shape)])
    if mask.size * 8 < math.prod(shape) or places.size != numbers.size:
        raise NodeError(f"its mask has {places.size:,} places for {numbers.size:,} numbers")
    found = np.zeros(math.prod(shape), numbers.dtype)
    found[places] = numbers.reshape(-1)
    return found.reshape(shape)


UNPACK: Mapping[str, Callable[[Mapping[str, Any]], Array]] = {
    "constexpr_lut_to_dense": _table,
    "constexpr_affine_dequantize": _affine,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_sparse_to_dense": _sparse,
    "constexpr_cast": lambda given: given["source_val"].astype(np.float32),
}
"""How weights are unpacked, by the operation that says how they are packed."""
