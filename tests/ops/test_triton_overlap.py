"""Kernels whose launches overlap touch no memory before all that was launched earlier is done."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from interpreter import HAS_TRITON
from openmps.ops import triton

if not HAS_TRITON:
    pytest.skip("Triton is not installed", allow_module_level=True)
overlap: Any = import_module("openmps.ops.triton.overlap")


def _kernels() -> Iterator[Any]:
    for found in pkgutil.walk_packages(triton.__path__, f"{triton.__name__}."):
        for name, each in vars(import_module(found.name)).items():
            if isinstance(each, overlap.Overlapping):
                yield pytest.param(each, id=f"{found.name.rpartition('.')[2]}.{name}")


@pytest.mark.parametrize("kernel", _kernels())
def test_kernels_wait_in_their_first_line(kernel: Any) -> None:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(kernel._kernel.fn))).body
    assert isinstance(function, ast.FunctionDef)
    assert function.args.args[-1].arg == "OVERLAPS"
    text, first = function.body[:2]
    assert isinstance(text, ast.Expr)
    assert isinstance(text.value, ast.Constant)
    assert ast.unparse(first) == "in_turn(OVERLAPS)"


@pytest.mark.parametrize("overlaps", [False, True])
def test_launches_overlap_where_a_gpu_can(overlaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    def launch(*arguments: Any, **options: Any) -> None:
        launched.append((arguments, options))

    monkeypatch.setattr(overlap, "_overlap", lambda: overlaps)
    overlap.Overlapping({(4,): launch})[(4,)]("x", 3, num_warps=2)
    expected = {"num_warps": 2, "launch_pdl": True} if overlaps else {"num_warps": 2}
    assert launched == [(("x", 3, overlaps), expected)]
