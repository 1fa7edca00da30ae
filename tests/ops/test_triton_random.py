"""Philox in Triton against `openmps.ops.random.random.philox`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.random.random import philox, philox_words

MOST = 2**32 - 1


def _counters(place: torch.device):
    """Words of a number and of tensors of other shapes."""
    row = torch.tensor([0, 5, MOST], device=place)
    yield (7, row, 0, MOST), (1, 2)
    yield (torch.tensor(MOST, device=place), row.view(3, 1), torch.arange(300, device=place), 2**31), (MOST, 0)
    yield (torch.arange(0, 20, 2, device=place).view(2, 5)[:, ::2], 1, 2, 3), (2**31, MOST)
    yield (torch.zeros((0,), dtype=torch.int64, device=place), 1, 2, 3), (4, 5)
    yield (row.view(3, 1, 1), 1, row, row.view(3, 1)), (4, 5)


def _found(monkeypatch: pytest.MonkeyPatch, make):
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        yield make()


def test_the_same_words(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for counter, key in _counters(place):
        one, other = _found(monkeypatch, lambda counter=counter, key=key: philox(counter, key))
        for mine, expected in zip(one, other, strict=True):
            assert mine.dtype is torch.int64
            assert torch.equal(mine, expected)


def test_words_of_a_sequence(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = _found(monkeypatch, lambda: philox_words(2**40 + 3, 2**34 - 6, 700, place))
    assert torch.equal(one, other)
