"""Folders of captures and goldens: what is written is read again, and hostile files are refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from fake_device import dump
from in_one_test import in_one_test

FORMATS = {"unorm8": np.uint8, "unorm16": np.uint16, "float16": np.float16, "float32": np.float32}


def images() -> list[mps.debug.CapturedImage]:
    rng = np.random.default_rng(0)
    return [
        mps.debug.CapturedImage(name, mps.MPSImageFeatureChannelFormat[name.upper()],
                                (100 * rng.random((2, 3, 4, 5))).astype(kind))
        for name, kind in FORMATS.items()
    ]  # fmt: skip


def test_a_capture_is_read_as_it_was_written(tmp_path: Path) -> None:
    capture = mps.debug.Capture(tuple(images()), "a device", True)
    folder = mps.debug.save_capture(capture, tmp_path / "new" / "capture")
    assert sorted(os.listdir(folder)) == ["capture.json", "images.dat"]
    found = mps.debug.load_capture(folder)
    assert (found.about, found.precise_weights) == ("a device", True)
    for mine, other in zip(capture.images, found.images, strict=True):
        assert (mine.label, mine.channel_format) == (other.label, other.channel_format)
        assert mine.array.dtype == other.array.dtype
        np.testing.assert_array_equal(mine.array, other.array)
    numbers = {each.label: each.numbers for each in found.images}
    np.testing.assert_array_equal(numbers["unorm8"], np.float32(images()[0].array) / np.float32(255))
    with pytest.raises(mps.MPSFileError, match="must be a new folder"):
        mps.debug.save_capture(capture, folder)


def test_a_capture_by_hand_needs_little(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    rows = [{"label": "image", "height": 1, "width": 2, "channels": 1, "format": "float32"}]
    (folder / "capture.json").write_text(json.dumps({"format": "openmps.capture", "version": 1, "images": rows}))
    (folder / "images.dat").write_bytes(np.array([1, 2], "<f4").tobytes())
    found = mps.debug.load_capture(folder)
    assert (found.about, found.precise_weights) == ("", False)
    assert found.images[0].array.tolist() == [[[[1.0], [2.0]]]]


def test_what_no_image_can_hold_is_not_written(tmp_path: Path) -> None:
    form = mps.MPSImageFeatureChannelFormat.FLOAT16
    for array in (
        np.zeros((1, 2, 2, 1), np.float32),
        np.zeros((2, 2, 1), np.float16),
        np.zeros((0, 2, 2, 1), np.float16),
    ):
        capture = mps.debug.Capture((mps.debug.CapturedImage("x", form, array),))
        with pytest.raises(mps.MPSArgumentError, match="image 'x' must be .images, height, width, channels., float16"):
            mps.debug.save_capture(capture, tmp_path / "capture")
    assert os.listdir(tmp_path) == []


def _row(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["images"][0].update(changes)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda index: index.update(format="openmps.trace"), "must have the format 'openmps.capture'"),
    "another version": (lambda index: index.update(version=2), "and version 1"),
    "no images": (lambda index: index.update(images=[]), 'must have a list as "images"'),
    "no list": (lambda index: index.update(images={}), 'must have a list as "images"'),
    "no row": (lambda index: index.update(images=[3]), 'image 0 must have "label"'),
    "no label": (_row(label=None), 'image 0 must have "label"'),
    "an empty label": (_row(label=""), 'image 0 must have "label"'),
    "no length": (_row(height=0), 'image 0 must have "label"'),
    "a negative length": (_row(width=-3), 'image 0 must have "label"'),
    "a length of many digits": (_row(width=10**30), 'image 0 must have "label"'),
    "a flag as a length": (_row(width=True), 'image 0 must have "label"'),
    "a fraction": (_row(width=4.0), 'image 0 must have "label"'),
    "no such format": (_row(format="int4"), 'image 0 must have "label"'),
    "a list as a format": (_row(format=["float16"]), 'image 0 must have "label"'),
    "more than there is": (_row(height=2**31 - 1, width=2**31 - 1), "must hold"),
    "less than there is": (_row(height=1), "must be no longer than"),
    "a label twice": (lambda index: index["images"].append(index["images"][0]), "must have each label once, got 'a'"),
    "a number as a device": (lambda index: index.update(about=3), 'must have text as "about"'),
    "other weights": (lambda index: index.update(weights="int8"), "float16 or float32 as"),
}


@in_one_test
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_index_is_refused(name: str, tmp_path: Path) -> None:
    folder = dump(
        tmp_path / "capture", {"a": np.zeros((1, 2, 4, 1), np.float16), "b": np.ones((1, 2, 2, 1), np.float16)}
    )
    index = json.loads((folder / "capture.json").read_text())
    change, says = HOSTILE[name]
    change(index)
    (folder / "capture.json").write_text(json.dumps(index))
    with pytest.raises(mps.MPSFileError, match=r"capture") as caught:
        mps.debug.load_capture(folder)
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"nul", b"\xff\xfe", b"[" * 100_000, b'{"format": 1, "format": 2}'])
def test_what_is_no_index_is_refused(content: bytes, tmp_path: Path) -> None:
    folder = dump(tmp_path / "capture", {"a": np.zeros((1, 2, 4, 1), np.float16)})
    (folder / "capture.json").write_bytes(content)
    with pytest.raises(mps.MPSFileError, match=r"capture\.json must"):
        mps.debug.load_capture(folder)


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(mps.MPSFileError, match="must be a folder, got nothing there"):
        mps.debug.load_capture(tmp_path / "none")
    folder = dump(tmp_path / "capture", {"a": np.zeros((1, 2, 4, 1), np.float16)})
    (folder / "images.dat").unlink()
    with pytest.raises(mps.MPSFileError, match=r"images\.dat must be a file"):
        mps.debug.load_capture(folder)
    (folder / "capture.json").unlink()
    with pytest.raises(mps.MPSFileError, match=r"capture\.json must be a file"):
        mps.debug.load_capture(folder)


# --- goldens ----------------------------------------------------------------------------------------------------------


def golden() -> mps.debug.Golden:
    form, rng = mps.MPSImageFeatureChannelFormat.FLOAT32, np.random.default_rng(0)
    source, result = (mps.debug.CapturedImage(name, form, rng.random((2, 3, 4, 1), np.float32)) for name in "ab")
    return mps.debug.Golden((source,), (mps.debug.GoldenResult(result, (0.0, 1e-4, 2e-4, 1e-3)),))


def test_a_golden_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = golden()
    found = mps.debug.load_golden(mps.debug.save_golden(made, tmp_path / "golden"))
    assert sorted(os.listdir(tmp_path / "golden")) == ["golden.json", "images.dat"]
    np.testing.assert_array_equal(found.sources[0].array, made.sources[0].array)
    np.testing.assert_array_equal(found.results[0].image.array, made.results[0].image.array)
    assert found.results[0].limits == made.results[0].limits


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ([1e-4, 1e-5, 1e-3, 1e-3], "must have limits of 50 %, 90 %, 99 %, largest, none less than the one before"),
        ([1e-4, 1e-3, 1e-3], "must have limits"),
        ([-1, 0, 0, 0], "must have limits"),
        ([0, 0, 0, "1"], "must have limits"),
        ([0, 0, 0, True], "must have limits"),
        ("many", "must have limits"),
        (None, "must have limits"),
    ],
)
def test_hostile_limits_are_refused(limits: Any, says: str, tmp_path: Path) -> None:
    folder = mps.debug.save_golden(golden(), tmp_path / "golden")
    index = json.loads((folder / "golden.json").read_text())
    index["images"][1]["limits"] = limits
    (folder / "golden.json").write_text(json.dumps(index))
    with pytest.raises(mps.MPSFileError, match=r"golden\.json") as caught:
        mps.debug.load_golden(folder)
    assert says in str(caught.value)


def test_a_golden_without_results_is_refused(tmp_path: Path) -> None:
    folder = mps.debug.save_golden(golden(), tmp_path / "golden")
    index = json.loads((folder / "golden.json").read_text())
    for row in index["images"]:
        row.pop("limits", None)
    (folder / "golden.json").write_text(json.dumps(index))
    with pytest.raises(mps.MPSFileError, match="must have source images, and results with limits"):
        mps.debug.load_golden(folder)
    index["images"][0]["format"], index["images"][0]["height"] = "float16", 6
    (folder / "golden.json").write_text(json.dumps(index))
    with pytest.raises(mps.MPSFileError, match="must have images of float32, got float16"):
        mps.debug.load_golden(folder)
