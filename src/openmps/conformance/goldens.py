"""Goldens: what machines answered to the list, as the package holds it or a recorder has written it, and comparisons.

A recording is an object of JSON: ``format``; ``list``, the digest of the list that was asked; ``machine``; ``source``,
where the numbers were published; and ``answers`` by the names of cases. Each holds ``values``, or how it ended:
``aborted`` with a signal, ``refused``, ``timedOut``, ``unsupported`` with the reason. Published answers have
a ``tolerance``, a ``grade`` and what they say. Of listed numbers null is not known, and what follows the last is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from openmps.conformance.arrays import number_of
from openmps.conformance.cases import FORMAT, CaseList
from openmps.errors import MPSFileError
from openmps.formats.json_text import read_json

FOLDER = Path(__file__).parent / "goldens"
RECORDING = "recording.json"
SEEN = "seen"
"""What a recorder says of each fault that it planted."""
TOLERANCE = 1e-4
"""Of numbers that a GPU computed in float32, as a part of the largest one of their array."""
_WHO = "conformance"
_MOST_BYTES = 1 << 26
_ENDS = ("values", "aborted", "refused", "timedOut", "unsupported")


class Golden(NamedTuple):
    """The answers of one machine."""

    name: str
    """The folder's, which names the machine."""
    machine: Mapping[str, Any]
    source: str
    answers: Mapping[str, Mapping[str, Any]]
    digest: str | None
    """The list that was asked; published numbers were measured without one."""

    @property
    def label(self) -> str:
        """The machine in words: system and GPU."""
        return f"{self.machine['system']}, {self.machine['gpu']}"


class Verdict(Enum):
    """What came of a comparison with one machine."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNANSWERED = "unanswered"
    """The machine's recorder could not ask, or nobody has."""


@cache
def goldens() -> tuple[Golden, ...]:
    """Those that the package holds, by name."""
    return tuple(load_recording(path / RECORDING) for path in sorted(FOLDER.iterdir()) if path.is_dir())


def load_recording(path: Path) -> Golden:
    """A recording out of a file.

    Raises:
        MPSFileError: It cannot be read, or is no recording.
    """
    document: Any = read_json(path, _WHO, _MOST_BYTES)
    wrong = next(_wrong(document), None)
    if wrong is not None:
        remedy = "recorder/record.swift writes them"
        raise MPSFileError(_WHO, str(path), "must be a recording of answers to the list of cases", wrong, remedy)
    return Golden(
        path.parent.name, document["machine"], document.get("source", ""), document["answers"], document.get("list")
    )


def _wrong(document: Any) -> Iterator[str]:
    """What keeps a document from being a recording."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        yield f"no object of format {FORMAT}"
        return
    machine, answers = document.get("machine"), document.get("answers")
    if not isinstance(machine, dict) or not all(isinstance(machine.get(name), str) for name in ("gpu", "system")):
        yield "a machine without gpu and system"
    if not isinstance(answers, dict):
        yield "no answers"
        return
    planted = document.get("planted", {})
    if "list" in document and (not isinstance(planted, dict) or not planted or {*planted.values()} != {SEEN}):
        yield "planted faults that the recorder has not seen"
    for name, answer in answers.items():
        if not isinstance(answer, dict) or len(answer.keys() & {*_ENDS}) != 1:
            yield f"an answer to {name[:80]!r} without one of {', '.join(_ENDS)}"
        elif not isinstance(answer.get("values", {}), dict):
            yield f"values of {name[:80]!r} that are no object"


def verdict(listed: CaseList, name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Verdict:
    """Whether openmps' answer to a case is the machine's."""
    if theirs is None or "unsupported" in theirs or "timedOut" in theirs:
        return Verdict.UNANSWERED
    if "values" not in theirs or "values" not in ours:  # an end by a signal there is an error here
        return Verdict.AGREES if "values" not in theirs and "values" not in ours else Verdict.DIFFERS
    values, compares = theirs["values"], listed.cases[name].compares
    known = bool(values) and agree(ours["values"], values, theirs.get("tolerance"), compares)
    return Verdict.AGREES if known else Verdict.DIFFERS


def agree(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float | None, compares: str = "numbers"
) -> bool:
    """Whether all that a machine's values say is what openmps' say."""
    return all(name in ours and _agrees(ours[name], each, tolerance, compares) for name, each in theirs.items())


def _agrees(ours: Any, theirs: Any, tolerance: float | None, compares: str) -> bool:
    """One value: an array, a list of them or of whole numbers, or one number."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if "shape" in theirs and theirs["shape"] != ours["shape"]:
            return False
        return compares == "shape" or _numbers_agree(ours["numbers"], theirs["numbers"], tolerance)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(
            _agrees(one, other, tolerance, compares) for one, other in zip(ours, theirs, strict=True)
        )
    if isinstance(theirs, dict | list) or isinstance(ours, dict | list) or theirs is None or ours is None:
        return theirs is None and ours is None
    return _numbers_agree([ours], [theirs], tolerance)


def _numbers_agree(ours: list[Any], theirs: list[Any], tolerance: float | None) -> bool:
    """Numbers by a relative tolerance that was published, or by that of recordings."""
    if len(theirs) > len(ours):
        return False
    pairs = [(number_of(one), number_of(other)) for one, other in zip(ours, theirs, strict=False) if other is not None]
    largest = max((abs(other) for _, other in pairs if math.isfinite(other)), default=0.0)
    return all(_near(one, other, tolerance, largest) for one, other in pairs)


def _near(one: float, other: float, tolerance: float | None, largest: float) -> bool:
    if math.isnan(other) or math.isinf(other):
        return one == other or (math.isnan(one) and math.isnan(other))
    allowed = TOLERANCE * largest if tolerance is None else tolerance * abs(other)
    return abs(one - other) <= allowed
