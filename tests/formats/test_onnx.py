"""Small ONNX models as graphs: axes, shapes, padding, constants, and what is refused."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from onnx_models import CPU, error, model, node, numbers, ours, reference, runtime, saved
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSOperatorError, MPSTypeError
from openmps.formats import onnx as reader
from openmps.formats.onnx import OnnxModel
from openmps.formats.onnx.build import BUILDERS, FOLDS
from openmps.graph.convolution_nodes import MPSCNNConvolutionNode
from openmps.graph.normalization_nodes import MPSCNNBatchNormalizationNode
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


def conv(x: str, y: str, w: str = "w", **attributes):
    return node("Conv", f"{x} {w}", y, **attributes)


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


@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize("size", [(8, 9), (11, 12)])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 3)])
def test_convolution_windows(attributes, size, kernel, tmp_path: Path) -> None:
    made = model([conv("x", "y", **attributes)], {"x": ["n", 3, *size]}, w=numbers(4, 3, *kernel))
    check(made, tmp_path, (2, 3, *size))


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


def _layer(shared: bool = False):
    nodes = [
        conv("x", "c"),
        node("BatchNormalization", "c g b m v", "n"),
        node("Mul", "n s", "k"),
        node("Add", "k t", "a"),
        node("Relu", "a", "y"),
    ]
    rows = {"g": numbers(4), "b": numbers(4), "m": numbers(4), "v": np.abs(numbers(4)) + 1}
    outputs = ("y", "n") if shared else ("y",)
    constants = {"s": numbers(1, 4, 1, 1), "t": np.float32(0.5)}
    return model(nodes, {"x": ["n", 3, 6, 6]}, outputs, w=numbers(4, 3, 3, 3), **rows, **constants)


def test_what_follows_a_convolution_becomes_part_of_it(tmp_path: Path) -> None:
    assert len(check(_layer(), tmp_path, (2, 3, 6, 6)).graph.kernels) == 1


def test_what_somebody_else_reads_stays(tmp_path: Path) -> None:
    assert len(check(_layer(shared=True), tmp_path, (2, 3, 6, 6)).graph.kernels) > 1


def test_a_network_that_is_trained_keeps_its_layers_apart(tmp_path: Path) -> None:
    found = check(_layer(), tmp_path, (2, 3, 6, 6), trainable=True)
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
    made = _layer()
    found = ours(saved(made, tmp_path), trainable=sources)
    assert [type(each).__name__ for each in sources.made] == [
        "ArrayConvolutionDataSource", "ArrayBatchNormalizationDataSource", "ArrayConvolutionDataSource"
    ]  # fmt: skip
    feeds = {"x": numbers(2, 3, 6, 6)}
    assert error(found.run(feeds)["y"], reference(made, feeds)["y"]) < CLOSE
    with pytest.raises(MPSTypeError, match="trainable must be a flag"):
        ours(tmp_path / "model.onnx", trainable="yes")


def test_float16_images(tmp_path: Path) -> None:
    path = saved(_layer(), tmp_path)
    feeds = {"x": numbers(2, 3, 6, 6)}
    half = reader.network(path).model(CPU, MPSImageFeatureChannelFormat.FLOAT16).run(feeds)["y"]
    assert half.dtype == np.float32
    assert 0 < error(half, reference(_layer(), feeds)["y"]) < 1e-2


# --- what is refused --------------------------------------------------------------------------------------------------


def test_every_operator_that_cannot_be_expressed_is_listed(tmp_path: Path) -> None:
    nodes = [
        conv("x", "c"), node("Foo", "c", "f"), node("Einsum", "f", "e"), node("Bar", "x", "b"),
        node("Bar", "x", "b2"), node("MatMul", "e f", "m"), node("Relu", "m", "r"),
        node("Concat", "r b b2", "y", axis=1),
    ]  # fmt: skip
    made = model(nodes, {"x": [1, 3, 5, 5]}, w=numbers(4, 3, 3, 3))
    with pytest.raises(MPSOperatorError) as caught:
        ours(saved(made, tmp_path))
    found = [(each["node"], each["operator"]) for each in caught.value.problems]
    assert found == [
        ("Foo_f", "Foo"),
        ("Einsum_e", "Einsum"),
        ("Bar_b", "Bar"),
        ("Bar_b2", "Bar"),
        ("MatMul_m", "MatMul"),
    ]
    assert all(each["why"] and each["remedy"] for each in caught.value.problems)
    text = str(caught.value)
    assert "has 5 nodes that the framework cannot express" in text
    assert "Bar (Bar_b, Bar_b2): no node of the framework computes it" in text
    assert max(map(len, text.splitlines()[1:])) <= 80


@pytest.mark.parametrize(("nodes", "why"), [
    ([node("Resize", "x - s", "y", mode="cubic")], "cubic interpolation"),
    ([node("Softmax", "x", "y", axis=2)], "not over feature channels"),
    ([node("Conv", "x big", "y")], "weights of shape"),
    ([node("Conv", "x w", "y", pads=[1, 1])], "pads are not two for each"),
    ([node("Conv", "x w", "y", strides=[0, 1])], "strides must be at least 1"),
    ([node("Conv", "x x", "y")], "computes its weights"),
    ([node("AveragePool", "x", "y", kernel_shape=[9, 9])], "does not fit"),
    ([node("Add", "x map", "y")], "varies over pixels"),
    ([node("Reshape", "x shape", "y")], "fewer numbers|cuts across|more numbers|do not fit"),
    ([node("Identity", "w", "y")], "does not depend"),
    ([node("Transpose", "x", "t", perm=[0, 2, 1, 3]), node("Conv", "t w", "y")], "channels where there are pixels"),
])  # fmt: skip
def test_reasons(nodes, why: str, tmp_path: Path) -> None:
    made = model(
        nodes, {"x": [1, 3, 5, 5]}, s=np.array([1, 1, 2, 2], np.float32), big=numbers(4, 7, 3, 3),
        w=numbers(4, 3, 3, 3), map=numbers(5, 5), shape=np.array([4, 19]),
    )  # fmt: skip
    with pytest.raises(MPSOperatorError, match=why):
        ours(saved(made, tmp_path))


def test_a_number_that_repeats_is_bounded(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", "s", "w"), conv("x", "y")]
    made = model(nodes, {"x": [1, 512, 5, 5]}, s=np.array([1024, 512, 3, 3]))
    with pytest.raises(MPSFileError, match="fill_limit"):
        ours(saved(made, tmp_path))
    assert ours(tmp_path / "model.onnx", fill_limit=32 << 20).outputs[0].shape == (1, 1024, 3, 3)


def test_constants_that_double_are_bounded(tmp_path: Path) -> None:
    nodes = [node("Concat", f"c{place} c{place}", f"c{place + 1}", axis=0) for place in range(60)]
    made = model([*nodes, node("Add", "x c60", "y")], {"x": [1, 3, 5, 5]}, c0=np.zeros(8, np.float32))
    with pytest.raises(MPSFileError, match="fill_limit"):
        ours(saved(made, tmp_path))


@pytest.mark.parametrize(("content", "why"), [
    (b"", "does not begin as one"),
    (b"This is text, and no model.\n", "does not begin as one"),
    (b"\x08\x07\x12\xff\xff\xff\xff\x7f", "cannot be parsed"),
    (b"\x08\x07", "no graph with outputs"),
])  # fmt: skip
def test_files_that_are_no_models(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(MPSFileError, match=f"model.onnx is no ONNX model, or a damaged one: .*{why}"):
        ours(tmp_path / "model.onnx")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(MPSFileError, match="must be no longer than 2,147,483,647 bytes.*external data"):
        ours(tmp_path / "model.onnx")


def test_without_the_package_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(_layer(), tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MPSError, match=r'needs the onnx package.*pip install "openmps\[onnx\]"'):
        ours(path)


@pytest.mark.parametrize(("arrays", "kind", "why"), [
    ({}, MPSArgumentError, r"input x is missing: an array of float32, nx3x6x6"),
    ({"x": numbers(2, 3, 6, 5)}, MPSArgumentError, r"input x must be of shape nx3x6x6, got 2x3x6x5"),
    ({"x": numbers(2, 3, 36)}, MPSArgumentError, r"input x must be of shape nx3x6x6, got 2x3x36"),
    ({"x": numbers(0, 3, 6, 6)}, MPSArgumentError, r"input x must be of shape"),
    ({"y": numbers(2, 3, 6, 6)}, MPSArgumentError, "input y is none of the inputs: 'x'"),
    ({"x": [1, 2]}, MPSTypeError, "must be a NumPy array of real numbers"),
    ({"x": np.zeros((1, 3, 6, 6), complex)}, MPSTypeError, "must be a NumPy array of real numbers"),
])  # fmt: skip
def test_arrays_that_do_not_fit(arrays, kind, why: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=why):
        ours(saved(_layer(), tmp_path)).run(arrays)


@pytest.mark.parametrize(("shapes", "why"), [
    ({"z": (1, 3)}, "must be of inputs, 'x'"),
    ({"x": (1, 3)}, "must have 4 lengths"),
    ({"x": (1, 5, 6, 6)}, "must fit the model's"),
    ({"x": (1, 3, 0, 6)}, "must be lengths of at least 1"),
])  # fmt: skip
def test_shapes_that_do_not_fit(shapes, why: str, tmp_path: Path) -> None:
    with pytest.raises(MPSArgumentError, match=why):
        ours(saved(_layer(), tmp_path), shapes=shapes)


def test_a_fixed_batch_stays_fixed(tmp_path: Path) -> None:
    made = model([conv("x", "y")], {"x": [2, 3, 6, 6]}, w=numbers(4, 3, 3, 3))
    found = ours(saved(made, tmp_path))
    with pytest.raises(MPSArgumentError, match="must be of shape 2x3x6x6, got 1x3x6x6"):
        found.run({"x": numbers(1, 3, 6, 6)})


# --- external data ----------------------------------------------------------------------------------------------------


def _external(folder: Path, **changes: str) -> Path:
    made = model([conv("x", "y")], {"x": [1, 3, 6, 6]}, w=numbers(40, 3, 3, 3))
    onnx.save(made, folder / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    again = onnx.load(folder / "model.onnx", load_external_data=False)
    for entry in again.graph.initializer[0].external_data:
        entry.value = changes.get(entry.key, entry.value)
    return saved(again, folder)


def test_external_data(tmp_path: Path) -> None:
    feeds = {"x": numbers(1, 3, 6, 6)}
    made = model([conv("x", "y")], {"x": [1, 3, 6, 6]}, w=numbers(40, 3, 3, 3))
    assert error(ours(_external(tmp_path)).run(feeds)["y"], reference(made, feeds)["y"]) < CLOSE


@pytest.mark.parametrize(("changes", "why"), [
    ({"location": "../model.data"}, "beneath the model's folder"),
    ({"location": "/etc/passwd"}, "beneath the model's folder"),
    ({"location": "link/passwd"}, "beneath the model's folder"),
    ({"location": "gone.data"}, r"gone.data must be there: it holds tensor 'w', got nothing there"),
    ({"offset": "-1"}, "whole number as the offset"),
    ({"offset": "99999999"}, "must hold bytes"),
    ({"length": "12"}, "must have 4,320 bytes"),
    ({"length": "9" * 30}, "whole number as the length"),
])  # fmt: skip
def test_external_data_that_is_wrong(changes, why: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(MPSFileError, match=why):
        ours(_external(tmp_path, **changes))


# --- the table --------------------------------------------------------------------------------------------------------


def test_operators_are_those_of_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    assert {*BUILDERS, *FOLDS} <= known


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
