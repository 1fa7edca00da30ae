"""What tests of normalizations in Triton share: where they run, images and rows of numbers, comparisons."""

from __future__ import annotations

from typing import Any

import torch

TYPES = [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.float16, torch.float32)]
"""Of images and of gradients."""
EPSILON = 1e-3
ROUNDING = {torch.float32: 2e-6, torch.float16: 1.5e-3}
"""Of sums in another order, and of a result that lies near the middle between two float16 numbers."""


def image(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device, seed: int, layout: str) -> torch.Tensor:
    """Random numbers, a channel of them constant; a slice of more channels, or by itself."""
    generator = torch.Generator().manual_seed(seed)
    images, channels, height, width = shape
    more = 3 if layout == "slice" else 0
    numbers = torch.randn((images, height, width, channels + more), generator=generator) * 2 + 0.5
    numbers[..., 0] = 0.1
    return numbers.to(place, dtype).permute(0, 3, 1, 2)[:, :channels]


def rows(channels: int, place: torch.device, seed: int = 5) -> tuple[torch.Tensor, ...]:
    """Gamma and beta."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(channels, generator=generator) + 0.5, torch.randn(channels, generator=generator) * 0.3
    return tuple(row.to(place) for row in drawn)


def assert_alike(
    found: tuple[Any, ...], expected: tuple[Any, ...], *, dtype: torch.dtype, flips: int = 0, terms: float = 1.0
) -> None:
    """Within the rounding of the type, of a sum that of its ``terms``; some may flip at a rectifier's edge."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        bound = ROUNDING[dtype] * (float(other.abs().max()) + terms)
        assert int(((one.double() - other.double()).abs() > bound).sum()) <= flips
