"""Sequences of Philox words, and distributions against their definitions in many digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import array
from in_one_test import in_one_test
from openmps.ops.random.random import philox_words
from openmps.ops.random.random_distributions import integers, normal, probability, truncated_normal, uniform
from oracles import random as oracle

EDGES = [0, 1, 511, 512, 2**31 - 1, 2**31, 2**31 + 512, 2**32 - 513, 2**32 - 512, 2**32 - 1]
BOUNDS = [
    (0.0, 1.0, -1.0, 2.0),
    (0.5, 2.0, -math.inf, 1.0),
    (0.5, 2.0, 0.25, math.inf),
    (-3.0, 0.5, -3.0, -2.75),
    (0.0, 1.0, 8.0, 9.0),
    (0.0, 1.0, -9.0, -8.0),
    (0.0, 1.0, 30.0, math.inf),
    (0.0, 1.0, -math.inf, -30.0),
    (1.0, 0.25, -20.0, 20.0),
]
"""Mean, standard deviation, minimum, maximum."""


def _words(rng: np.random.Generator) -> list[int]:
    return [*EDGES, *(int(word) for word in rng.integers(0, 2**32, size=24))]


def _tensor(words: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(words, dtype=torch.int64, device=device)


# --- words -----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 7, 2**34 - 6, 2**34, 2**40 + 1])
def test_philox_words(seed: int, first: int, device: torch.device) -> None:
    found = philox_words(seed, first, 11, device)
    assert found.dtype == torch.int64
    assert found.tolist() == [oracle.philox_word(seed, first + index) for index in range(11)]


def test_philox_words_in_parts(device: torch.device) -> None:
    whole = philox_words(5, 0, 101, device)
    parts = [philox_words(5, first, count, device) for first, count in ((0, 1), (1, 2), (3, 50), (53, 48))]
    assert torch.equal(torch.cat(parts), whole)


def test_known_answer() -> None:
    """Random123's vector for a counter and a key of zeros."""
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_words(0, 0, 4, torch.device("cpu")).tolist() == expected


# --- distributions ---------------------------------------------------------------------------------------------------


def test_integers(rng: np.random.Generator, device: torch.device) -> None:
    words = _words(rng)
    found = integers(_tensor(words, device))
    assert found.dtype == torch.uint32
    assert found.cpu().numpy().tolist() == words


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 2.0), (-3.0, 5.5), (-1e30, 1e-3), (1.0, 1.0 + 2**-23)])
def test_uniform(low: float, high: float, rng: np.random.Generator, device: torch.device) -> None:
    words = _words(rng)
    found = uniform(_tensor(words, device), low, high)
    assert found.dtype == torch.float32
    assert found.min() >= np.float32(low)
    assert found.max() < np.float32(high)
    expected = oracle.uniform(words, low, high)
    limit = np.nextafter(np.float32(high), np.float32(-np.inf))
    np.testing.assert_array_equal(found.cpu().numpy(), np.minimum(expected.astype(np.float32), limit))


def _assert_rounded(found: torch.Tensor, expected: np.ndarray) -> None:
    """Within one unit in the last place of float32: the float64 number may fall on either side of a tie."""
    rounded = expected.astype(np.float32)
    assert found.dtype == torch.float32
    gap = np.abs(array(found) - rounded.astype(np.float64))
    assert (gap <= np.spacing(np.abs(rounded)).astype(np.float64)).all(), gap.max()
    assert np.count_nonzero(gap) <= len(expected) // 8


def test_normal(rng: np.random.Generator, device: torch.device) -> None:
    words = _words(rng)
    for mean, deviation in ((0.0, 1.0), (3.5, 0.25), (-100.0, 40.0)):
        found = normal(_tensor(words, device), mean, deviation)
        _assert_rounded(found, oracle.normal(words, mean, deviation))
    extremes = normal(_tensor([0, 2**32 - 1], device), 0.0, 1.0)
    assert -5.3 < float(extremes[0]) < -5.2
    assert 5.1 < float(extremes[1]) < 5.2


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_truncated_normal(
    bounds: tuple[float, float, float, float], rng: np.random.Generator, device: torch.device
) -> None:
    mean, deviation, low, high = bounds
    # Far out, the oracle is slow.
    words = _words(rng)[: 10 if max(low, -high) > 10 else None]
    found = truncated_normal(_tensor(words, device), mean, deviation, low, high)
    assert found.min() >= low
    assert found.max() <= high
    _assert_rounded(found, oracle.normal(words, mean, deviation, low, high))


def test_probability() -> None:
    assert probability(0.0, 1.0, -math.inf, math.inf) == 1.0
    assert probability(2.0, 3.0, 2.0, math.inf) == 0.5
    assert probability(0.0, 1.0, -1.0, 1.0) == pytest.approx(0.6826894921370859, rel=1e-14)
    assert probability(0.0, 1.0, 10.0, 11.0) == pytest.approx(probability(0.0, 1.0, -11.0, -10.0), rel=1e-14)
    assert 0 < probability(0.0, 1.0, 30.0, 31.0) < 1e-190
    assert probability(0.0, 1.0, 50.0, 51.0) == 0.0
