"""Metal's objects, blocks, functions, graphs' arrays and archives, as scripts use them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps


def image_of(MPS: Any, device: Any, values: list[float]) -> Any:
    """One pixel with these channels."""
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=1, height=1, featureChannels=len(values)
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(np.float32(values), 0, 0)
    return image


def values_of(image: Any) -> list[float]:
    found = np.zeros(image.featureChannels(), np.float32)
    image.readBytes_dataLayout_imageIndex_(found, 0, 0)
    return found.tolist()


def test_the_device_and_its_queue(MPS: Any, device: Any) -> None:
    assert MPS.MTLCreateSystemDefaultDevice() is device
    assert device in MPS.MTLCopyAllDevices()
    assert isinstance(device.name(), str)
    assert isinstance(device.hasUnifiedMemory(), bool)
    assert device.maxBufferLength() > 2**20
    assert MPS.MPSSupportsMTLDevice(device) is True
    queue = device.newCommandQueue()
    queue.setLabel_("work")
    assert (queue.label(), queue.device()) == ("work", device)
    assert device.newCommandQueueWithMaxCommandBufferCount_(4).device() is device
    with pytest.raises(AttributeError, match="newFence"):
        device.newFence()
    with pytest.raises(AttributeError, match="newLibraryWithSource_options_error_'.*Metal source"):
        device.newLibraryWithSource_options_error_("kernel void f() {}", None, None)


def test_a_command_buffer_tells_how_far_it_is(MPS: Any, device: Any) -> None:
    command_buffer = device.newCommandQueue().commandBuffer()
    called: list[Any] = []
    command_buffer.addScheduledHandler_(lambda buffer: called.append(("scheduled", buffer)))
    command_buffer.addCompletedHandler_(lambda buffer: called.append(("completed", buffer)))
    command_buffer.setLabel_("step")
    assert command_buffer.status() == MPS.MTLCommandBufferStatusNotEnqueued
    command_buffer.commit()
    command_buffer.waitUntilScheduled()
    command_buffer.waitUntilCompleted()
    assert command_buffer.status() == MPS.MTLCommandBufferStatusCompleted
    assert command_buffer.error() is None
    assert command_buffer.label() == "step"
    assert command_buffer.GPUEndTime() >= command_buffer.GPUStartTime()
    assert called == [("scheduled", command_buffer), ("completed", command_buffer)]


@pytest.mark.parametrize(
    ("block", "kind", "said"),
    [
        (lambda buffer: 5, ValueError, "returned 5, and its type is void"),
        ("text", TypeError, "Cannot use str as a block"),
    ],
)
def test_blocks_are_checked(block: Any, kind: type[Exception], said: str, MPS: Any, device: Any) -> None:
    image, errors = image_of(MPS, device, [1.0]), list[Any]()
    node = MPS.MPSCNNNeuronReLUNode(source=MPS.MPSNNImageNode(handle=None), a=0.0)
    loss = MPS.MPSCNNLossNode(
        source=node.resultImage(),
        lossDescriptor=MPS.MPSCNNLossDescriptor.cnnLossDescriptorWithType_reductionType_(0, 1),
    )
    given: Callable[..., Any] = block if isinstance(block, str) else lambda *nodes: block(nodes[0])
    with pytest.raises(kind, match=said):
        loss.trainingGraphWithSourceGradient_nodeHandler_(loss.resultImage(), given)
    assert (image.width(), errors) == (1, [])


def test_the_error_of_a_handler_names_what_was_passed(MPS: Any, device: Any) -> None:
    def my_handler(command_buffer: Any) -> None:
        raise LookupError("mine")

    command_buffer = device.newCommandQueue().commandBuffer()
    command_buffer.addCompletedHandler_(my_handler)
    command_buffer.commit()
    with pytest.raises(openmps.MTLExecutionError, match="my_handler must run to its end, got LookupError: mine"):
        command_buffer.waitUntilCompleted()


def test_a_graph_hands_out_intermediate_images_and_states(MPS: Any, device: Any) -> None:
    from Foundation import NSMutableArray

    picture = MPS.MPSNNImageNode(handle=None)
    first = MPS.MPSCNNNeuronReLUNode(source=picture, a=0.5)
    first.resultImage().setExportFromGraph_(True)
    first.resultImage().setImageAllocator_(MPS.MPSImage.defaultAllocator())
    last = MPS.MPSCNNNeuronAbsoluteNode(source=first.resultImage())
    graph = MPS.MPSNNGraph(device=device, resultImage=last.resultImage())
    graph.setFormat_(MPS.MPSImageFeatureChannelFormatFloat32)
    encode = graph.encodeToCommandBuffer_sourceImages_sourceStates_intermediateImages_destinationStates_
    for images in (["before"], NSMutableArray.arrayWithObject_("before")):
        command_buffer = device.newCommandQueue().commandBuffer()
        result = encode(command_buffer, [image_of(MPS, device, [-2.0, 4.0])], None, images, None)
        command_buffer.commit()
        command_buffer.waitUntilCompleted()
        assert values_of(result) == [1.0, 4.0]
        assert images[0] == "before"
        assert values_of(images[1]) == [-1.0, 4.0]
        assert len(images) == 2
    with pytest.raises(ValueError, match="NSMutableArray or a list"):
        encode(device.newCommandQueue().commandBuffer(), [image_of(MPS, device, [1.0])], None, (), None)


def test_a_completion_handler_gets_an_image_and_no_error(MPS: Any, device: Any) -> None:
    node = MPS.MPSCNNNeuronAbsoluteNode(source=MPS.MPSNNImageNode(handle=None))
    graph = MPS.MPSNNGraph(device=device, resultImage=node.resultImage())
    graph.setFormat_(MPS.MPSImageFeatureChannelFormatFloat32)
    done, found = threading.Event(), list[Any]()

    def handler(image: Any, error: Any) -> None:
        found.append((image, error))
        done.set()

    returned = graph.executeAsyncWithSourceImages_completionHandler_([image_of(MPS, device, [-3.0])], handler)
    assert done.wait(60)
    assert found == [(returned, None)]
    assert values_of(found[0][0]) == [3.0]


def test_functions_of_batches(MPS: Any, device: Any) -> None:
    batch = [image_of(MPS, device, [float(each)]) for each in range(3)]
    seen: list[int] = []

    def stop_at_one(image: Any, index: int) -> int:
        seen.append(index)
        return 7 if index == 1 else -(2**63)

    assert MPS.MPSImageBatchIterate(batch, stop_at_one) == 7
    assert seen == [0, 1]
    assert MPS.MPSImageBatchResourceSize(batch) > 0
    assert MPS.MPSImageBatchIncrementReadCount(batch, 1) == 3
    command_buffer = device.newCommandQueue().commandBuffer()
    assert MPS.MPSImageBatchSynchronize(batch, command_buffer) is None
    with pytest.raises(TypeError, match="Need 2 arguments, got 1"):
        MPS.MPSImageBatchSynchronize(batch)
    assert MPS.MPSImageBatchIterate.__metadata__()["retval"]["type"] == b"q"


def test_objects_are_archived_and_read(MPS: Any, device: Any) -> None:
    from Foundation import NSError, NSKeyedArchiver, NSSet

    kernel = MPS.MPSNNResizeBilinear(device=device, resizeWidth=5, resizeHeight=6, alignCorners=True)
    data, error = NSKeyedArchiver.archivedDataWithRootObject_requiringSecureCoding_error_(kernel, True, None)
    assert error is None
    read = MPS.MPSKeyedUnarchiver.unarchivedObjectOfClass_fromData_device_error_
    found, error = read(MPS.MPSNNResizeBilinear, data, device, None)
    assert error is None
    assert (type(found), found.resizeWidth(), found.alignCorners()) == (MPS.MPSNNResizeBilinear, 5, True)
    kinds = NSSet.setWithArray_([MPS.MPSCNNPoolingMax, MPS.MPSNNResizeBilinear])
    found, error = MPS.MPSKeyedUnarchiver.unarchivedObjectOfClasses_fromData_device_error_(kinds, data, device, None)
    assert found.resizeHeight() == 6
    found, error = read(MPS.MPSCNNPoolingMax, data, device, None)
    assert found is None
    assert isinstance(error, NSError)
    assert "MPSCNNPoolingMax" in error.localizedDescription()
    assert read(MPS.MPSCNNPoolingMax, b"no archive", device, None)[0] is None
    assert bytes(NSKeyedArchiver.archivedDataWithRootObject_(kernel)) == bytes(data)
    reader, error = MPS.MPSKeyedUnarchiver.alloc().initForReadingFromData_device_error_(data, device, None)
    assert error is None
    assert reader.mpsMTLDevice() is device
    reader, error = MPS.MPSKeyedUnarchiver.alloc().initForReadingFromData_device_error_(b"no archive", device, None)
    assert reader is None
    assert isinstance(error, NSError)


def test_pools_bound_nothing_and_are_there() -> None:
    import objc
    from Foundation import NSAutoreleasePool

    with objc.autorelease_pool():
        pool = NSAutoreleasePool.alloc().init()
        pool.drain()
    assert objc.nil is None
    assert (objc.YES, objc.NO, objc._C_ID) == (True, False, b"@")
