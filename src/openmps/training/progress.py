"""What training shows while it runs: a live display on a terminal, one line an epoch elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from openmps.training.metrics import TrainingStatus


class TrainingProgress:
    """Epoch, loss, accuracy, images per second and time left, while training runs.

    On a terminal a live bar moves with each :meth:`update`; anywhere else (a file, a pipe, a CI log) only the line of
    each finished epoch is printed, which the terminal shows above the bar, too. Use it in a ``with`` statement.
    """

    def __init__(self, epochs: int, iterations_per_epoch: int, *, console: Console | None = None) -> None:
        self._epochs = epochs
        self._iterations_per_epoch = iterations_per_epoch
        self._console = console or Console()
        self._live: Progress | None = None
        if self._console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._live = Progress(*columns, console=self._console, transient=True)
            self._task = self._live.add_task("starting", total=epochs * iterations_per_epoch)

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
        """Show the state after a batch; nothing where the output is not a terminal."""
        if self._live is not None:
            self._live.update(self._task, completed=status.iteration, description=self._line(status))

    def finish_epoch(self, status: TrainingStatus) -> None:
        """Print the line of an epoch that is over."""
        self.update(status)
        self._console.print(self._line(status), markup=False, highlight=False, soft_wrap=True)

    def _line(self, status: TrainingStatus) -> str:
        parts = [
            f"epoch {status.epoch}/{self._epochs}",
            f"loss {status.loss:.4f}",
            f"accuracy {_percent(status.accuracy)}",
        ]
        if status.test_loss is not None:
            parts.append(f"test loss {status.test_loss:.4f}")
        if status.test_accuracy is not None:
            parts.append(f"test accuracy {_percent(status.test_accuracy)}")
        parts.append(f"{status.images_per_second:,.0f} images/s")
        if status.seconds_left is not None:
            parts.append(f"{format_seconds(status.seconds_left)} left")
        return "  ".join(parts)


def format_seconds(seconds: float) -> str:
    """``75`` → ``1:15``, ``3675`` → ``1:01:15``; rounded to whole seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
