"""The self-test: what each device of this machine answers to the list, held against Macs, and against the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import openmps.names as names
from openmps.conformance.answers import Answer, answer_of
from openmps.conformance.cases import CaseList
from openmps.conformance.goldens import Golden, Verdict, verdict
from openmps.convention.table import CONVENTIONS, MACHINES
from openmps.errors import MPSDeviceError

THE_CPU = "the CPU here"


class Row(NamedTuple):
    """A device, held against one machine."""

    device: str
    machine: str
    agree: tuple[str, ...]
    """Names of cases."""
    differ: tuple[str, ...]
    known: Mapping[str, str]
    """Of those that differ: the convention that departs from this machine's choice, so that they were expected to."""

    @property
    def ok(self) -> bool:
        """Whether all that differs is known."""
        return self.differ == tuple(self.known)


def devices() -> list[names.MTLDevice]:
    """The CPU, and every GPU that there is."""
    try:
        gpus = names.MTLCopyAllDevices()
    except MPSDeviceError:
        gpus = []
    return [names.mtl_device("cpu"), *(each for each in gpus if each.torch_device.type != "cpu")]


def self_test(listed: CaseList, tested: Sequence[names.MTLDevice], machines: Sequence[Golden]) -> Iterator[Row]:
    """A row for each device and machine, and for each GPU one against the CPU, which is asked the whole list then."""
    is_alone = all(each.torch_device.type == "cpu" for each in tested)
    answered = {name for machine in machines for name in machine.answers} & listed.cases.keys()
    asked = [name for name in listed.cases if not is_alone or name in answered]
    cpu = {name: answer_of(listed.cases[name], names.mtl_device("cpu")) for name in asked}
    for device in tested:
        is_cpu = device.torch_device.type == "cpu"
        ours = cpu if is_cpu else {name: answer_of(listed.cases[name], device) for name in asked}
        for machine in machines:
            yield _row(listed, str(device.torch_device), machine.label, ours, machine.answers)
        if not is_cpu:
            yield _row(listed, str(device.torch_device), THE_CPU, ours, cpu)


def _row(
    listed: CaseList, device: str, machine: str, ours: Mapping[str, Answer], theirs: Mapping[str, Mapping[str, object]]
) -> Row:
    found = {name: verdict(listed, name, answer, theirs.get(name)) for name, answer in ours.items()}
    agree = tuple(name for name, says in found.items() if says is Verdict.AGREES)
    differ = tuple(name for name, says in found.items() if says is Verdict.DIFFERS)
    departures = {name: _departure(listed.cases[name].questions) for name in differ}
    return Row(device, machine, agree, differ, {name: each for name, each in departures.items() if each})


def _departure(questions: Sequence[str]) -> str:
    """The convention among some whose default no machine chooses that is known."""
    return next(
        (name for name in questions for choices in MACHINES.values()
         if name in choices and choices[name] != CONVENTIONS[name].default), "",
    )  # fmt: skip
