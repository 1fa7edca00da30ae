"""Group and instance normalization in Triton against `openmps.ops` in float64: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization import group_normalization as ops
from openmps.types import MPSImageEdgeMode
from pairs import pairs

ZERO = MPSImageEdgeMode.ZERO
SHAPES = [(2, 6, 5, 7, 3), (3, 4, 1, 1, 2), (1, 70, 9, 8, 70), (2, 8, 40, 33, 1), (1, 2, 130, 70, 2)]
"""Images, channels, rows, columns, groups."""


def _packed(x: Tensor, place: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return x.to(place, dtype).contiguous(memory_format=torch.channels_last)


def _given(number: int, place: torch.device, dtype: torch.dtype, mean: float) -> tuple[Tensor, ...]:
    images, channels, height, width, _ = SHAPES[number]
    generator = torch.Generator().manual_seed(number)
    x, g = (torch.randn((images, channels, height, width), generator=generator) for _ in range(2))
    gamma, beta = (torch.randn(channels, generator=generator).to(place) for _ in range(2))
    return _packed(x + mean, place, dtype), _packed(g, place, dtype), gamma, beta


@pytest.mark.parametrize(
    ("number", "dtype", "mean"), pairs(range(len(SHAPES)), [torch.float32, torch.float16], [0.0, 100.0]), ids=str
)
def test_equals_float64(
    number: int, dtype: torch.dtype, mean: float, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, g, gamma, beta = _given(number, place, dtype, mean)
    groups, height, width = SHAPES[number][4], x.shape[2], x.shape[3]
    whole, more = Window(y=Axis(height, height), x=Axis(width, width)), {"groups": groups, "epsilon": 1e-3}
    monkeypatch.setattr(ops, "_is_plain", lambda x: False)
    wanted, expected = ops.group_normalization(x.double(), gamma.double(), beta.double(), whole, ZERO, **more)
    back = ops.group_normalization_gradient(g.double(), x.double(), gamma.double(), expected, whole, whole, ZERO)
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    found, statistics = ops.group_normalization(x, gamma, beta, whole, ZERO, **more)
    got = ops.group_normalization_gradient(g, x, gamma, statistics, whole, whole, ZERO)
    assert found.dtype == got.source.dtype == dtype
    near = 2e-5 if dtype == torch.float32 else 2e-3
    for mine, other in ((found, wanted), (statistics, expected), *zip(got, back, strict=True)):
        scale = float(other.abs().max()) or 1.0
        torch.testing.assert_close(mine.double() / scale, other / scale, rtol=near, atol=near)
    assert torch.equal(statistics, ops.group_statistics(x, **more))


def test_a_constant_image_has_no_variance(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    monkeypatch.setattr(ops, "_is_plain", lambda x: False)
    x = _packed(torch.full((2, 4, 9, 9), 1e4), place)
    statistics = ops.group_statistics(x, groups=2, epsilon=0.25)
    assert torch.equal(statistics[:, 0], torch.zeros_like(statistics[:, 0]))
    assert torch.equal(statistics[:, 1], torch.full_like(statistics[:, 1], 2.0))


def test_what_is_not_taken(place: torch.device) -> None:
    from openmps.ops.triton.normalization import group_normalization as fast

    x = _packed(torch.ones((1, 4, 3, 3)), place)
    row = torch.ones(4, device=place)
    assert fast.takes(x, x, row)
    assert not fast.takes(x, x.contiguous())
    assert not fast.takes(x, x[:, :2])
    assert not fast.takes(x, row.double())
    assert not fast.takes(x[:0])
