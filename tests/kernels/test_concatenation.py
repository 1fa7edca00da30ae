"""Concatenation of feature channels, what the graph's concatenation nodes run, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from openmps.errors import MPSArgumentError
from openmps.kernels.concatenation import Concatenation, ConcatenationGradient
from openmps.types import MPSImageFeatureChannelFormat as Format


@pytest.mark.parametrize("formats", [(Format.FLOAT32,) * 2, (Format.FLOAT16,) * 2, (Format.FLOAT16, Format.FLOAT32)])
def test_sources_take_multiples_of_four_channels(
    formats: tuple[Format, Format], device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    x, y = rng.integers(-9, 9, (1, 3, 2, 5)).astype(np.float64), rng.integers(-9, 9, (1, 6, 2, 5)).astype(np.float64)
    sources = [bench.image(each, channel_format) for each, channel_format in zip((x, y), formats, strict=True)]
    command_buffer = bench.command_buffer()
    kernel = Concatenation(bench.device, 2)
    keep_results(kernel)
    made, state = kernel.encode(command_buffer, sources, destination_state_is_temporary=False)
    gradients = [ConcatenationGradient(bench.device, index) for index in range(2)]
    found = [made]
    for gradient, source in zip(gradients, sources, strict=True):
        keep_results(gradient)
        found.append(gradient.encode(command_buffer, made, source, state))
    finish(command_buffer)
    zeros = np.zeros((1, 1, 2, 5))
    np.testing.assert_array_equal(numbers(found[0]), np.concatenate([x, zeros, y, zeros, zeros], 1))
    np.testing.assert_array_equal(numbers(found[1]), x)
    np.testing.assert_array_equal(numbers(found[2]), y)


def test_fillers_of_one_and_two_channels(device: torch.device) -> None:
    """The fourth channel of a texture of one or two channels is read as 1; five channels are two whole slices."""
    bench = Bench.on(device)
    counts = (1, 2, 3, 4, 5)
    sources = [bench.image(np.full((1, count, 1, 1), 5.0)) for count in counts]
    made = run(bench, Concatenation(bench.device, len(counts)), sources)
    expected = [5, 0, 0, 1, 5, 5, 0, 1, 5, 5, 5, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0, 0]
    np.testing.assert_array_equal(made.reshape(-1), expected)


def test_sources_are_of_one_size(device: torch.device) -> None:
    bench = Bench.on(device)
    sources = [bench.image(np.zeros((1, 4, 2, width))) for width in (3, 4)]
    with pytest.raises(MPSArgumentError, match="source 1.*as large as source 0, 3x2 pixels"):
        run(bench, Concatenation(bench.device, 2), sources)
