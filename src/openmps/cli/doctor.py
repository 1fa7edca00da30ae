"""``openmps doctor``: versions, devices, caches and threads, to be read and to be pasted into a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.tables import table

if TYPE_CHECKING:
    from openmps.cli.diagnosis import CheckedDevice, Diagnosis, Library

_HAS_FAULTS = 1
_GIB = 1 << 30
_HEADINGS = ("library", "version", "extra", "")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON, for programs.")] = False,
) -> None:
    """Say what openmps runs on, and whether it computes.

    Prints the versions of what openmps imports, devices, threads, caches and environment variables, and checks each
    device with a small network. The exit status is 1 if a library that is needed is missing, one that is there is
    broken, or a device computes wrong numbers. Your home folder is written as ~.
    """
    from openmps.cli.diagnosis import diagnosis

    found = diagnosis() if as_json else _told()
    if as_json:
        print(json.dumps(found.facts(), indent=2))
    if found.faults:
        raise typer.Exit(_HAS_FAULTS)


def _told() -> Diagnosis:
    """A diagnosis each of whose lines is printed as soon as it is known."""
    from openmps.cli.diagnosis import begun_diagnosis, growth

    found, told = begun_diagnosis(), 0
    for _ in growth(found):
        for line in [*described(found)][told:]:
            print(line, flush=True)
            told += 1
    return found


def described(found: Diagnosis) -> Iterator[str]:
    """A diagnosis as lines of text, as far as it is known."""
    from openmps.cli.diagnosis import UNKNOWN

    yield from (f"openmps {found.openmps}, in {found.folder}", f"Python {found.python}", found.system, "")
    headings, rule, *rows = table(_HEADINGS, [_row(each) for each in found.libraries], (False,) * 4).split("\n")
    yield from (headings, rule)
    for library, row in zip(found.libraries, rows, strict=True):
        if library.state == UNKNOWN:
            return
        yield row
    yield from (f"{each.name}: {each.fault}" for each in found.libraries if each.fault)
    yield from ("", f"PyTorch: {found.engine or 'cannot be imported'}")
    for device in found.devices:
        yield from _lines(device)
    if not found.threads:
        return
    if found.filters:
        yield f"image filters on the CPU: by {', '.join(found.filters)}"
    yield f"threads: {', '.join(f'{count} {what}' for what, count in found.threads.items())}"
    yield from (f"{name}={value}" for name, value in found.environment.items())
    yield from (f"cache of {each.of}: {each.folder}, {each.bytes / (1 << 20):,.1f} MiB" for each in found.caches)
    if "Numba" in found.filters and all(each.of != "numba" for each in found.caches):
        yield "cache of numba: none can be written, so each process compiles the loops of filters"
    yield from ("", f"at fault: {'; '.join(found.faults)}" if found.faults else "nothing is wrong")


def _row(library: Library) -> tuple[str, str, str, str]:
    from openmps.cli.diagnosis import OK, UNKNOWN

    return library.name, library.version or "-", library.extra, "" if library.state in (OK, UNKNOWN) else library.state


def _lines(device: CheckedDevice) -> list[str]:
    about = f"{device.device}: {device.name}, {device.memory / _GIB:,.1f} GiB" if device.name else device.device
    says = device.fault or f"computes as it should, {device.seconds:.2f} s"
    return [about, *([f"  {device.features}"] if device.features else []), f"  {says}"]
