"""Which behaviours of one network are proven: cases of the classes that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import openmps.names as names
from openmps.conformance.cases import CaseList
from openmps.conformance.evidence import Evidence, Proof, evidence
from openmps.conformance.goldens import Golden
from openmps.tables import table


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
    lines = [table(headings, cells, [False, *[True] * len(Proof)])]
    lines += [f"{row.name}: no case asks it" for row in rows if not row.proofs]
    return "\n".join(lines)
