"""Graphs as Python for MLX, run with MLX: the same results layer by layer, and the same numbers after ten steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import openmps as mps
from in_one_test import in_one_test
from networks import Weights, convolution
from openmps.cli import main
from openmps.formats import mlx, network_arrays
from openmps.formats.mlx.folder import run_layers, source_labels
from openmps.training.network import Network, NetworkShape, optimizer_factory
from swift_samples import CPU, graphs, images

mx: Any = pytest.importorskip("mlx.core", reason="it runs what is exported")
nn: Any = pytest.importorskip("mlx.nn", reason="it runs what is exported")
pytestmark = pytest.mark.usefixtures("unflushed")

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
REFUSED = {
    **dict.fromkeys(
        (
            *(mps.MPSCNNBinaryConvolutionNode, mps.MPSCNNBinaryFullyConnectedNode, mps.MPSNNComparisonNode),
            *(mps.MPSCNNLocalContrastNormalizationNode, mps.MPSCNNSpatialNormalizationNode),
            *(mps.MPSNNGramMatrixCalculationNode, mps.MPSNNReductionFeatureChannelsArgumentMaxNode),
            mps.MPSNNReductionFeatureChannelsArgumentMinNode,
        ),
        "it is not written for MLX",
    ),
    mps.MPSCNNDropoutNode: "it drops out at random outside training",
}
"""Classes that are not written, or, of dropout, where it keeps all alone."""
PARTLY = (
    *("sub-pixel convolution", "that is depthwise is not written", "it reads a part of its source"),
    *("its edge mode is MIRROR", "its edge mode is MIRROR_WITH_EDGE", "its edge mode is CLAMP"),
)
"""Why single samples are not."""
LOSSES = (mps.MPSCNNLossNode, mps.MPSCNNYOLOLossNode, mps.MPSNNInitialGradientNode, mps.MPSNNForwardLossNode)


def class_of(files: Mapping[str, bytes], name: str = "Network") -> Any:
    """The class of an exported module, with its weights."""
    names: dict[str, Any] = {"__file__": "network.py"}
    exec(compile(files["network.py"], "network.py", "exec"), names)
    network = names[name]()
    network.load_weights([(key, mx.array(each)) for key, each in load(files["weights.safetensors"]).items()])
    return network.eval()


def descriptors(arrays: list[np.ndarray]) -> list[mps.MPSImageDescriptor]:
    return [mps.MPSImageDescriptor(FLOAT32, each.shape[2], each.shape[1], each.shape[3]) for each in arrays]


def compare(graph: mps.MPSNNGraph, arrays: list[np.ndarray], rtol: float = 1e-5) -> None:
    """Every layer of a graph beside MLX's."""
    graph.format = FLOAT32
    found = class_of(mlx.source(graph, descriptors(arrays))).layers(*map(mx.array, arrays))
    trace = graph.trace(arrays)
    assert list(found) == [each.label for each in trace.of(mps.debug.TracedKind.IMAGE)]
    for label, each in found.items():
        wanted = trace[label]
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30))
        np.testing.assert_allclose(np.array(each), wanted, rtol=0, atol=rtol * scale, err_msg=label)


SAMPLES: dict[Any, list[Any]] = {}
for _each in graphs():
    SAMPLES.setdefault(_each.values[0], []).append(_each.values)


@in_one_test
@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind not in LOSSES], ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore")  # groups of few channels
def test_every_node_class_gives_the_same(kind: Any, rng: np.random.Generator) -> None:
    written = 0
    for _, entry, sample in SAMPLES[kind]:
        node = entry.make(sample.make(CPU), images(len(sample.shapes)))
        graph = mps.MPSNNGraph(CPU, node.result_image)
        shapes = {f"x{place}": (2, *shape[-2:], shape[-3]) for place, shape in enumerate(sample.shapes)}
        given = [
            rng.uniform(0.1, 1, shapes[handle.label()]).astype(np.float32) for handle in graph.source_image_handles
        ]
        try:
            compare(graph, given)
            written += 1
        except mps.MPSExportError as error:
            (problem,) = error.problems
            assert REFUSED[kind] in problem if kind in REFUSED else any(why in problem for why in PARTLY)
    assert written > 0 or kind in REFUSED


# --- networks ---------------------------------------------------------------------------------------------------------


def trained(name: str, side: int, **options: Any) -> tuple[Network, mps.MPSNNGraph, mps.MPSImageDescriptor]:
    shape = NetworkShape(side, side, 3, 4, name)
    optimizer = optimizer_factory(options.pop("optimizer", "sgd"), 0.01)
    network = Network.create(shape, seed=3, optimizer=optimizer)
    graph = network.training_graph(CPU, FLOAT32, loss_weight=1 / 6, dropout_seed=0, probabilities=True, **options)
    return network, graph, shape.image_descriptor()


def steps_of(graph: mps.MPSNNGraph, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    queue = CPU.new_command_queue()
    for pixels, labels in batches:
        command_buffer = queue.command_buffer()
        states = mps.MPSCNNLossLabels.batch(CPU, labels)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, pixels)], [states])
        command_buffer.commit()
        command_buffer.wait_until_completed()


@pytest.mark.parametrize(("name", "optimizer"), [("lenet", "adam"), ("tiny", "rmsprop"), ("inception", "sgd")])
def test_ten_steps_lead_to_the_same_numbers(name: str, optimizer: str, rng: np.random.Generator) -> None:
    network, graph, image = trained(name, 8, optimizer=optimizer)
    module = class_of(mlx.source(graph, image))
    batches = [
        (rng.random((6, 8, 8, 3), np.float32), np.eye(4, dtype=np.float32)[rng.integers(0, 4, 6)]) for _ in range(10)
    ]
    steps_of(graph, batches)
    own, step = module.optimizer(), nn.value_and_grad(module, module.loss)
    module.train()
    for pixels, labels in batches:
        _, gradients = step(mx.array(pixels), mx.array(labels[:, None, None]))
        own.update(module, gradients)
        mx.eval(module.parameters(), own.state)
    found = {key: np.array(each) for key, each in mlx_parameters(module).items()}
    words = {"weights": "weight", "biases": "bias", "gamma": "weight", "beta": "bias", "mean": "running_mean",
             "variance": "running_var"}  # fmt: skip
    for key, array in network.arrays().items():
        label, part = key.rsplit(".", 1)
        mine = found[f"{label}.{words[part]}"].reshape(array.shape)
        scale = max(float(np.abs(array).max()), 1e-2)
        assert np.abs(mine - array).max() <= 1e-3 * scale, key


def mlx_parameters(module: Any) -> dict[str, Any]:
    utils: Any = pytest.importorskip("mlx.utils")
    return dict(utils.tree_flatten(module.parameters()))


# --- what is written, and what is not ---------------------------------------------------------------------------------


def labelled(label: str) -> mps.MPSNNGraph:
    """Two convolutions of one label."""
    x = mps.MPSNNImageNode(mps.Handle("image"))
    for _ in range(2):
        node = convolution(x, Weights(np.ones((4, 1, 1, 4), np.float32), None, label))
        node.label, x = label, node.result_image
    return mps.MPSNNGraph(CPU, x)


@pytest.mark.parametrize("label", ["NAME SOURCES", "class", "mx", "1 'b\"\\n", '"""', "\U0001f600\u2028", "äö/0"])
def test_labels_may_be_anything(label: str, rng: np.random.Generator) -> None:
    compare(labelled(label), [rng.random((1, 2, 2, 4), np.float32)])


def test_what_has_no_counterpart_is_listed_and_nothing_written(tmp_path: Path) -> None:
    x, y = images(2)
    sizes = mps.MTLSize(4, 4, 1)
    lanczos = mps.MPSNNLanczosScaleNode(x, sizes)
    lanczos.label = "sharp"
    both = mps.MPSNNComparisonNode(lanczos.result_image, y)
    graph = mps.MPSNNGraph(CPU, both.result_image)
    image = mps.MPSImageDescriptor(FLOAT32, 4, 4, 3)
    with pytest.raises(mps.MPSExportError, match="2 problems") as caught:
        mlx.export(graph, tmp_path / "out", [image, image])
    assert [each.split(":")[0] for each in caught.value.problems] == [
        "MPSNNLanczosScaleNode sharp",
        "MPSNNComparisonNode",
    ]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(mps.MPSArgumentError, match="name for a class"):
        mlx.source(labelled("x"), image, "no name")


def test_parts_that_nothing_trains_are_frozen(rng: np.random.Generator) -> None:
    x = mps.MPSNNImageNode(mps.Handle("image"))
    fixed = convolution(x, Weights.of(rng, (4, 3, 3, 3), "fixed"))
    fixed.label = "fixed"
    shape = mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4)
    source = mps.TrainableConvolutionDataSource.uniform(
        shape, limit=1.0, bias=0.0, seed=0, label="free", optimizer=optimizer_factory("sgd", 0.5)
    )
    free = mps.MPSCNNConvolutionNode(mps.MPSCNNNeuronReLUNode(fixed.result_image).result_image, source)
    free.label = "free"
    free.result_image.export_from_graph = True
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.HUBER, mps.MPSCNNReductionType.MEAN)
    (last,) = mps.MPSCNNLossNode(free.result_image, descriptor).training_graph(None) or []
    graph = mps.MPSNNGraph(CPU, last.result_image, result_image_is_needed=False)
    module = class_of(mlx.source(graph, mps.MPSImageDescriptor(FLOAT32, 5, 4, 3)))
    assert set(module.trainable_parameters()["free"]) == {"weight", "bias"}
    assert not module.trainable_parameters().get("fixed")
    assert module.optimizer().learning_rate.item() == 0.5


@pytest.mark.usefixtures("in_an_empty_folder")
def test_weights_that_mlx_has_trained_come_back(capsys: pytest.CaptureFixture[str], rng: np.random.Generator) -> None:
    """By the names and orders that `openmps weights` calls mlx's."""
    x = convolution(mps.MPSNNImageNode(mps.Handle("image")), Weights.of(rng, (4, 3, 3, 3), "conv")).result_image
    up = mps.MPSCNNConvolutionTransposeNode(x, weights=Weights.of(rng, (2, 3, 2, 4), "up"))
    graph = mps.MPSNNGraph(CPU, up.result_image)
    mps.MPSKeyedArchiver.archive(graph, Path("net.mps"))
    mps.MPSKeyedArchiver.archive(graph, Path("other.mps"))
    assert main(["export", "--mlx", "net.mps", "out", "--image", "5x4x3", "--name", "Net"]) == 0
    assert "class Net in network.py" in capsys.readouterr().out
    module = class_of({file.name: file.read_bytes() for file in Path("out").iterdir()}, "Net")
    module.update({name: {key: 2 * each for key, each in part.items()} for name, part in module.parameters().items()})
    module.save_weights("trained.safetensors")
    assert main(["weights", "convert", "trained.safetensors", "other.mps", "--from", "mlx", "--force"]) == 0
    found, own = (
        network_arrays(mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, Path(name), CPU))
        for name in ("other.mps", "net.mps")
    )
    for name, array in own.items():
        assert np.array_equal(found[name], 2 * array)


@pytest.mark.usefixtures("in_an_empty_folder")
def test_folders_that_are_none(rng: np.random.Generator) -> None:
    image = mps.MPSImageDescriptor(FLOAT32, 2, 2, 4)
    folder, given = mlx.export(labelled("x"), "out", image), [rng.random((1, 2, 2, 4), np.float32)]
    assert source_labels(folder) == ["image"]
    assert list(run_layers(folder, given)) == ["x", "x 2"]
    with pytest.raises(mps.MPSFileError, match="as many source images as it has, 1"):
        run_layers(folder, given * 2)
    with pytest.raises(mps.MPSFileError, match="must be a new folder"):
        mlx.export(labelled("x"), folder, image)
    (folder / "weights.safetensors").write_bytes(b"none")
    with pytest.raises(mps.MPSFileError, match="as openmps export --mlx writes it"):
        run_layers(folder, given)
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "sources": [{}]}))
    with pytest.raises(mps.MPSFileError, match='must have "sources" with labels'):
        run_layers(folder, given)
