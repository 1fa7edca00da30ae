"""Writes the list of cases, src/openmps/conformance/cases.json, and what public facts say of Macs, in goldens/ there.

python tools/conformance_cases.py
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # where samples and facts are

from conformance_list.facts import controls, fact_cases, recordings  # noqa: E402
from conformance_list.kernels import kernel_cases  # noqa: E402
from conformance_list.matrices import matrix_cases  # noqa: E402
from conformance_list.nodes import node_cases  # noqa: E402
from conformance_list.questions import question_cases  # noqa: E402
from conformance_list.training import training_cases  # noqa: E402

from openmps.conformance.cases import CASES_FILE, FORMAT  # noqa: E402
from openmps.conformance.goldens import FOLDER, RECORDING  # noqa: E402


def documents() -> dict[Path, str]:
    """Every file, by its place."""
    cases = [*fact_cases(), *question_cases(), *kernel_cases(), *node_cases(), *training_cases(), *matrix_cases()]
    texts = [_text(each) for each in cases]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    head = {"format": FORMAT, "digest": digest, "controls": controls()}
    found = {CASES_FILE: _document(head, "cases", texts, "[]")}
    for folder, recording in recordings().items():
        head = {name: value for name, value in recording.items() if name != "answers"}
        answers = (f"{_text(name)}: {_text(each)}" for name, each in recording["answers"].items())
        found[FOLDER / folder / RECORDING] = _document(head, "answers", answers, "{}")
    return found


def _document(head: Mapping[str, Any], name: str, entries: Iterable[str], brackets: str) -> str:
    """An object of JSON whose last entries stand one on a line."""
    first, last = brackets
    return f'{_text(head)[:-1]}, "{name}": {first}\n' + ",\n".join(entries) + f"\n{last}}}\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    for path, text in documents().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
