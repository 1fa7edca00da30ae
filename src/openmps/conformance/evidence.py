"""What proves openmps' answer to each case: Macs, a client's tests, the header's words alone, or nobody.

And which behaviours of one network are proven: cases of the classes that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import openmps.names as names
from openmps.conformance.answers import Answer, answer_of
from openmps.conformance.cases import Case, CaseList
from openmps.conformance.goldens import Golden, Verdict, verdict
from openmps.convention import NotingConventions, conventions, current
from openmps.convention.table import CONVENTIONS
from openmps.tables import table as text_table

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


# --- of one network ---------------------------------------------------------------------------------------------------


class ClassProof(NamedTuple):
    """What is known of one class of filters."""

    name: str
    """Of the node."""
    filters: int
    """How many of it the network has."""
    proofs: tuple[Evidence, ...]
    """Of every case that asks the node or its kernel; empty where no case does."""

    def count(self, proof: Proof) -> int:
        """Cases with this proof."""
        return sum(each.proof is proof for each in self.proofs)


def network_proof(
    graph: names.MPSNNGraph, listed: CaseList, machines: Sequence[Golden], device: names.MTLDevice
) -> list[ClassProof]:
    """A row for each class of filters, in the order in which the graph runs them."""
    kinds: dict[str, tuple[int, set[str]]] = {}
    for node, kernel in graph.kernels.items():
        name = type(node).__name__
        count, classes = kinds.get(name, (0, {name, name.removesuffix("Node")}))
        kinds[name] = (count + 1, classes | {type(kernel).__name__})
    wanted = {each for _, classes in kinds.values() for each in classes}
    cases = [case for case in listed.cases.values() if wanted.intersection(case.classes)]
    found = list(evidence(listed, device, machines, cases))
    return [
        ClassProof(name, count, tuple(each for each in found if classes.intersection(each.case.classes)))
        for name, (count, classes) in kinds.items()
    ]


def proof_table(rows: Sequence[ClassProof]) -> str:
    """The rows as lines of 80 columns at most."""
    headings = ["class", "Macs", "client", "header", "none", "differ"]
    cells = [
        [row.name, *(str(row.count(proof)) for proof in Proof)]
        for row in rows
    ]  # fmt: skip
    lines = [text_table(headings, cells, [False, *[True] * len(Proof)])]
    lines += [f"{row.name}: no case asks it" for row in rows if not row.proofs]
    return "\n".join(lines)
