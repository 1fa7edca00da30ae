"""Small networks of graph nodes, their data sources, and the same networks in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from encoding import Bench, finish, numbers
from openmps.core.image.image import MPSImage
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.neuron import MPSCNNNeuronLinearNode, MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import Handle, MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.loss import MPSCNNLossDataDescriptor, MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.types import (
    MPSCNNLossType,
    MPSCNNReductionType,
    MPSDataLayout,
    MPSDataType,
    MPSImageFeatureChannelFormat,
    MPSNNPaddingMethod,
    MPSNNTrainingStyle,
    MTLSize,
)

SAME = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
POOL = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling()
Array = np.ndarray
Format = MPSImageFeatureChannelFormat


class Weights:
    """A data source over arrays, ``[O, rows, columns, I]`` and ``[O]``, that counts how it is used."""

    def __init__(self, weights: Array, biases: Array | None = None, label: str | None = None) -> None:
        outputs, rows, columns, inputs = weights.shape
        self.made = MPSCNNConvolutionDescriptor(columns, rows, inputs, outputs)
        self.array = weights.astype(np.float32)
        self.bias = None if biases is None else biases.astype(np.float32)
        self.name = label
        self.loads = self.purges = self.reads = 0
        self.loaded = False

    @classmethod
    def of(cls, rng: np.random.Generator, shape: Sequence[int], label: str | None = None, **options: Any) -> Weights:
        """Random numbers that keep a layer's results about as large as its source."""
        scale = 1.0 / np.sqrt(np.prod(shape[1:]))
        biases = rng.normal(0.0, 0.1, shape[0])
        return cls(rng.normal(0.0, scale, tuple(shape)), biases, label=label, **options)

    def load(self) -> bool:
        self.loads += 1
        self.loaded = True
        return True

    def purge(self) -> None:
        self.purges += 1
        self.loaded = False

    def label(self) -> str | None:
        return self.name

    def data_type(self) -> MPSDataType:
        self._check()
        return MPSDataType.FLOAT32

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        self._check()
        return self.made

    def weights(self) -> Array:
        self._check()
        self.reads += 1
        return self.array

    def bias_terms(self) -> Array | None:
        self._check()
        return self.bias

    def _check(self) -> None:
        """Nothing but the label is there before load and after purge (MPSCNNConvolution.h)."""
        if not self.loaded:
            raise RuntimeError("the data source was used without load()")


MakeWeights = Callable[..., Any]


def labels(bench: Bench, targets: Array, weights: Array | None = None, channels: int | None = None) -> list[Any]:
    """One `MPSCNNLossLabels` for each row of ``[N, C, H, W]`` targets."""
    return [
        MPSCNNLossLabels(
            bench.device,
            _descriptor(targets[index], channels),
            weights_descriptor=None if weights is None else _descriptor(weights[index], channels),
        )
        for index in range(len(targets))
    ]


def _descriptor(values: Array, channels: int | None) -> MPSCNNLossDataDescriptor:
    count, height, width = values.shape
    rows = np.zeros((height, width, channels or count), np.float32)
    rows[..., :count] = values.transpose(1, 2, 0)
    size = MTLSize(width, height, rows.shape[-1])
    return MPSCNNLossDataDescriptor(rows, MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS, size)


def losses(given: Sequence[Any]) -> Array:
    """The losses of labels that were encoded, one an image."""
    return np.array([float(each.loss_image().numpy().item()) for each in given])


def one_hot(classes: Array, count: int) -> Array:
    return np.eye(count)[classes][:, :, None, None]


def softmax_loss(source: MPSNNImageNode, weight: float = 1.0) -> MPSCNNLossNode:
    descriptor = MPSCNNLossDescriptor(MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, MPSCNNReductionType.SUM)
    descriptor.weight = weight
    return MPSCNNLossNode(source, descriptor)


def convolution(source: MPSNNImageNode, weights: Any) -> MPSCNNConvolutionNode:
    node = MPSCNNConvolutionNode(source, weights)
    node.padding_policy = SAME
    return node


def scaled(source: MPSNNImageNode, factor: float) -> MPSCNNNeuronLinearNode:
    """The image times a number."""
    return MPSCNNNeuronLinearNode(source, factor)


def item(image: MPSImage) -> float:
    """The number of an image of 1x1x1."""
    return float(image.numpy().item())


def encode_numbers(bench: Bench, graph: MPSNNGraph, *values: float, **options: Any) -> Any:
    """The result of one encode of images of 1x1x1; `options` go to the encode."""
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.filled((1, 1, 1, 1), value) for value in values], **options)
    finish(command_buffer)
    return result


# --- the same in torch ------------------------------------------------------------------------------------------------

Parameters = dict[str, tuple[torch.Tensor, torch.Tensor]]


def torch_convolution(x: torch.Tensor, parameters: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Odd kernels, same size."""
    weights, biases = parameters
    return F.conv2d(x, weights, biases, padding=(weights.shape[2] // 2, weights.shape[3] // 2))


def torch_fully_connected(x: torch.Tensor, parameters: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    weights, biases = parameters
    return F.conv2d(x, weights, biases)


def torch_softmax_loss(x: torch.Tensor, targets: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """One number an image."""
    return -weight * (torch.log_softmax(x, 1) * targets).sum((1, 2, 3))


@dataclass
class Network:
    """Nodes up to a loss, and a torch function from the same parameters to the losses of the images."""

    image: MPSNNImageNode
    loss: MPSNNFilterNode
    sources: dict[str, Any]
    shape: tuple[int, int, int]
    classes: int
    torch_losses: Callable[[torch.Tensor, torch.Tensor, Parameters], torch.Tensor]
    nodes: dict[str, MPSNNFilterNode] = field(default_factory=dict)

    def batch(self, rng: np.random.Generator, images: int) -> tuple[Array, Array]:
        """Random images and targets."""
        return rng.random((images, *self.shape)), one_hot(rng.integers(0, self.classes, images), self.classes)

    def torch(self, images: Array, targets: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Losses, the gradient of the images, and of each layer's weights (OHWI, flat) and biases together: float64."""
        x = torch.tensor(images, dtype=torch.float64, requires_grad=True)
        parameters: Parameters = {}
        for name, source in self.sources.items():
            weights = torch.tensor(source.array, dtype=torch.float64).permute(0, 3, 1, 2).contiguous()
            biases = torch.tensor(source.bias, dtype=torch.float64)
            parameters[name] = (weights.requires_grad_(), biases.requires_grad_())
        result = self.torch_losses(x, torch.tensor(targets, dtype=torch.float64), parameters)
        result.sum().backward()
        gradients = {
            name: np.concatenate([weights.grad.permute(0, 2, 3, 1).reshape(-1).numpy(), biases.grad.numpy()])
            for name, (weights, biases) in parameters.items()
        }
        return result.detach().numpy(), x.grad.numpy(), gradients


def digits(
    rng: np.random.Generator, make: MakeWeights = Weights.of, *, keep: float | None = None, weight: float = 1.0
) -> Network:
    """The digit network of the framework's training sample, smaller: 12x12 pixels, 4, 8, 16 and 10 channels."""
    image = MPSNNImageNode(Handle("image"))
    sources = {
        "conv1": make(rng, (4, 5, 5, 1), "conv1"),
        "conv2": make(rng, (8, 5, 5, 4), "conv2"),
        "fc1": make(rng, (16, 3, 3, 8), "fc1"),
        "fc2": make(rng, (10, 1, 1, 16), "fc2"),
    }
    nodes: dict[str, MPSNNFilterNode] = {}
    now = image
    for index in (1, 2):
        nodes[f"conv{index}"] = convolution(now, sources[f"conv{index}"])
        nodes[f"relu{index}"] = MPSCNNNeuronReLUNode(nodes[f"conv{index}"].result_image)
        nodes[f"pool{index}"] = MPSCNNPoolingMaxNode(nodes[f"relu{index}"].result_image, 2, 2)
        nodes[f"pool{index}"].padding_policy = POOL
        now = nodes[f"pool{index}"].result_image
    nodes["fc1"] = MPSCNNFullyConnectedNode(now, sources["fc1"])
    nodes["relu3"] = MPSCNNNeuronReLUNode(nodes["fc1"].result_image)
    now = nodes["relu3"].result_image
    if keep is not None:
        nodes["dropout"] = MPSCNNDropoutNode(now, keep, 1)
        now = nodes["dropout"].result_image
    nodes["fc2"] = MPSCNNFullyConnectedNode(now, sources["fc2"])
    loss = softmax_loss(nodes["fc2"].result_image, weight)

    def torch_losses(x: torch.Tensor, targets: torch.Tensor, p: Parameters) -> torch.Tensor:
        for name in ("conv1", "conv2"):
            x = F.max_pool2d(torch_convolution(x, p[name]).relu(), 2)
        x = torch_fully_connected(x, p["fc1"]).relu()
        return torch_softmax_loss(torch_fully_connected(x, p["fc2"]), targets, weight)

    return Network(image, loss, sources, (1, 12, 12), 10, torch_losses, nodes)


def residual(rng: np.random.Generator, make: MakeWeights = Weights.of) -> Network:
    """x = relu(conv0); relu(x + conv2(relu(conv1(x)))); fully connected."""
    image = MPSNNImageNode()
    shapes = {"conv0": (4, 3, 3, 3), "conv1": (4, 3, 3, 4), "conv2": (4, 3, 3, 4), "fc": (5, 6, 6, 4)}
    sources = {name: make(rng, shape, name) for name, shape in shapes.items()}
    x = MPSCNNNeuronReLUNode(convolution(image, sources["conv0"]).result_image).result_image
    branch = MPSCNNNeuronReLUNode(convolution(x, sources["conv1"]).result_image).result_image
    branch = convolution(branch, sources["conv2"]).result_image
    total = MPSCNNNeuronReLUNode(MPSNNAdditionNode(x, branch).result_image).result_image
    loss = softmax_loss(MPSCNNFullyConnectedNode(total, sources["fc"]).result_image)

    def torch_losses(x: torch.Tensor, targets: torch.Tensor, p: Parameters) -> torch.Tensor:
        x = torch_convolution(x, p["conv0"]).relu()
        x = (x + torch_convolution(torch_convolution(x, p["conv1"]).relu(), p["conv2"])).relu()
        return torch_softmax_loss(torch_fully_connected(x, p["fc"]), targets)

    return Network(image, loss, sources, (3, 6, 6), 5, torch_losses)


def concatenated(rng: np.random.Generator, make: MakeWeights = Weights.of) -> Network:
    """Two convolutions of the image, 7 and 11 channels, side by side in an image of 20 channels; fully connected."""
    image = MPSNNImageNode()
    shapes = {"left": (7, 3, 3, 2), "right": (11, 1, 1, 2), "fc": (5, 4, 4, 20)}
    sources = {name: make(rng, shape, name) for name, shape in shapes.items()}
    parts = [convolution(image, sources[name]).result_image for name in ("left", "right")]
    both = MPSNNConcatenationNode(parts)
    loss = softmax_loss(MPSCNNFullyConnectedNode(both.result_image, sources["fc"]).result_image)

    def torch_losses(x: torch.Tensor, targets: torch.Tensor, p: Parameters) -> torch.Tensor:
        left, right = torch_convolution(x, p["left"]), torch_convolution(x, p["right"])
        gap = torch.zeros_like(left[:, :1])
        whole = torch.cat([left, gap, right, gap], 1)
        return torch_softmax_loss(torch_fully_connected(whole, p["fc"]), targets)

    return Network(image, loss, sources, (2, 4, 4), 5, torch_losses, {"concatenation": both})


def diamond(rng: np.random.Generator, make: MakeWeights = Weights.of) -> Network:
    """An image that four filters read, one of them twice: (a(x) + b(x)) + (x + x), for x = relu(stem)."""
    image = MPSNNImageNode()
    shapes = {"stem": (4, 3, 3, 2), "a": (4, 3, 3, 4), "b": (4, 1, 1, 4), "fc": (3, 5, 5, 4)}
    sources = {name: make(rng, shape, name) for name, shape in shapes.items()}
    stem = MPSCNNNeuronReLUNode(convolution(image, sources["stem"]).result_image)
    x = stem.result_image
    branches = MPSNNAdditionNode(convolution(x, sources["a"]).result_image, convolution(x, sources["b"]).result_image)
    twice = MPSNNAdditionNode(x, x)
    total = MPSNNAdditionNode(branches.result_image, twice.result_image)
    loss = softmax_loss(MPSCNNFullyConnectedNode(total.result_image, sources["fc"]).result_image)

    def torch_losses(x: torch.Tensor, targets: torch.Tensor, p: Parameters) -> torch.Tensor:
        x = torch_convolution(x, p["stem"]).relu()
        x = torch_convolution(x, p["a"]) + torch_convolution(x, p["b"]) + 2.0 * x
        return torch_softmax_loss(torch_fully_connected(x, p["fc"]), targets)

    return Network(image, loss, sources, (2, 5, 5), 3, torch_losses, {"stem": stem})


def shared(rng: np.random.Generator, make: MakeWeights = Weights.of) -> Network:
    """One data source in two layers, one behind the other."""
    image = MPSNNImageNode()
    sources = {"both": make(rng, (3, 3, 3, 3), "both"), "fc": make(rng, (4, 4, 4, 3), "fc")}
    first = convolution(image, sources["both"])
    second = convolution(MPSCNNNeuronReLUNode(first.result_image).result_image, sources["both"])
    loss = softmax_loss(MPSCNNFullyConnectedNode(second.result_image, sources["fc"]).result_image)

    def torch_losses(x: torch.Tensor, targets: torch.Tensor, p: Parameters) -> torch.Tensor:
        x = torch_convolution(torch_convolution(x, p["both"]).relu(), p["both"])
        return torch_softmax_loss(torch_fully_connected(x, p["fc"]), targets)

    return Network(image, loss, sources, (3, 4, 4), 4, torch_losses, {"first": first, "second": second})


NETWORKS: dict[str, Callable[..., Network]] = {
    "digits": digits,
    "residual": residual,
    "concatenated": concatenated,
    "diamond": diamond,
    "shared": shared,
}


# --- one pass through a graph -----------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one encode of a training graph gave: losses, the gradient of the image, gradients of weights and biases."""

    losses: Array
    image: Array | None
    gradients: dict[str, Array]


def training_graph(
    bench: Bench,
    network: Network,
    *,
    style: MPSNNTrainingStyle = MPSNNTrainingStyle.UPDATE_DEVICE_NONE,
    needed: bool = True,
    export: bool = True,
    image_format: Format = Format.FLOAT32,
    gradient_format: Format | None = None,
) -> MPSNNGraph:
    """The graph that trains a network, with the gradient states of its convolutions exported."""

    def handler(gradient: Any, forward: Any, source: Any, incoming: Any) -> None:
        if hasattr(gradient, "training_style"):
            gradient.training_style = style
            forward.convolution_gradient_state.export_from_graph = export
        if gradient_format is not None:
            gradient.result_image.format = gradient_format

    termini = network.loss.training_graph(None, handler)
    assert termini is not None and len(termini) == 1
    graph = MPSNNGraph(bench.device, termini[0].result_image, needed)
    graph.format = image_format
    return graph


def run(bench: Bench, network: Network, graph: MPSNNGraph, images: Array, targets: Array) -> Outcome:
    """One encode of a batch."""
    made: list[Any] = []
    given = labels(bench, targets)
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(images)], [given], destination_states=made)
    finish(command_buffer)
    return Outcome(losses(given), None if result is None else numbers(result), named_gradients(made))


def named_gradients(made: Sequence[Any]) -> dict[str, Array]:
    """Gradients of weights and biases by the label of the convolution; layers with one label are added up."""
    gradients: dict[str, Array] = {}
    for batch in made:
        state = batch[0]
        buffers = (state.gradient_for_weights, state.gradient_for_biases)
        values = np.concatenate([buffer.tensor(torch.float32).cpu().numpy() for buffer in buffers])
        name = state.convolution.label
        gradients[name] = values if name not in gradients else gradients[name] + values
    return gradients
