"""Max pooling in Triton against its slow twin: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.pooling.pooling import average_pooling, l2_norm_pooling, max_pooling
from openmps.types import MPSImageEdgeMode
from placements import cases

PLACED = cases(24, seed=3)
PLAIN = cases(12, seed=4, dilation=False)
PLAIN = [case for case in PLAIN if case.rows.dilation == case.columns.dilation == 1]


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("number", range(len(PLACED)))
def test_the_same_bits(number: int, dtype: torch.dtype, place: torch.device) -> None:
    from openmps.ops.triton.pooling.pooling import max_pooling as at_once

    case, channels = PLACED[number], (1, 3, 4, 70)[number % 4]
    x = torch.randn((case.images, channels, case.height, case.width), generator=torch.Generator().manual_seed(number))
    x = x.to(place, dtype).contiguous(memory_format=torch.channels_last)
    if x.numel() and number % 3 == 0:
        x[0, 0, -1, -1] = float("nan")
        x[-1, -1, 0, 0] = -float("inf")
    expected, _ = max_pooling(x, case.window(), case.edge_mode)
    found = at_once(x, case.window(), clamps=case.edge_mode == MPSImageEdgeMode.CLAMP)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert found.is_contiguous(memory_format=torch.channels_last)


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_averages(number: int, dtype: torch.dtype, place: torch.device) -> None:
    from openmps.ops.triton.pooling.pooling import average_pooling as at_once

    case = PLAIN[number]
    x = torch.randn((case.images, 5, case.height, case.width), generator=torch.Generator().manual_seed(number))
    x = x.to(place, dtype).contiguous(memory_format=torch.channels_last)
    expected = average_pooling(x.double(), case.window(), MPSImageEdgeMode.ZERO)
    found = at_once(x, case.window())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_sums_and_norms(number: int, place: torch.device) -> None:
    from openmps.ops.triton.pooling.pooling import l2_norm_pooling as norms
    from openmps.ops.triton.pooling.pooling import sum_pooling as sums

    case, channels = PLAIN[number], (1, 3, 70)[number % 3]
    window, taps = case.window(), case.window().size[0] * case.window().size[1]
    x = torch.randn((case.images, channels, case.height, case.width), generator=torch.Generator().manual_seed(number))
    x = x.to(place).contiguous(memory_format=torch.channels_last)
    total = average_pooling(x.double(), window, MPSImageEdgeMode.ZERO) * taps
    torch.testing.assert_close(sums(x, window), total.float(), rtol=1e-5, atol=1e-5)
    norm = l2_norm_pooling(x.double(), window, MPSImageEdgeMode.ZERO)
    torch.testing.assert_close(norms(x, window), norm.float(), rtol=1e-5, atol=1e-5)
