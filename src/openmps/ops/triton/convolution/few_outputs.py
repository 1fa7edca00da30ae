"""Fully connected layers of few outputs in Triton, as classifiers end with: a launch forward and one for all gradients.

Products are summed in float32; factors of float32 are multiplied as they are.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_FEW, _OF_ONE_ROW = (16, 512, 4), (2, 2048, 8)
"""Outputs of a program, terms that it reads at a time, and its warps: of several rows, and of one by more outputs."""
_ROWS, _COLUMNS = 64, 32


@Overlapping
@triton.jit
def _few_outputs(
    x, weights, biases, y, inputs, outputs, HAS_BIASES: tl.constexpr, OUTPUTS: tl.constexpr, TERMS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some outputs of one row."""
    in_turn(OVERLAPS)
    row, term = tl.program_id(0).to(tl.int64), tl.arange(0, TERMS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([OUTPUTS, TERMS], tl.float32)
    for first in range(0, inputs, TERMS):
        at = first + term
        value = tl.load(x + row * inputs + at, at < inputs, 0.0).to(tl.float32)
        place = weights + output[:, None] * inputs + at[None, :]
        factor = tl.load(place, (output < outputs)[:, None] & (at < inputs)[None, :], 0.0).to(tl.float32)
        total += factor * value[None, :]
    result = tl.sum(total, 1)
    if HAS_BIASES:
        result += tl.load(biases + output, output < outputs, 0.0)
    tl.store(y + row * outputs + output, result.to(y.dtype.element_ty), output < outputs)


@Overlapping
@triton.jit
def _few_outputs_gradient(
    gradient, x, weights, dx, dw, db, rows, inputs, outputs, WITH_SOURCE: tl.constexpr, WITH_SUMS: tl.constexpr,
    IS_HALF: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some columns of the source: their gradients, and those of their weights; the first also those of the biases."""
    in_turn(OVERLAPS)
    kind: tl.constexpr = tl.float16 if IS_HALF else tl.float32
    output, column = tl.arange(0, 16), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_output, is_column = output < outputs, column < inputs
    place = output[:, None] * inputs + column[None, :]
    factor = tl.load(weights + place, is_output[:, None] & is_column[None, :], 0.0).to(kind)
    total, biases = tl.zeros([16, COLUMNS], tl.float32), tl.zeros([16], tl.float32)
    for first in range(0, rows, ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        flow = tl.load(
            gradient + row[:, None] * outputs + output[None, :], (row < rows)[:, None] & is_output[None, :], 0.0
        )
        there = (row < rows)[:, None] & is_column[None, :]
        at = row[:, None] * inputs + column[None, :]
        if WITH_SUMS:
            value = tl.load(x + at, there, 0.0).to(kind)
            total = tl.dot(tl.trans(flow.to(kind)), value, total, input_precision="ieee")
            biases += tl.sum(flow.to(tl.float32), 0)
        if WITH_SOURCE:
            back = tl.dot(flow.to(kind), factor, input_precision="ieee")
            tl.store(dx + at, back.to(dx.dtype.element_ty), there)
    if WITH_SUMS:
        tl.store(dw + place, total, is_output[:, None] & is_column[None, :])
        if tl.program_id(0) == 0:
            tl.store(db + output, biases, is_output)


def few_outputs(x: Tensor, weights: Tensor, biases: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``x @ weights.T + biases`` for rows without gaps; at most 16 of weights, or one of ``x``."""
    (rows, inputs), outputs = x.shape, weights.shape[0]
    y = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    at_once, terms, warps = _FEW if outputs <= _FEW[0] else _OF_ONE_ROW
    _few_outputs[(rows, cdiv(outputs, at_once))](
        x, weights, y if biases is None else biases, y, inputs, outputs, biases is not None, at_once, terms,
        num_warps=warps,
    )  # fmt: skip
    return y


def few_outputs_gradient(
    gradient: Tensor, x: Tensor, weights: Tensor, *, with_source: bool, with_parameters: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of source, weights and biases: the first float16 if all operands are, the others float32."""
    (rows, inputs), outputs = x.shape, weights.shape[0]
    is_half = all(each.dtype == torch.float16 for each in (gradient, x, weights))
    dx = torch.empty_like(x, dtype=torch.float16 if is_half else torch.float32) if with_source else None
    sums = torch.empty(outputs * (inputs + 1), dtype=torch.float32, device=x.device) if with_parameters else None
    dw, db = (None, None) if sums is None else sums.split((outputs * inputs, outputs))
    unused = gradient
    _few_outputs_gradient[(cdiv(inputs, _COLUMNS),)](
        gradient, x, weights, unused if dx is None else dx, unused if dw is None else dw, unused if db is None else db,
        rows, inputs, outputs, with_source, with_parameters, is_half, _ROWS, _COLUMNS, num_warps=4,
    )  # fmt: skip
    return dx, None if dw is None else dw.view(outputs, inputs), db
