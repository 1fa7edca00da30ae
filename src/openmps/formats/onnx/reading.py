"""From the bytes of an ONNX file to a `Model`. The onnx package parses; nothing in the file is ever run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from openmps.errors import MPSFileError
from openmps.formats.extras import missing_package
from openmps.formats.onnx.model import Array, Attribute, Model, Node, Tensor, Unread, contradiction, length_name
from openmps.formats.onnx.problems import READER, NodeError
from openmps.formats.onnx.schemas import Schemas
from openmps.formats.onnx.tensors import array_of, external_file, is_external, take_in
from openmps.formats.paths import path_of, reading, require_file

LARGEST_FILE = (1 << 31) - 1
"""Bytes of a file: the encoding goes no further."""
_FIRST_FIELDS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
"""Fields that a model can begin with."""
_LENGTHS, _NUMBERS = 2, 0
_OWN_DOMAINS = ("", "ai.onnx")
_OLDEST, _NEWEST = 7, 28
"""Versions of ONNX's operators that are read."""
_NAME = 200  # characters of a name in an error


def require_onnx(who: str = READER) -> Any:
    """The onnx package, which parses the files.

    Raises:
        MPSError: It is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise missing_package(who, "the onnx package", "ONNX", "onnx") from error
    return onnx


def read_model(path: str | os.PathLike[str]) -> Model:
    """The model in a file.

    Raises:
        MPSFileError: There is no file, it is no ONNX model or a damaged one, or external data is missing.
        MPSError: The onnx package is not installed.
    """
    where = path_of(path, READER)
    data = _bytes(where)
    return parsed(data, where.absolute().parent, os.fspath(path))


def whole_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file with its external data taken in: of a file without any its own.

    Raises:
        MPSFileError: There is no file, it is no ONNX model or a damaged one, external data is missing, or both are
            more than one file can hold.
        MPSError: The onnx package is not installed.
    """
    where = path_of(path, READER)
    data = _bytes(where)
    proto = _proto(data, os.fspath(path))
    tensors, size = _external_tensors(proto), len(data)
    for tensor in tensors:
        try:
            size += take_in(tensor, where.absolute().parent)
        except NodeError as problem:
            raise MPSFileError(READER, os.fspath(path), "must have external data that is read", problem.why) from None
        if size > LARGEST_FILE:
            rule = f"must be no longer than {LARGEST_FILE:,} bytes with its external data, to be one file"
            raise MPSFileError(READER, os.fspath(path), rule, f"{size:,} or more")
    return proto.SerializeToString(deterministic=True) if tensors else data


def external_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files of a model's external data, each once; errors are those of `whole_bytes`."""
    where = path_of(path, READER)
    tensors = _external_tensors(_proto(_bytes(where), os.fspath(path)))
    return list(dict.fromkeys(external_file(tensor, where.absolute().parent) for tensor in tensors))


def _external_tensors(proto: Any) -> list[Any]:
    """The tensors of a model whose numbers lie in other files."""
    own = [each.t for node in proto.graph.node for each in node.attribute if each.HasField("t")]
    return [tensor for tensor in (*proto.graph.initializer, *own) if is_external(tensor)]


def parsed(data: bytes, folder: Path | None, what: str) -> Model:
    """The model in some bytes, whose external data lies beneath ``folder``; errors call the file ``what``."""
    return _Reader(require_onnx(), _proto(data, what), folder, what).model(len(data))


def _proto(data: bytes, what: str) -> Any:
    """The parser's object of some bytes, which has a graph with outputs."""
    onnx = require_onnx()
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as error:  # of the protobuf package, which may be another one at each release
        raise _not_onnx(what, f"it cannot be parsed ({type(error).__name__})") from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise _not_onnx(what, "it holds no graph with outputs")
    return proto


def _bytes(path: Path) -> bytes:
    """The bytes of a file that begins as a model does; a large file of another kind is never read as a whole."""
    length = require_file(path, READER)
    if length > LARGEST_FILE:
        rule = f"must be no longer than {LARGEST_FILE:,} bytes: larger models keep their numbers in external data"
        remedy = "Save it with onnx.save(model, path, save_as_external_data=True)"
        raise MPSFileError(READER, os.fspath(path), rule, f"{length:,}", remedy)
    with reading(path, READER), path.open("rb") as file:
        start = file.read(1)
        if not start or start[0] >> 3 not in _FIRST_FIELDS or start[0] & 7 not in (_LENGTHS, _NUMBERS):
            raise _not_onnx(os.fspath(path), "it does not begin as one")
        file.seek(0)
        return file.read(length)


def _not_onnx(what: str, why: str) -> MPSFileError:
    return MPSFileError(READER, what, f"is no ONNX model, or a damaged one: {why}")


class _Reader:
    """One model on its way from the parser's objects."""

    def __init__(self, onnx: Any, proto: Any, folder: Path | None, what: str) -> None:
        self._kinds = {value: name for name, value in onnx.AttributeProto.AttributeType.items()}
        self._onnx, self._proto, self._folder, self._what = onnx, proto, folder, what
        self._external = 0

    def model(self, length: int) -> Model:
        """The model, whose file has ``length`` bytes."""
        graph = self._proto.graph
        self._check_functions()
        constants, unread = self._constants(graph)
        named = {*constants, *unread}
        inputs = tuple(_tensor(each) for each in graph.input if each.name not in named)
        outputs = tuple(_tensor(each) for each in graph.output)
        opset = self._opset()
        types = {each.name: each.kind for each in inputs} | {each.name: each.data_type for each in graph.initializer}
        schemas = Schemas(self._onnx, opset, types)
        nodes = tuple(self._node(each, schemas) for each in graph.node)
        wrong = contradiction(inputs, outputs, nodes, named)
        if wrong:
            raise self._damaged(wrong)
        return Model(inputs, outputs, constants, nodes, opset, length + self._external, unread)

    def _check_functions(self) -> None:
        """Raise where a function of the model stands in the place of an operator of ONNX."""
        own = next((each.name for each in self._proto.functions if each.domain in _OWN_DOMAINS), None)
        if own is not None:
            rule, remedy = "must leave ONNX's operators as they are", "Inline it with onnx.inliner"
            raise MPSFileError(READER, self._what, rule, f"a function called {str(own)[:_NAME]!r}", remedy)

    def _opset(self) -> int:
        versions = [each.version for each in self._proto.opset_import if each.domain in _OWN_DOMAINS]
        if len(versions) != 1 or not _OLDEST <= versions[0] <= _NEWEST:
            rule = f"must use one version of ONNX's operators, from {_OLDEST} to {_NEWEST}"
            remedy = "Convert it with onnx.version_converter"
            raise MPSFileError(READER, self._what, rule, versions[:4], remedy)
        return int(versions[0])

    def _constants(self, graph: Any) -> tuple[dict[str, Array], dict[str, str]]:
        constants: dict[str, Array] = {}
        unread: dict[str, str] = {str(each.values.name): "it is a sparse tensor" for each in graph.sparse_initializer}
        for tensor in graph.initializer:
            if tensor.name in constants or tensor.name in unread:
                raise self._damaged(f"two constants are called {str(tensor.name)[:_NAME]!r}")
            try:
                constants[str(tensor.name)] = self._array(tensor)
            except NodeError as problem:
                unread[str(tensor.name)] = problem.why
        return constants, unread

    def _array(self, tensor: Any) -> Array:
        found = array_of(tensor, self._folder)
        self._external += found.nbytes if is_external(tensor) else 0
        return found

    def _node(self, proto: Any, schemas: Schemas) -> Node:
        domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
        fault = schemas.fault(proto) if not domain else ""
        attributes = {str(each.name): self._attribute(each) for each in proto.attribute}
        inputs, outputs = tuple(map(str, proto.input)), tuple(map(str, proto.output))
        operator = str(proto.op_type)
        kind = schemas.kind(inputs[1]) if operator == "CastLike" and not domain and not fault else None
        if kind is not None:
            operator, inputs, attributes = "Cast", inputs[:1], {"to": kind}
        return Node(str(proto.name), operator, domain, inputs, outputs, attributes, fault)

    def _attribute(self, proto: Any) -> Attribute:
        kind = self._kinds.get(proto.type, "")
        if kind == "INT":
            return int(proto.i)
        if kind == "FLOAT":
            return float(proto.f)
        if kind == "STRING":
            return _text(proto.s)
        if kind == "INTS":
            return [int(each) for each in proto.ints]
        if kind == "FLOATS":
            return [float(each) for each in proto.floats]
        if kind == "STRINGS":
            return [_text(each) for each in proto.strings]
        if kind == "TENSOR":
            try:
                return self._array(proto.t)
            except NodeError as problem:
                return Unread(problem.why)
        return Unread(kind or "of no kind")

    def _damaged(self, why: str) -> MPSFileError:
        return MPSFileError(READER, self._what, f"is a damaged ONNX model: {why}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _tensor(proto: Any) -> Tensor:
    """The name, number type and lengths of a ``ValueInfoProto``."""
    kind = proto.type.tensor_type
    if not proto.type.HasField("tensor_type"):
        return Tensor(str(proto.name), 0, None)
    if not kind.HasField("shape"):
        return Tensor(str(proto.name), int(kind.elem_type), None)
    return Tensor(str(proto.name), int(kind.elem_type), tuple(_length(each) for each in kind.shape.dim))


def _length(proto: Any) -> int | str | None:
    if proto.HasField("dim_value"):
        return int(proto.dim_value) if proto.dim_value > 0 else None
    return length_name(str(proto.dim_param))
