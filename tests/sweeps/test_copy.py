"""A copy of a kernel computes the same, and changing one of them leaves the other alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import OPTIMIZERS, SOME_OF_CLASS, SWEPT, class_of, having
from encoding import Bench, encode, finish, keep_results, numbers, run, train, trained
from in_one_test import in_one_test, in_one_test_of_each
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import Sample


def _state(kernel: Any) -> dict[str, Any]:
    """The public properties of a kernel."""
    names = [name for name in dir(kernel) if not name.startswith("_") and hasattr(type(kernel), name)]
    values = {name: getattr(kernel, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


@in_one_test_of_each(class_of)
@pytest.mark.parametrize(
    ("sample", "how"),
    [*((each, "copy()") for each in SWEPT), *((each, "copy.copy") for each in SOME_OF_CLASS)],
    ids=str,
)
def test_forward(sample: Sample, how: str, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = [bench.batch(values) for values in sample.sources()]
    more = sample.more(bench, len(sources[0]))
    kernel = sample.make(bench.device)
    kernel.label = "original"
    twin = kernel.copy() if how == "copy()" else copy.copy(kernel)
    assert type(twin) is type(kernel)
    assert twin.label == "original"
    assert twin.device is kernel.device
    np.testing.assert_array_equal(run(bench, twin, sources, *more), run(bench, kernel, sources, *more))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(gradients=True), ids=str)
def test_gradient(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    values = sample.sources()
    expected = train(bench, sample, values, bench.batch)
    flow, result = bench.batch(sample.incoming(expected.result.shape)), bench.batch(expected.result)
    images = [bench.batch(each) for each in values]
    for backward, gradient, wanted in zip(sample.gradients, expected.gradient_kernels, expected.gradients, strict=True):
        secondary = result if backward.reads_result else images[backward.secondary]
        states = expected.kernel.result_state_batch(*images, destination_image=result)
        used = states if backward.parameters is not None else expected.states
        found = run(bench, gradient.copy(), [flow, secondary], used)
        np.testing.assert_array_equal(found, wanted)


def _disturb(kernel: Any) -> None:
    for name in ("offset", "primary_offset", "secondary_offset"):
        if hasattr(kernel, name):
            setattr(kernel, name, MPSOffset(7, -7, 0))
    for name in ("kernel_offset_x", "kernel_offset_y"):
        if hasattr(kernel, name):
            setattr(kernel, name, 9)
    for name in ("edge_mode", "primary_edge_mode", "secondary_edge_mode"):
        if hasattr(kernel, name):
            turned = MPSImageEdgeMode(int(not getattr(kernel, name)))
            setattr(kernel, name, turned)
    for name in ("primary_stride_in_feature_channels", "secondary_stride_in_feature_channels"):
        if hasattr(kernel, name):
            setattr(kernel, name, 1 - getattr(kernel, name))
    kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(1, 1, 1))
    kernel.destination_feature_channel_offset = 4


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_the_original_does_not_follow_its_copy(sample: Sample) -> None:
    device = mtl_device("cpu")
    for kernel in (sample.make(device), *(backward.make(device) for backward in sample.gradients)):
        before = {name: repr(value) for name, value in _state(kernel).items()}
        _disturb(kernel.copy())
        assert {name: repr(value) for name, value in _state(kernel).items()} == before


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["labels"]), ids=str)
def test_an_encode_keeps_the_properties_of_its_time(sample: Sample, device: torch.device) -> None:
    """Changing a kernel after the encode, before the commit, changes nothing of that encode."""
    bench = Bench.on(device)
    values = sample.sources()
    expected = trained(sample, bench.device)
    kernel = sample.make(bench.device)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = encode(kernel, command_buffer, [bench.batch(each) for each in values])
    _disturb(kernel)
    for name in ("primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"):
        if hasattr(kernel, name):
            setattr(kernel, name, 17.0)
    if hasattr(kernel, "zero_pad_size_x"):
        kernel.zero_pad_size_x = kernel.zero_pad_size_y = 3
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), expected.result)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_optimizers(kind: Any) -> None:
    optimizer = OPTIMIZERS[kind](mtl_device("cpu"))
    optimizer.set_learning_rate(0.25)
    twin = optimizer.copy()
    assert {n: repr(v) for n, v in _state(twin).items()} == {n: repr(v) for n, v in _state(optimizer).items()}
    twin.set_learning_rate(0.5)
    twin.apply_gradient_clipping = True
    assert optimizer.learning_rate == 0.25
    assert optimizer.apply_gradient_clipping is False
