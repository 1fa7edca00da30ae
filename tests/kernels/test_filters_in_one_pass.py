"""Filters in one pass of Triton's: the numbers of their operations one by one, on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interpreter import triton_place
from openmps.core.image.storage import Extent, Shape
from openmps.kernels.image_filters.convolution import MPSImageSobel
from openmps.kernels.image_filters.morphology import MPSImageAreaMax, MPSImageAreaMin
from openmps.kernels.image_scale import MPSImageBilinearScale, MPSImageLanczosScale
from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.image import one_pass
from openmps.ops.image.order import extreme
from openmps.ops.image.windows import gradient_magnitude
from openmps.ops.op import Role
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import ALL_FILTERS, SIZE, FilterSample

CPU = mtl_device("cpu")
SAMPLES = [each for each in ALL_FILTERS if not each.bytes_alone and "sigma 6" not in each.name]
BYTES, FLOATS = Format.UNORM8, Format.FLOAT32
FORMATS = [(BYTES, BYTES), (BYTES, FLOATS), (FLOATS, FLOATS), (FLOATS, BYTES)]
"""Of sources and result."""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return triton_place(monkeypatch)


def _stored(shape: Shape, place: torch.device, seed: int) -> torch.Tensor:
    extent = shape.extent
    drawn = np.random.default_rng(seed).integers(0, 256, (extent.images, extent.height, extent.width, extent.channels))
    numbers = drawn.astype(np.uint8) if shape.channel_format is BYTES else drawn.astype(np.float32) / np.float32(255)
    return torch.from_numpy(numbers).permute(0, 3, 1, 2).to(place, memory_format=torch.channels_last)


def _compare(kernel: Any, formats: tuple[Format, ...], sample: FilterSample, place: torch.device, *, at: bool) -> bool:
    """Whether there is a form, with the same numbers; ``at`` says that memory for them is there."""
    channels, height, width = sample.destination
    shapes = [Shape(Extent(SIZE[1], SIZE[0], count, 2), formats[0]) for count in sample.channels]
    plan = kernel.plan(tuple(shapes), Shape(Extent(width, height, channels, 2), formats[1]))
    if (form := plan.function.forms.get("cuda")) is None:
        return False
    sources = [_stored(each, place, seed) for seed, each in enumerate(shapes)]
    given = [
        sources[int(name)] if role is Role.SOURCE else plan.constants[int(name)].on(place).value()
        for role, name in plan.function.inputs
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "runs_on", lambda device: False)
        expected = plan.function.with_equations(plan.function.equations, plan.function.value_count).run([*given])[0]
    room = torch.full_like(expected, 77).contiguous(memory_format=torch.channels_last) if at else None
    (made,) = form([*given], room)
    assert (made is None) == at
    found, expected = (room if made is None else made).cpu().numpy(), expected.cpu().numpy()
    assert found.dtype == expected.dtype
    if formats[1] is FLOATS:
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max(initial=1.0))
    else:
        assert np.abs(found.astype(int) - expected).max() <= 1
    return True


@pytest.mark.parametrize(("number", "sample"), [*enumerate(SAMPLES)], ids=str)
def test_numbers_are_those_of_the_operations(number: int, sample: FilterSample, place: torch.device) -> None:
    """Whole beyond the nearest edge, and a part beyond zeros, which windows leave on two sides; formats go round."""
    kernel: Any = sample.make(CPU)
    moved = kernel.copy()
    if sample.is_placed:
        for prefix in ("primary_", "secondary_") if len(sample.channels) == 2 else ("",):
            setattr(kernel, f"{prefix}edge_mode", MPSImageEdgeMode.CLAMP)
            setattr(moved, f"{prefix}offset", MPSOffset(4 if prefix == "secondary_" else -2, 3, 0))
        moved.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(4, 3, 2))
    for each, turn in ((kernel, number), (moved, number + 2)):
        _compare(each, FORMATS[turn % 4], sample, place, at=turn % 3 > 0)


SCALES = [
    FilterSample(f"{kind.__name__} to {size}", kind, lambda *given: given[0][0], (4,), result=size)
    for kind, size in ((MPSImageBilinearScale, (4, 9)), (MPSImageLanczosScale, (7, 8)))
]


@pytest.mark.parametrize("edge", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP], ids=lambda edge: edge.name)
@pytest.mark.parametrize("sample", SCALES, ids=str)
def test_scaled_pictures(sample: FilterSample, edge: MPSImageEdgeMode, place: torch.device) -> None:
    kernel: Any = sample.make(CPU)
    kernel.edge_mode = edge
    for formats in FORMATS[edge::2]:
        assert _compare(kernel, formats, sample, place, at=True)


def test_every_row_of_the_table_has_run(place: torch.device) -> None:
    """Of whole pictures of both formats, the samples above make all forms that there are."""
    found = set[tuple[type, ...]]()
    for sample in (*SAMPLES, *SCALES):
        for formats in FORMATS:
            shapes = tuple(Shape(Extent(SIZE[1], SIZE[0], count, 1), formats[0]) for count in sample.channels)
            channels, height, width = sample.destination
            plan = sample.make(CPU).plan(shapes, Shape(Extent(width, height, channels, 1), formats[1]))
            if (form := plan.function.forms.get("cuda")) is not None:
                found.add(tuple(map(type, form.__self__._site.ops)))
                assert plan.function.launches == 1
    assert found == one_pass.FORMS.keys()


def _form(kernel: Any, x: torch.Tensor) -> Any:
    """The form of a kernel for pictures like x, of the same size."""
    images, channels, height, width = x.shape
    shape = Shape(Extent(width, height, channels, images), BYTES if x.dtype == torch.uint8 else FLOATS)
    return kernel.plan((shape,), shape).function.forms["cuda"]


def _drawn(place: torch.device) -> torch.Tensor:
    return torch.rand(1, 5, 6, 4, device=place, generator=torch.Generator(place).manual_seed(0)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("kind", [MPSImageAreaMax, MPSImageAreaMin])
def test_what_is_no_number_wins(kind: Any, place: torch.device) -> None:
    x = _drawn(place)
    x[0, 1, 2, 3], x[0, 2, 1, 1] = torch.nan, torch.inf
    (found,) = _form(kind(CPU, 3, 3), x)([x], None)
    expected = extreme(x, Window(Axis(6, 6, 3), Axis(5, 5, 3)), kind is MPSImageAreaMax)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_lengths_beyond_the_root_of_the_largest_number(place: torch.device) -> None:
    """Differences whose squares would overflow or vanish, infinite ones, and none."""
    x = torch.zeros(1, 1, 3, 14, device=place)
    x[..., 1], x[..., 6], x[..., 12] = 1e-30, 3e30, torch.inf
    (found,) = _form(MPSImageSobel(CPU), x)([x], None)
    expected = gradient_magnitude(torch.nn.functional.pad(x, [1, 1, 1, 1]))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_results_are_written_where_they_are_to_be(place: torch.device) -> None:
    """Not into the source's memory, nor between somebody else's channels; and sources that lie so are left alone."""
    x = _drawn(place)
    form, expected = _form(MPSImageAreaMax(CPU, 3, 3), x), x.clone()
    for room in (x, torch.zeros(1, 5, 6, 8, device=place).permute(0, 3, 1, 2)[:, 4:]):
        before = room.clone()
        (found,) = form([x], room)
        assert found is not None
        assert torch.equal(room, before)
    assert torch.equal(x, expected)
    assert form([x.contiguous()], None) is None
