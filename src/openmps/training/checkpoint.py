"""Checkpoints: everything that a training goes on from, in files that are whole or not there.

One checkpoint is one safetensors file with a JSON document and a checksum in its header, like an archive. Reading one
runs nothing that it names, and checks everything before it is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, is_whole, of_kind, whole
from openmps.core.kinds import mapped
from openmps.core.training_state import Checkpointed, TrainingState
from openmps.errors import MPSArgumentError, MPSFileError, MPSTrainingWarning, MPSTypeError, warn_user
from openmps.formats.archive.container import pack, read_archive, unpack
from openmps.formats.arrays import to_stored
from openmps.formats.atomic import make_folder, remove_leftovers, write_atomic
from openmps.formats.paths import is_forbidden, path_of
from openmps.graph.graph import MPSNNGraph
from openmps.selectors import name_arguments

FORMAT = "openmps.checkpoint"
VERSION = 1
_FILE = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,18})\.safetensors")
_WHO = "Checkpoint"
_LAST_STEP = 2**63 - 1


@name_arguments
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training after ``step`` steps, 0 to 2**63 - 1.

    ``parts`` has the state of each object by a name of the caller's choice: a flat mapping of whole numbers, floats,
    text and arrays. ``about`` describes what it belongs to, in values that JSON has. ``path`` is the file that it came
    from.
    """

    step: int
    parts: Mapping[str, TrainingState]
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    path: Path | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.step, 0) or self.step > _LAST_STEP:
            raise MPSArgumentError(_WHO, "step", f"must be a whole number from 0 to {_LAST_STEP}", repr(self.step)[:60])

    @classmethod
    def of(cls, step: int, parts: Mapping[str, Checkpointed], about: Mapping[str, Any] | None = None) -> Checkpoint:
        """The state of some objects, read at once: call it when the command buffers that change them are done."""
        named: dict[str, Any] = {**mapped(_WHO, "parts", parts, Checkpointed, "what has a training state")}
        said = {} if about is None else mapped(_WHO, "about", about, object, "values")
        return cls(step, {name: _copied(part.training_state()) for name, part in named.items()}, said)

    def restore(self, parts: Mapping[str, Checkpointed]) -> None:
        """Make each object go on from here; the names must be those of the checkpoint.

        Raises ``MPSFileError`` naming the part that is missing, is not expected or does not fit; every object is then
        as it was before.
        """
        parts = mapped(_WHO, "parts", parts, Checkpointed, "what has a training state")
        for kind, culprits in (("misses", set(parts) - set(self.parts)), ("has", set(self.parts) - set(parts))):
            if culprits:
                listed = ", ".join(repr(name) for name in sorted(culprits)[:4])
                got = f"a checkpoint that {kind} {listed}"
                raise MPSFileError(_WHO, self._name, f"must hold the parts {', '.join(sorted(parts))}", got)
        before = {name: _copied(part.training_state()) for name, part in parts.items()}
        changed: list[str] = []
        for name, part in parts.items():
            changed.append(name)
            try:
                part.restore_training_state(self.parts[name])
            except BaseException as error:
                lost = [each for each in changed if not _is_put_back(parts[each], before[each]) and each != name]
                if not isinstance(error, Exception):
                    raise
                remedy = "Go on with the network that wrote it."
                if lost:
                    remedy += f" Make {', '.join(lost)} anew: what was changed could not be put back."
                raise MPSFileError(_WHO, self._name, f"part {name!r} must fit", error, remedy) from error

    def to_bytes(self) -> bytes:
        """The file, read back before it is given; the same checkpoint gives the same bytes."""
        arrays: dict[str, NDArray[Any]] = {}
        parts = {name: _split(name, state, arrays) for name, state in self.parts.items()}
        facts = {"format": FORMAT, "checkpoint_version": VERSION, "step": self.step}
        try:
            data = pack({**facts, "about": dict(self.about), "parts": parts}, arrays)
        except (TypeError, ValueError, RecursionError) as error:
            raise MPSTypeError(_WHO, "contents", "must be values that JSON has, and finite", error) from error
        self.from_bytes(data)
        return data

    @classmethod
    def from_bytes(cls, data: bytes, path: Path | None = None) -> Checkpoint:
        """The checkpoint in a file's bytes; ``MPSFileError`` where they are not one, whole and unchanged."""
        what = "checkpoint" if path is None else str(path)
        document, arrays = unpack(data, _WHO, what)
        if document.get("format") != FORMAT:
            raise MPSFileError(_WHO, what, f"must have the format {FORMAT!r}", repr(document.get("format"))[:60])
        version = document.get("checkpoint_version")
        if version != VERSION:
            remedy = "Go on with the openmps that wrote it."
            raise MPSFileError(_WHO, what, f"must have version {VERSION}", repr(version)[:60], remedy)
        try:
            json.dumps(document, allow_nan=False)
            parts = {name: _joined(part, arrays) for name, part in document["parts"].items()}
            return cls(document["step"], parts, dict(document["about"]), path)
        except (MPSArgumentError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise MPSFileError(_WHO, what, "must describe a step and its parts, in finite numbers", error) from error

    @property
    def _name(self) -> str:
        return "checkpoint" if self.path is None else str(self.path)


def _copied(state: TrainingState) -> dict[str, Any]:
    """A state that later steps do not change."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in state.items()}


def _is_put_back(part: Checkpointed, state: TrainingState) -> bool:
    """Give a part its own state back. One that refuses a checkpoint unchanged may refuse this one, too."""
    try:
        part.restore_training_state(state)
    except Exception:  # the error that is under way says more
        return False
    return True


def _split(part: str, state: TrainingState, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """A state without its arrays, which go into ``arrays``, and the names that they have there."""
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name, value in state.items():
        if not isinstance(part, str) or not isinstance(name, str):
            raise MPSTypeError(_WHO, f"part {part!r}, state {name!r}", "must have text as names", None)
        if isinstance(value, np.ndarray):
            key = f"{part}.{name}"
            while key in arrays:  # part "a.b" with "c", part "a" with "b.c"
                key += "'"
            arrays[key], keys[name] = to_stored(value, _WHO, f"part {part!r}, state {name!r}"), key
        elif isinstance(value, int | float | str):
            values[name] = value
        else:
            rule = "must be a number, text or a NumPy array"
            raise MPSTypeError(_WHO, f"part {part!r}, state {name!r}", rule, type(value).__name__)
    return {"values": values, "arrays": keys}


def _joined(part: Any, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    values, keys = part["values"], part["arrays"]
    if any(not isinstance(value, int | float | str) for value in values.values()):
        raise ValueError("a value that is neither number nor text")
    return {**values, **{name: arrays[key] for name, key in keys.items()}}


def graph_parts(graph: MPSNNGraph) -> dict[str, Checkpointed]:
    """What a checkpoint has to keep of a graph: its data sources and kernels that have a state, by label.

    Those without a label go by their class; of several of one name the later ones are numbered. After `restore` the
    graph needs ``reload_from_data_sources()``. A data source without ``training_state()`` keeps its own affairs.
    """
    parts: dict[str, Checkpointed] = {}
    of_kind("graph_parts", "graph", graph, MPSNNGraph)
    for kernel in graph.kernels.values():
        for thing in (getattr(kernel, "data_source", None), kernel):
            if isinstance(thing, Checkpointed) and not any(thing is part for part in parts.values()):
                name, number = _label(thing), 1
                while (key := name if number == 1 else f"{name} {number}") in parts:
                    number += 1
                parts[key] = thing
    return parts


def _label(thing: object) -> str:
    label: object = getattr(thing, "label", None)
    found = label() if callable(label) else label
    return str(found) if found else type(thing).__name__


@name_arguments
class CheckpointFolder(NamedAttributes):
    """The checkpoints of one training: ``step-00000300.safetensors`` and so on, each whole at every moment."""

    path: Path

    _attribute_checks = {"path": lambda who, _, value: path_of(value, who)}  # noqa: RUF012

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_of(path, "CheckpointFolder")

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, whole or not, in order."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MPSFileError("CheckpointFolder", str(self.path), "could not be read", error.strerror) from error
        return sorted(int(found[1]) for found in map(_FILE.fullmatch, names) if found)

    def file(self, step: int) -> Path:
        """The file of the checkpoint after ``step`` steps."""
        return self.path / f"step-{step:08}.safetensors"

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
        """Write a checkpoint and then, when it is durable, remove all but it and the ``keep - 1`` before it.

        Later ones go, too: this training has left their path. The bytes are read back before and behind the disk;
        where that or writing fails, nothing is removed.
        """
        of_kind("CheckpointFolder.save", "checkpoint", checkpoint, Checkpoint)
        keep = whole("CheckpointFolder.save", "keep", keep, rule="must be a whole number from 1 on")
        content = checkpoint.to_bytes()
        make_folder(self.path)
        file = self.file(checkpoint.step)
        write_atomic(file, content)
        kept = [step for step in self.steps() if step <= checkpoint.step][-keep:]
        for step in self.steps():
            if step not in kept:
                with suppress(OSError):  # one file too many does no harm, and the next save tries again
                    self.file(step).unlink(missing_ok=True)
        return file

    def load(self, step: int) -> Checkpoint:
        """The checkpoint after ``step`` steps; ``MPSFileError`` naming the file where it is missing or damaged."""
        step = whole("CheckpointFolder.load", "step", step, 0)
        file = self.file(step)
        checkpoint = Checkpoint.from_bytes(read_archive(file, _WHO), file)
        if checkpoint.step != step:
            raise MPSFileError(_WHO, str(file), f"must be of step {step}, as its name says", checkpoint.step)
        return checkpoint

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where there are no checkpoints.

        Warns (``MPSTrainingWarning``) of each damaged file that is passed over. Raises ``MPSFileError`` where there are
        checkpoints and none is whole, and where one may not be read: it may be whole.
        """
        faults: list[MPSFileError] = []
        for step in reversed(self.steps()):
            try:
                found = self.load(step)
            except MPSFileError as error:
                if is_forbidden(error):
                    raise
                faults.append(error)
                continue
            for fault in faults:
                message = f"{fault}. Going back to the checkpoint of step {step}."
                warn_user(message, MPSTrainingWarning)
            return found
        if faults:
            rule, remedy = "must hold a whole checkpoint", "Train again, into a new folder."
            got = f"{len(faults)} damaged: {faults[0]}"
            raise MPSFileError("CheckpointFolder", str(self.path), rule, got, remedy) from faults[0]
        return None

    def sweep(self) -> list[str]:
        """Remove what a process killed while writing left behind; to be called when nobody else writes here."""
        return remove_leftovers(self.path)

    def __repr__(self) -> str:
        return f"CheckpointFolder({str(self.path)!r})"
