"""Launches that overlap: the next one begins while the one in front of it ends, where a GPU can (from sm_90 on).

A small launch is over before the next one has come to all multiprocessors. A kernel that is `Overlapping` comes while
the programs of the one before end, and waits by itself, at its first line, until that is done: nothing is read or
written earlier (programmatic dependent launch). To come still earlier would take room from launches on other branches.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from openmps.ops.triton.ahead import Launched

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_current_index: Callable[[], int] = getattr(getattr(torch, "_C", None), "_cuda_getDevice", torch.cuda.current_device)
_OVERLAPPING = 9
"""The major compute capability from which launches may overlap."""


@triton.jit
def in_turn(OVERLAPS: tl.constexpr):
    """The first line of a kernel that is `Overlapping`: wait for all that was launched before."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


class Overlapping(Launched):
    """A kernel that is launched, whose last parameter is OVERLAPS and whose first line is ``in_turn(OVERLAPS)``."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch, overlaps = super().__getitem__(grid), _overlap()

        def launched(*arguments: Any, **options: Any) -> Any:
            if overlaps:
                options["launch_pdl"] = True
            return launch(*arguments, overlaps, **options)

        return launched


def _overlap() -> bool:
    """Whether launches overlap on the current device."""
    return _is_cuda() and _overlap_on(_current_index())


@cache
def _is_cuda() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available()


@cache
def _overlap_on(index: int) -> bool:
    return torch.cuda.get_device_capability(index)[0] >= _OVERLAPPING
