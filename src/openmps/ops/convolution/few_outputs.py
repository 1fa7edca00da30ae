"""Fully connected layers of few outputs where Triton runs, as classifiers end with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton

_MOST_OUTPUTS, _MOST_IMAGES, _MOST_NUMBERS = 16, 1024, 1 << 21
_FLOATS = {torch.float16, torch.float32}


def few_outputs(x: Tensor, weights: Tensor, biases: Tensor | None, *, wide: bool) -> Tensor | None:
    """``x @ weights.T + biases`` of rows; float16 of such factors unless ``wide``. None where there is no such form."""
    if not _fits(x, weights, biases):
        return None
    from openmps.ops.triton.convolution.few_outputs import few_outputs as at_once

    is_half = not wide and x.dtype == weights.dtype == torch.float16
    return at_once(x, weights, biases, torch.float16 if is_half else torch.float32)


def few_outputs_gradient(gradient: Tensor, x: Tensor, weights: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
    """The gradients of source, weights and biases, None for what is not ``wanted``; or None: there is no such form.

    The weights' and the biases' are float32; the biases' comes with the weights' alone.
    """
    with_source, with_parameters, with_biases = wanted
    if not (with_source or with_parameters) or not _fits(x, weights, gradient):
        return None
    from openmps.ops.triton.convolution.few_outputs import few_outputs_gradient as at_once

    source, sums, biases = at_once(gradient, x, weights, with_source=with_source, with_parameters=with_parameters)
    return source, sums, biases if with_biases else None


def _fits(x: Tensor, weights: Tensor, other: Tensor | None) -> bool:
    given = (x, weights) if other is None else (x, weights, other)
    is_small = 0 < len(weights) <= _MOST_OUTPUTS and len(x) <= _MOST_IMAGES and 0 < x.numel() <= _MOST_NUMBERS
    if not is_small or not {each.dtype for each in given} <= _FLOATS or not triton.runs_on(x.device):
        return False
    return all(each.is_contiguous() for each in given)
