"""Augmentation: draws that follow from seed, step and place alone, what is drawn, and what properties refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import UNORM8, Bench, finish, keep_results, numbers
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.kernel.encode import ImageKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.augmentation import ImageAugmentation, MixUp
from openmps.ops.image.augmentation import image_words, mixing_shares
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode
from oracles import augmentation as oracle

CPU = mtl_device("cpu")
EVERYTHING: dict[str, Any] = {
    "flips": True, "crop": 2, "translation": 1, "rotation": 20.0, "padding_mode": MPSImageEdgeMode.MIRROR,
    "cut_out": 3, "brightness": 0.2, "contrast": 0.3, "mean": (0.4, 0.5), "standard_deviation": (0.2, 0.3),
}  # fmt: skip


def _everything(bench: Bench, seed: int = 7) -> ImageAugmentation:
    kernel = ImageAugmentation(bench.device, seed)
    for name, value in EVERYTHING.items():
        setattr(kernel, name, value)
    return kernel


def _encoded(bench: Bench, kernel: ImageKernel, x: np.ndarray) -> np.ndarray:
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode_batch(command_buffer, bench.batch(x))
    finish(command_buffer)
    return numbers(result)


def _makers() -> list[Any]:
    return [
        pytest.param(_everything, id="augmentation"),
        pytest.param(lambda bench: MixUp(bench.device, 0.4, 7), id="mix-up"),
    ]


@pytest.mark.parametrize("make", _makers())
def test_shares_of_a_batch_are_the_whole_batchs(make: Any, device: torch.device, rng: np.random.Generator) -> None:
    """However many processes share it: bit for bit, in the second step too."""
    bench, x = Bench.on(device), rng.random((8, 2, 6, 5))
    whole = make(bench)
    expected = [_encoded(bench, whole, x) for _ in range(2)]
    for parts in (2, 4):
        found: list[list[np.ndarray]] = [[], []]
        for share in range(parts):
            kernel = make(bench)
            kernel.batch_share = share
            for step in range(2):
                found[step].append(_encoded(bench, kernel, np.split(x, parts)[share]))
        for mine, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.concatenate(mine), wanted)


@pytest.mark.parametrize("make", _makers())
def test_steps(make: Any, device: torch.device, rng: np.random.Generator) -> None:
    """Steps differ, beyond 32 bits too; copies and checkpoints go on where the original stands."""
    bench, x = Bench.on(device), rng.random((2, 2, 6, 5))
    kernel, other = make(bench), make(bench)
    first = _encoded(bench, kernel, x)
    twin, state = kernel.copy(), kernel.training_state()
    second = _encoded(bench, kernel, x)
    assert (first != second).any()
    np.testing.assert_array_equal(_encoded(bench, twin, x), second)
    other.restore_training_state(state)
    np.testing.assert_array_equal(_encoded(bench, other, x), second)
    kernel.step = 2**32
    assert (_encoded(bench, kernel, x) != first).any()


def test_far_seeds_and_steps(device: torch.device, rng: np.random.Generator) -> None:
    """Every word of the counter and of the key counts, and the number of an image within the whole batch."""
    bench, x = Bench.on(device), rng.random((3, 2, 6, 5))
    kernel = _everything(bench, 2**63 + 11)
    kernel.batch_share, kernel.step = 5, 2**40 + 3
    said = {**EVERYTHING, "padding_mode": int(MPSImageEdgeMode.MIRROR)}
    expected = oracle.augmented(x, 2**63 + 11, 2**40 + 3, 15, **said)
    assert_close(_encoded(bench, kernel, x), expected, 1e-5)


def test_bytes_are_moved_as_they_are(device: torch.device, rng: np.random.Generator) -> None:
    """By whole pixels: each number of the result is one of the image, or 0."""
    bench = Bench.on(device)
    kernel = ImageAugmentation(bench.device, 3)
    kernel.flips, kernel.crop = True, 2
    keep_results(kernel)
    source = bench.batch(rng.integers(1, 256, (6, 3, 5, 7)) / 255, UNORM8)
    command_buffer = bench.command_buffer()
    result = kernel.encode_batch(command_buffer, source)
    finish(command_buffer)
    assert result[0].feature_channel_format is UNORM8
    for before, after in zip(numbers(source), numbers(result), strict=True):
        assert set(np.unique(after)) <= {0.0, *np.unique(before)}
        assert (after != before).any()


def test_a_kernel_as_it_comes_copies(rng: np.random.Generator) -> None:
    bench, x = Bench(CPU), rng.random((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(_encoded(bench, ImageAugmentation(CPU), x), x)


def test_what_is_drawn_is_spread_evenly() -> None:
    """Half of the images are mirrored, and each distance comes as often as another: by six deviations."""
    words = image_words(4000, 5, 1, 0, 0, 12, torch.device("cpu"))
    assert words.shape == (4000, 12)
    for column in words.unbind(1):
        counts = np.bincount((column.numpy() * 9) >> 32, minlength=9)
        assert np.abs(counts - 4000 / 9).max() < 6 * (4000 * (1 / 9) * (8 / 9)) ** 0.5
    assert np.abs(np.corrcoef(words.numpy().T) - np.eye(12)).max() < 6 / 4000**0.5


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.5])
def test_mixing_shares_follow_the_beta_distribution(alpha: float) -> None:
    """By its mean and variance, within six deviations of theirs, which follow from its fourth central moment."""
    shares = mixing_shares(image_words(20000, 5, 1, 0, 12, 3, torch.device("cpu")), alpha).numpy() - 0.5
    variance = 1 / (4 * (2 * alpha + 1))
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(shares.mean()) < 6 * (variance / 20000) ** 0.5
    assert abs((shares**2).mean() - variance) < 6 * ((fourth - variance**2) / 20000) ** 0.5
    assert abs(shares).max() <= 0.5


def test_labels_are_mixed_as_images_are(device: torch.device, rng: np.random.Generator) -> None:
    """By another kernel of the same seed; the last of an odd number stays as it is."""
    bench, seed = Bench.on(device), 31
    labels = np.eye(5)[:, :, None, None]
    found = _encoded(bench, MixUp(bench.device, 0.8, seed), labels)
    pixels = _encoded(bench, MixUp(bench.device, 0.8, seed), rng.random((5, 3, 2, 2)))
    assert pixels.shape == (5, 3, 2, 2)
    shares = [oracle.mixing_share(seed, 0, n, 0.8) for n in range(4)]
    np.testing.assert_allclose(np.diagonal(found[..., 0, 0])[:4], shares, rtol=1e-6)
    np.testing.assert_array_equal(found[4], labels[4])
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-6)


@in_one_test
@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("crop", -1, MPSArgumentError, "must be an integer of at least 0"),
        ("crop", 2**16 + 1, MPSArgumentError, "must be an integer of at most 65536"),
        ("translation", 1.5, MPSArgumentError, "must be an integer of at least 0"),
        ("cut_out", -3, MPSArgumentError, "must be an integer of at least 0"),
        ("flips", "both", MPSTypeError, "must be True or False"),
        ("rotation", 181, MPSArgumentError, "must be at most 180 degrees"),
        ("rotation", float("nan"), MPSArgumentError, "must be a finite number of at least 0"),
        ("brightness", -0.1, MPSArgumentError, "must be a finite number of at least 0"),
        ("contrast", 1.5, MPSArgumentError, "must be a number from 0 to 1"),
        ("padding_mode", MPSImageEdgeMode.CONSTANT, MPSArgumentError, "must be an MPSImageEdgeMode of ZERO, CLAMP or"),
        ("padding_mode", "mirror", MPSArgumentError, "must be an MPSImageEdgeMode of ZERO, CLAMP or MIRROR"),
        ("mean", 0.5, MPSTypeError, "must be a list or a tuple of numbers, one for each channel"),
        ("standard_deviation", (0.5, 0.0), MPSArgumentError, "must be at least 1.2e-38, got 0"),
        ("standard_deviation", (0.5, 1e-40), MPSArgumentError, "must be at least 1.2e-38, got 1e-40"),
        ("step", -1, MPSArgumentError, "must be an integer of 0 to"),
    ],
)
def test_refusals(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^ImageAugmentation: {name} {message}"):
        setattr(ImageAugmentation(CPU), name, value)


def test_refusals_of_constructors() -> None:
    for make in (lambda: ImageAugmentation(CPU, -1), lambda: MixUp(CPU, 1.0, 2**64)):
        with pytest.raises(MPSArgumentError, match=r"seed must be an integer of 0 to 2\*\*64 - 1"):
            make()
    with pytest.raises(MPSArgumentError, match="^MixUp: alpha must be at least 1.2e-38"):
        MixUp(CPU, 0.0)


def test_a_mean_for_each_channel() -> None:
    kernel = ImageAugmentation(CPU)
    kernel.mean = [0.5, 0.5]  # type: ignore[assignment] - any sequence will do
    assert kernel.mean == (0.5, 0.5)
    with pytest.raises(
        MPSArgumentError, match="^ImageAugmentation: mean must have a number for each of the 3 channels, got 2"
    ):
        _encoded(Bench(CPU), kernel, np.ones((1, 3, 2, 2)))
