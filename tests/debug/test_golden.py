"""Goldens: limits by percentiles, which rounding stays below and a mistake does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import openmps as mps
from fake_device import FLOAT16, FLOAT32, App, Array, photo, play


@pytest.fixture(scope="module")
def given() -> Array:
    return photo(3)


@pytest.fixture(scope="module")
def golden(given: Array) -> mps.debug.Golden:
    return mps.debug.make_golden(App().graph(), [given])


def test_results_are_those_of_float32(golden: mps.debug.Golden, given: Array) -> None:
    trace = App().graph(FLOAT32).trace([given.astype(np.float32)])
    (result,) = golden.results
    assert result.image.label == "probabilities"
    np.testing.assert_allclose(result.image.array, trace["probabilities"], rtol=1e-5)
    assert 0 < result.limits[0] <= result.limits[1] <= result.limits[2] <= result.limits[3] < 0.01


def test_the_same_network_is_within_its_limits(golden: mps.debug.Golden) -> None:
    for form in (FLOAT16, FLOAT32):
        report = mps.debug.check_golden(golden, App().graph(form))
        assert report.ok, report
        assert str(report).endswith("1 result within the limits")
    errors = mps.debug.check_golden(golden, App().graph(FLOAT16)).checks[0].errors
    assert errors[3] > golden.results[0].limits[3] / 50, "the limits are no wider than they must be"


def test_float32_has_narrower_limits(given: Array) -> None:
    precise = mps.debug.make_golden(App().graph(), [given], FLOAT32)
    plain = mps.debug.make_golden(App().graph(), [given])
    assert precise.results[0].limits[3] < plain.results[0].limits[3]


def test_a_mistake_is_beyond_them(golden: mps.debug.Golden, given: Array, tmp_path: Path) -> None:
    wrong = App(epsilon=1e-2)
    report = mps.debug.check_golden(golden, wrong.graph())
    assert not report.ok
    assert "beyond the limits: probabilities" in str(report)
    capture = mps.debug.load_capture(play(tmp_path / "wrong", wrong, given))
    assert not mps.debug.check_golden(golden, capture).ok
    right = mps.debug.load_capture(play(tmp_path / "right", App(), given))
    assert mps.debug.check_golden(golden, right).ok


def test_what_does_not_fit_is_refused(golden: mps.debug.Golden, given: Array, tmp_path: Path) -> None:
    other = mps.debug.load_capture(play(tmp_path / "other", App(), given[:, ::-1].copy()))
    with pytest.raises(
        mps.MPSArgumentError, match="found must be of the golden's source image 'image', got other numbers"
    ):
        mps.debug.check_golden(golden, other)
    without = mps.debug.load_capture(play(tmp_path / "without", App(), given, left_out=("probabilities",)))
    with pytest.raises(mps.MPSArgumentError, match="found must have the result 'probabilities'"):
        mps.debug.check_golden(golden, without)
    relu = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("pixels")))
    graph = mps.MPSNNGraph(mps.mtl_device("cpu"), relu.result_image)
    with pytest.raises(mps.MPSArgumentError, match="found must have the golden's source images: 'image', got 'pixels'"):
        mps.debug.check_golden(golden, graph)
    with pytest.raises(
        mps.MPSArgumentError, match="source_images must have 1 entry, one for each input: 'pixels', got 2"
    ):
        mps.debug.make_golden(graph, [given, given])
