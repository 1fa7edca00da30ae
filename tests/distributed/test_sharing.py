"""Processes that share batches come to what one process comes to: gloo on the CPU, two and four of them.

One test, so that the processes are started once, whichever of pytest's processes runs it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import group_worker as worker
from group_launch import finish, start
from group_oracle import apart

PROGRAM = str(Path(worker.__file__))
OF_FOUR = (
    *("sgd", "augmented", "adam, normalized", "adam, normalized, shards"),
    *("4 pieces", "shared state", "every option"),
)
OF_OTHER_BITS = {"apart", "pieces", "state", "halves", "option"}
SAME = [name for name in worker.CASES if not OF_OTHER_BITS & {*name.replace(",", "").split()}]


@pytest.mark.other_processes
def test_what_processes_come_to(tmp_path):
    files = {count: tmp_path / f"{count}.npz" for count in (1, 2, 4)}
    started = {
        count: start(count, [PROGRAM, str(files[count]), "cpu", *names]) for count, names in ((2, ()), (4, OF_FOUR))
    }
    worker.run(str(files[1]), "cpu", list(worker.CASES))
    for processes in started.values():
        for ended in finish(processes):
            assert ended.status == 0, ended.error
    arrays = {count: dict(np.load(file)) for count, file in files.items()}
    _weights_are_those_of_one_process(arrays)
    _sums_in_order_have_the_bits_of_one_process(arrays)
    _neither_replays_nor_buckets_nor_shards_change_bits(arrays)
    _statistics_of_shares_are_averaged(arrays)
    _checkpoints_of_shares_are_whole(arrays)
    _runs_with_every_option_go_on_to_the_same_bytes(arrays)


def _of(found, case):
    return {name.partition("/")[2]: array for name, array in found.items() if name.partition("/")[0] == case}


def _weights_are_those_of_one_process(arrays):
    for case, count in [(case, 2) for case in SAME] + [(case, 4) for case in OF_FOUR if case in SAME]:
        found, expected = _of(arrays[count], case), _of(arrays[1], case)
        assert found.keys() == expected.keys()
        assert found
        for name, array in expected.items():
            assert np.abs(found[name] - array).max() <= 1e-6 * np.abs(array).max(), (case, count, name)


def _sums_in_order_have_the_bits_of_one_process(arrays):
    for count in (2, 4):
        found, expected = (_of(arrays[each], f"{count} pieces") for each in (count, 1))
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def _neither_replays_nor_buckets_nor_shards_change_bits(arrays):
    pairs = {
        "replayed": "sgd, normalized",
        "one bucket": "sgd",
        "sgd, shards": "sgd",
        "momentum, shards": "momentum",
        "adam, normalized, shards": "adam, normalized",
        "halves, shards": "halves",
        "in order, shards": "in order",
    }
    for kind, plain in pairs.items():
        for count in (2, 4):
            for name, array in _of(arrays[count], kind).items():
                np.testing.assert_array_equal(array, _of(arrays[count], plain)[name], err_msg=f"{kind} {name}")


def _statistics_of_shares_are_averaged(arrays):
    found = _of(arrays[2], "apart")
    for name, array in apart(2).items():
        np.testing.assert_allclose(found[name], array, atol=2e-6 * np.abs(array).max(), err_msg=name)
    whole = _of(arrays[1], "apart")
    assert np.abs(found["gamma"] - whole["gamma"]).max() > 1e-4  # one process takes the statistics of all images


def _checkpoints_of_shares_are_whole(arrays):
    """However many processes go on, with shares or without: the bytes of one process that was never stopped."""
    both = 2 * 4 * worker.Exact.NUMBERS  # float32 momenta and velocities
    expected = _of(arrays[1], "shared state")
    assert not np.array_equal(expected["middle"], expected["never stopped"])
    for count in (1, 2, 4):
        found = _of(arrays[count], "shared state")
        np.testing.assert_array_equal(found["middle"], expected["middle"])
        for name in {"never stopped", "shards", "whole", "gathered", "cut"} & {*found}:
            np.testing.assert_array_equal(found[name], expected["never stopped"], err_msg=f"{name}, {count} processes")
        for name in {"never stopped", "shards", "cut"} & {*found}:
            np.testing.assert_array_equal(found[f"bytes, {name}"], both // count, err_msg=name)
        np.testing.assert_array_equal(found["bytes, whole"], both)


def _runs_with_every_option_go_on_to_the_same_bytes(arrays):
    ran = {"every option": (1, 2, 4), "every option, shards": (1, 2)}
    for case, count in [(case, count) for case, counts in ran.items() for count in counts]:
        runs: dict[str, dict[str, np.ndarray]] = {}
        for name, array in _of(arrays[count], case).items():
            run, _, file = name.partition("/")
            runs.setdefault(run, {})[file] = array
        whole = runs.pop("whole")
        assert "weights.safetensors" in whole
        assert len(runs) == len(worker.STOPS)
        for run, found in runs.items():
            assert found.keys() == whole.keys()
            for file, array in whole.items():
                np.testing.assert_array_equal(found[file], array, err_msg=f"{case}, {count} processes, {run}, {file}")
