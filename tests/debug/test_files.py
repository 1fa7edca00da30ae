"""Traces as folders: the same values back, whole or not at all, and damaged ones refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import openmps as mps


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)


def _trace() -> mps.Trace:
    half, none = mps.MPSImageFeatureChannelFormat.FLOAT16, None
    rows = np.float32([1, np.nan])
    image = np.arange(8, dtype=np.float16).reshape(1, 2, 2, 2)
    image[0, 0, 0, 0] = np.inf
    return mps.Trace(
        [
            mps.TracedValue("conv1", "conv1", mps.TracedKind.IMAGE, "MPSCNNConvolutionNode", half, image),
            mps.TracedValue("a/b: ../c/weights", "a/b: ../c", mps.TracedKind.PARAMETER, "K", none, rows),
            mps.TracedValue("pool/saved", "pool", mps.TracedKind.STATE, "K", none, np.array([[1, 2]])),
        ],
        ["a note"],
    )  # fmt: skip


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = _trace()
    folder = mps.debug.save_trace(trace, tmp_path / "trace")
    found = mps.debug.load_trace(folder)
    assert list(found) == list(trace)
    assert found.notes == trace.notes
    for mine, other in zip(trace.entries, found.entries, strict=True):
        assert np.array_equal(mine.array, other.array, equal_nan=True)
        assert mine.array.dtype == other.array.dtype
        assert (mine.layer, mine.kind, mine.class_name) == (other.layer, other.kind, other.class_name)
        assert mine.channel_format is other.channel_format
    index = json.loads((folder / "index.json").read_text())
    assert [row["shape"] for row in index["values"]] == [[1, 2, 2, 2], [2], [1, 2]]
    assert index["values"][0]["not_finite"] == 1
    assert {path.name for path in folder.iterdir()} == {"index.json", *(row["file"] for row in index["values"])}


def test_nothing_is_left_of_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openmps.debug.files.write_atomic", fail)
    with pytest.raises(mps.MPSFileError, match="could not be written, got No space left"):
        mps.debug.save_trace(_trace(), tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


def test_folders_above_it_are_made(tmp_path: Path) -> None:
    folder = mps.debug.save_trace(_trace(), tmp_path / "traces" / "step")
    assert folder == tmp_path / "traces" / "step" and (folder / "index.json").is_file()
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["step"]


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(mps.MPSFileError, match="must be a new folder"):
        mps.debug.save_trace(_trace(), tmp_path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda index: index.update(format="other"), "must have the format"),
        (lambda index: index.update(values=3), "must list the values of a trace"),
        (lambda index: index["values"][0].pop("kind"), "must list the values of a trace"),
        (lambda index: index["values"][0].update(shape=[1]), "must be an array of shape"),
        (lambda index: index["values"][0].update(file="../nothing.npy"), "must be a file"),
        (lambda index: index["values"][0].update(format="float17"), "must list the values of a trace"),
    ],
)
def test_a_damaged_index_is_refused(damage, says: str, tmp_path: Path) -> None:
    folder = mps.debug.save_trace(_trace(), tmp_path / "trace")
    index = json.loads((folder / "index.json").read_text())
    damage(index)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(mps.MPSFileError, match=says):
        mps.debug.load_trace(folder)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mps.MPSFileError, match=r"must be the folder of a trace.*without index.json"):
        mps.debug.load_trace(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(mps.MPSFileError, match="must be JSON"):
        mps.debug.load_trace(tmp_path)
    with pytest.raises(mps.MPSTypeError, match="trace must be a Trace"):
        mps.debug.save_trace("trace", tmp_path / "new")  # pyright: ignore[reportArgumentType]
    folder = mps.debug.save_trace(_trace(), tmp_path / "torn")
    array = next(path for path in folder.iterdir() if path.suffix == ".npy")
    array.write_bytes(array.read_bytes()[:50])
    with pytest.raises(mps.MPSFileError):
        mps.debug.load_trace(folder)
