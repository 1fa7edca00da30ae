"""Small ONNX models as graphs: axes, shapes, padding, constants, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from onnx_models import CPU, conv, error, layer, model, node, numbers, ours, reference, runtime, saved
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.errors import MPSArgumentError, MPSOperatorError, MPSTypeError
from openmps.formats import onnx as reader
from openmps.formats.onnx import OnnxModel
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.normalization import MPSCNNBatchNormalizationNode
from openmps.runtime.devices import MTLCreateSystemDefaultDevice
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.training.normalization_sources import ArrayBatchNormalizationDataSource
from openmps.types import MPSImageFeatureChannelFormat

onnx = pytest.importorskip("onnx")
CLOSE = 3e-6


def check(made, folder: Path, *shapes: tuple[int, ...], by_runtime: bool = False, **options) -> OnnxModel:
    """The numbers are those of ONNX's reference, and come out of an archive the same.

    The reference has faults in pooling and in groups of transposed convolutions: ONNX Runtime is asked of those.
    """
    found = ours(saved(made, folder), **options)
    feeds = {
        port.name: numbers(*shape, seed=place)
        for place, (port, shape) in enumerate(zip(found.inputs, shapes, strict=False))
    }
    wanted = runtime(folder / "model.onnx", feeds) if by_runtime else reference(made, feeds)
    got = found.run(feeds)
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert error(got[name], array) < CLOSE, name
    found.save(folder / "model.mps")
    again = OnnxModel.open(folder / "model.mps", CPU).run(feeds)
    assert all(np.array_equal(again[name], got[name]) for name in wanted)
    return found


# --- windows ----------------------------------------------------------------------------------------------------------

WINDOWS = [
    {"pads": [1, 0, 2, 3]},
    {"pads": [1, 2, 0, 1], "strides": [2, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [1, 3]},
    {"auto_pad": "VALID", "strides": [1, 2]},
    {"dilations": [2, 3], "pads": [2, 1, 2, 1]},
    {"dilations": [2, 1], "auto_pad": "SAME_LOWER"},
]


@in_one_test
@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize("size", [(8, 9), (11, 12)])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 3)])
def test_convolution_windows(attributes, size, kernel, tmp_path: Path) -> None:
    made = model([conv("x", "y", **attributes)], {"x": ["n", 3, *size]}, w=numbers(4, 3, *kernel))
    check(made, tmp_path, (2, 3, *size))


def test_the_systems_default_device(tmp_path: Path) -> None:
    """What makes a graph of a file takes it where no device is given."""
    path = saved(model([conv("x", "y")], {"x": ["n", 3, 8, 8]}, w=numbers(4, 3, 3, 3)), tmp_path)
    network, default = reader.network(path), MTLCreateSystemDefaultDevice()
    opened = network.model()
    opened.save(tmp_path / "model.omps")
    graphs = [reader.load(path), network.graph(), opened.graph, OnnxModel.open(tmp_path / "model.omps").graph]
    assert [graph.device for graph in graphs] == [default] * 4
    for given in ("cpu", 0):
        with pytest.raises(MPSTypeError, match="device must be an MTLDevice"):
            reader.load(path, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)])
def test_same_padding_of_a_size_that_is_left_open(automatic: str, kernel, tmp_path: Path) -> None:
    nodes = [conv("x", "y", auto_pad=automatic, strides=[2, 2])]
    made = model(nodes, {"x": ["n", 3, "h", "w"]}, w=numbers(4, 3, *kernel))
    found = ours(saved(made, tmp_path))
    for size in ((8, 8), (9, 12), (11, 7)):
        feeds = {"x": numbers(2, 3, *size)}
        assert error(found.run(feeds)["y"], reference(made, feeds)["y"]) < CLOSE


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_groups(group: int, tmp_path: Path) -> None:
    made = model([conv("x", "y", group=group)], {"x": [2, 8, 6, 6]}, w=numbers(16, 8 // group, 3, 3))
    with pytest.warns(UserWarning, match="multiples of 4") if group == 4 else nullcontext():
        check(made, tmp_path, (2, 8, 6, 6))


TRANSPOSED = [
    {},
    {"strides": [2, 3]},
    {"strides": [2, 2], "pads": [1, 0, 0, 1]},
    {"strides": [3, 2], "output_padding": [1, 1]},
    {"strides": [2, 2], "output_shape": [14, 13]},
    {"dilations": [2, 1]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
]


@pytest.mark.parametrize("attributes", TRANSPOSED)
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(attributes, group: int, tmp_path: Path) -> None:
    nodes = [node("ConvTranspose", "x w b", "y", group=group, **attributes)]
    made = model(nodes, {"x": [2, 8, 6, 6]}, w=numbers(8, 4, 3, 3), b=numbers(4 * group))
    check(made, tmp_path, (2, 8, 6, 6), by_runtime=True)


POOLS = [
    {"dilations": [2, 3], "pads": [1, 1, 1, 1]},
    {"dilations": [2, 1], "strides": [2, 2], "pads": [1, 0, 2, 1], "ceil_mode": 1},
    {"strides": [2, 2], "ceil_mode": 1},
    {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"strides": [2, 1], "auto_pad": "SAME_LOWER"},
    {"strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
]


@in_one_test
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize("counts", [0, 1])
def test_pooling_windows(operator: str, attributes, counts: int, tmp_path: Path) -> None:
    if operator == "AveragePool" and "dilations" in attributes:
        pytest.skip("only maximum pooling has a dilation rate")
    more = {"count_include_pad": counts} if operator == "AveragePool" else {}
    made = model([node(operator, "x", "y", kernel_shape=[3, 2], **attributes, **more)], {"x": [2, 3, 9, 10]})
    check(made, tmp_path, (2, 3, 9, 10), by_runtime=True)


# --- axes -------------------------------------------------------------------------------------------------------------


def test_a_dense_layer_behind_flatten_counts_channels_first(tmp_path: Path) -> None:
    nodes = [conv("x", "c"), node("Flatten", "c", "f"), node("Gemm", "f m b", "y", transB=1)]
    made = model(nodes, {"x": ["n", 3, 6, 7]}, w=numbers(4, 3, 3, 3), m=numbers(5, 80), b=numbers(5))
    check(made, tmp_path, (3, 3, 6, 7))


def test_a_dense_layer_behind_a_transposed_image(tmp_path: Path) -> None:
    nodes = [
        conv("x", "c"),
        node("Transpose", "c", "t", perm=[0, 3, 2, 1]),
        node("Reshape", "t s", "f"),
        node("MatMul", "f m", "p"),
        node("Add", "p b", "y"),
    ]
    constants = {"w": numbers(4, 3, 3, 3), "m": numbers(80, 5), "b": numbers(5), "s": np.array([-1, 80])}
    check(model(nodes, {"x": ["n", 3, 6, 7]}, **constants), tmp_path, (3, 3, 6, 7))


def test_shapes_as_exporters_compute_them(tmp_path: Path) -> None:
    """Shape, Gather, Unsqueeze, Concat, Reshape: the batch is not known."""
    nodes = [
        conv("x", "c"),
        node("Shape", "c", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "u"),
        node("Concat", "u rest", "shape", axis=0),
        node("Reshape", "c shape", "f"),
        node("MatMul", "f m", "y"),
    ]
    shapes = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    made = model(nodes, {"x": ["n", 3, 6, 7]}, w=numbers(4, 3, 3, 3), m=numbers(80, 5), **shapes)
    check(made, tmp_path, (3, 3, 6, 7))


def test_a_channel_shuffle(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x s", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "b t", "c"),
        conv("c", "y"),
    ]
    shapes = {"s": np.array([0, 2, 3, 5, 5]), "t": np.array([-1, 6, 5, 5])}
    check(model(nodes, {"x": ["n", 6, 5, 5]}, w=numbers(4, 6, 3, 3), **shapes), tmp_path, (2, 6, 5, 5))


def test_pixels_as_tokens(tmp_path: Path) -> None:
    """N, C, H, W to N, H W, C, a layer normalization written out, a matrix, and back."""
    nodes = [
        node("Reshape", "x s", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1]),
        node("ReduceMean", "t", "mean", axes=[-1]),
        node("Sub", "t mean", "d"),
        node("Pow", "d two", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "root"),
        node("Div", "d root", "h"),
        node("Mul", "h g", "k"),
        node("Add", "k b", "l"),
        node("MatMul", "l m", "o"),
        node("Transpose", "o", "back", perm=[0, 2, 1]),
        node("Reshape", "back u", "y"),
    ]
    constants = {
        "s": np.array([0, 6, 20]),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "g": numbers(6),
        "b": numbers(6),
        "m": numbers(6, 8),
        "u": np.array([-1, 8, 4, 5]),
    }
    check(model(nodes, {"x": ["n", 6, 4, 5]}, **constants), tmp_path, (2, 6, 4, 5))


def test_an_input_with_channels_last(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        conv("t", "c"),
        node("Transpose", "c", "y", perm=[0, 2, 3, 1]),
    ]
    found = check(model(nodes, {"x": ["n", 6, 7, 3]}, w=numbers(4, 3, 3, 3)), tmp_path, (2, 6, 7, 3))
    assert len(found.graph.kernels) == 1


@pytest.mark.parametrize("sizes", [(4, 8), (3, 5), (1, 2, 1)])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_concatenation(sizes: tuple[int, ...], axis: int, tmp_path: Path) -> None:
    nodes = [conv("x", f"c{place}", f"w{place}") for place in range(len(sizes))]
    names = " ".join(f"c{place}" for place in range(len(sizes)))
    weights = {f"w{place}": numbers(size if axis == 1 else 4, 3, 1, 1, seed=place) for place, size in enumerate(sizes)}
    made = model([*nodes, node("Concat", names, "y", axis=axis)], {"x": [2, 3, 5, 6]}, **weights)
    check(made, tmp_path, (2, 3, 5, 6))


SLICES = [
    ([1], [4], [2], [1]),
    ([0, 1], [5, 6], [2, 3], [2, 2]),
    ([2], [5], [1], [1]),
    ([-3], [2**40], [3], [1]),
    ([5], [-(2**60)], [1], [-2]),
]


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slices(starts, ends, axes, steps, tmp_path: Path) -> None:
    constants = {name: np.array(value) for name, value in {"s": starts, "e": ends, "a": axes, "p": steps}.items()}
    made = model([node("Slice", "x s e a p", "y")], {"x": [2, 6, 5, 6]}, **constants)
    check(made, tmp_path, (2, 6, 5, 6))


def test_split_and_arithmetic_with_broadcasting(tmp_path: Path) -> None:
    nodes = [
        node("Split", "x lengths", "a b", axis=1),
        node("ReduceMean", "a", "m", axes=[2, 3]),
        node("Mul", "b m", "p"),
        node("ReduceMax", "p", "top", axes=[1]),
        node("Sub", "top p", "y"),
    ]
    check(model(nodes, {"x": [2, 6, 5, 6]}, lengths=np.array([3, 3])), tmp_path, (2, 6, 5, 6))


def test_inputs_and_outputs_keep_their_names_and_order(tmp_path: Path) -> None:
    nodes = [node("Add", "b a", "s"), node("Relu", "s", "r"), node("Identity", "r", "same"), node("Neg", "a", "n")]
    made = model(nodes, {"a": [2, 3, 4, 4], "b": [2, 3, 4, 4]}, ("n", "same", "r", "s"))
    found = check(made, tmp_path, (2, 3, 4, 4), (2, 3, 4, 4))
    assert [port.name for port in found.inputs] == ["a", "b"]
    assert [port.name for port in found.outputs] == ["n", "same", "r", "s"]
    graph = reader.load(tmp_path / "model.onnx", CPU)
    assert sorted(handle.label() or "" for handle in graph.source_image_handles) == ["a", "b"]


def test_an_output_within_the_model(tmp_path: Path) -> None:
    made = model([conv("x", "c"), node("Foo", "c", "y")], {"x": [1, 3, 5, 5]}, w=numbers(4, 3, 3, 3))
    found = ours(saved(made, tmp_path), outputs=["c"])
    assert found.run({"x": numbers(1, 3, 5, 5)})["c"].shape == (1, 4, 3, 3)
    with pytest.raises(MPSArgumentError, match="outputs must be names of values of the model, got 'z'"):
        ours(tmp_path / "model.onnx", outputs=["z"])


# --- folding, and training --------------------------------------------------------------------------------------------


def test_what_follows_a_convolution_becomes_part_of_it(tmp_path: Path) -> None:
    assert len(check(layer(), tmp_path, (2, 3, 6, 6)).graph.kernels) == 1


def test_what_somebody_else_reads_stays(tmp_path: Path) -> None:
    assert len(check(layer(shared=True), tmp_path, (2, 3, 6, 6)).graph.kernels) > 1


def test_a_network_that_is_trained_keeps_its_layers_apart(tmp_path: Path) -> None:
    found = check(layer(), tmp_path, (2, 3, 6, 6), trainable=True)
    kinds = [type(each) for each in found.graph.kernels]
    assert kinds.count(MPSCNNBatchNormalizationNode) == 1
    weighted = [each for each in found.graph.kernels if isinstance(each, MPSCNNConvolutionNode)]
    assert [each.weights.descriptor().fused_neuron_descriptor for each in weighted] == [None, None]


class Sources:
    """Makes data sources, and keeps them."""

    def __init__(self) -> None:
        self.made: list[object] = []

    def convolution(self, descriptor, weights, biases, label):
        self.made.append(ArrayConvolutionDataSource(descriptor, weights, biases, label))
        return self.made[-1]

    def batch_normalization(self, gamma, beta, mean, variance, epsilon, label):
        self.made.append(
            ArrayBatchNormalizationDataSource(len(gamma), gamma, beta, mean, variance, label, epsilon=epsilon)
        )
        return self.made[-1]


def test_data_sources_of_the_caller(tmp_path: Path) -> None:
    sources = Sources()
    made = layer()
    found = ours(saved(made, tmp_path), trainable=sources)
    assert [type(each).__name__ for each in sources.made] == [
        "ArrayConvolutionDataSource", "ArrayBatchNormalizationDataSource", "ArrayConvolutionDataSource"
    ]  # fmt: skip
    feeds = {"x": numbers(2, 3, 6, 6)}
    assert error(found.run(feeds)["y"], reference(made, feeds)["y"]) < CLOSE
    with pytest.raises(MPSTypeError, match="trainable must be a flag"):
        ours(tmp_path / "model.onnx", trainable="yes")


def test_float16_images(tmp_path: Path) -> None:
    path = saved(layer(), tmp_path)
    feeds = {"x": numbers(2, 3, 6, 6)}
    half = reader.network(path).model(CPU, MPSImageFeatureChannelFormat.FLOAT16).run(feeds)["y"]
    assert half.dtype == np.float32
    assert 0 < error(half, reference(layer(), feeds)["y"]) < 1e-2


def test_a_hard_swish_that_is_written_out(tmp_path: Path) -> None:
    nodes = [
        conv("x", "c"),
        node("Add", "c three", "a"),
        node("Clip", "a zero six", "h"),
        node("Mul", "c h", "m"),
        node("Div", "m six", "d"),
        node("Mul", "d s", "k"),
        node("Add", "k t", "y"),
    ]
    constants = {"three": 3, "zero": 0, "six": 6, "s": 1.5, "t": -0.5}
    numbers_ = {name: np.float32(value) for name, value in constants.items()}
    made = model(nodes, {"x": ["n", 3, 6, 6]}, w=numbers(4, 3, 3, 3), **numbers_)
    assert len(check(made, tmp_path, (2, 3, 6, 6)).graph.kernels) == 3


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_numbers_behind_arithmetic_become_part_of_it(operator: str, tmp_path: Path) -> None:
    nodes = [node(operator, "a b", "c"), node("Mul", "c s", "d"), node("Add", "d t", "e"), node("Sub", "u e", "y")]
    constants = {"s": np.float32(1.5), "t": np.float32(-0.5), "u": np.float32(2)}
    made = model(nodes, {"a": [2, 3, 4, 4], "b": [2, 3, 1, 1]}, **constants)
    assert len(check(made, tmp_path, (2, 3, 4, 4), (2, 3, 1, 1)).graph.kernels) == 1


# --- sizes that are known when a network runs -------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Sum"])
def test_images_of_unequal_sizes_are_refused_as_they_run(operator: str, tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "p - s", "r", mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
        node(operator, "r x", "y"),
    ]
    made = model(nodes, {"x": ["n", 3, "h", "w"]}, s=np.array([1, 1, 2, 2], np.float32))
    network = reader.network(saved(made, tmp_path))
    found = network.model(CPU)
    even = numbers(2, 3, 4, 6) + 1
    assert error(found.run({"x": even})["y"], reference(made, {"x": even})["y"]) < 1e-5
    found.save(tmp_path / "net.mps")
    graph = network.graph(CPU)
    for again in (found, reader.OnnxModel.open(tmp_path / "net.mps", CPU)):
        for shape, sizes in {(1, 3, 5, 7): "6x4 and 7x5", (1, 3, 4, 7): "6x4 and 7x4"}.items():
            with pytest.raises(MPSArgumentError, match=f"sources must be of one size: .*got .*{sizes}"):
                again.run({"x": numbers(*shape)})
    with pytest.raises(MPSArgumentError, match="sources must be of one size"):
        graph.program_for([MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 7, 5, 3)])


def test_concatenations_of_unequal_sizes_are_refused_as_they_run(tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "p - s", "r", mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
        node("Concat", "r x", "y", axis=1),
    ]
    made = model(nodes, {"x": ["n", 4, "h", "w"]}, s=np.array([1, 1, 2, 2], np.float32))
    found = ours(saved(made, tmp_path))
    even = numbers(1, 4, 4, 6)
    assert error(found.run({"x": even})["y"], reference(made, {"x": even})["y"]) < 1e-5
    with pytest.raises(
        MPSArgumentError,
        match="sources must have the same width and height, got 6x4 of MPSCNNUpsamplingNearest 'Resize_r'",
    ):
        found.run({"x": numbers(1, 4, 5, 6)})


def test_lengths_of_1_are_broadcast_as_ever(tmp_path: Path) -> None:
    nodes = [node("GlobalAveragePool", "x", "g"), node("Sigmoid", "g", "s"), node("Mul", "x s", "y")]
    made = model(nodes, {"x": ["n", 4, "h", "w"]})
    x = numbers(2, 4, 5, 3)
    assert error(ours(saved(made, tmp_path)).run({"x": x})["y"], reference(made, {"x": x})["y"]) < 1e-5


# --- GeLU as exporters write it ---------------------------------------------------------------------------------------


def _gelu_by_erf(order: str) -> list[Any]:
    first = node("Div", "c root", "z") if "div" in order else node("Mul", "inverse c", "z")
    nodes = [conv("x", "c"), first, node("Erf", "z", "e"), node("Add", "e one", "o")]
    if order.startswith("source"):
        nodes += [node("Mul", "c o", "p"), node("Mul", "p half", "y")]
    elif order.startswith("half of source"):
        nodes += [node("Mul", "c half", "h"), node("Mul", "h o", "y")]
    else:
        nodes += [node("Mul", "half o", "p"), node("Mul", "p c", "y")]
    return nodes


@pytest.mark.parametrize("scaled", ["", ", div"])
@pytest.mark.parametrize("order", ["source", "half", "half of source"])
def test_gelu_by_the_error_function_is_one_neuron(order: str, scaled: str, tmp_path: Path) -> None:
    values = {"root": 2**0.5, "inverse": 0.5**0.5, "one": 1.0, "half": 0.5}
    numbers_of = {name: np.float32(value) for name, value in values.items()}
    made = model(_gelu_by_erf(order + scaled), {"x": ["n", 3, 6, 6]}, w=numbers(4, 3, 3, 3), **numbers_of)
    found = ours(saved(made, tmp_path))
    kinds = [type(each).__name__ for each in found.graph.kernels]
    assert kinds == ["MPSCNNConvolutionNode"] or kinds[1:] == ["MPSCNNNeuronGeLUNode"]
    feeds = {"x": numbers(2, 3, 6, 6, scale=2.0)}
    assert error(found.run(feeds)["y"], reference(made, feeds)["y"]) < 1e-5


@pytest.mark.parametrize("change", ["another factor", "read twice", "comes out", "no source"])
def test_an_error_function_that_is_no_gelu_is_listed(change: str, tmp_path: Path) -> None:
    nodes, outputs = _gelu_by_erf("half"), ["y"]
    one = np.float32(1.5 if change == "another factor" else 1)
    if change == "read twice":
        nodes.append(node("Add", "o y", "t"))
        outputs = ["t"]
    elif change == "comes out":
        outputs = ["y", "e"]
    elif change == "no source":
        nodes[-1] = node("Mul", "p x2", "y")
        nodes.insert(0, conv("x", "x2"))
    more = {"inverse": np.float32(0.5**0.5), "one": one, "half": np.float32(0.5)}
    made = model(nodes, {"x": ["n", 3, 6, 6]}, outputs, w=numbers(4, 3, 3, 3), **more)
    with pytest.raises(MPSOperatorError) as caught:
        ours(saved(made, tmp_path))
    assert "Erf" in [each["operator"] for each in caught.value.nodes]


def test_gelu_by_tanh(tmp_path: Path) -> None:
    made = model([node("Gelu", "x", "y", approximate="tanh")], {"x": ["n", 3, 6, 6]}, opset=20)
    feeds = {"x": numbers(2, 3, 6, 6, scale=3.0)}
    wanted = torch.nn.functional.gelu(torch.from_numpy(feeds["x"]).double(), approximate="tanh").numpy()
    assert np.abs(ours(saved(made, tmp_path)).run(feeds)["y"] - wanted).max() < 1e-5
