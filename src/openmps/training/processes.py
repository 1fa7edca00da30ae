"""What the training loop asks of processes that train together; `openmps.distributed.Group` has it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSFileError
from openmps.formats.arrays import Array
from openmps.formats.atomic import write_atomic
from openmps.graph.graph import MPSNNGraph
from openmps.ops.update.collectives import Processes
from openmps.training.checkpoint import Checkpoint, CheckpointFolder
from openmps.training.imported import KEPT
from openmps.training.run_folder import RunFolder

T = TypeVar("T")


class TrainingProcesses(Protocol):
    """The processes of one training, seen from one of them."""

    @property
    def rank(self) -> int:
        """Which one this is; the first, 0, writes the run folder."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def processes(self) -> Processes:
        """The same for operations."""
        ...

    def share(
        self, graph: MPSNNGraph, *, synchronizes_statistics: bool = False, shards_optimizer_state: bool = False
    ) -> None:
        """Have a graph train on this process's share of each batch."""
        ...

    def gather(self, value: T) -> list[T]:
        """What each gives, in all of them."""
        ...

    def broadcast(self, value: T) -> T:
        """What the first gives, in all of them."""
        ...

    def together(self, work: Callable[[], T]) -> T:
        """Do something in each; all raise where one does."""
        ...

    def check_alike(self, what: str, value: Any, remedy: str = "") -> None:
        """Raise in all of them unless they give equal values."""
        ...

    def say_why(self, error: BaseException) -> None:
        """Leave word for the others of why this one ends."""
        ...


def share_of(batch_size: int, processes: TrainingProcesses | None, parts: int = 1) -> int:
    """Images of a batch that one process reads; raises unless a batch has equal shares, in so many equal parts each."""
    count = 1 if processes is None else processes.count
    if batch_size % (count * parts):
        unit = count * parts
        each = f"{count}, the number of processes that share each batch" if count > 1 or parts == 1 else ""
        some = f"{parts}, the number of parts that it is computed in" if parts > 1 else ""
        rule = f"must be a multiple of {' times '.join(filter(None, (each, some)))}"
        below = batch_size - batch_size % unit
        remedy = f"Use {below} or {below + unit}" if below else f"Use {unit}"
        remedy += ", or a number of processes that divides it" if count > 1 else ""
        raise MPSArgumentError("TrainingOptions", "batch_size", rule, batch_size, remedy)
    return batch_size // count


def together(processes: TrainingProcesses | None, work: Callable[[], T]) -> T:
    """What ``work`` gives; where several processes do it, all go on or none."""
    return work() if processes is None else processes.together(work)


def from_the_first(processes: TrainingProcesses, found: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint of the first process, which alone needs to see the files."""
    data = processes.broadcast(None if found is None or processes.rank else found.to_bytes())
    return found if data is None or not processes.rank else Checkpoint.from_bytes(data)


class _NoCheckpoints(CheckpointFolder):
    """Checkpoints that another process writes."""

    def steps(self) -> list[int]:
        """None."""
        return []

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
        """Nothing is written."""
        return self.file(checkpoint.step)


class FollowedRun(RunFolder):
    """A run folder that another process writes and reads, and which may be on another machine.

    ``files`` are those that this process needs, by name, as the other one has read them: it gets copies of its own.
    """

    def __init__(self, path: Path, description: Mapping[str, object], files: Mapping[str, bytes] | None = None) -> None:
        super().__init__(path, description)
        self._copies = copies(files) if files else None
        self.checkpoints = _NoCheckpoints(path / "checkpoints")

    @property
    def network_path(self) -> Path:
        """This process's copy, if it has one."""
        return super().network_path if self._copies is None else Path(self._copies.name, KEPT)

    def amend(self, changes: Mapping[str, object]) -> None:
        """Replace entries of `config` here alone."""
        self._description = {**self._description, **changes}

    def in_training(self) -> Any:
        """The first process holds the lock."""
        return nullcontext()

    def removed_unless_begun(self) -> Any:
        """The first process removes it."""
        return nullcontext()

    def flush_metrics(self) -> int:
        """0: no byte is this process's."""
        return 0

    def cut_metrics(self, length: int) -> None:
        """Nothing is cut."""

    def log(self, metrics: Mapping[str, object]) -> None:
        """Nothing is written."""

    def read_metrics(self) -> list[dict[str, object]]:
        """None."""
        return []

    def save_weights(self, arrays: Mapping[str, Array]) -> None:
        """Nothing is written."""


def copies(files: Mapping[str, bytes]) -> tempfile.TemporaryDirectory[str]:
    """Files in a folder that lasts as long as what is returned."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="openmps-")
    except OSError as error:
        rule = "must take a new folder"
        raise MPSFileError("FollowedRun", "the folder of temporary files", rule, error.strerror or error) from error
    for name, content in files.items():
        write_atomic(Path(folder.name, name), content)
    return folder


def shared_probabilities(
    find: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    images: NDArray[np.uint8],
    batch: int,
    processes: TrainingProcesses,
) -> NDArray[np.float32]:
    """What ``find`` gives for images, each process for some whole batches of them, in the images' order."""
    batches = -(-len(images) // batch)
    first, last = (batches * place // processes.count * batch for place in (processes.rank, processes.rank + 1))
    own = images[first:last]
    found = processes.together(lambda: find(own) if len(own) else None)
    return np.concatenate([part for part in processes.gather(found) if part is not None])
