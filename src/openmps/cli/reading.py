"""Files and folders that commands read: looked for when arguments are, before the engine is imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from openmps.cli.options import require_another
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from openmps.training.run_folder import RunFolder

RUNS = Path("runs")
_WHO = "openmps"
_SHOWN_RUNS = 8


def is_onnx(path: Path) -> bool:
    """Whether a path is called as ONNX models are."""
    return path.suffix.lower() == ".onnx"


def is_coreml(path: Path) -> bool:
    """Whether a path is called as Core ML's packages and files are."""
    return path.suffix.lower() in (".mlpackage", ".mlmodel")


def is_model(path: Path) -> bool:
    """Whether a path is called as a model that is converted, which some commands take as it is."""
    return is_onnx(path) or is_coreml(path)


_Given = TypeVar("_Given", Path, Path | None)


def require_network(path: _Given) -> _Given:
    """The callback of an argument that is a run, by its folder or its name in ``runs``, or a file or package."""
    if path is not None:
        _found(path)
    return path


def require_model(path: Path) -> Path:
    """The callback of an argument that is a file or package."""
    from openmps.formats.paths import is_there

    if not is_there(path, _WHO):
        raise MPSFileError(_WHO, str(path), "must be a file", "nothing there")
    return path


def require_data(path: _Given) -> _Given:
    """The callback of an argument that is a folder."""
    from openmps.formats.paths import require_folder

    if path is not None:
        require_folder(path, _WHO)
    return path


def require_files(paths: Sequence[Path] | None) -> Sequence[Path] | None:
    """The callback of arguments that are files."""
    from openmps.formats.paths import require_file

    for path in paths or ():
        require_file(path, _WHO)
    return paths


def require_unread(out: Path, network: Path, beside: Iterable[Path | None] = ()) -> None:
    """Raise ``MPSFileError`` where what would be written is read: the network, its external data or what is beside."""
    require_another(out, network, "the network")
    if not os.path.lexists(out):
        return
    external: list[Path] = []
    if is_onnx(network):
        from openmps.formats.onnx.reading import external_files

        external = external_files(network)
    for source in (*external, *beside):
        if source is not None:
            require_another(out, source, "those that are read")


Run = Annotated[
    Path,
    typer.Argument(help="The run folder, or its name in runs.", show_default=False, callback=require_network),
]
Network = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|ARCHIVE",
        help="A run folder, or a graph in an archive.",
        show_default=False,
        callback=require_network,
    ),
]


def _found(path: Path) -> Path:
    """Where a run, an archive or a model is; an error lists the runs that there are."""
    from openmps.formats.paths import is_there

    named = RUNS / path
    if is_there(path, _WHO) or len(path.parts) != 1 or not is_there(named, _WHO):
        named = path
    if not is_there(named, _WHO) and not os.path.islink(named):
        if is_model(path):
            require_model(path)
        raise MPSFileError(_WHO, str(path), "must be a folder", "nothing there", _known_runs())
    return named


def open_run(path: Path) -> RunFolder:
    """The run at a path, or of a name in ``runs``."""
    from openmps.formats.paths import is_file
    from openmps.training.run_folder import RunFolder

    named = _found(path)
    if is_file(named, _WHO):
        remedy = "Archives and ONNX models have no classes: see openmps summary, convert and run"
        raise MPSFileError(_WHO, str(path), "must be a run folder", "a file", remedy)
    return RunFolder.open(named)


def _known_runs() -> str:
    found: list[str] = []
    with suppress(OSError):  # no runs yet
        found = sorted(folder.name for folder in RUNS.iterdir() if os.path.isfile(folder / "run.json"))
    shown = ", ".join(found[-_SHOWN_RUNS:])
    more = f" and {len(found) - _SHOWN_RUNS} older ones" if len(found) > _SHOWN_RUNS else ""
    return f"In runs there are: {shown}{more}." if found else "In runs there are none."
