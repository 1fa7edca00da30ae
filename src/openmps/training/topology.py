"""What a network consists of, as data: its filters in order, and the layers that have numbers.

A network is a function that is given a `Description` and calls it once for each filter. What it said makes the nodes of
every graph of the network, and tells the shapes of its arrays before there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.formats.archive.sources import ArchivedNormalizationParameters
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNNode, MPSCNNNeuronReLUNode, MPSCNNNeuronTanHNode
from openmps.graph.nodes.node import Handle, MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.normalization import MPSCNNBatchNormalizationNode
from openmps.graph.nodes.pooling import MPSCNNPoolingAverageNode, MPSCNNPoolingMaxNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.training.image_normalization_sources import TrainableInstanceNormalizationDataSource
from openmps.training.normalization_sources import (
    ArrayBatchNormalizationDataSource,
    TrainableBatchNormalizationDataSource,
)
from openmps.training.optimized import OptimizerFactory
from openmps.types import MPSNNPaddingMethod

Source = (
    ArrayConvolutionDataSource
    | ArrayBatchNormalizationDataSource
    | ArchivedNormalizationParameters
    | TrainableInstanceNormalizationDataSource
)
_SAME = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
_VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
_SLOT = 4  # channels that begin together in a concatenation


# --- layers with numbers ----------------------------------------------------------------------------------------------


class Layer(Protocol):
    """A layer with numbers."""

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of its arrays, by name."""
        ...

    def fixed(self, label: str, arrays: Mapping[str, NDArray[np.float32]]) -> Source:
        """A data source of these arrays."""
        ...

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source of initial numbers that an optimizer trains."""
        ...


@dataclass(frozen=True)
class ConvolutionLayer:
    """Weights, uniform from -``limit`` to ``limit`` at first, and biases, ``bias`` at first; None for no biases."""

    descriptor: MPSCNNConvolutionDescriptor
    limit: float
    bias: float | None

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Weights (OHWI) and biases."""
        biases = {} if self.bias is None else {"biases": (self.descriptor.output_feature_channels,)}
        return {"weights": self.descriptor.weight_shape(), **biases}

    def fixed(self, label: str, arrays: Mapping[str, NDArray[np.float32]]) -> Source:
        """A data source of these arrays."""
        return ArrayConvolutionDataSource(self.descriptor, arrays["weights"], arrays.get("biases"), label)

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source of initial numbers that an optimizer trains."""
        return TrainableConvolutionDataSource.uniform(
            self.descriptor, limit=self.limit, bias=self.bias, seed=seed, label=label, optimizer=optimizer
        )


@dataclass(frozen=True)
class NormalizationLayer:
    """Scales 1 and shifts 0 at first, and running means and variances."""

    channels: int

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Gamma, beta, mean and variance."""
        return dict.fromkeys(("gamma", "beta", "mean", "variance"), (self.channels,))

    def fixed(self, label: str, arrays: Mapping[str, NDArray[np.float32]]) -> Source:
        """A data source of these arrays."""
        rows = (arrays[name] for name in self.arrays())
        return ArrayBatchNormalizationDataSource(self.channels, *rows, label=label)

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source of initial numbers that an optimizer trains."""
        return TrainableBatchNormalizationDataSource(self.channels, label=label, optimizer=optimizer)


# --- filters ----------------------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """An image in a network: its place among all, and its shape."""

    place: int
    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Step:
    """One filter: its label, the places of the images that it reads, and how its node is made.

    ``make`` gets the image nodes, and the data source where there is a ``layer``, or the seed of a dropout.
    """

    label: str
    reads: tuple[int, ...]
    make: Callable[..., MPSNNFilterNode]
    padding: MPSNNDefaultPadding | None = None
    layer: Layer | None = None
    is_dropout: bool = False

    def node(self, images: list[MPSNNImageNode], sources: Mapping[str, Source], dropout_seed: int | None) -> Any:
        """The filter's node for the images so far; None for a dropout outside training."""
        more: list[Any] = [] if self.layer is None else [sources[self.label]]
        if self.is_dropout:
            if dropout_seed is None:
                return None
            more = [dropout_seed]
        node = self.make(*(images[place] for place in self.reads), *more)
        node.label = self.label
        if self.padding is not None:
            node.padding_policy = self.padding
        return node


class Description:
    """Takes down the filters of a network. Convolutions and poolings keep the size, or divide it by their stride."""

    def __init__(self, height: int, width: int, channels: int, classes: int) -> None:
        self.image = Value(0, height, width, channels)
        self.classes = classes
        self.steps: list[Step] = []
        self._counts: dict[str, int] = {}

    def convolution(
        self,
        source: Value,
        label: str,
        channels: int,
        size: int,
        stride: int = 1,
        *,
        limit: float | None = None,
        bias: float | None = None,
    ) -> Value:
        """A convolution of ``size`` x ``size``; ``limit`` is that of He and others for rectifiers unless given."""
        descriptor = MPSCNNConvolutionDescriptor(size, size, source.channels, channels)
        return self._convolved(source, label, descriptor, stride, limit, bias)

    def depthwise(self, source: Value, label: str, size: int, stride: int = 1) -> Value:
        """A convolution of each channel by itself."""
        descriptor = MPSCNNDepthWiseConvolutionDescriptor(size, size, source.channels, source.channels)
        return self._convolved(source, label, descriptor, stride, None, None)

    def _convolved(
        self,
        source: Value,
        label: str,
        descriptor: MPSCNNConvolutionDescriptor,
        stride: int,
        limit: float | None,
        bias: float | None,
    ) -> Value:
        descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = stride
        rectified = (6 / float(np.prod(descriptor.weight_shape()[1:]))) ** 0.5
        layer = ConvolutionLayer(descriptor, rectified if limit is None else limit, bias)
        shape = _divided(source, stride)._replace(channels=descriptor.output_feature_channels)
        return self._add(shape, MPSCNNConvolutionNode, source, label=label, layer=layer, padding=_SAME)

    def fully_connected(self, source: Value, label: str, channels: int, *, limit: float, bias: float) -> Value:
        """A fully connected layer, whose kernel is as large as the image."""
        descriptor = MPSCNNConvolutionDescriptor(source.width, source.height, source.channels, channels)
        layer = ConvolutionLayer(descriptor, limit, bias)
        return self._add(Value(0, 1, 1, channels), MPSCNNFullyConnectedNode, source, label=label, layer=layer)

    def normalization(self, source: Value, label: str) -> Value:
        """Batch normalization."""
        layer = NormalizationLayer(source.channels)
        return self._add(source, MPSCNNBatchNormalizationNode, source, label=label, layer=layer)

    def relu(self, source: Value) -> Value:
        """max(x, 0)."""
        return self._add(source, MPSCNNNeuronReLUNode, source, kind="relu")

    def relu6(self, source: Value) -> Value:
        """min(max(x, 0), 6)."""
        return self._add(source, partial(MPSCNNNeuronReLUNNode, a=0.0, b=6.0), source, kind="relu")

    def tanh(self, source: Value) -> Value:
        """The hyperbolic tangent."""
        return self._add(source, partial(MPSCNNNeuronTanHNode, a=1.0, b=1.0), source, kind="tanh")

    def halved(self, source: Value, node: type[Any] = MPSCNNPoolingMaxNode) -> Value:
        """Max or average pooling 2x2, which rounds up: windows at the right and bottom may be cut off."""
        padding = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling()
        return self._add(
            _divided(source, 2), partial(node, filter_size=2, stride=2), source, kind="pool", padding=padding
        )

    def max_pooling(self, source: Value, size: int, stride: int) -> Value:
        """Max pooling of ``size`` x ``size``."""
        shape = _divided(source, stride)
        make = partial(MPSCNNPoolingMaxNode, filter_size=size, stride=stride)
        return self._add(shape, make, source, kind="pool", padding=_SAME)

    def average(self, source: Value) -> Value:
        """The mean of all pixels."""
        window = {"kernel_width": source.width, "kernel_height": source.height}
        make = partial(MPSCNNPoolingAverageNode, **window, stride_in_pixels_x=1, stride_in_pixels_y=1)
        return self._add(Value(0, 1, 1, source.channels), make, source, kind="average", padding=_VALID)

    def dropout(self, source: Value, keep: float) -> Value:
        """Dropout that keeps a part, in training only."""
        make = partial(_dropout, keep)
        return self._add(source, make, source, label="dropout", is_dropout=True)

    def add(self, first: Value, second: Value) -> Value:
        """The sum of two images."""
        return self._add(first, MPSNNAdditionNode, first, second, kind="add")

    def concatenated(self, *sources: Value) -> Value:
        """Images side by side in channels, each from a multiple of 4 on."""
        channels = sum(-(-source.channels // _SLOT) * _SLOT for source in sources)
        shape = sources[0]._replace(channels=channels)
        return self._add(shape, _concatenation, *sources, kind="concatenation")

    def _add(
        self,
        shape: Value,
        make: Callable[..., MPSNNFilterNode],
        *sources: Value,
        label: str | None = None,
        kind: str = "",
        **more: Any,
    ) -> Value:
        """Take down a filter whose result has this shape; without a label it is its kind and a number."""
        if label is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            label = f"{kind}{self._counts[kind]}"
        self.steps.append(Step(label, tuple(source.place for source in sources), make, **more))
        return shape._replace(place=len(self.steps))


def _dropout(keep: float, image: MPSNNImageNode, seed: int) -> MPSCNNDropoutNode:
    return MPSCNNDropoutNode(image, keep, seed)


def _concatenation(*images: MPSNNImageNode) -> MPSNNConcatenationNode:
    return MPSNNConcatenationNode(list(images))


def _divided(source: Value, stride: int) -> Value:
    """The size behind a stride: rounded up."""
    return source._replace(height=-(-source.height // stride), width=-(-source.width // stride))


Architecture = Callable[[Description], Value]
"""Describes a network from ``description.image`` to the logits of ``description.classes``."""


@dataclass(frozen=True)
class Topology:
    """The filters of a network for images of one size, in order; the last one makes the logits."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, architecture: Architecture, height: int, width: int, channels: int, classes: int) -> Topology:
        """What a network consists of for such images."""
        description = Description(height, width, channels, classes)
        architecture(description)
        return cls(tuple(description.steps))

    def layers(self) -> dict[str, Layer]:
        """The layers with numbers, by label, in order."""
        return {step.label: step.layer for step in self.steps if step.layer is not None}

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array, by label and name, from ``conv1.weights`` on."""
        return {
            f"{label}.{name}": shape for label, layer in self.layers().items() for name, shape in layer.arrays().items()
        }

    def logits(self, sources: Mapping[str, Source], dropout_seed: int | None) -> MPSNNImageNode:
        """New nodes up to the logits; with dropout where there is a seed for it."""
        images = [MPSNNImageNode(Handle("image"))]
        for step in self.steps:
            node = step.node(images, sources, dropout_seed)
            images.append(images[step.reads[0]] if node is None else node.result_image)
        return images[-1]
