"""Graphs as ONNX files: ONNX Runtime gives the graph's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from node_catalogue import NODE_SAMPLES
from onnx_models import CPU, FILL, error, light, numbers, ours, packaged, runtime, weighted
from openmps.formats import onnx as reader
from openmps.formats.onnx.layers import LAYERS
from random_graphs import Grown

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4"),
    pytest.mark.usefixtures("unflushed"),
]

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
Policy = mps.MPSNNDefaultPadding
POLICIES = [
    None,
    Policy.tensorflow_same(),
    Policy.tensorflow_valid(),
    mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_FULL),
    mps.ExplicitPadding(1, 0, 2, 1),
    mps.ExplicitPadding(-1, 1, 0, -1),
]
WINDOWED = (
    mps.MPSCNNConvolutionNode,
    mps.MPSCNNConvolutionTransposeNode,
    mps.MPSCNNPoolingMaxNode,
    mps.MPSCNNPoolingAverageNode,
    mps.MPSCNNDilatedPoolingMaxNode,
)


def compare(graph: mps.MPSNNGraph, path: Path, sources: list[np.ndarray]) -> None:
    """The file is a valid model with the shape of every value, and ONNX Runtime gives the graph's results."""
    graph.format = FLOAT32
    descriptors = [mps.MPSImageDescriptor(FLOAT32, x.shape[3], x.shape[2], x.shape[1]) for x in sources]
    reader.save(graph, path, descriptors)
    made = onnx.load(path)
    onnx.checker.check_model(made, full_check=True)
    named = {value.name for value in (*made.graph.input, *made.graph.output, *made.graph.value_info)}
    labels = [handle.label() for handle in graph.source_image_handles]
    assert [value.name for value in made.graph.input] == labels
    command_buffer = CPU.new_command_queue().command_buffer()
    batches = [mps.MPSImageBatch.from_numpy(CPU, np.ascontiguousarray(x.transpose(0, 2, 3, 1))) for x in sources]
    result = graph.encode_batch(command_buffer, batches)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    feeds = {value.name: x for value, x in zip(made.graph.input, sources, strict=True)}
    wanted = runtime(path, feeds)[made.graph.output[0].name]
    assert error(np.ascontiguousarray(result.numpy().transpose(0, 3, 1, 2)), wanted) < 1e-5
    assert len(named) > len(labels)


def _cases() -> list[Any]:
    found = []
    for kind, entry in NODE_SAMPLES.items():
        if not any(each in LAYERS for each in kind.__mro__) or issubclass(kind, mps.MPSCNNBinaryConvolutionNode):
            continue
        policies = POLICIES if kind in WINDOWED else [None]
        found += [
            pytest.param(sample, entry, policy, id=f"{kind.__name__}-{place}-{index}")
            for place, sample in enumerate(entry.samples)
            for index, policy in enumerate(policies)
        ]
    return found


REFUSED = (
    "sub-pixel convolution is not written",
    "edge mode is MIRROR_WITH_EDGE",
    "reads a part of its source",
    "an even window",
    "padding is none that ONNX has",
    "depthwise or of sub-pixels",
    "divisor counts a part",
    "drops out at random",
    "mirrors more than there is",
)


@in_one_test
@pytest.mark.parametrize(("sample", "entry", "policy"), _cases())
def test_every_node_in_every_form(sample: Any, entry: Any, policy: Any, tmp_path: Path) -> None:
    images = [mps.MPSNNImageNode(mps.Handle(f"x{place}")) for place in range(len(sample.shapes))]
    node = entry.make(sample.make(CPU), images)
    if isinstance(node, mps.MPSCNNBatchNormalizationNode):
        node.flags = mps.MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    if policy is not None:
        node.padding_policy = policy
    sources = [each.astype(np.float32) for each in sample.sources()]
    graph = mps.MPSNNGraph(CPU, node.result_image)
    try:
        graph.program_for([mps.MPSImageDescriptor(FLOAT32, x.shape[3], x.shape[2], x.shape[1]) for x in sources])
    except mps.MPSArgumentError:
        pytest.skip("no window fits")
    try:
        compare(graph, tmp_path / "net.onnx", sources)
    except mps.MPSOperatorError as problem:
        said = str(problem).replace("\n    ", " ")
        if not any(why in said for why in REFUSED):
            raise


@in_one_test
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    grown = Grown(seed)
    last = next((each for each in reversed(grown.filters) if not _drops_out(each)), None)
    if last is None:
        pytest.skip("everything depends on dropout")
    compare(mps.MPSNNGraph(CPU, last.result_image), tmp_path / "net.onnx", [numbers(2, 4, 6, 6)])


def _drops_out(node: Any) -> bool:
    """Whether a node depends on dropout."""
    before = [image.producer for image in node.sources if image.producer is not None]
    return isinstance(node, mps.MPSCNNDropoutNode) or any(map(_drops_out, before))


def test_scaling_and_reshape(tmp_path: Path) -> None:
    image = mps.MPSNNImageNode(mps.Handle("image"))
    scaled = mps.MPSNNBilinearScaleNode(image, mps.MTLSize(5, 9, 3))
    node = mps.MPSNNReshapeNode(scaled.result_image, 3, 5, 9)
    compare(mps.MPSNNGraph(CPU, node.result_image), tmp_path / "net.onnx", [numbers(2, 3, 6, 7)])


def test_a_trained_network_there_and_back(tmp_path: Path) -> None:
    path = packaged("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    found = ours(path, shapes={"x": (1, 3, 48, 192)})
    compare(found.graph, tmp_path / "net.onnx", [numbers(2, 3, 48, 192)])
    feeds = {"x": numbers(2, 3, 48, 192)}
    again = ours(tmp_path / "net.onnx").run(feeds)
    assert error(again["save_infer_model/scale_0.tmp_1"][:, :, 0, 0], next(iter(found.run(feeds).values()))) < 1e-5


@pytest.mark.parametrize("name", ["shufflenet", "densenet121"])
def test_a_light_network_there(name: str, tmp_path: Path) -> None:
    path = weighted(light(name), tmp_path)
    graph = reader.load(path, CPU, trainable=True, fill_limit=FILL)
    compare(graph, tmp_path / "net.onnx", [numbers(1, 3, 224, 224)])


def test_what_onnx_cannot_say_is_listed_and_nothing_is_written(tmp_path: Path) -> None:
    image = mps.MPSNNImageNode(mps.Handle("image"))
    gram = mps.MPSNNGramMatrixCalculationNode(image, 1.0)
    compared = mps.MPSNNComparisonNode(gram.result_image, gram.result_image)
    graph = mps.MPSNNGraph(CPU, compared.result_image)
    with pytest.raises(mps.MPSOperatorError) as caught:
        reader.save(graph, tmp_path / "net.onnx", mps.MPSImageDescriptor(FLOAT32, 4, 4, 4))
    assert [each["operator"] for each in caught.value.nodes] == [type(gram).__name__, type(compared).__name__]
    assert list(tmp_path.iterdir()) == []
