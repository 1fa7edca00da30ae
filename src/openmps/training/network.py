"""Networks that are trained by name, for images of many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, described, finite, of_kind
from openmps.core.image.image import MPSImage, MPSImageDescriptor
from openmps.core.kinds import mapped
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import Handle, MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxNode
from openmps.kernels.loss import MPSCNNLossDescriptor
from openmps.kernels.optimizers import (
    MPSNNOptimizer,
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.metal.device import MTLDevice
from openmps.selectors import name_arguments
from openmps.training.architectures import NETWORKS
from openmps.training.imported import ImportedTopology, imported_topology, is_imported
from openmps.training.optimized import Optimized, OptimizerFactory
from openmps.training.topology import Layer, Source, Topology
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSImageFeatureChannelFormat

OptimizerName = Literal["adam", "sgd", "rmsprop", "muon"]
"""Adam, gradient descent without momentum, RMSProp and `Muon`, each with its defaults but for the learning rate."""


def _muon(device: MTLDevice, learning_rate: float) -> MPSNNOptimizer:
    from openmps.training.muon import Muon

    return Muon(device, learning_rate)


_OPTIMIZERS: dict[str, Callable[..., MPSNNOptimizer]] = {
    "adam": MPSNNOptimizerAdam,
    "sgd": MPSNNOptimizerStochasticGradientDescent,
    "rmsprop": MPSNNOptimizerRMSProp,
    "muon": _muon,
}
DEFAULT_NETWORK = "sample"
_WEIGHTS_STREAM = 2  # the hold-out and the shuffling of a data set draw from streams 0 and 1 of the same seed
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_Node = TypeVar("_Node", bound=MPSNNFilterNode)


@name_arguments
@dataclass(frozen=True)
class NetworkShape:
    """What a network is made for: images of ``height`` x ``width`` pixels and ``channels``, and ``classes``.

    ``network`` is its name in the table of networks, `NETWORKS`, or the path of an ONNX file, whose numbers training
    begins with; see `openmps.training.imported.ImportedTopology` for what such a model must be like.
    """

    height: int
    width: int
    channels: int
    classes: int
    network: str = DEFAULT_NETWORK

    def __post_init__(self) -> None:
        least_side = smallest_side("NetworkShape", self.network)
        least = {"height": least_side, "width": least_side, "channels": 1, "classes": 2}
        for name, bound in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise MPSTypeError("NetworkShape", name, "must be a whole number", shown(value))
            if value < bound:
                remedy = "Give larger images, or resize them" if name in ("height", "width") else ""
                raise MPSArgumentError("NetworkShape", name, f"must be {bound} or more", value, remedy)

    @classmethod
    def of(cls, images: NDArray[np.uint8], classes: int, network: str = DEFAULT_NETWORK) -> NetworkShape:
        """The shape for images ``[N, H, W, C]``."""
        height, width, channels = images.shape[1:]
        return cls(height, width, channels, classes, network)

    def topology(self) -> Topology | ImportedTopology:
        """The filters of the network; errors of a network from a file are those of `ImportedTopology`."""
        sizes = (self.height, self.width, self.channels, self.classes)
        if is_imported(self.network):
            return imported_topology(self.network, *sizes)
        return Topology.of(NETWORKS[self.network].describe, *sizes)

    def layers(self) -> dict[str, Layer]:
        """The layers with numbers, by label, in order."""
        return self.topology().layers()

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array by name, ``conv1.weights`` (OHWI), ``conv1.biases``, ``norm1.gamma``, …."""
        return self.topology().arrays()

    def image_descriptor(self) -> MPSImageDescriptor:
        """One source image: 8-bit, 0 to 255 standing for 0 to 1."""
        return MPSImageDescriptor(MPSImageFeatureChannelFormat.UNORM8, self.width, self.height, self.channels)


def smallest_side(who: str, network: object) -> int:
    """Pixels that images of a network must have at least.

    Raises:
        MPSArgumentError: It is none of the table, and no ONNX file.
    """
    row = NETWORKS.get(network) if isinstance(network, str) else None
    if row is not None:
        return row.smallest_side
    if not is_imported(network):
        rule = f"must be one of {', '.join(NETWORKS)}, or the path of an .onnx file"
        raise MPSArgumentError(who, "network", rule, shown(network))
    return 1


def optimizer_factory(name: str, learning_rate: float, weight_decay: float = 0.0) -> OptimizerFactory:
    """Makes the optimizer of one layer; see `OptimizerName`, and `MPSNNOptimizer` for ``weight_decay``."""
    who = "optimizer_factory"
    if not isinstance(name, str) or name not in get_args(OptimizerName):
        rule = f"must be one of {', '.join(get_args(OptimizerName))}"
        raise MPSArgumentError(who, "name", rule, shown(name))
    if not finite(who, "learning_rate", learning_rate) > 0:
        raise MPSArgumentError(who, "learning_rate", "must be above 0 and finite", learning_rate)
    if finite(who, "weight_decay", weight_decay) < 0:
        raise MPSArgumentError(who, "weight_decay", "must be 0 or more", weight_decay)

    def make(device: MTLDevice) -> MPSNNOptimizer:
        optimizer = _OPTIMIZERS[name](device, learning_rate)
        optimizer.weight_decay = weight_decay
        return optimizer

    return make


@name_arguments
class Network(NamedAttributes):
    """A classifier of images, as nodes over data sources that hold its numbers.

    Which one says the shape: a row of the table of networks. Behind its logits stands a softmax, in training softmax
    cross-entropy.
    """

    shape: NetworkShape

    def __init__(self, shape: NetworkShape, sources: Mapping[str, Source]) -> None:
        mapped(type(self).__name__, "sources", sources, object, "data sources")
        self.shape = of_kind(type(self).__name__, "shape", shape, NetworkShape)
        self._topology = shape.topology()
        self._sources = dict(sources)

    def __repr__(self) -> str:
        return described(self, self.shape, f"layers {', '.join(self._sources)}")

    @classmethod
    def create(cls, shape: NetworkShape, *, seed: int, optimizer: OptimizerFactory) -> Network:
        """A network to train, with initial numbers that are a pure function of ``seed``."""
        sources = {
            label: layer.trainable(label, _derived(seed, index), optimizer)
            for index, (label, layer) in enumerate(shape.layers().items())
        }
        return cls(shape, sources)

    @classmethod
    def from_arrays(
        cls,
        shape: NetworkShape,
        arrays: Mapping[str, NDArray[np.float32]],
        *,
        optimizer: OptimizerFactory | None = None,
    ) -> Network:
        """A network with these numbers, named as in `NetworkShape.arrays`; with an optimizer it can be trained."""
        mapped(f"{cls.__name__}.from_arrays", "arrays", arrays, object, "arrays")
        missing = [name for name in shape.arrays() if name not in arrays]
        if missing:
            rule = f"must have {', '.join(missing[:8])}{' and more' if len(missing) > 8 else ''}"
            raise MPSArgumentError(f"{cls.__name__}.from_arrays", "arrays", rule, ", ".join(map(str, [*arrays][:8])))
        if optimizer is not None:
            network = cls.create(shape, seed=0, optimizer=optimizer)
            network.take(arrays)
            return network
        sources = {
            label: layer.fixed(label, {name: arrays[f"{label}.{name}"] for name in layer.arrays()})
            for label, layer in shape.layers().items()
        }
        return cls(shape, sources)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The numbers as they are now, by name; call it when the work that trains them is done."""
        return {
            f"{label}.{name}": array
            for label, source in self._sources.items()
            for name, array in source.arrays().items()
        }

    def take(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Take over other numbers, as `arrays` gives them, where they can be trained; graphs are to be reloaded."""
        for label, source in self._sources.items():
            if isinstance(source, Optimized):
                own = self.shape.layers()[label].arrays()
                source.restore_training_state({name: arrays[f"{label}.{name}"] for name in own})

    def keep_averages(self, decay: float) -> None:
        """Keep exponential averages of all numbers that are trained; see the data sources' ``keep_average``."""
        for source in self._sources.values():
            if isinstance(source, Optimized):
                source.keep_average(decay)

    def averages(self) -> dict[str, NDArray[np.float32]]:
        """The averages by name, as `arrays` has the numbers; call it when the work that trains them is done."""
        return {
            f"{label}.{name}": array
            for label, source in self._sources.items()
            for name, array in (source.averages() if isinstance(source, Optimized) else source.arrays()).items()
        }

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the step size of the updates that are encoded from now on."""
        for source in self._sources.values():
            if isinstance(source, Optimized):
                source.set_learning_rate(learning_rate)

    def inference_graph(self, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat) -> MPSNNGraph:
        """The graph from images to probabilities (float32); intermediate images are stored in ``channel_format``.

        It has a copy of the weights: ``reload_from_data_sources()`` brings in what training has changed.
        """
        graph = MPSNNGraph(device, _softmax(self._logits(None)))
        graph.format = channel_format
        return graph

    def training_graph(
        self,
        device: MTLDevice,
        channel_format: MPSImageFeatureChannelFormat,
        *,
        loss_weight: float,
        dropout_seed: int,
        gradient_format: MPSImageFeatureChannelFormat = _FLOAT32,
        label_smoothing: float = 0.0,
        probabilities: bool = False,
    ) -> MPSNNGraph:
        """The graph that does one training step: images and labels in, the logits (float32) out as intermediate image.

        The loss is multiplied by ``loss_weight``: 1 / batch size for the mean. Gradients of images are stored in
        ``gradient_format``, float32 unless said whatever the format of the images is: in half precision, which a GPU
        multiplies many times as fast, small ones vanish unless ``loss_weight`` holds a factor that the optimizers'
        ``gradient_rescale`` takes out again. A NaN or an infinity in the loss stops an encode before anything is
        updated. ``label_smoothing`` is the share of each label that is spread over all classes. With ``probabilities``
        those of `inference_graph` come out too, and no logits.
        """
        logits = self._logits(dropout_seed)
        if not probabilities:
            logits.export_from_graph = True
            logits.image_allocator = MPSImage.default_allocator()
        descriptor = MPSCNNLossDescriptor(MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, MPSCNNReductionType.SUM)
        descriptor.weight = loss_weight
        descriptor.label_smoothing, descriptor.number_of_classes = label_smoothing, self.shape.classes
        loss = _labelled(MPSCNNLossNode(logits, descriptor), "loss")
        loss.input_labels.handle = Handle("labels")
        loss.result_image.format = gradient_format
        last = loss.training_graph(None, partial(_store_gradients, gradient_format))
        assert last is not None
        results = [last[0].result_image, *([_softmax(logits)] if probabilities else [])]
        graph = MPSNNGraph(device, result_images=results, results_are_needed=[False, True][: len(results)])
        graph.format = channel_format
        graph.stop_on_non_finite = True
        return graph

    def _logits(self, dropout_seed: int | None) -> MPSNNImageNode:
        """The network without its end."""
        logits = self._topology.logits(self._sources, dropout_seed)
        logits.format = _FLOAT32
        return logits


SampleNetwork = Network
"""The name of `Network` from when the sample network was the only one; a shape without a name still means that."""


def _store_gradients(
    channel_format: MPSImageFeatureChannelFormat,
    gradient: MPSNNFilterNode,
    forward: MPSNNFilterNode | None,
    source: MPSNNImageNode,
    gradient_source: MPSNNImageNode,
) -> None:
    del source, gradient_source
    gradient.result_image.format = channel_format
    if forward is not None:
        gradient.label = f"{forward.label} gradient"


def _softmax(logits: MPSNNImageNode) -> MPSNNImageNode:
    """The probabilities of logits."""
    softmax = _labelled(MPSCNNSoftMaxNode(logits), "softmax")
    softmax.result_image.format = _FLOAT32
    return softmax.result_image


def _labelled(node: _Node, label: str) -> _Node:
    node.label = label
    return node


def _derived(seed: int, index: int) -> int:
    """A seed of its own for each layer."""
    return int(np.random.SeedSequence(seed, spawn_key=(_WEIGHTS_STREAM, index)).generate_state(1, np.uint64)[0])
