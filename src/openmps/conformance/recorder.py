"""Records what openmps answers to the list, in the form in which recorder/record.swift records a Mac.

A recorder must see what is wrong: before it writes it asks the controls, whose answers are known, and asks them again
with one number of a source changed, when the answer must be another.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import openmps.names as names
from openmps import __version__
from openmps.conformance.answers import Answer, answer_of
from openmps.conformance.cases import FORMAT, Case, CaseList
from openmps.conformance.goldens import SEEN, agree
from openmps.errors import MPSDeviceError
from openmps.formats.atomic import write_atomic

_WHO = "conformance"


def record(listed: CaseList, device: names.MTLDevice, path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Write the answers of openmps on a device to a file, and give them.

    Raises:
        MPSDeviceError: The device gives other answers to the controls, or the same when they are changed.
        MPSFileError: The file cannot be written.
    """
    planted = faults_seen(listed, device)
    document = {
        "format": FORMAT,
        "list": listed.digest,
        "machine": {"framework": f"openmps {__version__}", "gpu": device.name, "system": platform.platform()},
        "planted": planted,
        "answers": {name: answer_of(case, device) for name, case in listed.cases.items()},
    }
    write_atomic(path, (json.dumps(document, allow_nan=False) + "\n").encode())
    return document


def faults_seen(listed: CaseList, device: names.MTLDevice) -> Mapping[str, str]:
    """The planted faults by name, each of which was seen."""
    found: dict[str, str] = {}
    for name, values in listed.controls.items():
        case = listed.cases[name]
        if not _is_control(answer_of(case, device), values):
            raise MPSDeviceError(_WHO, name, "must have the answer that is known", "another one")
        if _is_control(answer_of(changed(case), device), values):
            raise MPSDeviceError(_WHO, name, "must have another answer with another number", "the same one")
        found[f"another number: {name}"] = SEEN
    return found


def changed(case: Case) -> Case:
    """A case whose first source's first number is larger by 1."""
    first, *others = case.entry["sources"]
    numbers = [first["numbers"][0] + 1, *first["numbers"][1:]]
    return case._replace(entry={**case.entry, "sources": [{**first, "numbers": numbers}, *others]})


def _is_control(answer: Answer, values: Mapping[str, Any]) -> bool:
    return "values" in answer and agree(answer["values"], values, 0.0)
