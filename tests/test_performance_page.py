"""The page of performance says what the results say, and the benchmarks' figures are what they are called."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import forked  # noqa: E402
from bench import growth, harness, kernel_cases, kernels, page, training  # noqa: E402

from catalogue import SAMPLES  # noqa: E402
from in_one_test import in_one_test  # noqa: E402
from openmps.runtime.devices import mtl_device  # noqa: E402


def test_the_page_is_that_of_the_results() -> None:
    assert page.PAGE.read_text() == page.page(), "python -m bench.page"


@in_one_test
@pytest.mark.parametrize("path", sorted(harness.RESULTS.glob("*.jsonl")), ids=lambda path: path.name)
def test_every_result_says_where_it_was_measured(path: Path) -> None:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if path.stem in ("training", "kernels", "growth"):
            assert {"bench", "device", "machine", "versions", "commit", "work"} <= set(row)


def test_benchmarks_that_are_named_start_as_they_are_named() -> None:
    """From the root of the project, with nothing in the environment; `bench.page` has no options, and writes."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.py")]
    named = {name for each in pages for name in re.findall(r"-m (bench\.\w+)", each.read_text())} - {"bench.page"}
    assert len(named) > 6
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = forked.run("-c", _START, *sorted(named), cwd=ROOT, env=environment, has_openmps=True)
    assert (done.returncode, done.stdout.count("usage: ")) == (0, len(named)), done.stderr


_START = """
import runpy, sys
names, paths = sys.argv[1:], list(sys.path)
for name in names:
    sys.argv, sys.path[:] = [name, "--help"], paths
    try:
        runpy.run_module(name, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""
"""Each benchmark's help, in one process as if in one of its own."""


def test_figures_are_quartiles_of_the_turns() -> None:
    found = harness.figures([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found == {"median_ms": 3.0, "low_ms": 1.5, "high_ms": 4.5, "least_ms": 1.0}


def test_the_ratio_is_that_of_the_best_peer_turn_by_turn() -> None:
    turns = {"openmps": [1.0, 2.0, 4.0], "slow": [9.0, 9.0, 9.0], "fast": [2.0, 6.0, 4.0]}
    found: dict[str, Any] = {name: {**harness.figures(values), "turns": values} for name, values in turns.items()}
    found["absent"] = {"skipped": "not here"}
    row = harness.compared(found)
    assert (row["best_peer"], row["ratio"]) == ("fast", 2.0)
    assert all("turns" not in each for each in row["contenders"].values())


def test_turns_are_taken_in_order_and_the_first_ones_do_not_count() -> None:
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in ("a", "b")}
    found = harness.by_turns(calls, rounds=3, times=2)
    assert seen == ["a", "a", "b", "b"] * (3 + harness.WARM_TURNS)
    assert [len(row["turns"]) for row in found.values()] == [3, 3]


def test_processes_take_turns_and_say_why_they_do_not() -> None:
    contenders = [
        harness.Contender(name, "contenders_for_tests", of) for name, of in (("openmps", "steps"), ("a", "skipped"))
    ]
    found = harness.by_processes(contenders, rounds=2, steps=3)
    ours = found["openmps"]
    assert len(ours["turns"]) == 2
    assert ours["peak_MiB"] > 0
    assert ours["first_step_s"] >= 0
    assert min(ours["turns"]) >= 1.0  # milliseconds a step, and a step sleeps for one
    assert found["a"] == {"skipped": "a reason"}


@pytest.mark.parametrize("missing", [("no_such_module_anywhere", "steps"), ("bench.harness", "no_such_function")])
def test_a_process_says_what_it_lacks(missing: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    harness._serve(json.dumps([*missing, {}, None, "wall"]))
    said = json.loads(capsys.readouterr().out.removeprefix("bench>"))
    assert [*said] == ["skipped"] and any(each in said["skipped"] for each in missing)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_work_has_peers(device: str) -> None:
    tasks = [task for task in training.TASKS.values() if device in task.devices]
    assert tasks
    for task in tasks:
        names = [each.name for each in training.contenders(task, device)]
        assert names[0] == harness.OURS
        assert len(set(names)) == len(names) >= 3


def test_every_kernel_is_measured_or_has_a_reason() -> None:
    measured = {case.kernel.partition(",")[0] for case in kernel_cases.CASES}
    named = {kernel.__name__ for kernel in SAMPLES}
    assert measured | set(kernel_cases.WITHOUT) == named
    assert measured.isdisjoint(kernel_cases.WITHOUT)


@in_one_test
@pytest.mark.parametrize("case", kernel_cases.CASES, ids=lambda case: case.kernel)
def test_a_kernel_and_its_call_compute_the_same(case: kernel_cases.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """`measure` raises where the numbers differ; those of the gradient too."""
    monkeypatch.setattr(kernels, "TURN", 5e-4)  # seconds, some calls: figures are not what is tested
    size = kernel_cases.Size(2, 8, 6)
    for gradient in (False, True) if case.gradient is not None else (False,):
        row = kernels.measure(case, size, mtl_device("cpu"), 2, gradient=gradient)
        assert set(row["contenders"]) == {harness.OURS, kernels.BARE}
        assert row["ratio"] > 0


def test_growth_measures_the_same_network() -> None:
    chain = growth.Chain(batch=2, side=4, channels=4, length=2)
    for step in (growth.ours(chain, mtl_device("cpu")), growth.eager(chain, "cpu")):
        step()
        step()


def test_growth_sets_the_threads_of_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, object]] = []
    monkeypatch.setattr(growth, "record", lambda name, device, row: found.append(row))
    monkeypatch.setattr(growth.os, "cpu_count", lambda: 2)
    before = torch.get_num_threads()
    try:
        growth.main(["--along", "threads", "--turns", "1"])
    finally:
        torch.set_num_threads(before)
    assert [(row["along"], row["at"], row["threads"]) for row in found] == [("threads", 1, 1), ("threads", 2, 2)]
    assert growth.points("threads", "cuda") == ()
