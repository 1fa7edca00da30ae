"""Where kernels in Triton run in tests: on CUDA, or, where there is no GPU, by Triton's interpreter in the process."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from openmps.ops import triton

if not torch.cuda.is_available():
    # Triton asks for it where it is imported, so it is said before any test is (conftest.py).
    os.environ.setdefault("TRITON_INTERPRET", "1")
HAS_TRITON = find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def triton_place(taken: pytest.MonkeyPatch | None = None) -> torch.device:
    """Where Triton runs. With ``taken`` the operations take it there, too."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if not IS_INTERPRETED:
        device = torch.device("cuda", torch.cuda.current_device())
        assert triton.runs_on(device), "Triton is there and does not run"
        return device
    if taken is not None:
        taken.setattr(triton, "runs_on", lambda device: True)
    return torch.device("cpu")


def _count_loops() -> None:
    """Have the interpreter of a Triton before 3.7 make numbers of arrays of one number, which NumPy 2.4 refuses."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    given = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        given(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _patch_a_launch_once() -> None:
    """Have functions that a kernel calls find the language as the launch has patched it.

    The interpreter walks through all names of the language at every such call, which is most of its time.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    patch, scope_type = interpreter._patch_lang, interpreter._LangPatchScope
    modules = interpreter.tl, interpreter.tl.core
    patched: set[str] = set()

    class Scope(scope_type):
        def restore(self) -> None:
            patched.clear()
            super().restore()

    def patch_what_is_not(function: Any) -> Any:
        seen = {each.__name__ for each in modules if any(each is value for value in function.__globals__.values())}
        if seen and seen <= patched:
            return Scope()
        patched.update(seen)
        return patch(function)

    interpreter._LangPatchScope, interpreter._patch_lang = Scope, patch_what_is_not


def _look_types_up() -> None:
    """Have the interpreter keep NumPy's type of each of Triton's, of which it makes a dictionary at every operation."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    convert, known = interpreter._get_np_dtype, dict[str, Any]()

    def look_up(dtype: Any) -> Any:
        if (found := known.get(dtype.name)) is None:
            found = known[dtype.name] = convert(dtype)
        return found

    interpreter._get_np_dtype = look_up


def _reduce_slices() -> None:
    """Have the interpreter reduce by a function of two blocks, slice after slice, not number after number."""
    interpreter: Any = import_module("triton.runtime.interpreter")

    number_by_number = interpreter.ReduceOps.generic_reduce

    def reduce_slices(self: Any, given: tuple[Any, ...]) -> list[Any]:
        axis = self.axis
        if axis is None:
            return number_by_number(self, given)
        blocks = [(each.handle.data, each.dtype) for each in given]

        def slices(place: int) -> tuple[Any, ...]:
            return tuple(self.to_tensor(data.take(place, axis), dtype) for data, dtype in blocks)

        found = slices(0)
        for place in range(1, blocks[0][0].shape[axis]):
            made = self.combine_fn.fn(*found, *slices(place))
            made = made if isinstance(made, tuple) else (made,)
            found = tuple(self.to_tensor(one.handle.data, dtype) for one, (_, dtype) in zip(made, blocks, strict=True))
        results = [
            one.handle.data if data.ndim > 1 else one.handle.data[0]
            for one, (data, _) in zip(found, blocks, strict=True)
        ]
        if self.keep_dims:
            results = [np.expand_dims(data, axis) for data in results]
        return [self.to_tensor(data, dtype) for data, (_, dtype) in zip(results, blocks, strict=True)]

    interpreter.ReduceOps.number_by_number = number_by_number
    interpreter.ReduceOps.generic_reduce = reduce_slices


def _notice_overflow_in_numpy() -> None:
    """Have the interpreter look for results beyond an integer's range in NumPy, not by ten operations of Triton."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def notice(one: Any, other: Any, operation: Any) -> None:
        of = one.type.scalar
        if of.int_bitwidth >= 64:
            return
        name, wide = operation.__name__, [each.handle.data.astype(np.int64) for each in (one, other)]
        result = functions[name](*wide)
        is_in = (result >= of.get_int_min_value()) & (result <= of.get_int_max_value())
        assert is_in.all(), f"int{of.int_bitwidth} overflow detected for operation {name}"

    interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = notice


def _multiply_bfloat16() -> None:
    """Have the interpreter multiply bfloat16 numbers, which it holds as their bits, not those bits."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    language: Any = import_module("triton.language")
    given = interpreter.InterpreterBuilder.create_dot

    def widened(factor: Any) -> Any:
        if factor.dtype.scalar != language.bfloat16:
            return factor
        return interpreter.TensorHandle((factor.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def dot(self: Any, left: Any, right: Any, *more: Any) -> Any:
        return given(self, widened(left), widened(right), *more)

    interpreter.InterpreterBuilder.create_dot = dot


if HAS_TRITON and IS_INTERPRETED:
    _multiply_bfloat16()
    _release = tuple(map(int, version("triton").split(".")[:2]))
    if _release < (3, 7):
        _count_loops()
    if _release == (3, 7):
        _patch_a_launch_once()
        _look_types_up()
        _reduce_slices()
        _notice_overflow_in_numpy()
