"""Gradients of neurons in Triton against `ops.pointwise.neuron` in float64: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops.pointwise.neuron import neuron_gradient
from openmps.types import MPSCNNNeuronType as Kind

CASES = [
    (Kind.SIGMOID, 0.0, 0.0, 0.0),
    (Kind.TANH, 1.0, 1.0, 0.0),
    (Kind.TANH, 1.7, -0.6, 0.0),
    (Kind.SOFT_SIGN, 0.0, 0.0, 0.0),
    (Kind.ELU, 1.0, 0.0, 0.0),
    (Kind.ELU, 0.3, 0.0, 0.0),
    (Kind.PRELU, 0.0, 0.0, 0.0),
    (Kind.EXPONENTIAL, 1.0, 0.0, -1.0),
    (Kind.EXPONENTIAL, 0.5, -0.25, -1.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case: tuple[Kind, float, float, float], place: torch.device) -> None:
    from openmps.ops.triton.pointwise import neuron as fast

    kind, a, b, c = case
    generator = torch.Generator().manual_seed(2)
    g, x = (torch.randn((2, 5, 9, 31), generator=generator) * 4 for _ in range(2))
    x[0, :, 0, :5] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])
    g, x = (each.to(place).contiguous(memory_format=torch.channels_last) for each in (g, x))
    slopes = torch.linspace(-1, 2, 5).to(place) if kind is Kind.PRELU else None
    assert fast.takes(g, x, kind, c)
    found = fast.neuron_gradient(g, x, kind, a, b, slopes)
    # On the CPU: what is not a number has other gradients by some of PyTorch's kernels for GPUs.
    slopes = None if slopes is None else slopes.cpu()
    wanted = neuron_gradient(g.double().cpu(), x.double().cpu(), kind, a, b, c, slopes).to(place)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted.float(), rtol=2e-6, atol=1e-12, equal_nan=True)


def test_what_is_not_taken(place: torch.device) -> None:
    from openmps.ops.triton.pointwise import neuron as fast

    x = torch.ones((1, 2, 3, 3), device=place).contiguous(memory_format=torch.channels_last)
    assert fast.takes(x, x, Kind.SIGMOID, 0.0)
    assert not fast.takes(x, x, Kind.RELU, 0.0)
    assert not fast.takes(x, x, Kind.EXPONENTIAL, 2.0)
    assert not fast.takes(x, x.double(), Kind.SIGMOID, 0.0)
    assert not fast.takes(x[:, :1], x, Kind.SIGMOID, 0.0)
    assert not fast.takes(x.contiguous(), x, Kind.SIGMOID, 0.0)
