"""A reader of exported Swift that makes the graph again, of openmps' own nodes: whatever the source says is tried.

It parses with tree-sitter-swift and follows the statements of the model's initializer. Swift's names become Python's by
the rule of the page of names; cases of enumerations come from the tables below, which are those of the framework's
headers as Swift imports them, so that a wrong name has no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import openmps as mps

tree_sitter = pytest.importorskip("tree_sitter", reason="Swift is parsed with it")
tree_sitter_swift = pytest.importorskip("tree_sitter_swift", reason="Swift is parsed with it")
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))

CASES: Mapping[type, str] = {
    mps.MPSCNNNeuronType: (
        "none reLU linear sigmoid hardSigmoid tanH absolute softPlus softSign ELU pReLU reLUN power exponential "
        "logarithm geLU count"
    ),
    mps.MPSCNNLossType: (
        "meanAbsoluteError meanSquaredError softMaxCrossEntropy sigmoidCrossEntropy categoricalCrossEntropy hinge "
        "huber cosineDistance log kullbackLeiblerDivergence count"
    ),
    mps.MPSCNNReductionType: "none sum mean sumByNonZeroWeights count",
    mps.MPSImageFeatureChannelFormat: "none unorm8 unorm16 float16 float32",
    mps.MPSImageEdgeMode: "zero clamp mirror mirrorWithEdge constant",
    mps.MPSNNComparisonType: "equal notEqual less lessOrEqual greater greaterOrEqual",
    mps.MPSCNNBinaryConvolutionType: "binaryWeights XNOR AND",
    mps.MPSCNNBinaryConvolutionFlags: "none useBetaScaling",
}
"""Cases in the order of their values, from 0."""
OPTIONS: Mapping[type, Mapping[str, int]] = {
    mps.MPSNNPaddingMethod: {
        "alignTopLeft": 1, "alignBottomRight": 2, "addRemainderToTopRight": 4, "addRemainderToBottomLeft": 8,
        "addRemainderToBottomRight": 12, "sizeSame": 16, "sizeFull": 32, "custom": 1 << 14, "excludeEdges": 1 << 15,
    },
    mps.MPSNNTrainingStyle: {"updateDeviceCPU": 1, "updateDeviceGPU": 2},
    mps.MPSNNConvolutionAccumulatorPrecisionOption: {"float": 1},
    mps.MPSCNNBatchNormalizationFlags: {"calculateStatisticsAlways": 1, "calculateStatisticsNever": 2},
}  # fmt: skip
DATA_TYPES = {"float32": 0x10000000 | 32, "float16": 0x10000000 | 16, "uInt32": 32, "uInt8": 8}
TYPES: Mapping[tuple[str, str], type] = {
    ("cnnNeuronDescriptor", "with"): mps.MPSCNNNeuronType,
    ("MPSCNNLossDescriptor", "type"): mps.MPSCNNLossType,
    ("", "reductionType"): mps.MPSCNNReductionType,
    ("", "withXYLossType"): mps.MPSCNNLossType,
    ("", "whLossType"): mps.MPSCNNLossType,
    ("", "confidenceLossType"): mps.MPSCNNLossType,
    ("", "classesLossType"): mps.MPSCNNLossType,
    ("", "format"): mps.MPSImageFeatureChannelFormat,
    ("", "edgeMode"): mps.MPSImageEdgeMode,
    ("", "comparisonType"): mps.MPSNNComparisonType,
    ("", "type"): mps.MPSCNNBinaryConvolutionType,
    ("MPSCNNBinaryConvolutionNode", "flags"): mps.MPSCNNBinaryConvolutionFlags,
    ("MPSCNNBinaryFullyConnectedNode", "flags"): mps.MPSCNNBinaryConvolutionFlags,
    ("", "flags"): mps.MPSCNNBatchNormalizationFlags,
    ("", "method"): mps.MPSNNPaddingMethod,
    ("", "trainingStyle"): mps.MPSNNTrainingStyle,
    ("", "accumulatorPrecision"): mps.MPSNNConvolutionAccumulatorPrecisionOption,
}
"""Of what type an implicit member is: by callee and label, or by the label or property alone."""


class Arrays:
    """A data source over what a file holds."""

    def __init__(self, label: str | None, **parts: Any) -> None:
        self.name, self.parts = label, parts
        for name, value in parts.items():
            setattr(self, name, lambda value=value: value)

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str | None:
        return self.name


class TrainedWeights(Arrays):
    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        return None


class TrainedNormalization(Arrays):
    def update_gamma_and_beta(self, command_buffer: Any, gradient_state: Any) -> Any:
        return None

    def update_mean_and_variance(self, command_buffer: Any, gradient_state: Any) -> Any:
        return None


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def faults(text: str) -> list[str]:
    """What the grammar does not know, each with its place."""
    source, found = text.encode(), list[str]()
    stack = [PARSER.parse(source).root_node]
    while stack:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            found.append(f"{node.start_point.row + 1}: {node.type}: {source[node.start_byte : node.end_byte][:60]!r}")
        stack.extend(node.children)
    return found


@dataclass
class Model:
    """What a source made."""

    graph: Any = None
    called: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Every call with labels: the callee's last name, and the labels."""
    read: dict[str, int] = field(default_factory=dict)
    """Every file that was read, and how many of its bytes."""
    sources: dict[str, Any] = field(default_factory=dict)
    """Data sources by variable."""
    guards: list[str] = field(default_factory=list)
    """Conditions that throw where they do not hold."""
    precisions: dict[str, Any] = field(default_factory=dict)
    """What the framework is asked to multiply with, by file."""


class Reader:
    """Follows the initializer of one source."""

    def __init__(self, device: Any, name: str, files: Mapping[str, bytes], *, capturing: bool = False) -> None:
        self._device, self._name, self._files, self._capturing = device, name, files, capturing
        self._text = files[f"{name}.swift"]
        self._names: dict[str, Any] = {"device": device}
        self.model = Model()

    def run(self) -> Model:
        tree = PARSER.parse(self._text)
        made = (node for node in _all(tree.root_node) if node.type == "init_declaration")
        body = next(node for node in made if "device: MTLDevice, folder: URL" in " ".join(self._words(node).split()))
        statements = next(node for node in _all(body) if node.type == "statements")
        for statement in statements.named_children:
            self._statement(statement)
        return self.model

    def _of(self, node: Any) -> bytes:
        return self._text[node.start_byte : node.end_byte]

    def _words(self, node: Any) -> str:
        return self._of(node).decode()

    # --- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, node: Any) -> None:
        if node.type == "property_declaration":
            name = self._words(node.child_by_field_name("name"))
            value = self._value(node.child_by_field_name("value"))
            assert name not in self._names, f"{name} is declared twice"
            self._names[name] = value
            if isinstance(value, Arrays):
                self.model.sources[name] = value
        elif node.type == "assignment":
            self._assign(node.child_by_field_name("target").named_children[0], node.child_by_field_name("result"))
        elif node.type == "guard_statement" and self._words(node).startswith("guard preprocessing =="):
            self.model.guards.append(" ".join(self._words(node).split()))
        elif node.type == "guard_statement":
            call = next(each for each in node.named_children if each.type == "call_expression")
            self._names["graph"] = self.model.graph = self._value(call)
        elif node.type == "call_expression":
            self._value(node)
        elif node.type == "if_statement":
            assert self._words(node.child_by_field_name("condition")) == "capturing"
            for each in next(each for each in node.children if each.type == "statements").named_children:
                if self._capturing:
                    self._statement(each)
        else:
            raise AssertionError(f"no such statement: {node.type} {self._words(node)}")

    def _assign(self, target: Any, result: Any) -> None:
        suffix = self._words(target.named_children[-1]).lstrip(".")
        if self._words(target).startswith("self."):
            return
        owner, name = self._value(target.child_by_field_name("target")), snake(suffix)
        value = self._typed(result, ("", suffix))
        assert hasattr(type(owner), name) or name in vars(owner) or name == "weight", f"{type(owner).__name__}.{name}"
        setattr(owner, name, value)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _typed(self, node: Any, place: tuple[str, str]) -> Any:
        """A value where a type is expected: implicit members and sets of options take it."""
        kind = TYPES.get(place) or TYPES.get(("", place[1]))
        words = self._words(node)
        if kind in OPTIONS and node.type in ("array_literal", "prefix_expression"):
            names = [each.strip() for each in words.strip("[]").split(",") if each.strip()]
            total = 0
            for each in names:
                raw = re.search(r"rawValue: (\w+)", each)
                total |= int(raw[1], 0) if raw else OPTIONS[kind][each.removeprefix(".")]
            return kind(total)
        if node.type == "prefix_expression" and words.startswith(".") and kind is not None:
            assert kind in CASES, f"{words} at {place}"
            return kind(CASES[kind].split().index(words[1:]))
        if node.type == "prefix_expression" and place[1] in ("dataType", "precision"):
            return mps.MPSDataType(DATA_TYPES[words[1:]])
        return self._value(node)

    def _value(self, node: Any) -> Any:
        reader = getattr(self, f"_{node.type}", None)
        assert reader is not None, f"no such expression: {node.type} {self._words(node)}"
        return reader(node)

    def _simple_identifier(self, node: Any) -> Any:
        return self._names[self._words(node)]

    def _integer_literal(self, node: Any) -> int:
        return int(self._words(node))  # Python takes the underscores, too

    def _real_literal(self, node: Any) -> float:
        return float(np.float32(self._words(node)))

    def _boolean_literal(self, node: Any) -> bool:
        return self._words(node) == "true"

    def _nil_literal(self, node: Any) -> None:
        return None

    def _line_string_literal(self, node: Any) -> str:
        text = self._words(node)[1:-1]
        return re.sub(r'\\(u\{([0-9a-f]+)\}|["\\])', lambda m: chr(int(m[2], 16)) if m[2] else m[1], text)

    def _array_literal(self, node: Any) -> list[Any]:
        return [self._value(each) for each in node.named_children]

    def _try_expression(self, node: Any) -> Any:
        return self._value(node.child_by_field_name("expr"))

    def _prefix_expression(self, node: Any) -> Any:
        if self._words(node).startswith("&"):
            return self._value(node.child_by_field_name("target"))
        return -self._value(node.child_by_field_name("target"))

    def _navigation_expression(self, node: Any) -> Any:
        words = self._words(node)
        if words == "Float.greatestFiniteMagnitude":
            return float(np.finfo(np.float32).max)
        if words == "Float.infinity":
            return float("inf")
        owner = self._value(node.child_by_field_name("target"))
        return getattr(owner, snake(self._words(node.child_by_field_name("suffix")).lstrip(".")))

    def _call_expression(self, node: Any) -> Any:
        target = self._words(node.named_children[0])
        suffix = node.named_children[1].named_children[0]
        if suffix.type == "lambda_literal":
            assert self._words(suffix) == "{ Data($0) }"
            return self._names[target.removesuffix(".withUnsafeBytes")]
        last, arguments = target.rpartition(".")[2], list[tuple[str, Any]]()
        for each in suffix.named_children:
            label = each.child_by_field_name("name")
            word = "" if label is None else self._words(label)
            arguments.append((word, self._typed(each.child_by_field_name("value"), (last, word))))
        if target == "Int":
            return dict(arguments)["bitPattern"]
        if self._words(node.named_children[1]).startswith("["):
            return self._value(node.named_children[0])[arguments[0][1]]
        self.model.called.append((last, tuple(label for label, _ in arguments)))
        return self._call(target, arguments)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, target: str, arguments: list[tuple[str, Any]]) -> Any:
        given = dict(arguments)
        own = getattr(self, f"_make_{target.removeprefix(self._name)}", None) if target.startswith(self._name) else None
        if own is not None:
            return own(given)
        if target == f"{self._name}States.state":
            assert given[""] is given["of"].result_state
            return given[""]
        if target == "Data":
            return given["referencing"]
        if target == f"{self._name}Handle.show":
            given[""].handle, given[""].export_from_graph = mps.Handle(given["as"]), True
            given[""].image_allocator = mps.MPSImage.default_allocator()
            return None
        if target.startswith(f"{self._name}Files."):
            return self._numbers(target, *(value for _, value in arguments))
        if target == "folder.appendingPathComponent":
            return arguments[0][1]
        named = {snake(label): value for label, value in arguments if label}
        owner, _, method = target.rpartition(".")
        if owner == "":
            return getattr(mps, method)(*(value for label, value in arguments if not label), **named)
        return self._method(owner, method, given, named)

    def _method(self, owner: str, method: str, given: dict[str, Any], named: dict[str, Any]) -> Any:
        if method == "cnnNeuronDescriptor":
            return mps.MPSNNNeuronDescriptor(given["with"], given["a"], given["b"], given["c"])
        if method == "cnnNeuronPReLUDescriptor":
            assert given["noCopy"] is False
            return mps.MPSNNNeuronDescriptor(data=np.frombuffer(given["with"], "<f4"))
        if method == "cnnLossDescriptor":
            named["xy_loss_type"] = named.pop("with_xy_loss_type")
            return mps.MPSCNNYOLOLossDescriptor(**named)
        if method == "gradientFilters":
            return self._names[owner].gradient_filters(given["withSource"])
        if method == "setBatchNormalizationParametersForInferenceWithMean":
            rows = [given[name] for name in ("", "variance", "gamma", "beta")]
            return self._names[owner].set_batch_normalization_parameters_for_inference(*rows, given["epsilon"])
        shared = {
            "MPSImage.defaultAllocator": mps.MPSImage.default_allocator,
            "MPSTemporaryImage.defaultAllocator": mps.MPSTemporaryImage.default_allocator,
            "MPSNNDefaultPadding.forTensorflowAveragePooling": (
                mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling
            ),
            "MPSNNDefaultPadding.forTensorflowAveragePoolingValidOnly": (
                mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only
            ),
        }
        return shared[f"{owner}.{method}"]()

    def _file(self, name: str, count: int) -> bytes:
        content = self._files[name]
        assert len(content) == count, f"{name}: {len(content)} bytes, {count} expected"
        self.model.read[name] = count
        return content

    def _numbers(self, target: str, name: str, count: int) -> Any:
        if target.endswith(".contents"):
            return self._file(name, count)
        return np.frombuffer(self._file(name, 4 * count), "<f4")

    def _make_Handle(self, given: dict[str, Any]) -> Any:
        return mps.Handle(given[""])

    def _make_Padding(self, given: dict[str, Any]) -> Any:
        return mps.ExplicitPadding(**{snake(name): value for name, value in given.items()})

    def _make_Weights(self, given: dict[str, Any]) -> Any:
        offset, count, shape = given["biasOffset"], given["biasCount"], given["descriptor"].weight_shape()
        content = self._file(given["file"], offset + 4 * count)
        kinds = {mps.MPSDataType.FLOAT32: "<f4", mps.MPSDataType.FLOAT16: "<f2", mps.MPSDataType.UINT32: "<u4"}
        kind = kinds[given["dataType"]]
        if kind == "<u4":
            words = np.frombuffer(content, "<u4")
            shape = (*shape[:3], words.size // int(np.prod(shape[:3])))
        weights = np.frombuffer(content, kind, count=int(np.prod(shape))).reshape(shape)
        biases = np.frombuffer(content[offset:], "<f4") if count else None
        source = Arrays(
            given["label"],
            data_type=given["dataType"],
            descriptor=given["descriptor"],
            weights=weights,
            bias_terms=biases,
        )
        self.model.precisions[given["file"]] = given["precision"]
        return source

    def _quantized(self, given: dict[str, Any], method: str, length: int) -> Any:
        shape, begin, end = given["descriptor"].weight_shape(), given["numberOffset"], given["biasOffset"]
        content = self._file(given["file"], end + 4 * given["biasCount"])
        assert begin % 8 == 0
        assert end == begin + 4 * length
        return Arrays(
            given["label"],
            data_type=mps.MPSDataType.UINT8,
            descriptor=given["descriptor"],
            weights=np.frombuffer(content, np.uint8, count=int(np.prod(shape))).reshape(shape),
            bias_terms=np.frombuffer(content[end:], "<f4") if given["biasCount"] else None,
            **{method: np.frombuffer(content[begin:end], "<f4")},
        )

    def _make_LinearWeights(self, given: dict[str, Any]) -> Any:
        return self._quantized(given, "ranges_for_uint8_kernel", 2 * given["descriptor"].output_feature_channels)

    def _make_TableWeights(self, given: dict[str, Any]) -> Any:
        return self._quantized(given, "lookup_table_for_uint8_kernel", 256)

    def _make_TrainedWeights(self, given: dict[str, Any]) -> Any:
        assert given["device"] is self._device
        content = self._file(given["file"], 4 * (given["weightCount"] + given["biasCount"]))
        numbers = np.frombuffer(content, "<f4")
        weights = numbers[: given["weightCount"]].reshape(given["descriptor"].weight_shape())
        biases = numbers[given["weightCount"] :] if given["biasCount"] else None
        return TrainedWeights(
            given["label"],
            data_type=mps.MPSDataType.FLOAT32,
            descriptor=given["descriptor"],
            weights=weights,
            bias_terms=biases,
        )

    def _rows(self, given: dict[str, Any], kind: Any, names: tuple[str, ...], **more: Any) -> Any:
        content = self._file(given["file"], 4 * len(names) * given["channels"])
        rows = np.frombuffer(content, "<f4").reshape(len(names), -1)
        parts = dict(zip(names, rows, strict=True))
        return kind(
            given["label"], number_of_feature_channels=given["channels"], epsilon=given["epsilon"], **parts, **more
        )

    def _make_BatchNormalization(self, given: dict[str, Any]) -> Any:
        return self._rows(given, Arrays, ("gamma", "beta", "mean", "variance"))

    def _make_TrainedNormalization(self, given: dict[str, Any]) -> Any:
        return self._rows(given, TrainedNormalization, ("gamma", "beta", "mean", "variance"))

    def _make_InstanceNormalization(self, given: dict[str, Any]) -> Any:
        return self._rows(given, Arrays, ("gamma", "beta"))

    def _make_GroupNormalization(self, given: dict[str, Any]) -> Any:
        return self._rows(given, Arrays, ("gamma", "beta"), number_of_groups=given["groups"])


def _all(node: Any) -> Any:
    yield node
    for child in node.children:
        yield from _all(child)


def read(device: Any, name: str, files: Mapping[str, bytes], *, capturing: bool = False) -> Model:
    """The model that a source makes, with everything that it read and called."""
    return Reader(device, name, files, capturing=capturing).run()
