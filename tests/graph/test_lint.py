"""Each rule of the lint: a graph that breaks it, one that does not, and what the finding says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from networks import NETWORKS, Weights, training_graph
from openmps.graph.lint import RULES
from openmps.graph.nodes.catalog import SINCE
from openmps.graph.nodes.releases import FIRST, IOS
from openmps.runtime.devices import mtl_device

CPU = mtl_device("cpu")
Format = mps.MPSImageFeatureChannelFormat
ERROR, WARNING, NOTE = mps.Severity
HALF, FULL, UNORM8 = Format.FLOAT16, Format.FLOAT32, Format.UNORM8


def image(label: str | None = "x") -> mps.MPSNNImageNode:
    return mps.MPSNNImageNode(None if label is None else mps.Handle(label))


def shape(width: int, height: int, channels: int, form: Format = HALF) -> mps.MPSImageDescriptor:
    return mps.MPSImageDescriptor(form, width, height, channels)


def graph(*nodes: mps.MPSNNFilterNode, form: Format = HALF) -> mps.MPSNNGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what descriptors warn of is what is looked for
        made = mps.MPSNNGraph(CPU, [node.result_image for node in nodes])
    made.format = form
    return made


class Asking(mps.ArrayConvolutionDataSource):
    """A data source that may ask for a precision."""

    asked: mps.MPSDataType | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "kernel_weights_data_type" and self.asked is not None:
            return lambda: self.asked
        raise AttributeError(name)


def convolution(
    inputs: int,
    outputs: int,
    kind: type = mps.MPSCNNConvolutionDescriptor,
    size: int = 1,
    value: float = 0.5,
    **more: Any,
) -> mps.MPSCNNConvolutionNode:
    descriptor = kind(size, size, inputs, outputs)
    for name, each in more.items():
        setattr(descriptor, name, each)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = Asking(descriptor, np.full(descriptor.weight_shape(), value, np.float32), label="conv")
    return mps.MPSCNNConvolutionNode(image(), source)


def asking(node: mps.MPSCNNConvolutionNode, kind: str = "FLOAT32") -> mps.MPSCNNConvolutionNode:
    """A convolution whose data source asks for a precision."""
    node.weights.asked = mps.MPSDataType[kind]  # type: ignore[attr-defined]
    return node


def found(report: mps.LintReport, rule: str) -> list[mps.Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def pool(policy: Any, kind: Any = mps.MPSCNNPoolingMaxNode, size: int = 3, stride: int = 2) -> mps.MPSNNFilterNode:
    node = kind(image(), size, stride)
    node.label, node.padding_policy = "pool", policy
    return node


def dilated(policy: Any, rate: int) -> mps.MPSNNFilterNode:
    node = mps.MPSCNNDilatedPoolingMaxNode(image(), 3, 1, rate)
    node.padding_policy = policy
    return node


def transposed(policy: Any, stride: int) -> mps.MPSNNFilterNode:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 4, 4)
    descriptor.stride_in_pixels_x = stride
    source = mps.ArrayConvolutionDataSource(descriptor, np.zeros((4, 3, 3, 4)))
    node = mps.MPSCNNConvolutionTransposeNode(image(), weights=source)
    node.padding_policy = policy
    return node


def formatted(node: mps.MPSNNFilterNode, form: Format) -> mps.MPSNNFilterNode:
    node.result_image.format = form
    return node


def exported(allocator: Any) -> mps.MPSNNGraph:
    first = mps.MPSCNNNeuronReLUNode(image())
    first.result_image.export_from_graph = True
    if allocator is not None:
        first.result_image.image_allocator = allocator
    return graph(mps.MPSCNNNeuronReLUNode(first.result_image))


def added(left: mps.MPSNNImageNode, right: mps.MPSNNImageNode) -> mps.MPSNNGraph:
    return graph(mps.MPSNNAdditionNode(left, right))


def padded(channels: int) -> mps.MPSNNGraph:
    before, after = mps.MPSImageCoordinate(0, 0, channels), mps.MPSImageCoordinate(0, 0, 0)
    return graph(mps.MPSNNPadNode(image(), before, after, mps.MPSImageEdgeMode.ZERO))


def argument(form: Format) -> mps.MPSNNGraph:
    return graph(formatted(mps.MPSNNReductionFeatureChannelsArgumentMaxNode(image()), form))


def concatenated() -> mps.MPSNNGraph:
    return graph(mps.MPSNNConcatenationNode([image("a"), image("b")]))


def ramp(top: float) -> dict[str, Any]:
    return {"samples": {"x": np.linspace(0, top, 32, dtype=np.float32).reshape(2, 4, 4, 1)}}


SAME, VALID = mps.MPSNNDefaultPadding(16), mps.MPSNNDefaultPadding(0)
EXPLICIT = mps.ExplicitPadding.pytorch(1)
DEPTHWISE, SUB_PIXEL = mps.MPSCNNDepthWiseConvolutionDescriptor, mps.MPSCNNSubPixelConvolutionDescriptor
SCALED = mps.MPSCNNNeuronLinearNode
ORDINARY = mps.MPSImage.default_allocator()

Case = tuple[str, Any, Callable[[], mps.MPSNNGraph], Callable[[], mps.MPSNNGraph], dict[str, Any], str]
CASES: list[Case] = [
    ("groups", ERROR, lambda: graph(convolution(8, 4, groups=2)), lambda: graph(convolution(8, 8, groups=2)), {},
     "2 groups of 4 input and 2 output channels"),
    ("depthwise", ERROR, lambda: graph(convolution(4, 8, DEPTHWISE)), lambda: graph(convolution(4, 4, DEPTHWISE)), {},
     "2"),
    ("sub-pixels", ERROR, lambda: graph(convolution(8, 24, SUB_PIXEL, groups=2, sub_pixel_scale_factor=2)),
     lambda: graph(convolution(8, 32, SUB_PIXEL, groups=2, sub_pixel_scale_factor=2)), {}, "6 channels"),
    ("weight-range", ERROR, lambda: graph(convolution(4, 4, value=7e4)), lambda: graph(convolution(4, 4, value=6e4)),
     {}, "70000"),
    ("weight-range", WARNING, lambda: graph(convolution(4, 4, value=2e-8)),
     lambda: graph(convolution(4, 4, value=4e-8)), {}, "16 of 16"),
    ("weight-range", ERROR, lambda: graph(asking(convolution(4, 4, value=7e4))),
     lambda: graph(convolution(4, 4)), {"target": "macos-10.15"}, "70000"),
    ("weight-precision", WARNING, lambda: graph(asking(convolution(4, 4))),
     lambda: graph(asking(convolution(4, 4), "FLOAT16")), {"target": "ios-13"}, "asks for float32, and iOS 13"),
    ("weight-precision", WARNING, lambda: graph(convolution(4, 4)), lambda: graph(asking(convolution(4, 4))),
     {"image_descriptors": shape(2, 2, 4, FULL)}, "a source of float32"),
    ("activation-range", ERROR, lambda: graph(SCALED(image(), 10.0)), lambda: graph(SCALED(image(), 0.5)), ramp(7e3),
     "70000"),
    ("activation-range", WARNING, lambda: graph(SCALED(image(), 2.0)), lambda: graph(SCALED(image(), 1.0)), ramp(6e3),
     "12000"),
    ("activation-range", ERROR, lambda: graph(SCALED(image(), 1e38), form=FULL),
     lambda: graph(SCALED(image(), 10.0), form=FULL), ramp(7e3), "a NaN or an infinity, computed in float32"),
    ("format", WARNING, lambda: graph(formatted(SCALED(image()), UNORM8)), lambda: graph(SCALED(image())), ramp(3.0),
     "unorm8, numbers up to 3"),
    ("argument-format", ERROR, lambda: argument(HALF), lambda: argument(FULL),
     {"image_descriptors": shape(2, 2, 4096)}, "float16 and 4,096 channels"),
    ("argument-format", ERROR, lambda: argument(UNORM8), lambda: argument(HALF), {}, "unorm8"),
    ("padding-dilation", WARNING, lambda: graph(dilated(SAME, 2)), lambda: graph(dilated(SAME, 1)), {},
     "a window of 5x5 pixels"),
    ("padding-dilation", WARNING, lambda: graph(dilated(SAME, 2)), lambda: graph(dilated(EXPLICIT, 2)), {}, "5x5"),
    ("padding-edges", WARNING,
     lambda: graph(pool(mps.MPSNNDefaultPadding(16 | 1 << 15), mps.MPSCNNPoolingAverageNode)),
     lambda: graph(pool(SAME, mps.MPSCNNPoolingAverageNode)), {}, "method 0x8010"),
    ("padding-transposed", WARNING, lambda: graph(transposed(SAME, 2)), lambda: graph(transposed(SAME, 1)), {},
     "strides 2x1"),
    ("padding-transposed", WARNING, lambda: graph(transposed(SAME, 2)), lambda: graph(transposed(EXPLICIT, 2)), {},
     "strides 2x1"),
    ("padded-channels", WARNING, lambda: padded(2), lambda: padded(4), {}, "2 channels"),
    ("read-count", NOTE, lambda: (lambda x: added(x, x))(image()), lambda: added(image("a"), image("b")), {},
     "2 reads of 'x'"),
    ("export", WARNING, lambda: exported(None), lambda: exported(ORDINARY), {}, "the default allocator"),
    ("labels", NOTE, lambda: added(image("a"), image("a")), lambda: added(image("a"), image("b")), {},
     "2 images, labels 'a', 'a'"),
    ("labels", NOTE, lambda: added(image(None), image("a")), lambda: graph(SCALED(image(None))), {}, "None, 'a'"),
]  # fmt: skip


@in_one_test
@pytest.mark.parametrize(
    ("rule", "severity", "bad", "good", "known", "got"),
    CASES,
    ids=[f"{place}-{case[0]}" for place, case in enumerate(CASES)],
)
def test_rules(rule: str, severity: Any, bad: Any, good: Any, known: dict[str, Any], got: str) -> None:
    report = mps.lint(bad(), **known)
    (finding,) = [each for each in found(report, rule) if each.severity is severity]
    assert got in finding.got
    assert finding.remedy
    assert finding.class_name.startswith("MPS")
    assert report.ok == (severity is not ERROR)
    assert [each for each in found(mps.lint(good(), **known), rule) if each.severity is severity] == []


SHAPES = [
    ("concatenation", WARNING, concatenated, [shape(2, 2, 7), shape(2, 2, 4)], [shape(2, 2, 8), shape(2, 2, 4)],
     "7, 4"),
    ("image-size", ERROR, lambda: graph(SCALED(image())), [shape(16385, 1, 1)], [shape(16384, 1, 1)], "16385x1x1"),
    ("image-size", ERROR, lambda: graph(SCALED(image())), [shape(1, 1, 8193)], [shape(1, 1, 8192)], "1x1x8193"),
    ("unread-channels", WARNING, lambda: graph(convolution(4, 4)), [shape(4, 2, 8)], [shape(4, 2, 4)],
     "8 channels, of which 4 are read"),
    ("padding-remainder", NOTE, lambda: graph(pool(SAME)), [shape(8, 9, 1)], [shape(9, 9, 1)], "of the width"),
    ("padding-remainder", NOTE, lambda: graph(pool(SAME)), [shape(8, 8, 1)], [shape(9, 9, 1)], "width and the height"),
    ("weight-precision", WARNING, lambda: graph(convolution(4, 4)), [shape(2, 2, 4, UNORM8)], [shape(2, 2, 4)],
     "unorm8"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "severity", "make", "bad", "good", "got"), SHAPES)
def test_rules_on_shapes(rule: str, severity: Any, make: Any, bad: Any, good: Any, got: str) -> None:
    findings = found(mps.lint(make(), bad), rule)
    assert {each.severity for each in findings} == {severity}
    assert all(got in each.got for each in findings)
    assert found(mps.lint(make(), good), rule) == []


@pytest.mark.parametrize(
    "policy", [mps.MPSNNDefaultPadding.tensorflow_same(), VALID, EXPLICIT, mps.MPSNNDefaultPadding(32 | 12)], ids=repr
)
def test_policies_that_say_where_an_odd_pixel_goes(policy: Any) -> None:
    assert found(mps.lint(graph(pool(policy)), shape(8, 8, 1)), "padding-remainder") == []


def test_every_rule_has_a_case() -> None:
    tried = {case[0] for case in CASES} | {case[0] for case in SHAPES} | {"release"}
    assert {name for rule in RULES for name in rule.names} == tried


# --- releases ---------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("macos-10.13", True), ("macos-10.14", True), ("macos-10.14.1", False), ("macos-10.15", False),
        ("macos-26", False),
        ("ios-12", True), ("ios-12.0", True), ("iOS-12.1", False), ("tvos-12.1", False), ("ios-11.3", True),
    ],
)  # fmt: skip
def test_a_class_that_is_newer_than_the_target(target: str, missing: bool) -> None:
    report = mps.lint(graph(mps.MPSNNReductionRowMaxNode(image())), target=target)
    assert report.ok == (not missing)
    if missing:
        (finding,) = report.findings
        system = "macOS 10.14.1" if target.startswith("mac") else "iOS 12.1"
        assert finding.says == f"MPSNNReductionRowMaxNode came with {system}"


def _newer() -> dict[str, tuple[str, Any]]:
    across = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.LOG)
    across.reduce_across_batch = True
    half = convolution(4, 4)
    half.accumulator_precision = mps.MPSNNConvolutionAccumulatorPrecisionOption.HALF
    styled = convolution(4, 4)
    styled.training_style = mps.MPSNNTrainingStyle.UPDATE_DEVICE_NONE
    return {
        "reduceAcrossBatch": ("11.0", graph(mps.MPSCNNLossNode(image(), across))),
        "accumulatorPrecision": ("10.14", graph(half)),
        "trainingStyle": ("10.15", graph(styled)),
        "paddingForTensorflowAveragePooling": (
            "10.13.4",
            graph(pool(mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling())),
        ),
        "fusedNeuronDescriptor": (
            "10.13.4",
            graph(convolution(4, 4, fused_neuron_descriptor=mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU))),
        ),
        "the neuron GELU": (
            "10.15",
            graph(convolution(4, 4, fused_neuron_descriptor=mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.GELU))),
        ),
        "graphs of several results": (
            "10.15",
            graph(mps.MPSCNNNeuronReLUNode(image("a")), mps.MPSCNNNeuronReLUNode(image("b"))),
        ),
    }


@pytest.mark.parametrize("what", _newer())
def test_properties_that_are_newer_than_the_target(what: str) -> None:
    macos, made = _newer()[what]
    releases = list(IOS)
    before = releases[releases.index(macos) - 1]
    assert any(finding.says.startswith(what) for finding in found(mps.lint(made, target=f"macos-{before}"), "release"))
    for target in (f"macos-{macos}", f"ios-{IOS[macos]}"):
        assert found(mps.lint(made, target=target), "release") == []


def test_edge_modes_and_detectors() -> None:
    node = mps.MPSNNPadNode(image(), mps.MPSImageCoordinate(1, 1, 0), mps.MPSImageCoordinate(1, 1, 0),
                            mps.MPSImageEdgeMode.MIRROR)  # fmt: skip
    says = [finding.says for finding in mps.lint(graph(node), target="macos-10.14").findings]
    assert "the edge mode MIRROR came with macOS 10.14.1" in says
    boxes = mps.MPSCNNYOLOLossDescriptor(*[mps.MPSCNNLossType.HUBER] * 4, mps.MPSCNNReductionType.SUM, [[1.0, 2.0]])
    report = mps.lint(graph(mps.MPSCNNYOLOLossNode(image(), boxes)), target="macos-10.13.4")
    assert [finding.says for finding in report.findings] == ["MPSCNNYOLOLossDescriptor came with macOS 10.14"]


@in_one_test
@pytest.mark.parametrize("name", SINCE)
def test_the_table_of_releases_is_that_of_the_docstrings(name: str) -> None:
    said = re.search(r"MPSNNGraphNodes\.h, macOS ([\d.]+\d)", getattr(mps, name).__doc__ or "")
    assert said is not None
    assert said[1] == SINCE[name]


def test_releases_are_releases() -> None:
    assert set(SINCE.values()) <= set(IOS)
    assert FIRST in IOS


@pytest.mark.parametrize("target", ["", "macos", "10.14", "macos-x", "windows-11", "macos-10.14.1.2", "ios-"])
def test_targets_that_are_none(target: str) -> None:
    with pytest.raises(mps.MPSArgumentError, match="must be a system and its version"):
        mps.lint(graph(SCALED(image())), target=target)


# --- samples ----------------------------------------------------------------------------------------------------------


def test_magnitudes_are_those_of_float32() -> None:
    """Against the same arithmetic in NumPy, over more images than are run at once."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(37, 3, 2, 5)).astype(np.float32)
    first = SCALED(image(), 3.0, -1.0)
    second = SCALED(first.result_image, -40.0)
    first.label = second.label = "same"
    made = graph(second)
    report = mps.lint(made, samples={"x": images})
    expected = [3.0 * images.astype(np.float64) - 1.0, 40.0 * (3.0 * images.astype(np.float64) - 1.0)]
    assert [row.magnitude for row in report.magnitudes] == pytest.approx(
        [np.abs(each).max() for each in expected], rel=1e-6
    )
    assert not first.result_image.export_from_graph
    assert first.result_image.format is Format.NONE
    assert made.format is HALF


def test_samples_of_several_images_go_by_label() -> None:
    made = added(image("a"), image("b"))
    ones = np.ones((1, 2, 2, 4), np.float32)
    report = mps.lint(made, samples={"b": 3 * ones, "a": ones})
    assert report.magnitudes[0].magnitude == 4
    for wrong in ({"a": ones}, {"a": ones, "c": ones}, {"a": ones, "b": np.ones((2, 2, 2, 4), np.float32)}):
        with pytest.raises(mps.MPSArgumentError, match="samples"):
            mps.lint(made, samples=wrong)


@pytest.mark.parametrize("samples", [{}, [1], np.ones((1, 2, 2, 1)), {"x": np.ones(3)}, {"x": np.ones((0, 2, 2, 1))}])
def test_samples_that_are_none(samples: Any) -> None:
    with pytest.raises(mps.MPSError, match="samples"):
        mps.lint(graph(SCALED(image())), samples=samples)


def test_samples_are_for_inference() -> None:
    node = mps.MPSCNNLossNode(image(), mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.HUBER))
    with pytest.raises(mps.MPSArgumentError, match="takes labels"):
        mps.lint(graph(node), samples={"x": np.ones((1, 2, 2, 1), np.float32)})


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_says_what_was_not_tried() -> None:
    report = mps.lint(graph(SCALED(image())))
    assert report.findings == ()
    assert report.ok
    text = str(report)
    assert text.startswith("0 errors, 0 warnings, 0 notes\n")
    assert "not tried: release, which needs a target" in text
    assert len(report.left_out) == sum(bool(rule.needs) for rule in RULES) + 1, "rules, and conventions"
    assert report.left_out[-1].startswith("conventions, which needs the shapes")


@pytest.mark.parametrize("name", NETWORKS)
def test_reports_are_80_columns_wide(name: str) -> None:
    network = NETWORKS[name](np.random.default_rng(0))
    height, width = network.shape[1:]
    made = mps.MPSNNGraph(CPU, network.loss.sources[0])
    samples = np.random.default_rng(1).random((2, height, width, network.shape[0])).astype(np.float32) * 1e6
    label = "image"
    report = mps.lint(made, samples={label: samples}, target="macos-10.13")
    assert max(map(len, str(report).split("\n"))) <= 80
    assert max(len(line) for each in report.findings for line in str(each).split("\n")) <= 80
    severities = [each.severity for each in report.findings]
    assert severities == sorted(severities, key=list(mps.Severity).index)
    assert len(report.magnitudes) == len(made.kernels)


def test_what_is_wrong_at_many_filters_is_said_once() -> None:
    first = SCALED(image(), 100.0)
    second = SCALED(first.result_image)
    report = mps.lint(graph(second), **ramp(7e3))
    text = str(report)
    assert text.count("numbers of a float16 image must be at most") == 1
    assert "filter 0  MPSCNNNeuronLinearNode  700000" in text
    assert "filter 1  MPSCNNNeuronLinearNode  700000" in text


def test_the_same_finding_at_many_filters_takes_a_line() -> None:
    made = image()
    for place in range(5):
        node = mps.MPSNNReductionRowMaxNode(made)
        node.label = f"most{place}"
        made = node.result_image
    text = str(mps.lint(graph(node), target="macos-10.13"))
    assert "  5 MPSNNReductionRowMaxNode: most0, most1, most2, most3, most4\n" in text
    assert text.count("most0") == 1


@pytest.mark.parametrize("target", ["ios-99", "macos-10.12", "macos-16", "tvos-10.2"])
def test_targets_that_no_system_has(target: str) -> None:
    with pytest.raises(mps.MPSArgumentError, match=r"target must be a version of \w+: 1[01]"):
        mps.lint(graph(SCALED(image())), target=target)


def test_training_graphs_are_looked_at_too() -> None:
    from encoding import Bench

    network = NETWORKS["digits"](np.random.default_rng(0), Weights.of)
    report = mps.lint(training_graph(Bench(CPU), network), target="macos-10.14")
    assert {finding.says for finding in report.of(ERROR)} == {"MPSCNNFullyConnectedGradientNode came with macOS 10.15"}


def test_arguments() -> None:
    with pytest.raises(mps.MPSTypeError, match="graph"):
        mps.lint("graph")  # type: ignore[arg-type]
    with pytest.raises(mps.MPSTypeError, match="target"):
        mps.lint(graph(SCALED(image())), target=10.14)  # type: ignore[arg-type]
    with pytest.raises(mps.MPSArgumentError, match="image_descriptors"):
        mps.lint(added(image("a"), image("b")), shape(1, 1, 1))
