"""Matrices and vectors made of arrays, in memory with gaps, at origins, and among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import openmps as mps
from encoding import Bench, finish
from samples.matrix import MatrixSample, Operand

Array = np.ndarray
UNTOUCHED = 77
ROW, COLUMN = 2, 1
"""Where parts begin, where they are placed."""


def matrix(bench: Bench, values: Any, data_type: Any = mps.MPSDataType.FLOAT32, **more: Any) -> mps.MPSMatrix:
    """``[rows, columns]``, or several of them."""
    array = np.asarray(values)
    count = {} if array.ndim == 2 else {"matrices": len(array)}
    descriptor = mps.MPSMatrixDescriptor(*array.shape[-2:], data_type=data_type, **count, **more)
    made = mps.MPSMatrix(bench.device, descriptor)
    _fill(made, array)
    return made


def vector(bench: Bench, values: Any, data_type: Any = mps.MPSDataType.FLOAT32) -> mps.MPSVector:
    """``[length]``, or several of them."""
    array = np.asarray(values)
    count = {} if array.ndim == 1 else {"vectors": len(array)}
    made = mps.MPSVector(bench.device, mps.MPSVectorDescriptor(array.shape[-1], data_type, **count))
    _fill(made, array)
    return made


def _fill(made: Any, array: Array) -> None:
    place = made.whole().value()
    place.copy_(torch.from_numpy(np.array(array)).reshape(place.shape))


def run(bench: Bench, encode: Any, *operands: Any, **more: Any) -> Any:
    """One encode, done."""
    command_buffer = bench.command_buffer()
    encode(command_buffer, *operands, **more)
    finish(command_buffer)
    return command_buffer


class Placed:
    """The operands of a sample: as they are, or as the second of three, at origins, with gaps."""

    def __init__(self, bench: Bench, sample: MatrixSample, data_type: Any, *, is_placed: bool) -> None:
        self._rng = np.random.default_rng(7)
        self.sample, self._data_type, self._is_placed = sample, data_type, is_placed
        self.arrays: dict[str, Array] = {}
        self.objects = [self._made(bench, each) for each in sample.operands]

    def _made(self, bench: Bench, operand: Operand) -> Any:
        if not operand.shape:
            return None
        data_type = self._data_type if self._data_type in operand.types else operand.types[0]
        own = np.full(operand.shape, float(UNTOUCHED)) if operand.is_result else operand.make(self._rng, operand.shape)
        size = [each + place + 1 for each, place in zip(operand.shape, self.origin(operand), strict=True)]
        every = np.full([3, *size], float(UNTOUCHED)) if self._is_placed else own
        if self._is_placed:
            every[(1, *self.region(operand))] = own
        kind = vector if len(operand.shape) == 1 else matrix
        width = mps.MPSSizeofMPSDataType(data_type)
        gaps = {"row_bytes": (size[-1] + 3) * width} if self._is_placed and kind is matrix else {}
        made = kind(bench, every, data_type, **gaps)
        self.arrays[operand.name] = made.numpy()
        return made

    def origin(self, operand: Operand) -> tuple[int, ...]:
        """Where a part begins along each axis."""
        if not (self._is_placed and operand.origin):
            return (0,) * len(operand.shape)
        return (ROW,) if len(operand.shape) == 1 else (ROW, COLUMN)

    def region(self, operand: Operand) -> tuple[slice, ...]:
        """The part of one vector or matrix."""
        return tuple(slice(f, f + n) for f, n in zip(self.origin(operand), operand.shape, strict=True))

    def part(self, operand: Operand, array: Array) -> Array:
        """The numbers that an encode works on."""
        return array[(1, *self.region(operand))] if self._is_placed else array

    def kernel(self, device: Any) -> Any:
        """The sample's kernel, told where the parts are."""
        kernel = self.sample.kernel(device)
        if self._is_placed:
            kernel.batch_start, kernel.batch_size = 1, 1
            for each in self.sample.operands:
                if each.origin:
                    setattr(kernel, each.origin, mps.MTLOrigin(*(*self.origin(each), 0, 0)[:3]))
            rows_and_columns = {"source_rows": 0, "source_columns": 1, "source_number_of_feature_vectors": 0}
            for name, axis in rows_and_columns.items():
                if hasattr(kernel, name):
                    setattr(kernel, name, self.sample.operands[0].shape[axis])
            self._limit(kernel)
        return kernel

    def _limit(self, kernel: Any) -> None:
        """Have channels used that the operands have, not those behind them."""
        shapes = {each.name: each.shape for each in self.sample.operands}
        if hasattr(kernel, "source_output_feature_channels"):
            weights = shapes.get("weight_matrix") or shapes["result_gradient_for_weight_matrix"]
            kernel.source_input_feature_channels, kernel.source_output_feature_channels = weights
        elif hasattr(kernel, "source_input_feature_channels"):
            kernel.source_input_feature_channels = self.sample.operands[0].shape[1]

    def expected(self) -> dict[str, Array]:
        """All of each result, as it must be afterwards."""
        parts = {
            each.name: self.part(each, self.arrays[each.name]).astype(np.float64)
            for each in self.sample.operands
            if each.shape
        }
        found = {}
        for name, value in self.sample.oracle(parts).items():
            operand = next(each for each in self.sample.operands if each.name == name)
            every = self.arrays[name].astype(np.float64)
            self.part(operand, every)[...] = value
            found[name] = every
        return found

    def results(self) -> dict[str, Array]:
        """What the results hold."""
        return {
            each.name: made.numpy()
            for each, made in zip(self.sample.operands, self.objects, strict=True)
            if each.is_result and made is not None
        }
