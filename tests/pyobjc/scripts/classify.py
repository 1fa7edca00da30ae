"""Classify pictures with a convolutional network, layer by layer: python classify.py numbers.npz"""

import sys

import Metal
import MetalPerformanceShaders as MPS
import numpy as np
import objc
from Foundation import NSObject

# PyObjC's own metadata for -weights cannot be answered from Python: say that it is an address.
objc.registerMetaDataForSelector(b"NSObject", b"weights", {"retval": {"type": b"^v"}})


class LayerParameters(NSObject, protocols=[objc.protocolNamed("MPSCNNConvolutionDataSource")]):
    """The weights of one layer, OHWI, and its biases."""

    def initWithWeights_biases_label_(self, weights, biases, label):
        self = objc.super(LayerParameters, self).init()
        if self is None:
            return None
        self._weights = np.ascontiguousarray(weights, dtype=np.float32)
        self._biases = None if biases is None else np.asarray(biases, dtype=np.float32)
        self._label = label
        outputs, height, width, inputs = weights.shape
        make = MPS.MPSCNNConvolutionDescriptor
        self._descriptor = (
            make.cnnConvolutionDescriptorWithKernelWidth_kernelHeight_inputFeatureChannels_outputFeatureChannels_(
                width, height, inputs, outputs
            )
        )
        return self

    def dataType(self):
        return MPS.MPSDataTypeFloat32

    def descriptor(self):
        return self._descriptor

    def weights(self):
        return self._weights.ctypes.data

    def biasTerms(self):
        return objc.NULL if self._biases is None else self._biases

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return self._label


def run(command_buffer, kernels, image):
    for kernel in kernels:
        image = kernel.encodeToCommandBuffer_sourceImage_(command_buffer, image)
    return image


def main(path):
    device = MPS.MTLCreateSystemDefaultDevice()
    if device is None:
        raise SystemExit("there is no Metal device")
    random = np.random.default_rng(7)
    pixels = random.standard_normal((8, 8, 3)).astype(np.float32)
    filters = (random.standard_normal((6, 3, 3, 3)) / 5).astype(np.float32)
    biases = random.standard_normal(6).astype(np.float32)
    dense = (random.standard_normal((4, 3, 3, 6)) / 5).astype(np.float32)

    first = LayerParameters.alloc().initWithWeights_biases_label_(filters, biases, "conv1")
    convolution = MPS.MPSCNNConvolution.alloc().initWithDevice_weights_(device, first)
    convolution.setPadding_(MPS.MPSNNDefaultPadding.paddingWithMethod_(MPS.MPSNNPaddingMethodSizeValidOnly))
    relu = MPS.MPSCNNNeuronReLU.alloc().initWithDevice_a_(device, 0.1)
    pooling = MPS.MPSCNNPoolingMax(device=device, kernelWidth=2, kernelHeight=2, strideInPixelsX=2, strideInPixelsY=2)
    pooling.setPadding_(MPS.MPSNNDefaultPadding.paddingWithMethod_(MPS.MPSNNPaddingMethodSizeValidOnly))
    last = LayerParameters.alloc().initWithWeights_biases_label_(dense, None, "fc")
    fully_connected = MPS.MPSCNNFullyConnected.alloc().initWithDevice_weights_(device, last)
    softmax = MPS.MPSCNNSoftMax.alloc().initWithDevice_(device)
    softmax.setDestinationImageAllocator_(MPS.MPSImage.defaultAllocator())
    assert convolution.label() == "conv1" and fully_connected.dataSource() is last

    descriptor = MPS.MPSImageDescriptor.imageDescriptorWithChannelFormat_width_height_featureChannels_(
        MPS.MPSImageFeatureChannelFormatFloat32, 8, 8, 3
    )
    for kernel in (convolution, relu, pooling, fully_connected):
        assert kernel.destinationImageAllocator() is not None
    image = MPS.MPSImage.alloc().initWithDevice_imageDescriptor_(device, descriptor)
    image.writeBytes_dataLayout_imageIndex_(pixels, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)

    with objc.autorelease_pool():
        command_buffer = device.newCommandQueue().commandBuffer()
        result = run(command_buffer, (convolution, relu, pooling, fully_connected, softmax), image)
        result.synchronizeOnCommandBuffer_(command_buffer)
        command_buffer.commit()
        command_buffer.waitUntilCompleted()
    if command_buffer.status() != Metal.MTLCommandBufferStatusCompleted:
        raise SystemExit(f"failed: {command_buffer.error()}")

    is_half = result.featureChannelFormat() == MPS.MPSImageFeatureChannelFormatFloat16
    probabilities = np.zeros(result.featureChannels(), np.float16 if is_half else np.float32)
    result.readBytes_dataLayout_imageIndex_(probabilities, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)
    np.savez(path, pixels=pixels, filters=filters, biases=biases, dense=dense, probabilities=probabilities)


if __name__ == "__main__":
    main(sys.argv[1])
