"""Loops in Python that Numba compiles when they first run.

What is compiled is kept on disk, beside this package or in the user's cache, and loaded from there by the next process.
Where nothing can be kept, or what was kept cannot be read, each process compiles for itself. A loop uses nothing of its
module but NumPy and the functions of `openmps.ops.numba.primitives`: what it was compiled of is known by its own code.

Loops let other threads run meanwhile. Their numbers are those of the operations as they are written, each rounded to
its type; a division by zero is IEEE's. They take pictures as `Lines`, and the rows that they make by `claim`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from openmps.cpu import cpu_features
from openmps.cpu.parts import run_parts
from openmps.ops.elements import COMPONENTS, Components
from openmps.ops.image.library_form import Array
from openmps.ops.image.site import Site
from openmps.ops.numba import library, preparing
from openmps.ops.numba.primitives import are_done, code_of, new_claims, teach, version
from openmps.types import MPSImageFeatureChannelFormat as Format

Function = Callable[..., None]
_SHARED = 1 << 19
"""Numbers that are worth a second thread."""
_BAND = 1 << 17
"""Numbers that a thread takes at a time."""

_TYPES = {Format.UNORM8: "uint8", Format.FLOAT16: "uint16", Format.FLOAT32: "float32"}
"""Of elements as loops take them."""


class Loop:
    """A function of Python that is compiled for one signature when it is first called; its first argument is claims."""

    __slots__ = ("_compiled", "_function", "_signature", "_uses")

    def __init__(self, arguments: str, function: Function, uses: tuple[Function, ...]) -> None:
        self._signature, self._function, self._uses = f"void(int64[::1], {arguments})", function, uses
        self._compiled: Function | None = None

    def run(self, rows: int, numbers: int, *arguments: Any, band: int = 0) -> None:
        """Make so many rows, all of which take so many numbers, with the arguments behind the claims.

        Several threads make them where there are many numbers, ``band`` rows at a time at least.
        """
        made = self._compiled or self._compile()
        threads = torch.get_num_threads() if numbers >= _SHARED else 1
        if threads == 1:
            made(new_claims(rows, rows, alone=True), *arguments)
            return
        claims = new_claims(rows, max(1, band, rows * _BAND // numbers), alone=False)
        run_parts(lambda _: made(claims, *arguments), range(threads), threads, lambda: are_done(claims))

    def _compile(self) -> Function:
        with preparing:
            if self._compiled is None:
                self._compiled = self._made()
            return self._compiled

    def _made(self) -> Function:
        numba, function, code = library(), self._function, version()
        teach(numba)
        for each in self._uses:
            numba.extending.register_jitable(each)
        for each in (function, *self._uses):
            code = zlib.crc32(code_of(each), code)
        # Files on disk are known by this name, and by when the module was written, which packages may set at will.
        function.__qualname__ = f"{function.__name__}_{code:08x}"
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(self._signature, cache=True, **options)(function)
        except Exception as fault:  # there is no folder to write to, or its files cannot be read
            logging.getLogger(__name__).info("Compiled loops of filters are not kept on disk: %s", fault)
            return numba.njit(self._signature, **options)(function)


def loop(*arguments: str, uses: tuple[Function, ...] = ()) -> Callable[[Function], Loop]:
    """Decorates a function whose arguments behind the claims have these types of Numba; it may call those it uses."""
    return lambda function: Loop(", ".join(arguments), function, uses)


def loops(
    arguments: str, types: Sequence[tuple[str, str]], uses: tuple[Function, ...] = ()
) -> Callable[[Function], dict[tuple[str, str], Loop]]:
    """Decorates a function that is compiled for pairs of types, the arguments' T and S: one loop for each."""
    return lambda function: {
        (source, result): Loop(arguments.replace("T", source).replace("S", result), function, uses)
        for source, result in types
    }


PAIRS = tuple((source, result) for source in _TYPES.values() for result in _TYPES.values())
"""Types of sources and results."""


def are_compiled(formats: Sequence[Format]) -> bool:
    """Whether loops take pictures stored so, as `bits`: LLVM calls functions for float16 where a CPU has none."""
    return {*formats} <= {*_TYPES} and (Format.FLOAT16 not in formats or cpu_features().has_float16)


def bits(picture: Array) -> Array:
    """Float16 numbers as their bits, for which NumPy and Numba have a type; others as they are."""
    return picture.view(np.uint16) if picture.dtype == np.float16 else picture


def added_components(site: Site) -> Array:
    """What `Components` puts in the place of channels that a picture lacks, for each of the result; as it is stored."""
    added = np.zeros(max(COMPONENTS, site.result.channels), np.float32)
    for each in site.ops:
        if isinstance(each, Components):
            added[:], added[COMPONENTS - 1] = each.colour * site.scale, each.alpha * site.scale
    return added


class Lines(NamedTuple):
    """Rows as a loop takes them."""

    numbers: Array
    """From the first number to the last, one axis."""
    step: int
    """Numbers from one row to the next."""


def lines(picture: Array) -> Lines:
    """The rows of a picture whose pixels lie side by side."""
    if picture.flags.c_contiguous:
        return Lines(picture.reshape(-1), picture[0].size)
    step = picture.strides[0] // picture.itemsize
    count = (len(picture) - 1) * step + picture[0].size
    return Lines(np.lib.stride_tricks.as_strided(picture, (count,), (picture.itemsize,)), step)
