"""Faster forms of operations, in Triton, which comes with the CUDA builds of PyTorch. `runs_on` says where they run."""

from __future__ import annotations

import logging
import threading
from functools import cache
from importlib.util import find_spec

import torch

from openmps.locks import new_lock


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the forms of this folder run on a device, told by a small one: Triton needs a C compiler, too."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    from openmps.ops.triton.elements import decode_unorm

    try:
        with _trying:
            decode_unorm(torch.zeros(16, dtype=torch.uint8, device=device), 255)
    except Exception as fault:
        logging.getLogger(__name__).warning("Triton does not work here, so operations take several passes: %s", fault)
        return False
    return True


_trying = new_lock()


def try_ahead(device: torch.device) -> None:
    """Find out on a thread whether they run on a device, so that it is known when somebody asks: it takes a second."""
    if device.type == "cuda" and device not in _tried:
        _tried.add(device)
        threading.Thread(target=_try_on, args=(device,), name="openmps tries Triton").start()


def _try_on(device: torch.device) -> None:
    with torch.cuda.device(device):
        runs_on(device)


_tried: set[torch.device] = set()
