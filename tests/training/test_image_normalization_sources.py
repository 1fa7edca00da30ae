"""Data sources that train the scales and shifts of instance and group normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import openmps as mps
from encoding import finish
from onnx_models import numbers

CPU = mps.mtl_device("cpu")
RATE, CHANNELS = 0.5, 4


def sgd(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerStochasticGradientDescent(device, RATE)


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerAdam(device, 0.01)


def instance(optimizer: Any = sgd, **more: Any) -> Any:
    return mps.TrainableInstanceNormalizationDataSource(CHANNELS, optimizer=optimizer, label="norm", **more)


def group(optimizer: Any = sgd, **more: Any) -> Any:
    return mps.TrainableGroupNormalizationDataSource(CHANNELS, 2, optimizer=optimizer, label="norm", **more)


KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "instance": (instance, mps.MPSCNNInstanceNormalization, mps.MPSCNNInstanceNormalizationGradient, CHANNELS),
    "group": (group, mps.MPSCNNGroupNormalization, mps.MPSCNNGroupNormalizationGradient, 2),
}


def step(source: Any, kernel: Any, backward: Any, x: np.ndarray, flow: np.ndarray, *, apart: bool) -> None:
    """One update by the gradients of a batch, whose images are encoded together or each by itself."""
    command_buffer = CPU.new_command_queue().command_buffer()
    batches = [slice(place, place + 1) for place in range(len(x))] if apart else [slice(None)]
    states: list[Any] = []
    for part in batches:
        images, flows = (mps.MPSImageBatch.from_numpy(CPU, each[part]) for each in (x, flow))
        _, made = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        backward.encode_batch(command_buffer, flows, images, made)
        states += [*made]
    kernel.reload_gamma_and_beta(command_buffer, source.update_gamma_and_beta(command_buffer, states))
    finish(command_buffer)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_all_images_are_one_step(kind: str, apart: bool) -> None:
    make, forward, backward, groups = KINDS[kind]
    x, flow, gamma, beta = (
        numbers(3, 5, 6, CHANNELS),
        numbers(3, 5, 6, CHANNELS, seed=1),
        numbers(4),
        numbers(4, seed=1),
    )
    source = make(gamma=gamma, beta=beta)
    step(source, forward(CPU, source), backward(CPU), x, flow, apart=apart)
    planes, rows = (torch.from_numpy(each).permute(0, 3, 1, 2).contiguous() for each in (x, flow))
    weight, bias = (torch.from_numpy(each.copy()).requires_grad_() for each in (gamma, beta))
    F.group_norm(planes, groups, weight, bias, 1e-5).backward(rows)
    assert weight.grad is not None and bias.grad is not None
    np.testing.assert_allclose(source.gamma(), gamma - RATE * weight.grad.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(source.beta(), beta - RATE * bias.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_from_its_state(kind: str) -> None:
    make, forward, backward, _ = KINDS[kind]
    x, flow = numbers(3, 5, 6, CHANNELS), numbers(3, 5, 6, CHANNELS, seed=1)
    one = make(adam)
    for _ in range(2):
        step(one, forward(CPU, one), backward(CPU), x, flow, apart=False)
    other = make(adam)
    other.restore_training_state(one.training_state())
    for each in (one, other):
        step(each, forward(CPU, each), backward(CPU), x, flow, apart=False)
    assert all(np.array_equal(one.arrays()[name], other.arrays()[name]) for name in ("gamma", "beta"))
    assert one.training_state()["optimizer.time_step"] == 3


@pytest.mark.parametrize(("make", "why"), [
    (lambda: instance(gamma=numbers(3)), "gamma must hold 4 numbers, one a feature channel"),
    (lambda: mps.TrainableGroupNormalizationDataSource(4, 3, optimizer=sgd), "number_of_groups must divide 4 channels"),
    (lambda: mps.TrainableInstanceNormalizationDataSource(0, optimizer=sgd), "number_of_feature_channels must be"),
    (lambda: instance(epsilon=-1.0), "epsilon"),
    (lambda: instance("adam"), "optimizer must be a function of a device"),
    (lambda: instance().update_gamma_and_beta(None, []), "updates on the device"),
    (lambda: instance().update_gamma_and_beta(CPU.new_command_queue().command_buffer(), [1]), r"states\[0\] must be"),
])  # fmt: skip
def test_what_is_refused(make: Any, why: str) -> None:
    with pytest.raises(mps.MPSError, match=why):
        make()
