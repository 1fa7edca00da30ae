"""Result states: single, batch, temporary; made before the encode or by it; what they tell of the forward encode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, having
from encoding import Bench, encode, finish, keep_results, numbers, train, trained
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSImageSizeEncodingState, MPSNNGradientState
from openmps.runtime.devices import mtl_device
from samples.sample import Sample

TOLERANCE = 2e-6
WITH_STATES = having(gradients=True, of=SOME_OF_CLASS)
WITHOUT = having("labels", without=["label images"])
IMAGES = 3


@in_one_test
@pytest.mark.parametrize("sample", WITH_STATES, ids=str)
def test_a_state_for_each_image_or_one_for_all(sample: Sample) -> None:
    bench = Bench(mtl_device("cpu"))
    kernel = sample.make(bench.device)
    images = [bench.batch(values) for values in sample.sources(IMAGES)]
    states = kernel.result_state_batch(*images)
    assert isinstance(states, MPSStateBatch)
    assert len(states) == IMAGES
    assert len(states.unique()) == (1 if kernel.is_result_state_reused_across_batch() else IMAGES)
    assert all(isinstance(state, MPSNNGradientState) for state in states)
    assert all(not state.is_temporary and state.read_count == 0 for state in states)
    height, width = sample.shapes[0][1:]
    for state in states:
        assert isinstance(state, MPSImageSizeEncodingState)
        assert (state.source_width, state.source_height) == (width, height), "known before the encode"
    single = kernel.result_state(*[batch[0] for batch in images])
    assert type(single) is type(states[0])
    assert single is not kernel.result_state(*[batch[0] for batch in images])


@in_one_test
@pytest.mark.parametrize("sample", WITH_STATES, ids=str)
def test_temporary_states(sample: Sample) -> None:
    bench = Bench(mtl_device("cpu"))
    kernel = sample.make(bench.device)
    images = [bench.batch(values) for values in sample.sources(IMAGES)]
    command_buffer = bench.command_buffer()
    states = kernel.temporary_result_state_batch(command_buffer, *images)
    assert {state.read_count for state in states} == {1}
    assert all(state.lives_on is command_buffer for state in states)
    single = kernel.temporary_result_state(command_buffer, *[batch[0] for batch in images])
    assert single.read_count == 1
    assert single.lives_on is command_buffer
    finish(command_buffer)


@pytest.mark.parametrize("sample", WITHOUT, ids=str)
def test_kernels_without_states(sample: Sample) -> None:
    bench = Bench(mtl_device("cpu"))
    kernel = sample.make(bench.device)
    (images,) = (bench.batch(values) for values in sample.sources(IMAGES))
    assert kernel.result_state(images[0]) is None
    assert kernel.result_state_batch(images) is None
    assert kernel.temporary_result_state(bench.command_buffer(), images[0]) is None
    assert kernel.temporary_result_state_batch(bench.command_buffer(), images) is None


@in_one_test
@pytest.mark.parametrize("sample", WITH_STATES, ids=str)
def test_states_made_before_the_encode(sample: Sample, device: torch.device) -> None:
    """Passed as destination states, also when its members were looked at before."""
    bench = Bench.on(device)
    values = sample.sources(IMAGES)
    expected = trained(sample, bench.device, IMAGES)
    kernel = sample.make(bench.device)
    keep_results(kernel)
    images = [bench.batch(each) for each in values]
    states = kernel.result_state_batch(*images)
    looked_at = [states[0], states[-1]]
    command_buffer = bench.command_buffer()
    result = encode(kernel, command_buffer, images, destination_states=states)
    flows = _gradients(bench, sample, expected.result.shape, command_buffer, images, result, states)
    finish(command_buffer)
    for flow, wanted in zip(flows, expected.gradients, strict=True):
        assert_close(numbers(flow), wanted, TOLERANCE)
    height, width = sample.shapes[0][1:]
    assert [(state.source_width, state.source_height) for state in looked_at] == [(width, height)] * 2


def _gradients(
    bench: Bench, sample: Sample, shape: Any, command_buffer: Any, images: list[Any], result: Any, states: Any
) -> list[Any]:
    flows = []
    for backward in sample.gradients:
        gradient = backward.make(bench.device)
        keep_results(gradient)
        secondary = result if backward.reads_result else images[backward.secondary]
        flow = bench.batch(sample.incoming(shape))
        flows.append(encode(gradient, command_buffer, [flow, secondary], states))
    return flows


@in_one_test
@pytest.mark.parametrize("sample", having(without=["random", "one mask"], gradients=True, of=SOME_OF_CLASS), ids=str)
def test_states_of_single_encodes_as_a_batch(sample: Sample, device: torch.device) -> None:
    """Forward one by one, then one gradient encode for all of them with the list of their states."""
    bench = Bench.on(device)
    values = sample.sources(IMAGES)
    expected = trained(sample, bench.device, IMAGES)
    if expected.kernel.is_result_state_reused_across_batch():
        pytest.skip("a convolution's batch has one state")
    kernel = sample.make(bench.device)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    images = [bench.images(each) for each in values]
    pairs = [
        kernel.encode(command_buffer, *[batch[index] for batch in images], destination_state_is_temporary=False)
        for index in range(IMAGES)
    ]
    results, states = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    flows = _gradients(bench, sample, expected.result.shape, command_buffer, images, results, states)
    finish(command_buffer)
    for flow, wanted in zip(flows, expected.gradients, strict=True):
        assert_close(numbers(flow), wanted, TOLERANCE)


@in_one_test
@pytest.mark.parametrize("sample", having(without=["one mask"], gradients=True, of=SOME_OF_CLASS), ids=str)
def test_one_image_of_a_batch_and_its_state(sample: Sample, device: torch.device) -> None:
    """The gradient of image 1 alone, with the state that the batch encode left for it, permuted batches too."""
    bench = Bench.on(device)
    values = sample.sources(IMAGES)
    forward = train(bench, sample, values, bench.batch)
    if forward.kernel.is_result_state_reused_across_batch():
        pytest.skip("a convolution's batch has one state")
    shape = forward.result.shape
    order = [2, 0]
    images = [bench.images(each) for each in values]
    results, flow = bench.images(forward.result), bench.images(sample.incoming(shape))
    for backward, wanted in zip(sample.gradients, forward.gradients, strict=True):
        secondary = results if backward.reads_result else images[backward.secondary]
        gradient = backward.make(bench.device)
        keep_results(gradient)
        command_buffer = bench.command_buffer()
        single = gradient.encode(command_buffer, flow[1], secondary[1], forward.states[1])
        some = gradient.encode_batch(
            command_buffer,
            [flow[i] for i in order],
            [secondary[i] for i in order],
            [forward.states[i] for i in order],
        )
        finish(command_buffer)
        assert_close(numbers(single), wanted[1:2], TOLERANCE)
        assert_close(numbers(some), wanted[order], TOLERANCE)


@in_one_test
@pytest.mark.parametrize("sample", WITH_STATES, ids=str)
def test_what_a_state_tells(sample: Sample) -> None:
    bench = Bench(mtl_device("cpu"))
    found = train(bench, sample, sample.sources(), bench.image)
    height, width = sample.shapes[0][1:]
    assert (found.states.source_width, found.states.source_height) == (width, height)
    np.testing.assert_equal(found.states.is_temporary, False)
