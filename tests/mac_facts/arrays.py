"""N-dimensional arrays (A, macOS 26.5; J as well where it says so)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench
from mac_facts.fact import DEVICE, Fact, row

FLOAT32 = mps.MPSDataType.FLOAT32


def _array(*sizes: int) -> mps.MPSNDArray:
    """The numbers from 1 on, dimension 0 running fastest."""
    array = mps.MPSNDArray(DEVICE, mps.MPSNDArrayDescriptor(FLOAT32, dimension_sizes=sizes))
    array.write_bytes(np.arange(1, np.prod(sizes) + 1, dtype=np.float32))
    return array


def _view(array: mps.MPSNDArray, change: Callable[[mps.MPSNDArrayDescriptor], Any]) -> mps.MPSNDArray:
    descriptor = array.descriptor()
    change(descriptor)
    view = array.array_view(Bench(DEVICE).command_buffer(), descriptor)
    assert view is not None and view.parent is array
    return view


def _transposed_lengths() -> np.ndarray:
    descriptor = mps.MPSNDArrayDescriptor(FLOAT32, dimension_sizes=[2, 3])
    descriptor.transpose_dimension(0, 1)
    return row(descriptor.length_of_dimension(0), descriptor.length_of_dimension(1))


def _sliced() -> mps.MPSNDArray:
    """Two of the four rows of [3, 4, 2]."""
    return _view(_array(3, 4, 2), lambda it: it.slice_dimension(1, mps.MPSDimensionSlice(2, 2)))


def _transposed() -> mps.MPSNDArray:
    return _view(_array(2, 3), lambda it: it.transpose_dimension(0, 1))


def _view_lengths() -> np.ndarray:
    part = _sliced()
    return row(*(part.length_of_dimension(index) for index in range(3)), _transposed().length_of_dimension(0))


FACTS = [
    Fact("array-written", "1..24 are read packed", "A", row(*range(1, 25)), lambda: _array(2, 3, 4).numpy().ravel()),
    Fact(
        "array-fresh",
        "a new array is zeros",
        "A",
        row(*[0] * 6),
        lambda: mps.MPSNDArray(DEVICE, mps.MPSNDArrayDescriptor(FLOAT32, [2, 3])).numpy().ravel(),
    ),
    Fact("array-size", "resourceSize of [2, 3, 4, 5] is 960", "A", 960, lambda: _array(2, 3, 4, 5).resource_size()),
    Fact("array-lengths", "lengths of a transposed descriptor [2, 3]", "A, J", row(3, 2), _transposed_lengths),
    Fact(
        "array-transposed",
        "a transposed view of [2, 3]",
        "A",
        row(1, 3, 5, 2, 4, 6),
        lambda: _transposed().read_bytes().ravel(),
    ),
    Fact(
        "array-slice",
        "a slice of dimension 1 of [3, 4, 2]",
        "A",
        row(*range(7, 13), *range(19, 25)),
        lambda: _sliced().read_bytes().ravel(),
    ),
]
SWITCHED = [
    Fact(
        "array-view-lengths",
        "lengthOfDimension of a view is its parent's: of a slice, and 2 of a transposed one",
        "A",
        row(3, 4, 2, 2),
        _view_lengths,
        switch={"array_view_lengths": "parent"},
    ),
]
"""Facts that conventions make hold, where the default keeps to the documentation."""
