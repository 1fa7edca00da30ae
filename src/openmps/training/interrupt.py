"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class SafeInterrupt(KeyboardInterrupt):
    """Ctrl-C, raised where nothing is half done."""


class DeferredInterrupt:
    """While it is entered, Ctrl-C is noted and raised by `check`, where it is safe; a second one is raised at once."""

    def __init__(self) -> None:
        self._noted = False
        self._previous: Any = None

    def __enter__(self) -> DeferredInterrupt:
        # Only the main thread may set handlers, and only a handler of Python's can be put back; a process that ignores
        # the signal goes on ignoring it.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Raise `SafeInterrupt` if Ctrl-C was pressed."""
        if self._noted:
            raise SafeInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True
