"""What a machine can do at most: measured by a matrix product and a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import torch

from openmps.core.lifetime import check_is_device
from openmps.metal.device import MTLDevice
from openmps.selectors import name_arguments

_SIDE = {"cpu": 768, "cuda": 8192}
"""Rows and columns of the matrices: so many that their memory is not what takes time."""
_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Bytes that are copied: more than caches hold."""
_REPEATS = 5


@name_arguments
@dataclass(frozen=True)
class MachineLimits:
    """What a device can do at most, as measured: the roofline. Our addition.

    ``operations`` are floating point operations a second of a matrix product, by the type of its numbers;
    ``bandwidth`` is bytes read and written a second by a copy. A step that does better works in caches.
    """

    device: str
    operations: Mapping[str, float]
    bandwidth: float

    def least_seconds(self, operations: float, moved: float, dtype: torch.dtype) -> float:
        """The time that so many operations and bytes take at least."""
        name = str(dtype).removeprefix("torch.")
        rate = self.operations.get(name, self.operations["float32"])
        return max(operations / rate, moved / self.bandwidth)

    def __str__(self) -> str:
        rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s {name}" for name, rate in self.operations.items())
        return f"{self.device}: {rates}; {self.bandwidth / 1e9:,.1f} GB/s"


def machine_limits(device: MTLDevice) -> MachineLimits:
    """Measure what a device can do; takes a fraction of a second, once a process and number of threads. Our addition.

    The CPU multiplies float16 images in float32; a GPU has a rate of its own for them.
    """
    check_is_device("openmps.debug.machine_limits", "device", device)
    return _measured(device, torch.get_num_threads())


@lru_cache(maxsize=16)
def _measured(device: MTLDevice, threads: int) -> MachineLimits:
    place = device.torch_device
    kind = "cuda" if place.type == "cuda" else "cpu"
    types = (torch.float32, torch.float16) if kind == "cuda" else (torch.float32,)
    side, count = _SIDE[kind], _BYTES[kind] // 4
    rates: dict[str, float] = {}
    for dtype in types:
        a, b = (torch.ones((side, side), dtype=dtype, device=place) for _ in range(2))
        result = torch.empty_like(a)
        seconds = _seconds(lambda a=a, b=b, result=result: torch.mm(a, b, out=result), place)
        rates[str(dtype).removeprefix("torch.")] = 2 * side**3 / seconds
    source, target = (torch.ones(count, device=place) for _ in range(2))
    return MachineLimits(device.name, rates, 2 * source.nbytes / _seconds(lambda: target.copy_(source), place))


def _seconds(work: Callable[[], Any], place: torch.device) -> float:
    """The median of a few repeats, the first ones left out."""
    found: list[float] = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        found.append(time.perf_counter() - began)
    return median(found[1:])
