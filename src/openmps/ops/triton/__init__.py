"""Faster forms of operations, in Triton, which comes with the CUDA builds of PyTorch. `runs_on` says where they run."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the forms of this folder run on a device, told by a small one: Triton needs a C compiler, too."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    from openmps.ops.triton.elements import decode_unorm

    try:
        decode_unorm(torch.zeros(16, dtype=torch.uint8, device=device), 255)
    except Exception as fault:
        logging.getLogger(__name__).warning("Triton does not work here, so operations take several passes: %s", fault)
        return False
    return True
