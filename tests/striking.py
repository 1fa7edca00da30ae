"""Something happens at every place of the package at which an interrupt or a signal may strike."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import openmps
from openmps.locks import InterruptSafeLock

_SOURCE = str(Path(openmps.__file__).parent)
_TAKES_A_LOCK = InterruptSafeLock.__enter__.__code__


def _raise() -> None:
    raise KeyboardInterrupt


def interrupted(action: Callable[[], object], at: int, strike: Callable[[], None] = _raise) -> bool:
    """Does something, and calls ``strike`` at place number ``at`` of openmps; whether it got that far.

    Places are where the interpreter looks for signals: behind calls, at the beginning of functions, at jumps back.
    """
    left, last = at, dict[FrameType, str]()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            looks = last.get(frame, "").startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            left -= looks
            if left == 0:
                sys.settrace(None)
                strike()
        elif event == "return" and frame.f_code is _TAKES_A_LOCK and frame.f_back is not None:
            # That is a function of Python so that the interpreter does not look behind its call.
            last.pop(frame.f_back, None)
        return trace

    before = sys.gettrace()
    # Python 3.12 sees to instructions only if a frame asked for them before the trace function was set.
    sys._getframe().f_trace_opcodes = True
    gc.disable()  # finalizers are no part of the action
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
        last.clear()
    return left <= 0


def at_every_place() -> Iterator[Callable[[Callable[[], object], Callable[[], None]], bool]]:
    """For each place of an action a function that does it, and strikes there; ends when one says that it did not."""
    at, struck = 0, True

    def once(action: Callable[[], object], strike: Callable[[], None]) -> bool:
        nonlocal struck
        struck = interrupted(action, at, strike)
        return struck

    while struck:
        at += 1
        yield once
