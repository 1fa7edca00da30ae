"""Corners of ONNX's operators: ONNX's numbers, or a refusal by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from onnx_models import CPU, Array, conv, error, model, node, numbers, ours, reference, saved
from openmps.errors import MPSArgumentError, MPSOperatorError
from openmps.formats import onnx as reader
from openmps.types import MPSImageFeatureChannelFormat

pytest.importorskip("onnx")
CLOSE = 3e-6
I64 = np.int64


def whole(*values: int) -> Array:
    return np.array(values, I64)


def compare(made: Any, feeds: dict[str, Array], folder: Path, wanted: Array | None = None) -> None:
    """Our numbers beside the reference's, or given ones."""
    found = ours(saved(made, folder)).run(feeds)["y"]
    wanted = reference(made, feeds)["y"] if wanted is None else wanted
    assert error(found, wanted) < CLOSE


# --- refused ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("nodes", "shape", "constants", "why"), [
    ([node("Slice", "x s e a t", "y")], ["n", 3, "h", 4],
     {"s": whole(0), "e": whole(2**62), "a": whole(2), "t": whole(2)}, "length of its axis is not known"),
    ([node("Slice", "x s e a t", "y")], ["n", 3, 4, 4],
     {"s": whole(0), "e": whole(2**62), "a": whole(0), "t": whole(-1)}, "length of its axis is not known"),
    ([node("Pow", "x c", "y")], [2, 3], {"c": np.full((1, 1, 1), 3, np.float32)}, "has 3 axes, its other input 2"),
    ([node("Min", "x c", "y")], [2, 3], {"c": np.full((1, 1, 1), 3, np.float32)}, "has 3 axes, its other input 2"),
    ([node("Max", "c x", "y")], [2, 3], {"c": np.full((1, 1, 1), 3, np.float32)}, "has 3 axes, its other input 2"),
    ([node("Relu", "x", "r"), node("Squeeze", "r", "y")], [1, 3, 1, 1], {}, "every axis of length 1"),
    ([node("Relu", "x", "r"), node("Squeeze", "r", "y")], ["n", 3, 1, 1], {}, "every axis of length 1"),
    ([node("Relu", "x", "r"), node("Squeeze", "r", "y")], [2, 3, "h", 4], {}, "every axis of length 1"),
    ([node("Gemm", "x b c", "y")], [5, 4], {"b": numbers(4, 5), "c": numbers(5, 1)}, "no row of 5 numbers"),
    ([node("Resize", "x - - z", "y")], [1, 3, 4, 4], {"z": whole(1, 6, 8, 8)}, "change the batch or the channels"),
    ([node("Resize", "x - - z", "y")], ["n", 3, 4, 4], {"z": whole(1, 3, 8, 8)}, "fix a batch that varies"),
    ([node("AveragePool", "x", "y", kernel_shape=[3, 3], auto_pad="SAME_UPPER", count_include_pad=1)],
     ["n", 3, "h", "w"], {}, "counts a padding"),
])  # fmt: skip
def test_what_could_be_another_tensor(nodes, shape, constants, why: str, tmp_path: Path) -> None:
    with pytest.raises(MPSOperatorError, match=why):
        ours(saved(model(nodes, {"x": shape}, **constants), tmp_path))


# --- given ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_the_place_along_channels_in_another_order(operator: str, tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x s", "a"), node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "b t", "c"), node(operator, "c", "p", axis=1), node("Cast", "p", "y", to=1),
    ]  # fmt: skip
    made = model(nodes, {"x": [2, 6, 2, 2]}, s=whole(2, 2, 3, 2, 2), t=whole(2, 6, 2, 2))
    compare(made, {"x": numbers(2, 6, 2, 2)}, tmp_path)


@pytest.mark.parametrize(("attributes", "size"), [
    ({"kernel_shape": [2, 1], "strides": [2, 2], "dilations": [3, 2]}, (7, 10)),
    ({"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [3, 3], "pads": [2, 1, 1, 0]}, (9, 8)),
])  # fmt: skip
def test_dilated_windows_that_reach_beyond_the_image(attributes, size, tmp_path: Path) -> None:
    made = model([node("MaxPool", "x", "y", ceil_mode=1, **attributes)], {"x": ["n", 4, *size]})
    compare(made, {"x": numbers(2, 4, *size)}, tmp_path)


def test_a_ceiling_without_padding(tmp_path: Path) -> None:
    made = model([node("MaxPool", "x", "y", kernel_shape=[2], strides=[3], auto_pad="VALID", ceil_mode=1)],
                 {"x": [1, 1, 4]})  # fmt: skip
    wanted = np.array([[[2, 4]]], np.float32)  # as the rule of shapes has it, and ONNX Runtime
    compare(made, {"x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4)}, tmp_path, wanted)


@pytest.mark.parametrize(("attributes", "wanted"), [
    ({"auto_pad": "SAME_UPPER"}, [1, 10, 0, 2, 20]),
    ({"auto_pad": "SAME_LOWER"}, [1, 10, 0, 2, 20]),
    ({"auto_pad": "SAME_LOWER", "output_padding": [1]}, [1, 10, 0, 2, 20, 0]),
    ({"output_shape": [8]}, [1, 10, 0, 2, 20, 0, 0, 0]),
    ({"output_shape": [4]}, [10, 0, 2, 20]),
    ({"output_shape": [4], "auto_pad": "SAME_UPPER"}, [1, 10, 0, 2]),
])  # fmt: skip
def test_a_transposed_convolution_by_its_result(attributes, wanted, tmp_path: Path) -> None:
    """Numbers beyond the windows are zeros behind them, as ONNX Runtime has it."""
    made = model([node("ConvTranspose", "x w", "y", strides=[3], **attributes)], {"x": [1, 1, 2]},
                 w=np.array([[[1, 10]]], np.float32))  # fmt: skip
    compare(made, {"x": np.array([[[1, 2]]], np.float32)}, tmp_path, np.array([[wanted]], np.float32))


def test_remainders_and_parts_of_shapes_of_constants(tmp_path: Path) -> None:
    nodes = [node("Mod", "a b", "c", fmod=1), node("Mul", "x c", "m"), node("Shape", "d", "s", start=1, end=-1),
             node("Reshape", "m s", "r"), node("Relu", "r", "y")]  # fmt: skip
    constants = {"a": np.float32([-5.5, 5.5, -3]), "b": np.float32([3, -3, 2]), "d": numbers(9, 2, 3, 7)}
    compare(model(nodes, {"x": [2, 3]}, **constants), {"x": numbers(2, 3)}, tmp_path)


@pytest.mark.parametrize(("nodes", "shape"), [
    ([node("Gather", "s i", "p"), node("Reshape", "x p", "y")], ["n", 3, "h", "w"]),
    ([node("Mul", "s k", "p"), node("Reshape", "x p", "y")], ["n", 3, 4, 4]),
    ([node("Mul", "s k", "m"), node("Gather", "m zero", "p"), node("Concat", "p open", "q", axis=0),
      node("Reshape", "x q", "y")], ["n", 3, 4, 4]),
])  # fmt: skip
def test_lengths_that_are_not_known_keep_their_place(nodes, shape, tmp_path: Path) -> None:
    made = model([node("Shape", "x", "s"), *nodes], {"x": shape}, i=whole(0, 1, 3, 2), k=whole(2, 1, 1, 1),
                 zero=whole(0), open=whole(-1))  # fmt: skip
    with pytest.raises(MPSOperatorError, match="not known"):
        ours(saved(made, tmp_path))


def test_lengths_that_are_not_known_in_their_place(tmp_path: Path) -> None:
    nodes = [node("Shape", "x", "s"), node("Mul", "one s", "m"), node("Reshape", "x m", "r"), node("Relu", "r", "y")]
    made = model(nodes, {"x": ["n", 3, "h", "w"]}, one=whole(1, 1, 1, 1))
    compare(made, {"x": numbers(2, 3, 4, 5)}, tmp_path)


@pytest.mark.parametrize(("array", "why"), [
    (np.array([[0, 2**24 + 1]]), "whole numbers up to 16,777,216.*got 16777217"),
    (np.array([[-(2**30), 5]], np.int32), "whole numbers up to 16,777,216.*got -1073741824"),
    (np.array([[1.0, -1e300]]), "numbers that float32 does, got -1e"),
])  # fmt: skip
def test_numbers_that_images_do_not_hold(array: Array, why: str, tmp_path: Path) -> None:
    found = ours(saved(model([node("Relu", "x", "y")], {"x": ["n", 2]}), tmp_path))
    with pytest.raises(MPSArgumentError, match=why):
        found.run({"x": array})
    assert found.run({"x": np.array([[2**24, -5]])})["y"].tolist() == [[2**24, 0]]
    assert found.run({"x": np.array([[np.inf, -1.0]])})["y"].tolist() == [[np.inf, 0]]


@pytest.mark.parametrize("operator", ["Div", "ReduceMean"])
def test_quotients_of_whole_numbers(operator: str, tmp_path: Path) -> None:
    inputs = "x two" if operator == "Div" else "x"
    more = {} if operator == "Div" else {"axes": [1]}
    quotient = node(operator, inputs, "d", **more)
    made = model([quotient, node("Mul", "d two", "y")], {"x": ["n", 2]}, two=whole(2))
    made.graph.input[0].type.tensor_type.elem_type = 7
    with pytest.raises(MPSOperatorError, match="drops the fraction of whole numbers"):
        ours(saved(made, tmp_path))
    made = model([node(operator, inputs, "y", **more)], {"x": ["n", 2]}, two=whole(2))
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.elem_type = 7
    x = np.array([[-7, 2], [5, 4]])
    compare(made, {"x": x}, tmp_path, np.trunc(x / 2).astype(int) if operator == "Div" else np.array([[-2], [4]]))


def test_places_are_exact_in_float16(tmp_path: Path) -> None:
    made = model([node("ArgMax", "x", "y", axis=1)], {"x": ["n", 4001]})
    made.graph.output[0].type.tensor_type.elem_type = 7
    found = reader.network(saved(made, tmp_path)).model(CPU, MPSImageFeatureChannelFormat.FLOAT16)
    assert found.run({"x": np.eye(4001, dtype=np.float32)[[3999, 7]]})["y"].tolist() == [[3999], [7]]


def test_lengths_of_one_name_are_one(tmp_path: Path) -> None:
    made = model([node("Sub", "x z", "y")], {"x": ["n", 3, "h"], "z": ["n", 3, "h"]})
    found = ours(saved(made, tmp_path))
    with pytest.raises(MPSArgumentError, match="input z must have 4 as its length 'h', as another axis has, got 1"):
        found.run({"x": numbers(2, 3, 4), "z": numbers(2, 3, 1)})
    compare(made, {"x": numbers(2, 3, 4), "z": numbers(2, 3, 4, seed=1)}, tmp_path)


@pytest.mark.parametrize("name", ["?", "", "None", "-1"])
def test_names_of_what_is_not_known_tie_no_lengths(name: str, tmp_path: Path) -> None:
    made = model([conv("x", "y")], {"x": ["n", 3, "h", "h"]}, w=numbers(4, 3, 3, 3))
    feeds = {"x": numbers(2, 3, 5, 8)}
    found = ours(saved(made, tmp_path))
    with pytest.raises(MPSArgumentError, match="must have 5 as its length 'h', as another axis has, got 8"):
        found.run(feeds)
    for axis in made.graph.input[0].type.tensor_type.shape.dim[2:]:
        axis.dim_param = name
    compare(made, feeds, tmp_path)
    assert ours(saved(made, tmp_path)).inputs[0].shape == ("n", 3, None, None)


def test_images_of_other_sizes_than_the_models_are_refused(tmp_path: Path) -> None:
    made = model([node("Flatten", "x", "f"), node("Gemm", "f w", "y")], {"x": ["n", 3, 8, 6]}, w=numbers(144, 5))
    says = r"source image 'x' must be 6x8x3 .* as the model's n x 3 x 8 x 6 says, got 7x9x3"
    found = ours(saved(made, tmp_path))
    found.save(tmp_path / "net.mps")
    shut = [found, reader.network(saved(made, tmp_path)), reader.OnnxModel.open(tmp_path / "net.mps", CPU)]
    for each in shut:
        graph = each.graph(CPU) if isinstance(each, reader.OnnxNetwork) else each.graph
        with pytest.raises(MPSArgumentError, match=says):
            graph.trace([np.zeros((1, 9, 7, 3), np.float32)])
        assert graph.trace([np.zeros((2, 8, 6, 3), np.float32)])
    rows = model([conv("x", "y")], {"x": ["n", 3, "h", 6]}, w=numbers(4, 3, 3, 3))
    graph = ours(saved(rows, tmp_path)).graph
    assert graph.trace([np.zeros((1, 9, 6, 3), np.float32)])
    with pytest.raises(MPSArgumentError, match=r"must be 6x\?x3 .* got 7x9x3"):
        graph.trace([np.zeros((1, 9, 7, 3), np.float32)])
