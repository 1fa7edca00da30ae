"""Dropout in Triton against `openmps.ops.pointwise.dropout`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.pointwise import dropout as ops

CASES = [(0.5, 0, 0, 0), (0.3, 2**40 + 5, 3, 7), (0.9, 2**63 + 1, 2**33 + 1, 2), (1.0, 2**64 - 1, 2**63 - 1, 0)]
"""Probability, seed, step, first image."""


@pytest.mark.parametrize("is_held", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("strides", [(1, 1, 1), (0, 0, 1), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 300, 2, 3), (0, 3, 2, 2)], ids=str)
def test_the_same_bits(shape, strides, is_held: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for p, seed, step, first in CASES:
        given = torch.tensor(step, device=place) if is_held else step
        found = []
        for runs in (True, False):
            monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
            found.append(
                ops.dropout_mask(shape, p, seed=seed, step=given, first_image=first, mask_strides=strides, device=place)
            )
        assert found[0].dtype is torch.bool
        assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_is_kept_and_dropped(dtype: torch.dtype, place: torch.device) -> None:
    from openmps.ops.triton.pointwise import dropout as fast

    generator = torch.Generator().manual_seed(4)
    x = torch.randn((3, 5, 7, 11), generator=generator).to(place, dtype).contiguous(memory_format=torch.channels_last)
    mask = torch.rand(x.shape, generator=generator).to(place).lt(0.6).contiguous(memory_format=torch.channels_last)
    x[0, :, 0, 0], x[1, :, 0, 0] = float("inf"), float("nan")
    assert fast.takes(x, mask)
    assert not fast.takes(x, mask[:, :1])
    assert not fast.takes(x.double(), mask)
    found = fast.dropout(x, mask, 0.6)
    wanted = torch.where(mask, x.double() / 0.6, 0.0).to(dtype)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted, rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True)
