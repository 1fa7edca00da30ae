"""Bytes to numbers and back in Triton against `openmps.ops.elements`: on CUDA, or by its interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openmps.ops import triton
from openmps.ops.elements import decode, encode
from openmps.types import MPSImageFeatureChannelFormat as Format


@pytest.mark.parametrize("layout", ["channels-last", "rows", "with gaps"])
def test_bytes_bit_for_bit(layout: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte, and more of them than a program takes."""
    stored = torch.arange(3 * 25 * 29 * 2, device=place).to(torch.uint8).view(3, 25, 29, 2)
    stored = stored if layout == "rows" else stored.permute(0, 3, 1, 2)
    stored = stored[:, :1] if layout == "with gaps" else stored
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(decode(stored, Format.UNORM8))
    assert found[0].dtype is torch.float32
    assert found[0].stride() == found[1].stride()
    assert torch.equal(found[0], found[1])
    assert decode(stored[:0], Format.UNORM8).shape == stored[:0].shape


@pytest.mark.parametrize("layout", ["channels-last", "rows", "with gaps"])
def test_numbers_bit_for_bit(layout: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halfway between bytes and beside it, beyond the bounds, and what is no number."""
    halves = (torch.arange(-4, 516, device=place) / 510.0)[:, None]
    near = torch.nextafter(halves, halves + torch.tensor([-1.0, 0.0, 1.0], device=place)).flatten()
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -0.0, 1e-45], device=place)
    numbers = torch.cat([near, odd, near[: 1800 - len(near) - len(odd)]]).view(2, 15, 20, 3)
    numbers = numbers if layout == "rows" else numbers.permute(0, 3, 1, 2)
    numbers = numbers[:, :1] if layout == "with gaps" else numbers
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(encode(numbers, Format.UNORM8))
    assert found[0].dtype is torch.uint8
    assert torch.equal(found[0], found[1])
    expected = np.nan_to_num(numbers.cpu().numpy() * np.float32(255.0), nan=0.0).clip(0.0, 255.0).round()
    np.testing.assert_array_equal(found[0].cpu().numpy(), expected)
    assert encode(numbers[:0], Format.UNORM8).shape == numbers[:0].shape
