"""Checkpoint files: what they hold, what becomes of damaged and hostile ones, and which of them stay."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest

from openmps.core.training_state import Checkpointed, check_names, finite_number, numbers, whole_number
from openmps.errors import MPSArgumentError, MPSFileError, MPSTrainingWarning, MPSTypeError
from openmps.formats import atomic, paths
from openmps.formats.archive.container import pack, seal
from openmps.training.checkpoint import Checkpoint, CheckpointFolder


class Part:
    """Remembers a state; refuses one without ``count``."""

    def __init__(self, **state):
        self.state = state

    def training_state(self):
        return self.state

    def restore_training_state(self, state):
        whole_number("Part", state, "count")
        self.state = dict(state)


def _part(step=3):
    return Part(count=step, rate=0.1, kind="adam", row=np.arange(4, dtype=np.float32), pairs=np.ones((2, 2)))


def _checkpoint(step=3):
    return Checkpoint.of(step, {"layer": _part(step), "a.b": Part(count=0, c=np.ones(1, np.float32))}, {"seed": 7})


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch):
    """Whether files reach the disk is tested with `write_atomic`; waiting for it takes most of the time here."""
    monkeypatch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)


# --- one checkpoint --------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out(folder):
    file = folder.save(_checkpoint())
    assert file.name == "step-00000003.safetensors"
    found = folder.load(3)
    assert (found.step, found.about, found.path) == (3, {"seed": 7}, file)
    state = found.parts["layer"]
    assert {name: state[name] for name in ("count", "rate", "kind")} == {"count": 3, "rate": 0.1, "kind": "adam"}
    np.testing.assert_array_equal(state["row"], np.arange(4, dtype=np.float32))
    assert (state["row"].dtype, state["pairs"].dtype) == (np.float32, np.float64)
    part, other = Part(), Part()
    found.restore({"layer": part, "a.b": other})
    assert part.state["kind"] == "adam"
    assert isinstance(part, Checkpointed)


def test_floats_survive_to_the_last_bit(folder):
    values = {f"x{n}": float(value) for n, value in enumerate(np.random.default_rng(0).standard_normal(50))}
    folder.save(Checkpoint.of(1, {"p": Part(**values, least=5e-324)}))
    assert folder.load(1).parts["p"] == {**values, "least": 5e-324}


def test_arrays_keep_every_bit_of_nan_and_zero(folder):
    words = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1], np.uint32)
    folder.save(Checkpoint.of(1, {"p": Part(row=words.view(np.float32))}))
    np.testing.assert_array_equal(folder.load(1).parts["p"]["row"].view(np.uint32), words)


_GRID = np.arange(12, dtype=np.float32).reshape(3, 4)
LAYOUTS = {
    "transposed": _GRID.T,
    "strided": _GRID[:, ::2],
    "backwards": _GRID[::-1],
    "Fortran order": np.asfortranarray(_GRID),
    "broadcast": np.broadcast_to(_GRID[0], (3, 4)),
    "big-endian": _GRID.astype(">f4"),
    "big-endian integers": _GRID.astype(">i8"),
    "no axes": np.array(2.5),
    "empty": _GRID[:0],
    "halves": _GRID.astype(np.float16)[1:, 1:],
    "flags": (_GRID > 3).T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_every_layout_come_back(folder, layout):
    array = LAYOUTS[layout]
    folder.save(Checkpoint.of(1, {"p": Part(row=array)}))
    found = folder.load(1).parts["p"]["row"]
    np.testing.assert_array_equal(found, array, strict=array.dtype.isnative)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]), np.array([None]), np.ones(2, complex), np.ones(2, np.longdouble), np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]), np.ma.masked_array(_GRID, _GRID > 3),
    ],
    ids=lambda array: f"{type(array).__name__} of {array.dtype.name}",
)  # fmt: skip
def test_arrays_that_no_file_keeps_are_refused(array):
    with pytest.raises(MPSTypeError, match="part 'p', state 'row' must"):
        Checkpoint.of(1, {"p": Part(row=array)}).to_bytes()


@pytest.mark.parametrize("step", [-5, 3.5, True, 2**63, 2**70, "7", None, np.int64(3)])
def test_steps_are_checked_before_anything_goes(folder, step):
    folder.save(_checkpoint(1))
    folder.save(_checkpoint(2))
    with pytest.raises(MPSArgumentError, match="Checkpoint: step must be a whole number from 0 to 9223372036854775807"):
        folder.save(Checkpoint(step, {}))
    assert folder.steps() == [1, 2]


def test_the_largest_step(folder):
    folder.save(Checkpoint(2**63 - 1, {}))
    assert folder.newest().step == 2**63 - 1


def test_files_of_other_names_are_no_checkpoints(folder):
    folder.save(_checkpoint(1))
    for name in ("step-000000002.safetensors", "step-٠٠٠٠٠٠٠٣.safetensors", "step-00000004.safetensors.gz"):
        (folder.path / name).write_bytes(b"")
    assert folder.steps() == [1]


def test_names_are_text():
    for parts in ({1: {"x": 1}}, {"p": {1: 2}}):
        with pytest.raises(MPSTypeError, match="must have text as names"):
            Checkpoint(1, parts).to_bytes()


def test_what_does_not_read_back_removes_nothing(folder, monkeypatch):
    from openmps.training import checkpoint as module

    folder.save(_checkpoint(1), keep=1)
    pack = module.pack
    with monkeypatch.context() as patch:
        patch.setattr(module, "pack", lambda *contents: pack(*contents)[:-1] + b"?")
        with pytest.raises(MPSFileError, match="its checksum differs"):
            folder.save(_checkpoint(2), keep=1)
    assert folder.newest().step == 1


def test_a_refused_checkpoint_changes_nothing():
    first, second, third = _part(1), _part(2), _part(3)
    before = [dict(each.state) for each in (first, second, third)]
    checkpoint = Checkpoint(9, {"first": _part(9).state, "second": {"count": -1}, "third": _part(9).state})
    with pytest.raises(MPSFileError, match="part 'second' must fit"):
        checkpoint.restore({"first": first, "second": second, "third": third})
    for part, state in zip((first, second, third), before, strict=True):
        np.testing.assert_equal(part.state, state)


def test_a_part_that_stops_half_way_is_put_back():
    class Hasty(Part):
        def restore_training_state(self, state):
            self.state["row"][:] = state["row"]
            self.state["count"] = state["count"]
            if state["count"] == 9:
                raise RuntimeError("too late")

    part, other = Hasty(count=1, row=np.zeros(2)), _part(1)
    with pytest.raises(MPSFileError, match="part 'hasty' must fit, got too late"):
        Checkpoint(9, {"other": _part(9).state, "hasty": {"count": 9, "row": np.ones(2)}}).restore(
            {"other": other, "hasty": part}
        )
    np.testing.assert_equal((part.state, other.state["count"]), ({"count": 1, "row": np.zeros(2)}, 1))


def test_parts_that_cannot_be_put_back_are_named():
    class OneWay(Part):
        def restore_training_state(self, state):
            if state["count"] == 1:
                raise ValueError("never back")
            self.state = dict(state)

    with pytest.raises(MPSFileError, match="Make first anew: what was changed could not be put back"):
        Checkpoint(9, {"first": {"count": 9}, "second": {}}).restore({"first": OneWay(count=1), "second": _part()})


def test_a_checkpoint_keeps_the_numbers_of_its_moment():
    part = _part()
    checkpoint = Checkpoint.of(3, {"layer": part})
    part.state["row"][:] = 7
    np.testing.assert_array_equal(checkpoint.parts["layer"]["row"], np.arange(4, dtype=np.float32))


def test_names_that_meet_in_the_file_stay_apart(folder):
    parts = {"a.b": Part(c=np.zeros(1)), "a": Part(**{"b.c": np.ones(2)})}
    folder.save(Checkpoint.of(1, parts))
    found = folder.load(1).parts
    assert (found["a.b"]["c"].tolist(), found["a"]["b.c"].tolist()) == ([0.0], [1.0, 1.0])


def test_the_same_checkpoint_gives_the_same_bytes():
    assert _checkpoint().to_bytes() == _checkpoint().to_bytes()


def test_a_checkpoint_is_a_copy_of_the_moment():
    part = _part()
    checkpoint = Checkpoint.of(3, {"layer": part})
    part.state["count"] = 9
    assert checkpoint.parts["layer"]["count"] == 3


@pytest.mark.parametrize("value", [None, [1], np.float32(1), object()])
def test_a_state_holds_numbers_text_and_arrays_only(value):
    with pytest.raises(MPSTypeError, match="part 'p', state 'x' must be a number, text or a NumPy array, got"):
        Checkpoint.of(1, {"p": Part(x=value)}).to_bytes()


@pytest.mark.parametrize("about", [{"x": object()}, {"x": float("nan")}])
def test_a_description_that_is_no_json(about):
    with pytest.raises(MPSTypeError, match="contents must be values that JSON has"):
        Checkpoint.of(1, {}, about).to_bytes()


def test_parts_that_do_not_belong_are_named(folder):
    folder.save(_checkpoint())
    found = folder.load(3)
    with pytest.raises(MPSFileError, match=r"step-00000003\.safetensors must hold the parts .* misses 'other'"):
        found.restore({"layer": Part(), "a.b": Part(), "other": Part()})
    with pytest.raises(MPSFileError, match=r"must hold the parts layer, got a checkpoint that has 'a\.b'"):
        found.restore({"layer": Part()})
    strange = Checkpoint(1, {"layer": {"x": 1}})
    with pytest.raises(MPSFileError, match="part 'layer' must fit, got Part: state 'count' must be a whole number"):
        strange.restore({"layer": Part()})


# --- files that are not what they should be --------------------------------------------------------------------------


def test_every_cut_and_every_changed_byte_is_noticed():
    data = _checkpoint().to_bytes()
    for length in range(0, len(data), 7):
        with pytest.raises(MPSFileError):
            Checkpoint.from_bytes(data[:length])
    whole = Checkpoint.from_bytes(data)
    random = np.random.default_rng(1)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << int(random.integers(8))
        try:
            found = Checkpoint.from_bytes(bytes(changed))
        except MPSFileError:
            continue
        # A flipped bit in the padding or the case of an escape may leave the contents alone; nothing else may pass.
        assert (found.step, found.about, sorted(found.parts)) == (whole.step, whole.about, sorted(whole.parts))
        for name, state in whole.parts.items():
            assert str(found.parts[name]) == str(state)


INFINITE = '{"version": 1, "format": "openmps.checkpoint", "checkpoint_version": 1, "step": 1, "about": {"x": 1e999}, '
INFINITE += '"parts": {}}'


def _document(**changes):
    facts = {"format": "openmps.checkpoint", "checkpoint_version": 1, "step": 1, "about": {}, "parts": {}}
    return pack({**facts, **changes}, {"x": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it ends before its header does"),
        (b"\xff" * 8, "it ends before its header does"),
        ((2**62).to_bytes(8, "little") + b"{}", "it ends before its header does"),
        (b"\x02" + b"\0" * 7 + b"{}", "its header is not that of an archive"),
        (b"\x80\x04\x95" + b"\0" * 40, "it ends before its header does"),
        (pack({"root": 1, "objects": []}, {}), "must have the format 'openmps.checkpoint', got None"),
        (_document(checkpoint_version=0), "must have version 1, got 0. Go on with the openmps that wrote it"),
        (_document(checkpoint_version=2), "must have version 1, got 2"),
        (_document(version=9), "must be of version 1, got 9"),
        (_document(step=-1), "must describe a step and its parts"),
        (_document(step=True), "must describe a step"),
        (_document(step=1e300), "must describe a step"),
        (_document(parts=[1]), "must describe a step and its parts"),
        (_document(parts={"p": 1}), "must describe a step and its parts"),
        (_document(parts={"p": {"values": {}, "arrays": {"row": "missing"}}}), "must describe a step and its parts"),
        (_document(parts={"p": {"values": {"x": [1]}, "arrays": {}}}), "neither number nor text"),
        (_document(parts={"p": {"values": {}, "arrays": {"x": ["x"]}}}), "must describe a step and its parts"),
        (_document(about=3), "must describe a step and its parts"),
        (seal(INFINITE, {}), "must describe a step and its parts, in finite numbers"),
    ],
)
def test_what_is_no_checkpoint_is_an_error_with_its_name(folder, data, message):
    folder.path.mkdir()
    folder.file(1).write_bytes(data)
    with pytest.raises(MPSFileError, match=message) as caught:
        folder.load(1)
    assert str(folder.file(1)) in str(caught.value)


def test_a_document_as_deep_as_a_stack():
    data = _document()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header["__metadata__"]["openmps.archive"] = "0" * 64 + " " + "[" * 100_000
    text = json.dumps(header).encode()
    with pytest.raises(MPSFileError):
        Checkpoint.from_bytes(len(text).to_bytes(8, "little") + text + data[-8:])


def test_a_file_under_another_step_s_name(folder):
    folder.save(_checkpoint(3))
    folder.file(3).rename(folder.file(4))
    with pytest.raises(MPSFileError, match=r"step-00000004\.safetensors must be of step 4, as its name says, got 3"):
        folder.load(4)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_newest_stay(folder):
    for step in (0, 5, 10, 15):
        folder.save(_checkpoint(step), keep=3)
    assert folder.steps() == [5, 10, 15]
    folder.save(_checkpoint(20), keep=1)
    assert folder.steps() == [20]
    assert folder.newest().step == 20
    with pytest.raises(MPSArgumentError, match="keep must be a whole number from 1 on, got 0"):
        folder.save(_checkpoint(), keep=0)


def test_a_step_back_drops_what_lay_ahead(folder):
    for step in (10, 20):
        folder.save(_checkpoint(step), keep=5)
    folder.file(30).write_bytes(b"damaged")
    folder.save(_checkpoint(15), keep=1)
    assert folder.steps() == [15]


def test_nothing_is_removed_before_the_new_one_is_durable(folder, monkeypatch):
    events = []
    folder.save(_checkpoint(1), keep=1)
    unlink = atomic.Path.unlink
    monkeypatch.setattr(atomic, "_sync", lambda path, flags: events.append(f"flush {path.suffix or path.name}"))
    monkeypatch.setattr(
        atomic.Path, "unlink", lambda self, missing_ok=False: (events.append(f"remove {self.name}"), unlink(self))
    )
    folder.save(_checkpoint(2), keep=1)
    assert events == ["flush .tmp", "flush checkpoints", "remove step-00000001.safetensors"]


@pytest.mark.parametrize("step", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_last_good_one(folder, monkeypatch, step):
    folder.save(_checkpoint(1), keep=1)
    before = folder.file(1).read_bytes()

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    target = {"fsync": (atomic, "_sync"), "replace": (atomic.Path, "replace"), "write": (atomic, "_write_new")}[step]
    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        with pytest.raises(MPSFileError, match=r"step-00000002\.safetensors could not be written, got No space left"):
            folder.save(_checkpoint(2), keep=1)
    assert os.listdir(folder.path) == ["step-00000001.safetensors"]
    assert folder.file(1).read_bytes() == before
    assert folder.newest().step == 1


def test_a_file_that_cannot_be_removed_does_no_harm(folder, monkeypatch):
    folder.save(_checkpoint(1))
    with monkeypatch.context() as patch:
        patch.setattr(atomic.Path, "unlink", lambda *a, **k: (_ for _ in ()).throw(PermissionError(13, "no")))
        folder.save(_checkpoint(2), keep=1)
    assert folder.steps() == [1, 2]
    folder.save(_checkpoint(3), keep=1)
    assert folder.steps() == [3]


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(folder, monkeypatch):
    """It may be whole: nothing goes back behind it, so that nothing removes it as one of another path."""
    for step in (1, 2):
        folder.save(_checkpoint(step))
    access = os.access
    with monkeypatch.context() as patch:
        patch.setattr(paths.os, "access", lambda path, mode: "step-00000002" not in str(path) and access(path, mode))
        with pytest.raises(MPSFileError, match=r"step-00000002\.safetensors could not be read, got Permission denied$"):
            folder.newest()
    assert folder.steps() == [1, 2]
    assert folder.newest().step == 2


def test_no_checkpoints_yet(folder):
    assert (folder.steps(), folder.newest(), folder.sweep()) == ([], None, [])
    folder.path.mkdir()
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "step-1.safetensors").write_text("another's")
    assert (folder.steps(), folder.newest()) == ([], None)


def test_a_damaged_newest_one_falls_back_and_is_named(folder):
    for step in (1, 2, 3):
        folder.save(_checkpoint(step), keep=3)
    content = folder.file(3).read_bytes()
    folder.file(3).write_bytes(content[: len(content) // 2])
    changed = bytearray(folder.file(2).read_bytes())
    changed[-1] ^= 1
    folder.file(2).write_bytes(changed)
    with pytest.warns(MPSTrainingWarning) as warned:
        found = folder.newest()
    assert found.step == 1
    texts = [str(each.message) for each in warned]
    assert len(texts) == 2
    assert "step-00000003.safetensors is damaged" in texts[0]
    assert "step-00000002.safetensors is damaged or none of openmps: its checksum differs" in texts[1]
    assert all(text.endswith("Going back to the checkpoint of step 1.") for text in texts)


def test_none_whole_is_an_error(folder):
    for step in (1, 2):
        folder.save(_checkpoint(step))
        folder.file(step).write_bytes(b"")
    message = r"checkpoints must hold a whole checkpoint, got 2 damaged: .*step-00000002"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MPSFileError, match=message):
            folder.newest()


def test_a_folder_in_the_place_of_a_checkpoint_is_passed_over(folder):
    folder.save(_checkpoint(1))
    folder.file(2).mkdir()
    with pytest.warns(MPSTrainingWarning, match=r"step-00000002\.safetensors must be a file"):
        assert folder.newest().step == 1


def test_leftovers_of_a_killed_writer_are_ignored_and_swept(folder):
    folder.save(_checkpoint(1))
    names = [f".openmps-{digit * 16}.tmp" for digit in "0a"]
    for name in [*names, ".openmps-mine.tmp", "other.tmp"]:
        (folder.path / name).write_bytes(b"half")
    assert folder.newest().step == 1
    assert folder.sweep() == names
    assert sorted(os.listdir(folder.path)) == [".openmps-mine.tmp", "other.tmp", "step-00000001.safetensors"]


# --- what comes back out of a state ----------------------------------------------------------------------------------


def test_numbers_and_arrays_of_a_state_are_checked():
    state = {"n": 3, "x": 0.5, "row": np.ones((2, 3), np.float32), "word": "w", "yes": True, "inf": float("inf")}
    assert (whole_number("me", state, "n"), finite_number("me", state, "n"), finite_number("me", state, "x")) == (
        3,
        3,
        0.5,
    )
    assert numbers("me", state, "row", (None, 3)) is state["row"]
    check_names("me", state, set(state))
    for name in ("x", "word", "yes", "row", "missing"):
        with pytest.raises(MPSArgumentError, match=f"me: state '{name}' must be a whole number from 0 to"):
            whole_number("me", state, name)
    with pytest.raises(MPSArgumentError, match="from 0 to 2, got 3"):
        whole_number("me", state, "n", most=2)
    for name in ("word", "yes", "inf", "missing"):
        with pytest.raises(MPSArgumentError, match=f"state '{name}' must be a finite number"):
            finite_number("me", state, name)
    for name, shape, dtype in (
        ("row", (2, 2), np.float32),
        ("row", (2, 3), np.float64),
        ("row", (6,), np.float32),
        ("x", (1,), np.float32),
    ):
        with pytest.raises(MPSArgumentError, match=f"state '{name}' must be float"):
            numbers("me", state, name, shape, dtype)
    with pytest.raises(MPSArgumentError, match="state misses 'a', 'b'"):
        check_names("me", {"c": 1}, {"a", "b", "c"})
    with pytest.raises(MPSArgumentError, match="state must not hold 'c'"):
        check_names("me", {"c": 1}, set())
