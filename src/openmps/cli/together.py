"""Commands in processes that a launcher such as ``torchrun`` has started together."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from openmps.errors import MPSArgumentError, MPSTrainingWarning

if TYPE_CHECKING:
    from openmps.distributed import Group
    from openmps.training.run_folder import RunFolder

_WHO = "openmps train"


def is_alone() -> bool:
    """Whether nothing in the environment is of a launcher: told before the engine is imported.

    Of processes that were started together the first looks for files, and one word is for all.
    """
    return os.environ.keys().isdisjoint(("RANK", "WORLD_SIZE"))


@contextmanager
def joined(device: str) -> Generator[Group | None]:
    """The processes that were started with this one; None where no launcher has started it.

    The first one alone shows what training warns of. A process that fails leaves word for the others.
    """
    began = time.monotonic()  # before all that takes long to import
    from openmps.distributed.launch import is_launched

    if not is_launched():
        yield None
        return
    from openmps.distributed.group import Group

    group = Group.join(device, since=began)
    try:
        with warnings.catch_warnings():
            if group.rank:
                warnings.simplefilter("ignore", MPSTrainingWarning)
            yield group
    except BaseException as error:
        group.say_why(error)
        raise
    finally:
        group.leave()


def run_of_all(group: Group | None, make: Callable[[], RunFolder]) -> RunFolder:
    """The run folder that ``make`` gives in the first process, and in the others one that they leave to it."""
    if group is None:
        return make()
    from openmps.training.processes import FollowedRun
    from openmps.training.run_description import run_files

    own = group.together(lambda: make() if group.rank == 0 else None)
    with nullcontext() if own is None else own.removed_unless_begun():
        files = group.together(lambda: {} if own is None else run_files(own))
        said = group.broadcast((Path(), {}, files) if own is None else (own.path, own.config, files))
        return group.together(lambda: FollowedRun(*said) if own is None else own)


def run_to_go_on_with(group: Group | None, run: Path | None, resume: Path | None) -> Path | None:
    """The run that is to go on: that of ``--resume``, or after a restart by the launcher the one that was begun.

    Raises where a restart could not find it.
    """
    from openmps.formats.paths import is_there

    if group is None or resume is not None:
        return resume
    if group.most_restarts and run is None:
        rule = "must be given where the launcher may start the processes again (--max-restarts)"
        raise MPSArgumentError(
            _WHO, "--run-folder", rule, None, "Name the folder: a restart goes on with the run in it"
        )
    begun = is_first(group) and run is not None and group.restarts > 0 and is_there(run / "run.json", _WHO)
    return run if group.broadcast(begun) else None


def is_first(group: Group | None) -> bool:
    """Whether this process is the one that prints and writes."""
    return group is None or group.rank == 0


def work_of_each(group: Group, batch_size: int) -> list[str]:
    """What each process does, a line each, in all of them."""
    share = max(1, batch_size // group.count)
    own = f"on {group.device.name} of {platform.node() or 'this machine'}"
    lines: list[str] = []
    for rank, place in enumerate(group.gather(own)):
        first = rank * share + 1
        writes = ", writes the run" if rank == 0 else ""
        lines.append(f"process {rank} {place}: images {first} to {first + share - 1} of each {batch_size}{writes}")
    return lines
