"""Kernels with any number of sources: properties by index, every form of encode, states, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, Bench, finish, keep_results, numbers, temporary_copy
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.multiary import MPSCNNMultiaryKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNMultiaryGradientState
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSError, MPSLifetimeError, MPSTypeError
from openmps.kernels.concatenation import Concatenation, ConcatenationGradient
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Window
from openmps.ops.op import Op
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageEdgeMode,
    MPSNNPaddingMethod,
    MPSOffset,
    MPSRectNoClip,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles.geometry import Axis, gather

CPU = mtl_device("cpu")
SHAPE = (2, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class WeightedWindows(Op):
    weights: tuple[float, ...]
    windows: tuple[Window, ...]

    def run(self, wanted, *operands):
        total = 0.0
        for weight, region, window in zip(self.weights, operands, self.windows, strict=True):
            for j, i in itertools.product(range(window.y.size), range(window.x.size)):
                total = total + weight * region[:, :, _taps(window.y, j)][..., _taps(window.x, i)]
        return total


class WeightedSum(MPSCNNMultiaryKernel):
    """Y = sum_i weight_i * (the sum of source i's window)."""

    weights = Setting[tuple[float, ...]]()

    def __init__(self, device: MTLDevice, weights: list[float]) -> None:
        super().__init__(device, len(weights))
        self.weights = tuple(weights)

    def _lower(self, at, *images):
        regions = [at.read(image, index) for index, image in enumerate(images)]
        return WeightedWindows(self.weights, tuple(source.window for source in at.sources))(*regions)


class WithStates(WeightedSum):
    _gradient_state_class = MPSNNMultiaryGradientState


def _taps(axis: Any, tap: int) -> slice:
    first = tap * axis.dilation
    return slice(first, first + (axis.result - 1) * axis.stride + 1, axis.stride)


def _expected(kernel: WeightedSum, arrays: list[np.ndarray], height: int, width: int) -> np.ndarray:
    """From what the getters say."""
    total = np.zeros(())
    for index, (weight, x) in enumerate(zip(kernel.weights, arrays, strict=True)):
        offset = kernel.offset_at_index(index)
        first = kernel.source_feature_channel_offset_at_index(index)
        x = x[:, first : first + kernel.source_feature_channel_max_count_at_index(index)]
        rows, columns = (
            Axis(
                count,
                getattr(kernel, f"kernel_{size}_at_index")(index),
                getattr(kernel, f"stride_in_pixels_{axis}_at_index")(index),
                getattr(kernel, f"dilation_rate_{axis}_at_index")(index),
                getattr(offset, axis),
            )
            for count, size, axis in ((height, "height", "y"), (width, "width", "x"))
        )
        total = total + weight * gather(x, rows, columns, int(kernel.edge_mode_at_index(index))).sum((4, 5))
    return total


@pytest.fixture
def arrays(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=SHAPE).astype(np.float32).astype(np.float64) for _ in range(3)]


WEIGHTS = [1.0, -2.0, 0.5]


def _sum(arrays: list[np.ndarray]) -> np.ndarray:
    return sum(weight * x for weight, x in zip(WEIGHTS, arrays, strict=True))


# --- properties -------------------------------------------------------------------------------------------------------

PROPERTIES = [
    ("offset", "offset_at_index", MPSOffset(0, 0, 0), MPSOffset(-1, 2, 3)),
    ("source_feature_channel_offset", "source_feature_channel_offset_at_index", 0, 8),
    ("source_feature_channel_max_count", "source_feature_channel_max_count_at_index", 2**64 - 1, 3),
    ("edge_mode", "edge_mode_at_index", MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP),
    ("kernel_width", "kernel_width_at_index", 1, 5),
    ("kernel_height", "kernel_height_at_index", 1, 4),
    ("stride_in_pixels_x", "stride_in_pixels_x_at_index", 1, 2),
    ("stride_in_pixels_y", "stride_in_pixels_y_at_index", 1, 3),
    ("dilation_rate_x", "dilation_rate_x_at_index", 1, 6),
    ("dilation_rate_y", "dilation_rate_y_at_index", 1, 7),
]


@in_one_test
@pytest.mark.parametrize(("name", "getter", "default", "other"), PROPERTIES)
def test_every_source_has_properties_of_its_own(name: str, getter: str, default: Any, other: Any) -> None:
    kernel = WeightedSum(CPU, WEIGHTS)
    twin = kernel.copy()
    assert [getattr(kernel, getter)(index) for index in range(3)] == [default] * 3
    getattr(kernel, f"set_{name}")(other, 1)
    assert [getattr(kernel, getter)(index) for index in range(3)] == [default, other, default]
    getattr(kernel, f"set_{name}")(other, index=2)
    assert getattr(kernel, getter)(index=2) == other
    assert getattr(twin, getter)(1) == default, "a copy has its own"
    assert getattr(kernel.copy(), getter)(1) == other
    unchanged = [row for row in PROPERTIES if row[0] != name]
    assert all(getattr(kernel, row[1])(1) == row[2] for row in unchanged)


def test_shared_properties() -> None:
    kernel = WeightedSum(CPU, WEIGHTS)
    assert isinstance(kernel, MPSCNNMultiaryKernel)
    assert kernel.source_count == 3
    assert kernel.clip_rect == MPSRectNoClip
    assert kernel.destination_feature_channel_offset == 0
    assert (kernel.is_backwards, kernel.is_state_modified) == (False, False)
    assert (kernel.is_result_state_reused_across_batch(), kernel.append_batch_barrier()) == (False, False)
    assert kernel.padding == MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
    assert int(kernel.padding.padding_method()) == 16
    assert kernel.destination_image_allocator is MPSTemporaryImage.default_allocator()
    with pytest.raises(AttributeError):
        kernel.source_count = 2  # type: ignore[misc]


# --- encode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True], ids=["returned", "given"])
@pytest.mark.parametrize("arrange", ["image", "batch", "images"])
def test_encode(arrange: str, given: bool, arrays: list[np.ndarray], device: torch.device) -> None:
    """One object of two images, a batch in one block, a batch of unrelated images."""
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, WEIGHTS)
    sources = [getattr(bench, arrange)(values) for values in arrays]
    command_buffer = bench.command_buffer()
    more: list[Any] = []
    if given:
        more = [getattr(bench, arrange)(np.full(SHAPE, -7.0))]
    else:
        keep_results(kernel)
    call = kernel.encode if arrange == "image" else kernel.encode_batch
    result = call(command_buffer, sources, *more)
    finish(command_buffer)
    assert_close(numbers(result), _sum(arrays), 1e-6)
    if given and arrange == "image":
        assert result is more[0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_sources(count: int, arrays: list[np.ndarray], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, [1.0] * count)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, tuple(bench.image(arrays[0]) for _ in range(count)))
    finish(command_buffer)
    assert_close(numbers(result), count * arrays[0], 1e-6)


def test_windows_edges_and_channels_of_each_source(device: torch.device, rng: np.random.Generator) -> None:
    """Each source is read as its own properties say; destination and clip rectangle are shared."""
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, WEIGHTS)
    shapes = [(2, 9, 7, 8), (2, 3, 5, 4), (2, 11, 9, 9)]
    arrays = [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]
    settings: list[dict[str, Any]] = [
        {"offset": MPSOffset(2, 1, 0), "kernel_width": 3, "kernel_height": 2, "source_feature_channel_max_count": 3},
        {"offset": MPSOffset(-1, 0, 0), "edge_mode": MPSImageEdgeMode.CLAMP, "dilation_rate_x": 2, "kernel_width": 2},
        {
            "source_feature_channel_offset": 8,
            "stride_in_pixels_x": 3,
            "stride_in_pixels_y": 2,
            "kernel_height": 3,
            "dilation_rate_y": 2,
        },
    ]
    for index, chosen in enumerate(settings):
        for name, value in chosen.items():
            getattr(kernel, f"set_{name}")(value, index)
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(4, 3, 1))
    kernel.destination_feature_channel_offset = 4
    destination = bench.batch(np.full((2, 8, 6, 7), -7.0))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, [bench.batch(values) for values in arrays], destination)
    finish(command_buffer)
    expected = np.full((2, 8, 6, 7), -7.0)
    expected[:, 4:7, 2:5, 1:5] = _expected(kernel, arrays, 3, 4)
    assert_close(numbers(destination), expected, 1e-6)


def test_images_of_each_object(device: torch.device) -> None:
    """z of each offset is the first image read of that source."""
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, [1.0, 10.0, 100.0])
    for index in range(3):
        kernel.set_offset(MPSOffset(0, 0, index), index)
    sources = [bench.image(np.arange(1.0, 5).reshape(4, 1, 1, 1)) for _ in range(3)]
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, sources)
    finish(command_buffer)
    assert numbers(result).ravel().tolist() == [321, 432]


def test_the_padding_policy_places_every_window(device: torch.device, rng: np.random.Generator) -> None:
    """Sources of 5 and of 10 pixels, the second at stride 2: the same result size, an offset for each."""
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, [1.0, 1.0])
    kernel.set_kernel_width(3, 0)
    kernel.set_kernel_width(2, 1)
    kernel.set_stride_in_pixels_x(2, 1)
    kernel.set_stride_in_pixels_y(2, 1)
    arrays = [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in ((1, 4, 5, 5), (1, 4, 10, 10))]
    images = [bench.image(values) for values in arrays]
    descriptor = kernel.destination_image_descriptor(images)
    assert (descriptor.width, descriptor.height, descriptor.feature_channels) == (5, 5, 4)
    assert [kernel.offset_at_index(index) for index in range(2)] == [MPSOffset(0, 0, 0), MPSOffset(1, 0, 0)]
    keep_results(kernel)
    for index in range(2):
        kernel.set_offset(MPSOffset(9, 9, 0), index)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, images)
    finish(command_buffer)
    assert kernel.offset_at_index(1) == MPSOffset(1, 0, 0)
    assert_close(numbers(result), _expected(kernel, arrays, 5, 5), 1e-6)


def test_the_result_has_the_first_sources_format(arrays: list[np.ndarray], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, WEIGHTS)
    sources = [bench.image(arrays[0], FLOAT16), bench.image(arrays[1]), bench.image(arrays[2])]
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, sources)
    assert isinstance(result, MPSTemporaryImage)
    assert result.feature_channel_format is FLOAT16
    finish(command_buffer)


def test_one_read_of_every_temporary_source(arrays: list[np.ndarray], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = WeightedSum(bench.device, WEIGHTS)
    kernel.label = "s"
    command_buffer = bench.command_buffer()
    first, second = (temporary_copy(command_buffer, bench.batch(values)) for values in arrays[:2])
    with pytest.raises(MPSLifetimeError, match=r"^WeightedSum 's': source_images\[0\] must have 2 reads left"):
        kernel.encode_batch(command_buffer, [first, first, second])
    for image in first:
        image.read_count = 2
    kernel.encode_batch(command_buffer, [first, first, second])
    assert {image.read_count for images in (first, second) for image in images} == {0}
    finish(command_buffer)


# --- states -----------------------------------------------------------------------------------------------------------


def test_states_of_every_kind(arrays: list[np.ndarray], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = WithStates(bench.device, WEIGHTS)
    singles, batches = [bench.image(values[:1]) for values in arrays], [bench.batch(values) for values in arrays]
    destination, destinations = bench.empty((1, *SHAPE[1:])), bench.batch(np.zeros(SHAPE))
    command_buffer = bench.command_buffer()
    state = kernel.result_state(singles, None, destination)
    assert isinstance(state, MPSNNMultiaryGradientState)
    assert (state.is_temporary, state.source_width, state.source_height) == (False, SHAPE[3], SHAPE[2])
    states = kernel.result_state_batch(batches, source_states=None, destination_image=destinations)
    assert isinstance(states, MPSStateBatch)
    assert len(states) == len(states.unique()) == 2
    temporary = kernel.temporary_result_state(command_buffer, singles, None, destination)
    assert temporary is not None
    assert (temporary.read_count, temporary.lives_on) == (1, command_buffer)
    several = kernel.temporary_result_state_batch(command_buffer, batches, destination_image=destinations)
    assert several is not None
    assert {each.read_count for each in several} == {1}
    assert kernel.encode(command_buffer, singles, destination, state) is destination
    assert kernel.encode_batch(command_buffer, batches, destinations, states) is destinations
    for is_temporary in (False, True):
        _, made = kernel.encode(command_buffer, singles, destination_state_is_temporary=is_temporary)
        assert isinstance(made, MPSNNMultiaryGradientState)
        assert (made.lives_on is command_buffer) is is_temporary
        _, made = kernel.encode_batch(command_buffer, batches, destination_state_is_temporary=is_temporary)
        assert isinstance(made, MPSStateBatch)
        assert len(made) == 2
    finish(command_buffer)
    assert_close(numbers(destinations), _sum(arrays), 1e-6)
    assert_close(numbers(destination), _sum(arrays)[:1], 1e-6)


def test_no_states_by_default(arrays: list[np.ndarray]) -> None:
    bench = Bench(CPU)
    kernel = WeightedSum(CPU, WEIGHTS)
    singles, batches = [bench.image(values) for values in arrays], [bench.batch(values) for values in arrays]
    command_buffer = bench.command_buffer()
    assert kernel.result_state(singles) is None
    assert kernel.result_state_batch(batches) is None
    assert kernel.temporary_result_state(command_buffer, singles) is None
    assert kernel.temporary_result_state_batch(command_buffer, batches) is None
    result, state = kernel.encode(command_buffer, singles, destination_state_is_temporary=True)
    assert isinstance(result, MPSImage)
    assert state is None
    _, states = kernel.encode_batch(command_buffer, batches, destination_state_is_temporary=False)
    assert states is None
    finish(command_buffer)


def test_concatenation_and_its_gradients(device: torch.device, rng: np.random.Generator) -> None:
    """Three, five and four channels take four, eight and four; what flows back to each is its own channels."""
    bench = Bench.on(device)
    kernel = Concatenation(bench.device, 3)
    keep_results(kernel)
    arrays = [rng.normal(size=(2, channels, 2, 3)).astype(np.float32) for channels in (3, 5, 4)]
    batches = [bench.batch(values) for values in arrays]
    flow = rng.normal(size=(2, 16, 2, 3)).astype(np.float32)
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, batches, destination_state_is_temporary=False)
    assert states is not None
    assert isinstance(states[0], MPSNNMultiaryGradientState)
    back = []
    for index, batch in enumerate(batches):
        gradient = ConcatenationGradient(bench.device, index)
        keep_results(gradient)
        back.append(gradient.encode_batch(command_buffer, bench.batch(flow), batch, states))
    finish(command_buffer)
    found = numbers(result)
    for values, first, flowed in zip(arrays, (0, 4, 12), back, strict=True):
        np.testing.assert_array_equal(found[:, first : first + values.shape[1]], values)
        np.testing.assert_array_equal(numbers(flowed), flow[:, first : first + values.shape[1]])
    assert not found[:, [3, 9, 10, 11]].any()


# --- what a user can get wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, 65537, 2**70, 2.0, True, None])
def test_source_counts(count: Any) -> None:
    with pytest.raises(
        MPSArgumentError, match="^MPSCNNMultiaryKernel: source_count must be an integer from 1 to 65536"
    ):
        MPSCNNMultiaryKernel(CPU, count)


def test_the_base_computes_nothing() -> None:
    bench, kernel = Bench(CPU), MPSCNNMultiaryKernel(CPU, 2)
    with pytest.raises(MPSTypeError, match="^MPSCNNMultiaryKernel: encode is not offered by this base class"):
        kernel.encode(bench.command_buffer(), [bench.empty((1, 1, 1, 1))] * 2)


@pytest.mark.parametrize("index", [-1, 3, True, "0", None, 1.0])
def test_indices(index: Any) -> None:
    kernel = WeightedSum(CPU, WEIGHTS)
    kernel.label = "s"
    rule = "^WeightedSum 's': index must be an integer from 0 to 2, got "
    for name, getter, default, _ in PROPERTIES:
        with pytest.raises(MPSArgumentError, match=rule):
            getattr(kernel, getter)(index)
        with pytest.raises(MPSArgumentError, match=rule):
            getattr(kernel, f"set_{name}")(default, index)


WRONG = [
    (MPSTypeError, "offset", "offset", (0, 0, 0)),
    (MPSArgumentError, "source_feature_channel_offset", "offset", 3),
    (MPSArgumentError, "source_feature_channel_max_count", "count", 0),
    (MPSArgumentError, "edge_mode", "edge_mode", MPSImageEdgeMode.MIRROR),
    (MPSArgumentError, "kernel_width", "width", 0),
    (MPSArgumentError, "kernel_height", "height", 1.5),
    (MPSArgumentError, "stride_in_pixels_x", "stride", 0),
    (MPSArgumentError, "stride_in_pixels_y", "stride", -1),
    (MPSArgumentError, "dilation_rate_x", "dilation_rate", 0),
    (MPSArgumentError, "dilation_rate_y", "dilation_rate", True),
]


@in_one_test
@pytest.mark.parametrize(("error", "name", "argument", "value"), WRONG)
def test_values(error: type[MPSError], name: str, argument: str, value: Any) -> None:
    kernel = WeightedSum(CPU, WEIGHTS)
    kernel.label = "s"
    with pytest.raises(error, match=f"^WeightedSum 's': {argument} must be ") as caught:
        getattr(kernel, f"set_{name}")(value, 1)
    assert caught.value.who == "WeightedSum 's'"


def test_sources(arrays: list[np.ndarray]) -> None:
    bench = Bench(CPU)
    kernel = WeightedSum(CPU, WEIGHTS)
    kernel.label = "s"
    singles, batches = [bench.image(values) for values in arrays], [bench.batch(values) for values in arrays]
    command_buffer = bench.command_buffer()
    elsewhere = Bench(MTLDevice(torch.device("cpu"))).image(arrays[0])
    who = "^WeightedSum 's': "
    cases: list[tuple[type[MPSError], Any, Any, str]] = [
        (MPSArgumentError, kernel.encode, singles[:2], "source_images must be a sequence of 3 images, got 2"),
        (MPSTypeError, kernel.encode, singles[0], "source_images must be a sequence of 3 images, got MPSImage"),
        (MPSTypeError, kernel.encode, None, "source_images must be a sequence of 3 images, got NoneType"),
        (MPSTypeError, kernel.encode, [*singles[:2], 7], r"source_images\[2\] must be an MPSImage, got int"),
        (MPSTypeError, kernel.encode, batches, r"source_images\[0\] must be an MPSImage, got MPSImageBatch"),
        (MPSDeviceError, kernel.encode, [*singles[:2], elsewhere], r"source_images\[2\] must belong to the device"),
        (MPSArgumentError, kernel.encode_batch, batches[:1], "source_images must be a sequence of 3 batches, got 1"),
        (
            MPSTypeError,
            kernel.encode_batch,
            singles,
            r"source_images\[0\] must be a sequence of MPSImage, got MPSImage",
        ),
        (
            MPSArgumentError,
            kernel.encode_batch,
            [*batches[:2], batches[2][:1]],
            r"source_images\[2\] must be 2 image\(s\), as many as source_images\[0\], got 1",
        ),
    ]
    for error, call, sources, message in cases:
        with pytest.raises(error, match=who + message):
            call(command_buffer, sources)
    with pytest.raises(MPSTypeError, match=who + "destination_image must be an MPSImage, got MPSImageBatch"):
        kernel.encode(command_buffer, singles, batches[0])  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match=who + "destination_images must be 2 image"):
        kernel.encode_batch(command_buffer, batches, batches[0][:1])
    with pytest.raises(MPSArgumentError, match=who + "destination_image must not share memory"):
        kernel.encode(command_buffer, singles, singles[1])
    with pytest.raises(MPSArgumentError, match=who + r"source_images must be 3 image\(s\), got 2"):
        kernel.destination_image_descriptor(singles[:2])
    kernel.set_source_feature_channel_offset(4, 1)
    with pytest.raises(MPSArgumentError, match=who + r"source_images\[1\] must have at least 1 feature channel"):
        kernel.encode(command_buffer, singles)
