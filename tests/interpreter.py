"""Where kernels in Triton run in tests: on CUDA, or, where there is no GPU, by Triton's interpreter in the process."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from openmps.ops import triton

if not torch.cuda.is_available():
    # Triton asks for it where it is imported, so it is said before any test is.
    os.environ.setdefault("TRITON_INTERPRET", "1")
HAS_TRITON = find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def triton_place(taken: pytest.MonkeyPatch | None = None) -> torch.device:
    """Where Triton runs. With ``taken`` the operations take it there, too."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if not IS_INTERPRETED:
        device = torch.device("cuda", torch.cuda.current_device())
        assert triton.runs_on(device), "Triton is there and does not run"
        return device
    if taken is not None:
        taken.setattr(triton, "runs_on", lambda device: True)
    return torch.device("cpu")


def _counts_loops() -> bool:
    """Whether loops up to an argument run in Triton's interpreter: an older one wants a number made of an array."""
    if not HAS_TRITON or tuple(map(int, version("triton").split(".")[:2])) >= (3, 7):
        return True
    try:
        return int(np.array([1])) == 1
    except TypeError:
        return False


needs_loops = pytest.mark.skipif(
    IS_INTERPRETED and not _counts_loops(),
    reason="the interpreter counts loops by arrays of one number, which this NumPy refuses",
)
"""Of kernels whose loops end where an argument says."""
