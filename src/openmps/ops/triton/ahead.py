"""Launches of kernels, and kernels compiled before their first launch, many at a time.

A launch by itself compiles a kernel and waits for it. Later ones ask every argument again what it was compiled for,
which takes twice as long as the launch: so what arguments that came before have launched is kept.

While `Compiling` is entered, launches of the calling thread launch nothing. What they would have needed is compiled by
threads, which wait for other programs most of the time, and is there when the block ends. What a launch would have
written is left as it is.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_MOST_THREADS = 16
ALIGNMENT = 16
"""Addresses and numbers that this divides are compiled for apart."""
_here = threading.local()
"""``compiling``: what the launches of the calling thread are told to."""
_asked: set[Hashable] = set()
"""What was compiled ahead in this process."""
_MOST_KEPT = 256
"""Launches of one kernel that are kept: numbers may be others each time."""
_stream_of: Callable[[int], int | None] = getattr(
    getattr(torch, "_C", None), "_cuda_getCurrentRawStream", lambda _device: None
)
"""The handle of a device's current stream; None where a launch is to find it."""


class Launched:
    """A kernel that is launched, not called by other kernels: above its `triton.jit`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._kept: dict[Hashable, tuple[Callable[..., object], int]] = {}
        """What launches the kernel as it was compiled for some arguments, and on which device; by `_exactly` these."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        compiling: Compiling | None = getattr(_here, "compiling", None)
        return partial(self._launch, grid) if compiling is None else partial(compiling.ask, self._kernel, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        key = grid, *map(_exactly, arguments), *options.items()
        kept = self._kept.get(key)
        if kept is not None:
            launch, device = kept
            launch(*arguments, stream=_stream_of(device))
            return
        launch = self.anew(grid, *arguments, **options)
        if launch is not None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = launch, torch.cuda.current_device()

    def anew(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> Callable[..., object] | None:
        """Launch without looking for what is kept; what launches it again, which Triton's interpreter does not give."""
        compiled = self._kernel[grid](*arguments, **options)
        return None if compiled is None else _launcher(compiled, (*grid, 1, 1)[:3])


def _hooks() -> Any:
    """What has the hooks of Triton's launches; None in versions that have them elsewhere."""
    return getattr(getattr(sys.modules.get("triton"), "knobs", None), "runtime", None)


def _launcher(compiled: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """What launches a compiled kernel on a stream.

    Triton describes each launch for the hooks of profilers, and calls two chains of them, which most often are empty.
    That takes longer than all else that it does in Python: it is told that there are none then.
    """
    described: Callable[..., object] = compiled[grid]
    hooks = _hooks()
    if hooks is None:
        return described
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = grid

    def launch(*arguments: Any, stream: int | None) -> None:
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        if stream is None or getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            described(*arguments, stream=stream)
        else:
            run(x, y, z, stream, function, packed, None, None, None, *arguments)

    return launch


class Launch(NamedTuple):
    """A launch that is yet to be made."""

    kernel: Launched
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})


class Launches(NamedTuple):
    """Launches that are yet to be made one behind the other, and memory between them that nobody reads afterwards."""

    launches: tuple[Launch, ...]
    between: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, kernel: Launched, grid: tuple[int, ...], arguments: tuple[Any, ...], **options: Any) -> Launches:
        """A single one."""
        return cls((Launch(kernel, grid, arguments, options),))

    def now(self) -> None:
        """Make them."""
        for kernel, grid, arguments, options in self.launches:
            kernel[grid](*arguments, **options)

    def first(self, tensors: Sequence[Tensor]) -> Again | None:
        """Make them, and give what makes them again with others in the place of these, each an object of its own.

        None where nothing was launched, or not on a device.
        """
        if getattr(_here, "compiling", None) is not None:
            self.now()
            return None
        made = [kernel.anew(grid, *arguments, **options) for kernel, grid, arguments, options in self.launches]
        return None if None in made else Again(made, self, tensors)


class Again:
    """Launches as they were made once, with other tensors that lie alike: at addresses with equal remainders by 16.

    Nothing is asked about their arguments any more, which takes as long as the launches.
    """

    __slots__ = ("_between", "_device", "_launches")

    def __init__(self, made: Sequence[Any], launches: Launches, tensors: Sequence[Tensor]) -> None:
        order = {id(each): index for index, each in enumerate((*tensors, *launches.between))}
        self._device = torch.cuda.current_device()
        self._between = [(each.numel(), each.dtype, each.device) for each in launches.between]
        self._launches: list[tuple[Callable[..., object], list[Any], list[tuple[int, int]]]] = []
        for launch, (_, _, arguments, _) in zip(made, launches.launches, strict=True):
            kept = [None if id(each) in order else each for each in arguments]
            places = [(place, order[id(each)]) for place, each in enumerate(arguments) if id(each) in order]
            self._launches.append((launch, kept, places))

    def __call__(self, addresses: list[int]) -> None:
        """Launch on the current stream; ``addresses`` are those of the tensors, in their order."""
        if getattr(_here, "compiling", None) is not None:
            return
        stream = _stream_of(self._device)
        between = [torch.empty(count, dtype=dtype, device=device) for count, dtype, device in self._between]
        addresses += map(Tensor.data_ptr, between)
        for launch, arguments in self._of(addresses):
            launch(*arguments, stream=stream)

    def placed(self, addresses: list[int]) -> Placed | None:
        """What launches the same at these addresses each time; None where it has memory between."""
        return None if self._between else Placed(self._device, self._of(addresses))

    def _of(self, addresses: list[int]) -> list[tuple[Callable[..., object], list[Any]]]:
        """The launches with their arguments."""
        made: list[tuple[Callable[..., object], list[Any]]] = []
        for launch, kept, places in self._launches:
            arguments = kept.copy()
            for place, index in places:
                arguments[place] = addresses[index]
            made.append((launch, arguments))
        return made


class Placed:
    """Launches at addresses that stay."""

    __slots__ = ("_device", "_launches")

    def __init__(self, device: int, launches: list[tuple[Callable[..., object], list[Any]]]) -> None:
        self._device, self._launches = device, launches

    def __call__(self) -> None:
        """Launch on the current stream."""
        if getattr(_here, "compiling", None) is None:
            stream = _stream_of(self._device)
            for launch, arguments in self._launches:
                launch(*arguments, stream=stream)


def _exactly(argument: Any) -> Hashable:
    """What decides on how a kernel is compiled for an argument, and more: of numbers their values."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.get_device(), argument.data_ptr() % ALIGNMENT
    if isinstance(argument, tuple):
        return tuple(map(_exactly, argument))
    if isinstance(argument, float):
        return repr(argument)
    block = _block_of(argument)
    return (type(argument), argument) if block is None else (_exactly(argument.base), block)


def _block_of(argument: Any) -> tuple[int, ...] | None:
    """The shape of the blocks that a descriptor of a tensor (Triton's ``TensorDescriptor``) names; None of others."""
    block = getattr(argument, "block_shape", None)
    return None if block is None else tuple(block)


class Compiling:
    """Compiles what launches on a device need, as long as it is entered."""

    def __init__(self, device: torch.device) -> None:
        self.asked = 0
        """How many kernels had not been asked for before."""
        self._device = device

    def __enter__(self) -> Compiling:
        self._threads = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "openmps compiler")
        _here.compiling = self
        return self

    def __exit__(self, *fault: object) -> None:
        _here.compiling = None
        # What cannot be compiled says so when it is launched.
        self._threads.shutdown(wait=True)

    def ask(self, kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
        """Have a kernel compiled for arguments like these."""
        kinds = tuple([_kind(*each) for each in zip(arguments, kernel.params, strict=True)])
        key = (id(kernel), self._device, kinds, tuple(options.items()))
        if key not in _asked:
            _asked.add(key)
            self.asked += 1
            stand_ins = tuple(map(_stand_in, arguments))
            self._threads.submit(self._compile, kernel, grid, stand_ins, options)

    def _compile(self, kernel: Any, grid: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        made = kernel.warmup(*arguments, grid=grid, **options)
        # What launches it is compiled, too, and it is brought to the device.
        _ = made.run


class _StandIn:
    """A tensor as far as a kernel is compiled for it. It holds no memory."""

    __slots__ = ("_address", "dtype")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = tensor.data_ptr() % ALIGNMENT

    def data_ptr(self) -> int:
        return self._address


def _stand_in(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return _StandIn(argument)
    if _block_of(argument) is not None:
        described = copy(argument)
        described.base = _StandIn(argument.base)
        return described
    return tuple(map(_stand_in, argument)) if isinstance(argument, tuple) else argument


def _kind(argument: Any, parameter: Any) -> Hashable:
    """What arguments have in common that one compiled kernel takes."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNMENT == 0
    if isinstance(argument, tuple):
        return tuple([_kind(each, parameter) for each in argument])
    if parameter.is_constexpr:
        return type(argument), argument
    if (block := _block_of(argument)) is not None:
        return _kind(argument.base, parameter), block
    if type(argument) is int and not parameter.do_not_specialize:
        return argument == 1, argument % ALIGNMENT == 0, argument < 2**31
    return type(argument)
