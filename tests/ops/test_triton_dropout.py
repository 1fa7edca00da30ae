"""The dropout mask in Triton against that of `openmps.ops.dropout`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from openmps.ops import dropout as ops
from openmps.ops import triton

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CASES = [(0.5, 0, 0, 0), (0.3, 2**40 + 5, 3, 7), (0.9, 2**63 + 1, 2**33 + 1, 2), (1.0, 2**64 - 1, 2**63 - 1, 0)]
"""Probability, seed, step, first image."""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if IS_INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine; the interpreter is asked by a test of its own")
    return torch.device("cuda", torch.cuda.current_device())


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


@pytest.mark.skipif(IS_INTERPRETED or find_spec("triton") is None, reason="asks the interpreter, which Triton brings")
def test_by_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "same_bits"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
