"""The networks that can be trained by name, each as a function that describes it, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openmps.graph.nodes.pooling import MPSCNNPoolingAverageNode
from openmps.selectors import name_arguments
from openmps.training.topology import Architecture, Description, Value

_KEEP_PROBABILITY = 0.5


def sample(net: Description) -> Value:
    """The network of the framework's best-known sample.

    Convolution 5x5 to 32 channels, ReLU, max pooling 2x2; convolution 5x5 to 64 channels, ReLU, max pooling 2x2; fully
    connected to 1024, ReLU, in training dropout that keeps half; fully connected to the classes. Initial weights are
    uniform from -0.2 to 0.2, biases 0.1.
    """
    x = net.image
    for label, channels in (("conv1", 32), ("conv2", 64)):
        x = net.halved(net.relu(net.convolution(x, label, channels, 5, limit=0.2, bias=0.1)))
    x = net.relu(net.fully_connected(x, "fc1", 1024, limit=0.2, bias=0.1))
    return net.fully_connected(net.dropout(x, _KEEP_PROBABILITY), "fc2", net.classes, limit=0.2, bias=0.1)


def lenet(net: Description) -> Value:
    """LeNet-5 (LeCun and others, 1998), with a softmax at its end.

    Convolution 5x5 to 6 channels, tanh, average pooling 2x2; convolution 5x5 to 16 channels, tanh, average pooling 2x2;
    fully connected to 120 and to 84, tanh behind each; fully connected to the classes. Unlike the original's, all
    convolutions keep the size, so that small images will do, and the second one reads all channels.
    """
    x = net.image
    for label, channels in (("conv1", 6), ("conv2", 16)):
        x = net.convolution(x, label, channels, 5, limit=(3 / (25 * x.channels)) ** 0.5, bias=0.0)
        x = net.halved(net.tanh(x), MPSCNNPoolingAverageNode)
    for label, channels in (("fc1", 120), ("fc2", 84)):
        x = net.tanh(_connected(net, x, label, channels))
    return _connected(net, x, "fc3", net.classes)


def tiny(net: Description) -> Value:
    """A small network that learns in seconds.

    Convolution 3x3 to 8 channels, batch normalization, ReLU, max pooling 2x2; convolution 3x3 to 16 channels, batch
    normalization, ReLU; the mean of all pixels; fully connected to the classes.
    """
    x = net.halved(_unit(net, net.image, "first", 8, 3))
    return _classified(net, _unit(net, x, "second", 16, 3))


_MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Channels and stride of each block, at full width."""


def mobilenet(net: Description, width: float = 1.0) -> Value:
    """MobileNet v1 (Howard and others, 2017).

    Convolution 3x3/2 to 32 channels; 13 blocks of a depthwise convolution 3x3 and a convolution 1x1; batch
    normalization and ReLU6 behind each convolution; the mean of all pixels; fully connected to the classes. ``width``
    multiplies the channels.
    """
    x = net.relu6(_normalized(net, net.image, "stem", round(32 * width), 3, 2))
    for index, (channels, stride) in enumerate(_MOBILENET, 1):
        x = net.depthwise(x, f"depthwise{index}", 3, stride)
        x = net.relu6(net.normalization(x, f"depthwise{index}_norm"))
        x = net.relu6(_normalized(net, x, f"pointwise{index}", round(channels * width), 1))
    return _classified(net, x)


def resnet18(net: Description, width: int = 64) -> Value:
    """ResNet-18 (He and others, 2015): two blocks of two convolutions 3x3 in each of four stages."""
    return _resnet(net, (2, 2, 2, 2), width, is_deep=False)


def resnet50(net: Description, width: int = 64) -> Value:
    """ResNet-50 (He and others, 2015): 3, 4, 6 and 3 blocks of convolutions 1x1, 3x3 (with the stride) and 1x1."""
    return _resnet(net, (3, 4, 6, 3), width, is_deep=True)


def _resnet(net: Description, blocks: tuple[int, ...], width: int, *, is_deep: bool) -> Value:
    """Convolution 7x7/2, max pooling 3x3/2, stages of blocks, the mean of all pixels, fully connected to the classes.

    Batch normalization behind each convolution. A stage doubles the channels of the one before and, but for the first,
    halves the size.
    """
    x = net.max_pooling(_unit(net, net.image, "stem", width, 7, 2), 3, 2)
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _block(net, x, f"stage{stage + 1}_block{block + 1}", width * 2**stage, stride, is_deep=is_deep)
    return _classified(net, x)


def _block(net: Description, x: Value, label: str, channels: int, stride: int, *, is_deep: bool) -> Value:
    """ReLU(x + f(x)), where x is projected by a convolution 1x1 if f changes its shape."""
    if is_deep:
        y = _unit(net, x, f"{label}_1", channels, 1)
        y = _unit(net, y, f"{label}_2", channels, 3, stride)
        y = _normalized(net, y, f"{label}_3", 4 * channels, 1)
    else:
        y = _unit(net, x, f"{label}_1", channels, 3, stride)
        y = _normalized(net, y, f"{label}_2", channels, 3)
    if (x.height, x.width, x.channels) != (y.height, y.width, y.channels):
        x = _normalized(net, x, f"{label}_projection", y.channels, 1, stride)
    return net.relu(net.add(y, x))


def inception(net: Description, width: int = 16) -> Value:
    """A small network of two Inception blocks (Szegedy and others, 2014), with batch normalization.

    Convolution 3x3 to ``width`` channels, max pooling 3x3/2, a block, max pooling 3x3/2, a block of twice as many
    channels, the mean of all pixels, fully connected to the classes.
    """
    x = _unit(net, net.image, "stem", width, 3)
    for block in (1, 2):
        x = _inception_block(net, net.max_pooling(x, 3, 2), f"block{block}", width * block)
    return _classified(net, x)


def _inception_block(net: Description, x: Value, label: str, width: int) -> Value:
    """Branches of 1x1, 1x1 and 3x3, 1x1 and 5x5, max pooling 3x3 and 1x1, side by side in channels."""
    large = _unit(net, _unit(net, x, f"{label}_3x3_reduction", width, 1), f"{label}_3x3", 2 * width, 3)
    larger = _unit(net, _unit(net, x, f"{label}_5x5_reduction", width // 2, 1), f"{label}_5x5", width, 5)
    pooled = _unit(net, net.max_pooling(x, 3, 1), f"{label}_pool", width, 1)
    return net.concatenated(_unit(net, x, f"{label}_1x1", width, 1), large, larger, pooled)


# --- what several have in common --------------------------------------------------------------------------------------


def _normalized(net: Description, x: Value, label: str, channels: int, size: int, stride: int = 1) -> Value:
    """A convolution without biases, and batch normalization."""
    return net.normalization(net.convolution(x, f"{label}_conv", channels, size, stride), f"{label}_norm")


def _unit(net: Description, x: Value, label: str, channels: int, size: int, stride: int = 1) -> Value:
    """A convolution without biases, batch normalization and ReLU."""
    return net.relu(_normalized(net, x, label, channels, size, stride))


def _connected(net: Description, x: Value, label: str, channels: int) -> Value:
    """A fully connected layer, for numbers that are not rectified."""
    return net.fully_connected(x, label, channels, limit=(3 / (x.height * x.width * x.channels)) ** 0.5, bias=0.0)


def _classified(net: Description, x: Value) -> Value:
    """The mean of all pixels, and a fully connected layer to the classes."""
    return _connected(net, net.average(x), "fc", net.classes)


@name_arguments
@dataclass(frozen=True)
class NetworkRow:
    """A network that can be trained by name."""

    describe: Architecture
    smallest_side: int
    """Pixels that images must have at least: a smaller one leaves poolings and strides nothing to choose from."""


NETWORKS: Mapping[str, NetworkRow] = {
    "sample": NetworkRow(sample, 4),
    "tiny": NetworkRow(tiny, 4),
    "lenet": NetworkRow(lenet, 4),
    "mobilenet": NetworkRow(mobilenet, 8),
    "resnet18": NetworkRow(resnet18, 8),
    "resnet50": NetworkRow(resnet50, 8),
    "inception": NetworkRow(inception, 8),
}
"""The networks by name."""
