"""Softmax and log-softmax: golden numbers, large numbers, the forward result as secondary image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_digits
from openmps.errors import MPSArgumentError
from openmps.kernels.softmax import (
    MPSCNNLogSoftMax,
    MPSCNNLogSoftMaxGradient,
    MPSCNNSoftMax,
    MPSCNNSoftMaxGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSOffset

SOFTMAX = [0.090031, 0.244728, 0.665241]


def _pixel(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, -1, 1, 1))


def test_golden_forward(device: torch.device) -> None:
    bench = Bench.on(device)
    assert_digits(run(bench, MPSCNNSoftMax(bench.device), [_pixel(bench, [1, 2, 3])]), SOFTMAX, 6)
    found = run(bench, MPSCNNLogSoftMax(bench.device), [_pixel(bench, [1, 2, 3])])
    assert_digits(found, np.log(SOFTMAX).tolist(), 5)


@pytest.mark.parametrize(
    ("forward", "gradient", "expected"),
    [
        (MPSCNNSoftMax, MPSCNNSoftMaxGradient, [0.081925, -0.022033, -0.059892]),
        (MPSCNNLogSoftMax, MPSCNNLogSoftMaxGradient, [0.909969, -0.244728, -0.665241]),
    ],
)
def test_golden_gradient(forward: Any, gradient: Any, expected: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel, backward = forward(bench.device), gradient(bench.device)
    keep_results(kernel)
    keep_results(backward)
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, _pixel(bench, [1, 2, 3]), destination_state_is_temporary=False)
    flow = backward.encode(command_buffer, _pixel(bench, [1, 0, 0]), result, state)
    finish(command_buffer)
    assert_digits(numbers(flow), expected, 6)


def test_large_numbers(device: torch.device) -> None:
    bench = Bench.on(device)
    found = run(bench, MPSCNNSoftMax(bench.device), [_pixel(bench, [1000, 999, -1000])])
    assert_digits(found, [0.731059, 0.268941, 0], 6)
    found = run(bench, MPSCNNLogSoftMax(bench.device), [_pixel(bench, [1000, 999, -1000])])
    assert_digits(found, [-0.3133, -1.3133, -2000.3133], 3)


def test_filler_channels_do_not_enter_the_sum(device: torch.device) -> None:
    """Three channels sum to one, though the framework stores four."""
    bench = Bench.on(device)
    found = run(bench, MPSCNNSoftMax(bench.device), [_pixel(bench, [0, 0, 0])])
    assert_digits(found, [1 / 3] * 3, 6)


def test_the_gradient_has_the_size_of_the_source(device: torch.device, rng: np.random.Generator) -> None:
    """The result may be smaller than the source; what flows back is as large as the source."""
    bench = Bench.on(device)
    x = rng.normal(size=(1, 3, 4, 5))
    kernel, backward = MPSCNNSoftMax(bench.device), MPSCNNSoftMaxGradient(bench.device)
    keep_results(backward)
    kernel.offset = MPSOffset(2, 1, 0)
    image, result = bench.image(x), bench.empty((1, 3, 2, 2))
    state = kernel.result_state(image, destination_image=result)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, image, result, state)
    flow = backward.encode(command_buffer, bench.image(rng.normal(size=(1, 3, 2, 2))), result, state)
    finish(command_buffer)
    found = numbers(flow)
    assert found.shape == x.shape
    outside = np.ones(found.shape, dtype=bool)
    outside[:, :, 1:3, 2:4] = False
    assert not found[outside].any()
    assert found[~outside].all()


def test_the_source_instead_of_the_result_is_refused_if_sizes_tell() -> None:
    bench = Bench(mtl_device("cpu"))
    kernel, backward = MPSCNNSoftMax(bench.device), MPSCNNSoftMaxGradient(bench.device)
    backward.label = "s"
    image, result = bench.empty((1, 3, 4, 5)), bench.empty((1, 3, 2, 2))
    state = kernel.result_state(image, destination_image=result)
    with pytest.raises(MPSArgumentError, match="^MPSCNNSoftMaxGradient 's': source_image must be 2x2x3"):
        backward.encode(bench.command_buffer(), bench.empty((1, 3, 2, 2)), image, state)
