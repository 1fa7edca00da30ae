"""Images are stored in their formats; kernels compute in float32 and round once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from catalogue import SWEPT, class_of, having
from encoding import FLOAT16, FLOAT32, UNORM8, Bench, data_alone, encode, finish, keep_results, numbers, train
from helpers import assert_close
from in_one_test import in_one_test_of_each
from measured import note_format
from samples.sample import Sample, placed_like

HALF = 2.0**-11
"""Half a unit in the last place of float16, relative."""


def _rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float64)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_half_precision_images(sample: Sample, device: torch.device) -> None:
    """The result has the source's format, and is the float32 result of the same numbers rounded once."""
    bench, single = Bench.on(device), sample.rounding()
    sources = [_rounded(values) for values in sample.sources()]
    expected = train(bench, single, sources, bench.batch)
    flow = _rounded(sample.incoming(expected.result.shape))
    # Softmax gradients read the forward result, which was rounded too: they are held to a wider bound.
    exact = train(bench, single, sources, bench.batch, incoming=flow)
    found = train(bench, sample, sources, lambda values: bench.batch(values, FLOAT16), incoming=flow)
    assert_close(found.result, expected.result, HALF * 1.01, "result")
    for backward, actual, wanted in zip(sample.gradients, found.gradients, exact.gradients, strict=True):
        assert_close(actual, wanted, HALF * (4.0 if backward.reads_result else 1.01), "gradient")
    if exact.weights is not None:
        assert_close(found.weights, exact.weights, 1e-5, "weights")
    for kernel in (found.kernel, *found.gradient_kernels):
        note_format(type(kernel), "float16", device)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["labels"]), ids=str)
def test_bytes_stand_for_zero_to_one(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    random = sample.random("bytes")
    sources = [random.integers(64, 256, size=values.shape) / 255.0 for values in sample.sources()]
    expected = train(bench, sample, sources, bench.batch)
    kernel = sample.make(bench.device)
    placed_like(kernel, expected.kernel)
    if hasattr(kernel, "edge_mode"):
        kernel.edge_mode = expected.kernel.edge_mode
    destination = bench.batch(np.zeros(expected.result.shape), FLOAT32)
    returning = sample.make(bench.device)
    keep_results(returning)
    command_buffer = bench.command_buffer()
    images = [bench.batch(values, UNORM8) for values in sources]
    encode(kernel, command_buffer, images, destination)
    returned = encode(returning, command_buffer, images)
    finish(command_buffer)
    assert_close(numbers(destination), expected.result, 1e-6)
    assert returned[0].feature_channel_format is UNORM8
    clamped = np.clip(expected.result, 0.0, 1.0)
    assert np.abs(numbers(returned) - clamped).max() <= 0.5 / 255 + 1e-6
    note_format(type(kernel), "unorm8", device)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(gradients=True), ids=str)
def test_gradients_of_byte_images_keep_the_gradients_format(sample: Sample, device: torch.device) -> None:
    """A gradient is no byte: the result has the format of the incoming gradient, not that of the source."""
    bench = Bench.on(device)
    sources = sample.sources()
    expected = train(bench, sample, sources, bench.batch)
    flow = bench.batch(sample.incoming(expected.result.shape), FLOAT16)
    result = bench.batch(expected.result)
    command_buffer = bench.command_buffer()
    for backward, gradient in zip(sample.gradients, expected.gradient_kernels, strict=True):
        source = bench.batch(np.clip(sources[backward.secondary], 0.0, 1.0), UNORM8)
        secondary = result if backward.reads_result else source
        data_alone(gradient)
        returned = encode(gradient, command_buffer, [flow, secondary], expected.states)
        assert returned[0].feature_channel_format is FLOAT16
    finish(command_buffer)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having("pointwise", without=["labels", "random"]), ids=str)
def test_operands_of_different_formats(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = [_rounded(values) for values in sample.sources()]
    expected = train(bench, sample, sources, bench.batch)
    flow = _rounded(sample.incoming(expected.result.shape))
    exact = train(bench, sample, sources, bench.batch, incoming=flow)
    formats = iter([FLOAT32, FLOAT16, FLOAT32, FLOAT16, FLOAT32])
    found = train(bench, sample, sources, lambda values: bench.batch(values, next(formats)), incoming=flow)
    assert_close(found.result, expected.result, HALF * 1.01, "result")
    for backward, actual, wanted in zip(sample.gradients, found.gradients, exact.gradients, strict=True):
        assert_close(actual, wanted, HALF * (4.0 if backward.reads_result else 1.01), "gradient")
