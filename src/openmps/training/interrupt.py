"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from openmps.checks import Shown


class SafeInterrupt(KeyboardInterrupt):
    """Ctrl-C, raised where nothing is half done."""


class DeferredInterrupt:
    """While it is entered, Ctrl-C is noted and raised by `check`, where it is safe; a second one is raised at once.

    ``of_launcher`` says that a launcher started this process: it may pass Ctrl-C on, so a second one is no other.
    """

    def __init__(self, *, of_launcher: bool = False) -> None:
        # A launcher passes on what the terminal sent already, and asks its processes to end by SIGTERM; it kills them
        # where they do not.
        self._signals = (signal.SIGINT, signal.SIGTERM) if of_launcher else (signal.SIGINT,)
        self._is_patient = of_launcher
        self._noted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        # Only the main thread may set handlers, and only a handler of Python's can be put back; a process that ignores
        # the signal goes on ignoring it.
        is_main = threading.current_thread() is threading.main_thread()
        for number in self._signals if is_main else ():
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    is_noted = Shown[bool]("_noted", "Whether Ctrl-C was pressed.")

    def check(self) -> None:
        """Raise `SafeInterrupt` if Ctrl-C was pressed."""
        if self._noted:
            raise SafeInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._noted and not self._is_patient:
            raise KeyboardInterrupt
        self._noted = True
