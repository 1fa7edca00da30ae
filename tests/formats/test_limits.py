"""Every reader of files: what is too long is refused by name, unread, and a machine without memory is no damage."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps.errors import MPSFileError, MPSMemoryError, MPSWeightsError
from openmps.formats import (
    load_dat,
    load_raw,
    load_safetensors,
    load_tensors,
    save_raw,
    save_safetensors,
    save_tensors,
)
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.formats.weights import save_dat
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.runtime.devices import mtl_device
from openmps.training.checkpoint import Checkpoint, CheckpointFolder
from openmps.training.idx import read_idx
from openmps.training.image_folder import load_image
from openmps.training.json_lines import JsonLines
from openmps.training.run_folder import RunFolder

NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 1, 1, 4)


def _checkpoint(path: Path) -> None:
    CheckpointFolder(path.parent).save(Checkpoint(1, {"p": {"x": NUMBERS}}))


def _idx(path: Path) -> None:
    path.write_bytes(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (1, 3, 4)) + bytes(12))


def _image(path: Path) -> None:
    pytest.importorskip("PIL.Image").fromarray(np.zeros((3, 4), np.uint8)).save(path)


def _run(path: Path) -> RunFolder:
    return RunFolder.create(path.parent.parent, {"a": 1}, name=path.parent.name)


READERS: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], Any]]] = {
    "archive": (
        "a.mps",
        lambda path: MPSKeyedArchiver.archive([NUMBERS], path),
        lambda path: MPSKeyedUnarchiver(path, mtl_device("cpu")),
    ),
    "checkpoint": ("step-00000001.safetensors", _checkpoint, lambda path: CheckpointFolder(path.parent).load(1)),
    "weights": ("w.safetensors", lambda path: save_safetensors(path, {"a.weights": NUMBERS}), load_safetensors),
    "npz": ("w.npz", lambda path: save_tensors(path, {"a": NUMBERS}), load_tensors),
    "state dict": ("w.pt", lambda path: save_tensors(path, {"a": NUMBERS}), load_tensors),
    "safetensors of others": ("v.safetensors", lambda path: save_tensors(path, {"a": NUMBERS}), load_tensors),
    "raw, of a layer": (
        "a.dat",
        lambda path: save_raw(path.parent, {"a.weights": NUMBERS}, one_file=True),
        lambda path: load_raw(path.parent, {"a": MPSCNNConvolutionDescriptor(1, 1, 4, 3)}),
    ),
    "raw": ("w.dat", lambda path: save_dat(path, NUMBERS), lambda path: load_dat(path, NUMBERS.shape)),
    "digits": ("idx", _idx, lambda path: read_idx(path, 3)),
    "image": ("a.png", _image, load_image),
    "description": ("run.json", _run, lambda path: RunFolder.open(path.parent)),
    "metrics": ("metrics.jsonl", lambda path: _run(path).log({"a": 1}), lambda path: JsonLines(path).read()),
}


def _written(tmp_path: Path, reader: str) -> tuple[Path, Callable[[Path], Any]]:
    name, write, read = READERS[reader]
    path = tmp_path / "run" / name
    if write not in (_run, READERS["metrics"][1]):
        path.parent.mkdir()
    write(path)
    read(path)
    return path, read


@in_one_test
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_ten_gigabytes_is_refused_unread(reader: str, tmp_path: Path) -> None:
    path, read = _written(tmp_path, reader)
    with path.open("r+b") as file:
        file.truncate(10 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((MPSFileError, MPSWeightsError), match=rf"{path.name} must (be no longer than|hold \d+ bytes)"):
        read(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (1 << 26 if sys.platform == "darwin" else 1 << 16)


@in_one_test
@pytest.mark.parametrize("reader", READERS)
def test_a_machine_without_memory_is_named(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with the file: whoever passes over damaged ones must not pass over it."""
    path, read = _written(tmp_path, reader)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise MemoryError

    for place in (
        "openmps.formats.archive.container.load",
        "openmps.formats.weights.safe_open",
        "openmps.formats.exchange.tensors.safe_open",
        "openmps.formats.paths.Path.open",
        "numpy.fromfile",
        "json.loads",
        "PIL.Image.open",
    ):
        monkeypatch.setattr(place, fail)
    with pytest.raises(MPSMemoryError, match=f"{path.name} needs more memory than there is"):
        read(path)


def test_a_hole_in_the_place_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.mps"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(MPSFileError, match="it ends before its header does"):
        MPSKeyedUnarchiver(path, mtl_device("cpu"))
    with path.open("r+b") as file:
        file.write((1 << 30).to_bytes(8, "little"))
    with pytest.raises(MPSFileError, match="must have a header of no more than 33,554,432 bytes, got 1,073,741,824"):
        MPSKeyedUnarchiver(path, mtl_device("cpu"))


def test_a_sound_checkpoint_is_not_passed_over_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        folder.save(Checkpoint(step, {"p": {"x": NUMBERS}}))
    load, calls = np.ascontiguousarray, []

    def once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        return load(*arguments)

    monkeypatch.setattr("openmps.formats.archive.container.np.ascontiguousarray", once)
    with pytest.raises(MPSMemoryError, match=r"step-00000002\.safetensors needs more memory"):
        folder.newest()
