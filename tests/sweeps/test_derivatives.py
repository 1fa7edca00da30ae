"""Gradient kernels as derivatives of their forward kernels, through the kernels alone: no oracle is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from catalogue import having
from encoding import Bench, run, train
from helpers import inner
from in_one_test import in_one_test
from samples.sample import Array, Sample, exact


def _forward(bench: Bench, sample: Sample, sources: Sequence[Array]) -> Array:
    return run(bench, sample.make(bench.device), [bench.batch(values) for values in sources])


def _direction(sample: Sample, index: int, shape: Sequence[int]) -> Array:
    return exact(sample.random(f"direction {index}").normal(size=tuple(shape)))


@in_one_test
@pytest.mark.parametrize("sample", having("affine", gradients=True), ids=str)
def test_adjoint(sample: Sample, device: torch.device) -> None:
    """For an affine kernel ``<f(x + v) - f(x), g> = <v, gradient(g)>`` for every direction v, up to rounding."""
    bench = Bench.on(device)
    sources = sample.sources()
    found = train(bench, sample, sources, bench.batch)
    flow = sample.incoming(found.result.shape)
    for backward, gradient in zip(sample.gradients, found.gradients, strict=True):
        direction = _direction(sample, backward.source, sources[backward.source].shape)
        moved = list(sources)
        moved[backward.source] = exact(sources[backward.source] + direction)
        difference = _forward(bench, sample, moved) - found.result
        taken = inner(difference, flow)
        given = inner(moved[backward.source] - sources[backward.source], gradient)
        scale = float(np.abs(np.asarray(difference) * flow).sum() + np.abs(direction * gradient).sum())
        assert abs(taken - given) <= 2e-6 * scale


@in_one_test
@pytest.mark.parametrize("sample", having("affine", gradients=True), ids=str)
def test_adjoint_of_parameters(sample: Sample, device: torch.device) -> None:
    """Weights are linear too: ``<f(x) - f(0) , g>`` is the scalar product of weights and their gradient."""
    bench = Bench.on(device)
    sources = sample.sources()
    found = train(bench, sample, sources, bench.batch)
    if found.weights is None:
        pytest.skip("has no weights")
    flow = sample.incoming(found.result.shape)
    constant = _forward(bench, sample, [np.zeros_like(values) for values in sources])
    weights = found.kernel.parameters.weights.double().cpu().numpy().ravel()
    scale = float(np.abs((found.result - constant) * flow).sum())
    assert abs(inner(found.result - constant, flow) - inner(weights, found.weights)) <= 2e-6 * scale


@in_one_test
@pytest.mark.parametrize("sample", having("smooth", gradients=True), ids=str)
def test_finite_differences(sample: Sample, device: torch.device) -> None:
    """Central differences along one direction; float32 leaves about three digits of them."""
    bench = Bench.on(device)
    sources = sample.sources()
    found = train(bench, sample, sources, bench.batch)
    flow = sample.incoming(found.result.shape)
    (x,), (gradient,) = sources, found.gradients
    direction = _direction(sample, 0, x.shape)
    step = 2.0**-7
    above, below = exact(x + step * direction), exact(x - step * direction)
    difference = _forward(bench, sample, [above]) - _forward(bench, sample, [below])
    taken = inner(difference, flow)
    given = inner(above - below, gradient)
    scale = float(np.abs((above - below) * gradient).sum())
    assert abs(taken - given) <= 2e-3 * scale
