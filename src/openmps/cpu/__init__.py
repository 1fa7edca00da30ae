"""The CPU by its named features, and every form of a computation that they choose.

What else decides a form is shapes alone; no time is measured while a program runs. Where two processors take other
forms, results differ by rounding: sums are made in another order.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch


class CpuFeatures(NamedTuple):
    """What forms are chosen by, and what the libraries choose theirs by."""

    name: str
    """As its maker calls it."""
    maker: str
    """As the processor says it, such as ``GenuineIntel``; empty where the system does not tell."""
    vectors: str
    """What PyTorch's own kernels are compiled for, such as ``AVX2``."""
    libraries: tuple[str, ...]
    """Of oneDNN and MKL those that this build of PyTorch has."""

    @property
    def has_float16(self) -> bool:
        """Whether it converts numbers to float16 and back: what has AVX2 does, and what is ARM's."""
        return self.vectors.startswith("AVX") or platform.machine().lower() in ("aarch64", "arm64")

    def __str__(self) -> str:
        return ", ".join([self.maker or platform.machine(), self.vectors, *self.libraries])


@cache
def cpu_features() -> CpuFeatures:
    """The features of this machine's CPU."""
    facts = _cpuinfo()
    name = facts.get("model name") or platform.processor() or platform.machine() or "CPU"
    backends = {"oneDNN": torch.backends.mkldnn, "MKL": torch.backends.mkl}
    libraries = tuple(library for library, backend in backends.items() if backend.is_available())
    return CpuFeatures(name, facts.get("vendor_id", ""), torch.backends.cpu.get_cpu_capability(), libraries)


def _cpuinfo() -> dict[str, str]:
    """What Linux tells of the first core; nothing on other systems."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    return found


class CpuChoice(Enum):
    """A form that the CPU's maker decides: of what, the form on Intel's processors, and that on others.

    Which is faster was measured on processors of both; see the notes of the benchmarks.
    """

    PRODUCTS = "float32 products, a factor transposed", "MKL", "oneDNN from 2^21 multiplications on"
    SMALL_PRODUCTS = (
        "float32 products of rows",
        "MKL to 2^22 multiplications, or one row",
        "MKL to 2^21 multiplications",
    )
    ORDERED_PRODUCTS = (
        "float32 products by one matrix, many times",
        "in MKL's order from 2^19 numbers on",
        "in oneDNN's from 2^21 multiplications on",
    )
    LARGE_LSTM = "training of LSTM, 512 units and more, few rows", "a loop", "oneDNN"
    PIXELS = "inference by windows of one pixel", "MKL to 2^19 results of 2^11 pixels", "oneDNN"
    TILES = "inference by 3 x 3 windows, many channels", "tiles (Winograd)", "oneDNN"
    BLOCKS = "transposed convolutions of blocks, few channels", "one product", "oneDNN"
    TANH = "the gradient of tanh", "1 - tanh^2", "by a sigmoid"

    @property
    def takes_intel(self) -> bool:
        """Whether this machine takes the first form: MKL knows its processor for its maker's own."""
        return cpu_features().maker == "GenuineIntel"

    def __str__(self) -> str:
        subject, on_intel, elsewhere = self.value
        return f"{subject}: {on_intel if self.takes_intel else elsewhere}"
