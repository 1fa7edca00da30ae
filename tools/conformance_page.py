"""Writes docs/conformance.md: what is proven of openmps' answers, and by whom; it runs the whole list.

python tools/conformance_page.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # where facts are

from conformance_list import facts, nodes, questions  # noqa: E402
from conformance_list.vocabulary import ENTRY, VALUES  # noqa: E402

import openmps as mps  # noqa: E402
from openmps.conformance.cases import cases  # noqa: E402
from openmps.conformance.evidence import Evidence, Proof, counts, evidence  # noqa: E402
from openmps.conformance.goldens import Golden, goldens  # noqa: E402
from openmps.convention.table import CONVENTIONS  # noqa: E402

PAGE = ROOT / "docs" / "conformance.md"
_HEAD = """# Conformance

How much of what openmps computes is what Apple's framework computes? The package holds one list of small cases, as data
that programs in any language read, and recordings of what machines answered to them. A case counts as proven where a
Mac's answer agrees. Where none has answered, the header's words may leave nothing open; or tests of a client that runs
on Macs may have settled what they leave open; or nobody has.

```sh
openmps selftest                          # what each device here answers, against the recordings: seconds
openmps selftest --goldens recording.json # against a Mac's that a recorder has written
openmps selftest --record ours.json       # openmps' own answers, in the same form
openmps lint runs/digits --conformance    # what is proven of the classes of one network
```

[Mac owners](mac_owners.md) can record in ten minutes what only they can. This page is made of the list and of the
recordings in the package: `python tools/conformance_page.py`.
"""


def page() -> str:
    """The page's text."""
    machines = goldens()
    found = list(evidence(cases(), mps.mtl_device("cpu"), machines))
    parts = (_families(found), _machines(machines), _differing(found), _unproven(found), _left_out(), _vocabulary())
    return "\n".join([_HEAD, *(line for part in parts for line in part)])


def _families(found: Sequence[Evidence]) -> Iterator[str]:
    yield f"## Families: {len(found)} cases\n"
    yield f"| family | {' | '.join(_TITLES.values())} |\n| --- |{' ---: |' * len(_TITLES)}"
    rows = counts(found)
    for family, row in rows.items():
        yield f"| {family} | {' | '.join(str(row[proof]) for proof in _TITLES)} |"
    sums = [sum(row[proof] for row in rows.values()) for proof in _TITLES]
    yield f"| all | {' | '.join(map(str, sums))} |\n"


_TITLES = {
    Proof.MAC: "proven by Macs", Proof.CLIENTS: "by tests of clients", Proof.HEADER: "by the header's words alone",
    Proof.NOBODY: "by nobody", Proof.DIFFERS: "a Mac differs",
}  # fmt: skip


def _machines(machines: Sequence[Golden]) -> Iterator[str]:
    yield "## Machines\n\n| machine | answers | source |\n| --- | ---: | --- |"
    for each in machines:
        yield f"| {each.label} | {len(each.answers)} | {each.source or 'recorder/record.swift'} |"
    yield "\nPublished numbers are compared to the digits that are printed; recordings to 1e-4 of the largest number.\n"


def _differing(found: Sequence[Evidence]) -> Iterator[str]:
    yield "## What differs\n\n| case | machine | why |\n| --- | --- | --- |"
    for each in found:
        if each.proof is Proof.DIFFERS:
            why = "; ".join(f"`{name}`: {CONVENTIONS[name].evidence[0]}" for name in each.case.questions)
            yield f"| {each.case.name} | {', '.join(each.differ)} | {why or 'a fault'} |"
    yield ""


def _unproven(found: Sequence[Evidence]) -> Iterator[str]:
    yield "## Open readings that answers depend on\n\n| convention | question | cases |\n| --- | --- | ---: |"
    for name, row in CONVENTIONS.items():
        count = sum(name in each.open for each in found)
        if count:
            yield f"| `{name}` | {', '.join(row.questions)}: {row.asks} | {count} |"
    yield ""


def _left_out() -> Iterator[str]:
    yield "## What the list does not ask\n\n| what | why, or what it would take |\n| --- | --- |"
    parts: Mapping[str, Mapping[str, str]] = {
        "convention": questions.APART, "fact": facts.APART, "node": nodes.APART,
    }  # fmt: skip
    for kind, rows in parts.items():
        for name, why in rows.items():
            yield f"| {kind} `{name}` | {why} |"
    yield "| optimizers, states by themselves, temporary images | the list has no words for them |\n"


def _vocabulary() -> Iterator[str]:
    yield "## The words of the list\n\nA case is an object of JSON with these names:\n\n| name | says |\n| --- | --- |"
    for name, says in ENTRY.items():
        yield f"| `{name}` | {says} |"
    yield "\nA value is a number, true or false, one of the texts nan, inf and -inf, a list of values, or an object:\n"
    yield "| name | says |\n| --- | --- |"
    for name, says in VALUES.items():
        yield f"| `{name}` | {says} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
