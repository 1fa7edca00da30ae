"""Softmax in Triton against PyTorch in float64: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1000, 1, 1), (3, 128, 2, 5), (2, 257, 1, 3)], ids=str)
def test_equals_float64(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> None:
    from openmps.ops.triton.pointwise import softmax as fast

    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 9
    x[0, :3] = torch.tensor([-float("inf"), 0.0, 30.0])[:, None, None]
    if shape[0] > 2:
        x[1, 0], x[2, 0] = float("nan"), float("inf")
    x = x.to(place, dtype).contiguous(memory_format=torch.channels_last)
    assert fast.takes(x)
    found, wanted = fast.softmax(x), torch.softmax(x.double(), 1)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    near = 2e-6 if dtype == torch.float32 else 1e-3
    torch.testing.assert_close(found.double(), wanted, rtol=near, atol=near * 1e-2, equal_nan=True)


def test_what_is_not_taken(place: torch.device) -> None:
    from openmps.ops.triton.pointwise import softmax as fast

    x = torch.ones((1, 1000, 1, 1), device=place).contiguous(memory_format=torch.channels_last)
    assert fast.takes(x)
    assert not fast.takes(x[:, :100])
    assert not fast.takes(x.double())
    assert not fast.takes(x.expand(200, 1000, 1, 1))
    assert not fast.takes(x[:0])
