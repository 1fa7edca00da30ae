"""What the suite saw of kernels is the same whether one process ran it or several."""

from __future__ import annotations

import json

import pytest
import torch

import measured

CPU = torch.device("cpu")


class Kernel:
    pass


@pytest.fixture
def note(monkeypatch):
    """Starts anew, and notes an error and a format."""

    def noted(error: float, channel_format: str) -> None:
        monkeypatch.setattr(measured, "_errors", {})
        monkeypatch.setattr(measured, "_formats", {})
        measured.note_error(Kernel, "forward", CPU, [0.5 + error], [0.5])
        measured.note_format(Kernel, channel_format, CPU)

    return noted


def test_what_other_processes_saw_is_joined(note, tmp_path):
    note(0.25, "unorm8")
    other = json.loads(json.dumps(measured.seen()))
    note(0.125, "float16")
    measured.join(other)
    measured.join(None)
    measured.write(tmp_path / "errors.json")
    kernels = json.loads((tmp_path / "errors.json").read_text())["cpu"]["kernels"]
    assert kernels == {"Kernel": {"forward": 0.25, "formats": ["float16", "unorm8"]}}


def test_a_process_that_saw_nothing_says_so(monkeypatch):
    monkeypatch.setattr(measured, "_errors", {})
    monkeypatch.setattr(measured, "_formats", {})
    assert measured.seen() is None
