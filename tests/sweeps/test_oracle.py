"""Every kernel and its gradient kernels against the float64 loops, by the path that sizes results itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from catalogue import ALL, class_of
from encoding import Bench, train, trained
from helpers import assert_close
from in_one_test import in_one_test, in_one_test_of_each
from measured import note_error
from samples.sample import Sample, readings

TOLERANCE = 1e-5


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", ALL, ids=str)
def test_forward_and_gradients(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources(images=3)
    found = train(bench, sample, sources, bench.batch)
    height, width = found.result.shape[2:]
    how = readings(found.kernel, width, height)
    expected = sample.forward(sources, how)
    assert_close(found.result, expected, TOLERANCE, "result")
    note_error(type(found.kernel), "forward", device, found.result, expected)
    incoming = sample.incoming(found.result.shape)
    for gradient, kernel, actual in zip(sample.gradients, found.gradient_kernels, found.gradients, strict=True):
        expected = gradient.oracle(incoming, sources, how)
        assert_close(actual, expected, TOLERANCE, f"gradient of source {gradient.source}")
        note_error(type(kernel), "gradient", device, actual, expected)
        if gradient.parameters is not None:
            weights, biases = gradient.parameters(incoming, sources, how)
            assert found.weights is not None
            assert found.biases is not None
            assert_close(found.weights, weights.ravel(), TOLERANCE, "gradient of weights")
            assert_close(found.biases, biases, TOLERANCE, "gradient of biases")


@in_one_test
@pytest.mark.parametrize("sample", ALL, ids=str)
def test_results_are_finite_and_not_trivial(sample: Sample) -> None:
    """The samples exercise their kernels: no result is constant zero, none overflows."""
    bench = Bench.on(torch.device("cpu"))
    found = trained(sample, bench.device)
    for values in (found.result, *found.gradients):
        assert np.isfinite(values).all()
    assert np.any(found.result != 0)
