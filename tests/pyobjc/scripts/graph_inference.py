"""A residual block as an MPSNNGraph, run synchronously and asynchronously: python graph_inference.py numbers.npz"""

import sys
import threading

import MetalPerformanceShaders as MPS
import numpy as np
import objc
from Foundation import NSObject
from objc import super

objc.registerMetaDataForSelector(b"NSObject", b"weights", {"retval": {"type": b"^v"}})


class BlockWeights(NSObject):
    def initWithWeights_(self, weights):
        self = super().init()
        self._weights = weights
        return self

    def dataType(self):
        return MPS.MPSDataTypeFloat32

    def descriptor(self):
        outputs, height, width, inputs = self._weights.shape
        found = MPS.MPSCNNConvolutionDescriptor(
            kernelWidth=width, kernelHeight=height, inputFeatureChannels=inputs, outputFeatureChannels=outputs
        )
        found.setFusedNeuronDescriptor_(
            MPS.MPSNNNeuronDescriptor.cnnNeuronDescriptorWithType_(MPS.MPSCNNNeuronTypeReLU)
        )
        return found

    def weights(self):
        return self._weights.ctypes.data

    def biasTerms(self):
        return objc.NULL

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return None


class NamedInput(NSObject):
    """A handle, by which the graph says what it reads."""

    def label(self):
        return "picture"

    @classmethod
    def supportsSecureCoding(cls):
        return True


def main(path):
    device = MPS.MTLCreateSystemDefaultDevice()
    random = np.random.default_rng(11)
    pixels = random.standard_normal((5, 6, 4)).astype(np.float32)
    filters = (random.standard_normal((4, 3, 3, 4)) / 6).astype(np.float32)

    handle = NamedInput.alloc().init()
    picture = MPS.MPSNNImageNode.nodeWithHandle_(handle)
    convolution = MPS.MPSCNNConvolutionNode.nodeWithSource_weights_(
        picture, BlockWeights.alloc().initWithWeights_(filters)
    )
    convolution.setPaddingPolicy_(MPS.MPSNNDefaultPadding.paddingWithMethod_(MPS.MPSNNPaddingMethodSizeSame))
    total = MPS.MPSNNAdditionNode.nodeWithSources_([convolution.resultImage(), picture])
    pooled = MPS.MPSCNNPoolingAverageNode(source=total.resultImage(), filterSize=2, stride=2)
    pooled.setPaddingPolicy_(MPS.MPSNNDefaultPadding.paddingWithMethod_(MPS.MPSNNPaddingMethodSizeValidOnly))

    graph = MPS.MPSNNGraph.graphWithDevice_resultImage_resultImageIsNeeded_(device, pooled.resultImage(), True)
    graph.setFormat_(MPS.MPSImageFeatureChannelFormatFloat32)
    assert [each.label() for each in graph.sourceImageHandles()] == ["picture"]
    assert graph.sourceImageHandles()[0] is handle

    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=6, height=5, featureChannels=4
    )
    image = MPS.MPSImage.alloc().initWithDevice_imageDescriptor_(device, descriptor)
    image.writeBytes_dataLayout_imageIndex_(pixels.tobytes(), MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)

    command_buffer = device.newCommandQueue().commandBuffer()
    result = graph.encodeToCommandBuffer_sourceImages_(command_buffer, [image])
    command_buffer.commit()
    command_buffer.waitUntilCompleted()

    done, found = threading.Event(), []

    def completed(image, error):
        found.append((image, error))
        done.set()

    graph.executeAsyncWithSourceImages_completionHandler_([image], completed)
    done.wait(60)
    later, error = found[0]
    assert error is None

    arrays = []
    for each in (result, later):
        array = np.zeros((each.height(), each.width(), each.featureChannels()), np.float32)
        each.readBytes_dataLayout_imageIndex_(array, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)
        arrays.append(array)
    np.savez(path, pixels=pixels, filters=filters, result=arrays[0], later=arrays[1])


if __name__ == "__main__":
    main(sys.argv[1])
