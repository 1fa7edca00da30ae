"""The node cases that the `onnx` package generates, one operator each, for the operators that kernels compute."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

Array = np.ndarray


class NotExpressible(Exception):
    """Why no kernel of the framework computes a case."""


@dataclass(frozen=True)
class Case:
    """One node: its attributes, its inputs (None where left out) and the outputs it must give."""

    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array, ...]

    def input(self, index: int) -> Array | None:
        """An input, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def tensor(self, index: int) -> Array:
        """An input that must be there."""
        value = self.input(index)
        assert value is not None
        return value

    def get(self, attribute: str, default: Any) -> Any:
        """An attribute; text instead of bytes."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else value

    def __str__(self) -> str:
        return self.name


@functools.cache
def generated() -> list[Any]:
    """Every case of the package. Of poolings of volumes, which nothing here takes, the numbers are NaN."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx.reference.ops import op_pool_common

    pool = op_pool_common.pool

    def pool_of_two_axes(
        padded: Array, x_shape: Sequence[int], kernel: Any, strides: Any, out_shape: Sequence[int],
        *others: Any, **more: Any,
    ) -> Array:  # fmt: skip
        """The package's, which visits pixel by pixel; of three axes NaN: most of its time."""
        if len(x_shape) < 5:
            return pool(padded, x_shape, kernel, strides, out_shape, *others, **more)
        return np.full((*x_shape[:2], *out_shape), np.nan, padded.dtype)

    with warnings.catch_warnings(), mock.patch.object(op_pool_common, "pool", pool_of_two_axes):
        warnings.simplefilter("ignore")  # some operators' cases overflow on purpose
        return collect_testcases(None)


@functools.cache
def cases(operators: Iterable[str]) -> tuple[Case, ...]:
    """Every generated case whose graph is one node of these operators, in the package's order."""
    wanted = frozenset(operators)
    found = [test for test in generated() if len(test.model.graph.node) == 1]
    return tuple(_case(test) for test in found if test.model.graph.node[0].op_type in wanted)


def _case(test: Any) -> Case:
    from onnx import helper

    graph = test.model.graph
    (node,) = graph.node
    inputs, outputs = test.data_sets[0]
    by_name = dict(zip((value.name for value in graph.input), inputs, strict=True))
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return Case(
        test.name.removeprefix("test_"),
        node.op_type,
        attributes,
        tuple(None if name == "" else np.asarray(by_name[name]) for name in node.input),
        tuple(np.asarray(value) for value in outputs),
    )


# --- what a case must be to be run on images -----------------------------------------------------------------------


def numeric(value: Array) -> Array:
    """The numbers as float32, which images hold; refused where float32 would not hold them exactly."""
    if value.dtype == object or value.dtype.kind not in "fiub":
        raise NotExpressible("strings: images hold numbers")
    carried = value.astype(np.float32)
    finite = np.isfinite(value.astype(np.float64))
    if not np.array_equal(carried.astype(np.float64)[finite], value.astype(np.float64)[finite]):
        raise NotExpressible("numbers beyond float32: no channel format holds them")
    if value.size == 0:
        raise NotExpressible("an empty tensor: an image has at least one pixel and one channel")
    return carried


def planar(value: Array) -> Array:
    """``[N, C, ...]`` with at most two spatial axes, as ``[N, C, H, W]``."""
    if value.ndim > 4:
        raise NotExpressible("three spatial axes: images have two")
    return numeric(value).reshape(*value.shape[:2], *(1,) * (4 - value.ndim), *value.shape[2:])


def along(value: Array, axis: int) -> Array:
    """Any tensor as ``[N, C, 1, W]``: one axis as channels, those before it as images, those behind it as pixels."""
    axis %= value.ndim
    before, behind = value.shape[:axis], value.shape[axis + 1 :]
    return numeric(value).reshape(math.prod(before), value.shape[axis], 1, math.prod(behind))


def flat(value: Array) -> Array:
    """Any tensor as one row of pixels."""
    return numeric(value).reshape(1, 1, 1, -1)
