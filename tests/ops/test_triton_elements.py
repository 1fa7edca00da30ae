"""Bytes to numbers in Triton against the function of `openmps.ops.elements`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from openmps.ops import triton
from openmps.ops.elements import decode
from openmps.types import MPSImageFeatureChannelFormat as Format

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def place() -> torch.device:
    """Where Triton runs."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if IS_INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine; the interpreter is asked by a test of its own")
    return torch.device("cuda", torch.cuda.current_device())


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


@pytest.mark.skipif(IS_INTERPRETED or find_spec("triton") is None, reason="asks the interpreter, which Triton brings")
def test_by_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "bit_for_bit"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
