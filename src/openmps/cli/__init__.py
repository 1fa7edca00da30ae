"""The command line: training and looking at runs, weights and models in and out; ``openmps --help`` names the commands.

The engine is imported by the commands, when they run: ``--help`` and ``--version`` answer at once.

Exit status: 0 when done, 2 for wrong usage and for every named error, 130 after Ctrl-C, 1 when the output cannot be
written or nobody reads it, when ``lint`` finds errors, when what ``compare`` compares departs, when what
``golden check`` checks is beyond its limits and when ``doctor`` finds faults.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TextIO

import typer

from openmps import __version__
from openmps.cli.doctor import doctor
from openmps.cli.evaluation import evaluate
from openmps.cli.export import export
from openmps.cli.golden import golden_app
from openmps.cli.inspection import compare, profile, trace
from openmps.cli.layers import summary
from openmps.cli.lint import lint
from openmps.cli.onnx import convert, run
from openmps.cli.options import sentence
from openmps.cli.padding import explain_padding
from openmps.cli.prediction import predict
from openmps.cli.quantize import quantize
from openmps.cli.selftest import selftest
from openmps.cli.streams import printable_streams
from openmps.cli.training import train
from openmps.cli.view import view
from openmps.cli.weights import weights_app
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSTrainingWarning

_PACKAGE = Path(__file__).parent.parent
_USAGE = 2
_INTERRUPTED = 130
_UNWRITTEN = 1
_PATHS = (
    *("--chrome", "--data", "--goldens", "--network", "--out", "--output", "--record", "--resume", "--run"),
    *("--report", "--run-folder", "--samples"),
)
"""Options that are files or folders."""

app = typer.Typer(
    name="openmps",
    help="Metal Performance Shaders' convolutional networks on any CPU and on NVIDIA GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    *(train, evaluate, predict, summary, convert, run, export, quantize, lint, view),
    *(trace, compare, profile, selftest, doctor),
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(weights_app)
app.add_typer(golden_app)
app.command("explain-padding")(explain_padding)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"openmps {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own unless given) and return the exit status."""
    _open_streams()
    with printable_streams():
        return _ended(arguments)


def _ended(arguments: Sequence[str] | None) -> int:
    """The exit status of a command line, after the sentence that says why where it fails."""
    show, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        status = _status(arguments)
        sys.stdout.flush()
    except MPSError as error:
        _say(f"error: {sentence(error)}")
        return _USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        # What reads and writes files has errors of its own: this is the output. Whoever read it may have gone
        # (`openmps … | head`): then nothing is left to be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _say(f"error: the output could not be written: {error.strerror or error}")
        return _UNWRITTEN
    finally:
        warnings.showwarning = show
    return status


def _open_streams() -> None:
    """Make the standard streams take any text: they may be closed, or unable to write a name as it is."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  open as long as the process
        if isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _status(arguments: Sequence[str] | None) -> int:
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    _require_current_folder()
    _refuse_empty_paths(given)
    try:
        app(args=given, prog_name="openmps")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _refuse_empty_paths(arguments: Sequence[str]) -> None:
    """Raise where a file or folder is called nothing, which a path would take for the current folder."""
    for place, text in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        option = before if not text else text.removesuffix("=")
        is_argument = not text and not before.startswith("-")
        if is_argument or (option in _PATHS and (not text or text.endswith("="))):
            what = f"argument {place + 1}" if is_argument else option
            remedy = "A variable of the shell may have no value"
            raise MPSArgumentError("openmps", what, "must not be empty: it names a file or folder", repr(""), remedy)


def _require_current_folder() -> None:
    """Raise where the current folder was removed: libraries of the engine end the process there."""
    try:
        os.getcwd()
    except OSError as error:
        raise MPSFileError("openmps", "the current folder", "must be there", error.strerror, "Go to another") from error


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One plain line for what openmps warns of; the source line says nothing to a user of the command line."""
    is_own = issubclass(category, MPSTrainingWarning) or Path(filename).is_relative_to(_PACKAGE)
    text = f"warning: {message}" if is_own else None
    print(text or warnings.formatwarning(message, category, filename, lineno, line), file=file or sys.stderr)
