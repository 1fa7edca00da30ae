"""Files whose JSON has a name twice: readers would take one of the two, so all of them refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmps.debug import load_trace
from openmps.errors import MPSFileError
from openmps.formats import load_safetensors, load_tensors, save_safetensors, save_tensors
from openmps.formats.archive.container import seal, unpack
from openmps.formats.json_text import parsed
from openmps.training import RunFolder

HEADER = 8


def _twice(path: Path) -> None:
    """Repeat the first tensor of a safetensors file in its header, with the same numbers."""
    data = path.read_bytes()
    length = int.from_bytes(data[:HEADER], "little")
    header = json.loads(data[HEADER : HEADER + length])
    name = next(each for each in header if each != "__metadata__")
    again = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    path.write_bytes(len(again).to_bytes(HEADER, "little") + again.encode() + data[HEADER + length :])


def _weights(path: Path) -> Any:
    save_safetensors(path, {"a.weights": np.ones(3)})
    _twice(path)
    return load_safetensors(path)


def _tensors(path: Path) -> Any:
    save_tensors(path, {"a.weight": np.ones(3)})
    _twice(path)
    return load_tensors(path)


def _archive(path: Path) -> Any:
    path.write_bytes(seal('{"version": 1, "version": 1}', {"a": np.ones(3)}))
    return unpack(path.read_bytes(), "reader")


def _run(path: Path) -> Any:
    run = RunFolder.create(path.parent, {"a": 1}, name="run")
    file = run.path / "run.json"
    file.write_text(file.read_text().rstrip().removesuffix("}") + ', "a": 2}')
    return RunFolder.open(run.path)


def _trace(path: Path) -> Any:
    path.mkdir()
    (path / "index.json").write_text(
        '{"format": "openmps.trace", "version": 1, "version": 1, "values": [], "notes": []}'
    )
    return load_trace(path)


@pytest.mark.parametrize("reader", [_weights, _tensors, _archive, _run, _trace])
def test_a_name_twice_is_refused(reader: Any, tmp_path: Path) -> None:
    with pytest.raises(MPSFileError):
        reader(tmp_path / "file.safetensors")


def test_the_name_that_is_there_twice_is_found_among_many() -> None:
    names = [f'"{number}": 0' for number in range(200_000)]
    with pytest.raises(ValueError, match="the name '199999' is there twice"):
        parsed(f"{{{', '.join((*names, names[-1]))}}}")
