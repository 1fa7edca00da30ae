"""N-dimensional arrays: descriptors, memory, views beside NumPy's, bytes at distances, buffers, images, read counts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from replay_twin import outcomes, replaying_queue

Array = np.ndarray
DATA, Slice, Alias = mps.MPSDataType, mps.MPSDimensionSlice, mps.MPSAliasingStrategy
Format = mps.MPSImageFeatureChannelFormat


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def described(*shape: int, kind: Any = DATA.FLOAT32) -> mps.MPSNDArrayDescriptor:
    return mps.MPSNDArrayDescriptor(kind, shape)


def counted(bench: Bench, *shape: int, dtype: Any = np.float32) -> mps.MPSNDArray:
    """An array in memory with rows of 16 bytes, of the numbers from 1 on."""
    array = np.arange(1, np.prod(shape, dtype=int) + 1).astype(dtype).reshape(shape)
    made = mps.MPSNDArray(bench.device, described(*shape, kind=_kind(array.dtype)))
    made.write_bytes(array)
    return made


def _kind(dtype: Any) -> mps.MPSDataType:
    return next(kind for kind, each in mps.types.DATA_TYPE_DTYPES.items() if each == dtype)


# --- descriptors ------------------------------------------------------------------------------------------------------


def test_orders_of_lengths() -> None:
    """Dimension 0 is the last of a shape, and the first of sizes."""
    ways = [
        described(4, 3, 2),
        mps.MPSNDArrayDescriptor(DATA.FLOAT32, 3, [2, 3, 4]),
        mps.MPSNDArrayDescriptor(DATA.FLOAT32, dimension_sizes=[2, 3, 4]),
        mps.MPSNDArrayDescriptor.descriptor(DATA.FLOAT32, dimension_count=3, dimension_sizes=(2, 3, 4)),
    ]
    for each in ways:
        assert [each.length_of_dimension(index) for index in range(5)] == [2, 3, 4, 1, 1]
        assert (each.number_of_dimensions, each.data_type) == (3, DATA.FLOAT32)
        assert each.slice_range(1) == Slice(0, 3) and each.slice_range(9) == Slice(0, 1)
        assert each.dimension_order() == tuple(range(16))
    assert described().number_of_dimensions == 0


def test_slices_name_dimensions_before_transpositions() -> None:
    one, other = described(3, 2), described(3, 2)
    one.slice_dimension(0, Slice(1, 1))
    one.transpose_dimension(0, 1)
    other.transpose_dimension(1, 0)
    other.slice_dimension(0, Slice(1, 1))
    for each in (one, other):
        assert [each.length_of_dimension(index) for index in (0, 1)] == [3, 2]
        assert each.slice_range(0) == Slice(1, 1) and each.slice_range(1) == Slice(0, 3)
        assert each.dimension_order()[:3] == (1, 0, 2)
    twin = one.copy()
    one.reshape([6])
    assert (one.length_of_dimension(0), one.dimension_order(), one.slice_range(0)) == (6, tuple(range(16)), Slice(0, 6))
    assert twin.slice_range(0) == Slice(1, 1)
    twin.reshape(dimension_sizes=[3, 5], dimension_count=2)
    assert [twin.length_of_dimension(index) for index in (0, 1)] == [3, 5]


def test_more_and_fewer_dimensions() -> None:
    each = described(3, 2)
    each.number_of_dimensions = 4
    assert [each.length_of_dimension(index) for index in range(4)] == [2, 3, 1, 1]
    each.transpose_dimension(0, 3)
    with pytest.raises(MPSArgumentError, match="must be at least 4: dimension 3 has length 1 and is transposed"):
        each.number_of_dimensions = 2
    each.transpose_dimension(0, 3)
    each.number_of_dimensions = 2
    with pytest.raises(MPSArgumentError, match="must be at least 2: dimension 1 has length 3, got 1. Use reshape"):
        each.number_of_dimensions = 1


@in_one_test
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: described(*[1] * 17), "shape must hold at most 16 lengths, got 17"),
        (lambda: described(2**16, 2**15), "less than 2\\^31 elements, got 2147483648"),
        (lambda: described(2, 0), r"shape\[1\] must be an integer of at least 1, got 0"),
        (lambda: described(2, kind=DATA.UNORM1), "data_type must be one of FLOAT32"),
        (lambda: mps.MPSNDArrayDescriptor(DATA.INT8), "shape or dimension_sizes must be given"),
        (lambda: mps.MPSNDArrayDescriptor(DATA.INT8, 2, [3]), "dimension_sizes must hold 2 lengths, got 1"),
        (lambda: described(2).slice_dimension(1, Slice(0, 1)), "dimension_index must be an integer below .*, 1, got 1"),
        (lambda: described(2).slice_dimension(0, Slice(1, 2)), "at least one of the 2 elements of dimension 0"),
        (lambda: described(2).slice_dimension(0, Slice(1, 0)), "at least one of the 2 elements of dimension 0"),
        (lambda: described(2).slice_dimension(0, (0, 1)), "with_subrange must be an MPSDimensionSlice, got tuple"),
        (lambda: described(2).transpose_dimension(0, -1), "with_dimension must be an integer below"),
        (lambda: setattr(described(2), "number_of_dimensions", 17), "number_of_dimensions must be an integer of at"),
    ],
)  # fmt: skip
def test_descriptors_refuse(make: Any, rule: str) -> None:
    with pytest.raises((MPSArgumentError, MPSTypeError), match=rule):
        make()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_new_array(bench: Bench) -> None:
    """Zeros; rows of 16 bytes are seen in the size alone."""
    array = mps.MPSNDArray(bench.device, described(5, 4, 3, 2))
    assert (array.resource_size(), array.read_bytes().nbytes, array.data_type_size) == (960, 480, 4)
    assert array.shape == (5, 4, 3, 2) and not array.numpy().any()
    assert [array.length_of_dimension(index) for index in range(5)] == [2, 3, 4, 5, 1]
    turned = described(2, 3)
    turned.transpose_dimension(0, 1)
    assert mps.MPSNDArray(bench.device, turned).shape == (3, 2)
    assert array.parent is None and array.device is bench.device
    assert repr(array) == "<MPSNDArray 5x4x3x2 FLOAT32>"
    number = mps.MPSNDArray(bench.device, 2.5)
    assert (number.shape, number.data_type, number.numpy().tolist()) == ((1,), DATA.FLOAT32, [2.5])
    single = mps.MPSNDArray(bench.device, described(kind=DATA.INT8))
    single.write_bytes(np.int8(-3))
    assert (single.number_of_dimensions, int(single.numpy()), repr(single)) == (0, -3, "<MPSNDArray a number INT8>")


def test_memory_is_shared_with_numpy_and_dlpack(bench: Bench) -> None:
    given = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    array = mps.MPSNDArray.from_numpy(bench.device, given)
    given[1, 2, 3] = -1
    assert (array.data_type, array.shape) == (DATA.INT32, (2, 3, 4))
    assert array.numpy()[1, 2, 3] == (-1 if not bench.device.is_cuda else 23)
    tensor = torch.arange(6.0, device=bench.device.torch_device).reshape(3, 2)
    other = mps.MPSNDArray.from_dlpack(bench.device, tensor)
    back = torch.from_dlpack(other)
    back[0, 1] = 7
    assert tensor[0, 1] == 7 and np.asarray(other)[0, 1] == 7
    with pytest.raises(MPSArgumentError, match="cannot be shared"):
        mps.MPSNDArray.from_numpy(bench.device, given.T, copy=False)
    with pytest.raises(MPSArgumentError, match="at most 16 lengths"):
        mps.MPSNDArray.from_numpy(bench.device, np.zeros([1] * 17, np.float32))


@in_one_test
@pytest.mark.parametrize("dtype", [*(each for each in mps.types.DATA_TYPE_DTYPES.values())][:-1], ids=str)
def test_every_type_is_stored(dtype: Any, bench: Bench) -> None:
    values = np.array([[0, 1, 3], [1, 0, 2]]).astype(dtype)
    array = mps.MPSNDArray(bench.device, described(2, 3, kind=_kind(dtype)))
    for given in (values, values.ravel(), values.tobytes()):
        array.write_bytes(np.zeros_like(values))
        array.write_bytes(given)
        np.testing.assert_array_equal(array.read_bytes(), values)
        assert array.read_bytes().dtype == dtype


@pytest.mark.parametrize("given", [np.full(6, 1 / 3), torch.full((2, 3), 1.0, dtype=torch.float64), np.arange(6)])
def test_elements_of_another_type_are_not_converted(given: Any, bench: Bench) -> None:
    """As image.write_bytes: an array has bytes of its own, which are not those that are stored."""
    array = mps.MPSNDArray(bench.device, described(2, 3))
    with pytest.raises(MPSTypeError, match="must have the array's own element type float32"):
        array.write_bytes(given)
    with pytest.raises(MPSTypeError, match="mask"):
        array.write_bytes(np.ma.masked_array(np.ones(6, np.float32), [1, 0, 0, 0, 0, 0]))
    assert not array.numpy().any()


DISTANCES = {"gaps": [8, 32], "columns first": [8, 4], "backwards": [-4, 16], "all of a row in one place": [0, 4]}


@pytest.mark.parametrize("name", DISTANCES)
def test_bytes_at_distances(name: str, bench: Bench) -> None:
    array, (column, row) = counted(bench, 2, 3), DISTANCES[name]
    first = max(0, -2 * column)
    found = array.read_bytes([column, row])
    for i, j in itertools.product(range(2), range(3)):
        at = first + i * row + j * column
        stays = [found[at : at + 4].view(np.float32)[0]]
        assert stays[0] == 3 * i + j + 1 or (column == 0 and stays[0] in 3 * i + np.arange(1, 4))
    assert len(found) == max(first + i * row + j * column for i in range(2) for j in range(3)) + 4
    other = mps.MPSNDArray(bench.device, described(2, 3))
    other.write_bytes(found.tobytes(), [column, row])
    np.testing.assert_array_equal(other.read_bytes([column, row]), found)


# --- views ------------------------------------------------------------------------------------------------------------

VIEWS: dict[str, tuple[Any, Any]] = {
    "slice": (lambda of: of.slice_dimension(0, Slice(1, 2)), lambda x: x[:, :, 1:3]),
    "slices": (
        lambda of: [of.slice_dimension(2, Slice(1, 1)), of.slice_dimension(1, Slice(0, 2))], lambda x: x[1:2, :2]
    ),
    "transposed": (lambda of: of.transpose_dimension(0, 2), lambda x: x.transpose(2, 1, 0)),
    "turned": (
        lambda of: [of.transpose_dimension(0, 1), of.transpose_dimension(1, 2)], lambda x: x.transpose(2, 0, 1)
    ),
    "slice, then transposed": (
        lambda of: [of.transpose_dimension(0, 1), of.slice_dimension(0, Slice(2, 2))],
        lambda x: x[:, :, 2:4].transpose(0, 2, 1),
    ),
    "a dimension more, in front": (
        lambda of: [setattr(of, "number_of_dimensions", 4), of.transpose_dimension(0, 3)],
        lambda x: x[None].transpose(3, 1, 2, 0),
    ),
    "other lengths": (lambda of: of.reshape([6, 4]), lambda x: x.reshape(6, 4)),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("way", [Alias.DEFAULT, Alias.SHALL_NOT_ALIAS], ids=["view", "copy"])
def test_views_are_those_of_numpy(name: str, way: Any, bench: Bench) -> None:
    array, (change, numpys) = counted(bench, 2, 3, 4), VIEWS[name]
    wanted = array.descriptor()
    change(wanted)
    command_buffer = bench.command_buffer()
    view: Any = array.array_view(command_buffer, wanted, way)
    finish(command_buffer)
    expected = numpys(array.numpy())
    np.testing.assert_array_equal(view.numpy(), expected)
    assert view.shape == expected.shape and view.descriptor().number_of_dimensions == expected.ndim
    is_alias = way is Alias.DEFAULT
    assert view.parent is (array if is_alias else None)
    view.write_bytes(np.zeros(expected.shape, np.float32))
    assert bool(numpys(array.numpy()).any()) != is_alias
    assert array.numpy().sum() == (300 - expected.sum() if is_alias else 300)


def test_a_view_of_a_view(bench: Bench) -> None:
    """Slices of what is turned already, and with gaps in its rows other lengths by a copy."""
    array, command_buffer = counted(bench, 4, 3), bench.command_buffer()
    first = array.descriptor()
    first.slice_dimension(0, Slice(1, 2))
    first.transpose_dimension(0, 1)
    view: Any = array.array_view(command_buffer, first)
    np.testing.assert_array_equal(view.numpy(), [[2, 5, 8, 11], [3, 6, 9, 12]])
    second = view.descriptor()
    second.slice_dimension(0, Slice(1, 2))
    inner: Any = view.array_view(command_buffer, second)
    np.testing.assert_array_equal(inner.numpy(), [[5, 8], [6, 9]])
    assert inner.parent is view and view.parent is array
    flat = array.descriptor()
    flat.reshape([12])
    assert array.array_view(command_buffer, flat, Alias.SHALL_ALIAS) is None
    copied: Any = array.array_view(command_buffer, flat)
    finish(command_buffer)
    np.testing.assert_array_equal(copied.numpy(), np.arange(1, 13))
    assert copied.parent is None


def test_a_view_of_another_type_is_a_copy(bench: Bench) -> None:
    array = mps.MPSNDArray.from_numpy(bench.device, np.array([2.7, -1.0, 1e10, np.nan], np.float32))
    command_buffer, found = bench.command_buffer(), list[Any]()
    for kind in (DATA.UINT8, DATA.INT16, DATA.FLOAT16, DATA.UNORM8):
        found.append(array.array_view(command_buffer, described(4, kind=kind)))
        assert array.array_view(command_buffer, described(4, kind=kind), Alias.SHALL_ALIAS) is None
    finish(command_buffer)
    assert [each.numpy().tolist() for each in found[:2]] == [[2, 0, 255, 0], [2, -1, 32767, 0]]
    np.testing.assert_array_equal(found[2].numpy(), np.array([2.7, -1.0, np.inf, np.nan], np.float16))
    assert found[3].numpy().tolist() == [255, 0, 255, 0]


def test_views_refuse(bench: Bench) -> None:
    array, command_buffer = counted(bench, 2, 3), bench.command_buffer()

    def refused(wanted: Any, rule: str, *more: Any, kind: Any = MPSArgumentError) -> None:
        with pytest.raises(kind, match=rule):
            array.array_view(command_buffer, wanted, *more)

    refused(described(2, 4), r"descriptor must have lengths \(3, 2\), or as many elements, got \(4, 2\)")
    turned = described(3, 2)
    turned.transpose_dimension(0, 1)
    refused(turned, r"descriptor must have lengths \(3, 2\) where it slices or transposes")
    refused(None, "descriptor must be an MPSNDArrayDescriptor", kind=MPSTypeError)
    refused(array.descriptor(), "must not be SHALL_ALIAS and SHALL_NOT_ALIAS", 3)
    refused(described(2, 3, kind=DATA.BOOL), "the view must hold numbers, as BOOL elements are none")
    sliced = described(2, 3)
    sliced.slice_dimension(0, Slice(0, 1))
    with pytest.raises(MPSArgumentError, match="descriptor must have no slices"):
        mps.MPSNDArray(bench.device, sliced)
    with pytest.raises(MPSTypeError, match="descriptor must be an MPSNDArrayDescriptor"):
        mps.MPSNDArray(bench.device)
    with pytest.raises(MPSArgumentError, match=r"buffer must hold 6 elements of float32, \(2, 3\) or flat"):
        array.write_bytes(np.zeros((3, 2), np.float32))
    with pytest.raises(MPSArgumentError, match="stride_bytes must hold 2 distances"):
        array.read_bytes([4])
    with pytest.raises(MPSArgumentError, match="buffer must hold 28 bytes for these strides, got 24"):
        array.write_bytes(bytes(24), [4, 16])


# --- buffers and images -----------------------------------------------------------------------------------------------


def test_a_turned_view_to_a_buffer_and_back(bench: Bench) -> None:
    """With distances of rows, another type, and an offset; what lies between stays."""
    array, wanted = counted(bench, 4, 3), described(4, 3)
    wanted.transpose_dimension(0, 1)
    command_buffer = bench.command_buffer()
    view: Any = array.array_view(command_buffer, wanted)
    buffer = bench.device.new_buffer(length=64)
    buffer.contents()[:] = 255
    view.export_data(command_buffer, buffer, DATA.INT16, 4, [12])
    other = mps.MPSNDArray(bench.device, described(4, 3, kind=DATA.INT32))
    back: Any = other.array_view(command_buffer, wanted_of(other))
    back.import_data(command_buffer, buffer, DATA.INT16, 4, [12])
    packed = mps.MPSNDArray(bench.device, described(3, 4))
    view.export_data(command_buffer, packed.data)
    finish(command_buffer)
    held = buffer.contents().view(np.int16)
    for row in range(3):
        assert held[2 + 6 * row : 6 + 6 * row].tolist() == [row + 1 + 3 * column for column in range(4)]
        assert held[6 + 6 * row : 8 + 6 * row].tolist() == [-1, -1]
    np.testing.assert_array_equal(other.numpy(), array.numpy().astype(np.int32))
    np.testing.assert_array_equal(packed.numpy(), array.numpy().T)


def wanted_of(array: mps.MPSNDArray) -> mps.MPSNDArrayDescriptor:
    found = array.descriptor()
    found.transpose_dimension(0, 1)
    return found


@pytest.mark.parametrize("form", [Format.FLOAT32, Format.FLOAT16, Format.UNORM8], ids=lambda form: form.name)
def test_a_part_of_images_and_back(form: Format, bench: Bench, rng: np.random.Generator) -> None:
    values = rng.integers(0, 256, (2, 3, 4, 2)) / 255
    array = mps.MPSNDArray.from_numpy(bench.device, values.astype(np.float32))
    images = [bench.filled((1, 7, 6, 5), 1, form) for _ in range(2)]
    command_buffer = bench.command_buffer()
    array.export_data(command_buffer, to_images=images, offset=mps.MPSImageCoordinate(1, 2, 4))
    found = mps.MPSNDArray(bench.device, described(2, 3, 4, 2))
    found.import_data(command_buffer, from_images=images, offset=mps.MPSImageCoordinate(1, 2, 4))
    finish(command_buffer)
    expected = np.ones((2, 7, 6, 5))
    expected[:, 4:6, 2:5, 1:5] = values.transpose(0, 3, 1, 2)
    digits = 2**-11 if form is Format.FLOAT16 else 1e-7
    np.testing.assert_allclose(numbers(images), expected, rtol=0, atol=digits)
    np.testing.assert_allclose(found.numpy(), values, rtol=0, atol=digits)


def test_few_dimensions_are_channels_and_columns(bench: Bench) -> None:
    array, image = counted(bench, 2, 3), bench.empty((1, 3, 1, 2))
    command_buffer = bench.command_buffer()
    array.export_data(command_buffer, to_images=[image])
    finish(command_buffer)
    np.testing.assert_array_equal(image.numpy()[0], [[1, 2, 3], [4, 5, 6]])


def test_copies_refuse(bench: Bench) -> None:
    array, buffer = counted(bench, 2, 3), bench.device.new_buffer(length=24)
    images = [bench.empty((1, 3, 1, 2))]

    def refused(rule: str, kind: Any = MPSArgumentError, **given: Any) -> None:
        with pytest.raises(kind, match=rule):
            array.export_data(bench.command_buffer(), **given)

    refused("to_buffer must hold 28 bytes, got a buffer of 24", to_buffer=buffer, offset=4)
    refused("offset must be a multiple of 4", to_buffer=buffer, offset=2)
    refused("destination_data_type must be one of", to_buffer=buffer, destination_data_type=DATA.UNORM1)
    refused("row_strides must hold 1 distances", to_buffer=buffer, row_strides=[])
    refused(r"row_strides\[0\] must be a multiple of 4", to_buffer=buffer, row_strides=[-12])
    refused("row_strides must keep elements apart", to_buffer=buffer, row_strides=[8])
    refused("to_buffer or to_images must be given", MPSTypeError)
    refused("to_buffer must be an MTLBuffer", MPSTypeError, to_buffer=images[0])
    refused("row_strides belongs to buffers", MPSTypeError, to_images=images, row_strides=[1])
    refused("offset must be an MPSImageCoordinate", MPSTypeError, to_images=images, offset=3)
    refused("offset.channel must be a multiple of 4", to_images=images, offset=mps.MPSImageCoordinate(0, 0, 2))
    refused("to_images must have 3x1 pixels of 3 channels", to_images=images, offset=mps.MPSImageCoordinate(1, 0, 0))
    refused(r"to_images must hold 1 image\(s\)", to_images=images * 2)
    with pytest.raises(MPSArgumentError, match="and others of length 1"):
        counted(bench, 2, 1, 1, 1, 1).export_data(bench.command_buffer(), to_images=images)


# --- temporary arrays -------------------------------------------------------------------------------------------------


def test_a_temporary_array_is_read_once(bench: Bench) -> None:
    """A view of it shares the count, and a copy takes a read."""
    command_buffer, wanted = bench.command_buffer(), described(4, 3)
    array = mps.MPSTemporaryNDArray(command_buffer, wanted)
    array.import_data(command_buffer, counted(bench, 12).data)
    view: Any = array.array_view(command_buffer, wanted_of(array))
    assert type(view) is mps.MPSTemporaryNDArray and view.read_count == array.read_count == 1
    array.read_count = 2
    found = mps.MPSNDArray(bench.device, described(3, 4))
    copied: Any = array.array_view(command_buffer, array.descriptor(), Alias.SHALL_NOT_ALIAS)
    view.export_data(command_buffer, found.data)
    assert array.read_count == 0
    with pytest.raises(MPSLifetimeError, match="the array must have reads left"):
        view.export_data(command_buffer, found.data)
    with pytest.raises(MPSLifetimeError, match="temporary memory cannot be reached by the CPU"):
        view.read_bytes()
    with pytest.raises(MPSLifetimeError, match="temporary memory cannot be reached by the CPU"):
        array.write_bytes(bytes(48))
    finish(command_buffer)
    np.testing.assert_array_equal(found.numpy(), np.arange(1, 13).reshape(4, 3).T)
    np.testing.assert_array_equal(copied.numpy(), np.arange(1, 13).reshape(4, 3))


def test_allocators(bench: Bench) -> None:
    command_buffer = bench.command_buffer()
    for kind in (mps.MPSNDArray, mps.MPSTemporaryNDArray):
        allocator = kind.default_allocator()
        assert isinstance(allocator, mps.MPSNDArrayAllocator)
        made = allocator.array(command_buffer, described(2), None)
        assert type(made) is kind and made.shape == (2,)


def test_copies_are_replayed_and_reads_wait(bench: Bench, device: torch.device) -> None:
    bench.queue = replaying_queue(device)
    array, found, seen = counted(bench, 4, 3), mps.MPSNDArray(bench.device, described(3, 4)), list[str]()
    for step in range(4):
        array.write_bytes(np.full((4, 3), step, np.float32))
        command_buffer = bench.command_buffer()
        view: Any = array.array_view(command_buffer, wanted_of(array))
        view.export_data(command_buffer, found.data)
        with pytest.raises(mps.MTLCommandBufferError):
            found.numpy()
        command_buffer.commit()
        assert (found.numpy() == step).all()
        command_buffer.wait_until_completed()
        seen += outcomes(command_buffer)
    assert "replayed" in seen
