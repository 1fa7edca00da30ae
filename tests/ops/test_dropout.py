"""Philox against its published vectors, the mask against plain integers, and what a mask promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops.pointwise import dropout as ops
from openmps.ops.random.random import philox
from oracles import dropout as oracle

ONES = 0xFFFFFFFF
# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_of_the_oracle(counter, key, expected) -> None:
    assert oracle.philox4x32(counter, key) == expected


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_known_answers(counter, key, expected, device: torch.device) -> None:
    words = tuple(torch.tensor([word], dtype=torch.int64, device=device) for word in counter)
    assert tuple(int(word) for word in philox(words, key)) == expected
    assert tuple(int(word) for word in philox(counter, key)) == expected


def test_philox_broadcasts(device: torch.device, rng: np.random.Generator) -> None:
    a = [int(v) for v in rng.integers(0, 2**32, size=3)]
    b = [int(v) for v in rng.integers(0, 2**32, size=4)]
    step, top = (int(v) for v in rng.integers(0, 2**32, size=2))
    first = torch.tensor(a, device=device).view(3, 1)
    second = torch.tensor(b, device=device)
    words = torch.stack([*torch.broadcast_tensors(*philox((step, first, second, top), (7, 2**31)))], dim=-1)
    assert words.shape == (3, 4, 4)
    for i in range(3):
        for j in range(4):
            assert tuple(words[i, j].tolist()) == oracle.philox4x32((step, a[i], b[j], top), (7, 2**31))


@pytest.mark.parametrize("part", [1, 7, 2**16])
def test_a_mask_made_in_parts_is_that_of_the_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_PART", part)
    found = ops.dropout_mask((3, 5, 4, 3), 0.4, seed=9, step=2, device="cpu")
    np.testing.assert_array_equal(found.numpy(), oracle.mask((3, 5, 4, 3), 0.4, 9, 2, 0, (1, 1, 1)))


@in_one_test
@pytest.mark.parametrize("strides", [(1, 1, 1), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 5, 1, 2), (0, 3, 2, 2)], ids=str)
def test_mask_equals_integers(
    shape: tuple[int, int, int, int], strides: tuple[int, int, int], device: torch.device
) -> None:
    for p, seed, step, first in [(0.5, 0, 0, 0), (0.3, 2**40 + 5, 3, 7), (0.9, 2**63 + 1, 2**33 + 1, 2)]:
        found = ops.dropout_mask(shape, p, seed=seed, step=step, first_image=first, mask_strides=strides, device=device)
        expected = oracle.mask(shape, p, seed, step, first, strides)
        assert found.dtype == torch.bool
        assert found.shape == expected.shape
        assert np.array_equal(found.cpu().numpy(), expected), (shape, p, seed, step, first)


def test_kept_is_strictly_below_the_probability(device: torch.device) -> None:
    word = oracle.philox4x32((0, 0, 0, 0), (0, 0))[0]
    for p, kept in ((word / 2**32, False), ((word + 0.5) / 2**32, True), ((word + 1) / 2**32, True)):
        assert bool(ops.dropout_mask((1, 1, 1, 1), p, seed=0, step=0, device=device)) == kept


def test_step_as_a_tensor(device: torch.device) -> None:
    for step in (0, 5, 2**33 + 3):
        by_number = ops.dropout_mask((2, 3, 4, 4), 0.5, seed=1, step=step, device=device)
        counted = torch.tensor(step, dtype=torch.int64, device=device)
        assert torch.equal(by_number, ops.dropout_mask((2, 3, 4, 4), 0.5, seed=1, step=counted, device=device))


def test_mask_does_not_depend_on_the_split_of_a_batch(device: torch.device) -> None:
    whole = ops.dropout_mask((6, 3, 5, 4), 0.4, seed=11, step=2, device=device)
    for parts in ([1] * 6, [2, 4], [5, 1]):
        first, pieces = 0, []
        for count in parts:
            pieces.append(ops.dropout_mask((count, 3, 5, 4), 0.4, seed=11, step=2, first_image=first, device=device))
            first += count
        assert torch.equal(torch.cat(pieces), whole)


def test_masks_differ_by_image_step_and_seed(device: torch.device) -> None:
    def of(seed: int = 1, step: int = 0, first_image: int = 0) -> torch.Tensor:
        return ops.dropout_mask((1, 8, 8, 8), 0.5, seed=seed, step=step, first_image=first_image, device=device)

    changes = [{}, {"seed": 2}, {"seed": 2**32 + 1}, {"step": 1}, {"step": 2**32}, {"first_image": 1}]
    for i, change in enumerate(changes):
        assert torch.equal(of(**change), of(**change))
        for other in changes[:i]:
            # Independent masks agree on about half of their 512 values: 6 standard deviations are 68.
            assert abs(int((of(**change) == of(**other)).sum()) - 256) < 68


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75, 0.99])
def test_keep_frequency(p: float, device: torch.device) -> None:
    mask = ops.dropout_mask((4, 16, 40, 40), p, seed=3, step=1, device=device)
    bound = 5 * math.sqrt(p * (1 - p) / mask.numel())
    assert abs(float(mask.double().mean()) - p) < bound
    per_image = mask.double().mean(dim=(1, 2, 3))
    assert float((per_image - p).abs().max()) < 2 * bound
    per_channel = mask.double().mean(dim=(0, 2, 3))
    assert float((per_channel - p).abs().max()) < 4 * bound


def test_keep_everything(device: torch.device) -> None:
    assert bool(ops.dropout_mask((2, 3, 9, 9), 1.0, seed=5, step=0, device=device).all())


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strides", [(1, 1, 1), (0, 0, 1), (1, 1, 0)], ids=str)
def test_equals_loops(
    strides: tuple[int, int, int], layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    x, g, p = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 4, 5)), 0.6
    mask = ops.dropout_mask((2, 3, 4, 5), p, seed=9, step=4, mask_strides=strides, device=device)
    expected = oracle.mask((2, 3, 4, 5), p, 9, 4, 0, strides)
    xt, gt = tensor(x, dtype, device, layout), tensor(g, dtype, device, layout)
    kept = xt.clone()
    result, back = ops.dropout(xt, mask, p), ops.dropout(gt, mask, p)
    assert result.dtype == back.dtype == dtype
    assert torch.equal(xt, kept)
    assert_close(result, oracle.forward(x, expected, p), TOLERANCE[dtype], "dropout")
    assert_close(back, oracle.forward(g, expected, p), TOLERANCE[dtype], "dropout gradient")
    assert abs(inner(result, g) - inner(x, back)) < 1e-4 * 60


def test_dropped_values_are_zero_whatever_they_were(device: torch.device) -> None:
    x = torch.full((1, 4, 8, 8), float("inf"), device=device)
    mask = ops.dropout_mask((1, 4, 8, 8), 0.5, seed=1, step=0, device=device)
    assert bool((ops.dropout(x, mask, 0.5)[~mask] == 0).all())


def test_keeping_everything_gives_a_new_image(device: torch.device) -> None:
    x = torch.rand(1, 2, 3, 4, device=device)
    kept, mask = x.clone(), ops.dropout_mask((1, 2, 3, 4), 1.0, seed=0, step=0, device=device)
    result = ops.dropout(x, mask, 1.0)
    assert torch.equal(result, kept)
    result.fill_(7.0)
    assert torch.equal(x, kept)


def test_channels_last_stays(device: torch.device) -> None:
    x = torch.randn(2, 4, 3, 5, device=device).contiguous(memory_format=torch.channels_last)
    mask = ops.dropout_mask((2, 4, 3, 5), 0.5, seed=1, step=0, device=device)
    assert ops.dropout(x, mask, 0.5).is_contiguous(memory_format=torch.channels_last)
    assert ops.dropout(x, mask, 0.5).is_contiguous(memory_format=torch.channels_last)
