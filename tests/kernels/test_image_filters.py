"""Every filter of pictures against its oracle: edges, places, formats, batches, in place; and what filters refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, UNORM8, Bench, finish, numbers, temporary_copy
from helpers import assert_close
from in_one_test import in_one_test
from measured import note_error, note_format
from openmps.core.image.image import MPSImage
from openmps.core.kernel.image_filter import MPSBinaryImageKernel, MPSUnaryImageKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.image_filters import ALL_FILTERS, FILTERS, FilterSample

CPU = mtl_device("cpu")
UNTOUCHED = -7.0
FIRST = [samples[0] for samples in FILTERS.values()]
EDGES = (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP)


def _encoded(bench: Bench, kernel: Any, sources: list[Any], destination: Any) -> np.ndarray:
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, *sources, destination)
    finish(command_buffer)
    return numbers(destination)


def _whole(bench: Bench, sample: FilterSample, sources: list[np.ndarray]) -> np.ndarray:
    images = [bench.image(each, sample.stored_as) for each in sources]
    destination = bench.empty((len(sources[0]), *sample.destination), sample.stored_as)
    return _encoded(bench, sample.make(bench.device), images, destination)


def _expected(sample: FilterSample, kernel: Any, sources: list[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    return sample.forward(sources, sample.readings(kernel, *size), sample.destination[0])


@in_one_test
@pytest.mark.parametrize("sample", ALL_FILTERS, ids=str)
def test_whole_pictures(sample: FilterSample, device: torch.device) -> None:
    bench, sources = Bench.on(device), sample.sources(2)
    found = _whole(bench, sample, sources)
    kernel = sample.make(bench.device)
    expected = _expected(sample, kernel, sources, sample.destination[1:])
    assert np.isfinite(found).all()
    assert np.any(found != found.flat[0]), "a picture of one colour shows nothing"
    assert_close(found, expected, sample.tolerance)
    note_error(type(kernel), "forward", device, found, expected)


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
@pytest.mark.parametrize("sample", [each for each in ALL_FILTERS if each.is_placed], ids=str)
def test_a_part_of_another_place(sample: FilterSample, edge: MPSImageEdgeMode) -> None:
    """The clip rectangle counts in the destination, offsets in the source, which the windows leave on two sides."""
    bench, sources, kernel = Bench(CPU), sample.sources(), sample.make(CPU)
    for prefix in ("primary_", "secondary_") if len(sources) == 2 else ("",):
        setattr(kernel, f"{prefix}offset", MPSOffset(4 if prefix == "secondary_" else -2, 3, 0))
        setattr(kernel, f"{prefix}edge_mode", edge)
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(5, 4, 1))
    shape = (1, sample.destination[0], 7, 8)
    with np.errstate(all="ignore"):
        inside = _expected(sample, kernel, sources, (4, 5))
    expected = np.full(shape, 1.0 if sample.bytes_alone else UNTOUCHED)
    expected[:, :, 2:6, 1:6] = inside
    images = [bench.image(each, sample.stored_as) for each in sources]
    found = _encoded(bench, kernel, images, bench.image(expected * 0 + expected[0, 0, 0, 0], sample.stored_as))
    assert_close(found, expected, sample.tolerance)


@in_one_test
@pytest.mark.parametrize("sample", [each for each in ALL_FILTERS if each.in_bytes], ids=str)
def test_bytes_and_half_precision_round_once(sample: FilterSample, device: torch.device) -> None:
    bench, sources, kernel = Bench.on(device), sample.sources(), sample.make(mtl_device(device))
    exact = _expected(sample, kernel, sources, sample.destination[1:])
    images = [bench.image(each, UNORM8) for each in sources]
    found = _encoded(bench, kernel, images, bench.empty((1, *sample.destination), UNORM8))
    assert np.abs(found - np.clip(exact, 0.0, 1.0)).max() <= 0.5 / 255 + 2e-6
    note_format(type(kernel), "unorm8", device)
    if not sample.bytes_alone:
        found = _encoded(bench, kernel, images, bench.empty((1, *sample.destination), FLOAT16))
        assert_close(found, exact, 2.0**-11 * 1.02)
        note_format(type(kernel), "float16", device)


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_batches_copies_and_texture_names(sample: FilterSample) -> None:
    bench, sources, kernel = Bench(CPU), sample.sources(2), sample.make(CPU)
    expected = _whole(bench, sample, sources)
    destination, command_buffer = (
        bench.batch(np.zeros((2, *sample.destination)), sample.stored_as),
        bench.command_buffer(),
    )
    kernel.encode_batch(command_buffer, *(bench.batch(each, sample.stored_as) for each in sources), destination)
    finish(command_buffer)
    assert_close(numbers(destination), expected, 1e-6)
    names = ["primary_texture", "secondary_texture"] if len(sources) == 2 else ["source_texture"]
    image, command_buffer = bench.empty((2, *sample.destination), sample.stored_as), bench.command_buffer()
    given = dict(zip(names, [bench.image(each, sample.stored_as) for each in sources], strict=True))
    twin = kernel.copy()
    twin.encode(command_buffer, **given, destination_texture=image)
    twin.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(1, 1, 1))
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(image), expected)
    assert kernel.clip_rect != twin.clip_rect


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_in_place(sample: FilterSample) -> None:
    """The image that is returned has the result; a filter that cannot overwrite asks for another, or does nothing."""
    bench, sources, kernel = Bench(CPU), sample.sources(), sample.make(CPU)
    expected = _whole(bench, sample, sources)
    names = ["in_place_primary_texture", "secondary_texture"] if len(sources) == 2 else ["in_place_texture"]
    images, command_buffer = [bench.image(each, sample.stored_as) for each in sources], bench.command_buffer()
    given = dict(zip(names, images, strict=True))
    asked: list[Any] = []

    def allocate(*arguments: Any) -> Any:
        asked.append(arguments)
        return bench.empty((1, *sample.destination))

    found = kernel.encode(command_buffer, **given)
    if not sample.works_in_place:
        assert found is None
        found = kernel.encode(command_buffer, **given, fallback_copy_allocator=allocate)
        assert asked == [(kernel, command_buffer, images[0])]
    finish(command_buffer)
    assert (found is images[0]) is sample.works_in_place
    assert found is not None
    if found.feature_channels == sample.destination[0]:
        np.testing.assert_array_equal(numbers(found), expected)


def test_a_part_moves_within_its_image() -> None:
    """All is read before anything is stored, where rows overlap too."""
    bench, kernel = Bench(CPU), FIRST_OF["MPSImageConversion"]
    x = np.random.default_rng(0).random((1, 2, 6, 5)).astype(np.float32)
    kernel.clip_rect = MTLRegion(MTLOrigin(0, 1, 0), MTLSize(5, 5, 1))
    image, command_buffer = bench.image(x), bench.command_buffer()
    assert kernel.encode(command_buffer, in_place_texture=image) is image
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(image), np.concatenate([x[:, :, :1], x[:, :, :5]], axis=2))


def test_the_secondary_source_in_place_and_read_counts() -> None:
    bench, kernel = Bench(CPU), FIRST_OF["MPSImageAdd"]
    command_buffer = bench.command_buffer()
    x, y = bench.filled((1, 1, 2, 2), 1.0), temporary_copy(command_buffer, bench.filled((1, 1, 2, 2), 3.0))
    z = bench.empty((1, 1, 2, 2))
    assert kernel.encode(command_buffer, x, in_place_secondary_texture=y) is y
    assert y.read_count == 1
    kernel.encode(command_buffer, y, x, z)
    assert y.read_count == 0
    finish(command_buffer)
    assert numbers(z).tolist() == [[[[5.0, 5.0], [5.0, 5.0]]]]


FIRST_OF: dict[str, Any] = {kind.__name__: samples[0].make(CPU) for kind, samples in FILTERS.items()}
"""A kernel of each class, for tests that set what they need."""


@pytest.fixture(autouse=True)
def _made_again() -> None:
    FIRST_OF.update({kind.__name__: samples[0].make(CPU) for kind, samples in FILTERS.items()})


@pytest.mark.parametrize("counts", [(1, 4), (2, 3), (4, 1), (3, 4), (6, 6)], ids=str)
def test_components_that_one_image_lacks(counts: tuple[int, int]) -> None:
    """0, and 1 for the fourth, inside and outside; those that the destination lacks are dropped."""
    bench, kernel = Bench(CPU), FIRST_OF["MPSImageMultiply"]
    kernel.bias, kernel.primary_scale = 0.0, 1.0
    x, (source, made) = np.full((1, counts[0], 2, 2), 0.5), counts
    kernel.primary_offset = kernel.secondary_offset = MPSOffset(1, 0, 0)
    found = _encoded(bench, kernel, [bench.image(x), bench.image(x)], bench.filled((1, made, 1, 2), UNTOUCHED))
    inside = [0.25 if channel < source else float(channel == 3) for channel in range(made)]
    outside = [0.0 if channel < source else float(channel == 3) for channel in range(made)]
    assert found[0, :, 0].T.tolist() == [inside, outside]


# --- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [MPSUnaryImageKernel, MPSBinaryImageKernel])
def test_bases_compute_nothing(base: Any) -> None:
    bench, kernel = Bench(CPU), base(CPU)
    sources = [bench.empty((1, 4, 2, 2)) for _ in range(2 if base is MPSBinaryImageKernel else 1)]
    with pytest.raises(MPSTypeError, match=f"^{base.__name__}: encode is not offered by this base class"):
        kernel.encode(bench.command_buffer(), *sources, bench.empty((1, 4, 2, 2)))
    region = getattr(kernel, "primary_source_region", None) or kernel.source_region
    with pytest.raises(MPSTypeError, match="source_region is not offered by this base class"):
        region(MTLSize(2, 2, 1))


def test_images_in_the_wrong_place() -> None:
    bench = Bench(CPU)
    one, two, command_buffer = bench.empty((1, 4, 2, 2)), bench.empty((1, 4, 2, 2)), bench.command_buffer()
    unary, binary = FIRST_OF["MPSImageConversion"], FIRST_OF["MPSImageAdd"]
    with pytest.raises(MPSArgumentError, match="^MPSImageConversion: destination_image must not share memory"):
        unary.encode(command_buffer, one, one)
    with pytest.raises(MPSTypeError, match="^MPSImageConversion: in_place_texture must be the only image"):
        unary.encode(command_buffer, one, in_place_texture=two)
    with pytest.raises(MPSTypeError, match="^MPSImageConversion: in_place_texture must be an MPSImage"):
        unary.encode(command_buffer, in_place_texture=7)
    with pytest.raises(MPSTypeError, match="^MPSImageConversion: source_image .* Pass it as source_texture=…"):
        unary.encode(command_buffer, one.texture, two)
    with pytest.raises(MPSTypeError, match="^MPSImageConversion: fallback_copy_allocator must be called with"):
        unary.encode(command_buffer, in_place_texture=one, fallback_copy_allocator=7)
    with pytest.raises(MPSTypeError, match="^MPSImageTranspose: fallback_copy_allocator's new_texture must be"):
        FIRST_OF["MPSImageTranspose"].encode(
            command_buffer, in_place_texture=one, fallback_copy_allocator=lambda *_: None
        )
    with pytest.raises(MPSTypeError, match="^MPSImageAdd: in_place_primary_texture must be the only image"):
        binary.encode(command_buffer, in_place_primary_texture=one, in_place_secondary_texture=two)
    with pytest.raises(MPSTypeError, match="^MPSImageAdd: secondary_image must be an MPSImage"):
        binary.encode(command_buffer, in_place_primary_texture=one)
    with pytest.raises(MPSTypeError, match="^MPSImageAdd: primary_image must not be given beside primary_texture"):
        binary.encode(command_buffer, one, two, bench.empty((1, 4, 2, 2)), primary_texture=one)


def test_one_destination_for_two_sources() -> None:
    bench, kernel = Bench(CPU), FIRST_OF["MPSImageConversion"]
    sources = [bench.filled((1, 4, 2, 2), value) for value in (0.25, 0.5)]
    shared = bench.empty((1, 4, 2, 2))
    for destination in ([shared, shared], [shared, MPSImage(texture=shared.texture)]):
        with pytest.raises(
            MPSArgumentError, match=r"^MPSImageConversion: destination_images\[1\] must share no memory"
        ):
            kernel.encode_batch(bench.command_buffer(), sources, destination)
    command_buffer, apart = bench.command_buffer(), [bench.empty((1, 4, 2, 2)), bench.empty((1, 4, 2, 2))]
    kernel.encode_batch(command_buffer, [sources[0], sources[0]], apart)  # a source may be read twice
    finish(command_buffer)
    assert (numbers(apart)[1] == numbers(apart)[0]).all()


def test_more_channels_than_a_texture_has() -> None:
    bench, kernel = Bench(CPU), FIRST_OF["MPSImageThresholdToZero"]
    many, one = bench.empty((1, 5, 2, 2)), bench.empty((1, 1, 2, 2))
    with pytest.raises(MPSArgumentError, match="^MPSImageThresholdToZero: source_image must have at most 4 feature"):
        kernel.encode(bench.command_buffer(), many, one)
    with pytest.raises(MPSArgumentError, match=r"got 5. Filter 4 of them at a time: image.sub_image\(range\(4\)\)$"):
        kernel.encode(bench.command_buffer(), many, one)
    kernel.encode(bench.command_buffer(), many.sub_image(range(4)), one)
    with pytest.raises(MPSArgumentError, match="^MPSImageThresholdToZero: destination_image must have at most 4"):
        kernel.encode(bench.command_buffer(), one, many)
    with pytest.raises(MPSArgumentError, match="^MPSImageAdd: destination_image must have at least 5 feature channels"):
        FIRST_OF["MPSImageAdd"].encode(bench.command_buffer(), many, bench.empty((1, 5, 2, 2)), one)


def test_regions() -> None:
    kernel = FIRST_OF["MPSImageTranspose"]
    kernel.offset, kernel.clip_rect = MPSOffset(1, -2, 0), MTLRegion(MTLOrigin(4, 4, 0), MTLSize(3, 9, 1))
    region = kernel.source_region(MTLSize(10, 10, 1))
    assert (region.origin.x, region.origin.y, region.size.width, region.size.height) == (1.0, -2.0, 6.0, 3.0)
    kernel = FIRST_OF["MPSImageAdd"]
    kernel.secondary_stride_in_pixels = MTLSize(0, 1, 1)
    region = kernel.secondary_source_region(MTLSize(10, 20, 1))
    assert (region.size.width, region.size.height) == (1.0, 20.0)
