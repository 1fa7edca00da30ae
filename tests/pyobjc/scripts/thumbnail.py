"""Shrink a picture, and measure it, with image filters over textures: python thumbnail.py numbers.npz"""

import sys

import Metal
import MetalPerformanceShaders as MPS
import numpy as np
import objc

# The texture that is overwritten is a pointer of which PyObjC's metadata has no direction.
objc.registerMetaDataForSelector(
    b"MPSUnaryImageKernel",
    b"encodeToCommandBuffer:inPlaceTexture:fallbackCopyAllocator:",
    {"retval": {"type": b"Z"}, "arguments": {3: {"type_modifier": b"N"}}},
)
WIDTH, HEIGHT, SIDE = 20, 14, 7


def texture(device, pixel_format, width, height):
    descriptor = Metal.MTLTextureDescriptor.texture2DDescriptorWithPixelFormat_width_height_mipmapped_(
        pixel_format, width, height, False
    )
    descriptor.setUsage_(Metal.MTLTextureUsageShaderRead | Metal.MTLTextureUsageShaderWrite)
    return device.newTextureWithDescriptor_(descriptor)


def pixels_of(texture, components, dtype):
    """The elements of a texture of two dimensions."""
    width, height = texture.width(), texture.height()
    found = np.zeros((height, width, components), dtype)
    region = Metal.MTLRegionMake2D(0, 0, width, height)
    texture.getBytes_bytesPerRow_fromRegion_mipmapLevel_(found, found.strides[0], region, 0)
    return found


def main(path):
    device = Metal.MTLCreateSystemDefaultDevice()
    picture = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    source = texture(device, Metal.MTLPixelFormatRGBA8Unorm, WIDTH, HEIGHT)
    source.replaceRegion_mipmapLevel_withBytes_bytesPerRow_(
        Metal.MTLRegionMake2D(0, 0, WIDTH, HEIGHT), 0, picture, picture.strides[0]
    )
    soft = texture(device, Metal.MTLPixelFormatRGBA32Float, WIDTH, HEIGHT)
    small = texture(device, Metal.MTLPixelFormatRGBA32Float, SIDE, SIDE)
    mean = texture(device, Metal.MTLPixelFormatRGBA32Float, 1, 1)
    edges = texture(device, Metal.MTLPixelFormatR32Float, SIDE, SIDE)

    blur = MPS.MPSImageGaussianBlur.alloc().initWithDevice_sigma_(device, 0.8)
    blur.setEdgeMode_(MPS.MPSImageEdgeModeClamp)
    scale = MPS.MPSImageLanczosScale.alloc().initWithDevice_(device)
    scale.setEdgeMode_(MPS.MPSImageEdgeModeClamp)
    sobel = MPS.MPSImageSobel.alloc().initWithDevice_linearGrayColorTransform_(device, [0.5, 0.25, 0.25])
    threshold = MPS.MPSImageThresholdBinary(
        device=device, thresholdValue=0.5, maximumValue=1.0, linearGrayColorTransform=None
    )
    info = MPS.MPSImageHistogramInfo(
        numberOfHistogramEntries=8, histogramForAlpha=True, minPixelValue=(0, 0, 0, 0), maxPixelValue=(1, 1, 1, 1)
    )
    histogram = MPS.MPSImageHistogram.alloc().initWithDevice_histogramInfo_(device, info)
    size = histogram.histogramSizeForSourceFormat_(source.pixelFormat())
    counts = device.newBufferWithLength_options_(size, Metal.MTLResourceStorageModeShared)

    with objc.autorelease_pool():
        command_buffer = device.newCommandQueue().commandBuffer()
        blur.encodeToCommandBuffer_sourceTexture_destinationTexture_(command_buffer, source, soft)
        scale.encodeToCommandBuffer_sourceTexture_destinationTexture_(command_buffer, soft, small)
        MPS.MPSImageStatisticsMean(device=device).encodeToCommandBuffer_sourceTexture_destinationTexture_(
            command_buffer, source, mean
        )
        sobel.encodeToCommandBuffer_sourceTexture_destinationTexture_(command_buffer, small, edges)
        histogram.encodeToCommandBuffer_sourceTexture_histogram_histogramOffset_(command_buffer, source, counts, 0)
        done, mask = threshold.encodeToCommandBuffer_inPlaceTexture_fallbackCopyAllocator_(command_buffer, edges, None)
        assert done and mask.width() == SIDE
        command_buffer.commit()
        command_buffer.waitUntilCompleted()
    np.savez(
        path,
        picture=picture,
        soft=pixels_of(soft, 4, np.float32),
        small=pixels_of(small, 4, np.float32),
        mean=pixels_of(mean, 4, np.float32),
        mask=pixels_of(mask, 1, np.float32),
        counts=np.frombuffer(counts.contents().as_buffer(size), np.uint32).reshape(4, 8),
    )


if __name__ == "__main__":
    main(sys.argv[1])
