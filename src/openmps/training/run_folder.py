"""The folder of one training run: what was trained, how it went, and the weights, readable at any moment.

``run.json`` describes the run, ``metrics.jsonl`` has one line for each measurement, ``weights.safetensors`` all
weights, ``{label}_{part}.dat`` each array for an app's bundle, ``curve.png`` and ``misclassified.png`` pictures of
the training; ``checkpoints`` has what the training goes on from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, of_kind
from openmps.core.kinds import mapped
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.formats.arrays import Array
from openmps.formats.atomic import remove_leftovers, require_writable, write_atomic
from openmps.formats.json_text import read_json
from openmps.formats.locks import folder_lock
from openmps.formats.paths import is_there, path_of, require_folder, visible_entries
from openmps.formats.weights import dat_file_names, load_safetensors, save_dat_files, save_safetensors
from openmps.selectors import name_arguments
from openmps.training.checkpoint import CheckpointFolder
from openmps.training.imported import KEPT
from openmps.training.json_lines import JsonLines, plain_json

FORMAT = "openmps.run"
VERSION = 1
_DESCRIPTION = "run.json"
_LONGEST_DESCRIPTION = 16 << 20
_RESERVED = ("format", "version", "created")


@name_arguments
class RunFolder(NamedAttributes):
    """One run on disk; made by :meth:`create` or :meth:`open`.

    Every file but the metrics is replaced as a whole (:func:`openmps.formats.write_atomic`), the metrics only grow,
    so an interrupted run stays usable.
    """

    path: Path
    checkpoints: CheckpointFolder

    def __init__(self, path: Path, description: Mapping[str, object]) -> None:
        self.path = path = path_of(path, type(self).__name__)
        self._description = dict(of_kind(type(self).__name__, "description", description, Mapping))
        self._made: frozenset[str] | None = None
        self._metrics = JsonLines(path / "metrics.jsonl")
        self.checkpoints = CheckpointFolder(path / "checkpoints")

    @classmethod
    def create(
        cls,
        parent: str | os.PathLike[str],
        config: Mapping[str, object],
        *,
        name: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> RunFolder:
        """Make a new folder in ``parent`` (made too, where missing) and write ``config`` into its ``run.json``.

        ``config`` is anything that JSON can hold: the network, the class names, the options. Without ``name`` the
        folder is named after the local time, ``2025-01-31_18-05-09``, with ``-2``, ``-3``, … behind it where taken.
        ``files`` are contents of more files by name; a folder with a ``run.json`` has them, whenever it was killed.
        Never touches a folder that is already there: with a ``name`` that is taken it raises ``MPSFileError``.
        """
        who = "RunFolder.create"
        root = path_of(parent, who, "parent")
        description = _describe(mapped(who, "config", config, object, "values"), who)
        more = {} if files is None else mapped(who, "files", files, bytes)
        folder = _make_folder(root, name, who)
        try:
            contents = {**more, _DESCRIPTION: _as_json(description)}
            for file, content in contents.items():
                write_atomic(folder / file, content)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # what made writing fail may forbid this too
            raise
        run = cls(folder, description)
        run._made = frozenset(contents)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The run in an existing folder.

        Raises ``MPSFileError`` where the folder or its ``run.json`` is missing or damaged, or where a newer openmps
        wrote it.
        """
        who = "RunFolder.open"
        folder = path_of(path, who)
        require_folder(folder, who)
        file = folder / _DESCRIPTION
        if not is_there(file, who):
            raise MPSFileError(who, str(folder), f"must be a run folder, with a {_DESCRIPTION}", "a folder without it")
        return cls(folder, _read_description(file, who))

    @property
    def config(self) -> dict[str, object]:
        """What :meth:`create` was given, as read back from JSON: a new copy each time."""
        copy = cast("dict[str, object]", json.loads(json.dumps(self._description)))
        return {key: value for key, value in copy.items() if key not in _RESERVED}

    @property
    def created(self) -> str:
        """When the run was made: ISO 8601 with the offset from UTC."""
        return str(self._description.get("created", ""))

    @property
    def weights_path(self) -> Path:
        """The file of all weights."""
        return self.path / "weights.safetensors"

    @property
    def network_path(self) -> Path:
        """The ONNX file that the run began with, if its network came out of one."""
        return self.path / KEPT

    metrics_path = Shown[Path]("_metrics.path", "The file of the measurements, one JSON object a line.")

    @property
    def curve_path(self) -> Path:
        """The picture of loss and accuracy."""
        return self.path / "curve.png"

    @property
    def events_path(self) -> Path:
        """The folder of the event files that TensorBoard shows, if training was asked for them."""
        return self.path / "tensorboard"

    @property
    def misclassified_path(self) -> Path:
        """The picture of the images that the network got wrong."""
        return self.path / "misclassified.png"

    def amend(self, changes: Mapping[str, object]) -> None:
        """Replace entries of `config`, in ``run.json`` too; it keeps when the run was made."""
        plain = _plain_config(mapped("RunFolder.amend", "changes", changes, object, "values"), "RunFolder.amend")
        description = {**self._description, **plain}
        write_atomic(self.path / _DESCRIPTION, _as_json(description))
        self._description = description

    @contextmanager
    def in_training(self) -> Generator[None]:
        """Keep the run for one training at a time, and clear what one that was killed left half written.

        Raises ``MPSFileError`` where another process, or another thread, is training it, and where the weights could
        not be saved. The system takes the lock back when a process dies, however it does.
        """
        with folder_lock(self.path, "RunFolder.in_training", "must not be in training already"):
            for folder in (self.path, self.checkpoints.path):
                remove_leftovers(folder)
            self._check_writable()
            yield

    def _check_writable(self) -> None:
        """Raise before the work where weights could not be saved after it: a folder or a device in their place."""
        raw = [file for file in visible_entries(self.path, "RunFolder.in_training") if file.suffix == ".dat"]
        for file in (self.weights_path, *raw):
            require_writable(file)

    @contextmanager
    def removed_unless_begun(self) -> Generator[None]:
        """Remove a folder that `create` has made where what is done within raises before it writes anything there.

        A start that is refused so leaves its name free. A training that has begun stays, to go on with, and so does a
        folder that was opened.
        """
        try:
            yield
        except BaseException:
            with suppress(OSError):
                if self._made is not None and self._made.issuperset(os.listdir(self.path)):
                    shutil.rmtree(self.path)
            raise

    def flush_metrics(self) -> int:
        """Make the metrics durable, and return how many bytes they take."""
        return self._metrics.flush()

    def cut_metrics(self, length: int) -> None:
        """Drop the metrics behind the first ``length`` bytes, as `flush_metrics` gave them."""
        self._metrics.cut(length)

    def log(self, metrics: Mapping[str, object]) -> None:
        """Append one line of measurements; see :meth:`openmps.training.json_lines.JsonLines.append`."""
        self._metrics.append(metrics)

    def read_metrics(self) -> list[dict[str, object]]:
        """All measurements, oldest first; a torn last line is dropped, any other damage is an ``MPSFileError``."""
        return self._metrics.read()

    def save_weights(self, arrays: Mapping[str, Array]) -> None:
        """Write the named arrays (``conv1.weights`` OHWI, ``conv1.biases``, …) as safetensors and as raw files.

        ``weights.safetensors`` is replaced first and at once: it is the one that :meth:`load_weights` reads. The raw
        files follow one by one, each whole; where saving is interrupted among them, some are of the save before.
        """
        dat_file_names(
            mapped("RunFolder.save_weights", "arrays", arrays, object, "arrays")
        )  # refuses what cannot be a file before anything is written
        save_safetensors(self.weights_path, arrays)
        save_dat_files(self.path, arrays)

    def load_weights(self, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, NDArray[np.float32]]:
        """The arrays last saved, by layer; with ``shapes``, exactly these (see :func:`load_safetensors`)."""
        if shapes is not None:
            mapped("RunFolder.load_weights", "shapes", shapes, object, "shapes")
        if not is_there(self.weights_path, "RunFolder.load_weights"):
            rule = "must hold weights.safetensors"
            remedy = "The run ended before it saved any weights: train again."
            raise MPSFileError("RunFolder.load_weights", str(self.path), rule, "a run without weights", remedy)
        return load_safetensors(self.weights_path, shapes)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"


def _describe(config: Mapping[str, object], who: str) -> dict[str, object]:
    plain = _plain_config(config, who)
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"format": FORMAT, "version": VERSION, "created": created, **plain}


def _plain_config(config: Mapping[str, object], who: str) -> dict[str, object]:
    taken = sorted(set(config) & set(_RESERVED))
    if taken:
        raise MPSArgumentError(who, "config", f"must not use the keys {', '.join(_RESERVED)}", ", ".join(taken))
    return cast("dict[str, object]", plain_json(config, who, "config"))


def _as_json(description: Mapping[str, object]) -> bytes:
    return json.dumps(description, indent=2).encode() + b"\n"


def _make_folder(parent: Path, name: str | None, who: str) -> Path:
    if name is not None and (
        not isinstance(name, str) or name in ("", ".", "..") or path_of(name, who, "name").name != name
    ):
        raise MPSArgumentError(who, "name", "must be the name of one folder", repr(name), "Give the rest as parent.")
    stem = datetime.now().strftime("%Y-%m-%d_%H-%M-%S") if name is None else name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                folder.mkdir()  # fails where the name is taken, also when another process takes it at this moment
                return folder
            except FileExistsError:
                if name is not None:
                    break
    except OSError as error:
        # Not as `Path` has them, which raise on some versions of Python where the system does not tell.
        above = (parent, *parent.parents)
        file = next((each for each in above if os.path.exists(each) and not os.path.isdir(each)), None)
        if file is not None:
            raise MPSFileError(who, str(file), "must take a new folder", "a file", "Give another parent.") from error
        raise MPSFileError(who, str(parent), "must take a new folder", error.strerror or error) from error
    rule = "must be new: a run is never overwritten"
    raise MPSFileError(who, str(parent / stem), rule, "a name that is taken", "Give another name.")


def _read_description(file: Path, who: str) -> dict[str, object]:
    found = read_json(file, who, _LONGEST_DESCRIPTION)
    description = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if description.get("format") != FORMAT:
        raise MPSFileError(who, str(file), f"must have the format {FORMAT!r}", repr(description.get("format"))[:60])
    if description.get("version") != VERSION:
        got = repr(description.get("version"))[:60]
        rule = f"must have version {VERSION}"
        raise MPSFileError(who, str(file), rule, got, "Use the openmps that wrote it, or newer.")
    return description
