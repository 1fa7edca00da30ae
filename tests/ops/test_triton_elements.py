"""Bytes to numbers in Triton against the function of `openmps.ops.elements`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.elements import decode
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
