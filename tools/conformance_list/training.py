"""Cases of training graphs: layers up to a loss over a batch, in the CPU's style, which shows gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import openmps as mps
from conformance_list.describe import described, drawn, listed
from conformance_list.nodes import FLOAT32

Loss, Reduction = mps.MPSCNNLossType, mps.MPSCNNReductionType
Entry = dict[str, Any]
FAMILY = "training graph"
READ = ("result", "loss", "gradientForWeights", "gradientForBiases")
_ON_CPU = int(mps.MPSNNTrainingStyle.UPDATE_DEVICE_CPU)


def _layer(before: Entry, inputs: int, outputs: int, what: str, side: int = 3, stride: int = 1, **more: Any) -> Entry:
    """A convolution, or another layer ``kind`` with weights."""
    kind = more.pop("kind", "MPSCNNConvolutionNode")
    descriptor: Entry = {
        "class": "MPSCNNConvolutionDescriptor",
        "arguments": {"kernelWidth": side, "kernelHeight": side, "inputFeatureChannels": inputs,
                      "outputFeatureChannels": outputs},
    }  # fmt: skip
    properties = {"strideInPixelsX": stride, "strideInPixelsY": stride} if stride > 1 else {}
    if properties | more:
        descriptor["properties"] = properties | more
    weights = drawn((outputs, side, side, inputs // more.get("groups", 1)), f"{what} weights")
    source = {"descriptor": descriptor, "weights": weights, "biases": drawn((outputs,), f"{what} biases")}
    return {"class": kind, "arguments": {"source": before, "weights": source}, "properties": {"trainingStyle": _ON_CPU}}


def _pass(kind: str, before: Entry, **arguments: Any) -> Entry:
    return {"class": kind, "arguments": {"source": before, **arguments}}


def _case(
    name: str, layers: Sequence[Entry], loss: Loss, reduction: Reduction, shapes: Sequence[Sequence[int]]
) -> Entry:
    """``shapes`` are those of source, labels ([images, height, width, channels] both) and loss image.

    Labels of soft-max are of one class a pixel: what others mean is a question by itself.
    """
    source, labels, size = shapes
    descriptor = described(mps.MPSCNNLossDescriptor(loss, reduction))
    end = {"class": "MPSCNNLossNode",
           "arguments": {"source": {"node": len(layers) - 1}, "lossDescriptor": descriptor}}  # fmt: skip
    nodes = [*layers, end]
    return {
        "name": f"training: {name}", "family": FAMILY, "kind": "training", "classes": [each["class"] for each in nodes],
        "nodes": nodes, "format": FLOAT32, "sources": [drawn(source, f"{name} source")],
        "labels": _labels(name, loss, labels), "lossImageSize": [*size], "read": [*READ],
    }  # fmt: skip


_SQUARES = Loss.MEAN_SQUARED_ERROR


def _boxes(layer: Entry) -> Entry:
    """A YOLO loss of two anchors and two classes behind a layer, over two images of 3 x 2 cells."""
    kinds = _SQUARES, Loss.HUBER, Loss.SIGMOID_CROSS_ENTROPY, Loss.SOFT_MAX_CROSS_ENTROPY
    descriptor = mps.MPSCNNYOLOLossDescriptor(*kinds, Reduction.SUM, [(1.0, 2.0), (0.5, 0.75)])
    made = _case("a convolution, boxes", [layer], _SQUARES, Reduction.SUM, ((2, 2, 3, 3), (2, 2, 3, 14), (1, 1, 1)))
    arguments = {"source": {"node": 0}, "lossDescriptor": described(descriptor)}
    end = {"class": "MPSCNNYOLOLossNode", "arguments": arguments}
    return {**made, "nodes": [layer, end], "classes": [layer["class"], end["class"]]}


def _labels(name: str, loss: Loss, shape: Sequence[int]) -> Entry:
    if loss is not Loss.SOFT_MAX_CROSS_ENTROPY:
        return drawn(shape, f"{name} labels", "unit")
    *pixels, classes = shape
    return listed(np.eye(classes)[np.arange(np.prod(pixels)) ** 2 % classes].reshape(shape))


def training_cases() -> Iterator[Entry]:
    """Losses, layers before layers, images that two layers read, and batches."""
    source, squares = {"source": 0}, Loss.MEAN_SQUARED_ERROR
    wide = (2, 5, 6, 3), (2, 5, 6, 4), (6, 5, 4)
    one = _layer(source, 3, 4, "one")
    yield _case("a convolution, squares", [one], squares, Reduction.NONE, wide)
    yield _case("a convolution, their mean", [one], squares, Reduction.MEAN, (*wide[:2], (1, 1, 1)))
    yield _case("a convolution, soft-max cross entropy", [one], Loss.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM,
                (*wide[:2], (1, 1, 1)))  # fmt: skip
    grouped = _layer(source, 8, 8, "groups", groups=2, stride=2)
    yield _case("a convolution, two groups and a stride", [grouped], squares, Reduction.SUM,
                ((3, 6, 6, 8), (3, 3, 3, 8), (1, 1, 1)))  # fmt: skip
    connected = _layer(source, 3, 5, "connected", 4, kind="MPSCNNFullyConnectedNode")
    yield _case("a fully connected layer, sigmoid cross entropy", [connected], Loss.SIGMOID_CROSS_ENTROPY,
                Reduction.SUM, ((3, 4, 4, 3), (3, 1, 1, 5), (1, 1, 1)))  # fmt: skip
    first = _layer(source, 3, 6, "first")
    deep = [first, _pass("MPSCNNNeuronReLUNode", {"node": 0}),
            _pass("MPSCNNPoolingMaxNode", {"node": 1}, filterSize=2, stride=2),
            _layer({"node": 2}, 6, 4, "second")]  # fmt: skip
    yield _case("two convolutions, ReLU and pooling between", deep, squares, Reduction.SUM,
                ((2, 6, 8, 3), (2, 3, 4, 4), (1, 1, 1)))  # fmt: skip
    sums = {"class": "MPSNNAdditionNode", "arguments": {"leftSource": {"node": 0}, "rightSource": {"node": 1}}}
    yield _boxes(_layer(source, 3, 14, "boxes", 1))
    residual = [_layer(source, 3, 4, "trunk"), _layer({"node": 0}, 4, 4, "branch"), sums]
    yield _case("a convolution that two nodes read", residual, squares, Reduction.SUM, (*wide[:2], (1, 1, 1)))
