"""Modes of torch that a thread is in, and what they must not do: change what recorded work computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch

from openmps.metal.pending import thread

_engine: Any = import_module("torch._C")
# The context managers of torch make ten calls for this one, and this is entered at each commit.
_set_gradients: Callable[[bool], object] = getattr(_engine, "_set_grad_enabled", torch.set_grad_enabled)
_is_autocast: Callable[[], bool] = getattr(
    _engine,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)


class ThreadModes:
    """The modes of the calling thread. As a block: recorded work runs in it as in a worker thread, which has none."""

    __slots__ = ("_had_gradients", "_others", "_was_in_queue")

    def __init__(self) -> None:
        self._was_in_queue, self._had_gradients = getattr(thread, "in_queue", False), torch.is_grad_enabled()
        self._others: ExitStack | None = None

    def __enter__(self) -> None:
        thread.in_queue = True
        if torch.is_inference_mode_enabled() or _is_autocast():
            self._others = ExitStack()
            # This one comes first: it turns gradients on.
            self._others.enter_context(torch.inference_mode(mode=False))
            for kind in ("cpu", "cuda"):
                self._others.enter_context(torch.autocast(kind, enabled=False))
        if self._had_gradients or self._others is not None:
            _set_gradients(False)

    def give_back(self, *_: object) -> None:
        """Have them again, as often as it is called: an exception may arise at the very edge of a block."""
        if self._others is not None:
            self._others.close()
        thread.in_queue = self._was_in_queue
        if torch.is_grad_enabled() is not self._had_gradients:
            _set_gradients(self._had_gradients)

    __exit__ = give_back


def are_overridden() -> bool:
    """Whether functions of torch do something else in this thread, by a mode of functions or of dispatch."""
    return bool(_engine._len_torch_function_stack() or _engine._len_torch_dispatch_stack())
