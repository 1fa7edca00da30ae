"""write_atomic: the old file or the new one, whole, and nothing else in the folder."""

import os
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps import formats, training
from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats import atomic
from openmps.formats.atomic import flush, make_folder, remove_leftovers, write_all_atomic, write_atomic
from openmps.formats.folders import whole_folder


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


CONTENTS = [b"abc", bytearray(b"abc"), memoryview(b"abc"), [b"a", memoryview(b""), bytearray(b"bc")]]


@pytest.mark.parametrize("content", [*CONTENTS, lambda file: file.write(b"abc")])
def test_writes_and_replaces(tmp_path, content):
    path = tmp_path / "weights.dat"
    write_atomic(path, content)
    assert path.read_bytes() == b"abc"
    write_atomic(str(path), b"")
    assert path.read_bytes() == b""
    assert names(tmp_path) == ["weights.dat"]


def test_a_writer_may_close_the_file(tmp_path):
    def write(file):
        file.write(b"abc")
        file.close()

    write_atomic(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"abc"


@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_failing_writer_leaves_the_previous_file_and_its_own_error(tmp_path, failure):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the new")
        raise failure

    with pytest.raises(type(failure)) as caught:
        write_atomic(path, write)
    assert caught.value is failure
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failing_system_call_leaves_the_previous_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((atomic.os, "fsync", fail) if step == "fsync" else (atomic.Path, "replace", fail)))
    with pytest.raises(MPSFileError, match=r"a could not be written, got No space left on device") as caught:
        write_atomic(path, b"new")
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_disk_that_keeps_other_bytes_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(atomic, "_sync", lambda path, flags: path.is_file() and path.write_bytes(b"new?"))
    parts = [b"ne", b"w!"], [b"new"], [b"new?", b"!"]
    for content in (b"new!", bytearray(b"ne"), memoryview(b"n.e.w.")[::2], memoryview(np.ones(3)), *parts):
        with pytest.raises(MPSFileError, match="a could not be written, got it reads back otherwise"):
            write_atomic(path, content)
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["a"])


def test_a_temporary_file_that_cannot_be_removed_hides_no_error(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(atomic.Path, "replace", fail)
    monkeypatch.setattr(atomic.Path, "unlink", fail)
    with pytest.raises(MPSFileError, match="a could not be written, got Read-only file system"):
        write_atomic(tmp_path / "a", b"new")
    with pytest.raises(ZeroDivisionError):
        write_atomic(tmp_path / "a", lambda file: 1 / 0)


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o400])
def test_nobody_may_read_the_temporary_file_who_may_not_read_the_file(tmp_path, monkeypatch, permissions):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(permissions)
    seen = []

    def note(*arguments):
        seen.extend(stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir() if entry != path)

    monkeypatch.setattr(atomic, "_sync", note)
    write_atomic(path, lambda file: note())
    assert len(seen) == 2 and not any(mode & ~(permissions | stat.S_IWUSR) for mode in seen)
    assert stat.S_IMODE(path.stat().st_mode) == permissions


def test_synchronises_the_file_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, atomic.Path.replace

    def note_fsync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(self, target):
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(atomic.os, "fsync", note_fsync)
    monkeypatch.setattr(atomic.Path, "replace", note_replace)
    write_atomic(tmp_path / "a", b"x")
    assert calls == ["file", "rename", "folder"]


def test_readers_see_whole_files_while_a_writer_is_killed(tmp_path):
    path = tmp_path / "a"
    program = textwrap.dedent("""
        import itertools, sys
        from openmps.formats.atomic import write_atomic
        for number in itertools.cycle(b"abc"):
            write_atomic(sys.argv[1], bytes([number]) * 300_000)
    """)
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        while not path.exists():
            assert writer.poll() is None
        for _ in range(200):
            content = path.read_bytes()
            assert len(content) == 300_000
            assert len(set(content)) == 1
    finally:
        writer.kill()
        writer.wait()
    content = path.read_bytes()
    assert (len(content), len(set(content))) == (300_000, 1)


def test_keeps_permissions_and_symbolic_links(tmp_path):
    real = tmp_path / "real"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(real)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_several_files_are_several(tmp_path):
    """Two names of one file, which is there, or is not yet."""
    os.symlink("b", tmp_path / "a")
    for _ in range(2):
        with pytest.raises(MPSFileError, match="a must be another file than the others, got one of them"):
            write_all_atomic({tmp_path / "a": b"1", tmp_path / "b": b"2"})
        assert not (tmp_path / "b").exists() or (tmp_path / "b").read_bytes() == b"old"
        (tmp_path / "b").write_bytes(b"old")
    assert names(tmp_path) == ["a", "b"]


def test_a_file_of_a_folder_that_fails_is_named_as_it_would_be(tmp_path):
    def fill():
        with whole_folder(tmp_path / "new", "test") as made:
            write_atomic(made / "no" / "a", b"1")

    with pytest.raises(MPSFileError, match=r"/new/no/a must be in a folder that exists. Make .*/new/no first"):
        fill()
    assert names(tmp_path) == []


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomic(tmp_path / "a", b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_refuses_folders_missing_folders_and_other_content(tmp_path):
    with pytest.raises(MPSFileError, match=r"must be in a folder that exists.*Make .*missing first"):
        write_atomic(tmp_path / "missing" / "a", b"x")
    with pytest.raises(MPSFileError, match="must be a plain file or a new name, got a folder or device"):
        write_atomic(tmp_path, b"x")
    for content in ("text", iter([b"x"]), 7, [b"x", "text"], {"x": b"x"}):  # parts are gone through twice
        with pytest.raises(MPSTypeError, match="must be bytes, a list of them, or a function that writes, got "):
            write_atomic(tmp_path / "a", content)
    with pytest.raises(MPSFileError, match="could not be written"):
        write_atomic(tmp_path / ("n" * 300), b"x")
    assert names(tmp_path) == []


# --- after a crash -------------------------------------------------------------------------------------------------


def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "weights.dat"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half")
        raise SystemExit

    with monkeypatch.context() as killed:  # a killed process does not clean up
        killed.setattr(atomic.Path, "unlink", lambda *arguments, **options: None)
        with pytest.raises(SystemExit):
            write_atomic(path, write)
    (tmp_path / ".openmps-notes.tmp").write_bytes(b"mine")
    assert len(names(tmp_path)) == 3
    (removed,) = remove_leftovers(tmp_path)
    assert removed.endswith(".tmp")
    assert names(tmp_path) == [".openmps-notes.tmp", "weights.dat"]
    assert path.read_bytes() == b"old"
    assert remove_leftovers(tmp_path) == remove_leftovers(tmp_path / "missing") == []
    with pytest.raises(MPSFileError, match=r"weights\.dat could not be cleared, got Not a directory"):
        remove_leftovers(path)


def test_a_folder_is_made_and_its_parent_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(atomic, "_sync", lambda path, flags: flushed.append(path))
    for _ in range(2):
        make_folder(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    assert flushed == [tmp_path]
    with pytest.raises(MPSFileError, match="other could not be made, got No such file or directory"):
        make_folder(tmp_path / "missing" / "other")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MPSFileError, match="file could not be made, got File exists"):
        make_folder(tmp_path / "file")


def test_flushing_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    flush(path)
    with pytest.raises(MPSFileError, match="b could not be written, got No such file"):
        flush(tmp_path / "b")


@pytest.mark.parametrize("lasting", [False, True])
def test_a_file_that_the_system_does_not_tell_of_is_not_taken_for_a_missing_one(tmp_path, monkeypatch, lasting):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o640)
    status = os.stat

    def fail(asked, *arguments, **options):
        if str(asked).startswith(str(path) if not lasting else str(tmp_path)):
            raise OSError(5, "Input/output error")
        return status(asked, *arguments, **options)

    with monkeypatch.context() as failing:
        failing.setattr(atomic.os, "stat", fail)
        with pytest.raises(MPSFileError, match="a could not be written, got Input/output error"):
            write_atomic(path, b"new")
        if lasting:
            with pytest.raises(MPSFileError, match="new could not be made, got Input/output error"):
                make_folder(tmp_path / "new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"old", 0o640)


SAVERS = {
    "save_texture": lambda path: mps.save_texture(
        mps.MPSImage.from_numpy(mps.mtl_device("cpu"), np.zeros((1, 2, 2, 1), np.uint8)), path.with_suffix(".png")
    ),
    "save_dat": lambda path: formats.save_dat(path, np.zeros(2)),
    "save_tensors": lambda path: formats.save_tensors(path.with_suffix(".npz"), {"a": np.zeros(2)}),
    "save_safetensors": lambda path: formats.save_safetensors(path, {"a.weights": np.zeros(2)}),
    "MPSKeyedArchiver.archive": lambda path: mps.MPSKeyedArchiver.archive(
        mps.MPSCNNNeuronReLU(mps.mtl_device("cpu"), 0.0), path
    ),
    "save_torch_module": lambda path: training.save_torch_module(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), path, height=2, width=2, channels=1
    ),
}


@in_one_test
@pytest.mark.parametrize("who", SAVERS)
def test_who_saves_names_itself(who, tmp_path):
    """Where the file cannot be written, and not the function behind it, which nobody called."""
    with pytest.raises(MPSFileError, match=f"^{who}: .* must be in a folder that exists"):
        SAVERS[who](tmp_path / "none" / "a")
