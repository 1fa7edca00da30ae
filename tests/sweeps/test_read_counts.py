"""Every encode takes one read from each temporary object that it reads; at none left the memory is given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, class_of, having
from encoding import Bench, encode, finish, is_batch, numbers, temporary_copy, train, trained
from helpers import assert_close
from in_one_test import in_one_test, in_one_test_of_each
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from samples.sample import Sample

TOLERANCE = 2e-6


def _members(images: Any) -> list[Any]:
    return list(images) if is_batch(images) else [images]


def _counts(images: Any) -> set[int]:
    return {image.read_count for image in _members(images)}


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
@pytest.mark.parametrize("kind", ["batch", "image"])
def test_forward(sample: Sample, kind: str, device: torch.device) -> None:
    bench = Bench.on(device)
    arrange = getattr(bench, kind)
    values = sample.sources()
    command_buffer = bench.command_buffer()
    sources = [temporary_copy(command_buffer, arrange(each)) for each in values]
    more = sample.more(bench, len(values[0]), single=kind == "image")
    result = encode(sample.make(bench.device), command_buffer, sources, *more)
    assert all(_counts(source) == {0} for source in sources)
    assert all(isinstance(image, MPSTemporaryImage) for image in _members(result))
    assert _counts(result) == {1}
    kept = [image.storage.block for source in sources for image in _members(source)]
    finish(command_buffer)
    assert not any(block.is_allocated for block in kept)


@in_one_test
@pytest.mark.parametrize("sample", having(gradients=True, of=SOME_OF_CLASS), ids=str)
def test_a_whole_pass_of_temporary_objects(sample: Sample, device: torch.device) -> None:
    """Nothing is read too often or too rarely, the numbers are those of permanent objects, all memory comes back."""
    bench = Bench.on(device)
    values = sample.sources()
    expected = trained(sample, bench.device)
    command_buffer = bench.command_buffer()
    sources = [temporary_copy(command_buffer, bench.batch(each)) for each in values]
    readers = [backward.secondary for backward in sample.gradients if not backward.reads_result]
    for index, source in enumerate(sources):
        for image in source:
            image.read_count = 1 + readers.count(index)
    result, states = encode(sample.make(bench.device), command_buffer, sources, destination_state_is_temporary=True)
    for state in states.unique():
        assert state.read_count == 1
        state.read_count = len(sample.gradients)
    for image in result:
        image.read_count = max(1, sum(backward.reads_result for backward in sample.gradients))
    flows = []
    for backward in sample.gradients:
        gradient = backward.make(bench.device)
        gradient.destination_image_allocator = MPSImage.default_allocator()
        flow = temporary_copy(command_buffer, bench.batch(sample.incoming(expected.result.shape)))
        secondary = result if backward.reads_result else sources[backward.secondary]
        flows.append(encode(gradient, command_buffer, [flow, secondary], states))
        assert _counts(flow) == {0}
    assert all(_counts(source) == {0} for source in sources)
    assert {state.read_count for state in states} == {0}
    kept = [image.storage.block for images in (*sources, result) for image in images]
    finish(command_buffer)
    assert not any(block.is_allocated for block in kept)
    for flow, wanted in zip(flows, expected.gradients, strict=True):
        assert_close(numbers(flow), wanted, TOLERANCE, "gradient")


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_writing_takes_no_read(sample: Sample, device: torch.device) -> None:
    """A temporary destination can be written again and again."""
    bench = Bench.on(device)
    values = sample.sources()
    expected = train(bench, sample, values, bench.batch)
    command_buffer = bench.command_buffer()
    destination = temporary_copy(command_buffer, bench.batch(np.zeros(expected.result.shape)))
    more = sample.more(bench, len(values[0]))
    for _ in range(2):
        encode(expected.kernel, command_buffer, [bench.batch(each) for each in values], *more, destination)
        assert _counts(destination) == {1}
    kept = temporary_copy(command_buffer, destination)
    assert _counts(destination) == {0}
    assert _counts(kept) == {1}
    finish(command_buffer)
