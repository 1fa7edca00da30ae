"""The errors that the suite sees, kernel by kernel: what docs/kernels.md is made of.

``pytest tests/sweeps tests/kernels --record-errors bench/results/kernel_errors.json`` keeps the largest of each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from helpers import relative_error
from openmps.runtime.devices import mtl_device

_errors: dict[str, dict[str, dict[str, float]]] = {}
_formats: dict[str, dict[str, set[str]]] = {}


def note_error(kernel: type, what: str, device: torch.device, actual: Any, expected: Any) -> None:
    """Keep the error of a kernel's float32 numbers against an oracle; ``what`` is `forward` or `gradient`."""
    found = _errors.setdefault(device.type, {}).setdefault(kernel.__name__, {})
    found[what] = max(found.get(what, 0.0), relative_error(actual, expected))


def note_format(kernel: type, channel_format: str, device: torch.device) -> None:
    """Keep that a kernel's results in a channel format were right."""
    _formats.setdefault(device.type, {}).setdefault(kernel.__name__, set()).add(channel_format)


def seen() -> list[Any] | None:
    """What this process has kept, in plain lists and numbers; None if nothing."""
    if not _errors and not _formats:
        return None
    formats = [[device, name, sorted(each)] for device, kernels in _formats.items() for name, each in kernels.items()]
    return [_errors, formats]


def join(other: list[Any] | None) -> None:
    """Add what another process has kept: see `seen`."""
    errors, formats = other or ({}, [])
    for device, kernels in errors.items():
        for name, figures in kernels.items():
            found = _errors.setdefault(device, {}).setdefault(name, {})
            for what, error in figures.items():
                found[what] = max(found.get(what, 0.0), error)
    for device, name, each in formats:
        _formats.setdefault(device, {}).setdefault(name, set()).update(each)


def write(path: Path, *, is_part: bool = False) -> None:
    """Put what this run saw in a file, in the place of what it said of the same devices.

    A part of the suite adds to it: the larger errors and all formats stay, and machines that it was not of are named.
    """
    known = json.loads(path.read_text()) if path.exists() else {}
    before = {device: known[device] for device in _errors if is_part and device in known}
    for device, of in before.items():
        for name, figures in of["kernels"].items():
            formats = figures.pop("formats")
            join([{device: {name: figures}}, [[device, name, formats]]])
    for device, kernels in _errors.items():
        formats = _formats.get(device, {})
        known[device] = {
            "machine": mtl_device(device).name,
            "torch": torch.__version__,
            "kernels": {name: {**kernels[name], "formats": sorted(formats.get(name, ()))} for name in sorted(kernels)},
        }
    for device, of in before.items():
        here = known[device]["machine"]
        others = {*of.get("others", ()), here} - {of["machine"]}
        known[device] |= {"machine": of["machine"], "torch": of["torch"]} | (
            {"others": sorted(others)} if others else {}
        )
    path.write_text(json.dumps(known, indent=1) + "\n")
