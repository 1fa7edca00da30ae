"""Kernels with one and two sources and gradient kernels as bases: each member, called on a small subclass."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNBinaryGradientState, MPSNNGradientState
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Window
from openmps.ops.op import Op
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageEdgeMode,
    MPSKernelOptions,
    MPSNNPaddingMethod,
    MPSOffset,
    MPSRectNoClip,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles.geometry import Axis, gather, gather_adjoint

CPU = mtl_device("cpu")
CLAMP = MPSImageEdgeMode.CLAMP
SHAPE = (2, 8, 5, 6)


def _taps(window: Any) -> list[tuple[slice, slice]]:
    """Where in the region read each tap of a window lies."""

    def places(axis: Any) -> list[slice]:
        last = (axis.result - 1) * axis.stride + 1
        return [slice(p * axis.dilation, p * axis.dilation + last, axis.stride or 1) for p in range(axis.size)]

    return list(itertools.product(places(window.y), places(window.x)))


@dataclass(frozen=True, slots=True)
class WindowSum(Op):
    window: Window

    def run(self, wanted, *operands):
        (region,) = operands
        return torch.stack([region[:, :, rows, columns] for rows, columns in _taps(self.window)]).sum(0)


@dataclass(frozen=True, slots=True)
class Minus(Op):
    def run(self, wanted, *operands):
        return operands[0] - operands[1]


@dataclass(frozen=True, slots=True)
class Spread(Op):
    """The adjoint of `WindowSum`."""

    window: Window

    def run(self, wanted, *operands):
        (gradient,) = operands
        region = gradient.new_zeros((*gradient.shape[:2], *self.window.region))
        for rows, columns in _taps(self.window):
            region[:, :, rows, columns] += gradient
        return region


class Sum(MPSCNNKernel):
    """Y = the sum of the window."""

    _gradient_state_class = MPSNNGradientState

    def __init__(self, device: MTLDevice, size=(1, 1), stride=(1, 1), dilation=(1, 1)) -> None:
        super().__init__(device)
        self._set_window(*size, *stride)
        self._set_dilation(*dilation)

    def _lower(self, at, *images):
        return WindowSum(at.window)(at.read(images[0]))


class Difference(MPSCNNBinaryKernel):
    """Y = the primary window's sum - the secondary window's sum."""

    _gradient_state_class = MPSNNBinaryGradientState

    def _lower(self, at, *images):
        first, second = (WindowSum(at.sources[i].window)(at.read(image, i)) for i, image in enumerate(images))
        return Minus()(first, second)


class SumGradient(MPSCNNGradientKernel):
    """The adjoint of `Sum`."""

    _strides = range(1, 99)

    def _differentiate(self, at, gradient, source):
        return at.back(Spread(at.geometry.data)(gradient))


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-8, 9, size=SHAPE).astype(np.float64)


@pytest.fixture
def y(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-8, 9, size=SHAPE).astype(np.float64)


# --- MPSKernel --------------------------------------------------------------------------------------------------------


def test_label_options_and_device() -> None:
    kernel = MPSKernel(CPU)
    assert (kernel.label, kernel.options, kernel.device, kernel.name) == (None, MPSKernelOptions.NONE, CPU, "MPSKernel")
    kernel.label, kernel.options = "mine", MPSKernelOptions.VERBOSE
    assert kernel.name == "MPSKernel 'mine'"
    assert repr(kernel).startswith("<MPSKernel 'mine' on ")
    with pytest.raises(AttributeError):
        kernel.device = CPU  # type: ignore[misc]
    with pytest.raises(MPSTypeError, match="^MPSKernel: device "):
        MPSKernel("cpu")  # type: ignore[arg-type]


def test_copies() -> None:
    """On the same device or on another, with everything that was set."""
    other = MTLDevice(torch.device("cpu"))
    kernel = Sum(CPU, (3, 2))
    kernel.label, kernel.options, kernel.offset = "mine", MPSKernelOptions.VERBOSE, MPSOffset(1, 2, 3)
    for twin, device in ((kernel.copy(), CPU), (copy.copy(kernel), CPU), (kernel.copy(device=other), other)):
        assert type(twin) is Sum
        assert twin.device is device
        assert (twin.label, twin.options, twin.offset, twin.kernel_width) == (
            "mine",
            MPSKernelOptions.VERBOSE,
            MPSOffset(1, 2, 3),
            3,
        )
        twin.offset = MPSOffset(0, 0, 0)
    assert kernel.offset == MPSOffset(1, 2, 3)
    with pytest.raises(MPSTypeError, match="^Sum 'mine': device "):
        kernel.copy("cpu")  # type: ignore[arg-type]
    image = Bench(CPU).empty((1, 1, 1, 1))
    bench = Bench(other)
    with pytest.raises(MPSDeviceError, match="^Sum 'mine': source_image must belong to the device"):
        kernel.copy(other).encode(bench.command_buffer(), image)


# --- one source -------------------------------------------------------------------------------------------------------


def test_defaults_of_a_kernel_with_one_source() -> None:
    kernel = Sum(CPU, (3, 2), (2, 1), (1, 4))
    assert (kernel.offset, kernel.clip_rect) == (MPSOffset(0, 0, 0), MPSRectNoClip)
    assert (kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count) == (0, 2**64 - 1)
    assert (kernel.destination_feature_channel_offset, kernel.edge_mode) == (0, MPSImageEdgeMode.ZERO)
    assert (kernel.kernel_width, kernel.kernel_height) == (3, 2)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (2, 1)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (1, 4)
    _shared_defaults(kernel)


def _shared_defaults(kernel: Any) -> None:
    assert (kernel.is_backwards, kernel.is_state_modified) == (False, False)
    assert (kernel.is_result_state_reused_across_batch(), kernel.append_batch_barrier()) == (False, False)
    assert kernel.padding == MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
    assert kernel.destination_image_allocator is MPSTemporaryImage.default_allocator()


@pytest.mark.parametrize("arrange", ["image", "batch"])
def test_every_property_of_a_given_destination(arrange: str, x: np.ndarray, device: torch.device) -> None:
    """Offset, edge mode, channels of the source and of the destination, window, stride, dilation, clip rectangle."""
    bench = Bench.on(device)
    kernel = Sum(bench.device, (3, 2), (2, 1), (1, 2))
    kernel.offset, kernel.edge_mode = MPSOffset(1, -1, 0), CLAMP
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 3
    kernel.destination_feature_channel_offset = 8
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(3, 2, 2**64 - 1))
    kernel.padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL)
    filled = np.full((2, 11, 5, 5), -7.0)
    destination = getattr(bench, arrange)(filled)
    command_buffer = bench.command_buffer()
    call = kernel.encode if arrange == "image" else kernel.encode_batch
    assert call(command_buffer, getattr(bench, arrange)(x), destination) is destination
    finish(command_buffer)
    taps = gather(x[:, 4:7], Axis(2, 2, 1, 2, -1), Axis(3, 3, 2, 1, 1), int(CLAMP))
    filled[:, 8:11, 2:4, 1:4] = taps.sum((4, 5))
    assert_close(numbers(destination), filled, 0.0)
    assert kernel.offset == MPSOffset(1, -1, 0), "an encode into a given destination changes no property"


@pytest.mark.parametrize("arrange", ["image", "batch"])
def test_results_that_encodes_make(arrange: str, x: np.ndarray, device: torch.device) -> None:
    """The padding policy sizes them and sets the offset; the allocator makes them; temporary unless it says else."""
    bench = Bench.on(device)
    kernel = Sum(bench.device, (3, 2), (2, 1))
    kernel.padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
    command_buffer = bench.command_buffer()
    images = getattr(bench, arrange)(x)
    call = kernel.encode if arrange == "image" else kernel.encode_batch
    first = call(command_buffer, images)
    assert isinstance(first if arrange == "image" else first[0], MPSTemporaryImage)
    keep_results(kernel)
    result = call(command_buffer, images)
    finish(command_buffer)
    height, width = numbers(result).shape[2:]
    assert (height, width) == (4, 2)
    rows, columns = Axis(height, 2, 1, 1, kernel.offset.y), Axis(width, 3, 2, 1, kernel.offset.x)
    assert_close(numbers(result), gather(x, rows, columns, 0).sum((4, 5)), 0.0)


def test_the_descriptor_takes_the_states_word(x: np.ndarray) -> None:
    """The built-in policy, then each source state; properties are set on the way."""

    class Larger(MPSState):
        def destination_image_descriptor(self, source_images, source_states, destination_kernel, suggested_descriptor):
            suggested_descriptor.width += 10
            destination_kernel.offset = MPSOffset(5, 5, 0)
            return suggested_descriptor

    bench = Bench(CPU)
    kernel, image = Sum(CPU, (3, 3), (2, 2)), bench.image(x)
    plain = kernel.destination_image_descriptor([image])
    assert (plain.width, plain.height, plain.feature_channels, plain.number_of_images) == (3, 3, 8, 2)
    assert kernel.offset == MPSOffset(0, 0, 0)
    larger = kernel.destination_image_descriptor(source_images=[image], source_states=[Larger(CPU, buffer_size=4)])
    assert (larger.width, larger.height) == (13, 3)
    assert kernel.offset == MPSOffset(5, 5, 0)


@pytest.mark.parametrize("arrange", ["image", "batch"])
def test_a_subclass_may_size_its_results(arrange: str, x: np.ndarray) -> None:
    """Encodes that make their result ask the kernel's own method."""

    class Narrow(Sum):
        def destination_image_descriptor(self, source_images, source_states=None):
            descriptor = super().destination_image_descriptor(source_images, source_states)
            descriptor.width -= 1
            self.offset = MPSOffset(1, 0, 0)
            return descriptor

    bench = Bench(CPU)
    kernel, plain = Narrow(CPU, (3, 3), (1, 1)), Sum(CPU, (3, 3), (1, 1))
    images = getattr(bench, arrange)(x)
    assert_close(run(bench, kernel, [images]), run(bench, plain, [images])[..., 1:], 0.0)


def test_an_allocator_may_change_the_kernel_that_it_is_given(x: np.ndarray) -> None:
    """In time for the encode that asks it."""

    class Clamping:
        def image(self, command_buffer, image_descriptor, kernel):
            kernel.edge_mode = CLAMP
            return MPSImage(command_buffer.device, image_descriptor)

    bench = Bench(CPU)
    kernel, plain = Sum(CPU, (3, 3), (1, 1)), Sum(CPU, (3, 3), (1, 1))
    plain.edge_mode = CLAMP
    kernel.destination_image_allocator = Clamping()
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, bench.image(x[:1]))
    finish(command_buffer)
    assert_close(numbers(result), run(bench, plain, [bench.image(x[:1])]), 0.0)


def test_states_of_one_source(x: np.ndarray, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = Sum(bench.device)
    single, batch = bench.image(x[:1]), bench.batch(x)
    destination, destinations = bench.empty((1, *SHAPE[1:])), bench.batch(np.zeros(SHAPE))
    command_buffer = bench.command_buffer()
    state = kernel.result_state(single, source_states=None, destination_image=destination)
    temporary = kernel.temporary_result_state(command_buffer, single, source_states=None, destination_image=destination)
    assert isinstance(state, MPSNNGradientState)
    assert isinstance(temporary, MPSNNGradientState)
    assert (state.is_temporary, state.read_count, temporary.read_count) == (False, 0, 1)
    assert (state.source_width, state.source_height) == (SHAPE[3], SHAPE[2])
    states = kernel.result_state_batch(batch, source_states=None, destination_image=destinations)
    several = kernel.temporary_result_state_batch(
        command_buffer, batch, source_states=None, destination_image=destinations
    )
    for made in (states, several):
        assert isinstance(made, MPSStateBatch)
        assert len(made) == len(made.unique()) == 2
    kernel.encode(command_buffer, single, destination, destination_state=state)
    kernel.encode_batch(command_buffer, batch, destinations, destination_states=states)
    result, made = kernel.encode(command_buffer, single, destination_state_is_temporary=True)
    assert isinstance(result, MPSImage)
    assert isinstance(made, MPSNNGradientState)
    assert made.lives_on is command_buffer
    results, batch_states = kernel.encode_batch(command_buffer, batch, destination_state_is_temporary=False)
    assert batch_states is not None
    assert (len(results), len(batch_states)) == (2, 2)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destinations), x)


def test_one_state_for_the_whole_batch(x: np.ndarray) -> None:
    """A kernel says so by a method, as it says that it needs a barrier."""

    class Shared(Sum):
        def is_result_state_reused_across_batch(self) -> bool:
            return True

    bench = Bench(CPU)
    states = Shared(CPU).result_state_batch(bench.batch(x))
    assert states is not None
    assert len(states) == 2
    assert states[0] is states[1]


def test_storage_of_an_encode(x: np.ndarray) -> None:
    bench = Bench(CPU)
    image, batch = bench.image(x), bench.batch(x)
    one, two = Sum(CPU), Difference(CPU)
    assert one.encoding_storage_size(image, source_states=None, destination_image=image) == 0
    assert one.batch_encoding_storage_size(batch, source_states=None, destination_image=batch) == 0
    assert two.encoding_storage_size(image, image, source_states=None, destination_image=image) == 0
    assert two.batch_encoding_storage_size(batch, batch, source_states=None, destination_image=batch) == 0
    with pytest.raises(MPSTypeError, match="^Sum: source_image must be an MPSImage"):
        one.encoding_storage_size(batch)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^Sum: source_image must be a sequence"):
        one.batch_encoding_storage_size(image)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^Difference: secondary_image must be an MPSImage"):
        two.encoding_storage_size(image, None)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^Difference: secondary_image must be a sequence"):
        two.batch_encoding_storage_size(batch, image)  # type: ignore[arg-type]


# --- two sources ------------------------------------------------------------------------------------------------------


def test_defaults_of_a_kernel_with_two_sources() -> None:
    kernel = Difference(CPU)
    assert kernel.clip_rect == MPSRectNoClip
    assert kernel.destination_feature_channel_offset == 0
    for side in ("primary", "secondary"):
        expected = {
            "offset": MPSOffset(0, 0, 0),
            "edge_mode": MPSImageEdgeMode.ZERO,
            "source_feature_channel_offset": 0,
            "source_feature_channel_max_count": 2**64 - 1,
            **{f"kernel_{size}": 1 for size in ("width", "height")},
            **{f"stride_in_pixels_{axis}": 1 for axis in "xy"},
            **{f"dilation_rate_{axis}": 1 for axis in "xy"},
        }
        assert {name: getattr(kernel, f"{side}_{name}") for name in expected} == expected
    _shared_defaults(kernel)


@pytest.mark.parametrize("arrange", ["image", "batch"])
def test_every_property_of_two_sources(arrange: str, x: np.ndarray, y: np.ndarray, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = Difference(bench.device)
    kernel._change_source(0, kernel_width=3, dilation_x=2)
    kernel._change_source(1, kernel_height=2, dilation_y=3)
    assert (kernel.primary_kernel_width, kernel.primary_dilation_rate_x, kernel.primary_kernel_height) == (3, 2, 1)
    assert (kernel.secondary_kernel_height, kernel.secondary_dilation_rate_y, kernel.secondary_kernel_width) == (
        2,
        3,
        1,
    )
    kernel.primary_offset, kernel.secondary_offset = MPSOffset(1, -1, 0), MPSOffset(-2, 2, 0)
    kernel.primary_edge_mode = CLAMP
    kernel.primary_stride_in_pixels_x, kernel.primary_stride_in_pixels_y = 2, 1
    kernel.secondary_stride_in_pixels_x, kernel.secondary_stride_in_pixels_y = 0, 3
    kernel.primary_source_feature_channel_offset, kernel.primary_source_feature_channel_max_count = 4, 2
    kernel.secondary_source_feature_channel_offset, kernel.secondary_source_feature_channel_max_count = 0, 2
    kernel.destination_feature_channel_offset = 4
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(2, 3, 2**64 - 1))
    filled = np.full((2, 7, 5, 5), -7.0)
    destination = getattr(bench, arrange)(filled)
    command_buffer = bench.command_buffer()
    call = kernel.encode if arrange == "image" else kernel.encode_batch
    assert call(command_buffer, getattr(bench, arrange)(x), getattr(bench, arrange)(y), destination) is destination
    finish(command_buffer)
    left = gather(x[:, 4:6], Axis(3, 1, 1, 1, -1), Axis(2, 3, 2, 2, 1), int(CLAMP)).sum((4, 5))
    right = gather(y[:, :2], Axis(3, 2, 3, 3, 2), Axis(2, 1, 0, 1, -2), 0).sum((4, 5))
    filled[:, 4:6, 1:4, 2:4] = left - right
    assert_close(numbers(destination), filled, 0.0)


def test_every_encode_and_state_of_two_sources(x: np.ndarray, y: np.ndarray, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = Difference(bench.device)
    keep_results(kernel)
    singles, batches = (bench.image(x[:1]), bench.image(y[:1])), (bench.batch(x), bench.batch(y))
    destination, destinations = bench.empty((1, *SHAPE[1:])), bench.batch(np.zeros(SHAPE))
    descriptor = kernel.destination_image_descriptor(list(singles))
    assert (descriptor.width, descriptor.height, descriptor.feature_channels) == (SHAPE[3], SHAPE[2], SHAPE[1])
    command_buffer = bench.command_buffer()
    options = {"source_states": None, "destination_image": destination}
    state = kernel.result_state(*singles, **options)
    temporary = kernel.temporary_result_state(command_buffer, *singles, **options)
    options = {"source_states": None, "destination_image": destinations}
    states = kernel.result_state_batch(*batches, **options)
    several = kernel.temporary_result_state_batch(command_buffer, *batches, **options)
    for each in (state, temporary):
        assert isinstance(each, MPSNNBinaryGradientState)
        assert (each.source_width, each.source_height) == (SHAPE[3], SHAPE[2])
    for made in (states, several):
        assert made is not None
        assert len(made) == len(made.unique()) == 2
    results = [
        kernel.encode(command_buffer, *singles),
        kernel.encode(command_buffer, *singles, destination, state),
        kernel.encode(command_buffer, *singles, destination_state_is_temporary=True)[0],
    ]
    batch_results = [
        kernel.encode_batch(command_buffer, *batches),
        kernel.encode_batch(command_buffer, *batches, destinations, states),
        kernel.encode_batch(command_buffer, *batches, destination_state_is_temporary=False)[0],
    ]
    finish(command_buffer)
    for result in results:
        np.testing.assert_array_equal(numbers(result), (x - y)[:1])
    for batch in batch_results:
        np.testing.assert_array_equal(numbers(batch), x - y)


# --- gradient kernels -------------------------------------------------------------------------------------------------


def _forward(bench: Bench, x: np.ndarray, **settings: Any) -> tuple[Sum, Any, Any, Any]:
    """A strided, dilated, clamped forward encode: kernel, its images, result and states."""
    kernel = Sum(bench.device, **settings)
    kernel.edge_mode = CLAMP
    keep_results(kernel)
    images = bench.batch(x)
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    finish(command_buffer)
    return kernel, images, result, states


SETTINGS: dict[str, Any] = {"size": (3, 2), "stride": (2, 1), "dilation": (1, 2)}


def test_gradients_take_their_properties_from_the_state(x: np.ndarray, rng, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel, images, result, states = _forward(bench, x, **SETTINGS)
    flow = rng.integers(-8, 9, size=numbers(result).shape).astype(np.float64)
    height, width = flow.shape[2:]
    rows, columns = Axis(height, 2, 1, 2, kernel.offset.y), Axis(width, 3, 2, 1, kernel.offset.x)
    taps = np.broadcast_to(flow[..., None, None], (*flow.shape, 2, 3))
    expected = gather_adjoint(taps, x.shape, rows, columns, int(CLAMP))
    gradient = SumGradient(bench.device)
    assert (gradient.kernel_offset_x, gradient.kernel_offset_y) == (0, 0)
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    whole = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    single = gradient.encode(command_buffer, bench.image(flow[1:]), images[1], states[1])
    finish(command_buffer)
    assert_close(numbers(whole), expected, 0.0)
    assert_close(numbers(single), expected[1:], 0.0)
    assert gradient.secondary_offset == kernel.offset
    assert (gradient.secondary_kernel_width, gradient.secondary_kernel_height) == (3, 2)
    assert (gradient.secondary_stride_in_pixels_x, gradient.secondary_stride_in_pixels_y) == (2, 1)
    assert (gradient.secondary_dilation_rate_x, gradient.secondary_dilation_rate_y) == (1, 2)
    assert gradient.secondary_edge_mode is CLAMP
    assert (gradient.kernel_offset_x, gradient.kernel_offset_y) == (-kernel.offset.x, -kernel.offset.y)
    again, again_batch = bench.filled((1, *SHAPE[1:]), -7), bench.batch(np.full(SHAPE, -7.0))
    command_buffer = bench.command_buffer()
    assert gradient.encode(command_buffer, bench.image(flow[:1]), images[0], states[0], again) is again
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states, again_batch)
    assert found is again_batch
    finish(command_buffer)
    assert_close(numbers(again), expected[:1], 0.0)
    assert_close(numbers(again_batch), expected, 0.0)


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, -2), (-1, 1)])
def test_kernel_offsets_move_what_flows_back(shift: tuple[int, int], x: np.ndarray, device: torch.device) -> None:
    """Source pixel u is the centre u + kernel_offset of the gradient."""
    bench = Bench.on(device)
    gradient = SumGradient(bench.device)
    gradient.kernel_offset_x, gradient.kernel_offset_y = shift
    destination = bench.batch(np.full(SHAPE, -7.0))
    command_buffer = bench.command_buffer()
    images = bench.batch(x)
    gradient.encode_batch(command_buffer, images, bench.batch(x), None, destination)
    finish(command_buffer)
    expected = gather(x, Axis(SHAPE[2], offset=shift[1]), Axis(SHAPE[3], offset=shift[0]), 0)[..., 0, 0]
    assert_close(numbers(destination), expected, 0.0)


def test_what_gradients_ask_for(x: np.ndarray) -> None:
    bench = Bench(CPU)
    gradient = SumGradient(CPU)
    gradient.label = "g"
    image = bench.image(x)
    command_buffer = bench.command_buffer()
    with pytest.raises(MPSTypeError, match="^SumGradient 'g': gradient_state is needed"):
        gradient.encode(command_buffer, image, image)
    with pytest.raises(MPSTypeError, match="^SumGradient 'g': gradient_state must be an MPSNNGradientState"):
        gradient.encode(command_buffer, image, image, MPSState(CPU, buffer_size=4))
    with pytest.raises(MPSArgumentError, match="^SumGradient 'g': gradient_state must come from a forward encode"):
        gradient.encode(command_buffer, image, image, Sum(CPU).result_state(image))


@pytest.mark.parametrize(
    "kind", [MPSCNNKernel, MPSCNNBinaryKernel, MPSCNNGradientKernel], ids=lambda kind: kind.__name__
)
def test_bases_compute_nothing(kind: Any) -> None:
    bench, kernel = Bench(CPU), kind(CPU)
    kernel.label = "base"
    image = bench.empty((1, 1, 1, 1))
    more: list[Any] = {MPSCNNKernel: [], MPSCNNBinaryKernel: [image], MPSCNNGradientKernel: [image, None]}[kind]
    with pytest.raises(MPSTypeError, match=f"^{kind.__name__} 'base': encode is not offered by this base class"):
        kernel.encode(bench.command_buffer(), image, *more, bench.empty((1, 1, 1, 1)))
