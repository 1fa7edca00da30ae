"""Signals (Ctrl-C, alarms) and work that their handlers must not tear."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = "INT", "TERM", "HUP", "QUIT", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "CHLD"
_SIGNALS = tuple(getattr(signal, f"SIG{name}") for name in _NAMES if hasattr(signal, f"SIG{name}"))
"""Those whose handlers programs write, some of which raise."""
_own: Any = sys.modules.get("_signal", signal)
"""The functions of `signal` without the enumerations that those make of each number: this is done at each wait."""


@contextmanager
def signals_held_back() -> Generator[None]:
    """Let handlers of signals run at the end of the block; in threads other than the main one they never run anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    held: dict[int, Callable[[int, FrameType | None], object]] = {}
    try:
        for number in _SIGNALS:
            if callable(handler := _own.getsignal(number)):
                held[number] = handler
                _own.signal(number, note)
        yield
    finally:
        for number, handler in held.items():
            _own.signal(number, handler)
        _handle(came, held)


def _handle(
    came: list[tuple[int, FrameType | None]], handlers: dict[int, Callable[[int, FrameType | None], object]]
) -> None:
    """Call the handlers; one that raises does not keep the others from being called."""
    if came:
        number, frame = came.pop(0)
        try:
            handlers[number](number, frame)
        finally:
            _handle(came, handlers)
