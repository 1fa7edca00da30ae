"""Modes of torch that a thread is in, and what they must not do: change what recorded work computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch
from torch import is_grad_enabled, is_inference_mode_enabled

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
    """The modes of the calling thread. Between `leave` and `give_back` it runs work as a worker does, which has none.

    Nothing is initialized: each launch makes one.
    """

    are_back = True
    """Whether there is nothing to be given back."""
    _was_in_queue = _had_gradients = False
    _others: ExitStack | None = None

    def note(self) -> None:
        """Have `give_back` bring back what is so now."""
        self._was_in_queue, self._had_gradients = getattr(thread, "in_queue", False), is_grad_enabled()
        self.are_back = False

    def leave(self) -> None:
        """Have none of them."""
        self._was_in_queue, self._had_gradients = getattr(thread, "in_queue", False), is_grad_enabled()  # as `note`
        self.are_back, thread.in_queue = False, True
        if is_inference_mode_enabled() or _is_autocast():
            self._others = ExitStack()
            # This one comes first: it turns gradients on.
            self._others.enter_context(torch.inference_mode(mode=False))
            for kind in ("cpu", "cuda"):
                self._others.enter_context(torch.autocast(kind, enabled=False))
        if self._had_gradients or self._others is not None:
            _set_gradients(False)

    def give_back(self) -> None:
        """Have them again, as often as it is called: an interrupt may come at any place of the first call."""
        if self.are_back:
            return
        if self._others is not None:
            self._others.close()
        thread.in_queue = self._was_in_queue
        if is_grad_enabled() is not self._had_gradients:
            _set_gradients(self._had_gradients)
        self.are_back = True


def are_overridden() -> bool:
    """Whether functions of torch do something else in this thread, by a mode of functions or of dispatch."""
    return bool(_engine._len_torch_function_stack() or _engine._len_torch_dispatch_stack())
