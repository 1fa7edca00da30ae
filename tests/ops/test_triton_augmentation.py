"""Augmentation and selection in Triton, to the same bits as the operations: on CUDA, or by Triton's interpreter.

Sums of four pixels are within their rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from openmps.kernels.augmentation import _turns
from openmps.ops import triton
from openmps.ops.image import augmentation, selection
from openmps.types import MPSImageEdgeMode
from oracles import augmentation as oracle
from pairs import pairs

EDGES = [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP, MPSImageEdgeMode.MIRROR]
SHAPES = [(5, 3, 6, 7), (3, 1, 1, 9), (2, 130, 4, 5)]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Tensor]], None]:
    """Compares what is made with Triton and without."""

    def compare(make: Callable[[], Tensor]) -> None:
        found = []
        for runs in (True, False):
            monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
            found.append(make())
        assert (found[0].dtype, found[0].shape) == (found[1].dtype, found[1].shape)
        assert torch.equal(*found)

    return compare


def image(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> Tensor:
    images, channels, height, width = shape
    drawn = np.random.default_rng(0).integers(0, 255, (images, height, width, channels))
    return torch.from_numpy(drawn).to(place, dtype).permute(0, 3, 1, 2)


def words_of(images: int, place: torch.device) -> Tensor:
    """Words whose rows lie apart, the largest and the smallest among them."""
    drawn = np.random.default_rng(1).integers(0, 2**32, (images, 12))
    drawn[0], drawn[1] = 0, 2**32 - 1
    return torch.from_numpy(drawn).to(place)[:, :10]


@pytest.mark.parametrize(("first", "count"), [(0, 10), (4, 3), (12, 4)])
def test_words(first: int, count: int, place: torch.device, both: Any) -> None:
    for step in (7, 2**63 + 5, torch.tensor(2**40 + 3, device=place)):
        both(lambda step=step: augmentation.image_words(300, 2**34 + 9, step, 2**31, first, count, place))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_colours(shape: tuple[int, ...], place: torch.device, both: Any) -> None:
    x, words = image(shape, torch.float32, place) / 255, words_of(shape[0], place)
    rows = (
        torch.rand((shape[1], 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64).add_(0.1).to(place)
    )
    for brightness, contrast in ((0.0, 0.0), (0.2, 1 / 3)):
        both(lambda b=brightness, c=contrast: augmentation.recoloured(x, words, rows.t(), b, c))


@pytest.mark.parametrize(
    ("shape", "edge_mode", "crop", "flips"), pairs(SHAPES, EDGES, [0, 2, 11], [True, False]), ids=str
)
def test_places(shape, edge_mode: MPSImageEdgeMode, crop: int, flips: bool, place: torch.device, both: Any) -> None:
    x, words = image(shape, torch.float32, place), words_of(shape[0], place)
    both(lambda: augmentation.placed(x, words, None, flips, crop, 0, edge_mode))


WAYS = [(0, 2, 0), (3, 0, 25), (0, 1, 180), (9, 5, 90)]
"""Pixels of crops, of slides, and degrees."""


@pytest.mark.parametrize(("shape", "edge_mode", "way", "flips"), pairs(SHAPES, EDGES, WAYS, [True, False]), ids=str)
def test_places_between_pixels(
    shape, edge_mode: MPSImageEdgeMode, way, flips: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against loops over pixels, and the operations: what the sum of four products is rounded to."""
    crop, slide, degrees = way
    seed, step, first = 2**34 + 9, 2**40 + 3, 6
    x, words = image(shape, torch.float32, place), augmentation.image_words(shape[0], seed, step, first, 0, 10, place)
    turns = torch.from_numpy(_turns(degrees)).to(place) if degrees else None
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(augmentation.placed(x, words, turns, flips, crop, slide, edge_mode))
    said: Any = {"flips": flips, "crop": crop, "translation": slide, "rotation": degrees}
    wanted = oracle.augmented(x.cpu().numpy(), seed, step, first, padding_mode=int(edge_mode), **said)
    bound = 4 * torch.finfo(torch.float32).eps * float(x.max())
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    for other in (torch.from_numpy(wanted), found[1].cpu().double()):
        torch.testing.assert_close(found[0].cpu().double(), other, rtol=0, atol=bound)


@pytest.mark.parametrize(("shape", "dtype"), pairs(SHAPES, [torch.uint8, torch.float16, torch.float32]), ids=str)
def test_by_number(shape, dtype: torch.dtype, place: torch.device, both: Any) -> None:
    x = image(shape, dtype, place)
    numbers = torch.tensor([9, 2**32 - 1, 1, 0, 1, 1, 0, 1], dtype=torch.int64).to(torch.uint32).to(place)
    for first in (2, torch.tensor(3, device=place)):
        both(lambda first=first: selection.selected(x, numbers, first, 5))
        for epoch in (1, torch.tensor(4, device=place)):
            both(lambda f=first, e=epoch: selection.alternately_mirrored(x, numbers, f, e, 2**35 + 11))


def test_a_number_without_an_image(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is one of zeros: a GPU does not stop there."""
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    x = image((2, 3, 4, 5), torch.uint8, place) + 1
    found = selection.selected(x, torch.tensor([1, 2, -1], dtype=torch.int32, device=place), 0, 3)
    assert torch.equal(found[0], x[1])
    assert not found[1:].any()
