"""The sample network: two convolutions with pooling, two fully connected layers, for images of many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from openmps.core.image.image import MPSImage, MPSImageDescriptor
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.convolution_nodes import MPSCNNConvolutionNode, MPSCNNFullyConnectedNode
from openmps.graph.dropout_nodes import MPSCNNDropoutNode
from openmps.graph.graph import MPSNNGraph
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.neuron_nodes import MPSCNNNeuronReLUNode
from openmps.graph.nodes import Handle, MPSNNFilterNode, MPSNNImageNode
from openmps.graph.pooling_nodes import MPSCNNPoolingMaxNode
from openmps.graph.softmax_nodes import MPSCNNSoftMaxNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.loss import MPSCNNLossDescriptor
from openmps.kernels.optimizers import (
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.metal.device import MTLDevice
from openmps.training.data_sources import ArrayConvolutionDataSource, OptimizerFactory, TrainableConvolutionDataSource
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSImageFeatureChannelFormat, MPSNNPaddingMethod

OptimizerName = Literal["adam", "sgd", "rmsprop"]
"""Adam, gradient descent without momentum, RMSProp; each with the framework's defaults but for the learning rate."""

_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adam": MPSNNOptimizerAdam,
    "sgd": MPSNNOptimizerStochasticGradientDescent,
    "rmsprop": MPSNNOptimizerRMSProp,
}
_LARGEST_WEIGHT = 0.2
_BIAS = 0.1
_KEEP_PROBABILITY = 0.5
# Two poolings halve the image twice: a smaller one leaves them nothing to choose from.
_SMALLEST_SIDE = 4
_WEIGHTS_STREAM = 2  # the hold-out and the shuffling of a data set draw from streams 0 and 1 of the same seed
_SAME = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
_POOLING = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling()
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_Node = TypeVar("_Node", bound=MPSNNFilterNode)


@dataclass(frozen=True)
class NetworkShape:
    """What a sample network is made for: images of ``height`` x ``width`` pixels and ``channels``, and ``classes``."""

    height: int
    width: int
    channels: int
    classes: int

    def __post_init__(self) -> None:
        least = {"height": _SMALLEST_SIDE, "width": _SMALLEST_SIDE, "channels": 1, "classes": 2}
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise MPSTypeError("NetworkShape", name, "must be a whole number", repr(value))
            if value < least[name]:
                remedy = "Give larger images, or resize them" if name in ("height", "width") else ""
                raise MPSArgumentError("NetworkShape", name, f"must be {least[name]} or more", value, remedy)

    @classmethod
    def of(cls, images: NDArray[np.uint8], classes: int) -> NetworkShape:
        """The shape for images ``[N, H, W, C]``."""
        height, width, channels = images.shape[1:]
        return cls(height, width, channels, classes)

    def layers(self) -> dict[str, MPSCNNConvolutionDescriptor]:
        """The descriptor of each layer with weights, by label, in order."""
        rows, columns = (_halved(_halved(length)) for length in (self.height, self.width))
        return {
            "conv1": MPSCNNConvolutionDescriptor(5, 5, self.channels, 32),
            "conv2": MPSCNNConvolutionDescriptor(5, 5, 32, 64),
            "fc1": MPSCNNConvolutionDescriptor(columns, rows, 64, 1024),
            "fc2": MPSCNNConvolutionDescriptor(1, 1, 1024, self.classes),
        }

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array of weights (OHWI) and biases, by name, from ``conv1.weights`` to ``fc2.biases``."""
        return {
            f"{label}.{part}": shape
            for label, descriptor in self.layers().items()
            for part, shape in (
                ("weights", descriptor.weight_shape()),
                ("biases", (descriptor.output_feature_channels,)),
            )
        }

    def image_descriptor(self) -> MPSImageDescriptor:
        """One source image: 8-bit, 0 to 255 standing for 0 to 1."""
        return MPSImageDescriptor(MPSImageFeatureChannelFormat.UNORM8, self.width, self.height, self.channels)


def optimizer_factory(name: str, learning_rate: float) -> OptimizerFactory:
    """Makes the optimizer of one layer; see `OptimizerName`."""
    if name not in get_args(OptimizerName):
        rule = f"must be one of {', '.join(get_args(OptimizerName))}"
        raise MPSArgumentError("optimizer_factory", "name", rule, repr(name))
    if not 0 < learning_rate < float("inf"):
        raise MPSArgumentError("optimizer_factory", "learning_rate", "must be above 0 and finite", learning_rate)
    return lambda device: _OPTIMIZERS[name](device, learning_rate)


class SampleNetwork:
    """A classifier of images, as nodes over data sources that hold its weights.

    Convolution 5x5 to 32 channels, ReLU, max pooling 2x2; convolution 5x5 to 64 channels, ReLU, max pooling 2x2; fully
    connected to 1024, ReLU, in training dropout that keeps half; fully connected to the classes; softmax, in training
    softmax cross-entropy. Convolutions keep the size, poolings halve it, rounded up.
    """

    def __init__(self, shape: NetworkShape, sources: Mapping[str, ArrayConvolutionDataSource]) -> None:
        self.shape = shape
        self._sources = dict(sources)

    @classmethod
    def create(cls, shape: NetworkShape, *, seed: int, optimizer: OptimizerFactory) -> SampleNetwork:
        """A network to train: weights uniform from -0.2 to 0.2, biases 0.1; a pure function of ``seed``."""
        sources = {
            label: TrainableConvolutionDataSource.uniform(
                descriptor,
                limit=_LARGEST_WEIGHT,
                bias=_BIAS,
                seed=_derived(seed, index),
                label=label,
                optimizer=optimizer,
            )
            for index, (label, descriptor) in enumerate(shape.layers().items())
        }
        return cls(shape, sources)

    @classmethod
    def from_arrays(cls, shape: NetworkShape, arrays: Mapping[str, NDArray[np.float32]]) -> SampleNetwork:
        """A network with these weights, named as in `NetworkShape.arrays`, to infer with."""
        sources = {
            label: ArrayConvolutionDataSource(descriptor, arrays[f"{label}.weights"], arrays[f"{label}.biases"], label)
            for label, descriptor in shape.layers().items()
        }
        return cls(shape, sources)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The weights and biases as they are now, by name; call it when the work that trains them is done."""
        found: dict[str, NDArray[np.float32]] = {}
        for label, source in self._sources.items():
            biases = source.bias_terms()
            found[f"{label}.weights"] = source.weights()
            if biases is not None:
                found[f"{label}.biases"] = biases
        return found

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the step size of the updates that are encoded from now on."""
        for source in self._sources.values():
            if isinstance(source, TrainableConvolutionDataSource):
                source.set_learning_rate(learning_rate)

    def inference_graph(self, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat) -> MPSNNGraph:
        """The graph from images to probabilities (float32); intermediate images are stored in ``channel_format``.

        It has a copy of the weights: ``reload_from_data_sources()`` brings in what training has changed.
        """
        softmax = _labelled(MPSCNNSoftMaxNode(self._logits(None)), "softmax")
        softmax.result_image.format = _FLOAT32
        graph = MPSNNGraph(device, softmax.result_image)
        graph.format = channel_format
        return graph

    def training_graph(
        self,
        device: MTLDevice,
        channel_format: MPSImageFeatureChannelFormat,
        *,
        loss_weight: float,
        dropout_seed: int,
    ) -> MPSNNGraph:
        """The graph that does one training step: images and labels in, the logits (float32) out as intermediate image.

        The loss is multiplied by ``loss_weight``: 1 / batch size for the mean. Gradients are float32 whatever the
        format, because small ones would vanish in half precision. A NaN or an infinity in the loss stops an encode
        before anything is updated.
        """
        logits = self._logits(dropout_seed)
        logits.export_from_graph = True
        logits.image_allocator = MPSImage.default_allocator()
        descriptor = MPSCNNLossDescriptor(MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, MPSCNNReductionType.SUM)
        descriptor.weight = loss_weight
        loss = _labelled(MPSCNNLossNode(logits, descriptor), "loss")
        loss.input_labels.handle = Handle("labels")
        loss.result_image.format = _FLOAT32
        last = loss.training_graph(None, _keep_precision)
        assert last is not None
        graph = MPSNNGraph(device, last[0].result_image, result_image_is_needed=False)
        graph.format = channel_format
        graph.stop_on_non_finite = True
        return graph

    def _logits(self, dropout_seed: int | None) -> MPSNNImageNode:
        """The network without its end; with dropout where there is a seed for it."""
        image = MPSNNImageNode(Handle("image"))
        for index in (1, 2):
            convolution = MPSCNNConvolutionNode(image, self._sources[f"conv{index}"])
            convolution.padding_policy = _SAME
            relu = _labelled(MPSCNNNeuronReLUNode(convolution.result_image), f"relu{index}")
            pooling = _labelled(MPSCNNPoolingMaxNode(relu.result_image, 2, 2), f"pool{index}")
            pooling.padding_policy = _POOLING
            image = pooling.result_image
        hidden = MPSCNNFullyConnectedNode(image, self._sources["fc1"])
        image = _labelled(MPSCNNNeuronReLUNode(hidden.result_image), "relu3").result_image
        if dropout_seed is not None:
            image = _labelled(MPSCNNDropoutNode(image, _KEEP_PROBABILITY, dropout_seed), "dropout").result_image
        logits = MPSCNNFullyConnectedNode(image, self._sources["fc2"]).result_image
        logits.format = _FLOAT32
        return logits


def _keep_precision(
    gradient: MPSNNFilterNode, forward: MPSNNFilterNode | None, source: MPSNNImageNode, gradient_source: MPSNNImageNode
) -> None:
    del source, gradient_source
    gradient.result_image.format = _FLOAT32
    if forward is not None:
        gradient.label = f"{forward.label} gradient"


def _labelled(node: _Node, label: str) -> _Node:
    node.label = label
    return node


def _halved(length: int) -> int:
    """The length behind a pooling: rounded up."""
    return (length + 1) // 2


def _derived(seed: int, index: int) -> int:
    """A seed of its own for each layer."""
    return int(np.random.SeedSequence(seed, spawn_key=(_WEIGHTS_STREAM, index)).generate_state(1, np.uint64)[0])
