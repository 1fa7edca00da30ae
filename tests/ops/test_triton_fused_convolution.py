"""Fused convolutions in Triton against their slow twins: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from in_one_test import in_one_test
from openmps.ops.convolution.convolution import convolution, with_biases
from openmps.ops.convolution.fused_convolution import Activation
from openmps.ops.pointwise.neuron import neuron
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from placements import Case, cases

RELU, RELU_N = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N
RECTIFIERS = {
    "NONE": None,
    "RELU": Activation(RELU, 0.0, 0.0),
    "LEAKY": Activation(RELU, 0.25, 0.0),
    "RELU_N": Activation(RELU_N, 0.0, 1.5),
    "LEAKY_N": Activation(RELU_N, 0.25, 1.0),
}
PLACED = cases(14, seed=9)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


def _last(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    image = torch.randn(shape, generator=generator).to(place, dtype)
    return image.contiguous(memory_format=torch.channels_last) if image.ndim == 4 else image


def _arguments(name: str) -> dict[str, Any]:
    rectifier = RECTIFIERS[name]
    return {
        "rectifier": name, "slope": rectifier.a if rectifier else 0.0, "limit": rectifier.b if rectifier else 0.0
    }  # fmt: skip


def _behind(y: Tensor, biases: Tensor | None, residual: Tensor | None, name: str) -> Tensor:
    """The slow steps, in float64."""
    y = with_biases(y.double(), None if biases is None else biases.double())
    y = y if residual is None else y + residual.double()
    how = RECTIFIERS[name]
    return y if how is None else neuron(y, how.function, how.a, how.b, 0.0)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", RECTIFIERS)
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 300, 2, 7), (0, 3, 2, 2)], ids=str)
def test_what_stands_behind(name: str, shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> None:
    from openmps.ops.triton.convolution.fused_convolution import finish

    y, residual = _last(shape, dtype, place), _last((*shape[:3], shape[3] + 1), dtype, place)[..., 1:]
    residual = residual.contiguous(memory_format=torch.channels_last)
    biases = _last(shape[1:2], torch.float32, place)
    if y.numel():
        y[0, 1, 1, 1] = float("nan")
    for added in (None, biases):
        for image in (None, residual):
            found = finish(y.clone(), added, image, *_arguments(name).values())
            expected = _behind(y, added, image, name).to(dtype)
            torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6, equal_nan=True)


def _assert_is_convolution(form: str, case: Case, dtype: torch.dtype, place: torch.device, number: int) -> None:
    from openmps.ops.triton.convolution import fused_convolution as fast

    name = list(RECTIFIERS)[number % len(RECTIFIERS)]
    inputs, multiplier = (1, 3, 4, 5, 17)[number % 5], 1 + number % 2
    is_depthwise = form == "depthwise"
    groups, outputs = (inputs, inputs * multiplier) if is_depthwise else (1, (3, 8, 33)[number % 3])
    window, size = case.window(), case.window().size
    x = _last((case.images, inputs, case.height, case.width), dtype, place)
    weights = _last((outputs, size[0] * size[1] * inputs // groups), dtype, place)
    weights = weights.view(outputs, *size, inputs // groups)
    biases = _last((outputs,), torch.float32, place) if number % 3 else None
    residual = _last((case.images, outputs, *window.result), dtype, place) if number % 2 else None
    more = {"groups": groups, "edge_mode": case.edge_mode}
    plain = convolution(x.double(), weights.double(), None, window, **more)
    expected = _behind(plain, biases, residual, name)
    if is_depthwise:
        weights = weights.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    clamps = case.edge_mode == MPSImageEdgeMode.CLAMP
    found = getattr(fast, form)(x, weights, biases, residual, window, clamps=clamps, **_arguments(name))
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    worst = (found.double() - expected).abs().max().item() if found.numel() else 0.0
    assert worst <= TOLERANCES[dtype] * max(1.0, float(plain.abs().max()) if found.numel() else 1.0)


@in_one_test
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("number", range(len(PLACED)))
def test_each_channel_by_itself(number: int, dtype: torch.dtype, place: torch.device) -> None:
    _assert_is_convolution("depthwise", PLACED[number], dtype, place, number)


@in_one_test
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("number", range(len(PLACED)))
def test_all_channels(number: int, dtype: torch.dtype, place: torch.device) -> None:
    _assert_is_convolution("contraction", PLACED[number], dtype, place, number)
