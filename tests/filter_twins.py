"""Filters by OpenCV or by compiled loops beside their slow twins, our own forms in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8, Bench, finish
from openmps.core.kernel import configuration
from openmps.ops import numba, opencv
from openmps.ops.image.library_form import ByLibrary
from openmps.ops.numba import loop, table
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import FilterSample

CPU = mtl_device("cpu")
BENCH = Bench(CPU)
HALFWAY = 2e-3
"""Of a byte: positions and sums are float32."""
EDGES = (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP)


def loops_of_any_picture(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    """The rows of the table of loops that have run: of pictures of any size, shared by two threads in narrow bands."""
    # Equal filters share plans: those of other tests were made for pictures that this one takes for small.
    monkeypatch.setattr(configuration, "_interned", WeakValueDictionary())
    for key, row in table.FORMS.items():
        monkeypatch.setitem(table.FORMS, key, row._replace(smallest=0))
    monkeypatch.setattr(numba, "LARGE", 0)
    monkeypatch.setattr(loop, "_SHARED", 300)
    monkeypatch.setattr(loop, "_BAND", 100)
    found: list[tuple[type, ...]] = []
    run = ByLibrary.run

    def noted(self: Any, library: Any, *arguments: Any) -> Any:
        if library is numba.library():
            found.append(tuple(map(type, self._site.ops)))
        return run(self, library, *arguments)

    monkeypatch.setattr(ByLibrary, "run", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield found
    torch.set_num_threads(before)


@contextmanager
def own_forms() -> Iterator[None]:
    """As if neither package could not be loaded."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (numba, opencv):
            patch.setattr(module, "library", lambda: None)
        yield


def encoded(kernel: Any, sources: list[Any], destination: Any) -> np.ndarray:
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, *sources, destination)
    finish(command_buffer)
    return destination.read_bytes()


def compare(make: Callable[[Format], np.ndarray], stored_as: Format) -> None:
    """What makes results of a format: bytes differ only where their numbers lie halfway, but for roundings of sums."""
    found = make(stored_as)
    with own_forms():
        expected = make(stored_as)
        if stored_as in (FLOAT16, FLOAT32):
            few = 2e-6 if stored_as is FLOAT32 else 1e-3
            limit = 2e-6 * np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
            np.testing.assert_allclose(found, expected, rtol=few, atol=limit)
        elif (apart := found != expected).any():
            numbers = make(FLOAT32)[apart].astype(np.float64) * 255.0
            assert np.abs(found[apart] - numbers).max() <= 0.5 + HALFWAY
            assert np.abs(expected[apart] - numbers).max() <= 0.5 + HALFWAY


def compare_sample(sample: FilterSample, stored_as: Format) -> None:
    """Whole, and a part of another place, which windows leave on two sides, as they do edges of either kind."""
    if sample.bytes_alone and stored_as is FLOAT32:
        return
    kernel: Any = sample.make(CPU)
    images = [BENCH.image(each, stored_as) for each in sample.sources(2)]
    shape = 2, *sample.destination

    def make(kernel: Any) -> Callable[[Format], np.ndarray]:
        return lambda result: encoded(kernel, images, BENCH.filled(shape, 0.5, result))

    for result in {stored_as, UNORM8 if sample.bytes_alone else FLOAT32}:
        compare(make(kernel), result)
    for edge in EDGES if sample.is_placed else ():
        moved = kernel.copy()
        for prefix in ("primary_", "secondary_") if len(images) == 2 else ("",):
            setattr(kernel, f"{prefix}edge_mode", edge)
            setattr(moved, f"{prefix}edge_mode", edge)
            setattr(moved, f"{prefix}offset", MPSOffset(4 if prefix == "secondary_" else -2, 3, 0))
        moved.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(4, 3, 2))
        for each in (kernel, moved):
            compare(make(each), stored_as)
