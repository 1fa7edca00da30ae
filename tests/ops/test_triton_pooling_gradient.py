"""Max pooling's gradient in Triton against the library's: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from in_one_test import in_one_test
from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.pooling.pooling import max_pooling, max_pooling_gradient
from openmps.types import MPSImageEdgeMode

AXES = [
    # source, result, size, stride, dilation, offset
    (Axis(9, 5, 3, 2), Axis(8, 4, 3, 2)),
    (Axis(6, 6, 3), Axis(7, 5, 3, 1, 1, 1)),
    (Axis(9, 5, 3, 1, 2, 2), Axis(8, 3, 2, 3, 4, 2)),
    (Axis(4, 3, 2, 1, 1, 1), Axis(12, 5, 4, 2, 1, 2)),
    (Axis(1, 1, 3), Axis(2, 2, 3)),
]


@in_one_test
@pytest.mark.parametrize("edge_mode", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (1, 70), (3, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_the_same_sums(axes, shape, dtype, edge_mode, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(x=axes[1], y=axes[0])
    generator = torch.Generator().manual_seed(3)
    images, channels = shape
    x = torch.randint(-3, 3, (images, *window.source, channels), generator=generator).to(dtype)
    gradient = torch.randn((images, *window.result, channels + 2), generator=generator).to(dtype)
    x, gradient = x.to(place).permute(0, 3, 1, 2), gradient.to(place).permute(0, 3, 1, 2)[:, :channels]
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        _, choice = max_pooling(x, window, edge_mode)
        found.append(max_pooling_gradient(gradient, x, choice, window, edge_mode))
    assert found[0].dtype is dtype
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(found[0], found[1], rtol=bound, atol=bound)
