"""Two values of one model with other axes than one another: ONNX's numbers, or an error as the model is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_models import error, model, node, numbers, ours, reference, saved
from openmps.errors import MPSOperatorError

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
SHAPES = [(4,), (4, 5), (4, 5, 6), (4, 5, 5), (4, 5, 1), (4, 1, 5), (1, 5, 5)]
ORDERS = {
    3: [(0, 2, 1), (2, 1, 0), (1, 0, 2)],
    4: [(0, 1, 3, 2), (0, 3, 2, 1), (0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3)],
}


def _changes(rank: int) -> list[tuple[Any, dict[str, Any]]]:
    """Each way to see the same numbers with other axes."""
    added = [(node("Unsqueeze", "r axes", "u"), {"axes": np.array([axis])}) for axis in range(rank + 1)]
    turned = [(node("Transpose", "r", "u", perm=list(order)), {}) for order in ORDERS.get(rank, [])]
    flat = [(node("Reshape", "r shape", "u"), {"shape": np.array([0, *[1] * ones, -1])}) for ones in range(3)]
    return [*added, *turned, *flat]


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Sum"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_and_itself_with_other_axes(shape: tuple[int, ...], operator: str, tmp_path: Path) -> None:
    built = 0
    for batch in (3, "n"):
        for change, constants in _changes(1 + len(shape)):
            for operands in ("r u", "u r"):
                nodes = [node("Relu", "x", "a"), node("Add", "a one", "r"), change, node(operator, operands, "y")]
                made = model(nodes, {"x": [batch, *shape]}, one=np.float32(1), **constants)
                x = numbers(3, *shape)
                try:
                    found = ours(saved(made, tmp_path))
                except MPSOperatorError:
                    continue
                built += 1
                assert error(found.run({"x": x})["y"], reference(made, {"x": x})["y"]) < 1e-5, (operands, made)
    assert built >= 4
