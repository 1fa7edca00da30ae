"""Textures, vectors and n-dimensional arrays under their PyObjC names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

IN_PLACE = b"encodeToCommandBuffer:inPlaceTexture:fallbackCopyAllocator:"


def texture_of(MPS: Any, device: Any, width: int, height: int, slices: int = 1) -> Any:
    """Of bytes of one component."""
    descriptor = MPS.MTLTextureDescriptor.texture2DDescriptorWithPixelFormat_width_height_mipmapped_(
        MPS.MTLPixelFormatR8Unorm, width, height, False
    )
    if slices > 1:
        descriptor.setTextureType_(MPS.MTLTextureType2DArray)
        descriptor.setArrayLength_(slices)
    return device.newTextureWithDescriptor_(descriptor)


def test_bytes_of_a_region_of_a_slice_with_gaps_between_rows(MPS: Any, device: Any) -> None:
    texture = texture_of(MPS, device, 4, 3, slices=2)
    region = MPS.MTLRegionMake2D(1, 1, 2, 2)
    texture.replaceRegion_mipmapLevel_slice_withBytes_bytesPerRow_bytesPerImage_(
        region, 0, 1, bytes([1, 2, 9, 9, 3, 4]), 4, 0
    )
    found = bytearray(b"\7" * 8)
    get = texture.getBytes_bytesPerRow_bytesPerImage_fromRegion_mipmapLevel_slice_
    assert get(found, 5, 0, region, 0, 1) is found
    assert list(found) == [1, 2, 7, 7, 7, 3, 4, 7]
    whole = np.zeros((3, 4), np.uint8)
    get(whole, 4, 0, MPS.MTLRegionMake2D(0, 0, 4, 3), 0, 1)
    assert whole.tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0]]
    get(whole, 4, 0, MPS.MTLRegionMake2D(0, 0, 4, 3), 0, 0)
    assert not whole.any()
    with pytest.raises(ValueError, match="bytesPerRow must be at least 2"):
        get(found, 1, 0, region, 0, 1)
    with pytest.raises(ValueError, match="Requesting buffer of 12, have buffer of 8"):
        get(found, 10, 0, region, 0, 1)


def test_an_image_is_made_of_a_texture_and_a_view_has_a_parent(MPS: Any, device: Any) -> None:
    texture = texture_of(MPS, device, 4, 3)
    image = MPS.MPSImage.alloc().initWithTexture_featureChannels_(texture, 1)
    assert (image.texture() is texture, image.width(), image.featureChannels()) == (True, 4, 1)
    view = texture.newTextureViewWithPixelFormat_textureType_levels_slices_(
        MPS.MTLPixelFormatR8Unorm, MPS.MTLTextureType2D, (0, 1), (0, 1)
    )
    assert (view.parentTexture() is texture, view.parentRelativeSlice(), view.height()) == (True, 0, 3)


def test_a_filter_works_in_place_where_metadata_gives_the_direction(MPS: Any, device: Any) -> None:
    import objc

    texture = texture_of(MPS, device, 3, 2)
    region = MPS.MTLRegionMake2D(0, 0, 3, 2)
    texture.replaceRegion_mipmapLevel_withBytes_bytesPerRow_(region, 0, bytes(range(6)), 3)
    command_buffer = device.newCommandQueue().commandBuffer()
    transpose = MPS.MPSImageTranspose(device=device)
    encode = transpose.encodeToCommandBuffer_inPlaceTexture_fallbackCopyAllocator_
    with pytest.raises(ValueError, match="type_modifier, N for a texture"):
        encode(command_buffer, texture, None)
    row = {"retval": {"type": b"Z"}, "arguments": {3: {"type_modifier": b"N"}}}
    objc.registerMetaDataForSelector(b"MPSUnaryImageKernel", IN_PLACE, row)
    assert encode(command_buffer, texture, None) == (False, texture)
    asked: list[Any] = []

    def copy(*arguments: Any) -> Any:
        asked.extend(arguments)
        return texture_of(MPS, device, 2, 3)

    done, turned = encode(command_buffer, texture, copy)
    command_buffer.commit()
    assert (done, asked) == (True, [transpose, command_buffer, texture])
    found = bytearray(6)
    turned.getBytes_bytesPerRow_fromRegion_mipmapLevel_(found, 2, MPS.MTLRegionMake2D(0, 0, 2, 3), 0)
    assert list(found) == [0, 3, 1, 4, 2, 5]


def test_weights_of_three_numbers_and_those_of_unknown_length(MPS: Any, device: Any) -> None:
    import objc

    canny = MPS.MPSImageCanny.alloc().initWithDevice_linearToGrayScaleTransform_sigma_(device, [0.5, 0.25, 0.25], 1.0)
    assert canny.colorTransform() == (0.5, 0.25, 0.25)
    for given, said in (([1.0], "expecting 3 values got 1"), (np.zeros(4, np.float64), "buffer not compatible")):
        with pytest.raises(ValueError, match=said):
            MPS.MPSImageSobel.alloc().initWithDevice_linearGrayColorTransform_(device, given)
    sobel = MPS.MPSImageSobel.alloc().initWithDevice_linearGrayColorTransform_(device, (1.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="c_array_of_fixed_length"):
        sobel.colorTransform()
    row = {"retval": {"c_array_of_fixed_length": 3}}
    objc.registerMetaDataForSelector(b"MPSImageSobel", b"colorTransform", row)
    assert sobel.colorTransform() == (1.0, 0.0, 0.0)


def test_vectors_and_structs_of_them(MPS: Any, device: Any) -> None:
    import objc.simd

    info = MPS.MPSImageHistogramInfo(numberOfHistogramEntries=4)
    assert (info.histogramForAlpha, info.minPixelValue) == (False, None)
    with pytest.raises(ValueError, match="4 values of a vector_float4, got None"):
        MPS.MPSImageHistogram(device=device, histogramInfo=info)
    info.minPixelValue, info.maxPixelValue = objc.simd.vector_float4(0.0), (1, 2, 3, 4)
    histogram = MPS.MPSImageHistogram(device=device, histogramInfo=info)
    assert histogram.histogramInfo().maxPixelValue == objc.simd.vector_float4(1, 2, 3, 4)
    histogram.setMinPixelThresholdValue_([0.5, 0, 0, 0])
    assert histogram.minPixelThresholdValue().x == 0.5
    with pytest.raises(ValueError, match="got 'str'"):
        histogram.setMinPixelThresholdValue_(("0", 0, 0, 0))
    with pytest.raises(ValueError, match="Expecting 4 values, got 2"):
        objc.simd.vector_float4(1, 2)


def test_elements_of_arrays_at_distances(MPS: Any, device: Any) -> None:
    descriptor = MPS.MPSNDArrayDescriptor.descriptorWithDataType_dimensionCount_dimensionSizes_(
        MPS.MPSDataTypeFloat32, 2, [3, 2]
    )
    assert (descriptor.lengthOfDimension_(0), descriptor.dimensionOrder()[:3]) == (3, (0, 1, 2))
    array = MPS.MPSNDArray.alloc().initWithDevice_descriptor_(device, descriptor)
    array.writeBytes_strideBytes_(np.arange(6, dtype=np.float32), None)
    spaced = np.full(8, -1, np.float32)
    assert array.readBytes_strideBytes_(spaced, [4, 16]) is spaced
    assert spaced.tolist() == [0, 1, 2, -1, 3, 4, 5, -1]
    array.writeBytes_strideBytes_(np.arange(8, dtype=np.float32), [8, 4])
    array.readBytes_strideBytes_(spaced, None)
    assert spaced.tolist() == [0, 2, 4, 1, 3, 5, 5, -1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda it, made: it.readBytes_strideBytes_(bytearray(20), None), "Requesting buffer of 24, have buffer of 20"),
        (lambda it, made: it.readBytes_strideBytes_(bytearray(24), [4]), "2 distances"),
        (lambda it, made: it.writeBytes_strideBytes_(bytearray(24), [4, -12]), "2 distances of at least 0"),
        (lambda it, made: made(1, 3, [4, 2]), "Requesting buffer of 3, have buffer of 2"),
    ],
)
def test_elements_that_are_not_there_are_refused(call: Callable[..., Any], said: str, MPS: Any, device: Any) -> None:
    make = MPS.MPSNDArrayDescriptor.descriptorWithDataType_dimensionCount_dimensionSizes_
    array = MPS.MPSNDArray.alloc().initWithDevice_descriptor_(device, make(MPS.MPSDataTypeFloat32, 2, [3, 2]))
    with pytest.raises(ValueError, match=said):
        call(array, lambda kind, count, sizes: make(MPS.MPSDataTypeFloat32, count, sizes))


def test_variadic_methods_of_numbers_are_refused_as_pyobjc_does(MPS: Any) -> None:
    with pytest.raises(TypeError, match="variadic"):
        MPS.MPSNDArrayDescriptor.descriptorWithDataType_dimensionSizes_(MPS.MPSDataTypeFloat32, 2)
