"""What loops call besides NumPy: rows that threads share, and a sum that is rounded once.

Threads share the rows of a picture by claims: each takes the next few that nobody has taken, until none are left. A
thread that comes late takes fewer, and one that comes too late none: nobody waits for a thread to begin. Who finds none
left waits a moment for the rows that others are making, which is sooner over than a wait that the system ends.
"""

from __future__ import annotations

import zlib
from functools import cache
from importlib import import_module
from types import CodeType
from typing import Any

import numpy as np

from openmps.ops.image.library_form import Array

_NEXT, _DONE, _ROWS, _BAND, _PATIENCE = range(5)
_LOOKS = 20_000
"""How often the end is looked for: some tens of microseconds."""


def new_claims(rows: int, band: int, *, alone: bool) -> Array:
    """The claims of one picture: none yet. ``band`` rows are taken at a time."""
    return np.array([0, 0, rows, band, 0 if alone else _LOOKS], np.int64)


def are_done(claims: Array) -> bool:
    """Whether all rows have been made."""
    return bool(claims[_DONE] >= claims[_ROWS])


def claim(claims: Any) -> tuple[int, int]:
    """Take rows: the first one, and the one behind the last. The first is not before the last where none are left."""
    raise NotImplementedError  # `teach` has what loops call


def finish(claims: Any, rows: int) -> None:
    """Say that so many claimed rows are made."""
    raise NotImplementedError


def wait(claims: Any) -> None:
    """Wait for the rows of others, for a moment."""
    raise NotImplementedError


def add(numbers: Any, place: Any, number: Any) -> None:
    """Add to a whole number that several threads add to."""
    raise NotImplementedError


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """``x y + z`` of float32 numbers, rounded once."""
    raise NotImplementedError


def number(x: Any) -> Any:
    """A byte, a float32 number or the bits of a float16 number as float32."""
    raise NotImplementedError


def turned(x: Any, flip: Any) -> Any:
    """A byte whose bits are turned round by those of another one; a float or the bits of a float16 times a float32."""
    raise NotImplementedError


def pair(x: Any, y: Any) -> Any:
    """The sum of two of them."""
    raise NotImplementedError


def look(array: Any, index: Any) -> Any:
    """A number of an array of which the function stores none by `store`: it need not be read again behind that."""
    raise NotImplementedError


def store(array: Any, index: Any, value: Any) -> None:
    """Put a float32 number into an array of its type, or rounded into one of bytes, NaN as 0, or of bits of float16.

    A byte stays as it is.
    """
    raise NotImplementedError


def dot(matrix: Any, place: Any, vector: Any) -> Any:
    """The sum of the products of a vector's float32 numbers with those from a place on, in any order.

    The order is the same for vectors of one length. As with `look`, the function stores none of them by `store`.
    """
    raise NotImplementedError


def mix_four(numbers: Any, first: Any, second: Any, weight: Any, into: Any, place: Any) -> None:
    """Put four bytes from ``place`` on: of float32 numbers of 0 … 255 between those from two places on."""
    raise NotImplementedError


def sum_four(
    numbers: Any, begin: Any, places: Any, weights: Any, first: Any, count: Any, into: Any, place: Any
) -> None:
    """Put four sums with weights side by side: of the numbers from ``begin`` and so many places on, and behind them.

    The places and the weights are those from the first on.
    """
    raise NotImplementedError


def store_element(array: Any, index: Any, value: Any) -> None:
    """Put a byte or a float32 number as it is into an array of its type, as `store`."""
    raise NotImplementedError


def look_aside(array: Any, index: Any) -> Any:
    """As `look`, of an array of which the function stores none by `store_aside`."""
    raise NotImplementedError


def store_aside(array: Any, index: Any, value: Any) -> None:
    """As `store_element`, for arrays that `look` reads afterwards."""
    raise NotImplementedError


@cache
def version() -> int:
    """A number for what these functions are, which loops have compiled in."""
    return zlib.crc32(b"".join(map(code_of, (_pointer, _scoped, _halves, _vectors, _teach_elements, *_LESSONS))))


def code_of(function: Any) -> bytes:
    """What Python compiled a function to, the same in each process; what `marshal` makes tells what is shared, too."""
    return repr(_parts(function.__code__)).encode()


def _parts(code: CodeType) -> tuple[object, ...]:
    constants = [_parts(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


@cache
def teach(numba: Any) -> None:
    """Let loops call these functions."""
    extending, types = (import_module(name) for name in ("numba.extending", "numba.core.types"))
    for each in _LESSONS:
        each(extending, types)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


def _teach_claims(extending: Any, types: Any) -> None:
    @extending.intrinsic
    def increase(typing: Any, claims: Any, place: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, place, number = arguments
            where = _pointer(context, builder, signature.args[0], array, place)
            return builder.atomic_rmw("add", where, number, "seq_cst")

        return types.int64(claims, types.int64, types.int64), generate

    @extending.intrinsic
    def load(typing: Any, claims: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            where = _pointer(context, builder, signature.args[0], *arguments)
            return builder.load_atomic(where, "seq_cst", 8)

        return types.int64(claims, types.int64), generate

    @extending.overload(claim, strict=False)
    def claim_(claims: Any) -> Any:
        def taken(claims: Any) -> Any:
            first = increase(claims, 0, claims[3])
            return first, min(first + claims[3], claims[2])

        return taken

    @extending.overload(add, strict=False)
    def add_(numbers: Any, place: Any, number: Any) -> Any:
        def added(numbers: Any, place: Any, number: Any) -> Any:
            increase(numbers, place, number)

        return added

    @extending.overload(finish, strict=False)
    def finish_(claims: Any, rows: Any) -> Any:
        def finished(claims: Any, rows: Any) -> Any:
            increase(claims, 1, rows)

        return finished

    @extending.overload(wait, strict=False)
    def wait_(claims: Any) -> Any:
        def waited(claims: Any) -> Any:
            looks = claims[4]
            while looks > 0 and load(claims, 1) < claims[2]:
                looks -= 1

        return waited


def _halves(extending: Any, types: Any) -> tuple[Any, Any]:
    """A float32 number of the bits of a float16 one, and the bits of one that is rounded."""
    ir = import_module("llvmlite.ir")

    @extending.intrinsic
    def widen(typing: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

        return types.float32(types.uint16), generate

    @extending.intrinsic
    def round_(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

        return types.uint16(types.float32), generate

    return widen, round_


def _teach_sums(extending: Any, types: Any) -> None:
    from_half, _ = _halves(extending, types)

    @extending.intrinsic
    def fused(typing: Any, x: Any, y: Any, z: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return types.float32(types.float32, types.float32, types.float32), generate

    @extending.overload(multiply_add, strict=False)
    def multiply_add_(x: Any, y: Any, z: Any) -> Any:
        def added(x: Any, y: Any, z: Any) -> Any:
            return fused(np.float32(x), np.float32(y), np.float32(z))

        return added

    @extending.overload(number, strict=False)
    def number_(x: Any) -> Any:
        def same(x: Any) -> Any:
            return x

        def widened(x: Any) -> Any:
            return np.float32(np.int32(x))

        def of_half(x: Any) -> Any:
            return from_half(x)

        return {types.float32: same, types.uint16: of_half}.get(x, widened)

    @extending.overload(turned, strict=False)
    def turned_(x: Any, flip: Any) -> Any:
        def inverted(x: Any, flip: Any) -> Any:
            return np.uint8(x ^ flip)

        def multiplied(x: Any, flip: Any) -> Any:
            return number(x) * flip

        return inverted if x is types.uint8 else multiplied

    @extending.overload(pair, strict=False)
    def pair_(x: Any, y: Any) -> Any:
        def sum_(x: Any, y: Any) -> Any:
            return x + y

        def widened(x: Any, y: Any) -> Any:
            return np.float32(np.int32(x) + np.int32(y))

        return sum_ if x is types.float32 else widened


def _scoped(name: str, extending: Any, types: Any) -> tuple[Any, Any]:
    """A load and a store: what the one reads the other does not write, to LLVM by a scope of this name."""

    def scope(builder: Any) -> Any:
        module = builder.module
        return module.add_metadata([module.add_metadata([f"openmps: {name}", module.add_metadata(["openmps"])])])

    @extending.intrinsic
    def get(typing: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            found = builder.load(_pointer(context, builder, signature.args[0], *arguments))
            found.set_metadata("noalias", scope(builder))
            return found

        return array.dtype(array, types.int64), generate

    @extending.intrinsic
    def put(typing: Any, array: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, index, value = arguments
            made = builder.store(value, _pointer(context, builder, signature.args[0], array, index))
            made.set_metadata("alias.scope", scope(builder))
            return context.get_dummy_value()

        return types.void(array, types.int64, array.dtype), generate

    return get, put


def _teach_elements(extending: Any, types: Any, get: Any, put: Any, loaded: Any, stored: Any) -> None:
    """What the functions `loaded` and `stored` do, of elements as they are."""

    @extending.overload(loaded, strict=False)
    def look_(array: Any, index: Any) -> Any:
        def found(array: Any, index: Any) -> Any:
            return get(array, index)

        return found

    @extending.overload(stored, strict=False)
    def store_(array: Any, index: Any, value: Any) -> Any:
        def kept(array: Any, index: Any, value: Any) -> Any:
            put(array, index, np.uint8(value))

        def same(array: Any, index: Any, value: Any) -> Any:
            put(array, index, value)

        return kept if array.dtype is types.uint8 else same


def _teach_places(extending: Any, types: Any) -> None:
    get, put = _scoped("stored", extending, types)
    _, to_half = _halves(extending, types)
    _teach_elements(extending, types, get, put, look, store_element)
    _teach_elements(extending, types, *_scoped("stored aside", extending, types), look_aside, store_aside)

    @extending.overload(store, strict=False)
    def store_(array: Any, index: Any, value: Any) -> Any:
        def kept(array: Any, index: Any, value: Any) -> Any:
            put(array, index, value)

        def rounded(array: Any, index: Any, value: Any) -> Any:
            low = value if value > np.float32(0.0) else np.float32(0.0)
            high = low if low < np.float32(255.0) else np.float32(255.0)
            # Behind a number as large as this float32 has whole numbers alone: they are its lowest bits.
            put(array, index, np.uint8(np.float32(high + np.float32(8388608.0)).view(np.uint32) & np.uint32(255)))

        def halved(array: Any, index: Any, value: Any) -> Any:
            put(array, index, to_half(value))

        return kept if value is types.uint8 else {types.float32: kept, types.uint16: halved}.get(array.dtype, rounded)


def _teach_products(extending: Any, types: Any) -> None:
    # Partial sums side by side, and products that are not rounded before they are added.
    @extending.overload(dot, strict=False, jit_options={"fastmath": {"reassoc", "contract"}})
    def dot_(matrix: Any, place: Any, vector: Any) -> Any:
        def found(matrix: Any, place: Any, vector: Any) -> Any:
            total = np.float32(0.0)
            for each in range(len(vector)):
                total += look(matrix, place + each) * look(vector, each)
            return total

        return found


def _vectors() -> tuple[Any, Any, Any]:
    """The type of four float32 numbers; what makes four of one; and LLVM's sum ``x y + z`` of fours, rounded once."""
    ir, utils = (import_module(name) for name in ("llvmlite.ir", "numba.core.cgutils"))
    four = ir.VectorType(ir.FloatType(), 4)

    def all_four(builder: Any, value: Any) -> Any:
        one = builder.insert_element(ir.Constant(four, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), 4), [0] * 4))

    def fused(builder: Any, *numbers: Any) -> Any:
        kind = ir.FunctionType(four, [four] * 3)
        return builder.call(utils.get_or_insert_function(builder.module, kind, "llvm.fma.v4f32"), numbers)

    return four, all_four, fused


def _teach_mixtures(extending: Any, types: Any) -> None:
    ir, (four, all_four, fused) = import_module("llvmlite.ir"), _vectors()

    @extending.intrinsic
    def mix(typing: Any, numbers: Any, first: Any, second: Any, weight: Any, into: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            numbers, first, second, weight, into, place = arguments

            def loaded(place: Any) -> Any:
                where = _pointer(context, builder, signature.args[0], numbers, place)
                return builder.load(builder.bitcast(where, four.as_pointer()), align=4)

            p, q = loaded(first), loaded(second)
            value = fused(builder, builder.fsub(q, p), all_four(builder, weight), p)
            # Behind a number as large as this float32 has whole numbers alone: they are its lowest bits.
            shifted = builder.fadd(value, ir.Constant(four, [8388608.0] * 4))
            bits = builder.bitcast(shifted, ir.VectorType(ir.IntType(32), 4))
            pixel = builder.bitcast(builder.trunc(bits, ir.VectorType(ir.IntType(8), 4)), ir.IntType(32))
            where = _pointer(context, builder, signature.args[4], into, place)
            builder.store(pixel, builder.bitcast(where, ir.IntType(32).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(numbers, types.int64, types.int64, types.float32, into, types.int64), generate

    @extending.overload(mix_four, strict=False)
    def mix_four_(numbers: Any, first: Any, second: Any, weight: Any, into: Any, place: Any) -> Any:
        def mixed(numbers: Any, first: Any, second: Any, weight: Any, into: Any, place: Any) -> Any:
            mix(numbers, first, second, weight, into, place)

        return mixed


def _teach_sums_of_four(extending: Any, types: Any) -> None:
    (ir, utils), (four, all_four, fused) = map(import_module, ("llvmlite.ir", "numba.core.cgutils")), _vectors()

    @extending.intrinsic
    def weigh(
        typing: Any, numbers: Any, begin: Any, places: Any, weights: Any, first: Any, count: Any, into: Any, place: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            numbers, begin, places, weights, first, count, into, place = arguments
            of_numbers, _, of_places, of_weights, _, _, of_into, _ = signature.args
            total = utils.alloca_once_value(builder, ir.Constant(four, [0.0] * 4))
            with utils.for_range(builder, count) as turn:
                tap = builder.add(first, turn.index)
                there = builder.add(begin, builder.load(_pointer(context, builder, of_places, places, tap)))
                where = builder.bitcast(_pointer(context, builder, of_numbers, numbers, there), four.as_pointer())
                weight = all_four(builder, builder.load(_pointer(context, builder, of_weights, weights, tap)))
                some = builder.load(where, align=4)
                builder.store(fused(builder, some, weight, builder.load(total)), total)
            where = builder.bitcast(_pointer(context, builder, of_into, into, place), four.as_pointer())
            builder.store(builder.load(total), where, align=4)
            return context.get_dummy_value()

        whole = types.int64
        return types.void(numbers, whole, places, weights, whole, whole, into, whole), generate

    @extending.overload(sum_four, strict=False)
    def sum_four_(
        numbers: Any, begin: Any, places: Any, weights: Any, first: Any, count: Any, into: Any, place: Any
    ) -> Any:
        def summed(
            numbers: Any, begin: Any, places: Any, weights: Any, first: Any, count: Any, into: Any, place: Any
        ) -> Any:
            weigh(numbers, begin, places, weights, first, count, into, place)

        return summed


_LESSONS = (
    _teach_claims, _teach_sums, _teach_places, _teach_products, _teach_mixtures, _teach_sums_of_four
)  # fmt: skip
