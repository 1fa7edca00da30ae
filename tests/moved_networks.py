"""Forty networks that are taken out to every format: by name, trained, of the examples, and forms of layers."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import openmps as mps
from networks import SAME, Weights
from openmps.formats import onnx
from openmps.training import (
    ArrayBatchNormalizationDataSource,
    TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource,
)
from openmps.training.network import Network, NetworkShape, optimizer_factory
from trained_networks import SHAPES, input_shapes, network_file, network_outputs

sys.path.append(str(Path(__file__).resolve().parent.parent))  # where the examples are
CPU, FLOAT32 = mps.mtl_device("cpu"), mps.MPSImageFeatureChannelFormat.FLOAT32
NO_PADS = mps.ExplicitPadding(0, 0, 0, 0)
Size = tuple[int, int, int]
"""Rows, columns and channels."""


class Moved(NamedTuple):
    """A graph for inference, and the sizes of its source images."""

    graph: mps.MPSNNGraph
    sizes: Sequence[Size]

    def descriptors(self) -> list[mps.MPSImageDescriptor]:
        """Its source images."""
        return [mps.MPSImageDescriptor(FLOAT32, columns, rows, channels) for rows, columns, channels in self.sizes]


def _with_logits(graph: mps.MPSNNGraph) -> mps.MPSNNGraph:
    """The same, giving what its last softmax gets, too: probabilities near 0 and 1 hide errors."""
    *_, last = graph.kernels
    return _graph(last.sources[0], last.result_image) if isinstance(last, mps.MPSCNNSoftMaxNode) else graph


def _graph(*results: mps.MPSNNImageNode) -> mps.MPSNNGraph:
    for image in results:
        image.image_allocator = mps.MPSImage.default_allocator()
    graph = mps.MPSNNGraph(CPU, result_images=list(results))
    graph.format = FLOAT32
    return graph


# --- networks that are there ------------------------------------------------------------------------------------------


def _by_name(name: str, side: int) -> Moved:
    """A network of `openmps train --network` with the numbers that training begins with."""
    shape = NetworkShape(side, side, 3, 10, name)
    network = Network.create(shape, seed=0, optimizer=optimizer_factory("sgd", 1e-3))
    return Moved(_with_logits(network.inference_graph(CPU, FLOAT32)), [(side, side, 3)])


def _trained(name: str) -> Moved:
    """A network of `bench.trained`, out of its ONNX file."""
    with tempfile.TemporaryDirectory() as folder:
        path = network_file(name, Path(folder))
        model = onnx.network(path, shapes=input_shapes(name), outputs=network_outputs(name), fill_limit=1 << 30).model(
            CPU, FLOAT32
        )
    _, *lengths = SHAPES[name]
    size = tuple(lengths) if name == "resnet50 thin" else (*lengths[1:], lengths[0])
    return Moved(_with_logits(model.graph), [size])


def _example(module: str, make: Callable[[Any], Any], *sizes: Size) -> Moved:
    """A network of an example before it is trained."""
    graph = make(__import__(f"examples.{module}", fromlist=[module]))
    graph.format = FLOAT32
    return Moved(graph, sizes)


def _speedrun(module: Any) -> mps.MPSNNGraph:
    network = module.Speedrun(CPU, module.synthetic(64).training, (8, 16, 16), 120.0, 60.0)
    return network.inference_graph(FLOAT32)


# --- forms of layers --------------------------------------------------------------------------------------------------


class Layers:
    """Layers with random numbers, one behind the other unless said."""

    def __init__(self, channels: int, name: str = "image", seed: int = 0) -> None:
        self.x, self.channels = mps.MPSNNImageNode(mps.Handle(name)), channels
        self._rng, self._count = np.random.default_rng(seed), 0

    def put(self, node: Any, channels: int | None = None, policy: Any = None) -> mps.MPSNNImageNode:
        """A node over the last image."""
        node.padding_policy = policy or node.padding_policy
        self.x, self.channels = node.result_image, channels or self.channels
        return self.x

    def source(self, outputs: int, rows: int, columns: int, groups: int = 1, **options: int) -> Weights:
        """Weights of the last image's channels."""
        self._count += 1
        made = Weights.of(self._rng, (outputs, rows, columns, self.channels // groups), f"layer{self._count}")
        made.made = mps.MPSCNNConvolutionDescriptor(columns, rows, self.channels, outputs)
        made.made.groups = groups
        for name, value in options.items():
            setattr(made.made, name, value)
        return made

    def convolution(
        self, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, rate: int = 1, policy: Any = SAME
    ) -> mps.MPSNNImageNode:
        """A square one."""
        strides = {"stride_in_pixels_x": stride, "stride_in_pixels_y": stride}
        rates = {"dilation_rate_x": rate, "dilation_rate_y": rate}
        source = self.source(outputs, size, size, groups, **strides, **rates)
        return self.put(mps.MPSCNNConvolutionNode(self.x, source), outputs, policy)

    def depthwise(self, size: int = 3, stride: int = 1, multiplier: int = 1) -> mps.MPSNNImageNode:
        """Some filters a channel."""
        outputs = self.channels * multiplier
        source = Weights.of(self._rng, (outputs, size, size, 1), "deep")
        source.made = mps.MPSCNNDepthWiseConvolutionDescriptor(size, size, self.channels, outputs)
        source.made.stride_in_pixels_x = source.made.stride_in_pixels_y = stride
        return self.put(mps.MPSCNNConvolutionNode(self.x, source), outputs, SAME)

    def transposed(self, outputs: int, size: int = 2, stride: int = 2, policy: Any = NO_PADS) -> mps.MPSNNImageNode:
        """Images that grow by the stride."""
        source = self.source(outputs, size, size, stride_in_pixels_x=stride, stride_in_pixels_y=stride)
        return self.put(mps.MPSCNNConvolutionTransposeNode(self.x, None, source), outputs, policy)

    def rows(self, count: int) -> list[np.ndarray]:
        """Numbers a channel, all above 0."""
        return [self._rng.uniform(0.5, 1.5, self.channels).astype(np.float32) for _ in range(count)]

    def normalized(self, kind: str = "batch") -> mps.MPSNNImageNode:
        """Batch, instance or group normalization."""
        optimizer = optimizer_factory("sgd", 1e-3)
        if kind == "batch":
            node: Any = mps.MPSCNNBatchNormalizationNode(
                self.x, ArrayBatchNormalizationDataSource(self.channels, *self.rows(4))
            )
        elif kind == "instance":
            source = TrainableInstanceNormalizationDataSource(self.channels, *self.rows(2), optimizer=optimizer)
            node = mps.MPSCNNInstanceNormalizationNode(self.x, source)
        else:
            groups = TrainableGroupNormalizationDataSource(self.channels, 2, *self.rows(2), optimizer=optimizer)
            node = mps.MPSCNNGroupNormalizationNode(self.x, groups)
        return self.put(node)

    def relu(self) -> mps.MPSNNImageNode:
        """What is above 0."""
        return self.put(mps.MPSCNNNeuronReLUNode(self.x))


def repeated(node: Any, *axes: str) -> Any:
    """Arithmetic whose secondary image serves whole axes."""
    for axis in axes:
        setattr(node, f"secondary_stride_in_{axis}", 0)
    return node


def _unet(kind: str, depth: int, side: int, *, is_transposed: bool) -> Moved:
    """Down, each level with twice the channels, and up again with what was there before beside it."""
    net, skips, width = Layers(3), list[tuple[Any, int]](), 8
    for level in range(depth):
        net.convolution(width << level)
        net.normalized(kind)
        skips.append((net.relu(), net.channels))
        pooled = mps.MPSCNNPoolingMaxNode(net.x, 2, 2)
        net.put(pooled, policy=mps.MPSNNDefaultPadding.tensorflow_valid())
    net.convolution(width << depth)
    for image, channels in reversed(skips):
        if is_transposed:
            net.transposed(channels)
        else:
            net.put(mps.MPSCNNUpsamplingBilinearNode(net.x, 2, 2))
        both = net.channels + channels
        net.put(mps.MPSNNConcatenationNode([net.x, image]), both)
        net.convolution(channels)
        net.relu()
    net.convolution(4, 1)
    return Moved(_graph(net.put(mps.MPSCNNSoftMaxNode(net.x))), [(side, side, 3)])


def _residual(kind: str, groups: int) -> Moved:
    """Three blocks of a bottleneck in groups, with a projection where the size changes."""
    net = Layers(3)
    net.convolution(16)
    for stride, width in ((1, 16), (2, 32), (1, 32)):
        short, channels = net.x, net.channels
        net.normalized(kind)
        net.relu()
        net.convolution(width // 2, 1)
        net.convolution(width // 2, 3, stride, groups)
        long = net.convolution(width, 1)
        if channels != width:
            net.x, net.channels = short, channels
            short = net.convolution(width, 1, stride)
        net.put(mps.MPSNNAdditionNode(long, short), width)
    net.put(mps.MPSCNNPoolingAverageNode(net.x, 8, 8), policy=mps.MPSNNDefaultPadding.tensorflow_valid())
    source = net.source(10, 1, 1)
    return Moved(_graph(net.put(mps.MPSCNNFullyConnectedNode(net.x, source))), [(16, 16, 3)])


def _inverted() -> Moved:
    """Inverted residuals, with a gate a channel, and two filters a channel at the end."""
    net = Layers(4)
    for stride in (1, 2):
        short = net.x
        net.convolution(16, 1)
        net.put(mps.MPSCNNNeuronReLUNNode(net.x, 0.0, 6.0))
        wide = net.depthwise(5, stride)
        side = 12 // stride
        net.put(mps.MPSCNNPoolingAverageNode(net.x, side, side), policy=mps.MPSNNDefaultPadding.tensorflow_valid())
        net.convolution(4, 1)
        net.relu()
        net.convolution(16, 1)
        gate = net.put(mps.MPSCNNNeuronHardSigmoidNode(net.x, 1 / 6, 0.5))
        net.put(repeated(mps.MPSNNMultiplicationNode(wide, gate), "pixels_x", "pixels_y"))
        long = net.convolution(4, 1)
        if stride == 1:
            net.put(mps.MPSNNAdditionNode(long, short))
    return Moved(_graph(net.depthwise(3, 1, 2)), [(12, 12, 4)])


def _decoder() -> Moved:
    """Transposed convolutions with strides, in groups, and with pads of one side."""
    net = Layers(8)
    net.transposed(8, 4, 2, mps.ExplicitPadding(1, 1, 1, 1))
    net.put(mps.MPSCNNNeuronELUNode(net.x, 0.7))
    net.transposed(4, 3, 3)
    net.put(mps.MPSCNNNeuronTanHNode(net.x, 1.5, 0.5))
    net.transposed(3, 3, 2, mps.ExplicitPadding(1, 0, 0, 1))
    return Moved(_graph(net.put(mps.MPSCNNNeuronSigmoidNode(net.x))), [(4, 5, 8)])


def _atrous() -> Moved:
    """Convolutions with gaps of three lengths over one image, and the mean of it, beside each other."""
    net = Layers(6)
    start, channels, parts = net.convolution(8), net.channels, list[Any]()
    for rate in (1, 2, 4):
        net.x, net.channels = start, channels
        parts.append(net.convolution(8, 3, rate=rate))
    net.put(mps.MPSNNConcatenationNode(parts), 24)
    net.put(mps.MPSCNNNeuronSoftPlusNode(net.x, 1.0, 1.0))
    return Moved(_graph(net.convolution(5, 1)), [(15, 14, 6)])


def _uneven() -> Moved:
    """Pads of one side alone, windows that are not square, and every pooling."""
    net = Layers(4)
    net.convolution(8, 3, 2, policy=mps.ExplicitPadding(2, 0, 1, 1))
    source = net.source(8, 1, 5)
    net.put(mps.MPSCNNConvolutionNode(net.x, source), policy=mps.ExplicitPadding(0, 4, 0, 0))
    net.put(mps.MPSCNNNeuronPReLUNode(net.x, np.linspace(-0.5, 0.5, 8)))
    for kind in (mps.MPSCNNPoolingMaxNode, mps.MPSCNNPoolingAverageNode, mps.MPSCNNPoolingL2NormNode):
        net.put(kind(net.x, 3, 1), policy=SAME)
    net.put(mps.MPSCNNCrossChannelNormalizationNode(net.x, 3))
    return Moved(_graph(net.put(mps.MPSCNNUpsamplingNearestNode(net.x, 2, 3))), [(11, 13, 4)])


def _two_ways() -> Moved:
    """Two images in, and two out: their scaled difference, and the larger features of one."""
    left, right = Layers(3, "left", 1), Layers(3, "right", 2)
    features = [net.convolution(8, 3, 2) for net in (left, right)]
    difference = mps.MPSNNSubtractionNode(*features)
    difference.primary_scale, difference.secondary_scale, difference.bias = 0.5, 2.0, 0.25
    difference.label = "difference"
    larger = right.put(mps.MPSCNNNeuronReLUNode(right.x, 0.1))
    return Moved(_graph(difference.result_image, larger), [(9, 9, 3), (9, 9, 3)])


def _sums() -> Moved:
    """Reductions, arithmetic of images of several sizes, pads with a number, and sizes that are no multiples."""
    net = Layers(4)
    net.convolution(8, 3)
    mean = mps.MPSNNReductionSpatialMeanNode(net.x).result_image
    quotient = mps.MPSNNDivisionNode(net.x, mps.MPSCNNNeuronExponentialNode(mean).result_image)
    net.put(repeated(quotient, "pixels_x", "pixels_y"))
    most = mps.MPSNNReductionFeatureChannelsMaxNode(net.x).result_image
    product = mps.MPSNNMultiplicationNode(net.x, mps.MPSCNNNeuronSigmoidNode(most).result_image)
    net.put(repeated(product, "feature_channels"))
    sides = mps.MPSImageCoordinate(1, 0, 0), mps.MPSImageCoordinate(0, 2, 0)
    pad = mps.MPSNNPadNode(net.x, *sides, mps.MPSImageEdgeMode.CONSTANT)
    pad.fill_value = 0.5
    net.put(pad)
    net.put(mps.MPSNNBilinearScaleNode(net.x, mps.MTLSize(13, 7, 1)))
    return Moved(_graph(net.put(mps.MPSCNNLogSoftMaxNode(net.x))), [(6, 5, 4)])


# --- all of them ------------------------------------------------------------------------------------------------------

_SIDES = {"sample": 28, "lenet": 28, "tiny": 32, "mobilenet": 64, "resnet18": 64, "resnet50": 64, "inception": 64}
NETWORKS: Mapping[str, Callable[[], Moved]] = {
    **{f"--network {name}": partial(_by_name, name, side) for name, side in _SIDES.items()},
    **{name: partial(_trained, name) for name in SHAPES},
    "digits": partial(_example, "digits_by_graph", lambda module: module.DigitNetwork(CPU).inference, (8, 8, 1)),
    "U-Net of an example": partial(_example, "segmentation", lambda module: module.UNet(CPU).inference, (16, 16, 3)),
    "autoencoder": partial(_example, "autoencoder", lambda module: module.Autoencoder(CPU).inference, (16, 16, 1)),
    "sharpener": partial(_example, "swift_export", lambda module: module.Sharpener(CPU).inference, (12, 12, 1)),
    "style transfer": partial(
        _example, "style_transfer", lambda module: module.Transformer(CPU, filters=8).graph(CPU), (32, 32, 3)
    ),
    "waves": partial(_example, "causal_padding", lambda module: module.WaveNetwork(CPU).inference, (1, 48, 1)),
    "CIFAR speedrun": partial(_example, "cifar_speedrun", _speedrun, (32, 32, 3)),
    "U-Net, transposed": partial(_unet, "batch", 3, 32, is_transposed=True),
    "U-Net, resized": partial(_unet, "instance", 2, 16, is_transposed=False),
    "residual": partial(_residual, "group", 1),
    "residual in groups": partial(_residual, "batch", 4),
    "inverted residual": _inverted,
    "transposed": _decoder,
    "dilated": _atrous,
    "uneven pads": _uneven,
    "two in, two out": _two_ways,
    "reductions": _sums,
}
"""What makes each network, by its name."""
