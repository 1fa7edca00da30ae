"""Buffers, vectors and matrices over memory of other libraries, and their memory in other libraries' hands."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device

CPU = mtl_device("cpu")
KINDS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "buffer": (mps.MTLBuffer, (6,)),
    "buffer of rows": (mps.MTLBuffer, (2, 3)),
    "vector": (mps.MPSVector, (6,)),
    "vectors": (mps.MPSVector, (2, 3)),
    "matrix": (mps.MPSMatrix, (2, 3)),
    "matrices": (mps.MPSMatrix, (2, 3, 4)),
}
"""Classes, and shapes of arrays that they take."""
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32")
kinds = pytest.mark.parametrize("kind", KINDS)
types = pytest.mark.parametrize("dtype", TYPES)


def _buffer_of(thing: Any) -> Any:
    return thing if isinstance(thing, mps.MTLBuffer) else thing.data


def _array(kind: str, dtype: str = "float32") -> Any:
    shape = KINDS[kind][1]
    return np.arange(1, 1 + np.prod(shape)).astype(dtype).reshape(shape)


def _as_seen(kind: str, array: Any) -> Any:
    """What NumPy sees of an object with these elements: the bytes of a buffer."""
    return array.reshape(-1).view(np.uint8) if KINDS[kind][0] is mps.MTLBuffer else array


# --- taken -----------------------------------------------------------------------------------------------------------


@in_one_test
@kinds
@types
def test_memory_of_an_array_is_shared(kind: str, dtype: str) -> None:
    array = _array(kind, dtype)
    made = KINDS[kind][0].from_numpy(CPU, array, copy=False)
    assert _buffer_of(made).origin == "shares the memory of an array" and "shares the memory of an array" in repr(made)
    array += 1
    np.testing.assert_array_equal(np.asarray(made), _as_seen(kind, array))
    assert np.asarray(made).dtype == (np.uint8 if KINDS[kind][0] is mps.MTLBuffer else dtype)
    _buffer_of(made).contents()[...] = 0
    assert not array.any()
    assert np.shares_memory(np.asarray(made), array)


@in_one_test
@kinds
@types
def test_memory_of_a_tensor_is_shared(kind: str, dtype: str, device: torch.device) -> None:
    mtl = mtl_device(device)
    tensor = torch.from_numpy(_array(kind, dtype)).to(device)
    made = KINDS[kind][0].from_dlpack(mtl, tensor, copy=False)
    assert "shares the memory of a tensor" in repr(made)
    tensor.zero_()
    assert not np.asarray(made).any()
    _buffer_of(made).tensor(tensor.dtype).fill_(7)
    assert tensor.cpu().eq(7).all()


@kinds
def test_a_copy_says_so(kind: str) -> None:
    array = _array(kind)
    for made in (KINDS[kind][0].from_numpy(CPU, array, True), KINDS[kind][0].from_dlpack(CPU, array, copy=True)):
        assert ", a copy of an array" in repr(made)
        np.testing.assert_array_equal(np.asarray(made), _as_seen(kind, array))
        _buffer_of(made).contents()[...] = 0
        assert array.all()
    assert ", a copy of a tensor" in repr(KINDS[kind][0].from_dlpack(CPU, torch.from_numpy(array), copy=True))


def test_text_of_memory_that_nobody_gave_is_as_ever() -> None:
    assert CPU.new_buffer(length=4).origin is None
    assert repr(mps.MPSVector(CPU, mps.MPSVectorDescriptor(3))) == "<MPSVector 1x3 FLOAT32>"


def test_memory_that_was_given_back_or_copied_is_not_called_shared() -> None:
    array = np.ones(4, np.float32)
    buffer = mps.MTLBuffer.from_numpy(CPU, array)
    twin = copy.deepcopy(buffer)
    assert twin.origin is None and not np.shares_memory(twin.contents(), array)
    buffer.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
    assert buffer.origin is None
    assert not buffer.contents().any() and array.all()
    buffer.bind(torch.ones(4))
    assert buffer.origin == "shares the memory of a tensor"


def _unaligned() -> Any:
    return np.zeros(17, np.uint8)[1:].view(np.float32)


def _read_only() -> Any:
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    return array


NOT_SHARED: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only": (_read_only, "it is read-only"),
    "bytes": (lambda: np.frombuffer(b"\0" * 16, np.float32), "it is read-only"),
    "backwards": (lambda: np.ones(4, np.float32)[::-1], "it has gaps, or another order of its axes, got shape (4,)"),
    "gaps": (lambda: np.ones(8, np.float32)[::2], "with strides (8,)"),
    "repeated": (lambda: np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (4,), (0,)), "with strides (0,)"),
    "unaligned": (_unaligned, "it does not begin at a multiple of 16 bytes"),
    "a later element": (lambda: np.ones(5, np.float32)[1:], "it does not begin at a multiple of 16 bytes"),
    "another tensor's gaps": (lambda: torch.ones(8)[::2], "it has gaps, or another order of its axes"),
    "expanded": (lambda: torch.ones(1).expand(4), "it has gaps"),
    "a later element of a tensor": (lambda: torch.ones(5)[1:], "it does not begin at a multiple of 16 bytes"),
    "made in inference mode": (torch.inference_mode()(lambda: torch.ones(4)), "it was made in inference mode"),
    "negated": (lambda: torch.imag(torch.full((4,), 1 + 2j).conj()), "it has numbers that are to be negated"),
}


@in_one_test
@pytest.mark.parametrize("case", NOT_SHARED)
@pytest.mark.parametrize("kind", [mps.MTLBuffer, mps.MPSVector])
def test_what_cannot_be_shared_is_copied_and_says_why(kind: Any, case: str) -> None:
    make, why = NOT_SHARED[case]
    given = make()
    method = kind.from_dlpack if isinstance(given, torch.Tensor) else kind.from_numpy
    made = method(CPU, given)
    assert ", a copy of a" in repr(made)
    numbers = given.resolve_neg().numpy() if isinstance(given, torch.Tensor) else given
    assert bytes(_buffer_of(made).contents()) == numbers.tobytes()
    _buffer_of(made).contents()[...] = 5
    assert given.max() <= 1
    with pytest.raises(mps.MPSArgumentError) as fault:
        method(CPU, given, copy=False)
    assert f"{kind.__name__}: " in str(fault.value) and "cannot be shared: " in str(fault.value)
    assert why in str(fault.value) and "Leave copy out to allow a copy" in str(fault.value)


@in_one_test
@pytest.mark.parametrize("kind", [mps.MTLBuffer, mps.MPSVector])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros(3, object), mps.MPSTypeError, "array must hold int8, int16, .* got object"),
        (np.zeros(3, complex), mps.MPSTypeError, "got complex128"),
        (np.zeros(3, ">f4"), mps.MPSTypeError, "got >f4. Bring it into the order of this machine's bytes"),
        (np.zeros(3, "U3"), mps.MPSTypeError, "got <U3"),
        (np.zeros(3, "M8[s]"), mps.MPSTypeError, "got datetime64[s]"),
        (np.zeros(3, [("x", "f4")]), mps.MPSTypeError, "array must hold"),
        (np.zeros(3, np.longdouble), mps.MPSTypeError, "Convert it: array.astype(numpy.float32)"),
        (np.ma.masked_array([1.0], [True]), mps.MPSTypeError, "array must have no mask, got a masked array"),
        ([[1.0], [2.0, 3.0]], mps.MPSTypeError, "array must be an array, or something that NumPy can view .* got list"),
        ("text", mps.MPSTypeError, "array must hold"),
        (None, mps.MPSTypeError, "array must hold"),
        (np.zeros(0, np.float32), mps.MPSArgumentError, "none of size 0, got shape (0,)"),
        (np.float32(1), mps.MPSArgumentError, "none of size 0, got shape ()"),
        (np.zeros((2, 0), np.float32), mps.MPSArgumentError, "none of size 0, got shape (2, 0)"),
    ],
)
def test_arrays_that_are_not_taken(kind: Any, given: Any, error: type[Exception], message: str) -> None:
    for flag in (None, True, False):
        with pytest.raises(error) as fault:
            kind.from_numpy(CPU, given, flag)
        assert str(fault.value).startswith(f"{kind.__name__}: array ")
        assert all(part in str(fault.value) for part in message.split(".* "))


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_flags_and_complex_numbers_are_elements_of_vectors_and_matrices(dtype: str) -> None:
    array = np.array([[1, 0, 1], [0, 0, 1j]]).astype(dtype)
    for kind in (mps.MPSVector, mps.MPSMatrix):
        shared = kind.from_numpy(CPU, array, copy=False)
        assert np.shares_memory(np.asarray(shared), array) and shared.numpy().dtype == dtype
        conjugate = kind.from_dlpack(CPU, torch.from_numpy(array).conj())
        np.testing.assert_array_equal(torch.from_dlpack(conjugate).numpy(), array.conj())
    with pytest.raises(mps.MPSTypeError, match=f"MTLBuffer: array must hold int8, int16, .* got {dtype}"):
        mps.MTLBuffer.from_numpy(CPU, array)
    with pytest.raises(
        mps.MPSTypeError, match=rf"MTLBuffer: tensor must hold .* got torch\.{dtype}\. Convert it first"
    ):
        mps.MTLBuffer.from_dlpack(CPU, torch.from_numpy(array))


@in_one_test
@pytest.mark.parametrize("kind", [mps.MTLBuffer, mps.MPSMatrix])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            [1.0],
            mps.MPSTypeError,
            "tensor must be a torch.Tensor, or another library's tensor with __dlpack__, got list",
        ),
        (torch.zeros(3, 2, dtype=torch.complex128), mps.MPSTypeError, "got torch.complex128. Convert it first"),
        (torch.zeros(3, 2).to_sparse(), mps.MPSTypeError, "must be a dense tensor of plain numbers"),
        (torch.zeros(3, 2, device="meta"), mps.MPSTypeError, "must lie in the memory of the CPU or of a GPU, got meta"),
        (torch.zeros(()), mps.MPSArgumentError, "none of size 0, got shape ()"),
        (torch.zeros(0, 2), mps.MPSArgumentError, "none of size 0, got shape (0, 2)"),
    ],
)
def test_tensors_that_are_not_taken(kind: Any, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as fault:
        kind.from_dlpack(CPU, given)
    assert all(part in str(fault.value) for part in message.split(".* "))


@pytest.mark.parametrize("call", [
    lambda: mps.MPSVector.from_numpy(CPU, np.zeros((1, 2, 3), np.float32)),
    lambda: mps.MPSMatrix.from_numpy(CPU, np.zeros(3, np.float32)),
    lambda: mps.MPSMatrix.from_dlpack(CPU, torch.zeros(1, 2, 3, 4)),
])  # fmt: skip
def test_numbers_of_axes(call: Any) -> None:
    with pytest.raises(mps.MPSArgumentError, match=r"must have (1 or 2|2 or 3) axes, none of size 0, got shape"):
        call()


def test_elements_that_a_vector_has_no_type_for() -> None:
    with pytest.raises(
        mps.MPSTypeError, match=r"MPSVector: array must hold .*, got float64. .*astype\(numpy.float32\)"
    ):
        mps.MPSVector.from_numpy(CPU, np.zeros(3))
    with pytest.raises(
        mps.MPSTypeError, match=r"MPSVector: tensor must hold .*, got torch.bfloat16. .*to\(torch.float"
    ):
        mps.MPSVector.from_dlpack(CPU, torch.zeros(3, dtype=torch.bfloat16))


def test_bfloat16_in_a_buffer() -> None:
    tensor = torch.tensor([1.0, -2, 3], dtype=torch.bfloat16)
    buffer = mps.MTLBuffer.from_dlpack(CPU, tensor, copy=False)
    buffer.tensor(torch.bfloat16)[1] = 5
    assert tensor.tolist() == [1, 5, 3]


@kinds
def test_a_device_is_needed(kind: str) -> None:
    for method in ("from_numpy", "from_dlpack"):
        with pytest.raises(mps.MPSTypeError, match=f"^{KINDS[kind][0].__name__}: device must be an MTLDevice, got str"):
            getattr(KINDS[kind][0], method)("cpu", _array(kind))


def test_temporary_objects_take_none() -> None:
    for kind in (mps.MPSTemporaryVector, mps.MPSTemporaryMatrix):
        for method in ("from_numpy", "from_dlpack"):
            with pytest.raises(mps.MPSTypeError, match=f"{kind.__name__}: {method} is not offered"):
                getattr(kind, method)(CPU, np.zeros((2, 2), np.float32))


class _Foreign:
    """An array of another library, which speaks the protocol of some version."""

    def __init__(self, array: Any, *, is_versioned: bool = True) -> None:
        self._array, self._is_versioned = array, is_versioned

    def __dlpack__(self, **options: Any) -> object:
        if not self._is_versioned and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("is_versioned", [False, True])
def test_other_libraries(is_versioned: bool) -> None:
    array = np.ones((2, 2), np.float32)
    matrix = mps.MPSMatrix.from_dlpack(CPU, _Foreign(array, is_versioned=is_versioned), copy=False)
    array[0, 1] = 3
    assert np.asarray(matrix).tolist() == [[1, 3], [1, 1]]


def test_what_another_library_calls_read_only_is_not_written() -> None:
    array = _read_only()
    made = mps.MPSVector.from_dlpack(CPU, _Foreign(array))
    made.tensor().fill_(9)
    assert array.max() == 1 and ", a copy of a tensor" in repr(made)
    with pytest.raises(mps.MPSArgumentError, match="cannot be shared: it is read-only"):
        mps.MPSVector.from_dlpack(CPU, _Foreign(array), copy=False)
    image = mps.MPSImage.from_tensor(CPU, _Foreign(array.reshape(1, 2, 2)))
    image.write_bytes(np.full((2, 2, 1), 9, np.float32))
    assert array.max() == 1
    with pytest.raises(mps.MPSArgumentError, match="cannot be shared.*which is read-only"):
        mps.MPSImage.from_tensor(CPU, _Foreign(array.reshape(1, 2, 2)), copy=False)


class _Broken(_Foreign):
    def __dlpack_device__(self) -> tuple[int, int]:
        raise AttributeError("nowhere")


def test_an_error_of_another_library_is_named() -> None:
    with pytest.raises(mps.MPSTypeError, match="MPSVector: tensor must be one that DLPack can hand over, got nowhere"):
        mps.MPSVector.from_dlpack(CPU, _Broken(None))


# --- given -----------------------------------------------------------------------------------------------------------


@in_one_test
@types
def test_vectors_in_other_hands(dtype: str, device: torch.device) -> None:
    mtl = mtl_device(device)
    array = np.arange(12).astype(dtype).reshape(3, 4)
    spaced = mps.MPSVectorDescriptor(3, getattr(mps.MPSDataType, dtype.upper()), 3, 4 * array.itemsize)
    vectors = mps.MPSVector(mtl.new_buffer(data=array), spaced)
    np.testing.assert_array_equal(np.asarray(vectors), array[:, :3])
    found = torch.from_dlpack(vectors)
    assert (found.device, found.dtype, found.shape) == (mtl.torch_device, getattr(torch, dtype), (3, 3))
    np.testing.assert_array_equal(found.cpu().numpy(), array[:, :3])
    assert found.data_ptr() == vectors.tensor().data_ptr()
    assert vectors.__dlpack_device__() == tuple(map(int, found.__dlpack_device__()))
    assert isinstance(np.asarray(vectors), np.ndarray) and np.array(vectors, dtype=np.float64).dtype == np.float64


def test_numpy_takes_dlpack_of_all_kinds() -> None:
    for kind, (made, _) in KINDS.items():
        array = _array(kind)
        thing = made.from_numpy(CPU, array)
        view = np.from_dlpack(thing)
        np.testing.assert_array_equal(view, _as_seen(kind, array))
        assert np.shares_memory(view, array) and view.flags.writeable
        np.testing.assert_array_equal(np.from_dlpack(thing, copy=True), view)
        assert not np.shares_memory(np.from_dlpack(thing, copy=True), array)


@kinds
def test_the_array_protocol(kind: str) -> None:
    array = _array(kind)
    made = KINDS[kind][0].from_numpy(CPU, array)
    seen = _as_seen(kind, array)
    assert np.shares_memory(made.__array__(), array)
    assert np.shares_memory(made.__array__(copy=False), array)
    assert np.shares_memory(made.__array__(seen.dtype, copy=False), array)
    assert not np.shares_memory(made.__array__(copy=True), array)
    np.testing.assert_array_equal(made.__array__(np.float64), seen.astype(np.float64))
    with pytest.raises(ValueError, match="copy must not be False: .* becomes float64 by a copy"):
        made.__array__(np.float64, copy=False)
    with pytest.raises(mps.MPSTypeError, match="dtype must be a type of NumPy, got 'nothing'"):
        made.__array__("nothing")


def test_a_gpus_memory_is_copied_to_arrays(device: torch.device) -> None:
    vector = mps.MPSVector.from_dlpack(mtl_device(device), torch.ones(4, device=device))
    if device.type == "cuda":
        for made in (vector, vector.data):
            with pytest.raises(ValueError, match="copy must not be False: numbers are given as a .* copy"):
                made.__array__(copy=False)
    np.asarray(vector).tolist()
    assert np.array(vector).tolist() == [1] * 4


def test_memory_of_the_cpu_for_a_gpu_is_copied(device: torch.device) -> None:
    if device.type == "cuda":
        array, mtl = np.ones(4, np.float32), mtl_device(device)
        assert ", a copy of an array" in repr(mps.MPSVector.from_numpy(mtl, array))
        with pytest.raises(mps.MPSArgumentError, match="it lies in the memory of cpu, not of cuda:0"):
            mps.MPSVector.from_numpy(mtl, array, copy=False)
        vector = mps.MPSVector.from_dlpack(CPU, torch.ones(4, device=device))
        assert vector.device is CPU and vector.numpy().tolist() == [1] * 4
        on_the_host = torch.from_dlpack(mps.MPSVector.from_numpy(mtl, array), device="cpu")
        assert on_the_host.tolist() == [1] * 4


def _things(mtl: MTLDevice) -> list[Any]:
    vector = mps.MPSVector(mtl, mps.MPSVectorDescriptor(4))
    image = mps.MPSImage.from_numpy(mtl, np.ones((2, 2, 1), np.float32))
    return [vector, vector.data, mps.MPSMatrix(mtl, mps.MPSMatrixDescriptor(2, 2)), image, mps.MPSImageBatch([image])]


@pytest.mark.parametrize("place", range(5))
def test_the_arguments_of_dlpack(place: int, device: torch.device) -> None:
    thing = _things(mtl_device(device))[place]
    here = thing.__dlpack_device__()
    assert torch.from_dlpack(thing.__dlpack__(dl_device=here, copy=False)).device == mtl_device(device).torch_device
    assert (
        torch.from_dlpack(thing.__dlpack__(max_version=(1, 0))).data_ptr()
        == thing.tensor(*[torch.uint8] * isinstance(thing, mps.MTLBuffer)).data_ptr()
    )
    apart = torch.from_dlpack(thing.__dlpack__(copy=True))
    assert apart.data_ptr() != torch.from_dlpack(thing.__dlpack__()).data_ptr()
    assert torch.from_dlpack(thing.__dlpack__(dl_device=(1, 0))).device.type == "cpu"
    for wrong in ({"stream": "x"}, {"max_version": 1}, {"max_version": ("1", 0)}, {"dl_device": "cpu"}, {"copy": 2}):
        with pytest.raises(mps.MPSTypeError, match=f"{next(iter(wrong))} must be"):
            thing.__dlpack__(**wrong)
    with pytest.raises(mps.MPSArgumentError, match="stream must be None"):
        thing.__dlpack__(stream=0)
    with pytest.raises(BufferError, match=r"dl_device must be \(\d, 0\) or the CPU, \(1, 0\), got \(8, 0\)"):
        thing.__dlpack__(dl_device=(8, 0))
    if device.type == "cuda":
        with pytest.raises(BufferError, match="copy must not be False: memory of a GPU reaches the CPU by a copy"):
            thing.__dlpack__(dl_device=(1, 0), copy=False)


def test_private_and_temporary_memory_is_not_given() -> None:
    private = CPU.new_buffer(length=16, options=mps.MTLResourceOptions.STORAGE_MODE_PRIVATE)
    things: list[Any] = [private, mps.MPSVector(private, mps.MPSVectorDescriptor(4))]
    for read in (np.asarray, torch.from_dlpack, np.from_dlpack):
        for thing in things:
            with pytest.raises(mps.MPSArgumentError, match="needs memory that the CPU may touch, got PRIVATE storage"):
                read(thing)
        temporary = mps.MPSTemporaryVector(CPU.new_command_queue().command_buffer(), mps.MPSVectorDescriptor(4))
        with pytest.raises(mps.MPSLifetimeError, match="is not offered: temporary memory cannot be reached by the CPU"):
            read(temporary)


# --- what is pending, and what the host writes -----------------------------------------------------------------------

READS: dict[str, Callable[[Any], Any]] = {
    "numpy.asarray": np.asarray,
    "torch.from_dlpack": torch.from_dlpack,
    "vector of it": lambda thing: mps.MTLBuffer.from_dlpack(CPU, thing),
    "array of it": lambda thing: mps.MTLBuffer.from_numpy(CPU, thing),
}


def _fill(command_buffer: Any, buffer: mps.MTLBuffer, byte: int) -> None:
    with command_buffer.blit_command_encoder() as blit:
        blit.fill_buffer(buffer, range(buffer.length), byte)


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("place", range(3))
def test_reads_refuse_what_is_not_committed_and_wait_for_what_is(device: torch.device, way: str, place: int) -> None:
    mtl = mtl_device(device)
    thing = _things(mtl)[place]
    queue, go_on = mtl.new_command_queue(), threading.Event()
    command_buffer = queue.command_buffer()
    if not mtl.is_cuda:
        command_buffer.record("hold", lambda: go_on.wait(60))
    _fill(command_buffer, _buffer_of(thing), 1)
    with pytest.raises(mps.MTLCommandBufferError, match="not committed.*commit.*wait_until_completed"):
        READS[way](thing)
    command_buffer.commit()
    timer = threading.Timer(0.1, go_on.set)
    timer.start()
    found = READS[way](thing)
    timer.join()
    raw = found.contents() if isinstance(found, mps.MTLBuffer) else torch.as_tensor(found).cpu().numpy()
    assert bytes(raw.reshape(-1).view(np.uint8)) == b"\1" * 16


def test_two_objects_over_one_array_know_of_each_other_s_work() -> None:
    array = np.zeros(4, np.float32)
    one, other = (mps.MPSVector.from_numpy(CPU, array, copy=False) for _ in range(2))
    command_buffer = CPU.new_command_queue().command_buffer()
    _fill(command_buffer, one.data, 1)
    with pytest.raises(mps.MTLCommandBufferError, match="not committed"):
        np.asarray(other)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert array.view(np.uint8).tolist() == [1] * 16


@pytest.fixture
def queue(device: torch.device) -> MTLCommandQueue:
    return mtl_device(device).new_command_queue()


def test_encodes_read_what_the_host_wrote_before_they_ran(queue: MTLCommandQueue) -> None:
    """On a GPU the queue replays from the third step on."""
    rng, mtl = np.random.default_rng(0), queue.device
    gradient, values = (torch.zeros(8, device=mtl.torch_device) for _ in range(2))
    vectors = [mps.MPSVector.from_dlpack(mtl, each, copy=False) for each in (gradient, values)]
    optimizer = mps.MPSNNOptimizerStochasticGradientDescent(mtl, 0.5)
    for step in range(8):
        slope, start = (rng.integers(-8, 8, 8).astype(np.float32) for _ in range(2))
        gradient.copy_(torch.from_numpy(slope))
        if step % 2:
            values.copy_(torch.from_numpy(start))
        else:
            start = values.cpu().numpy().copy()
        command_buffer = queue.command_buffer()
        for _ in range(4):
            optimizer.encode(
                command_buffer, input_gradient_vector=vectors[0], input_values_vector=vectors[1],
                result_values_vector=vectors[1],
            )  # fmt: skip
        command_buffer.commit()
        command_buffer.wait_until_completed()
        np.testing.assert_array_equal(values.cpu().numpy(), start - 2 * slope)


def test_a_reload_takes_what_the_host_wrote_last(queue: MTLCommandQueue) -> None:
    """A kernel converts the weights of a buffer at each reload, and numbers their versions by reloads."""
    mtl = queue.device
    memory = torch.ones(1, device=mtl.torch_device)
    state = mps.MPSCNNConvolutionWeightsAndBiasesState(
        weights=mps.MTLBuffer.from_dlpack(mtl, memory, copy=False), biases=mtl.new_buffer(length=4)
    )
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], [0.0])
    kernel = mps.MPSCNNConvolution(mtl, source)
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    image = mps.MPSImageBatch.from_numpy(mtl, np.full((1, 2, 2, 1), 3, np.float32))
    for weight in (2.0, -1.0, 7.0, 0.5, 4.0):
        memory.fill_(weight)
        command_buffer = queue.command_buffer()
        kernel.reload_weights_and_biases(command_buffer, state)
        result = kernel.encode_batch(command_buffer, image)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        np.testing.assert_array_equal(result.numpy(), np.full((1, 2, 2, 1), 3 * weight, np.float32))
