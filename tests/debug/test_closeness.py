"""`assert_images_close`, and the fixtures that pytest gets where openmps is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import forked
import numpy as np
import pytest
import torch

import openmps as mps
from openmps.debug import assert_images_close

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]["openmps"]


def _pair() -> tuple[np.ndarray, np.ndarray]:
    """Images of a thousand numbers, of which ten differ by a tenth of the largest and one by a half."""
    expected = np.linspace(-2, 2, 1000).reshape(2, 10, 10, 5)
    found = expected.copy()
    found.reshape(-1)[500:510] += 0.2
    found[1, 2, 3, 4] -= 1.0
    return found, expected


@pytest.mark.parametrize("at_most", [0.5, {100: 0.5}, {98.8: 0.0}, {98.8: 0, 99.8: 0.1, 100: 0.5}])
def test_images_within_their_percentiles(at_most) -> None:
    assert_images_close(*_pair(), at_most)


@pytest.mark.parametrize("at_most", [0.499, {99.8: 0.0999}, {99: 0, 100: 1}, {100: 0.4, 50: 0}])
def test_images_beyond_a_percentile(at_most) -> None:
    with pytest.raises(AssertionError, match="too much"):
        assert_images_close(*_pair(), at_most)


def test_the_report_has_percentiles_and_the_place() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_images_close(*_pair(), {50: 1e-3, 99.8: 0.2, 100: 0.25})
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("images of shape (2, 10, 10, 5) differ; errors are shares of 2,")
    assert [line.split() for line in lines[3:6]] == [
        ["50", "%", "0.0e+00", "1.0e-03"],
        ["99.8", "%", "1.0e-01", "2.0e-01"],
        ["100", "%", "5.0e-01", "2.5e-01", "too", "much"],
    ]
    assert lines[6] == "the largest is at [1, 2, 3, 4]: -0.5215, expected 0.4785"


def test_every_kind_of_image() -> None:
    device = mps.mtl_device("cpu")
    pixels = np.random.default_rng(0).random((2, 4, 6, 3), np.float32)
    batch = mps.MPSImageBatch.from_numpy(device, pixels)
    assert_images_close(batch, pixels, 0)
    assert_images_close(batch[1], torch.from_numpy(pixels[1]), 0)
    assert_images_close(pixels.astype(np.float16), batch, 2**-11)
    with pytest.raises(AssertionError, match=r"must have the shape \(2, 4, 6, 3\), got \(4, 6, 3\)"):
        assert_images_close(batch[0], batch, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_stand_in_the_same_place(value) -> None:
    expected = np.ones((2, 2, 1))
    found = expected.copy()
    found[0, 1] = value
    assert_images_close(found, found.copy(), 0)
    for pair in ((found, expected), (expected, found), (found, -found)):
        if not (np.isnan(value) and pair[1] is not expected and pair[0] is found):
            with pytest.raises(AssertionError, match=r"inf .* too much"):
                assert_images_close(*pair, 1e30)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones(3), np.ones(3), {}), "at_most must name a percentile"),
        ((np.ones(3), np.ones(3), {101: 1}), "percentiles from 0 to 100, got 101"),
        ((np.ones(3), np.ones(3), -1e-3), r"at_most\[100\] must be 0 or more"),
        ((np.ones(3), np.ones(3), "close"), "must be a number, got 'close'"),
        ((np.ones(3), ["a"], 1), "expected must be an image, a batch of images or an array of numbers, got list"),
    ],
)
def test_wrong_arguments_are_named(arguments, words) -> None:
    with pytest.raises(mps.MPSError, match=words):
        assert_images_close(*arguments)


# --- the plugin -------------------------------------------------------------------------------------------------------

TESTS = """
import sys

def test_of_something_else(request):
    assert not {"torch", "numpy", "openmps.names"} & set(sys.modules)

def test_device(mps_device):
    assert mps_device.name and str(mps_device.torch_device) == "cpu"

def test_seed(mps_seed, mps_rng):
    print("SEED", mps_seed, mps_rng.integers(1 << 30))

def test_other_seed(mps_seed):
    print("SEED", mps_seed)
"""


def _ran(folder: Path, *options: str) -> str:
    (folder / "test_theirs.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ["-m", "pytest", "-rP", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, *options]
    if options:
        done = forked.run(*command, cwd=folder, env=environment)
    else:  # tests what has been imported
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout


def test_fixtures_and_what_is_imported_without_them(tmp_path: Path) -> None:
    first, again = _ran(tmp_path), _ran(tmp_path, "--openmps-seed", "0", "-k", "seed")
    other = _ran(tmp_path, "--openmps-seed", "7", "--openmps-device", "auto", "-k", "seed")
    assert "4 passed" in first, first
    seeds = [[line.split()[1:] for line in text.splitlines() if line[:4] == "SEED"] for text in (first, again, other)]
    assert len(seeds[0]) == 2 and seeds[0][0][0] != seeds[0][1][0]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = _ran(tmp_path, "--openmps-device", "mps", "-k", "device")
    assert "1 error" in text
    assert "MPSDeviceError: mtl_device: which must be the CPU or a CUDA GPU, got 'mps'" in text
