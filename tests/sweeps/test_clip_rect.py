"""A clip rectangle writes its part of the destination and nothing else; offsets choose what it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from catalogue import class_of, having
from encoding import Bench, data_alone, encode, finish, numbers, train, trained
from helpers import assert_close
from in_one_test import in_one_test_of_each
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import Sample, placed_like

TOLERANCE = 2e-6
PLACEABLE = having(without=["ignores offset", "labels", "random", "blocks", "resampled"])
"""Fully connected layers ignore offsets, labels must have the size of the clip rectangle, masks depend on place, and
blocks of sub-pixels begin at the clip rectangle's corner. Where images are resampled a result pixel's place in the
source is no whole number, as offsets are."""
UNTOUCHED = -7.0


def _shift(kernel: Any, across: int, down: int) -> None:
    """Move every source's offset by some result pixels."""
    if hasattr(kernel, "kernel_offset_x"):
        kernel.kernel_offset_x += across
        kernel.kernel_offset_y += down
        return
    for prefix in ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",):
        offset = getattr(kernel, prefix + "offset")
        x = offset.x + across * getattr(kernel, prefix + "stride_in_pixels_x")
        y = offset.y + down * getattr(kernel, prefix + "stride_in_pixels_y")
        setattr(kernel, prefix + "offset", MPSOffset(x, y, offset.z))


def _part(sample: Sample, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A random part of the result: x, y, width, height."""
    random = sample.random("clip")
    height, width = shape[2:]
    w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
    return int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", PLACEABLE, ids=str)
def test_clip_equals_crop(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    whole = train(bench, sample, sources, bench.batch)
    x, y, width, height = _part(sample, whole.result.shape)
    kernel = whole.kernel
    _shift(kernel, x, y)
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(width, height, 1))
    images, channels = whole.result.shape[:2]
    destination = bench.batch(np.full((images, channels, height + 3, width + 4), UNTOUCHED))
    command_buffer = bench.command_buffer()
    encode(kernel, command_buffer, [bench.batch(values) for values in sources], destination)
    finish(command_buffer)
    expected = np.full((images, channels, height + 3, width + 4), UNTOUCHED)
    expected[:, :, 1 : 1 + height, 2 : 2 + width] = whole.result[:, :, y : y + height, x : x + width]
    assert_close(numbers(destination), expected, TOLERANCE)
    found = numbers(destination)
    outside = np.ones(found.shape, dtype=bool)
    outside[:, :, 1 : 1 + height, 2 : 2 + width] = False
    assert (found[outside] == UNTOUCHED).all()


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["labels"]), ids=str)
def test_a_clip_rect_beyond_the_destination_is_cut(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    whole = trained(sample, bench.device)
    images, channels, height, width = whole.result.shape
    kernel = sample.make(bench.device)
    placed_like(kernel, whole.kernel)
    kernel.clip_rect = MTLRegion(MTLOrigin(3, 1, 0), MTLSize(1000, 1000, 1))
    destination = bench.batch(np.full((images, channels, height + 1, width + 3), UNTOUCHED))
    command_buffer = bench.command_buffer()
    encode(kernel, command_buffer, [bench.batch(values) for values in sources], destination)
    finish(command_buffer)
    found = numbers(destination)
    assert_close(found[:, :, 1:, 3:], whole.result, TOLERANCE)
    assert (found[:, :, 0] == UNTOUCHED).all()
    assert (found[:, :, :, :3] == UNTOUCHED).all()


PLACED = having(without=["ignores offset", "labels", "random", "resampled"], gradients=True)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", PLACED, ids=str)
def test_gradient_of_a_clipped_forward(sample: Sample, device: torch.device) -> None:
    """The state carries clip rectangle and offset: what flows back is the gradient of the part that was written."""
    bench = Bench.on(device)
    sources = sample.sources()
    whole = trained(sample, bench.device)
    x, y, width, height = _part(sample, whole.result.shape)
    images, channels = whole.result.shape[:2]
    larger = (images, channels, height + 3, width + 2)
    flow = sample.random("flow").normal(size=larger)

    def place(kernel: Any) -> None:
        placed_like(kernel, whole.kernel)
        for prefix in ("", "primary_"):
            if hasattr(kernel, prefix + "edge_mode"):
                setattr(kernel, prefix + "edge_mode", getattr(whole.kernel, prefix + "edge_mode"))
        _shift(kernel, x, y)
        kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(width, height, 1))

    found = train(
        bench,
        sample,
        sources,
        bench.batch,
        prepare=place,
        destination=lambda: bench.batch(np.full(larger, UNTOUCHED)),
        incoming=flow,
    )
    masked = np.zeros(whole.result.shape)
    masked[:, :, y : y + height, x : x + width] = flow[:, :, 2 : 2 + height, 1 : 1 + width]
    expected = train(bench, sample, sources, bench.batch, incoming=masked)
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(actual, wanted, TOLERANCE, "gradient")
    if expected.weights is not None:
        assert_close(found.weights, expected.weights, TOLERANCE, "weights")
        assert_close(found.biases, expected.biases, TOLERANCE, "biases")


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(gradients=True), ids=str)
def test_clip_rect_of_a_gradient(sample: Sample, device: torch.device) -> None:
    """With a destination given: its pixel ``clip origin + t`` holds the gradient of source pixel t."""
    bench = Bench.on(device)
    sources = sample.sources()
    whole = train(bench, sample, sources, bench.batch)
    images = [bench.batch(values) for values in sources]
    incoming = bench.batch(sample.incoming(whole.result.shape))
    result = bench.batch(whole.result)
    for backward, gradient, expected in zip(sample.gradients, whole.gradient_kernels, whole.gradients, strict=True):
        height, width = (max(1, n - 1) for n in expected.shape[2:])
        gradient.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(width, height, 1))
        data_alone(gradient)
        shape = (*expected.shape[:2], expected.shape[2] + 3, expected.shape[3] + 4)
        destination = bench.batch(np.full(shape, UNTOUCHED))
        command_buffer = bench.command_buffer()
        secondary = result if backward.reads_result else images[backward.secondary]
        encode(gradient, command_buffer, [incoming, secondary], whole.states, destination)
        finish(command_buffer)
        found = numbers(destination)
        part = found[:, :, 2 : 2 + height, 1 : 1 + width].copy()
        assert_close(part, expected[:, :, :height, :width], TOLERANCE)
        found[:, :, 2 : 2 + height, 1 : 1 + width] = UNTOUCHED
        assert (found == UNTOUCHED).all()
