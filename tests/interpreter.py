"""Where kernels in Triton run in tests: on CUDA, or, where there is no GPU, by Triton's interpreter in the process."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from openmps.ops import triton

if not torch.cuda.is_available():
    # Triton asks for it where it is imported, so it is said before any test is (conftest.py).
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


def _count_loops() -> None:
    """Have the interpreter of a Triton before 3.7 make numbers of arrays of one number, which NumPy 2.4 refuses."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    given = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        given(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


if HAS_TRITON and IS_INTERPRETED and tuple(map(int, version("triton").split(".")[:2])) < (3, 7):
    _count_loops()
