"""Captures of what a static function does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from openmps.metal.stream import is_capturing
from openmps.ops.triton.addresses import Tables

Run = Callable[[], Sequence[Tensor | None]]
"""Launches work over fixed memory and gives what comes out."""


class Recording(Protocol):
    """What was captured."""

    @property
    def values(self) -> Sequence[Tensor | None]:
        """What comes out, in the same memory after each replay."""
        ...

    def replay(self) -> None:
        """Run it all again, in the order of the current stream."""
        ...


class Recorder(Protocol):
    """Captures work on one device."""

    def is_taken(self) -> bool:
        """Whether somebody else captures what is launched now: a program that replays command buffers by itself."""
        ...

    def record(self, run: Run) -> Recording:
        """Capture what ``run`` launches, which does not compute anything yet. Raises if that is not possible."""
        ...

    def retire(self) -> None:
        """Called before recordings are dropped: wait until none of them runs any more."""
        ...


class _Graph:
    """A CUDA graph and what comes out of it."""

    def __init__(self, graph: torch.cuda.CUDAGraph, values: Sequence[Tensor | None], tables: Tables) -> None:
        self._tables = tables
        self.values = values
        self.replay: Callable[[], None] = super(torch.cuda.CUDAGraph, graph).replay
        """See `Recording`: that of the engine, without the function of Python that `torch.cuda` puts around it."""


class CudaRecorder:
    """Captures CUDA graphs, which share one pool of memory: they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._graphs: WeakSet[_Graph] = WeakSet()

    is_taken = staticmethod(is_capturing)
    """See `Recorder`."""

    def record(self, run: Run) -> Recording:
        """See `Recorder`."""
        if self._stream is None:
            # Above what begins on a branch of its own and can wait: see `ops.triton.beside`.
            self._stream = torch.cuda.Stream(self._device, priority=-1)
        if not self._graphs:
            # The engine does not open a pool again whose last graph is gone.
            self._pool = torch.cuda.graph_pool_handle()
        # Memory that earlier work has left unused would be missing: a capture takes its own from the device.
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph, tables = torch.cuda.CUDAGraph(), Tables(self._device)
        # What the collector frees meanwhile might do what a capture forbids.
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._stream), tables:
                # Other threads, the queue's among them, go on using the device.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    values = run()
                    graph.capture_end()
                except BaseException:
                    self._give_up(graph)
                    raise
        finally:
            if collects:
                gc.enable()
        current.wait_stream(self._stream)
        tables.fill()
        made = _Graph(graph, values, tables)
        self._graphs.add(made)
        return made

    def _give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that has failed. The engine leaves the pool open if the device refused to go on with it."""
        with suppress(RuntimeError):
            graph.capture_end()
        end: Any = getattr(torch, "_C", None)
        end = getattr(end, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):
                end(self._device.index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    def retire(self) -> None:
        """See `Recorder`."""
        torch.cuda.synchronize(self._device)
