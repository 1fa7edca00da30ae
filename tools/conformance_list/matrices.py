"""Cases of kernels over matrices: products, soft-max over rows, systems with a factor that is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance_list.describe import drawn, listed

Entry = dict[str, Any]
FAMILY = "matrices"


def _case(name: str, kind: str, arguments: Entry, size: tuple[int, int], *sources: Entry) -> Entry:
    return {
        "name": f"matrices: {name}", "family": FAMILY, "kind": "matrices", "classes": [kind],
        "kernel": {"class": kind, "arguments": arguments}, "sources": [*sources], "matrix": [*size], "read": ["matrix"],
    }  # fmt: skip


def _product(left: bool, right: bool, alpha: float) -> Entry:
    """Of 3 x 5 and 5 x 4, each as it is or transposed."""
    name = f"product, transposed {'left' * left}{' and ' * (left and right)}{'right' * right}".rstrip()
    arguments = {"transposeLeft": left, "transposeRight": right, "resultRows": 3, "resultColumns": 4,
                 "interiorColumns": 5, "alpha": alpha, "beta": 0}  # fmt: skip
    shapes = (5, 3) if left else (3, 5), (4, 5) if right else (5, 4)
    sources = [drawn(shape, f"{name} {place}", "wide") for place, shape in enumerate(shapes)]
    name = name if left or right else "product"
    return _case(name, "MPSMatrixMultiplication", arguments, (3, 4), *sources)


def _parts(name: str, origins: Entry, beta: float, size: tuple[int, int], *shapes: tuple[int, int]) -> Entry:
    """A product of parts of matrices, added to what the result holds."""
    made = _product(False, False, 0.5)
    made["kernel"]["arguments"]["beta"] = beta
    if origins:
        made["kernel"]["properties"] = {key: {"origin": [*place, 0]} for key, place in origins.items()}
    sources = [drawn(shape, f"{name} {place}", "wide") for place, shape in enumerate(shapes)]
    initial = drawn(size, f"{name} initial", "wide")
    return {**made, "name": f"matrices: {name}", "sources": sources, "matrix": [*size], "initial": initial}


def _factor(order: int) -> Entry:
    """Small numbers beside a diagonal of 1, 2, 3 …; in both triangles, of which a kernel reads one."""
    rows, columns = np.indices((order, order))
    return listed(np.where(rows == columns, rows + 1.0, (2 * rows - 3 * columns) / 16))


def matrix_cases() -> Iterator[Entry]:
    """Float32 all; the order of systems is 4."""
    for left, right, alpha in ((False, False, 1), (True, False, 0.5), (False, True, -2), (True, True, 1)):
        yield _product(left, right, alpha)
    yield _parts("product with beta", {}, -2, (3, 4), (3, 5), (5, 4))
    origins = {"leftMatrixOrigin": (1, 2), "rightMatrixOrigin": (1, 1), "resultMatrixOrigin": (2, 1)}
    yield _parts("product from origins", origins, 0.25, (6, 7), (5, 8), (7, 6))
    wide = drawn((3, 7), "rows of soft-max", "wide")
    for kind in ("MPSMatrixSoftMax", "MPSMatrixLogSoftMax"):
        yield _case(f"rows by {kind}", kind, {}, (3, 7), wide)
    parts = listed([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5]])
    gradient = drawn((2, 3), "gradient of soft-max")
    yield _case("a gradient of soft-max", "MPSMatrixSoftMaxGradient", {}, (2, 3), gradient, parts)
    logarithms = listed(np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5]], np.float32)))
    yield _case("a gradient of its logarithm", "MPSMatrixLogSoftMaxGradient", {}, (2, 3), gradient, logarithms)
    for name, right, upper, transpose, unit in (
        ("lower", False, False, False, False), ("upper, transposed", False, True, True, False),
        ("lower on the right", True, False, False, False), ("upper with a diagonal of 1", False, True, False, True),
    ):  # fmt: skip
        size = (2, 4) if right else (4, 2)
        arguments = {"right": right, "upper": upper, "transpose": transpose, "unit": unit, "order": 4,
                     "numberOfRightHandSides": 2, "alpha": 0.5}  # fmt: skip
        sides = drawn(size, f"sides of {name}", "wide")
        yield _case(f"a triangle, {name}", "MPSMatrixSolveTriangular", arguments, size, _factor(4), sides)
    for upper in (False, True):
        arguments = {"upper": upper, "order": 4, "numberOfRightHandSides": 2}
        sides = drawn((4, 2), "sides of Cholesky", "wide")
        name = f"a Cholesky factor, {'upper' if upper else 'lower'}"
        yield _case(name, "MPSMatrixSolveCholesky", arguments, (4, 2), _factor(4), sides)
