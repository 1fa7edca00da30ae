"""Training and evaluation mode of PyTorch modules."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Generator[None]:
    """A module in evaluation mode; behind it, each of its layers is in the mode that it was in."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
