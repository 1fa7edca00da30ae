"""Pointers: buffers and lists that are passed, memory that is filled, and memory that comes back."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test

WEIGHTS = np.float32([[1, 2], [3, 4]])


def _image(MPS: Any, device: Any, channels: int = 2, format: str = "Float32") -> Any:
    kind = getattr(MPS, f"MPSImageFeatureChannelFormat{format}")
    descriptor = MPS.MPSImageDescriptor(channelFormat=kind, width=3, height=2, featureChannels=channels)
    return MPS.MPSImage(device=device, imageDescriptor=descriptor)


def _null() -> Any:
    import objc

    return objc.NULL


@pytest.mark.parametrize(
    "convert",
    [lambda a: a, bytes, bytearray, memoryview, lambda a: a.reshape(-1), lambda a: a.view(np.uint8)],
    ids=["array", "bytes", "bytearray", "memoryview", "row", "uint8"],
)
def test_any_buffer_is_written_into_an_image(convert: Callable[[Any], Any], MPS: Any, device: Any) -> None:
    pixels, found = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.zeros((2, 3, 2), np.float32)
    image = _image(MPS, device)
    assert image.writeBytes_dataLayout_imageIndex_(convert(pixels), 0, 0) is None
    assert image.readBytes_dataLayout_imageIndex_(found, 0, 0) is found
    assert np.array_equal(found, pixels)


@in_one_test
@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda it: it.writeBytes_dataLayout_imageIndex_("text", 0, 0), TypeError, "Expecting byte-buffer, got str"),
        (lambda it: it.writeBytes_dataLayout_imageIndex_([1.0], 0, 0), TypeError, "Expecting byte-buffer, got list"),
        (lambda it: it.writeBytes_dataLayout_imageIndex_(bytes(47), 0, 0), ValueError, "buffer of 48, have .* 47"),
        (
            lambda it: it.writeBytes_dataLayout_imageIndex_(np.zeros((4, 6), "f")[:, ::2], 0, 0),
            ValueError,
            "contiguous",
        ),
        (lambda it: it.readBytes_dataLayout_imageIndex_(None, 0, 0), TypeError, "Need explicit buffer"),
        (lambda it: it.readBytes_dataLayout_imageIndex_(bytes(48), 0, 0), TypeError, "not writable"),
        (lambda it: it.readBytes_dataLayout_imageIndex_(bytearray(40), 0, 0), ValueError, "buffer of 48, have .* 40"),
        (lambda it: it.readBytes_dataLayout_imageIndex_(bytearray(48), 7, 0), ValueError, "7"),
    ],
)
def test_wrong_buffers(call: Callable[[Any], Any], kind: type[Exception], said: str, MPS: Any, device: Any) -> None:
    with pytest.raises(kind, match=said):
        call(_image(MPS, device))


def test_a_single_row_may_have_any_stride(MPS: Any, device: Any) -> None:
    image, found = _image(MPS, device), np.zeros(6, np.float32)
    image.writeBytes_dataLayout_imageIndex_(np.arange(12, dtype=np.float32), 0, 0)
    read = image.readBytes_dataLayout_bytesPerRow_region_featureChannelInfo_imageIndex_
    read(found, 0, 2**63, ((0, 1, 0), (3, 1, 1)), (0, 2), 0)
    assert found.tolist() == [6, 7, 8, 9, 10, 11]


def test_objects_that_are_none_are_named(MPS: Any, device: Any) -> None:
    buffer = device.newBufferWithLength_options_(4, 0)
    encoder = device.newCommandQueue().commandBuffer().blitCommandEncoder()
    with pytest.raises(TypeError, match="MTLBuffer"):
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(None, 0, buffer, 0, 4)
    with pytest.raises(TypeError, match="device must be an MTLDevice, got str"):
        MPS.MPSCNNNeuronReLU(device=device, a=0.0).copyWithZone_device_(None, "cpu")


def test_strides_of_rows_columns_and_images(MPS: Any, device: Any) -> None:
    rows = np.full((2, 4, 2), 9, np.float32)
    rows[:, :3] = np.arange(12).reshape(2, 3, 2)
    image = _image(MPS, device)
    whole, channels = MPS.MTLRegionMake2D(0, 0, 3, 2), (0, 2)
    image.writeBytes_dataLayout_bytesPerRow_region_featureChannelInfo_imageIndex_(rows, 0, 32, whole, channels, 0)
    found = np.zeros((2, 3, 2), np.float32)
    image.readBytes_dataLayout_imageIndex_(found, 0, 0)
    assert found.ravel().tolist() == list(range(12))
    planes = np.zeros((2, 2, 5), np.float32)
    read = image.readBytes_dataLayout_bytesPerRow_bytesPerImage_region_featureChannelInfo_imageIndex_
    read(planes, MPS.MPSDataLayoutFeatureChannelsxHeightxWidth, 20, 80, whole, channels, 0)
    assert np.array_equal(planes[:, :, :3], found.transpose(2, 0, 1))
    assert not planes[:, :, 3:].any()
    columns = np.zeros((2, 3, 4), np.float32)
    columns[..., :2] = found + 100
    name = "writeBytes_dataLayout_bytesPerColumn_bytesPerRow_bytesPerImage_region_featureChannelInfo_imageIndex_"
    getattr(image, name)(columns, 0, 16, 48, 96, whole, channels, 0)
    image.readBytes_dataLayout_imageIndex_(found, 0, 0)
    assert found.ravel().tolist() == list(range(100, 112))


def test_bytes_of_each_format(MPS: Any, device: Any) -> None:
    for name, dtype in {"Unorm8": np.uint8, "Unorm16": np.uint16, "Float16": np.float16}.items():
        image, values = _image(MPS, device, format=name), np.arange(12).astype(dtype)
        image.writeBytes_dataLayout_imageIndex_(values, 0, 0)
        found = np.zeros(12, dtype)
        image.readBytes_dataLayout_imageIndex_(found, 0, 0)
        assert np.array_equal(found, values), name


def _convolution(MPS: Any, device: Any, weights: Any, biases: Any) -> Any:
    descriptor = MPS.MPSCNNConvolutionDescriptor(
        kernelWidth=1, kernelHeight=1, inputFeatureChannels=2, outputFeatureChannels=2
    )
    return MPS.MPSCNNConvolution(
        device=device, convolutionDescriptor=descriptor, kernelWeights=weights, biasTerms=biases, flags=0
    )


def _answer(MPS: Any, device: Any, kernel: Any) -> list[float]:
    image = _image(MPS, device)
    image.writeBytes_dataLayout_imageIndex_(np.tile(np.float32([1, 10]), 6), 0, 0)
    kernel.setDestinationImageAllocator_(MPS.MPSImage.defaultAllocator())
    command_buffer = device.newCommandQueue().commandBuffer()
    result = kernel.encodeToCommandBuffer_sourceImage_(command_buffer, image)
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    found = np.zeros(12, np.float32)
    result.readBytes_dataLayout_imageIndex_(found, 0, 0)
    return found[:2].tolist()


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2, 3, 4],
        (1.0, 2, 3, np.float64(4)),
        array.array("f", [1, 2, 3, 4]),
        WEIGHTS.ravel(),
        memoryview(WEIGHTS.ravel()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_floats_of_unsaid_length(weights: Any, MPS: Any, device: Any) -> None:
    for biases, expected in ((None, [21, 43]), (_null(), [21, 43]), ([0.5, 1], [21.5, 44])):
        assert _answer(MPS, device, _convolution(MPS, device, weights, biases)) == expected


@pytest.mark.parametrize(
    ("weights", "kind", "said"),
    [
        (array.array("d", [1, 2, 3, 4]), ValueError, "type mismatch"),
        (WEIGHTS.ravel().astype(np.float64), ValueError, "buffer not compatible"),
        (WEIGHTS.reshape(2, 1, 1, 2), ValueError, "buffer not compatible"),
        (7, TypeError, "expecting a sequence, got int"),
        (["1", 2, 3, 4], ValueError, "depythonifying 'float', got 'str'"),
    ],
)
def test_wrong_floats(weights: Any, kind: type[Exception], said: str, MPS: Any, device: Any) -> None:
    with pytest.raises(kind, match=said):
        _convolution(MPS, device, weights, None)


def test_pointers_without_a_direction_need_metadata(MPS: Any, device: Any) -> None:
    import objc

    with pytest.raises(ValueError, match="register metadata with a type_modifier"):
        MPS.MPSCNNNeuronPReLU(device=device, a=[0.5, 0.25], count=2)
    selector = b"initWithDevice:a:count:"
    row = {"arguments": {3: {"type_modifier": b"n", "c_array_length_in_arg": 4}}}
    objc.registerMetaDataForSelector(b"MPSCNNNeuronPReLU", selector, row)
    kernel = MPS.MPSCNNNeuronPReLU(device=device, a=[-0.5, 0.25], count=2)
    assert np.frombuffer(kernel.data().bytes(), np.float32).tolist() == [-0.5, 0.25]
    with pytest.raises(ValueError, match="buffer of 3, have buffer of 2"):
        MPS.MPSCNNNeuronPReLU(device=device, a=[0.5, 0.25], count=3)


def test_structs_behind_a_pointer(MPS: Any, device: Any) -> None:
    import objc

    selector = b"initWithDevice:resizeWidth:resizeHeight:numberOfRegions:regions:"
    row = {"arguments": {6: {"type_modifier": b"n", "c_array_length_in_arg": 5}}}
    objc.registerMetaDataForSelector(b"MPSNNCropAndResizeBilinear", selector, row)
    regions = [MPS.MPSRegion((0, 0, 0), (1, 1, 1)), ((0.5, 0, 0), (1, 1, 1))]
    kernel = MPS.MPSNNCropAndResizeBilinear(
        device=device, resizeWidth=2, resizeHeight=2, numberOfRegions=2, regions=regions
    )
    assert kernel.numberOfRegions() == 2


def test_memory_of_a_buffer(MPS: Any, device: Any) -> None:
    import objc

    buffer = device.newBufferWithBytes_length_options_(WEIGHTS, 12, MPS.MTLResourceStorageModeShared)
    assert buffer.length() == 12
    contents = buffer.contents()
    assert isinstance(contents, objc.varlist)
    view = contents.as_buffer(12)
    assert np.frombuffer(view, np.float32).tolist() == [1, 2, 3]
    np.frombuffer(view, np.float32)[1] = 7
    contents[0] = 1
    contents[1:3] = (2, 3)
    assert contents.as_tuple(4) == (1, 2, 3, 63)
    assert (contents[3], contents[1:3]) == (63, (2, 3))
    assert np.frombuffer(buffer.contents().as_buffer(12), np.float32)[1] == 7
    for wrong in (lambda: contents[-1], lambda: contents[2:], lambda: contents.as_buffer(-1), lambda: contents[::2]):
        with pytest.raises(ValueError, match="varlist|Slice end"):
            wrong()
    with pytest.raises(TypeError, match="indices must be integers, got str"):
        contents["a"]
    with pytest.raises(ValueError, match="resizing"):
        contents[0:2] = (1, 2, 3)
    with pytest.raises(ValueError, match="at least"):
        device.newBufferWithBytes_length_options_(bytes(8), 12, 0)


def test_flags_of_results_are_null_only(MPS: Any, device: Any) -> None:
    import objc

    node = MPS.MPSCNNNeuronReLUNode(source=MPS.MPSNNImageNode(handle=None), a=0.0)
    make = MPS.MPSNNGraph.graphWithDevice_resultImages_resultsAreNeeded_
    graph, flags = make(device, [node.resultImage()], objc.NULL)
    assert flags is objc.NULL
    assert isinstance(graph, MPS.MPSNNGraph)
    for wrong in ([True], bytearray(1), None):
        with pytest.raises(TypeError):
            make(device, [node.resultImage()], wrong)
