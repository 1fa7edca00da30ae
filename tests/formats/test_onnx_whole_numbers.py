"""Whole numbers of ONNX models: ONNX's numbers to the last unit, or a refusal; constants of whole numbers, too."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onnx_models import Array, model, node, ours, reference, saved
from openmps.errors import MPSArgumentError, MPSOperatorError

onnx = pytest.importorskip("onnx")
TYPES = {np.uint8: 2, np.int8: 3, np.uint16: 4, np.int16: 5, np.int32: 6, np.int64: 7, np.uint32: 12}
STEPS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "x + 100": ("Add", {}, 100),
    "x - 50": ("Sub", {}, 50),
    "x * 77": ("Mul", {}, 77),
    "x / 41": ("Div", {}, 41),
    "x / 8": ("Div", {}, 8),
    "x ** 2": ("Pow", {}, 2),
    "x ** 5": ("Pow", {}, 5),
    "max(x, 3)": ("Max", {}, 3),
    "relu": ("Relu", {}, None),
    "mean": ("ReduceMean", {"axes": [1, 2, 3]}, None),
    "rows": ("ReduceMean", {"axes": [2]}, None),
}
NOT_IN_ONNX = {"relu": (np.uint8, np.uint16, np.uint32), "x ** 2": (np.uint8, np.int8, np.uint16, np.int16, np.uint32)}
NOT_IN_ONNX |= {"x ** 5": NOT_IN_ONNX["x ** 2"], "mean": (np.uint8, np.int8, np.uint16, np.int16)}
NOT_IN_ONNX |= {"rows": NOT_IN_ONNX["mean"]}


def made_of(steps: tuple[str, ...], kind: type) -> Any:
    """A model of operators behind one another."""
    nodes, constants, name = [], {}, "x"
    for place, step in enumerate(steps):
        operator, attributes, constant = STEPS[step]
        result = "y" if place == len(steps) - 1 else f"v{place}"
        nodes.append(node(operator, name if constant is None else f"{name} c{place}", result, **attributes))
        constants |= {} if constant is None else {f"c{place}": np.array(constant, kind)}
        name = result
    made = model(nodes, {"x": ["n", 3, 7, 7]}, **constants)
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.elem_type = TYPES[kind]
    return made


def refused(made: Any, x: Array, folder: Path) -> bool:
    """Whether a model, or its result, is refused; else its numbers are ONNX's."""
    try:
        found = ours(saved(made, folder)).run({"x": x})["y"]
    except (MPSOperatorError, MPSArgumentError):
        return True
    wanted = reference(made, {"x": x})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    return False


@pytest.mark.parametrize("kind", TYPES)
def test_one_operator_and_two(kind: type, tmp_path: Path) -> None:
    low, high = max(int(np.iinfo(kind).min), -3000), min(int(np.iinfo(kind).max), 3000)
    x = np.random.default_rng(0).integers(low, high, (300, 3, 7, 7), endpoint=True).astype(kind)
    x[:, 0, 0, 0] -= (x.sum((1, 2, 3)) % 147).astype(kind)  # means are whole numbers
    small = (x % 40).astype(kind)  # float32 holds what lies between two operators, too
    for steps, array in [*product(product(STEPS), (x,)), *product(product(STEPS, STEPS), (small,))]:
        if not any(kind in NOT_IN_ONNX.get(step, ()) for step in steps):
            refused(made_of(steps, kind), array, tmp_path)


@pytest.mark.parametrize(("steps", "kind", "largest"), [
    (("x + 100",), np.uint8, 155),
    (("x - 50", "max(x, 3)"), np.int32, 3000),
    (("x * 77", "x + 100"), np.int64, 200_000),
    (("x / 8",), np.int8, 127),
    (("x ** 2",), np.int32, 4095),
    (("rows",), np.int32, 4095),
    (("max(x, 3)", "relu"), np.int8, 127),
])  # fmt: skip
def test_what_is_exact_is_not_refused(steps: tuple[str, ...], kind: type, largest: int, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, largest, (5, 3, 7, 7), endpoint=True).astype(kind)
    assert not refused(made_of(steps, kind), x, tmp_path)


def test_results_that_float32_rounds(tmp_path: Path) -> None:
    found = ours(saved(made_of(("x * 77",), np.int32), tmp_path))
    x = np.full((1, 3, 7, 7), 217_885, np.int32)  # times 77 is below 2^24
    assert found.run({"x": x})["y"].max() == 217_885 * 77
    with pytest.raises(MPSArgumentError, match=r"output 'y' must hold whole numbers of int32, -16,777,215 to 16,777,2"):
        found.run({"x": x + 1})


# --- constants --------------------------------------------------------------------------------------------------------

LARGE = 1 << 60
HALFWAY = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-7, 0.1, np.inf, 3.4e38, 1e-40])
FOLDED: list[tuple[list[Any], dict[str, Array], Array]] = [
    ([node("ReduceProd", "a e", "k")], {"a": np.float32([[2], [3]]), "e": np.zeros(0, np.int64)}, np.float32([[6]])),
    ([node("ReduceProd", "a e", "k", noop_with_empty_axes=1)],
     {"a": np.float32([[2], [3]]), "e": np.zeros(0, np.int64)}, np.float32([[2], [3]])),
    ([node("ReduceProd", "a", "k", keepdims=0)], {"a": np.int32([1 << 16, 1 << 16, 3])}, np.int32(0)),
    ([node("Div", "a b", "k")], {"a": np.array([LARGE + 3, -LARGE - 3]), "b": np.array(1)},
     np.array([LARGE + 3, -LARGE - 3])),
    ([node("Div", "a b", "k")], {"a": np.array([7, -7, 7, -7, 6, -6]), "b": np.array([2, 2, -2, -2, -3, 3])},
     np.array([3, -3, -3, 3, -2, -2])),
    ([node("Cast", "a", "b", to=16), node("Cast", "b", "k", to=1)],
     {"a": HALFWAY}, torch.from_numpy(HALFWAY).bfloat16().float().numpy()),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "constants", "wanted"), FOLDED)
def test_constants_that_are_computed_when_a_model_is_read(nodes, constants, wanted: Array) -> None:
    from openmps.formats.onnx.constants import FOLDS
    from openmps.formats.onnx.problems import Budget
    from openmps.formats.onnx.reading import parsed

    found = parsed(model(nodes, {"x": [1]}, ("k",), opset=18, **constants).SerializeToString(), None, "a model")
    values = dict(found.constants)
    for each in found.nodes:
        (values[each.outputs[0]],) = [
            FOLDS[each.operator](each, [values[name] for name in each.inputs], Budget(1 << 20, 0), 18)
        ]
    assert values["k"].dtype == wanted.dtype
    np.testing.assert_array_equal(values["k"], wanted)
