"""What training shows while it runs: a live display on a terminal, one line an epoch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from openmps.checks import KnownAttributes, described, having, of_kind
from openmps.selectors import name_arguments
from openmps.training.metrics import TrainingStatus

_PAUSE = 10  # seconds between two lines


@name_arguments
class TrainingProgress(KnownAttributes):
    """Epoch, loss and accuracy, the same of the test, images per second and time left, within 80 columns.

    On a terminal a live bar moves with each :meth:`update`; anywhere else (a file, a pipe, a CI log) a line is printed
    every ten seconds, and that of each finished epoch, which the terminal shows above the bar, too. Use it in a
    ``with`` statement. ``clock`` gives seconds; tests pass their own.
    """

    def __init__(
        self,
        epochs: int,
        iterations_per_epoch: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        who = type(self).__name__
        self._clock = having("__call__", "must be a function that gives seconds")(who, "clock", clock)
        self._printed = clock()
        self._epochs = epochs
        self._iterations_per_epoch = iterations_per_epoch
        self._console = Console() if console is None else of_kind(who, "console", console, Console)
        self._live: Progress | None = None
        if self._console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._live = Progress(*columns, console=self._console, transient=True)
            self._task = self._live.add_task("starting", total=epochs * iterations_per_epoch)

    def __repr__(self) -> str:
        return described(self, f"{self._epochs} epochs of {self._iterations_per_epoch} iterations")

    def __enter__(self) -> TrainingProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, status: TrainingStatus) -> None:
        """Show the state after a batch; every ten seconds where the output is not a terminal."""
        if self._live is not None:
            self._live.update(self._task, completed=status.iteration, description=self._line(status))
        elif self._clock() - self._printed >= _PAUSE:
            self._print(status)

    def finish_epoch(self, status: TrainingStatus) -> None:
        """Print the line of an epoch that is over."""
        if self._live is not None:
            self.update(status)
        self._print(status)

    def _print(self, status: TrainingStatus) -> None:
        self._printed = self._clock()
        self._console.print(self._line(status), markup=False, highlight=False, soft_wrap=True)

    def _line(self, status: TrainingStatus) -> str:
        parts = [
            f"epoch {status.epoch}/{self._epochs}",
            f"loss {_figure(status.loss)}, {_percent(status.accuracy)}",
        ]
        if status.test_loss is not None and status.test_accuracy is not None:
            parts.append(f"test {_figure(status.test_loss)}, {_percent(status.test_accuracy)}")
        parts.append(f"{status.images_per_second:,.0f}/s")
        if status.seconds_left is not None:
            parts.append(f"{format_seconds(status.seconds_left)} left")
        return "  ".join(parts)


def format_seconds(seconds: float) -> str:
    """``75`` → ``1:15``, ``3675`` → ``1:01:15``; rounded to whole seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _figure(loss: float) -> str:
    return f"{loss:.3f}" if abs(loss) < 10 else f"{loss:.3g}" if abs(loss) < 1000 else f"{loss:.0e}"
