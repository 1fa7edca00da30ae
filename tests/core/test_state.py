"""States: resources, read counts, batches."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from in_one_test import in_one_test
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.state.batch import (
    MPSStateBatch,
    MPSStateBatchIncrementReadCount,
    MPSStateBatchResourceSize,
    MPSStateBatchSynchronize,
    as_state_batch,
)
from openmps.core.state.state import BatchableState, MPSState, MPSStateResourceList
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.metal.device import MTLBuffer, MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageFeatureChannelFormat,
    MPSStateResourceType,
    MPSStateTextureInfo,
    MTLPixelFormat,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
)

Encode = Callable[..., None]
Kind = MPSStateResourceType
CPU = mtl_device("cpu")
TEXTURE = MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT16, 5, 4, 7, 2)
SMALL = MPSImageDescriptor(MPSImageFeatureChannelFormat.UNORM8, 3, 2, 2)


@pytest.fixture
def command_buffer(queue: MTLCommandQueue) -> MTLCommandBuffer:
    return queue.command_buffer()


def finish(command_buffer: MTLCommandBuffer) -> None:
    command_buffer.commit()
    command_buffer.wait_until_completed()


class PerImage(BatchableState):
    """A state of which every image of a batch has its own."""

    image_index: int | None = None

    def member(self, index: int) -> MPSState:
        state = type(self).__new__(type(self))
        state.__dict__.update(self.__dict__)
        state.image_index = index
        return state


# --- resources -------------------------------------------------------------------------------------------------------


def test_a_state_of_one_buffer(mtl: MTLDevice) -> None:
    state = MPSState(mtl, buffer_size=24)
    assert (state.device, state.resource_count, state.resource_size(), state.is_temporary) == (mtl, 1, 24, False)
    assert (state.resource_type_at_index(0), state.buffer_size_at_index(0)) == (Kind.BUFFER, 24)
    assert state.texture_info_at_index(0) == MPSStateTextureInfo()
    assert state.resource_at_index(0, allocate_memory=False) is None
    buffer = state.resource_at_index(0)
    assert isinstance(buffer, MTLBuffer)
    assert (buffer.length, buffer.device, buffer.storage_mode) == (24, mtl, MTLStorageMode.SHARED)
    assert state.resource_at_index(0, allocate_memory=False) is state.resource is buffer
    assert not buffer.contents().any()


def test_a_state_of_one_texture(mtl: MTLDevice) -> None:
    state = MPSState(mtl, texture_descriptor=TEXTURE)
    assert (state.resource_type_at_index(0), state.buffer_size_at_index(0)) == (Kind.TEXTURE, 0)
    assert state.texture_info_at_index(0) == MPSStateTextureInfo(
        width=5,
        height=4,
        depth=1,
        array_length=4,
        pixel_format=MTLPixelFormat.RGBA16_FLOAT,
        texture_type=MTLTextureType.TYPE_2D_ARRAY,
        usage=MTLTextureUsage.SHADER_READ | MTLTextureUsage.SHADER_WRITE,
    )
    assert (state.resource_size(), state.resource_at_index(0, False)) == (5 * 4 * 7 * 2 * 2, None)
    image = state.resource
    assert isinstance(image, MPSImage)
    assert image.descriptor() == TEXTURE
    assert MPSState(mtl, texture_descriptor=SMALL).texture_info_at_index(0).texture_type is MTLTextureType.TYPE_2D


def test_textures_come_first(command_buffer: MTLCommandBuffer) -> None:
    wanted = MPSStateResourceList(buffer_sizes=[8, 16])
    wanted.append_texture(TEXTURE)
    wanted.append_buffer(4)
    wanted.append_texture(SMALL)
    for state in (
        MPSState(command_buffer.device, resource_list=wanted),
        MPSState.temporary_state(command_buffer, resource_list=wanted),
    ):
        kinds = [state.resource_type_at_index(index) for index in range(state.resource_count)]
        assert kinds == [Kind.TEXTURE, Kind.TEXTURE, Kind.BUFFER, Kind.BUFFER, Kind.BUFFER]
        assert [state.buffer_size_at_index(index) for index in range(5)] == [0, 0, 8, 16, 4]
        assert [state.texture_info_at_index(index).width for index in range(5)] == [5, 3, 0, 0, 0]
        assert state.resource_size() == 560 + 12 + 28
        assert [state.resource_at_index(index, False) for index in range(5)] == [None] * 5


def test_a_list_can_serve_many_states() -> None:
    wanted = MPSStateResourceList(texture_descriptors=[SMALL])
    first, second = MPSState(CPU, resource_list=wanted), MPSState(CPU, resource_list=wanted)
    wanted.append_buffer(8)
    assert (first.resource_count, first.resource is not second.resource) == (1, True)


def test_resources_that_are_there(mtl: MTLDevice) -> None:
    buffer, image = mtl.new_buffer(length=12), MPSImage(mtl, SMALL)
    state = MPSState(resources=[buffer, image])
    assert (state.device, state.resource_count, state.resource_at_index(1)) == (mtl, 2, image)
    assert [state.resource_type_at_index(index) for index in (0, 1, 2)] == [Kind.BUFFER, Kind.TEXTURE, Kind.NONE]
    assert (state.buffer_size_at_index(0), state.texture_info_at_index(1).height) == (12, 2)
    assert MPSState(resource=buffer).resource is buffer


def test_a_state_of_nothing() -> None:
    for state in (MPSState(), MPSState(resource=None), MPSState(CPU)):
        assert (state.resource_count, state.resource, state.resource_size(), state.read_count) == (0, None, 0, 0)
        assert state.resource_type_at_index(0) is Kind.NONE
    assert (MPSState().device, MPSState(CPU).device) == (None, CPU)


@in_one_test
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: MPSState(buffer_size=4), MPSTypeError, "MPSState: device is needed to allocate resources"),
        (lambda: MPSState("cpu", buffer_size=4), MPSTypeError, "MPSState: device must be an MTLDevice, got str"),
        (lambda: MPSState(CPU, buffer_size=0), MPSArgumentError, "size must be a positive number of bytes, got 0"),
        (
            lambda: MPSState(CPU, buffer_size=True),
            MPSArgumentError,
            "size must be a positive number of bytes, got True",
        ),
        (lambda: MPSState(CPU, buffer_size=2.5), MPSArgumentError, "size must be a positive number of bytes, got 2.5"),
        (lambda: MPSState(CPU, buffer_size=2**60), MPSArgumentError, "MPSState: buffer_size must be 1 to"),
        (
            lambda: MPSState(CPU, texture_descriptor=MPSImageDescriptor(TEXTURE.channel_format, 2**30, 2**30)),
            MPSArgumentError,
            "MPSState: image_descriptor must fit the",
        ),
        (
            lambda: MPSState(CPU, texture_descriptor=4),
            MPSTypeError,
            "descriptor must be an MPSImageDescriptor, got int",
        ),
        (
            lambda: MPSStateResourceList(texture_descriptors=[MPSImageDescriptor(TEXTURE.channel_format, 0)]),
            MPSArgumentError,
            "MPSStateResourceList: image_descriptor.width must be an integer of at least 1, got 0",
        ),
        (
            lambda: MPSState(CPU, resource_list=[4]),
            MPSTypeError,
            "resource_list must be an MPSStateResourceList, got list",
        ),
        (lambda: MPSState(CPU, buffer_size=4, texture_descriptor=SMALL), MPSTypeError, "must be asked for in one way"),
        (lambda: MPSState(resource=3), MPSTypeError, "resource must be an MTLBuffer or an MPSImage, got int"),
        (
            lambda: MPSState(resources=[None]),
            MPSTypeError,
            "resources[0] must be an MTLBuffer or an MPSImage, got NoneType",
        ),
    ],
)
def test_states_that_cannot_be_made(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


def test_resources_are_of_one_device(stranger: MTLDevice, command_buffer: MTLCommandBuffer) -> None:
    ours, theirs = CPU.new_buffer(length=4), stranger.new_buffer(length=4)
    with pytest.raises(MPSDeviceError, match="MPSState: resource 1 must belong to the device"):
        MPSState(resources=[ours, theirs])
    with pytest.raises(MPSDeviceError, match="MPSState: resource 0 must belong to the device"):
        MPSState(stranger, resource=ours)
    with pytest.raises(MPSArgumentError, match=r"MPSState: resource must not be temporary, got <MPSTemporaryImage"):
        MPSState(resource=MPSTemporaryImage(command_buffer, SMALL))


@pytest.mark.parametrize("index", [1, -1, True, 0.0, None])
def test_there_is_no_such_resource(index: Any) -> None:
    state = MPSState(CPU, buffer_size=4)
    state.label = "momentum"
    for call in (state.resource_at_index, state.buffer_size_at_index, state.texture_info_at_index):
        with pytest.raises(MPSArgumentError) as caught:
            call(index)
        assert str(caught.value) == (
            f"MPSState 'momentum': index must be an integer below resource_count, 1, got {index!r}"
        )


def test_the_hook_returns_the_suggestion() -> None:
    assert MPSState().destination_image_descriptor([], None, None, TEXTURE) is TEXTURE


# --- read counts -----------------------------------------------------------------------------------------------------


def test_a_temporary_state(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    state = MPSState.temporary_state(command_buffer, buffer_size=8)
    assert (state.read_count, state.is_temporary, state.lives_on) == (1, True, command_buffer)
    buffer = state.resource
    assert isinstance(buffer, MTLBuffer)
    assert (buffer.storage_mode, state.device) == (MTLStorageMode.PRIVATE, command_buffer.device)
    assert repr(state) == "<MPSState, 1 resource of 8 bytes, temporary, read_count 1>"
    state.read_count = 2
    encode(command_buffer, state)
    encode(command_buffer, state)
    with pytest.raises(MPSLifetimeError, match="Kernel: source must have reads left, got MPSState with read_count 0"):
        encode(command_buffer, state)
    with pytest.raises(MPSLifetimeError, match="resource 0 must have reads left"):
        state.resource_at_index(0)
    with pytest.raises(MPSLifetimeError, match="read_count cannot change after it reached 0"):
        state.read_count = 1


def test_textures_of_temporary_states_are_private(command_buffer: MTLCommandBuffer) -> None:
    image = MPSState.temporary_state(command_buffer, texture_descriptor=SMALL).resource
    assert isinstance(image, MPSImage)
    with pytest.raises(MPSArgumentError, match="PRIVATE storage"):
        image.numpy()


def test_a_temporary_state_of_nothing_is_not_called_temporary(command_buffer: MTLCommandBuffer) -> None:
    state = MPSState.temporary_state(command_buffer)
    assert (state.is_temporary, state.read_count, state.resource_count) == (False, 1, 0)


def test_permanent_states_have_no_count(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    state = MPSState(command_buffer.device, buffer_size=4)
    for _ in range(3):
        encode(command_buffer, state)
    state.add_reads(3)
    assert (state.read_count, state.lives_on) == (0, None)
    with pytest.raises(MPSLifetimeError, match="MPSState: read_count is kept by temporary states only, got 1"):
        state.read_count = 1


def test_where_a_temporary_state_may_be_used(
    command_buffer: MTLCommandBuffer, queue: MTLCommandQueue, stranger: MTLDevice, encode: Encode
) -> None:
    state = MPSState.temporary_state(command_buffer, buffer_size=4)
    with pytest.raises(
        MPSLifetimeError, match="is temporary and must be used on the command buffer that it was made for"
    ):
        encode(queue.command_buffer(), state)
    with pytest.raises(MPSDeviceError, match="Kernel: source must belong to the device"):
        encode(stranger.new_command_queue().command_buffer(), state)
    finish(command_buffer)
    with pytest.raises(MPSLifetimeError, match="read_count is gone: the command buffer of a temporary object was comm"):
        state.read_count = 2
    with pytest.raises(MPSLifetimeError, match="resource 0 is gone"):
        state.resource_at_index(0)
    with pytest.raises(MTLCommandBufferError, match="MPSState: command_buffer must not be committed yet"):
        MPSState.temporary_state(command_buffer, buffer_size=4)
    with pytest.raises(MPSTypeError, match="MPSState: command_buffer must be a command buffer, got MTLDevice"):
        MPSState.temporary_state(queue.device, buffer_size=4)


def test_contents_go_back_after_the_last_read_in_queue_order(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    state = MPSState.temporary_state(command_buffer, buffer_size=4)
    held = weakref.ref(state.resource)
    command_buffer.record("forward", lambda: state.saved.take("mask", is_shared=False))
    seen: list[Any] = []
    encode(command_buffer, state, work=lambda: seen.append((state.saved.value(), held() is None)))
    command_buffer.record("look", lambda: seen.append((state.saved.value(), held() is None)))
    finish(command_buffer)
    assert seen == [("mask", False), (None, True)]


def test_contents_with_reads_left_go_back_after_the_last_work(command_buffer: MTLCommandBuffer) -> None:
    state = MPSState.temporary_state(command_buffer, buffer_size=4)
    permanent = MPSState(command_buffer.device, buffer_size=4)
    held = weakref.ref(state.resource)
    for each in (state, permanent):
        command_buffer.record("forward", lambda each=each: each.saved.take("mask", is_shared=False))
    finish(command_buffer)
    assert (state.saved.value(), held(), permanent.saved.value()) == (None, None, "mask")


def test_states_are_freed_without_the_garbage_collector(command_buffer: MTLCommandBuffer) -> None:
    gc.disable()
    try:
        state = MPSState.temporary_state(command_buffer, buffer_size=4)
        held = weakref.ref(state)
        del state
        assert held() is None
        finish(command_buffer)
    finally:
        gc.enable()


def test_synchronize_is_checked_and_recorded(command_buffer: MTLCommandBuffer, stranger: MTLDevice) -> None:
    state = MPSState(command_buffer.device, buffer_size=4)
    state.synchronize(command_buffer)
    assert [label for label, _ in command_buffer.recording.execution.works] == ["synchronize of MPSState"]
    with pytest.raises(MPSDeviceError, match="MPSState: command_buffer must belong to the device"):
        state.synchronize(stranger.new_command_queue().command_buffer())


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_state_that_serves_the_whole_batch(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    state = MPSState.temporary_state(command_buffer, buffer_size=8)
    batch = MPSStateBatch([state] * 3)
    assert (len(batch), batch.shared, batch[2], batch.unique(), batch.counted()) == (3, state, state, [state], [state])
    assert (MPSStateBatchIncrementReadCount(batch, 2), state.read_count) == (1, 3)
    encode(command_buffer, *batch.counted())
    assert (state.read_count, MPSStateBatchResourceSize(batch)) == (2, 8)


def test_states_put_together() -> None:
    states = [MPSState(CPU, buffer_size=4) for _ in range(3)]
    batch = MPSStateBatch([*states, states[0]])
    assert (batch.shared, batch.unique(), batch.counted()) == (None, states, states)
    assert (list(batch[1:3]), batch[-1], isinstance(batch[1:3], MPSStateBatch)) == (states[1:], states[0], True)
    assert (MPSStateBatchIncrementReadCount(batch, 1), MPSStateBatchResourceSize(batch)) == (3, 12)
    assert repr(batch) == "<MPSStateBatch of 4: <MPSState, 1 resource of 4 bytes>>"
    assert repr(MPSStateBatch()) == "<MPSStateBatch of 0: no states>"


def test_one_state_an_image_over_one_record() -> None:
    shared = PerImage(CPU)
    batch = MPSStateBatch.of_images(shared, 3)
    members = list(batch)
    assert [member.image_index for member in members] == [0, 1, 2]
    assert (batch[1] is members[1], batch[1:][0] is members[1], batch.shared, batch.counted()) == (
        True,
        True,
        shared,
        [shared],
    )
    assert (MPSStateBatchIncrementReadCount(batch, 1), len({id(member) for member in members})) == (3, 3)
    assert members[0].saved is shared.saved


def test_states_of_a_batch_are_counted_apart(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    shared = PerImage(command_buffer.device)
    shared.make_temporary(command_buffer)
    batch = MPSStateBatch.of_images(shared, 3)
    shared.saved.take("masks", is_shared=False)
    assert (MPSStateBatchIncrementReadCount(batch, 1), [state.read_count for state in batch]) == (3, [2, 2, 2])
    encode(command_buffer, *batch.counted())
    encode(command_buffer, batch[0])
    assert [state.read_count for state in batch] == [0, 1, 1]
    with pytest.raises(MPSLifetimeError, match="must have reads left, got PerImage with read_count 0"):
        encode(command_buffer, *batch.counted())
    with pytest.raises(MPSLifetimeError, match="must have reads left"):
        encode(command_buffer, batch[0])
    encode(command_buffer, *batch[1:].counted())
    assert shared.read_count == 0
    finish(command_buffer)
    assert shared.saved.value() is None


def test_a_count_set_through_the_whole(command_buffer: MTLCommandBuffer) -> None:
    shared = PerImage(command_buffer.device)
    shared.make_temporary(command_buffer)
    batch = MPSStateBatch.of_images(shared, 2)
    shared.read_count = 4
    assert [state.read_count for state in batch] == [4, 4]
    batch[0].read_count = 1
    assert (shared.read_count, batch[1].read_count) == (1, 4)


def test_synchronize_each_once(command_buffer: MTLCommandBuffer) -> None:
    states = [MPSState(command_buffer.device, buffer_size=4) for _ in range(2)]
    MPSStateBatchSynchronize([*states, states[0]], command_buffer)
    assert len(command_buffer.recording.execution.works) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MPSStateBatch([None]), "MPSStateBatch: states[0] must be an MPSState, got NoneType"),
        (lambda: MPSStateBatch([MPSState()])["0"], "MPSStateBatch: index must be an integer or a slice, got str"),
        (
            lambda: as_state_batch("Kernel", "source_states", MPSState()),
            "Kernel: source_states must be a sequence of MP",
        ),
        (
            lambda: as_state_batch("Kernel", "source_states", None),
            "source_states must be a sequence of MPSState, got None",
        ),
        (lambda: MPSStateBatchIncrementReadCount([MPSState()], 0.5), "amount must be an integer, got 0.5"),
        (lambda: BatchableState().member(0), "BatchableState: member is not offered by this class"),
    ],
)
def test_what_is_no_batch(call: Any, message: str) -> None:
    with pytest.raises(MPSTypeError) as caught:
        call()
    assert message in str(caught.value)


def test_there_is_no_such_state() -> None:
    with pytest.raises(IndexError, match="MPSStateBatch: index 1 outside 1"):
        MPSStateBatch([MPSState()])[1]


def test_no_batch_is_accepted_by_the_functions() -> None:
    assert (MPSStateBatchIncrementReadCount(None, 1), MPSStateBatchResourceSize(None)) == (0, 0)


def test_two_threads_that_ask_first_get_one_buffer() -> None:
    """The queue's thread fills what the encoding thread looks at."""
    for _ in range(50):
        state, start, found = MPSState(CPU, buffer_size=4), threading.Barrier(2), []

        def ask(state: MPSState = state, start: Any = start, found: list[Any] = found) -> None:
            start.wait(10)
            found.append(state.resource)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(found) == 2 and found[0] is found[1]
