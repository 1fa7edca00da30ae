"""Shared by the tests of operations."""

from __future__ import annotations

import pytest
import torch

from interpreter import triton_place
from openmps.ops import triton


@pytest.fixture
def place() -> torch.device:
    """Where Triton runs."""
    return triton_place()


@pytest.fixture(params=["slow", "in Triton"])
def each_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the operations run: as PyTorch's, or where Triton does."""
    if request.param == "slow":
        monkeypatch.setattr(triton, "runs_on", lambda device: False)
        return torch.device("cpu")
    return triton_place(monkeypatch)
