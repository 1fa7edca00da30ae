"""Padding given in pixels, against PyTorch and Caffe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import openmps as mps
from in_one_test import in_one_test
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.geometry import Lengths, Placement, suggested_geometry, window_extent
from openmps.core.padding.policy import MPSNNDefaultPadding, custom_descriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSDataType, MPSImageEdgeMode, MPSOffset
from oracles import padding as oracle

GRID = list(itertools.product(range(1, 14), range(1, 6), range(1, 5), range(1, 4)))  # source, kernel, stride, dilation


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Thousands of tiny convolutions: handing them to other threads takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def kernel_stand_in(
    kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), dilation: tuple[int, int] = (1, 1), **more: object
) -> SimpleNamespace:
    """The properties that an encode shows a policy; pairs are (x, y)."""
    return SimpleNamespace(
        kernel_width=kernel[0],
        kernel_height=kernel[1],
        stride_in_pixels_x=stride[0],
        stride_in_pixels_y=stride[1],
        dilation_rate_x=dilation[0],
        dilation_rate_y=dilation[1],
        offset=MPSOffset(0, 0, 5),
        **{"is_backwards": False, "edge_mode": MPSImageEdgeMode.ZERO, **more},
    )


def run(policy: ExplicitPadding, kernel: SimpleNamespace, width: int, height: int) -> SimpleNamespace:
    """The way of an encode: suggestion, custom step."""
    geometry = suggested_geometry(
        policy.padding_method(),
        Lengths(width, kernel.kernel_width, kernel.stride_in_pixels_x, kernel.dilation_rate_x),
        Lengths(height, kernel.kernel_height, kernel.stride_in_pixels_y, kernel.dilation_rate_y),
        is_backwards=kernel.is_backwards,
    )
    suggested = SimpleNamespace(width=geometry.width, height=geometry.height)
    return custom_descriptor(policy, [SimpleNamespace(width=width, height=height)], None, kernel, suggested)


def positions(placed: Placement, kernel: int, stride: int, dilation: int) -> list[list[int]]:
    """Source positions of the taps, from the offset that the kernel is given."""
    start = placed.offset - window_extent(kernel, dilation) // 2
    return oracle.taps(placed.result, -start, kernel, stride, dilation)


def test_convolution_is_pytorch(rng: np.random.Generator) -> None:
    for (source, kernel, stride, dilation), pad in itertools.product(GRID, (0, 1, 3)):
        policy = ExplicitPadding.pytorch(pad)
        if source + 2 * pad < window_extent(kernel, dilation):
            with pytest.raises(MPSArgumentError, match="leaves no result pixel"):
                policy.placement(source, kernel, stride, dilation)
            continue
        values, weights = rng.integers(-9, 9, source) * 1.0, rng.integers(-9, 9, kernel) * 1.0
        wanted = F.conv2d(
            torch.from_numpy(values)[None, None, None],
            torch.from_numpy(weights)[None, None, None],
            stride=(1, stride),
            padding=(0, pad),
            dilation=(1, dilation),
        )
        placed = policy.placement(source, kernel, stride, dilation)
        got = oracle.convolve(values, weights, positions(placed, kernel, stride, dilation))
        np.testing.assert_array_equal(got, wanted.numpy().ravel(), err_msg=str((source, kernel, stride, dilation, pad)))
        assert placed.read - placed.missing == source
        assert placed.before == pad


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pooling_is_pytorch(ceil_mode: bool, rng: np.random.Generator) -> None:
    for source, kernel, stride, dilation in GRID:
        extent = window_extent(kernel, dilation)
        for pad in range(min(kernel // 2, 3) + 1):
            if oracle.pytorch_size(source, kernel, stride, dilation, pad, ceil_mode) < 1:
                continue
            values = rng.permutation(source) * 1.0
            wanted = F.max_pool2d(
                torch.from_numpy(values)[None, None, None],
                (1, kernel),
                (1, stride),
                (0, pad),
                (1, dilation),
                ceil_mode=ceil_mode,
            )
            placed = ExplicitPadding.pytorch(pad, ceil_mode=ceil_mode).placement(source, kernel, stride, dilation)
            taps = positions(placed, kernel, stride, dilation)
            assert placed.result == wanted.shape[-1]
            for window, maximum in zip(taps, wanted.numpy().ravel(), strict=True):
                inside = [values[tap] for tap in window if 0 <= tap < source]
                # A dilated window may hold no pixel; PyTorch gives minus infinity.
                assert (max(inside) if inside else -np.inf) == maximum, (source, kernel, stride, dilation, pad)
            assert placed.offset == extent // 2 - pad


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_average_pooling_is_pytorch(ceil_mode: bool, count_include_pad: bool, rng: np.random.Generator) -> None:
    for size, k, s in itertools.product(((7, 4), (3, 9), (10, 11)), ((2, 3), (3, 2), (4, 5)), ((1, 2), (3, 1), (4, 3))):
        for pad in ((0, 0), (1, 1), (0, 1)):
            height, width = size
            if min(height + 2 * pad[0] - k[0], width + 2 * pad[1] - k[1]) < 0:
                continue
            policy = ExplicitPadding.pytorch(pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
            kernel = kernel_stand_in((k[1], k[0]), (s[1], s[0]), zero_pad_size_x=7, zero_pad_size_y=7)
            descriptor = run(policy, kernel, width, height)
            values = rng.standard_normal(size)
            wanted = F.avg_pool2d(torch.from_numpy(values)[None, None], k, s, pad, ceil_mode, count_include_pad)[0, 0]
            assert (descriptor.height, descriptor.width) == wanted.shape
            assert kernel.edge_mode == MPSImageEdgeMode.CLAMP
            got = pool(values, kernel, descriptor)
            np.testing.assert_allclose(got, wanted.numpy(), atol=1e-12, err_msg=str((size, k, s, pad)))


def test_average_pooling_is_caffe(rng: np.random.Generator) -> None:
    for height, width, k, s in itertools.product((3, 6, 7), (4, 13), range(1, 6), range(1, 5)):
        for pad in range(min(k, 3)):
            # Without padding Caffe does not clip, and windows may start beyond the image: nothing to average.
            if not pad and (s > k or k > min(height, width)):
                continue
            policy = ExplicitPadding.caffe_pooling(pad)
            kernel = kernel_stand_in((k, k), (s, s), zero_pad_size_x=0, zero_pad_size_y=0)
            descriptor = run(policy, kernel, width, height)
            values = rng.standard_normal((height, width))
            wanted = oracle.caffe_average_pooling(values, k, s, pad)
            assert (descriptor.height, descriptor.width) == wanted.shape
            assert (kernel.zero_pad_size_x, kernel.zero_pad_size_y) == (pad, pad)
            np.testing.assert_allclose(pool(values, kernel, descriptor), wanted, atol=1e-12)


def pool(values: np.ndarray, kernel: SimpleNamespace, descriptor: SimpleNamespace) -> np.ndarray:
    """Average pooling by the properties that the policy left on the kernel."""
    rows = oracle.taps(
        descriptor.height,
        kernel.kernel_height // 2 - kernel.offset.y,
        kernel.kernel_height,
        kernel.stride_in_pixels_y,
        1,
    )
    columns = oracle.taps(
        descriptor.width, kernel.kernel_width // 2 - kernel.offset.x, kernel.kernel_width, kernel.stride_in_pixels_x, 1
    )
    return oracle.average(values, rows, columns, (kernel.zero_pad_size_x, kernel.zero_pad_size_y))


def test_transposed_convolution_is_pytorch(rng: np.random.Generator) -> None:
    grid = itertools.product((1, 2, 5, 9), range(1, 6), range(1, 5), range(1, 4), range(3), range(3))
    for source, kernel, stride, dilation, pad, extra in grid:
        extent = window_extent(kernel, dilation)
        if extra >= max(stride, dilation) or (source - 1) * stride + extent + extra - 2 * pad < 1:
            continue
        values, weights = rng.integers(-9, 9, source) * 1.0, rng.integers(-9, 9, kernel) * 1.0
        wanted = F.conv_transpose1d(
            torch.from_numpy(values)[None, None],
            torch.from_numpy(weights)[None, None],
            stride=stride,
            padding=pad,
            dilation=dilation,
            output_padding=extra,
        )
        policy = ExplicitPadding(left=pad, top=0, right=pad - extra, bottom=0)
        placed = policy.placement(source, kernel, stride, dilation, is_backwards=True)
        filled = np.zeros((source - 1) * stride + 1)
        filled[::stride] = values
        taps = oracle.taps(placed.result, extent // 2 - placed.kernel_offset, kernel, 1, dilation)
        got = oracle.convolve(filled, weights[::-1], taps)
        np.testing.assert_array_equal(got, wanted.numpy().ravel())
        assert placed.offset == 0
        assert placed.read - placed.missing == len(filled)
        assert placed.read == placed.result + extent - 1


def test_the_kernel_gets_both_axes_and_keeps_its_z() -> None:
    kernel = kernel_stand_in((5, 3), (2, 1), (1, 2))
    descriptor = run(ExplicitPadding(left=1, top=4, right=3, bottom=0), kernel, width=10, height=7)
    assert (descriptor.width, descriptor.height) == ((10 + 4 - 5) // 2 + 1, 7 + 4 - 5 + 1)
    assert kernel.offset == MPSOffset(2 - 1, 2 - 4, 5)
    assert kernel.edge_mode == MPSImageEdgeMode.ZERO


def test_a_reverse_kernel_gets_kernel_offsets() -> None:
    kernel = kernel_stand_in((4, 3), (2, 2), is_backwards=True, kernel_offset_x=9, kernel_offset_y=9)
    descriptor = run(ExplicitPadding.pytorch(1), kernel, width=7, height=7)
    assert (descriptor.width, descriptor.height) == (14, 13)
    assert kernel.offset == MPSOffset(0, 0, 5)
    # k // 2 - k + 1 + padding, as shipping policies write it.
    assert (kernel.kernel_offset_x, kernel.kernel_offset_y) == (4 // 2 - 4 + 1 + 1, 3 // 2 - 3 + 1 + 1)


def test_a_kernel_larger_than_the_image_is_placed() -> None:
    assert run(ExplicitPadding.pytorch(1), kernel_stand_in((3, 3)), width=1, height=2).width == 1


def test_negative_padding_crops() -> None:
    placed = ExplicitPadding(left=-2, top=0, right=-1, bottom=0).placement(10, 3)
    assert oracle.taps(placed.result, placed.before, 3, 1, 1)[0] == [2, 3, 4]
    assert oracle.taps(placed.result, placed.before, 3, 1, 1)[-1] == [6, 7, 8]


def test_two_source_kernels_are_placed_by_their_primary_source() -> None:
    window = kernel_stand_in((3, 3), (2, 2))
    primary = {f"primary_{name}": value for name, value in vars(window).items() if name != "is_backwards"}
    kernel = SimpleNamespace(is_backwards=False, **primary)
    suggested = SimpleNamespace(width=0, height=0)
    images = [SimpleNamespace(width=7, height=9), SimpleNamespace(width=1, height=1)]
    policy = ExplicitPadding.pytorch(1, edge_mode=MPSImageEdgeMode.CLAMP)
    assert custom_descriptor(policy, images, None, kernel, suggested) is suggested
    assert (suggested.width, suggested.height) == (4, 5)
    assert kernel.primary_offset == MPSOffset(0, 0, 5)
    assert kernel.primary_edge_mode == MPSImageEdgeMode.CLAMP
    assert not hasattr(kernel, "offset")


def test_gradient_kernels_keep_the_size_of_the_forward_source() -> None:
    window = kernel_stand_in((3, 3), (2, 2), kernel_offset_x=1, kernel_offset_y=1)
    names = ("is_backwards", "kernel_offset_x", "kernel_offset_y")
    kernel = SimpleNamespace(
        **{name if name in names else f"primary_{name}": value for name, value in vars(window).items()}
    )
    before = dict(vars(kernel))
    suggested = SimpleNamespace(width=7, height=9)
    custom_descriptor(ExplicitPadding.pytorch(1), [SimpleNamespace(width=4, height=5)], None, kernel, suggested)
    assert (suggested.width, suggested.height) == (7, 9)
    assert vars(kernel) == before


def test_max_pooling_kernels_take_the_edge_mode_alone() -> None:
    kernel = kernel_stand_in((3, 3))
    run(ExplicitPadding.caffe_pooling(1), kernel, 5, 5)
    assert kernel.edge_mode == MPSImageEdgeMode.CLAMP
    assert not hasattr(kernel, "zero_pad_size_x")


def test_uneven_padding_counts_where_the_windows_allow_it() -> None:
    kernel = kernel_stand_in((2, 2), (2, 2), zero_pad_size_x=0, zero_pad_size_y=0)
    run(ExplicitPadding.onnx([0, 1, 1, 0], count_include_pad=True), kernel, 5, 5)
    assert (kernel.zero_pad_size_x, kernel.zero_pad_size_y) == (1, 1)
    # Rounding up, the last window reaches one pixel beyond a padding of 0 that clamp would count as 1.
    uneven = ExplicitPadding.onnx([0, 1, 0, 0], ceil_mode=True, count_include_pad=True)
    with pytest.raises(MPSArgumentError, match=r"cannot count less padding after the image.*ceil_mode=False"):
        run(uneven, kernel, 6, 6)


def test_a_kernel_without_a_window_is_refused() -> None:
    with pytest.raises(MPSTypeError, match=r"ExplicitPadding .*must have a window"):
        custom_descriptor(
            ExplicitPadding(1, 1, 1, 1), [], None, SimpleNamespace(edge_mode=0), SimpleNamespace(width=1, height=1)
        )


def test_arguments_are_checked() -> None:
    with pytest.raises(MPSTypeError, match="left must be an integer"):
        ExplicitPadding(1.5, 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="padding must be an integer"):
        ExplicitPadding.pytorch("1")  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="must be CLAMP"):
        ExplicitPadding(0, 0, 0, 0, count_include_pad=True, edge_mode=MPSImageEdgeMode.ZERO)
    with pytest.raises(MPSArgumentError, match="source height leaves no result pixel for a window of 5 pixels"):
        ExplicitPadding(1, 1, 1, 1).placement(2, 3, 1, 2, axis="y")


def test_it_is_a_value() -> None:
    one = ExplicitPadding(1, 2, 3, 4, ceil_mode=True)
    assert one == ExplicitPadding(np.int64(1), 2, 3, 4, ceil_mode=True)
    assert len({one, ExplicitPadding(1, 2, 3, 4, ceil_mode=True), ExplicitPadding(1, 2, 3, 4)}) == 2
    assert one.inverse() is one
    assert one.label() == "explicit: left 1, top 2, right 3, bottom 4, ceil mode"
    assert one.padding_method() == 0x4010
    assert one != MPSNNDefaultPadding(16)


@in_one_test
@pytest.mark.parametrize("value", ["clamp", "CLAMP", 1, True, MPSDataType.FLOAT32])
@pytest.mark.parametrize("counts", [None, True])
@pytest.mark.parametrize("make", ["ExplicitPadding", "pytorch", "onnx"])
def test_an_edge_mode_is_one(make, counts, value):
    calls = {
        "ExplicitPadding": lambda **options: ExplicitPadding(0, 0, 0, 0, **options),
        "pytorch": lambda **options: ExplicitPadding.pytorch(0, **options),
        "onnx": lambda **options: ExplicitPadding.onnx([0] * 4, **options),
    }
    with pytest.raises(MPSTypeError, match="edge_mode must be an MPSImageEdgeMode"):
        calls[make](edge_mode=value, count_include_pad=counts)


class Asked(ExplicitPadding):
    """A policy of a user's own, which may say something else each time."""


@pytest.mark.parametrize("is_batch", [False, True])
def test_encodes_ask_once_for_a_shape_but_a_users_own_policy_each_time(
    is_batch: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """What a policy sets besides offsets is a property that it finds in the next encode, so once is two rounds."""
    device, asked = mps.mtl_device("cpu"), list[type]()
    step = ExplicitPadding.destination_image_descriptor
    noted = lambda self, *given: (asked.append(type(self)), step(self, *given))[1]  # noqa: E731
    monkeypatch.setattr(ExplicitPadding, "destination_image_descriptor", noted)
    kernels = {kind: mps.MPSCNNPoolingAverage(device, 3, 3, 2, 2) for kind in (ExplicitPadding, Asked)}

    def encoded(kind: type[ExplicitPadding], sides: tuple[int, ...], images: mps.MPSImageBatch) -> tuple[object, ...]:
        kernel, queue = kernels[kind], device.new_command_queue()
        kernel.padding = kind(*sides, edge_mode=MPSImageEdgeMode.CLAMP, count_include_pad=True)
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
        command_buffer = queue.command_buffer()
        made = kernel.encode_batch(command_buffer, images) if is_batch else [kernel.encode(command_buffer, images[1])]
        command_buffer.commit()
        command_buffer.wait_until_completed()
        placed = kernel.offset, kernel.edge_mode, kernel.zero_pad_size_x, kernel.zero_pad_size_y
        return *placed, [each.numpy().tolist() for each in made]

    for number in range(3):
        for sides, size in itertools.product([(1, 0, 1, 0), (1, 1, 2, 1)], [(7, 5), (9, 6)]):
            images = mps.MPSImageBatch.from_numpy(device, rng.random((2, *size, 3)).astype(np.float32))
            assert encoded(ExplicitPadding, sides, images) == encoded(Asked, sides, images)
        assert asked.count(Asked) == 4
        assert (asked.count(ExplicitPadding) > 0) is (number < 2)
        asked.clear()
