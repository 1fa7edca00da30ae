"""Train a small network as an MPSNNGraph with a loss and an optimizer: python graph_training.py numbers.npz"""

import sys

import MetalPerformanceShaders as MPS
import numpy as np
import objc
from Foundation import NSData, NSObject

objc.registerMetaDataForSelector(b"NSObject", b"weights", {"retval": {"type": b"^v"}})
# The state's weights are a buffer, not what a data source returns.
objc.registerMetaDataForSelector(b"MPSCNNConvolutionWeightsAndBiasesState", b"weights", {"retval": {"type": b"@"}})
STEPS, BATCH, SIZE, CHANNELS, CLASSES, RATE = 3, 4, 4, 2, 3, 0.25


class TrainableWeights(NSObject, protocols=[objc.protocolNamed("MPSCNNConvolutionDataSource")]):
    """Keeps the values on the device, and has an optimizer change them there."""

    def initWithDevice_weights_label_(self, device, weights, label):
        self = objc.super(TrainableWeights, self).init()
        self._device, self._weights, self._label = device, weights, label
        outputs, height, width, inputs = weights.shape
        self._descriptor = MPS.MPSCNNConvolutionDescriptor(
            kernelWidth=width, kernelHeight=height, inputFeatureChannels=inputs, outputFeatureChannels=outputs
        )
        settings = MPS.MPSNNOptimizerDescriptor(
            learningRate=RATE,
            gradientRescale=1.0 / BATCH,
            regularizationType=MPS.MPSNNRegularizationTypeNone,
            regularizationScale=0.0,
        )
        self._optimizer = MPS.MPSNNOptimizerStochasticGradientDescent(
            device=device, momentumScale=0.0, useNesterovMomentum=False, optimizerDescriptor=settings
        )
        self._state = MPS.MPSCNNConvolutionWeightsAndBiasesState(
            device=device, cnnConvolutionDescriptor=self._descriptor
        )
        memory = self._state.weights()
        np.frombuffer(memory.contents().as_buffer(weights.nbytes), np.float32)[:] = weights.ravel()
        memory.didModifyRange_((0, weights.nbytes))
        self._updates = 0
        return self

    def dataType(self):
        return MPS.MPSDataTypeFloat32

    def descriptor(self):
        return self._descriptor

    def weights(self):
        return self._weights.ctypes.data

    def biasTerms(self):
        return objc.NULL

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return self._label

    def updateWithCommandBuffer_gradientState_sourceState_(self, command_buffer, gradient_state, source_state):
        self._optimizer.encodeToCommandBuffer_convolutionGradientState_convolutionSourceState_inputMomentumVectors_resultState_(
            command_buffer, gradient_state, source_state, None, self._state
        )
        self._updates += 1
        return self._state

    @objc.python_method
    def values(self):
        memory = self._state.weights()
        found = np.frombuffer(memory.contents().as_buffer(self._weights.nbytes), np.float32)
        return found.reshape(self._weights.shape).copy()


def loss_labels(device, classes):
    batch = []
    for each in classes:
        one_hot = np.zeros(CLASSES, np.float32)
        one_hot[each] = 1
        data = NSData.dataWithBytes_length_(one_hot, one_hot.nbytes)
        description = MPS.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData_layout_size_(
            data, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, MPS.MTLSizeMake(1, 1, CLASSES)
        )
        batch.append(MPS.MPSCNNLossLabels(device=device, labelsDescriptor=description))
    return batch


def training_graph(device, source):
    pictures = MPS.MPSNNImageNode.nodeWithHandle_(None)
    logits = MPS.MPSCNNFullyConnectedNode.nodeWithSource_weights_(pictures, source)
    kind = MPS.MPSCNNLossDescriptor.cnnLossDescriptorWithType_reductionType_(
        MPS.MPSCNNLossTypeSoftMaxCrossEntropy, MPS.MPSCNNReductionTypeSum
    )
    loss = MPS.MPSCNNLossNode.nodeWithSource_lossDescriptor_(logits.resultImage(), kind)
    seen = []

    def handler(gradient_node, inference_node, inference_source, gradient_source):
        seen.append((type(gradient_node).__name__, inference_node is logits))

    ends = loss.trainingGraphWithSourceGradient_nodeHandler_(loss.resultImage(), handler)
    assert len(ends) == 1 and ("MPSCNNFullyConnectedGradientNode", True) in seen
    graph, flags = MPS.MPSNNGraph.alloc().initWithDevice_resultImages_resultsAreNeeded_(
        device, [ends[0].resultImage()], objc.NULL
    )
    assert flags is objc.NULL
    graph.setFormat_(MPS.MPSImageFeatureChannelFormatFloat32)
    return graph


def main(path):
    device = MPS.MTLCreateSystemDefaultDevice()
    queue = device.newCommandQueue()
    random = np.random.default_rng(5)
    pixels = random.standard_normal((BATCH, SIZE, SIZE, CHANNELS)).astype(np.float32)
    classes = random.integers(0, CLASSES, BATCH)
    weights = (random.standard_normal((CLASSES, SIZE, SIZE, CHANNELS)) / 8).astype(np.float32)
    source = TrainableWeights.alloc().initWithDevice_weights_label_(device, weights, "dense")
    graph = training_graph(device, source)

    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=SIZE, height=SIZE, featureChannels=CHANNELS
    )
    images = [MPS.MPSImage(device=device, imageDescriptor=descriptor) for _ in range(BATCH)]
    for image, each in zip(images, pixels, strict=True):
        image.writeBytes_dataLayout_imageIndex_(each, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0)

    losses = []
    for _ in range(STEPS):
        with objc.autorelease_pool():
            labels = loss_labels(device, classes)
            command_buffer = queue.commandBuffer()
            graph.encodeBatchToCommandBuffer_sourceImages_sourceStates_(command_buffer, [images], [labels])
            for each in labels:
                each.lossImage().synchronizeOnCommandBuffer_(command_buffer)
            command_buffer.commit()
            command_buffer.waitUntilCompleted()
            total = 0.0
            for each in labels:
                value = np.zeros(1, np.float32)
                each.lossImage().readBytes_dataLayout_imageIndex_(
                    value, MPS.MPSDataLayoutHeightxWidthxFeatureChannels, 0
                )
                total += float(value[0])
            losses.append(total)
    assert source._updates == STEPS
    np.savez(path, pixels=pixels, classes=classes, weights=weights, losses=losses, trained=source.values())


if __name__ == "__main__":
    main(sys.argv[1])
