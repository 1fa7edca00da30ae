"""Channel offsets choose channels of larger images; the other channels of a destination stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, SWEPT, class_of, having
from encoding import Bench, encode, finish, numbers, train, trained
from helpers import assert_close
from in_one_test import in_one_test, in_one_test_of_each
from samples.sample import Sample, placed_like

TOLERANCE = 2e-6
UNTOUCHED = -7.0


def _among(values: np.ndarray, before: int, after: int, filler: float) -> np.ndarray:
    """An image with other channels around these."""
    images, _, height, width = values.shape
    return np.concatenate(
        [
            np.full((images, before, height, width), filler),
            values,
            np.full((images, after, height, width), filler),
        ],
        axis=1,
    )


def _read_from(kernel: Any, offsets: list[int], counts: list[int]) -> None:
    prefixes = ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)
    for prefix, offset, count in zip(prefixes, offsets, counts, strict=True):
        setattr(kernel, f"{prefix}source_feature_channel_offset", offset)
        setattr(kernel, f"{prefix}source_feature_channel_max_count", count)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_channels_of_larger_images(sample: Sample, device: torch.device) -> None:
    """NaN in every channel that is not to be read shows up at once if it is."""
    bench = Bench.on(device)
    sources = sample.sources()
    offsets = [4, 8][: len(sources)]
    counts = [values.shape[1] for values in sources]
    expected = trained(sample, bench.device)
    wide = [_among(values, offset, 3, np.nan) for values, offset in zip(sources, offsets, strict=True)]
    found = train(bench, sample, wide, bench.batch, prepare=lambda kernel: _read_from(kernel, offsets, counts))
    assert_close(found.result, expected.result, TOLERANCE, "result")
    for backward, actual, wanted in zip(sample.gradients, found.gradients, expected.gradients, strict=True):
        offset = offsets[backward.source]
        if backward.reads_result:
            assert actual.shape[1] == wide[backward.source].shape[1]
        assert_close(actual, _among(wanted, offset, 3, 0.0), TOLERANCE, "gradient")
    if expected.weights is not None:
        assert_close(found.weights, expected.weights, TOLERANCE, "weights")


@in_one_test_of_each(class_of)
@pytest.mark.parametrize(
    ("sample", "offset"), [*((each, 8) for each in SWEPT), *((each, 0) for each in SOME_OF_CLASS)], ids=str
)
def test_channels_of_a_larger_destination(sample: Sample, offset: int, device: torch.device) -> None:
    """Also the channels that share the last group of four with the last one written stay untouched."""
    bench = Bench.on(device)
    sources = sample.sources()
    expected = trained(sample, bench.device)
    images, channels, height, width = expected.result.shape
    larger = (images, offset + channels + 5, height, width)

    def place(kernel: Any) -> None:
        placed_like(kernel, expected.kernel)
        for prefix in ("", "primary_"):
            if hasattr(kernel, prefix + "edge_mode"):
                setattr(kernel, prefix + "edge_mode", getattr(expected.kernel, prefix + "edge_mode"))
        kernel.destination_feature_channel_offset = offset

    flow = _among(sample.incoming(expected.result.shape), offset, 5, np.nan)
    found = train(
        bench,
        sample,
        sources,
        bench.batch,
        prepare=place,
        destination=lambda: bench.batch(np.full(larger, UNTOUCHED)),
        incoming=flow,
    )
    assert_close(found.result[:, offset : offset + channels], expected.result, TOLERANCE, "result")
    assert (found.result[:, :offset] == UNTOUCHED).all()
    assert (found.result[:, offset + channels :] == UNTOUCHED).all()
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(actual, wanted, TOLERANCE, "gradient")
    if expected.weights is not None:
        assert_close(found.weights, expected.weights, TOLERANCE, "weights")


@in_one_test
@pytest.mark.parametrize("sample", having("pointwise", without=["across channels", "labels"]), ids=str)
def test_fewer_channels_by_the_maximum(sample: Sample, device: torch.device) -> None:
    """``source_feature_channel_max_count`` cuts the channels read, and with them those made."""
    bench = Bench.on(device)
    sources = sample.sources()
    if "broadcast" in sample.name or sources[0].shape[1] < 2:
        pytest.skip("needs two channels of every source")
    kernel = sample.make(bench.device)
    count = sources[0].shape[1] - 1
    _read_from(kernel, [0] * len(sources), [count] * len(sources))
    destination = bench.batch(np.full(sources[0].shape, UNTOUCHED))
    command_buffer = bench.command_buffer()
    encode(kernel, command_buffer, [bench.batch(values) for values in sources], destination)
    finish(command_buffer)
    found = numbers(destination)
    assert (found[:, count:] == UNTOUCHED).all()
    whole = trained(sample, bench.device).result
    if "random" not in sample.traits:
        assert_close(found[:, :count], whole[:, :count], TOLERANCE)
