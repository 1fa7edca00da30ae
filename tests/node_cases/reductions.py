"""Reductions: each axis in its turn becomes the feature channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from encoding import Bench, run
from node_cases.case import Array, Case, NotExpressible, along, numeric
from openmps.kernels import reduce as kernels


def _axes(case: Case) -> list[int]:
    x, given = case.tensor(0), case.input(1)
    listed = case.get("axes", None) if given is None else given.tolist()
    if not listed:
        return [] if case.get("noop_with_empty_axes", 0) else list(range(x.ndim))
    return sorted(int(axis) % x.ndim for axis in listed)


def reduction(kind: str) -> Any:
    def adapter(case: Case, bench: Bench) -> list[Array]:
        value = numeric(case.tensor(0))
        axes = _axes(case)
        shape = [1 if axis in axes else n for axis, n in enumerate(value.shape)]
        for axis in axes:
            value = _channels(getattr(kernels, kind)(bench.device), value, axis, bench)
        return [value.reshape(shape if case.get("keepdims", 1) else case.outputs[0].shape)]

    return adapter


def argument(kind: str) -> Any:
    def adapter(case: Case, bench: Bench) -> list[Array]:
        if case.get("select_last_index", 0):
            raise NotExpressible("the last of equal numbers: the kernel gives the first")
        x = numeric(case.tensor(0))
        found = _channels(getattr(kernels, kind)(bench.device), x, int(case.get("axis", 0)) % x.ndim, bench)
        return [found.reshape(case.outputs[0].shape)]

    return adapter


def _channels(kernel: Any, value: Array, axis: int, bench: Bench) -> Array:
    found = run(bench, kernel, [bench.image(along(value, axis))])
    shape = list(value.shape)
    shape[axis] = 1
    assert found.size == math.prod(shape)
    return np.asarray(found, np.float32).reshape(shape)
