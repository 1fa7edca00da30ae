"""What reading a file of measurements takes: a small multiple of its bytes, whatever is in it."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from openmps.errors import MPSFileError, MPSTypeError
from openmps.training import RunFolder
from openmps.training.json_lines import JsonLines

SIZE = 1_000_000
HONEST = b'{"epoch": 1, "iteration": 12, "loss": 0.6931471, "accuracy": 0.512, "images_per_second": 1234.5}\n'
HOSTILE = {
    "empty mappings": b"{}\n",
    "empty lists in one line": b'{"a": [' + b"[]," * 300_000 + b"[]]}\n",
    "mappings in one line": b'{"a": [' + b"{}," * 300_000 + b"{}]}\n",
    "lists in lists": b'{"a": [' + b"[[[]]]," * 130_000 + b"[]]}\n",
    "empty lines": b"\n",
    "one long line": b'{"a": "' + b"x" * 20_000_000 + b'"}\n',
    "a wide letter in a long line": '{"a": "\U0001f600'.encode() + b"x" * 20_000_000 + b'"}\n',
    "a torn long line": HONEST + b'{"a": "' + b"x" * 20_000_000,
}


def measured(path: Path) -> tuple[int, float, object]:
    """Bytes that reading takes at its peak, seconds, and what came of it."""
    began = time.process_time()
    tracemalloc.start()
    try:
        found: object = JsonLines(path).read()
    except MPSFileError as error:
        found = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, time.process_time() - began, found


def written(path: Path, lines: bytes, size: int = SIZE) -> Path:
    path.write_bytes(lines * max(1, size // len(lines)))
    return path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, float]:
    """Bytes and seconds that reading an honest file takes."""
    honest, took, lines = measured(written(tmp_path_factory.mktemp("honest") / "metrics.jsonl", HONEST))
    assert isinstance(lines, list) and len(lines) == SIZE // len(HONEST)
    return honest, took


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_takes_more_than_an_honest_file_of_its_length(
    name: str, tmp_path: Path, honest: tuple[int, float]
) -> None:
    path = written(tmp_path / "metrics.jsonl", HOSTILE[name])
    size = path.stat().st_size
    most, took = honest
    peak, seconds, found = measured(path)
    assert peak < 2 * most * size / SIZE + (1 << 20), f"{peak:,} bytes for {size:,}, {most:,} for {SIZE:,}"
    assert seconds < 2 * took * size / SIZE + 1
    if name == "a torn long line":
        assert isinstance(found, list) and len(found) == 1
    else:
        assert isinstance(found, MPSFileError) and str(path) in str(found)


def test_a_small_file_may_be_as_dense_as_it_likes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{}\n" * 120_000)
    assert JsonLines(path).read() == [{}] * 120_000


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.append({"a": "x" * 16_000_000})
    with pytest.raises(MPSTypeError, match="must be a line of at most 16,777,216 bytes, got"):
        lines.append({"a": "x" * 17_000_000})
    lines.append({"b": 1})
    assert [list(each) for each in lines.read()] == [["a"], ["b"]]


def test_a_run_names_its_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    (run.path / "metrics.jsonl").write_bytes(b"{}\n" * 300_000)
    with pytest.raises(MPSFileError, match=r"metrics.jsonl must hold at most 243,572 lists and mappings, got 300,000"):
        run.read_metrics()
