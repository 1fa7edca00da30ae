"""Warmups: works run over zeros before they are run in earnest, for the kernels that they will launch.

They are compiled together then, by as many threads as there are cores. Nothing is written that anybody sees, and what
PyTorch itself launches runs over memory of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from openmps.ops import triton
from openmps.ops.op import Function, Role
from openmps.ops.update.collectives import alone
from openmps.runtime.binding import Binding, MemoryBinding, Number
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.signature import traits_of
from openmps.runtime.replay.static_bindings import Memories, Reader

_LEAST_STEPS = 16
"""Of fewer operations the kernels are compiled as they come."""
_MOST_IN_VAIN = 2
"""So many warmups in a row that compiled nothing are enough, until operations come that none has had."""
_MOST_KNOWN = 1 << 12
_log = logging.getLogger(__name__)


class Warmups:
    """The warmups of one queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_vain = 0
        self._functions: set[Function] = set()
        """Those that came before."""
        self._operations: set[type] = set()
        """Those that were warmed_up."""

    def hold(self, works: Iterable[Dispatch]) -> None:
        """Compile what works launch that come for the first time, and what they launch when they are captured."""
        fresh = [work for work in works if work.function not in self._functions]
        if not fresh:
            return
        if len(self._functions) > _MOST_KNOWN:
            self._functions.clear()
        functions = {work.function for work in fresh}
        self._functions |= functions
        operations = {type(action.op) for function in functions for action in function.actions}
        is_small = sum(len(function.actions) for function in functions) < _LEAST_STEPS
        is_known = self._in_vain >= _MOST_IN_VAIN and operations <= self._operations
        if is_small or is_known or not triton.runs_on(self._device):
            return
        self._operations |= operations
        self._in_vain = 0 if self._compile(fresh) else self._in_vain + 1

    def _compile(self, works: Sequence[Dispatch]) -> int:
        """How many kernels were compiled."""
        from openmps.ops.triton.ahead import Compiling

        compiling = Compiling(self._device)
        try:
            with compiling:
                warm_up(works, self._device)
        except Exception as fault:  # The work itself will raise it again, if it is of the work.
            _log.info("kernels are compiled one by one: a warmup failed, %s: %s", type(fault).__name__, fault)
        return compiling.asked


def warm_up(works: Sequence[Dispatch], device: torch.device) -> None:
    """Run works over zeros where they would read what others make, and over copies of what they would write.

    Sums over processes are not made: others may warm_up at another time, or not at all.
    Those with numbers run once more as they will be captured: with numbers on the device.
    """
    with _Zeros(), alone():
        for work in works:
            _run(work.function, _readers(work, None))
        for work in works:
            if any(each.role is Role.NUMBER for each in work.function.inputs):
                _run(work.function, _readers(work, device))


def _run(function: Function, readers: Sequence[Reader]) -> None:
    function.run([reader.read({}) for reader in readers])


class _Zeros(TorchFunctionMode):
    """New memory holds zeros: what kernels leave out that are not launched may be read as places of numbers."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in _EMPTY else made


_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


class _StandIn(NamedTuple):
    """What a warmup reads in the place of an input, for one work alone."""

    bound: Binding
    is_written: bool
    device: torch.device | None
    """Where a number is found; None for on the host."""

    def read(self, memories: Memories) -> object:
        bound = self.bound
        if isinstance(bound, Number):
            number = bound.value()
            kind = torch.int64 if isinstance(number, int) else torch.float64
            return number if self.device is None else torch.full((), number, dtype=kind, device=self.device)
        if isinstance(bound, MemoryBinding) and (bound.is_memory or self.is_written or not bound.is_in_place):
            return bound.without_memory().value()
        return _zeros_like(bound.value()) if self.is_written else bound.value()


def _zeros_like(value: object) -> object:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return [_zeros_like(each) for each in value] if isinstance(value, Iterable) else value


def _readers(work: Dispatch, device: torch.device | None) -> list[Reader]:
    traits = traits_of(work.function)
    return [
        _StandIn(bound, is_written, device if moves else None) if used else _NOTHING
        for bound, used, moves, is_written in zip(work.inputs, work.used, *traits, strict=True)
    ]


class _Nothing(NamedTuple):
    """An input that nobody reads."""

    def read(self, memories: Memories) -> None:
        return None


_NOTHING = _Nothing()
