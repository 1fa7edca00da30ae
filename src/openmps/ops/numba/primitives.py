"""What loops call besides NumPy: rows that threads share, and a sum that is rounded once.

Threads share the rows of a picture by claims: each takes the next few that nobody has taken, until none are left. A
thread that comes late takes fewer, and one that comes too late none: nobody waits for a thread to begin. Who finds none
left waits a moment for the rows that others are making, which is sooner over than a wait that the system ends.
"""

from __future__ import annotations

import zlib
from functools import cache
from importlib import import_module
from marshal import dumps
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


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """``x y + z`` of float32 numbers, rounded once."""
    raise NotImplementedError


@cache
def version() -> int:
    """A number for what these functions are, which loops have compiled in."""
    return zlib.crc32(dumps(teach.__wrapped__.__code__))


@cache
def teach(numba: Any) -> None:
    """Let loops call these functions."""
    extending, types = (import_module(name) for name in ("numba.extending", "numba.core.types"))

    def pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
        return builder.gep(context.make_array(kind)(context, builder, array).data, [place])

    @extending.intrinsic
    def add(typing: Any, claims: Any, place: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, place, number = arguments
            where = pointer(context, builder, signature.args[0], array, place)
            return builder.atomic_rmw("add", where, number, "seq_cst")

        return types.int64(claims, types.int64, types.int64), generate

    @extending.intrinsic
    def load(typing: Any, claims: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            where = pointer(context, builder, signature.args[0], *arguments)
            return builder.load_atomic(where, "seq_cst", 8)

        return types.int64(claims, types.int64), generate

    @extending.overload(claim)
    def claim_(claims: Any) -> Any:
        def taken(claims: Any) -> Any:
            first = add(claims, 0, claims[3])
            return first, min(first + claims[3], claims[2])

        return taken

    @extending.overload(finish)
    def finish_(claims: Any, rows: Any) -> Any:
        def finished(claims: Any, rows: Any) -> Any:
            add(claims, 1, rows)

        return finished

    @extending.overload(wait)
    def wait_(claims: Any) -> Any:
        def waited(claims: Any) -> Any:
            looks = claims[4]
            while looks > 0 and load(claims, 1) < claims[2]:
                looks -= 1

        return waited

    @extending.intrinsic
    def fused(typing: Any, x: Any, y: Any, z: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return types.float32(types.float32, types.float32, types.float32), generate

    @extending.overload(multiply_add)
    def multiply_add_(x: Any, y: Any, z: Any) -> Any:
        def added(x: Any, y: Any, z: Any) -> Any:
            return fused(np.float32(x), np.float32(y), np.float32(z))

        return added
