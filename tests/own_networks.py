"""PyTorch modules that commands are told to train."""

from __future__ import annotations

import torch

calls: list[int] = []
"""PyTorch's seed at each call."""


class Residual(torch.nn.Module):
    """A convolution, a normalization and a shortcut, for grey images of 8 x 8 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4, momentum=0.3))
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.head = torch.nn.Linear(4 * 4 * 4, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.first(images))
        found = torch.nn.functional.max_pool2d(torch.relu(found + self.second(found)), 2)
        return self.head(found.flatten(1))


def ten() -> Residual:
    """Of ten classes."""
    calls.append(torch.initial_seed())
    return Residual(10)


def raising() -> None:
    """No network."""
    raise KeyError("none today")


class Others:
    """Names with dots."""

    seven = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 7))
    number = staticmethod(lambda: 7)
