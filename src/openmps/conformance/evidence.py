"""What proves openmps' answer to each case: Macs, a client's tests, the header's words alone, or nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import openmps.names as names
from openmps.conformance.answers import Answer, answer_of
from openmps.conformance.cases import Case, CaseList
from openmps.conformance.goldens import Golden, Verdict, verdict
from openmps.convention import NotingConventions, conventions, current
from openmps.convention.table import CONVENTIONS

_CLIENTS = ("MetalTensors", "Turi Create")
"""Programs whose own tests on Macs, or comparisons with Macs, the table of conventions names as evidence."""


class Proof(Enum):
    """Who says that an answer is the framework's, from the best to none."""

    MAC = "Macs"
    CLIENTS = "clients"
    HEADER = "header"
    """Its words alone, where they leave nothing open."""
    NOBODY = "nobody"
    """The header can be read in several ways, and no machine has shown one."""
    DIFFERS = "differs"
    """A Mac answers otherwise."""


class Evidence(NamedTuple):
    """Of one case."""

    case: Case
    proof: Proof
    agree: tuple[str, ...]
    """Machines that answer as openmps does."""
    differ: tuple[str, ...]
    open: tuple[str, ...]
    """Open readings of the header that the answer depends on, by the names of conventions, which no Mac has shown."""
    answer: Answer


def evidence(
    listed: CaseList, device: names.MTLDevice, machines: Iterable[Golden], cases: Iterable[Case] | None = None
) -> Iterator[Evidence]:
    """Of some cases of the list, all unless said: each is run, and what it depends on is noted."""
    machines = tuple(machines)
    for case in listed.cases.values() if cases is None else cases:
        with NotingConventions(current()) as noted:
            answer = answer_of(case, device, noted)
        asked = [name for name, row in CONVENTIONS.items() if name in noted.asked and not row.proven]
        unproven = {name for name in asked if _bears_on(name, case, answer, device)}
        unproven |= {name for name in case.questions if not CONVENTIONS[name].proven}
        yield _judged(listed, case, answer, machines, tuple(name for name in CONVENTIONS if name in unproven))


def _bears_on(name: str, case: Case, answer: Answer, device: names.MTLDevice) -> bool:
    """Whether another choice of a convention that a case asks for has another answer, or none can be told."""
    others = CONVENTIONS[name].alternatives
    return case.compares == "shape" or not others or any(answer != _by(name, each, case, device) for each in others)


def _by(name: str, choice: str, case: Case, device: names.MTLDevice) -> Answer:
    with conventions(**{name: choice}):
        return answer_of(case, device)


def _judged(
    listed: CaseList, case: Case, answer: Answer, machines: tuple[Golden, ...], unproven: tuple[str, ...]
) -> Evidence:
    found = {each.label: verdict(listed, case.name, answer, each.answers.get(case.name)) for each in machines}
    agree = tuple(label for label, says in found.items() if says is Verdict.AGREES)
    differ = tuple(label for label, says in found.items() if says is Verdict.DIFFERS)
    if differ:
        proof = Proof.DIFFERS
    elif agree:
        proof = Proof.MAC
    elif not unproven:
        proof = Proof.HEADER
    else:
        proof = Proof.CLIENTS if all(map(_seen_by_clients, unproven)) else Proof.NOBODY
    return Evidence(case, proof, agree, differ, unproven, answer)


def _seen_by_clients(name: str) -> bool:
    return any(client in text for text in CONVENTIONS[name].evidence for client in _CLIENTS)


def counts(found: Iterable[Evidence]) -> Mapping[str, Mapping[Proof, int]]:
    """How many cases of each family have which proof, in the order in which families come."""
    table: dict[str, dict[Proof, int]] = {}
    for each in found:
        row = table.setdefault(each.case.family, dict.fromkeys(Proof, 0))
        row[each.proof] += 1
    return table
