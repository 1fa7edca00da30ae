"""Progress: one plain line an epoch in a file, a live display on a terminal."""

import io

import pytest
from rich.console import Console

from openmps.training.metrics import TrainingStatus
from openmps.training.progress import TrainingProgress, format_seconds

STATUS = TrainingStatus(1, 10, 0.5124, 0.8765, 12345.6, 75.4)
DONE = TrainingStatus(1, 20, 0.4, 0.9, 12345.6, 30.0, test_loss=0.3, test_accuracy=0.95)


def show(console):
    with TrainingProgress(2, 20, console=console) as progress:
        progress.update(STATUS)
        progress.finish_epoch(DONE)


def test_a_file_gets_one_line_an_epoch():
    file = io.StringIO()
    show(Console(file=file, width=40, force_terminal=False))
    assert file.getvalue() == ("epoch 1/2  loss 0.400, 90.0 %  test 0.300, 95.0 %  12,346/s  0:30 left\n")


def test_a_file_gets_a_line_every_ten_seconds():
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, width=40, force_terminal=False)
    with TrainingProgress(2, 20, console=console, clock=lambda: now[0]) as progress:
        for _ in range(35):
            progress.update(STATUS)
            now[0] += 1
        progress.finish_epoch(DONE)
        progress.update(STATUS)
    lines = file.getvalue().splitlines()
    assert lines[:3] == ["epoch 1/2  loss 0.512, 87.6 %  12,346/s  1:15 left"] * 3
    assert len(lines) == 4 and "test" in lines[3]


@pytest.mark.parametrize("loss", [0.0, 12.3, 99.99999, 1e5, 9.9e8, float("nan")])
def test_lines_fit_80_columns(loss):
    file = io.StringIO()
    with TrainingProgress(100, 1000, console=Console(file=file, width=40, force_terminal=False)) as progress:
        progress.finish_epoch(TrainingStatus(100, 99999, loss, 1.0, 123456.7, 3675.0, test_loss=loss, test_accuracy=1))
    assert len(file.getvalue()) <= 81


def test_the_console_without_an_argument_writes_to_stdout(capsys):
    show(None)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_terminal_gets_a_live_display_and_the_same_line():
    file = io.StringIO()
    console = Console(file=file, width=150, force_terminal=True, color_system=None, legacy_windows=False, _environ={})
    with TrainingProgress(2, 20, console=console) as progress:
        progress.update(STATUS)
        progress._live.refresh()  # it refreshes itself ten times a second, which is longer than this test lasts
        assert "epoch 1/2  loss 0.512, 87.6 %  12,346/s  1:15 left" in file.getvalue()
        progress.finish_epoch(DONE)
    text = file.getvalue()
    assert "loss 0.400, 90.0 %  test 0.300, 95.0 %  12,346/s  0:30 left\n" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor hidden, then shown again


def test_the_cursor_comes_back_after_ctrl_c():
    file = io.StringIO()
    console = Console(file=file, width=150, force_terminal=True, legacy_windows=False, _environ={})

    def interrupted():
        with TrainingProgress(2, 20, console=console) as progress:
            progress.update(STATUS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().rstrip().count("\x1b[?25h") == 1


def test_unknown_values_are_left_out():
    file = io.StringIO()
    with TrainingProgress(1, 1, console=Console(file=file)) as progress:
        progress.finish_epoch(TrainingStatus(1, 1, float("nan"), 0.0, 0.0))
    assert file.getvalue() == "epoch 1/1  loss nan, 0.0 %  0/s\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (9.6, "0:10"), (59.7, "1:00"), (75, "1:15"), (3675, "1:01:15"), (90000, "25:00:00")],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
