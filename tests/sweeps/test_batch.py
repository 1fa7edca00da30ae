"""A batch, its images one by one, one object that holds them all, and parts of a batch give the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, class_of, having
from encoding import Bench, Outcome, encode, finish, keep_results, numbers, parameter_gradients, train, trained
from helpers import assert_close
from in_one_test import in_one_test_of_each
from openmps.core.state.batch import MPSStateBatchIncrementReadCount
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import REGIONS, Sample, placed_like

TOLERANCE = 2e-6
"""The engine may sum in another order for another batch size."""
IMAGES = 3


def _same(found: Outcome, expected: Outcome) -> None:
    assert_close(found.result, expected.result, TOLERANCE, "result")
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(actual, wanted, TOLERANCE, "gradient")
    for name in ("weights", "biases", "losses"):
        actual, wanted = getattr(found, name), getattr(expected, name)
        assert (actual is None) == (wanted is None)
        if actual is not None:
            assert_close(actual, wanted, TOLERANCE, name)


def _joined(parts: list[Outcome]) -> Outcome:
    """Several passes as one: images side by side, gradients of parameters summed."""
    first = parts[0]
    whole = Outcome(first.kernel, np.concatenate([part.result for part in parts]))
    whole.gradients = [np.concatenate(rows) for rows in zip(*(part.gradients for part in parts), strict=True)]
    for name in ("weights", "biases"):
        if getattr(first, name) is not None:
            setattr(whole, name, np.sum([getattr(part, name) for part in parts], axis=0))
    if first.losses is not None:
        whole.losses = np.concatenate([part.losses for part in parts])
    return whole


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["random"]), ids=str)
def test_batch_equals_singles(sample: Sample, device: torch.device) -> None:
    """A random mask depends on the place in the batch, so those samples are left out."""
    bench = Bench.on(device)
    sources = sample.sources(IMAGES)
    whole = trained(sample, bench.device, IMAGES)
    incoming = sample.incoming(whole.result.shape)
    parts = [
        train(
            bench,
            sample,
            [values[index : index + 1] for values in sources],
            bench.image,
            first=index,
            incoming=incoming[index : index + 1],
        )
        for index in range(IMAGES)
    ]
    _same(_joined(parts), whole)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_one_object_with_all_images_equals_the_batch(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources(IMAGES)
    _same(train(bench, sample, sources, bench.image), trained(sample, bench.device, IMAGES))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_unrelated_images_equal_one_block(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources(IMAGES)
    _same(train(bench, sample, sources, bench.images), trained(sample, bench.device, IMAGES))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["random"], of=SOME_OF_CLASS), ids=str)
@pytest.mark.parametrize("temporary", [False, True], ids=["permanent", "temporary"])
def test_parts_of_a_batch_one_after_another(sample: Sample, temporary: bool, device: torch.device) -> None:
    """Forward in parts; then each part's gradient. Parameter gradients of the parts add up in one shared state."""
    if temporary and not sample.gradients:
        pytest.skip("leaves no state")
    bench = Bench.on(device)
    sources = sample.sources(IMAGES)
    whole = trained(sample, bench.device, IMAGES)
    incoming = sample.incoming(whole.result.shape)
    parts = [
        train(
            bench,
            sample,
            [values[begin:end] for values in sources],
            bench.batch,
            first=begin,
            incoming=incoming[begin:end],
            temporary=temporary,
        )
        for begin, end in ((0, 2), (2, IMAGES))
    ]
    _same(_joined(parts), whole)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["one mask"], gradients=True, of=SOME_OF_CLASS), ids=str)
@pytest.mark.parametrize("temporary", [False, True], ids=["permanent", "temporary"])
def test_gradients_in_parts_of_a_whole_forward(sample: Sample, temporary: bool, device: torch.device) -> None:
    """The forward kernel saw the whole batch; the gradient kernels take slices of it and of its states.

    Dropout's one state holds the masks of the whole batch, which a slice of images cannot pick from.
    """
    bench = Bench.on(device)
    sources = sample.sources(IMAGES)
    whole = trained(sample, bench.device, IMAGES)
    incoming = bench.batch(sample.incoming(whole.result.shape))
    kernel = sample.make(bench.device)
    keep_results(kernel)
    images = [bench.batch(values) for values in sources]
    command_buffer = bench.command_buffer()
    result, states = encode(kernel, command_buffer, images, destination_state_is_temporary=temporary)
    if temporary:
        states_read = 2 if states.counted()[0] is states[1] else 1
        MPSStateBatchIncrementReadCount(states, states_read * len(sample.gradients) - 1)
    parameters = parameter_gradients(states)
    flows: list[Any] = []
    for backward in sample.gradients:
        gradient = backward.make(bench.device)
        keep_results(gradient)
        secondary = result if backward.reads_result else images[backward.secondary]
        flows += [
            [
                encode(gradient, command_buffer, [incoming[part], secondary[part]], states[part])
                for part in (slice(0, 2), slice(2, IMAGES))
            ]
        ]
    finish(command_buffer)
    for parts, expected in zip(flows, whole.gradients, strict=True):
        assert_close(np.concatenate([numbers(part) for part in parts]), expected, TOLERANCE, "gradient")
    if whole.weights is not None:
        assert_close(parameters()[0], whole.weights, TOLERANCE, "weights")


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["many results"], of=SOME_OF_CLASS), ids=str)
def test_some_images_of_an_object(sample: Sample, device: torch.device) -> None:
    """`offset.z` is the first source image, `clip_rect` z the first and the number of destination images."""
    bench = Bench.on(device)
    sources = sample.sources(4)
    expected = train(bench, sample, [values[1:3] for values in sources], bench.image)
    shape = expected.result.shape

    def choose(kernel: Any) -> None:
        kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 2), MTLSize(2**32, 2**32, 2))
        placed_like(kernel, expected.kernel)
        for name in ("offset", "primary_offset", "secondary_offset"):
            if hasattr(kernel, name):
                placed = getattr(expected.kernel, name)
                setattr(kernel, name, MPSOffset(placed.x, placed.y, 1))
        for name in REGIONS:
            if hasattr(kernel, name):
                region = getattr(kernel, name)
                setattr(kernel, name, MTLRegion(replace(region.origin, z=1), region.size))

    incoming = np.concatenate(
        [np.full((2, *shape[1:]), np.nan), sample.incoming(shape), np.full((1, *shape[1:]), np.nan)]
    )
    found = train(
        bench,
        sample,
        sources,
        bench.image,
        labelled=2,
        prepare=choose,
        destination=lambda: bench.filled((5, *shape[1:]), -7.0),
        incoming=incoming,
    )
    assert_close(found.result[2:4], expected.result, TOLERANCE, "result")
    np.testing.assert_array_equal(found.result[[0, 1, 4]], -7.0)
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(actual[1:3], wanted, TOLERANCE, "gradient")
        np.testing.assert_array_equal(actual[[0, 3]], 0.0)
    if expected.weights is not None:
        assert_close(found.weights, expected.weights, TOLERANCE, "weights")
