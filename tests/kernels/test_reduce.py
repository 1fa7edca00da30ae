"""Reductions and local correlation: golden numbers, regions, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, UNORM8, Bench, encode, finish, numbers, run
from helpers import assert_close
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels import reduce as kernels
from openmps.kernels.reduce import (
    MPSNNLocalCorrelation,
    MPSNNReduceBinary,
    MPSNNReduceFeatureChannelsAndWeightsMean,
    MPSNNReduceFeatureChannelsAndWeightsSum,
    MPSNNReduceFeatureChannelsArgumentMax,
    MPSNNReduceFeatureChannelsArgumentMin,
    MPSNNReduceFeatureChannelsMax,
    MPSNNReduceFeatureChannelsSum,
    MPSNNReduceRowMax,
    MPSNNReduceRowMean,
    MPSNNReduceRowSum,
    MPSNNReduceUnary,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion, MTLSize
from oracles import reduce as oracle

CPU = mtl_device("cpu")
# Two channels of two rows and three columns.
PIXELS = np.array([[[1, -2, 3], [4, 5, -6]], [[-7, 8, 9], [10, -11, 12]]], dtype=np.float64)[None]

GOLDEN = {
    "RowMin": [[[-2], [-6]], [[-7], [-11]]],
    "RowMax": [[[3], [5]], [[9], [12]]],
    "RowMean": [[[2 / 3], [1]], [[10 / 3], [11 / 3]]],
    "RowSum": [[[2], [3]], [[10], [11]]],
    "ColumnMin": [[[1, -2, -6]], [[-7, -11, 9]]],
    "ColumnMax": [[[4, 5, 3]], [[10, 8, 12]]],
    "ColumnMean": [[[2.5, 1.5, -1.5]], [[1.5, -1.5, 10.5]]],
    "ColumnSum": [[[5, 3, -3]], [[3, -3, 21]]],
    "FeatureChannelsMin": [[[-7, -2, 3], [4, -11, -6]]],
    "FeatureChannelsMax": [[[1, 8, 9], [10, 5, 12]]],
    "FeatureChannelsMean": [[[-3, 3, 6], [7, -3, 3]]],
    "FeatureChannelsSum": [[[-6, 6, 12], [14, -6, 6]]],
    "FeatureChannelsArgumentMin": [[[1, 0, 0], [0, 1, 0]]],
    "FeatureChannelsArgumentMax": [[[0, 1, 1], [1, 0, 1]]],
}
"""A reduction of rows leaves one number a row, one of columns one number a column."""


ALL = 2**64 - 1
"""The depth of a rectangle that takes all images that there are."""


def _region(x: int, y: int, width: int, height: int, z: int = 0, depth: int = ALL) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, z), MTLSize(width, height, depth))


@in_one_test
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_numbers(name: str, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = getattr(kernels, f"MPSNNReduce{name}")(bench.device)
    assert isinstance(kernel, MPSNNReduceUnary)
    assert_close(run(bench, kernel, [bench.image(PIXELS)])[0], GOLDEN[name], 1e-6)


def test_every_reduction_has_golden_numbers() -> None:
    names = [kind.__name__ for kind in MPSNNReduceUnary.__subclasses__() if kind.__name__.startswith("MPS")]
    found = {name.removeprefix("MPSNNReduce") for name in names}
    assert found == set(GOLDEN)


@in_one_test
@pytest.mark.parametrize("name", GOLDEN)
def test_the_region_replaces_the_offset(name: str, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = getattr(kernels, f"MPSNNReduce{name}")(bench.device)
    assert kernel.clip_rect_source == MPSRectNoClip
    assert kernel.offset == MPSOffset(0, 0, 0)
    kernel.offset = MPSOffset(1, 1, 1)
    assert kernel.offset == MPSOffset(1, 1, 1)
    assert_close(run(bench, kernel, [bench.image(PIXELS)])[0], GOLDEN[name], 1e-6)
    region = _region(1, 1, 99, 1)
    kernel.clip_rect_source = region
    assert kernel.clip_rect_source is region
    whole = run(bench, kernel, [bench.image(PIXELS)])
    kernel.clip_rect_source = MPSRectNoClip
    np.testing.assert_array_equal(whole, run(bench, kernel, [bench.image(PIXELS[:, :, 1:, 1:])]))
    assert kernel.offset == MPSOffset(1, 1, 1), "kept though it is not used"


def test_the_mean_divides_by_what_is_read(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNReduceRowMean(bench.device)
    kernel.clip_rect_source = _region(1, 0, 7, 1)
    assert run(bench, kernel, [bench.image(PIXELS)]).ravel().tolist() == [0.5, 8.5]


def test_where_results_are_written(device: torch.device) -> None:
    """From the origin of the clip rectangle on; nothing else of the destination is touched."""
    bench = Bench.on(device)
    kernel = MPSNNReduceRowSum(bench.device)
    kernel.clip_rect = _region(2, 1, 9, 9)
    destination = bench.filled((1, 2, 5, 4), 50)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(PIXELS), destination)
    finish(command_buffer)
    expected = np.full((1, 2, 5, 4), 50.0)
    expected[0, :, 1:3, 2] = [[2, 3], [10, 11]]
    np.testing.assert_array_equal(numbers(destination), expected)
    kernel.clip_rect = _region(0, 4, 9, 1)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(PIXELS), destination)
    finish(command_buffer)
    expected[0, :, 4, 0] = [2, 10]
    np.testing.assert_array_equal(numbers(destination), expected)


def test_images_that_a_region_selects(device: torch.device) -> None:
    """Its z and depth: the first image and how many; a batch leaves nothing to select."""
    bench = Bench.on(device)
    kernel = MPSNNReduceFeatureChannelsMax(bench.device)
    image = bench.image(np.arange(6.0).reshape(6, 1, 1, 1))
    kernel.clip_rect_source = _region(0, 0, 1, 1, 2, 3)
    assert run(bench, kernel, [image]).ravel().tolist() == [2, 3, 4]
    destination = bench.filled((7, 1, 1, 1), -1)
    kernel.clip_rect = _region(0, 0, 1, 1, 1, 3)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, image, destination)
    finish(command_buffer)
    assert numbers(destination).ravel().tolist() == [-1, 2, 3, 4, -1, -1, -1]
    kernel.label = "k"
    argument = r"clip_rect_source\.origin\.z"
    kernel.clip_rect_source = _region(0, 0, 1, 1, 6)
    with pytest.raises(
        MPSArgumentError, match=rf"^MPSNNReduceFeatureChannelsMax 'k': {argument}, clip_rect.*at least one"
    ):
        kernel.encode(bench.command_buffer(), image, destination)
    with pytest.raises(
        MPSArgumentError, match=rf"^MPSNNReduceFeatureChannelsMax 'k': {argument} and clip_rect.*must be 0"
    ):
        kernel.encode_batch(bench.command_buffer(), bench.batch(PIXELS))


@pytest.mark.parametrize(
    ("kind", "expected"), [(MPSNNReduceFeatureChannelsArgumentMin, 2), (MPSNNReduceFeatureChannelsArgumentMax, 1)]
)
def test_arguments_count_from_the_first_channel_read(kind: Any, expected: int, device: torch.device) -> None:
    """The lowest index of equal numbers."""
    bench = Bench.on(device)
    values = np.array([9, -9, 0, 0, 3, 5, 1, 5, 1, 7, -7]).reshape(1, 11, 1, 1)
    kernel = kind(bench.device)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 5
    assert run(bench, kernel, [bench.image(values)]).ravel().tolist() == [expected]
    assert run(bench, kernel, [bench.image(values, FLOAT16)]).ravel().tolist() == [expected]


def test_arguments_of_bytes_need_a_float_destination(device: torch.device) -> None:
    bench = Bench.on(device)
    image = bench.image(np.array([0.0, 0.2, 0.8, 1.0, 0.4]).reshape(1, 5, 1, 1), UNORM8)
    kernel, destination = MPSNNReduceFeatureChannelsArgumentMax(bench.device), bench.empty((1, 1, 1, 1))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, image, destination)
    finish(command_buffer)
    assert numbers(destination).ravel().tolist() == [3]


def test_weight_of_the_sum(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNReduceFeatureChannelsSum(bench.device)
    assert kernel.weight == 1.0
    kernel.weight = -0.5
    assert run(bench, kernel, [bench.image(PIXELS)]).ravel().tolist() == [3, -3, -6, -7, 3, -3]
    twin = kernel.copy()
    twin.weight = 2
    assert (kernel.weight, twin.weight) == (-0.5, 2.0)
    for wrong in (None, "1", True):
        with pytest.raises(MPSTypeError, match="^MPSNNReduceFeatureChannelsSum: weight must be a number, got"):
            kernel.weight = wrong  # type: ignore[assignment]


def test_no_maximum_of_nothing(device: torch.device) -> None:
    """The largest of negative numbers is negative, and NaN wins."""
    bench = Bench.on(device)
    kernel = MPSNNReduceRowMax(bench.device)
    assert run(bench, kernel, [bench.image(np.array([-3.0, -1, -2]).reshape(1, 1, 1, 3))]).ravel().tolist() == [-1]
    assert np.isnan(run(bench, kernel, [bench.image(np.array([-3.0, np.nan, 2]).reshape(1, 1, 1, 3))])).all()


def test_a_copy_has_regions_of_its_own() -> None:
    for kernel, name in (
        (MPSNNReduceRowMax(CPU), "clip_rect_source"),
        (MPSNNReduceFeatureChannelsAndWeightsMean(CPU), "secondary_source_clip_rect"),
    ):
        twin = kernel.copy()
        setattr(twin, name, _region(1, 1, 1, 1))
        assert getattr(kernel, name) == MPSRectNoClip


# --- two images -------------------------------------------------------------------------------------------------------


def _weighted(bench: Bench, kernel: Any) -> list[float]:
    features = bench.image(np.array([1.0, 2, 3, 4]).reshape(1, 4, 1, 1))
    weights = bench.image(np.array([10.0, 0, -1, 0]).reshape(1, 4, 1, 1))
    return run(bench, kernel, [features, weights]).ravel().tolist()


def test_features_and_weights(device: torch.device) -> None:
    """1*10 + 3*(-1) = 7: over four channels, over none, over two weights that are not 0."""
    bench = Bench.on(device)
    assert _weighted(bench, MPSNNReduceFeatureChannelsAndWeightsMean(bench.device)) == [1.75]
    plain = MPSNNReduceFeatureChannelsAndWeightsSum(bench.device)
    assert plain.do_weighted_sum_by_non_zero_weights is False
    assert _weighted(bench, plain) == [7.0]
    divided = MPSNNReduceFeatureChannelsAndWeightsSum(bench.device, do_weighted_sum_by_non_zero_weights=True)
    assert divided.do_weighted_sum_by_non_zero_weights is True
    assert _weighted(bench, divided) == [3.5]
    with pytest.raises(AttributeError):
        divided.do_weighted_sum_by_non_zero_weights = False  # type: ignore[misc]


def test_the_same_image_twice(device: torch.device) -> None:
    bench = Bench.on(device)
    image = bench.image(PIXELS)
    found = run(bench, MPSNNReduceFeatureChannelsAndWeightsSum(bench.device), [image, image])
    assert_close(found, (PIXELS**2).sum(1, keepdims=True), 1e-6)


@pytest.mark.parametrize("strides", [(0, 0), (0, 1), (1, 0)], ids=str)
def test_weights_of_a_row_or_column_or_pixel(strides, device: torch.device, rng: np.random.Generator) -> None:
    """A stride of 0 reads the first column or row for all, as one column or row does by itself."""
    bench = Bench.on(device)
    x, weights = (rng.normal(size=(1, 3, 4, 5)).astype(np.float32).astype(np.float64) for _ in range(2))
    cut = weights[:, :, : 4 if strides[1] else 1, : 5 if strides[0] else 1]
    expected = oracle.weighted("sum", x, cut)
    kernel = MPSNNReduceFeatureChannelsAndWeightsSum(bench.device)
    assert_close(run(bench, kernel, [bench.image(x), bench.image(cut)]), expected, 1e-6)
    kernel.secondary_stride_in_pixels_x, kernel.secondary_stride_in_pixels_y = strides
    assert_close(run(bench, kernel, [bench.image(x), bench.image(weights)]), expected, 1e-6)


def test_regions_of_two_images(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x, weights = (rng.normal(size=(3, 3, 4, 5)).astype(np.float32).astype(np.float64) for _ in range(2))
    kernel = MPSNNReduceFeatureChannelsAndWeightsMean(bench.device)
    assert isinstance(kernel, MPSNNReduceBinary)
    assert kernel.primary_source_clip_rect == kernel.secondary_source_clip_rect == MPSRectNoClip
    kernel.primary_offset, kernel.secondary_offset = MPSOffset(3, 3, 3), MPSOffset(4, 4, 4)
    assert (kernel.primary_offset, kernel.secondary_offset) == (MPSOffset(3, 3, 3), MPSOffset(4, 4, 4))
    kernel.primary_source_clip_rect = _region(2, 0, 2, 3, 1, 1)
    kernel.secondary_source_clip_rect = _region(3, 1, 9, 9, 2)
    found = run(bench, kernel, [bench.image(x), bench.image(weights)])
    assert_close(found, oracle.weighted("mean", x[1:2, :, 0:3, 2:4], weights[2:3, :, 1:4, 3:5]), 1e-6)


# --- local correlation ------------------------------------------------------------------------------------------------


def test_order_of_the_displacements(device: torch.device) -> None:
    """x runs faster: with a single 1 in the middle of A, the channels list the neighbourhood in B row by row."""
    bench = Bench.on(device)
    a = np.zeros((1, 1, 3, 5))
    a[0, 0, 1, 2] = 1
    b = np.arange(15.0).reshape(1, 1, 3, 5)
    kernel = MPSNNLocalCorrelation(bench.device, window_in_x=2, window_in_y=1, stride_in_x=1, stride_in_y=1)
    found = run(bench, kernel, [bench.image(a), bench.image(b)])
    assert found.shape == (1, 15, 3, 5)
    assert found[0, :, 1, 2].tolist() == b.ravel().tolist()
    found[0, :, 1, 2] = 0
    assert not found.any()


def test_correlation_properties(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    kernel = MPSNNLocalCorrelation(bench.device)
    assert (kernel.window_in_x, kernel.window_in_y, kernel.stride_in_x, kernel.stride_in_y) == (0, 0, 1, 1)
    a, b = (rng.normal(size=(1, 4, 5, 6)).astype(np.float32).astype(np.float64) for _ in range(2))
    images = [bench.image(a), bench.image(b)]
    assert_close(run(bench, kernel, images), (a * b).sum(1, keepdims=True), 1e-6)
    kernel.window_in_x, kernel.window_in_y, kernel.stride_in_x, kernel.stride_in_y = 1, 2, 3, 2
    for edge in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
        kernel.secondary_edge_mode = edge
        expected = oracle.local_correlation(a, b, (2, 1), (2, 3), int(edge))
        assert_close(run(bench, kernel, images), expected, 1e-5)
    twin = kernel.copy()
    twin.window_in_x = 4
    assert kernel.window_in_x == 1


def test_a_region_of_what_is_correlated_with(device: torch.device) -> None:
    """What lies outside the region of B is not read, though it lies inside the image."""
    bench = Bench.on(device)
    b = np.full((1, 1, 3, 5), np.nan)
    b[0, 0, 1, 1:4] = [2, 3, 4]
    kernel = MPSNNLocalCorrelation(bench.device, 1, 0, 1, 1)
    kernel.secondary_source_clip_rect = _region(1, 1, 3, 1)
    images = [bench.image(np.ones((1, 1, 1, 3))), bench.image(b)]
    assert run(bench, kernel, images)[0, :, 0].tolist() == [[0, 2, 3], [2, 3, 4], [3, 4, 0]]
    kernel.secondary_edge_mode = MPSImageEdgeMode.CLAMP
    assert run(bench, kernel, images)[0, :, 0].tolist() == [[2, 2, 3], [2, 3, 4], [3, 4, 4]]


# --- what a user can get wrong ----------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("name", ["window_in_x", "window_in_y", "stride_in_x", "stride_in_y"])
@pytest.mark.parametrize("value", [-1, 0.5, True, None])
def test_windows_are_whole_numbers(name: str, value: Any) -> None:
    least = 0 if name.startswith("window") else 1
    for wrong in (value, least - 1):
        rule = f"^MPSNNLocalCorrelation: {name} must be an integer of at least {least}, got "
        with pytest.raises(MPSArgumentError, match=rule):
            setattr(MPSNNLocalCorrelation(CPU), name, wrong)
        with pytest.raises(MPSArgumentError, match=rule):
            MPSNNLocalCorrelation(CPU, **{name: wrong})


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (MPSNNReduceRowMax, ["clip_rect_source"]),
        (MPSNNLocalCorrelation, ["primary_source_clip_rect", "secondary_source_clip_rect"]),
    ],
)
def test_regions_have_a_type_and_overlap_their_source(kind: Any, names: list[str]) -> None:
    bench = Bench(CPU)
    for name in names:
        kernel = kind(CPU)
        kernel.label = "k"
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__} 'k': {name} must be an MTLRegion, got tuple"):
            setattr(kernel, name, (0, 0, 1, 1))
        for region in (_region(3, 0, 1, 1), _region(0, 2, 1, 1), _region(0, 0, 0, 1), _region(0, 0, 1, 0)):
            setattr(kernel, name, region)
            with pytest.raises(
                MPSArgumentError,
                match=f"^{kind.__name__} 'k': {name} must overlap the source of 3x2 pixels, got origin",
            ):
                encode(kernel, bench.command_buffer(), [bench.image(PIXELS)] * len(names))


@pytest.mark.parametrize("name", ["offset", "primary_offset", "secondary_offset"])
def test_offsets_keep_their_type(name: str) -> None:
    kernel = MPSNNReduceRowMax(CPU) if name == "offset" else MPSNNLocalCorrelation(CPU)
    with pytest.raises(MPSTypeError, match=f"{name} must be an MPSOffset"):
        setattr(kernel, name, (1, 2, 3))


@pytest.mark.parametrize(
    "kind", [MPSNNReduceFeatureChannelsAndWeightsMean, MPSNNReduceFeatureChannelsAndWeightsSum, MPSNNLocalCorrelation]
)
def test_sources_must_agree(kind: Any) -> None:
    bench, kernel = Bench(CPU), kind(CPU)
    kernel.label = "k"
    command_buffer = bench.command_buffer()
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'k': sources must have the same number of feature"):
        kernel.encode(command_buffer, bench.image(PIXELS), bench.empty((1, 3, 2, 3)))
    for name in ("primary_stride_in_pixels_x", "secondary_stride_in_pixels_y"):
        setattr(kernel, name, 2)
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'k': {name} must be .*1, got 2"):
            kernel.encode(command_buffer, bench.image(PIXELS), bench.image(PIXELS))
        setattr(kernel, name, 1)
    if kind is not MPSNNLocalCorrelation:
        with pytest.raises(
            MPSArgumentError, match=f"^{kind.__name__} 'k': secondary_source_clip_rect must select as many pixels as"
        ):
            kernel.encode(command_buffer, bench.image(PIXELS), bench.empty((1, 2, 2, 2)))
