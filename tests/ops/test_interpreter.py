"""What is made faster of Triton's interpreter computes and refuses what the interpreter itself does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from interpreter import HAS_TRITON, IS_INTERPRETED

pytestmark = pytest.mark.skipif(not (HAS_TRITON and IS_INTERPRETED), reason="Triton is not interpreted here")

if HAS_TRITON and IS_INTERPRETED:
    triton: Any = import_module("triton")
    tl: Any = import_module("triton.language")
    interpreter: Any = import_module("triton.runtime.interpreter")

    @triton.jit
    def _first_less_half(a, b):
        return a - b / 2

    @triton.jit
    def _pair(a, b, c, d):
        return a - c / 2, tl.maximum(b, d)

    @triton.jit
    def _square(a):
        return a * a

    @triton.jit
    def _of_products(x, y, FACTOR: tl.constexpr):
        at = tl.arange(0, 4)
        numbers = tl.load(x + at)
        tl.store(y + at, _square(numbers) * FACTOR + tl.sum(numbers) + tl.cdiv(7, 2))


def block(data: np.ndarray) -> Any:
    dtype = {"f": tl.float32, "i": tl.int32}[data.dtype.kind]
    return tl.tensor(interpreter.TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


@in_one_test
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("is_pair", [False, True])
def test_reductions(axis: int, keeps: bool, is_pair: bool) -> None:
    """Of functions that neither commute nor associate: the order counts."""
    generator = np.random.default_rng(0)
    numbers, counts = generator.normal(size=(2, 4, 8)).astype(np.float32), generator.integers(-9, 9, (2, 4, 8))
    given = (block(numbers), block(counts.astype(np.int32)))[: 2 if is_pair else 1]
    patches = interpreter._patch_lang(_of_products.fn)
    try:
        found, expected = (
            getattr(interpreter.ReduceOps(axis, _pair if is_pair else _first_less_half, keeps), form)(given)
            for form in ("generic_reduce", "number_by_number")
        )
    finally:
        patches.restore()
    assert len(found) == len(expected) == len(given)
    for one, other in zip(found, expected, strict=True):
        assert one.type == other.type
        np.testing.assert_array_equal(one.handle.data, other.handle.data, strict=True)


def test_a_reduction_of_a_row() -> None:
    numbers = np.random.default_rng(0).normal(size=8).astype(np.float32)
    patches = interpreter._patch_lang(_of_products.fn)
    try:
        op = interpreter.ReduceOps(0, _first_less_half, False)
        found, expected = (getattr(op, form)((block(numbers),)) for form in ("generic_reduce", "number_by_number"))
    finally:
        patches.restore()
    assert found[0].type == expected[0].type == tl.float32
    assert float(found[0].handle.data.item()) == float(expected[0].handle.data.item())


def test_functions_that_a_kernel_calls_and_launches_one_after_another() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    given = tl.load, tl.maximum, tl.tensor.__add__
    for factor in (2, 3):
        _of_products[(1,)](x, y, factor)
        assert y.tolist() == (x * x * factor + 6 + 4).tolist()
    assert given == (tl.load, tl.maximum, tl.tensor.__add__)


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint32", "int64"])
def test_overflow_is_noticed(name: str) -> None:
    dtype, as_numpy = getattr(tl, name), np.dtype(name)

    def scalar(value: int) -> Any:
        return tl.tensor(interpreter.TensorHandle(np.array([value], as_numpy), dtype), dtype)

    least, most = np.iinfo(as_numpy).min, np.iinfo(as_numpy).max
    semantic = interpreter.interpreter_semantic
    for operation, one, other in (("add", most, 1), ("sub", least, 1), ("mul", most, 2)):
        call = getattr(semantic, operation)
        assert call(scalar(most // 2), scalar(1), True).handle.data.dtype == as_numpy
        if dtype.int_bitwidth == 64:
            continue  # is not looked at by the interpreter either
        with pytest.raises(
            AssertionError, match=f"int{dtype.int_bitwidth} overflow detected for operation {operation}"
        ):
            call(scalar(one), scalar(other), True)


def test_types_of_numpy() -> None:
    for name in ("int1", "float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bfloat16"):
        dtype = getattr(tl, name)
        as_numpy = np.dtype({"int1": "bool", "bfloat16": "uint16"}.get(name, name))
        for _ in range(2):
            assert interpreter._get_np_dtype(dtype) == as_numpy
            assert interpreter._get_np_dtype(tl.block_type(dtype, [2, 4])) == as_numpy
            assert interpreter._get_np_dtype(tl.pointer_type(dtype)) == np.dtype(np.uint64)
