"""Graphs as Core ML packages: read in again they give the graph's numbers, and coremltools' own loader takes them."""

from __future__ import annotations

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coreml_packages
import openmps as mps
import ways_out
from coreml_models import CPU, ours
from in_one_test import in_one_test
from node_catalogue import NODE_SAMPLES
from openmps.formats import coreml, onnx
from openmps.formats.coreml.network import read
from openmps.formats.coreml.protos import require_protos
from openmps.formats.coreml.written_operations import OPERATIONS
from openmps.formats.onnx.layers import LAYERS
from random_graphs import Grown

if find_spec("coremltools") is None:  # to import it takes seconds
    pytest.skip("needs coremltools", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
WINDOWED = (
    mps.MPSCNNConvolutionNode,
    mps.MPSCNNConvolutionTransposeNode,
    mps.MPSCNNPoolingMaxNode,
    mps.MPSCNNPoolingAverageNode,
)
POLICIES = [None, mps.ExplicitPadding(1, 0, 2, 1), mps.ExplicitPadding(-1, 1, 0, -1)]
UNWRITTEN = (
    "sub-pixel convolution", "reads a part of its source", "an even window", "padding is none that ONNX has",
    "depthwise or of sub-pixels", "divisor counts a part", "drops out at random", "mirrors more", "MIRROR_WITH_EDGE",
    "and Core ML's pooling has none", "it pads channels",
)  # fmt: skip


def _size(x: np.ndarray) -> mps.MPSImageDescriptor:
    return mps.MPSImageDescriptor(FLOAT32, x.shape[3], x.shape[2], x.shape[1])


def _results(graph: mps.MPSNNGraph, sources: list[np.ndarray]) -> np.ndarray:
    graph.format = FLOAT32
    command_buffer = CPU.new_command_queue().command_buffer()
    batches = [mps.MPSImageBatch.from_numpy(CPU, np.ascontiguousarray(x.transpose(0, 2, 3, 1))) for x in sources]
    result = graph.encode_batch(command_buffer, batches)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result.numpy().transpose(0, 3, 1, 2)


def compare(graph: mps.MPSNNGraph, path: Path, sources: list[np.ndarray], most: float = 1e-5, **options: Any) -> None:
    """Read in again, the package gives the graph's results."""
    wanted = _results(graph, sources)
    coreml.save(graph, path, [_size(x) for x in sources], batch=len(sources[0]), **options)
    model = ours(path)
    feeds = {port.name: x for port, x in zip(model.inputs, sources, strict=True)}
    (found,) = model.run(feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=most * max(1.0, float(np.abs(wanted).max())))


def _cases() -> list[Any]:
    found = []
    for kind, entry in NODE_SAMPLES.items():
        if not any(each in LAYERS for each in kind.__mro__) or issubclass(kind, mps.MPSCNNBinaryConvolutionNode):
            continue
        policies = POLICIES if kind in WINDOWED else [None]
        found += [
            pytest.param(entry, policy, id=f"{kind.__name__}-{place}") for place, policy in enumerate(policies)
        ]  # fmt: skip
    return found


@in_one_test
@pytest.mark.parametrize(("entry", "policy"), _cases())
def test_every_node_comes_back(entry: Any, policy: Any, tmp_path: Path) -> None:
    sample = entry.samples[0]
    images = [mps.MPSNNImageNode(mps.Handle(f"x{place}")) for place in range(len(sample.shapes))]
    node = entry.make(sample.make(CPU), images)
    if isinstance(node, mps.MPSCNNBatchNormalizationNode):
        node.flags = mps.MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    if policy is not None:
        node.padding_policy = policy
    sources = [each.astype(np.float32) for each in sample.sources()]
    try:
        compare(mps.MPSNNGraph(CPU, node.result_image), tmp_path / "net.mlpackage", sources)
    except mps.MPSOperatorError as problem:
        said = str(problem).replace("\n    ", " ")
        if not any(why in said for why in UNWRITTEN):
            raise


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_random_graphs_in_float16(seed: int, tmp_path: Path) -> None:
    last = next(
        each for each in reversed(Grown(seed).filters) if not any(map(_drops_out, (each, *_before(each))))
    )  # fmt: skip
    x = np.random.default_rng(seed).normal(size=(2, 4, 6, 6)).astype(np.float32)
    compare(mps.MPSNNGraph(CPU, last.result_image), tmp_path / "net.mlpackage", [x], 1e-2, half=True)


def _before(node: Any) -> list[Any]:
    found = [image.producer for image in node.sources if image.producer is not None]
    return [*found, *(each for one in found for each in _before(one))]


def _drops_out(node: Any) -> bool:
    return isinstance(node, mps.MPSCNNDropoutNode)


# --- the loader of coremltools ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packages of three networks, in float32 and in float16."""
    folder, found = tmp_path_factory.mktemp("written"), dict[str, Path]()
    for name in ("plain", "mobile", "unet"):
        model = ours(coreml_packages.packed(name, folder))
        (port,) = model.inputs
        size = mps.MPSImageDescriptor(
            FLOAT32, *(port.length(each) or 1 for each in (port.columns, port.rows, port.channels))
        )
        for half in (False, True):
            found[f"{name} {half}"] = folder / f"{name}{half}.mlpackage"
            coreml.save(model.graph, found[f"{name} {half}"], size, half=half)
    return found


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without what coremltools says of versions and of what a Mac has."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
def test_the_loader_of_coremltools_gives_the_weights_and_infers_the_types_that_are_written(
    written: dict[str, Path],
) -> None:
    """Importing it takes some seconds. On a Python that it has no files for, its libraries are missing."""
    pytest.importorskip("coremltools.libmodelpackage", reason="coremltools is installed without its libraries")
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.converters.mil.mil import types

    kinds = {10: types.fp16, 11: types.fp32}
    for path in written.values():
        model = ct.models.MLModel(str(path), skip_model_load=True)
        spec = model.get_spec()
        program = load(spec, spec.specificationVersion, model.weights_dir)
        (block,) = spec.mlProgram.functions["main"].block_specializations.values()
        said = {output.name: output.type.tensorType for each in block.operations for output in each.outputs}
        computed = [each for each in program.functions["main"].operations if each.op_type != "const"]
        assert len(computed) > 8
        for output in (output for each in computed for output in each.outputs):
            lengths = [each.constant.size for each in said[output.name].dimensions]
            assert (list(output.shape), output.dtype) == (lengths, kinds[said[output.name].dataType]), output.name
        held = {ways_out.mark(each) for each in ways_out.coreml_arrays(path)}
        own = [each for each in read(path, str(path))[0].constants.values() if each.size >= 10]
        assert own and all(ways_out.mark(each) in held for each in own)


def test_weights_are_bit_for_bit_or_rounded(written: dict[str, Path]) -> None:
    for half in (False, True):
        model = ours(written[f"unet {half}"])
        known = ours(written["unet False"])
        for mine, its in zip(model.graph.kernels.values(), known.graph.kernels.values(), strict=True):
            parameters = getattr(mine, "parameters", None)
            if parameters is not None:
                exact = its.parameters.weights.numpy()
                wanted = exact.astype(np.float16).astype(np.float32) if half else exact
                np.testing.assert_array_equal(parameters.weights.numpy(), wanted)


# --- what an app has to know ------------------------------------------------------------------------------------------


def _classifier(channels: int = 3) -> mps.MPSNNGraph:
    descriptor = mps.MPSCNNConvolutionDescriptor(4, 4, channels, 5)
    weights = np.random.default_rng(0).normal(size=(5, 4, 4, channels)).astype(np.float32)
    source = mps.ArrayConvolutionDataSource(descriptor, weights, label="dense")
    node = mps.MPSCNNFullyConnectedNode(mps.MPSNNImageNode(mps.Handle("image")), source)
    return mps.MPSNNGraph(CPU, mps.MPSCNNSoftMaxNode(node.result_image).result_image)


def _files(package: Path) -> dict[str, bytes]:
    return {str(each.relative_to(package)): each.read_bytes() for each in package.rglob("*") if each.is_file()}


SIZE = mps.MPSImageDescriptor(FLOAT32, 4, 4, 3)
SEEN = coreml.CoreMLPreprocessing("RGB", (10.0, 20.0, 30.0), (0.01, 0.02, 0.03))


@pytest.mark.parametrize("half", [False, True])
def test_a_classifier_of_images(half: bool, tmp_path: Path) -> None:
    graph, labels = _classifier(), [f"kind {number}" for number in range(5)]
    options: dict[str, Any] = {
        "half": half,
        "preprocessing": SEEN,
        "class_labels": labels,
        "metadata": {"run": "first"},
    }
    for name in ("a.mlpackage", "b.mlpackage"):
        coreml.save(graph, tmp_path / name, SIZE, **options)
    files = [_files(tmp_path / name) for name in ("a.mlpackage", "b.mlpackage")]
    assert files[0] == files[1] and len(files[0]) == 3
    message = require_protos("test").model.Model.FromString(files[0]["Data/com.apple.CoreML/model.mlmodel"])
    weights = files[0]["Data/com.apple.CoreML/weights/weight.bin"]
    assert dict(message.description.metadata.userDefined) == {
        "run": "first", "openmps.weights.sha256": hashlib.sha256(weights).hexdigest(),
    }  # fmt: skip
    network = coreml.network(tmp_path / "a.mlpackage")
    assert network.class_labels == tuple(labels) and network.image_inputs == (("image", "RGB"),)
    pixels = np.random.default_rng(1).integers(0, 256, (1, 3, 4, 4), np.uint8)
    (found,) = network.model(CPU).run({"image": pixels}).values()
    mean, scale = (np.array(each, np.float32).reshape(1, 3, 1, 1) for each in SEEN[1:])
    wanted = _results(graph, [(pixels - mean) * scale])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2 if half else 1e-5)


def test_what_core_ml_cannot_do_is_listed_and_nothing_is_written(tmp_path: Path) -> None:
    image = mps.MPSNNImageNode(mps.Handle("image"))
    gram = mps.MPSNNGramMatrixCalculationNode(image, 1.0)
    pooled = mps.MPSCNNDilatedPoolingMaxNode(image, 2, 2, 1, 1, 2, 2)
    graph = mps.MPSNNGraph(CPU, result_images=[gram.result_image, pooled.result_image])
    with pytest.raises(mps.MPSOperatorError) as caught:
        coreml.save(graph, tmp_path / "net.mlpackage", mps.MPSImageDescriptor(FLOAT32, 4, 4, 4))
    assert [each["operator"] for each in caught.value.nodes] == ["MPSNNGramMatrixCalculationNode", "MaxPool"]
    large = mps.MPSCNNNeuronLinearNode(image, 1e5, 0.0)
    with pytest.raises(mps.MPSOperatorError, match="beyond float16"):
        coreml.save(mps.MPSNNGraph(CPU, large.result_image), tmp_path / "net.mlpackage", SIZE, half=True)
    assert list(tmp_path.iterdir()) == []


@in_one_test
@pytest.mark.parametrize(("options", "rule"), [
    ({"class_labels": ["a"]}, "class_labels must be 5"),
    ({"class_labels": "ab"}, "class_labels"),
    ({"class_labels": ["a", "b", "a", "c", "d"]}, "class_labels must differ"),
    ({"batch": 0}, "batch must be an integer of 1 to 65536"),
    ({"half": 2}, "half"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"preprocessing": SEEN, "batch": 2}, "preprocessing is for one image"),
    ({"preprocessing": SEEN._replace(order="HSV")}, "of the order RGB, BGR or grey"),
    ({"preprocessing": SEEN._replace(mean=(1.0,))}, "a mean and a scale for 3 channels"),
])  # fmt: skip
def test_arguments_that_cannot_be(options: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(mps.MPSError, match=rule):
        coreml.save(_classifier(), tmp_path / "net.mlpackage", SIZE, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "net.mlpackage").mkdir()
    with pytest.raises(mps.MPSFileError, match="must be a new folder"):
        coreml.save(_classifier(), tmp_path / "net.mlpackage", SIZE)
    assert list((tmp_path / "net.mlpackage").iterdir()) == []


def test_each_operator_of_the_onnx_writer_has_an_operation() -> None:
    """What `openmps.formats.onnx` writes, its source says."""
    texts = [(Path(str(onnx.__file__)).parent / name).read_text() for name in ("layers.py", "shape_layers.py")]
    named = {name for text in texts for name in re.findall(r'"([A-Z][A-Za-z]+)"', text)}
    assert named <= {*OPERATIONS}
