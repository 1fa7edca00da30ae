"""Processes that share batches come to what one process comes to: gloo on the CPU, two and four of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import group_worker as worker
from group_launch import finish, start
from group_oracle import apart

PROGRAM = str(Path(worker.__file__))
OF_FOUR = ("sgd", "adam, normalized", "4 pieces")
SAME = [name for name in worker.CASES if "apart" not in name and "pieces" not in name]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """What one, two and four processes came to."""
    folder = tmp_path_factory.mktemp("arrays")
    files = {count: folder / f"{count}.npz" for count in (1, 2, 4)}
    worker.run(str(files[1]), "cpu", list(worker.CASES))
    started = {
        count: start(count, [PROGRAM, str(files[count]), "cpu", *names]) for count, names in ((2, ()), (4, OF_FOUR))
    }
    for processes in started.values():
        for ended in finish(processes):
            assert ended.status == 0, ended.error
    return {count: dict(np.load(file)) for count, file in files.items()}


def _of(found, case):
    return {name.partition("/")[2]: array for name, array in found.items() if name.partition("/")[0] == case}


@pytest.mark.parametrize(
    ("case", "count"), [(case, 2) for case in SAME] + [(case, 4) for case in OF_FOUR if case in SAME]
)
def test_weights_are_those_of_one_process(arrays, case, count):
    found, expected = _of(arrays[count], case), _of(arrays[1], case)
    assert found.keys() == expected.keys()
    assert found
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-6 * np.abs(array).max(), name


@pytest.mark.parametrize("count", [2, 4])
def test_sums_in_order_have_the_bits_of_one_process(arrays, count):
    found, expected = (_of(arrays[each], f"{count} pieces") for each in (count, 1))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("kind", ["replayed", "one bucket"])
def test_neither_replays_nor_buckets_change_bits(arrays, kind):
    expected = _of(arrays[2], {"replayed": "sgd, normalized", "one bucket": "sgd"}[kind])
    for name, array in _of(arrays[2], kind).items():
        np.testing.assert_array_equal(array, expected[name])


def test_statistics_of_shares_are_averaged(arrays):
    found = _of(arrays[2], "apart")
    for name, array in apart(2).items():
        np.testing.assert_allclose(found[name], array, atol=2e-6 * np.abs(array).max(), err_msg=name)
    whole = _of(arrays[1], "apart")
    assert np.abs(found["gamma"] - whole["gamma"]).max() > 1e-4  # one process takes the statistics of all images
