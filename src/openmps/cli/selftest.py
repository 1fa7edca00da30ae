"""``openmps selftest``: whether the devices of this machine answer as Macs did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.options import note

if TYPE_CHECKING:
    from openmps.conformance.goldens import Golden
    from openmps.conformance.selftest import Row

_DIFFERS = 1
_EVERY = "all"


def selftest(
    device: Annotated[
        str, typer.Option(help="all, cpu, cuda, cuda:N, or auto: the first GPU where there is one.")
    ] = _EVERY,
    goldens: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RECORDING.json",
            help="Answers of one more Mac, as recorder/record.swift writes them. May be repeated.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the answers of the device, all of the list, in the form of a Mac's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare this machine's answers with those of Macs.

    Each device is asked what Macs have answered, a GPU all of the list besides, to be compared with the CPU. The exit
    status is 1 if an answer differs, but for those that a convention of openmps explains.
    """
    from openmps.conformance import selftest as test
    from openmps.conformance.cases import cases
    from openmps.conformance.goldens import goldens as known
    from openmps.conformance.goldens import load_recording
    from openmps.conformance.recorder import record as write
    from openmps.runtime.devices import mtl_device

    listed = cases()
    if record is not None:
        if goldens:
            raise typer.BadParameter(
                "must be left out: what is recorded is compared with nothing", param_hint="--goldens"
            )
        write(listed, mtl_device("cpu" if device == _EVERY else device), record)
        print(f"{len(listed.cases)} answers in {record}")
        return
    machines = [*known(), *map(load_recording, goldens or ())]
    for each in machines:
        if each.digest not in (None, listed.digest):
            note(f"{each.label} was asked another list than this version's: cases that have changed may differ")
    tested = test.devices() if device == _EVERY else [mtl_device(device)]
    rows = list(test.self_test(listed, tested, machines))
    _print(rows, machines)
    if not all(row.ok for row in rows):
        raise typer.Exit(_DIFFERS)


def _print(rows: list[Row], machines: list[Golden]) -> None:
    from openmps.tables import table

    headings = ["device", "compared with", "agree", "differ"]
    cells = [[row.device, row.machine, str(len(row.agree)), str(len(row.differ))] for row in rows]
    print(table(headings, cells, [False, False, True, True]))
    says = {(each.label, name): answer.get("says") for each in machines for name, answer in each.answers.items()}
    for row in rows:
        for name in row.differ:
            said = says.get((row.machine, name))
            print(f"\n{row.device} differs from {row.machine}:\n  {name}")
            if said:
                print(f"  there: {said}")
            if name in row.known:
                print(f"  expected: the convention {row.known[name]} follows the documentation")
