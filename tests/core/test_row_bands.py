"""Filters some rows at a time: the numbers are those of the whole, wherever bands begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel import row_bands
from openmps.ops.op import Role
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import FILTERS, FilterSample

CPU = mtl_device("cpu")
HEIGHT, WIDTH = 61, 7
BY_ROWS = [
    next(sample for sample in samples if "to NON_PREMULTIPLIED" not in sample.name)  # which may be the picture itself
    for kind, samples in FILTERS.items()
    if getattr(kind, "_is_by_rows", False)
]


def _stored(channel_format: Format, channels: int) -> torch.Tensor:
    values = np.random.default_rng(channels).integers(0, 256, (1, HEIGHT, WIDTH, channels), np.uint8)
    pixels = values if channel_format is Format.UNORM8 else values.astype(np.float32) / 255
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@in_one_test
@pytest.mark.parametrize("edge", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP], ids=lambda edge: edge.name)
@pytest.mark.parametrize("sample", BY_ROWS, ids=str)
def test_bands_make_the_numbers_of_the_whole(
    sample: FilterSample, edge: MPSImageEdgeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = sample.make(CPU)
    for prefix in ("primary_", "secondary_") if len(sample.channels) == 2 else ("",):
        setattr(kernel, f"{prefix}offset", MPSOffset(1, -19, 0))  # whole bands lie above the source
        setattr(kernel, f"{prefix}edge_mode", edge)
    made = sample.made or sample.channels[0]
    for stored_as in (Format.UNORM8,) if sample.bytes_alone else (Format.UNORM8, Format.FLOAT32):
        sources = tuple(Shape(Extent(WIDTH, HEIGHT, count, 1), stored_as) for count in sample.channels)
        monkeypatch.setattr(row_bands, "NUMBERS", 1)
        plan = kernel.plan(sources, Shape(Extent(WIDTH, HEIGHT, made, 1), stored_as))
        given = [
            _stored(stored_as, sample.channels[int(name)])
            if role is Role.SOURCE
            else plan.constants[int(name)].on(CPU.torch_device).value()
            for role, name in plan.function.inputs
        ]
        forms = plan.function.forms["cpu"].__self__
        assert forms.bands is not None
        (found,) = forms.bands.run([*given])
        monkeypatch.setattr(plan.function, "forms", {})
        (expected,) = plan.function.run([*given])
        monkeypatch.undo()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=2e-6 if stored_as is Format.FLOAT32 else 0)
