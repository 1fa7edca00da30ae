"""Shared by the tests of operations."""

from __future__ import annotations

import pytest
import torch

from interpreter import triton_place


@pytest.fixture
def place() -> torch.device:
    """Where Triton runs."""
    return triton_place()
