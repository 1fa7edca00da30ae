"""ONNX models that are refused: operators, files, sizes, arrays, external data."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from onnx_models import conv, error, layer, model, node, numbers, ours, reference, saved
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSOperatorError, MPSTypeError
from openmps.formats.onnx.build import BUILDERS, FOLDS

onnx = pytest.importorskip("onnx")
CLOSE = 3e-6


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
    found = [(each["node"], each["operator"]) for each in caught.value.nodes]
    assert found == [
        ("Foo_f", "Foo"),
        ("Einsum_e", "Einsum"),
        ("Bar_b", "Bar"),
        ("Bar_b2", "Bar"),
        ("MatMul_m", "MatMul"),
    ]
    assert all(each["why"] and each["remedy"] for each in caught.value.nodes)
    text = str(caught.value)
    assert "has 5 nodes that the framework cannot express" in text
    assert "Bar (Bar_b, Bar_b2): no node of the framework computes it" in text
    assert max(map(len, text.splitlines()[1:])) <= 80


@in_one_test
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


@pytest.mark.parametrize(("nodes", "why"), [
    ([node("Conv", "x big", "y")], r"its weights of shape \(4, 7, 3, 3\) do not fit 3 input channels"),
    ([node("Conv", "x w seven", "y")], r"shape \(7,\) of its biases does not fit 4 channels"),
    ([node("Conv", "x w", "y", group=2)], "its 2 groups do not divide its 3 input channels and 4 weights"),
    ([node("BatchNormalization", "x seven three three three", "y")], r"shape \(7,\) of its scale does not fit"),
    ([node("Flatten", "x", "f"), node("Gemm", "f m", "y")], r"its matrix of shape \(10, 77\) does not fit 75"),
    ([node("Flatten", "x", "f"), node("Gemm", "f m", "y", transB=1)], r"shape \(10, 77\), transposed, does not fit 75"),
])  # fmt: skip
def test_shapes_that_contradict_one_another_are_the_model_s_fault(nodes, why: str, tmp_path: Path) -> None:
    constants = {
        "big": numbers(4, 7, 3, 3), "w": numbers(4, 3, 3, 3), "seven": numbers(7), "three": np.ones(3, np.float32),
        "m": numbers(10, 77),
    }  # fmt: skip
    path = saved(model(nodes, {"x": [1, 3, 5, 5]}, **constants), tmp_path)
    with pytest.raises(MPSOperatorError, match="has 1 node against ONNX's rules:") as caught:
        ours(path)
    (found,) = caught.value.nodes
    assert re.search(f"^the model contradicts itself: .*{why}", found["why"])
    assert found["remedy"] == "It is no valid ONNX: export it again"


def test_a_shape_that_a_caller_gives_is_no_fault_of_the_model(tmp_path: Path) -> None:
    nodes = [node("Flatten", "x", "f"), node("MatMul", "f m", "y")]
    path = saved(model(nodes, {"x": [1, 3, "h", 5]}, m=numbers(75, 10)), tmp_path)
    with pytest.raises(MPSOperatorError, match="has 1 node that the framework cannot express:") as caught:
        ours(path, shapes={"x": [1, 3, 6, 5]})
    assert caught.value.nodes[0]["remedy"] == "Give another shape than x=1x3x6x5"


def test_an_operator_at_the_beginning_leaves_nothing_to_cut(tmp_path: Path) -> None:
    first, later = node("Foo", "x", "f", domain="com.my"), node("Foo", "c", "y", domain="com.my")
    with pytest.raises(MPSOperatorError) as caught:
        ours(saved(model([first, conv("f", "y")], {"x": [1, 3, 5, 5]}, w=numbers(4, 3, 3, 3)), tmp_path))
    assert caught.value.nodes[0]["why"] == "no node of the framework computes it, an operator of com.my"
    assert caught.value.nodes[0]["remedy"] == "Export the model without it"
    with pytest.raises(MPSOperatorError, match="--result c"):
        ours(saved(model([conv("x", "c"), later], {"x": [1, 3, 5, 5]}, w=numbers(4, 3, 3, 3)), tmp_path))


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
    path = saved(layer(), tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MPSError, match=r"needs the onnx package.*pip install '\.\[onnx\]'"):
        ours(path)


@pytest.mark.parametrize(("arrays", "kind", "why"), [
    ({}, MPSArgumentError, r"input x is missing: an array of float32, n x 3 x 6 x 6"),
    ({"x": numbers(2, 3, 6, 5)}, MPSArgumentError, r"input x must be of shape n x 3 x 6 x 6, got 2x3x6x5"),
    ({"x": numbers(2, 3, 36)}, MPSArgumentError, r"input x must be of shape n x 3 x 6 x 6, got 2x3x36"),
    ({"x": numbers(0, 3, 6, 6)}, MPSArgumentError, r"input x must be of shape"),
    ({"y": numbers(2, 3, 6, 6)}, MPSArgumentError, "input y is none of the inputs: 'x'"),
    ({"x": [1, 2]}, MPSTypeError, "must be a NumPy array of real numbers"),
    ({"x": np.zeros((1, 3, 6, 6), complex)}, MPSTypeError, "must be a NumPy array of real numbers"),
])  # fmt: skip
def test_arrays_that_do_not_fit(arrays, kind, why: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=why):
        ours(saved(layer(), tmp_path)).run(arrays)


@pytest.mark.parametrize(("shapes", "why"), [
    ({"z": (1, 3)}, "must be of inputs, 'x'"),
    ({"x": (1, 3)}, "must have 4 lengths"),
    ({"x": (1, 5, 6, 6)}, "must fit the model's"),
    ({"x": (1, 3, 0, 6)}, "must be lengths of at least 1"),
])  # fmt: skip
def test_shapes_that_do_not_fit(shapes, why: str, tmp_path: Path) -> None:
    with pytest.raises(MPSArgumentError, match=why):
        ours(saved(layer(), tmp_path), shapes=shapes)


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


@in_one_test
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


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Slice", "x s e a", "y")],
        [node("Concat", "x x", "y", axis=1)],
        [node("DepthToSpace", "x", "y", blocksize=1, mode="CRD")],
        [node("Add", "x row", "y")],
        [node("Conv", "x w", "y")],
    ],
)
def test_lengths_that_no_image_has_take_no_time(nodes, tmp_path: Path) -> None:
    constants = {name: np.array([value]) for name, value in {"s": 1, "e": 2**50, "a": 1}.items()}
    made = model(nodes, {"x": [1, 2**53 + 1, 5, 5]}, row=numbers(5, 1, 1), w=numbers(4, 3, 3, 3), **constants)
    with pytest.raises(MPSFileError):
        ours(saved(made, tmp_path))


# --- what a file says that is easily passed over ----------------------------------------------------------------------


def _function(made: Any) -> None:
    made.functions.append(onnx.helper.make_function("", "Relu", ["a"], ["b"], [node("Neg", "a", "b")], []))


def _segment(made: Any) -> None:
    made.graph.initializer[0].segment.begin = 0


def _reference(made: Any) -> None:
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("group", 1))
    made.graph.node[0].attribute[-1].ref_attr_name = "groups"


def _nameless(made: Any) -> None:
    made.graph.input[0].name = made.graph.node[0].input[0] = ""


def _nothing(made: Any) -> None:
    made.graph.node[0].CopyFrom(node("ConvTranspose", "x w", "y", output_shape=[0, 0]))


@pytest.mark.parametrize(("change", "why"), [
    (_function, "must leave ONNX's operators as they are, got a function called 'Relu'"),
    (_segment, "tensor 'w' must be whole, got a segment"),
    (_reference, "its attribute group is one of a\n +function, 'groups'"),
    (_nameless, "an input or an output has no name"),
    (_nothing, r"output_shape \[0, 0\] has a length below 1"),
])  # fmt: skip
def test_what_would_be_passed_over(change, why: str, tmp_path: Path) -> None:
    made = model([conv("x", "y")], {"x": [1, 3, 5, 5]}, w=numbers(3, 3, 3, 3))
    change(made)
    with pytest.raises(MPSError, match=why):
        ours(saved(made, tmp_path))
