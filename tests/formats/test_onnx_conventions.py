"""ONNX files and conventions: a file has the readings of its graph, or there is none; models are read as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from convention_cases import CASES
from convention_cases.case import Subject, graph_of, listed, ordered, run
from in_one_test import in_one_test
from mac_facts.fact import image
from openmps.convention.table import CONVENTIONS
from openmps.formats.onnx.network import network
from openmps.formats.onnx.saving import exported

onnx = pytest.importorskip("onnx")
ROW = {"kernel_width": 3, "kernel_height": 1, "stride_in_pixels_x": 1, "stride_in_pixels_y": 1}
EDGES = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME | mps.MPSNNPaddingMethod.EXCLUDE_EDGES)


def _averages(source: Any) -> Any:
    node = mps.MPSCNNPoolingAverageNode(source, **ROW)
    node.padding_policy = EDGES
    return node


FILTERS: dict[str, tuple[Callable[[Any], Any], mps.MPSImage]] = {
    "reshape_order": (lambda x: mps.MPSNNReshapeNode(x, 2, 1, 3), image([[[1, 2], [3, 4], [5, 6]]])),
    "l2_clamp": (lambda x: mps.MPSCNNPoolingL2NormNode(x, **ROW), image([1, 2, 3, 4], width=4)),
    "excluded_edges": (_averages, image([1, 2, 3, 4], width=4)),
    "bilinear_centres": (lambda x: mps.MPSCNNUpsamplingBilinearNode(x, 2, 1), image([1, 5, 3, 4], width=4)),
}
"""Filters for inference, where the graphs of the cases are trained."""
WRITTEN = (*FILTERS, "alignment", "negative_remainder", "average_preset", "average_valid_preset", "source_order",
           "concatenation_filler", "graph_primary_scale")  # fmt: skip


def _subject(name: str) -> Subject:
    if name not in FILTERS:
        return CASES[name].graph  # type: ignore[return-value]
    make, source = FILTERS[name]
    return Subject(
        lambda: [graph_of(make(mps.MPSNNImageNode(mps.Handle("source 0"))))],
        lambda command_buffer, graph: [graph.encode(command_buffer, [source])],
        [source],
    )


@in_one_test
@pytest.mark.parametrize(("name", "choice"), [(name, each) for name in WRITTEN for each in CONVENTIONS[name].choices])
def test_a_file_has_the_readings_of_its_graph(name: str, choice: str) -> None:
    """The numbers are the graph's, by another program."""
    from onnx.reference import ReferenceEvaluator

    subject = _subject(name)
    with mps.conventions(**{name: choice}):
        [graph] = subject.make()
    sources = ordered(graph, subject.sources)
    if name == "source_order":
        sources = [image([value]) for value in (1.0, 10.0, 100.0)]
    file = onnx.load_from_string(exported(graph, [each.descriptor() for each in sources]))
    feeds = {
        given.name: np.moveaxis(each.numpy(), -1, 0)[None]
        for given, each in zip(file.graph.input, sources, strict=True)
    }
    [found] = ReferenceEvaluator(file).run(None, feeds)
    np.testing.assert_allclose(listed(np.moveaxis(found[0], 0, -1)), run(subject, [graph])[0], rtol=1e-5)


def test_no_file_has_another_reading() -> None:
    subject = CASES["broadcast_size"].graph
    assert isinstance(subject, Subject)
    with mps.conventions(broadcast_size="primary"):
        [graph] = subject.make()
    message = "follows the convention broadcast_size='primary', for which ONNX has no operators"
    with pytest.raises(mps.MPSArgumentError, match=message):
        exported(graph, [each.descriptor() for each in subject.sources])


def _model(*nodes: Any) -> Any:
    """Of operators one behind the other."""
    kind = onnx.TensorProto.FLOAT
    ends = [onnx.helper.make_tensor_value_info(name, kind, [1, 2, 4, 4] if name == "x" else None) for name in "xy"]
    shapes = {"pixels": [1, 4, 2, 4], "sizes": [1, 2, 8, 8]}
    constants = [onnx.numpy_helper.from_array(np.array(each, np.int64), name) for name, each in shapes.items()]
    graph = onnx.helper.make_graph(list(nodes), "network", ends[:1], ends[1:], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


MODELS: dict[str, Callable[[], Any]] = {
    "reshape_order": lambda: _model(
        onnx.helper.make_node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        onnx.helper.make_node("Reshape", ["a", "pixels"], ["b"]),
        onnx.helper.make_node("Transpose", ["b"], ["c"], perm=[0, 3, 1, 2]),
        onnx.helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ),
    "bilinear_centres": lambda: _model(
        onnx.helper.make_node(
            "Resize", ["x", "", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode="asymmetric"
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_not_read_where_nodes_mean_something_else(name: str, tmp_path: Any) -> None:
    path, choice = tmp_path / "model.onnx", CONVENTIONS[name].alternatives[0]
    path.write_bytes(MODELS[name]().SerializeToString())
    assert network(path).outputs
    with mps.conventions(**{name: choice}), pytest.raises(mps.MPSOperatorError) as found:
        network(path)
    assert f"the convention {name}='{choice}'" in " ".join(str(found.value).split())


def test_binary_convolutions_have_no_operator() -> None:
    subject = CASES["binary_border"].graph
    assert isinstance(subject, Subject)
    with pytest.raises(mps.MPSOperatorError, match="ONNX has no operator for it"):
        exported(subject.make()[0], [image([1.0]).descriptor()])


def test_files_have_what_is_set_of_the_kernels() -> None:
    """Which encodes compute with."""
    from onnx.reference import ReferenceEvaluator

    nodes = [mps.MPSNNImageNode(mps.Handle(f"source {place}")) for place in range(2)]
    graph = graph_of(mps.MPSNNAdditionNode(*nodes))
    [kernel] = graph.kernels.values()
    kernel.primary_scale, kernel.bias = 3.0, 0.5
    size = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 1)
    file = onnx.load_from_string(exported(graph, [size, size]))
    one = np.ones((1, 1, 1, 1), np.float32)
    [found] = ReferenceEvaluator(file).run(None, {each.name: one for each in file.graph.input})
    assert float(found.item()) == 4.5
