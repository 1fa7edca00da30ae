"""Bytes in and out of images and buffers, with strides, regions and layouts: python copies.py numbers.npz"""

import sys

import Metal
import MetalPerformanceShaders as MPS
import numpy as np

HWC = MPS.MPSDataLayoutHeightxWidthxFeatureChannels
CHW = MPS.MPSDataLayoutFeatureChannelsxHeightxWidth
WIDTH, HEIGHT, CHANNELS = 6, 4, 8
GO_ON = -(2**63)


def image_of(device, images=1, format=MPS.MPSImageFeatureChannelFormatFloat16):
    descriptor = (
        MPS.MPSImageDescriptor.imageDescriptorWithChannelFormat_width_height_featureChannels_numberOfImages_usage_(
            format, WIDTH, HEIGHT, CHANNELS, images, Metal.MTLTextureUsageShaderRead | Metal.MTLTextureUsageShaderWrite
        )
    )
    return MPS.MPSImage.alloc().initWithDevice_imageDescriptor_(device, descriptor)


def main(path):
    device = Metal.MTLCreateSystemDefaultDevice()
    queue = device.newCommandQueue()
    random = np.random.default_rng(2)
    pixels = random.standard_normal((HEIGHT, WIDTH, CHANNELS)).astype(np.float16)

    image = image_of(device)
    image.setLabel_("picture")
    image.writeBytes_dataLayout_imageIndex_(pixels, HWC, 0)
    planes = np.zeros((CHANNELS, HEIGHT, WIDTH), np.float16)
    assert image.readBytes_dataLayout_imageIndex_(planes, CHW, 0) is planes

    # A part of the image into rows that are longer than it.
    part = MPS.MTLRegion(MPS.MTLOrigin(1, 1, 0), MPS.MTLSize(3, 2, 1))
    channels = MPS.MPSImageReadWriteParams(4, 4)
    rows = np.full((2, 5, 4), -1, np.float16)
    image.readBytes_dataLayout_bytesPerRow_region_featureChannelInfo_imageIndex_(
        rows, HWC, rows.strides[0], part, channels, 0
    )

    # Two pictures in one image object, written with a gap between them.
    pair = image_of(device, images=2)
    spaced = np.zeros((2, HEIGHT + 1, WIDTH, CHANNELS), np.float16)
    spaced[:, :HEIGHT] = random.standard_normal((2, HEIGHT, WIDTH, CHANNELS))
    pair.writeBytes_dataLayout_bytesPerRow_bytesPerImage_region_featureChannelInfo_imageIndex_(
        spaced, HWC, spaced.strides[1], spaced.strides[0], ((0, 0, 0), (WIDTH, HEIGHT, 2)), (0, CHANNELS), 0
    )
    second = bytearray(pixels.nbytes)
    pair.readBytes_dataLayout_imageIndex_(second, HWC, 1)
    views = pair.batchRepresentation()
    assert len(views) == views.count() == 2
    seen = []

    def visit(each, index):
        seen.append((each.numberOfImages(), index))
        return GO_ON

    MPS.MPSImageBatchIterate([image, pair], visit)
    assert seen == [(1, 0), (2, 1)]
    upper = image.subImageWithFeatureChannelRange_(MPS.NSMakeRange(4, 4))
    assert upper.parent() is image and upper.featureChannels() == 4

    # Image to matrix on the device, and bytes from buffer to buffer.
    length = pixels.nbytes
    command_buffer = queue.commandBuffer()
    matrix = MPS.MPSMatrix(
        device=device,
        descriptor=MPS.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_(
            1, HEIGHT * WIDTH * CHANNELS, length, MPS.MPSDataTypeFloat16
        ),
    )
    copy = MPS.MPSImageCopyToMatrix(device=device, dataLayout=HWC)
    copy.encodeToCommandBuffer_sourceImage_destinationMatrix_(command_buffer, image, matrix)
    target = device.newBufferWithLength_options_(length, Metal.MTLResourceStorageModeShared)
    encoder = command_buffer.blitCommandEncoder()
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(matrix.data(), 0, target, 0, length)
    encoder.endEncoding()
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    copied = np.frombuffer(target.contents().as_buffer(length), np.float16).reshape(pixels.shape)

    constant = device.newBufferWithBytes_length_options_(np.arange(8, dtype=np.float32), 16, 0)
    np.savez(
        path,
        pixels=pixels,
        planes=planes,
        rows=rows,
        spaced=spaced,
        second=np.frombuffer(second, np.float16).reshape(pixels.shape),
        copied=copied,
        constant=constant.contents().as_buffer(constant.length()).cast("f").tolist(),
    )


if __name__ == "__main__":
    main(sys.argv[1])
