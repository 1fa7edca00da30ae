"""Filters by OpenCV or by compiled loops beside their slow twins, our own forms in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from encoding import FLOAT32, UNORM8, Bench, finish
from openmps.ops import numba, opencv
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import FilterSample

CPU = mtl_device("cpu")
BENCH = Bench(CPU)
HALFWAY = 2e-3
"""Of a byte: positions and sums are float32."""
EDGES = (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP)


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
        if stored_as is FLOAT32:
            limit = 2e-6 * np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=limit)
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
