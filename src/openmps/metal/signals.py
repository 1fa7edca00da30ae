"""Signals (Ctrl-C, alarms) and work that their handlers must not tear."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = "INT", "TERM", "HUP", "QUIT", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "CHLD"
_SIGNALS = tuple(getattr(signal, f"SIG{name}") for name in _NAMES if hasattr(signal, f"SIG{name}"))
"""Those whose handlers programs write, some of which raise."""
_own: Any = sys.modules.get("_signal", signal)
"""The functions of `signal` without the enumerations that those make of each number: this is done at each wait."""


class SignalsHeldBack:
    """A block at whose end handlers of signals run; in threads other than the main one they never run anyway."""

    __slots__ = ("_came", "_held")

    def __enter__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._held: dict[int, Callable[[int, FrameType | None], object]] = {}
        if threading.get_ident() != threading.main_thread().ident:
            return
        came, held = self._came, self._held

        def note(number: int, frame: FrameType | None) -> None:
            came.append((number, frame))

        try:
            for number in _SIGNALS:
                if callable(handler := _own.getsignal(number)):
                    held[number] = handler
                    _own.signal(number, note)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for number, handler in self._held.items():
            _own.signal(number, handler)
        if self._came:
            _handle(self._came, self._held)


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
