"""``openmps doctor``: versions, devices, caches and threads, to be read and to be pasted into a report."""

from __future__ import annotations

import json
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

    found = diagnosis()
    print(json.dumps(found.facts(), indent=2) if as_json else described(found))
    if found.faults:
        raise typer.Exit(_HAS_FAULTS)


def described(found: Diagnosis) -> str:
    """A diagnosis as text."""
    threads = ", ".join(f"{count} {what}" for what, count in found.threads.items())
    parts = [
        f"openmps {found.openmps}, in {found.folder}",
        f"Python {found.python}",
        found.system,
        "",
        table(_HEADINGS, [_row(each) for each in found.libraries], (False,) * 4),
        *(f"{each.name}: {each.fault}" for each in found.libraries if each.fault),
        "",
        f"PyTorch: {found.engine or 'cannot be imported'}",
        *(line for each in found.devices for line in _lines(each)),
        f"threads: {threads}",
        *(f"{name}={value}" for name, value in found.environment.items()),
        *(f"cache of {each.of}: {each.folder}, {each.bytes / (1 << 20):,.1f} MiB" for each in found.caches),
        "",
        f"at fault: {'; '.join(found.faults)}" if found.faults else "nothing is wrong",
    ]
    return "\n".join(parts)


def _row(library: Library) -> tuple[str, str, str, str]:
    from openmps.cli.diagnosis import OK

    return library.name, library.version or "-", library.extra, "" if library.state == OK else library.state


def _lines(device: CheckedDevice) -> list[str]:
    about = f"{device.device}: {device.name}, {device.memory / _GIB:,.1f} GiB" if device.name else device.device
    says = device.fault or f"computes as it should, {device.seconds:.2f} s"
    return [about, *([f"  {device.features}"] if device.features else []), f"  {says}"]
