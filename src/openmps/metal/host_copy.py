"""The host's copy of a buffer in the memory of a device that the CPU cannot address."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.locks import new_reentrant_lock

_flushing = new_reentrant_lock()


def flushing() -> AbstractContextManager[object]:
    """Entered while host copies are flushed: by one thread at a time, and by a signal handler that runs then."""
    return _flushing


def _forget_threads() -> None:
    """In a forked process: a thread that was flushing stayed behind in the parent."""
    global _flushing
    _flushing = new_reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class HostCopy:
    """An array that the CPU reads and writes, beside what the device was last known to hold.

    Bytes in which the two differ were written by the CPU and have not reached the device: `flush` brings exactly those
    there, and `read` leaves them alone, so writing in several steps loses nothing. Once nothing is left to bring, the
    array lives only as long as someone outside holds it.
    """

    def __init__(self) -> None:
        self._array: Callable[[], NDArray[np.uint8] | None] = lambda: None
        self._unsent: NDArray[np.uint8] | None = None
        self._known = np.empty(0, np.uint8)

    def read(self, storage: torch.Tensor) -> NDArray[np.uint8]:
        """The array, up to date with the device."""
        fresh = storage.cpu().numpy()
        array = self._array()
        if array is None:
            array, self._known = fresh.copy(), fresh.copy()
            self._array = weakref.ref(array)
        else:
            np.copyto(array, fresh, where=array == self._known)
            np.copyto(self._known, fresh)
        self._unsent = array
        return array

    def write(self, storage: torch.Tensor, start: int, stop: int) -> None:
        """Bring the bytes from ``start`` to ``stop`` to the device."""
        array = self._array()
        if array is not None:
            # Copied first: another thread may go on writing to the array.
            sent = array[start:stop].copy()
            storage[start:stop].copy_(torch.from_numpy(sent))
            self._known[start:stop] = sent

    def flush(self, storage: torch.Tensor) -> bool:
        """Bring what the CPU wrote to the device; False if nobody holds the array any more."""
        array = self._array()
        if array is None:
            return False
        written = array != self._known
        start = int(written.argmax())
        if written[start]:
            stop = len(array) - int(written[::-1].argmax())
            self._merge(storage[start:stop], array[start:stop].copy(), written[start:stop], start)
        self._unsent = None
        return True

    def _merge(self, part: torch.Tensor, sent: NDArray[np.uint8], written: NDArray[np.bool_], start: int) -> None:
        """Replace the written bytes of ``part`` and no others: work may have changed its neighbours since."""
        mask, values = torch.from_numpy(written).to(part.device), torch.from_numpy(sent).to(part.device)
        part.copy_(torch.where(mask, values, part))
        np.copyto(self._known[start : start + len(sent)], sent, where=written)
