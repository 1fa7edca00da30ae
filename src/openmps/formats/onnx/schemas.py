"""Operators as a file writes them, held against ONNX's own descriptions before anything is read of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

_NAME = 80
WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize",
    ),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
    **dict.fromkeys(
        ((kind, "auto_pad") for kind in ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")),
        ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    ),
}  # fmt: skip
"""Words that an attribute may be, which ONNX's descriptions say in prose."""


class Schemas:
    """Checks the operators of one model in their order, and follows the types of its values."""

    def __init__(self, onnx: Any, opset: int, types: Mapping[str, int]) -> None:
        self._onnx, self._opset = onnx, opset
        names = onnx.TensorProto.DataType.Name
        known = {*onnx.TensorProto.DataType.values()} - {0}
        self._names = {kind: f"tensor({names(kind).lower()})" for kind in known}
        self._types = {name: self._names[kind] for name, kind in types.items() if kind in known}

    def fault(self, proto: Any) -> str:
        """What is wrong with an operator of ONNX's own; "" where nothing is, or where ONNX has none of its type."""
        try:
            schema = self._onnx.defs.get_schema(proto.op_type, self._opset, "")
        except self._onnx.defs.SchemaError:
            is_known = proto.op_type in self._operators
            return f"version {self._opset} of ONNX has no operator {proto.op_type[:_NAME]}" if is_known else ""
        found = _counts(schema, proto) or self._attributes(schema, proto) or self._inputs(schema, proto)
        return "" if found is None else found

    def kind(self, name: str) -> int | None:
        """The ONNX number type of a value, where it is known."""
        said = self._types.get(name)
        return next((kind for kind, each in self._names.items() if each == said), None)

    @cached_property
    def _operators(self) -> frozenset[str]:
        """The operators that some version of ONNX has."""
        return frozenset(each.name for each in self._onnx.defs.get_all_schemas_with_history() if not each.domain)

    # --- attributes ---------------------------------------------------------------------------------------------------

    def _attributes(self, schema: Any, proto: Any) -> str | None:
        kinds = self._onnx.AttributeProto.AttributeType
        seen: set[str] = set()
        for each in proto.attribute:
            name = str(each.name)
            if name not in schema.attributes:
                return f"{schema.name} has no attribute {name[:_NAME]!r}, but {', '.join(schema.attributes) or 'none'}"
            if name in seen:
                return f"its attribute {name} is there twice"
            seen.add(name)
            if each.ref_attr_name:
                return f"its attribute {name} is one of a function, {str(each.ref_attr_name)[:_NAME]!r}"
            wanted = int(schema.attributes[name].type.value)
            if each.type != wanted:
                return f"its attribute {name} must be {kinds.Name(wanted)}, and is {_kind(kinds, each.type)}"
            words = WORDS.get((schema.name, name))
            word = each.s.decode("utf-8", "backslashreplace")
            if words is not None and word not in words:
                return f"its attribute {name} is {word[:_NAME]!r}, must be {', '.join(filter(None, words))}"
        missing = [name for name, each in schema.attributes.items() if each.required and name not in seen]
        return f"its attribute {missing[0]} is missing" if missing else None

    # --- types --------------------------------------------------------------------------------------------------------

    def _inputs(self, schema: Any, proto: Any) -> str | None:
        """The types of inputs, as far as they are known; those of outputs follow."""
        allowed = {each.type_param_str: frozenset(each.allowed_type_strs) for each in schema.type_constraints}
        bound: dict[str, tuple[str, str]] = {}
        for place, name in enumerate(proto.input):
            kind = self._types.get(name)
            if kind is None:
                continue
            given = schema.inputs[min(place, len(schema.inputs) - 1)]
            choices = allowed.get(given.type_str, frozenset((given.type_str,)))
            if kind not in choices:
                return f"its input {place}, {str(name)[:_NAME]!r}, is {kind}, must be {_few(choices)}"
            first = bound.setdefault(given.type_str, (kind, str(name))) if given.is_homogeneous else (kind, "")
            if first[0] != kind:
                return f"its inputs {first[1][:_NAME]!r} and {str(name)[:_NAME]!r} are {first[0]} and {kind}, not alike"
        self._outputs(schema, proto, {name: kind for name, (kind, _) in bound.items()}, allowed)
        return None

    def _outputs(self, schema: Any, proto: Any, bound: Mapping[str, str], allowed: Mapping[str, Any]) -> None:
        own = self._made(proto)
        for place, name in enumerate(proto.output):
            said = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
            kind = own or bound.get(said) or (None if said in allowed else said)
            if kind is not None and name:
                self._types[str(name)] = kind

    def _made(self, proto: Any) -> str | None:
        """The type that attributes say an operator makes."""
        given = {str(each.name): each for each in proto.attribute}
        if proto.op_type == "Cast":
            return self._names.get(int(given["to"].i))
        if proto.op_type in ("Constant", "ConstantOfShape") and "value" in given:
            return self._names.get(int(given["value"].t.data_type))
        return "tensor(float)" if proto.op_type == "ConstantOfShape" else None


def _kind(kinds: Any, kind: int) -> str:
    return str(kinds.Name(kind)) if kind in kinds.values() else "of no kind"


def _few(choices: Any) -> str:
    """Types in words: real numbers first, and no more than four."""
    ordered = sorted(choices, key=lambda each: ("float" not in each, each))
    return " or ".join(ordered[:4]) + (", …" if len(ordered) > 4 else "")


def _counts(schema: Any, proto: Any) -> str | None:
    """What is wrong with the numbers of inputs and outputs, or with an input that is left out."""
    option = type(schema.inputs[0].option).Optional if schema.inputs else None
    for what, given, least, most in (
        ("inputs", proto.input, schema.min_input, schema.max_input),
        ("outputs", proto.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(given) <= most:
            wanted = f"{least}" if least == most else f"{least} or more" if most > 1 << 20 else f"{least} to {most}"
            return f"{schema.name} has {wanted} {what}, and {len(given)} are here"
    for place, name in enumerate(proto.input):
        said = schema.inputs[min(place, len(schema.inputs) - 1)]
        if not name and said.option != option:
            return f"its input {place}, {said.name}, is left out"
    return None
