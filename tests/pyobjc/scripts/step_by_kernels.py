"""One step of gradient descent with gradient kernels and their states: python step_by_kernels.py numbers.npz"""

import sys

import MetalPerformanceShaders as MPS
import numpy as np
import objc
from Foundation import NSData, NSObject

objc.registerMetaDataForSelector(
    b"NSObject", b"weights", {"retval": {"type": b"^f", "c_array_of_variable_length": True}}
)
# The state comes back through a pointer that PyObjC knows nothing of.
objc.registerMetaDataForSelector(
    b"MPSCNNKernel",
    b"encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:",
    {"arguments": {4: {"type_modifier": b"o"}, 5: {"type": b"Z"}}},
)
CHANNELS, CLASSES, RATE = 2, 3, 0.5


class Filters(NSObject):
    def initWithValues_(self, values):
        self = objc.super(Filters, self).init()
        self.values = values
        self.loads = 0
        return self

    def dataType(self):
        return MPS.MPSDataTypeFloat32

    def descriptor(self):
        outputs, height, width, inputs = self.values.shape
        return MPS.MPSCNNConvolutionDescriptor(
            kernelWidth=width, kernelHeight=height, inputFeatureChannels=inputs, outputFeatureChannels=outputs
        )

    def weights(self):
        return self.values.ravel().tolist()

    def biasTerms(self):
        return [0.25] * len(self.values)

    def load(self):
        self.loads += 1
        return True

    def purge(self):
        self.loads -= 1

    def label(self):
        return "filters"

    @objc.python_method
    def shape(self):
        return self.values.shape


def image_of(device, array):
    height, width, channels = array.shape
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=width, height=height, featureChannels=channels
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(array, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)
    return image


def array_of(image):
    array = np.zeros((image.height(), image.width(), image.featureChannels()), np.float32)
    image.readBytes_dataLayout_imageIndex_(array, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)
    return array


def main(path):
    device = MPS.MTLCreateSystemDefaultDevice()
    queue = device.newCommandQueue()
    random = np.random.default_rng(3)
    pixels = random.standard_normal((3, 3, CHANNELS)).astype(np.float32)
    filters = random.standard_normal((CLASSES, 3, 3, CHANNELS)).astype(np.float32)
    labels = np.float32([0, 1, 0])

    source = Filters.alloc().initWithValues_(filters)
    forward = MPS.MPSCNNConvolution(device=device, weights=source)
    backward = MPS.MPSCNNConvolutionGradient(device=device, weights=source)
    softmax_loss = MPS.MPSCNNLossDescriptor.cnnLossDescriptorWithType_reductionType_(
        MPS.MPSCNNLossTypeSoftMaxCrossEntropy, MPS.MPSCNNReductionTypeSum
    )
    loss = MPS.MPSCNNLoss(device=device, lossDescriptor=softmax_loss)
    valid = MPS.MPSNNDefaultPadding.paddingWithMethod_(MPS.MPSNNPaddingMethodSizeValidOnly)
    forward.setPadding_(valid)
    for kernel in (forward, backward, loss):
        kernel.setDestinationImageAllocator_(MPS.MPSImage.defaultAllocator())

    data = NSData.dataWithBytes_length_(labels, labels.nbytes)
    description = MPS.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData_layout_size_(
        data, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, (1, 1, CLASSES)
    )
    truth = MPS.MPSCNNLossLabels(device=device, labelsDescriptor=description)
    optimizer = MPS.MPSNNOptimizerStochasticGradientDescent(device=device, learningRate=RATE)

    command_buffer = queue.commandBuffer()
    image = image_of(device, pixels)
    logits, state = forward.encodeToCommandBuffer_sourceImage_destinationState_destinationStateIsTemporary_(
        command_buffer, image, None, False
    )
    assert isinstance(state, MPS.MPSCNNConvolutionGradientState)
    slope = loss.encodeToCommandBuffer_sourceImage_labels_(command_buffer, logits, truth)
    down = backward.encodeToCommandBuffer_sourceGradient_sourceImage_gradientState_(command_buffer, slope, image, state)
    new = MPS.MPSCNNConvolutionWeightsAndBiasesState(device=device, cnnConvolutionDescriptor=source.descriptor())
    old = forward.exportWeightsAndBiasesWithCommandBuffer_resultStateCanBeTemporary_(command_buffer, False)
    optimizer.encodeToCommandBuffer_convolutionGradientState_convolutionSourceState_inputMomentumVectors_resultState_(
        command_buffer, state, old, None, new
    )
    forward.reloadWeightsAndBiasesWithCommandBuffer_state_(command_buffer, new)
    again = forward.encodeToCommandBuffer_sourceImage_(command_buffer, image)
    finished = []
    command_buffer.addCompletedHandler_(lambda buffer: finished.append(buffer is command_buffer))
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    assert finished == [True] and source.loads == 0

    memory = new.resourceAtIndex_allocateMemory_(0, False)
    weights = np.frombuffer(memory.contents().as_buffer(memory.length()), np.float32)
    np.savez(
        path,
        pixels=pixels,
        filters=filters,
        labels=labels,
        logits=array_of(logits),
        loss=array_of(truth.lossImage()),
        down=array_of(down),
        weights=weights[: filters.size].reshape(filters.shape),
        again=array_of(again),
    )


if __name__ == "__main__":
    main(sys.argv[1])
