"""Run folders: never overwritten, readable after any interruption, damage named."""

import json
import math
import os
import re
import signal
import subprocess
import textwrap
import threading
from pathlib import Path

import forked
import numpy as np
import pytest
import torch

from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.training.run_folder import RunFolder

CONFIG = {"network": "digits", "classes": ("0", "NaN"), "options": {"rate": 0.001, "seed": np.int64(3)}}
ARRAYS = {"conv1.weights": np.ones((2, 3, 3, 1)), "conv1.biases": np.zeros(2), "fc.weights": np.ones((4, 1, 1, 2))}


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "runs", CONFIG, name="first")


def test_create_and_open_give_the_same_config(run):
    again = RunFolder.open(str(run.path))
    for folder in (run, again):
        assert folder.config == {
            "network": "digits",
            "classes": ["0", "NaN"],
            "options": {"rate": 0.001, "seed": 3},
        }
        folder.config["options"]["rate"] = 7
        assert folder.config["options"]["rate"] == 0.001
    assert again.created == run.created
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", run.created)


def test_an_existing_folder_is_never_touched(run):
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(MPSFileError, match=r"runs/first must be new: a run is never overwritten"):
        RunFolder.create(run.path.parent, {}, name="first")
    (run.path.parent / "file").write_bytes(b"mine")
    (run.path.parent / "empty").mkdir()
    for name in ("file", "empty"):
        with pytest.raises(MPSFileError, match="must be new"):
            RunFolder.create(run.path.parent, {}, name=name)
    assert (run.path / "run.json").read_bytes() == before
    assert sorted(p.name for p in run.path.parent.iterdir()) == ["empty", "file", "first"]


def test_names_from_the_time_never_collide(tmp_path):
    runs = []
    threads = [threading.Thread(target=lambda: runs.append(RunFolder.create(tmp_path, {}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in runs}) == 8
    for folder in runs:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?", folder.path.name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/abs"])
def test_names_of_more_than_one_folder_are_refused(tmp_path, name):
    with pytest.raises(MPSArgumentError, match="must be the name of one folder"):
        RunFolder.create(tmp_path, {}, name=name)


def test_what_json_cannot_hold_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(MPSTypeError, match=r"config\['a'\]\[1\] must be a number, a string.*got object"):
        RunFolder.create(tmp_path / "runs", {"a": [1, object()]})
    with pytest.raises(MPSTypeError, match="must have strings as keys, got 1"):
        RunFolder.create(tmp_path / "runs", {"a": {1: 2}})
    with pytest.raises(MPSArgumentError, match="must not use the keys format, version, created, got version"):
        RunFolder.create(tmp_path / "runs", {"version": 3})
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for parent in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(MPSFileError, match="file must take a new folder, got a file. Give another parent"):
            RunFolder.create(parent, {})


def test_a_parent_that_the_system_does_not_tell_of(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    status = os.stat

    def fail(asked, *arguments, **options):
        if str(asked).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied")
        return status(asked, *arguments, **options)

    with monkeypatch.context() as failing:
        failing.setattr(os, "stat", fail)
        with pytest.raises(MPSFileError, match="runs must take a new folder, got (Not a directory|Permission denied)"):
            RunFolder.create(tmp_path / "file" / "runs", {})


def test_a_failing_description_leaves_no_folder(tmp_path, monkeypatch):
    def fail(path, content):
        raise MPSFileError("write_atomic", str(path), "could not be written")

    monkeypatch.setattr("openmps.training.run_folder.write_atomic", fail)
    with pytest.raises(MPSFileError, match="could not be written"):
        RunFolder.create(tmp_path, {}, name="a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a run folder, with a run.json"),
        (b"", "run.json must be JSON"),
        (b'{"format": "openmps.run", "ver', "run.json must be JSON"),
        (b"\xff\xfe", "run.json must be JSON"),
        (b"[" * 100_000, "run.json must be JSON"),
        (b"[1]", "must have the format 'openmps.run', got None"),
        (b'{"format": "other"}', "must have the format 'openmps.run', got 'other'"),
        (b'{"format": "openmps.run", "version": 2}', "must have version 1, got 2. Use the openmps that wrote it"),
    ],
)
def test_damaged_descriptions_are_named(run, content, message):
    file = run.path / "run.json"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(MPSFileError) as caught:
        RunFolder.open(run.path)
    assert message in str(caught.value)
    assert str(run.path) in str(caught.value)


def test_opening_what_is_no_folder(tmp_path, run):
    with pytest.raises(MPSFileError, match="must be a folder, got nothing there"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(MPSFileError, match="must be a folder, got a file"):
        RunFolder.open(run.path / "run.json")
    (tmp_path / "other" / "run.json").mkdir(parents=True)
    with pytest.raises(MPSFileError, match=r"run\.json must be a file, got a folder or device$"):
        RunFolder.open(tmp_path / "other")


# --- metrics -------------------------------------------------------------------------------------------------------


def test_metrics_come_back_in_order(run):
    assert run.read_metrics() == []
    run.log({"iteration": 1, "loss": np.float32(0.5), "name": "ü\u2028\n", "ok": np.bool_(True), "none": None})
    run.log({"iteration": torch.tensor(2), "counts": np.eye(2, dtype=np.int64), "pair": (1, [2.5])})
    expected = [
        {"iteration": 1, "loss": 0.5, "name": "ü\u2028\n", "ok": True, "none": None},
        {"iteration": 2, "counts": [[1, 0], [0, 1]], "pair": [1, [2.5]]},
    ]
    assert run.read_metrics() == RunFolder.open(run.path).read_metrics() == expected
    for line in run.metrics_path.read_text().splitlines():
        json.loads(line)


def test_values_that_are_not_finite_survive_as_strict_json(run):
    run.log({"loss": math.nan, "up": math.inf, "down": np.float32(-np.inf)})
    text = run.metrics_path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"loss": "NaN", "up": "Infinity", "down": "-Infinity"}
    (record,) = run.read_metrics()
    assert math.isnan(record["loss"])
    run.log({"by class": [1.0, math.nan, {"worst": -math.inf}]})
    first, nan, last = run.read_metrics()[-1]["by class"]
    assert first == 1.0 and math.isnan(nan) and last == {"worst": -math.inf}
    assert (record["up"], record["down"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("cut", range(1, 25))
def test_a_torn_last_line_is_dropped_and_cut_off_by_the_next(run, cut):
    for iteration in (1, 2):
        run.log({"iteration": iteration, "x": 1})
    content = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(content[:-cut])
    torn = cut > 1  # with the line feed alone missing, the record is whole
    kept = [{"iteration": 1, "x": 1}] if torn else [{"iteration": 1, "x": 1}, {"iteration": 2, "x": 1}]
    again = RunFolder.open(run.path)
    assert again.read_metrics() == kept
    again.log({"iteration": 3})
    assert again.read_metrics() == [*kept, {"iteration": 3}]
    assert run.metrics_path.read_bytes().count(b"\n") == len(kept) + 1


@pytest.mark.parametrize(
    "broken", [b'{"a": 1', b"", b"[1]", b"\xff", b"\0\0\0", b"[" * 100_000, b"1", b'{"a":' * 65 + b"1" + b"}" * 65]
)
@pytest.mark.parametrize("line", [1, 2, 3])
def test_an_earlier_broken_line_names_file_and_line(run, line, broken):
    lines = [b'{"i": 1}', b'{"i": 2}', b'{"i": 3}']
    lines[line - 1] = broken
    run.metrics_path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(MPSFileError) as caught:
        run.read_metrics()
    assert f"{run.metrics_path} line {line} must be a JSON object" in str(caught.value)


def test_what_cannot_be_logged_leaves_no_trace(run):
    run.log({"a": 1})
    for bad in ({"a": object()}, {"a": {1: 2}}, {2: 1}, {"a": b"bytes"}):
        with pytest.raises(MPSTypeError, match="record"):
            run.log(bad)
    assert run.read_metrics() == [{"a": 1}]


def test_a_disk_that_fails_in_a_new_folder_is_the_error(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(5, "Input/output error")

    for place in ("os.open", "Path.unlink"):
        monkeypatch.setattr(f"openmps.formats.atomic.{place}", fail)
    monkeypatch.setattr("openmps.training.run_folder.Path.rmdir", fail)
    with pytest.raises(MPSFileError, match=r"run\.json could not be written, got Input/output error"):
        RunFolder.create(tmp_path, {"a": 1}, name="first")


@pytest.mark.parametrize("record", [None, 5, [1], "NaN", np.ones(2), torch.ones(2), ({"a": 1},)], ids=repr)
def test_a_record_is_a_mapping(run, record):
    run.log({"a": 1})
    with pytest.raises(MPSTypeError, match="record must be a mapping of names to values, got"):
        run.log(record)
    assert run.read_metrics() == [{"a": 1}]


TEXTS = ["NaN", "Infinity", "-Infinity", "'NaN", "''-Infinity", "nan", "", "'", "'x", "\ud800", "\u2028", "Ω\n\0"]
LEAVES = [None, True, 0, -(2**70), 1.5, math.inf, -math.inf, 5e-324, *TEXTS]


def test_whatever_is_logged_comes_back(run):
    """Random records of every kind of value: what `log` takes, `read_metrics` gives back, and it refuses no file."""
    random = np.random.default_rng(4)

    def value(depth):
        kind = int(random.integers(8)) if depth else 7
        if kind < 2:
            return [value(depth - 1) for _ in range(kind + 1)]
        if kind < 4:
            return {TEXTS[random.integers(len(TEXTS))]: value(depth - 1) for _ in range(kind - 1)}
        return LEAVES[random.integers(len(LEAVES))]

    records = [{"value": value(5)} for _ in range(300)]
    for record in records:
        run.log(record)
    assert run.read_metrics() == records


@pytest.mark.parametrize("value", [10**5000, torch.empty(2, device="meta"), np.array([None, object()])], ids=type)
def test_values_that_no_line_can_hold(run, value):
    with pytest.raises(MPSTypeError, match="record"):
        run.log({"a": 1, "b": value})
    assert run.read_metrics() == []


def test_deep_records(run):
    deep = {"a": 1}
    for _ in range(63):
        deep = {"a": deep}
    run.log(deep)
    endless = [1]
    endless.append(endless)
    for bad in ({"a": deep}, {"a": endless}):
        with pytest.raises(MPSTypeError, match="must be no deeper than 64 lists or mappings in one another"):
            run.log(bad)
        with pytest.raises(MPSTypeError, match="must be no deeper than 64"):
            RunFolder.create(run.path.parent, bad, name="second")
    assert run.read_metrics() == [deep]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of Unix")
def test_metrics_in_a_pipe_are_refused_and_hang_nobody(run):
    os.mkfifo(run.metrics_path)
    for work in (lambda: run.log({"a": 1}), run.read_metrics):
        with pytest.raises(MPSFileError, match="must be a file, got a folder or device"):
            work()


def test_a_description_holds_finite_numbers(tmp_path):
    with pytest.raises(MPSTypeError, match=r"config\['rate'\] must be finite: JSON has no other numbers, got nan"):
        RunFolder.create(tmp_path, {"rate": math.nan})


def test_a_full_disk_is_named_and_the_torn_line_mended(run, monkeypatch):
    from openmps.training import json_lines

    run.log({"a": 1})
    write = json_lines.os.write
    monkeypatch.setattr(json_lines.os, "write", lambda descriptor, line: write(descriptor, line[:4]))
    with pytest.raises(MPSFileError, match=r"metrics\.jsonl must take a line of 9 bytes, got room for 4"):
        run.log({"a": 2})
    monkeypatch.undo()
    assert run.read_metrics() == [{"a": 1}]
    run.log({"a": 3})
    assert run.read_metrics() == [{"a": 1}, {"a": 3}]


# --- weights -------------------------------------------------------------------------------------------------------


def test_weights_come_back_from_both_forms(run):
    run.save_weights(ARRAYS)
    found = RunFolder.open(run.path).load_weights({name: array.shape for name, array in ARRAYS.items()})
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        raw = (run.path / f"{name.replace('.', '_')}.dat").read_bytes()
        assert raw == array.astype("<f4").tobytes()
    assert sorted(path.name for path in run.path.iterdir()) == [
        "conv1_biases.dat",
        "conv1_weights.dat",
        "fc_weights.dat",
        "run.json",
        "weights.safetensors",
    ]


def test_weights_of_another_network_or_none(run):
    with pytest.raises(MPSFileError, match=r"must hold weights.safetensors.*ended before it saved any weights"):
        run.load_weights()
    run.save_weights(ARRAYS)
    with pytest.raises(MPSFileError, match=r"array 'fc\.weights' must have shape \(4, 2, 2, 2\), got \(4, 1, 1, 2\)"):
        run.load_weights({**{name: array.shape for name, array in ARRAYS.items()}, "fc.weights": (4, 2, 2, 2)})


def test_a_label_that_is_no_file_name_is_refused_before_anything_is_written(run):
    with pytest.raises(MPSArgumentError, match="must be usable as a file name"):
        run.save_weights({**ARRAYS, "../../x.weights": np.ones(1)})
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_run_that_is_killed_at_any_moment_stays_usable(tmp_path):
    program = textwrap.dedent("""
        import itertools, sys
        import numpy as np
        from openmps.training.run_folder import RunFolder
        run = RunFolder.create(sys.argv[1], {"network": "n"}, name="run")
        for step in itertools.count(1):
            run.log({"step": step, "text": "x" * 5000})
            run.save_weights({"a.weights": np.full(50_000, float(step)), "a.biases": np.full(3, float(step))})
            if step == 1:
                print("ready", flush=True)
    """)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        child = forked.Process("-c", program, folder, stdout=subprocess.PIPE)
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
        threading.Event().wait(0.05 + 0.037 * attempt)
        child.kill()
        run = RunFolder.open(folder / "run")
        steps = [line["step"] for line in run.read_metrics()]
        assert steps == list(range(1, len(steps) + 1))
        weights = run.load_weights({"a.weights": (50_000,), "a.biases": (3,)})
        step = weights["a.biases"][0]
        assert step in (len(steps), len(steps) - 1)
        assert (weights["a.weights"] == step).all()
        raw = np.fromfile(run.path / "a_weights.dat", dtype="<f4")
        assert (raw == raw[0]).all()
        assert raw.size == 50_000
        run.log({"step": -1})
        assert len(run.read_metrics()) == len(steps) + 1


# --- going on with a run -------------------------------------------------------------------------------------------


def test_metrics_are_cut_between_two_records(run):
    assert run.flush_metrics() == 0
    run.cut_metrics(0)
    lengths = []
    for step in range(3):
        run.log({"step": step})
        lengths.append(run.flush_metrics())
    assert lengths == [len(b'{"step": 0}\n') * n for n in (1, 2, 3)]
    again = RunFolder.open(run.path)
    again.cut_metrics(lengths[1])
    again.log({"step": "next"})
    assert [line["step"] for line in again.read_metrics()] == [0, 1, "next"]
    for length in (lengths[0] + 1, 10**6):
        with pytest.raises(MPSFileError, match=rf"must hold {length} bytes of whole lines, .*, got \d+ bytes"):
            again.cut_metrics(length)
    again.cut_metrics(0)
    assert again.read_metrics() == []


def test_the_description_can_be_amended(run):
    run.amend({"options": {"rate": np.float32(0.5)}, "more": [1]})
    again = RunFolder.open(run.path)
    assert again.config == {"network": "digits", "classes": ["0", "NaN"], "options": {"rate": 0.5}, "more": [1]}
    assert again.created == run.created
    with pytest.raises(MPSArgumentError, match="must not use the keys"):
        run.amend({"created": "yesterday"})


@pytest.mark.parametrize("name", ["weights.safetensors", "conv1_weights.dat"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_cannot_be_replaced_is_told_before_the_training(run, name, make):
    make(run.path / name)
    with pytest.raises(MPSFileError, match="must be a plain file or a new name"), run.in_training():
        pytest.fail("the training has begun")


def test_a_run_is_trained_by_one_at_a_time(run):
    other = RunFolder.open(run.path)
    with (
        run.in_training(),
        pytest.raises(MPSFileError, match=r"first must not be in training already, got a lock that is held. Wait"),
        other.in_training(),
    ):
        pass
    with other.in_training():
        pass
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_the_lock_of_a_killed_process_is_gone(run):
    program = (
        "import sys, time\nfrom openmps.training.run_folder import RunFolder\n"
        "with RunFolder.open(sys.argv[1]).in_training():\n    print('ready', flush=True)\n    time.sleep(100)\n"
    )
    child = forked.Process("-c", program, run.path, stdout=subprocess.PIPE)
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
    with pytest.raises(MPSFileError, match="must not be in training already"), run.in_training():
        pass
    child.kill()
    with run.in_training():
        pass


def test_a_file_system_without_locks_lets_everybody_in(run, monkeypatch):
    from openmps.formats import locks

    def unsupported(descriptor, operation):
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(locks._fcntl, "flock", unsupported)
        with run.in_training(), RunFolder.open(run.path).in_training():
            pass
    monkeypatch.setattr(locks, "_fcntl", None)
    with run.in_training(), RunFolder.open(run.path).in_training():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_no_part_in_the_lock(tmp_path):
    """It outlives the training, and leaves its context while the training goes on."""
    script = """
    import os, sys, time
    from openmps.training.run_folder import RunFolder
    path, way = sys.argv[1:]
    with RunFolder.open(path).in_training():
        if (child := os.fork()) == 0 and way == "outlives":
            time.sleep(100)
            os._exit(0)
        elif child:
            if way == "leaves":
                os.waitpid(child, 0)
            print(child, flush=True)
            while way == "leaves" and not os.path.exists("go"):
                time.sleep(0.01)
    """
    run = RunFolder.create(tmp_path, {}, name="run")
    for way in ("outlives", "leaves"):
        process = forked.Process("-c", textwrap.dedent(script), run.path, way, cwd=tmp_path, stdout=subprocess.PIPE)
        with process.stdout:
            child = int(process.stdout.readline())
        if way == "outlives":
            assert process.wait() == 0
            with run.in_training():
                pass
            os.kill(child, signal.SIGKILL)
        else:
            with pytest.raises(MPSFileError, match="must not be in training already"), run.in_training():
                pass
            (tmp_path / "go").touch()
            assert process.wait() == 0
            with run.in_training():
                pass


def test_metrics_that_the_system_does_not_tell_of_are_not_taken_for_none(tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path, {}, name="run")
    run.log({"epoch": 1})
    status = os.stat

    def fail(path, *arguments, **options):
        if str(path).endswith("metrics.jsonl"):
            raise OSError(5, "Input/output error")
        return status(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", fail)
    for action in (run.read_metrics, run.flush_metrics, lambda: run.cut_metrics(0)):
        with pytest.raises(MPSFileError, match=r"metrics\.jsonl could not be read, got Input/output error"):
            action()
