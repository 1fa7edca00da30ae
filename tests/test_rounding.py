"""What other processors may round otherwise, imitated: see `rounding`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openmps.ops.geometry import Axis, Window
from openmps.ops.pooling.pooling import average_pooling
from openmps.types import MPSImageEdgeMode
from rounding import largest_difference, rounded_by_layout, rounded_once

LAST = torch.channels_last


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    """An image of its own, and the same numbers as a part of a larger one."""
    image = torch.randn(3, 8, 9, 7).contiguous(memory_format=LAST)
    larger = torch.zeros(3, 20, 9, 7).contiguous(memory_format=LAST)
    larger[:, 5:13] = image
    return image, larger[:, 5:13]


def _sums(x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]) if x.is_contiguous(memory_format=LAST) else None
    found = [torch.conv2d(x, weights), x.sum((0, 2, 3)), x.mean((2, 3)), x.exp()]
    return found if rows is None else [*found, rows @ rows.t()]


def test_rounded_once_no_layout_shows() -> None:
    image, part = _images()
    weights = torch.randn(6, 8, 3, 3)
    with rounded_once():
        found, others = _sums(image, weights), _sums(part, weights)
    for one, other in zip(found, others, strict=False):
        assert torch.equal(one, other)
    exact = torch.conv2d(image.double(), weights.double())
    assert torch.equal(found[0], exact.float())


def test_by_layout_the_same_operation_repeats_and_others_may_differ() -> None:
    image, part = _images()
    weights = torch.randn(6, 8, 3, 3)
    differ = 0
    for seed in range(8):
        with rounded_by_layout(seed):
            found, again, others = (_sums(each, weights) for each in (image, image.clone(), part))
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
        differ += not torch.equal(found[0], others[0])
    assert 0 < differ < 8


def test_torch_is_as_before_afterwards() -> None:
    image, _ = _images()
    weights = torch.randn(6, 8, 3, 3)
    before = _sums(image, weights)
    with rounded_once():
        pass
    with pytest.raises(ValueError, match="mine"), rounded_by_layout(0):
        raise ValueError("mine")
    assert all(torch.equal(one, other) for one, other in zip(before, _sums(image, weights), strict=True))


def test_in_place_and_into_memory() -> None:
    x = torch.randn(5, 33)
    expected = x.double().exp().float()
    with rounded_once():
        room = torch.empty_like(x)
        assert torch.exp(x, out=room) is room
        assert torch.equal(room, expected)
        assert torch.equal(x.exp_(), expected)
        total = torch.zeros(5, 5)
        torch.addmm(total, x, x.t(), out=total)
        assert torch.equal(total, (x.double() @ x.double().t()).float())


def test_what_is_not_finite_stays() -> None:
    x = torch.tensor([[torch.inf, 1.0], [torch.nan, 2.0]])
    with rounded_once():
        found = x.sum(1)
    assert found[0] == torch.inf
    assert found[1].isnan()


def test_two_float32_sums_are_no_further_apart_than_is_said() -> None:
    terms = np.random.default_rng(0).normal(0, 1, (50, 2000)).astype(np.float32)
    one, other = np.cumsum(terms, 1)[:, -1], np.cumsum(terms[:, ::-1], 1)[:, -1]
    assert (one != other).any()
    assert (abs(one - other) <= largest_difference(2000, abs(terms).sum(1))).all()


@pytest.mark.parametrize("seed", range(4))
def test_equal_windows_take_the_same_form(seed: int) -> None:
    """Whichever object says the window: a plan is not found by identity."""
    image, _ = _images()

    def window() -> Window:
        return Window(Axis(7, 3, 3, 2, 1, 1), Axis(9, 4, 4, 2, 1, 1))

    Window.cut.cache_clear()
    with rounded_by_layout(seed):
        first, second = (average_pooling(image, window(), MPSImageEdgeMode.ZERO) for _ in range(2))
    assert torch.equal(first, second)
