"""Operators that are none of ONNX's: refused whatever the reader could guess of them."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from node_cases.case import generated
from onnx_models import conv, error, model, node, numbers, ours, reference, saved
from openmps.errors import MPSOperatorError
from openmps.formats.onnx.build import BUILDERS
from openmps.formats.onnx.constants import FOLDS
from openmps.formats.onnx.schemas import WORDS

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
CONSTANTS = {"w": numbers(4, 3, 3, 3), "b": numbers(4), "s": np.array([1, 1, 2, 2], np.float32)}


def refused(made: Any, folder: Path) -> str:
    """Why the one operator of a model that is wrong is refused."""
    with pytest.raises(MPSOperatorError, match="has 1 node against ONNX's rules") as caught:
        ours(saved(made, folder))
    (found,) = caught.value.nodes
    assert found["remedy"] == "It is no valid ONNX: export it again"
    return found["why"]


@in_one_test
@pytest.mark.parametrize(("nodes", "more", "why"), [
    ([node("Add", "x x x", "y")], {}, "Add has 2 inputs, and 3 are here"),
    ([node("Relu", "x", "y z")], {}, "Relu has 1 outputs, and 2 are here"),
    ([node("Conv", "x - w", "y")], {}, "its input 1, W, is left out"),
    ([node("Resize", "x - s", "y", mode="bicubic")], {}, "its attribute mode is 'bicubic', must be nearest, linear"),
    ([conv("x", "y", padding=[1, 1, 1, 1])], {}, "Conv has no attribute 'padding', but"),
    ([conv("x", "y", strides=2)], {}, "its attribute strides must be INTS, and is INT"),
    ([node("LRN", "x", "y")], {}, "its attribute size is missing"),
    ([conv("x", "y", "i8")], {"i8": np.ones((4, 3, 3, 3), np.int8)}, r"its input 1, 'i8', is tensor\(int8\)"),
    ([conv("x", "y", "f8")], {"f8": np.ones((4, 3, 3, 3))}, r"'x' and 'f8' are tensor\(float\) and tensor\(double\)"),
    ([node("Cast", "w", "v", to=11), conv("x", "y", "v")], {}, r"'x' and 'v' are tensor\(float\) and tensor\(double\)"),
    ([node("Reshape", "x s", "y")], {}, r"its input 1, 's', is tensor\(float\), must be tensor\(int64\)"),
    ([node("Mish", "x", "y")], {}, "version 17 of ONNX has no operator Mish"),
])  # fmt: skip
def test_what_no_operator_is(nodes: Any, more: Any, why: str, tmp_path: Path) -> None:
    made = model(nodes, {"x": [1, 3, 5, 5]}, **{**CONSTANTS, **more})
    assert re.search(why, refused(made, tmp_path))


def test_an_attribute_that_is_there_twice(tmp_path: Path) -> None:
    made = model([conv("x", "y", group=1)], {"x": [1, 3, 5, 5]}, **CONSTANTS)
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("group", 3))
    assert "its attribute group is there twice" in refused(made, tmp_path)


def _schemas() -> list[tuple[str, int]]:
    """Each operator that is read, in each version that changes it."""
    found = [each for each in onnx.defs.get_all_schemas_with_history() if not each.domain]
    return sorted(
        (each.name, max(each.since_version, 7))
        for each in found
        if each.name in {*BUILDERS, *FOLDS} and (each.since_version > 7 or _is_of_7(each)) and not each.deprecated
    )


def _is_of_7(schema: Any) -> bool:
    try:
        return onnx.defs.get_schema(schema.name, 7, "").since_version == schema.since_version
    except onnx.defs.SchemaError:
        return False


@in_one_test
@pytest.mark.parametrize("operator", sorted({*BUILDERS, *FOLDS}))
def test_every_operator_in_every_version(operator: str, tmp_path: Path) -> None:
    """One input too many, an attribute that nobody knows, and words that are none."""
    versions = [version for name, version in _schemas() if name == operator]
    assert versions
    for version in versions:
        schema = onnx.defs.get_schema(operator, version, "")
        count = schema.max_input + 1 if schema.max_input < 100 else 1
        cases: list[tuple[Any, str]] = [
            (onnx.helper.make_node(operator, ["x"] * schema.min_input, ["y"], nothing=1), "has no attribute 'nothing'")
        ]
        if schema.max_input < 100:
            cases.append((onnx.helper.make_node(operator, ["x"] * count, ["y"]), f"and {count} are here"))
        for name in (name for kind, name in WORDS if kind == operator and name in schema.attributes):
            made = onnx.helper.make_node(operator, ["x"] * schema.min_input, ["y"], **{name: "guess"})
            cases.append((made, f"its attribute {name} is 'guess'"))
        for proto, why in cases:
            nodes = [proto] if count and proto.input else [proto, node("Add", "x y", "z")]
            outputs = ("y",) if proto.input else ("z",)
            made = model(nodes, {"x": [1, 4, 5, 5]}, outputs, opset=version)
            with pytest.raises(MPSOperatorError) as caught:
                ours(saved(made, tmp_path))
            assert why in caught.value.nodes[0]["why"], version


def test_valid_cases_of_onnx_are_valid() -> None:
    """No case of ONNX's own is refused as none of ONNX."""
    from openmps.formats.onnx.schemas import Schemas

    checked = 0
    for case in generated():
        made = case.model
        if any(each.domain for each in made.graph.node):
            continue
        opset = next(each.version for each in made.opset_import if not each.domain)
        types = {each.name: each.type.tensor_type.elem_type for each in made.graph.input}
        schemas = Schemas(onnx, opset, types)
        for proto in made.graph.node:
            assert schemas.fault(copy.deepcopy(proto)) == "", case.name
            checked += 1
    assert checked > 1000


# --- products that are not finite -------------------------------------------------------------------------------------


K, SMALL = np.float32(1e25), np.float32(1e-30)
ROW = np.full((4, 1, 1), K)


@in_one_test
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("nodes", [
    [conv("x", "c", "v"), node("Mul", "c row", "p"), node("Mul", "p small", "y")],
    [conv("x", "c", "v"), node("Mul", "c k", "p"), node("Mul", "p small", "y")],
    [conv("x", "c"), node("BatchNormalization", "c ks b b ones", "n"), node("Mul", "n row", "p"),
     node("Mul", "p small", "y")],
    [node("Mul", "x k", "a"), node("Mul", "a k", "c"), node("Mul", "c small", "y")],
    [node("Add", "x x", "a"), node("Mul", "a k", "c"), node("Mul", "c k", "d"), node("Mul", "d small", "y")],
    [node("Flatten", "x", "f"), node("Gemm", "f m", "g", alpha=1e25), node("Mul", "g small", "y")],
])  # fmt: skip
def test_products_that_are_not_finite_are_left_to_the_graph(nodes: Any, trainable: bool, tmp_path: Path) -> None:
    more = {"v": K * numbers(4, 3, 3, 3), "m": K * numbers(75, 4), "ks": np.full(4, K), "ones": np.ones(4, np.float32)}
    constants = {"w": numbers(4, 3, 3, 3), "b": np.zeros(4, np.float32), "row": ROW, "k": K, "small": SMALL, **more}
    made = model(nodes, {"x": [1, 3, 5, 5]}, **constants)
    x = np.float32(1e-20) * numbers(1, 3, 5, 5)
    x[0, 0, 0, 0] = 0
    wanted = reference(made, {"x": x})["y"]
    assert np.isfinite(wanted).all() and np.abs(wanted).max() > 0.01
    assert error(ours(saved(made, tmp_path), trainable=trainable).run({"x": x})["y"], wanted) < 1e-5


def test_a_reciprocal_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    made = model([node("Div", "x tiny", "y")], {"x": [1, 3, 5, 5]}, tiny=np.float32(1e-40))
    with pytest.raises(MPSOperatorError, match="reciprocal is beyond float32"):
        ours(saved(made, tmp_path))
