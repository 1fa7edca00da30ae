"""Where kernels in Triton run in tests: on CUDA, or, where there is no GPU, by Triton's interpreter in the process."""

from __future__ import annotations

import math
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


def _keep_shapes() -> None:
    """Have blocks of the same shape share it, which is made of objects anew for each block, most of the time."""
    core: Any = import_module("triton.language.core")
    unwrapped, constant = core._unwrap_if_constexpr, core.constexpr
    block, block_type, shapes = core.tensor, core.block_type, core.tuple
    of_types, of_blocks = dict[Any, Any](), dict[Any, Any]()

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (*map(unwrapped, shape),)
        if (found := of_types.get(key)) is None:
            made = object.__new__(block_type)
            initialize(made, element_ty, shape)
            found = of_types[key] = made.shape, made.numel
        self.element_ty, (self.shape, self.numel) = element_ty, found

    def make_block(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        key = (*type.shape.values,) if type.is_block() else ()
        if (found := of_blocks.get(key)) is None:
            found = of_blocks[key] = constant(math.prod(key)), shapes([constant(length) for length in key])
        self.numel, self.shape = found

    def equal(self: Any, other: Any) -> Any:
        return constant(self.values == [*map(unwrapped, other)])

    initialize, block_type.__init__, block.__init__ = block_type.__init__, make_type, make_block
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>", lambda self, name: None)
    shapes.__eq__ = equal


def _take_alike_operands() -> None:
    """Have operands of one type and shape be taken as they are, and whole numbers be made blocks once for each type."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    core: Any = import_module("triton.language.core")
    semantic, block = interpreter.interpreter_semantic, core.tensor
    check, make, made = semantic.binary_op_type_checking_impl, semantic.scalar_constant, dict[Any, Any]()

    def take(one: Any, other: Any, *options: bool) -> tuple[Any, Any]:
        divides = len(options) == 4
        if type(one) is type(other) is block and one.shape is other.shape and not divides:
            dtype = one.dtype
            if dtype is other.dtype and not dtype.is_ptr() and not dtype.is_fp8():
                return one, other
        return check(one, other, *options)

    def constant(value: Any, dtype: Any) -> Any:
        if type(value) is not int:
            return make(value, dtype)
        if (found := made.get((value, dtype.name))) is None:
            found = made[value, dtype.name] = make(value, dtype).handle.data
        return block(interpreter.TensorHandle(found, dtype), dtype)

    semantic.binary_op_type_checking_impl, semantic.scalar_constant = take, constant


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
        _keep_shapes()
        _take_alike_operands()
        _reduce_slices()
        _notice_overflow_in_numpy()
