"""For each convention with several choices: what is asked, and the answer of each choice, from the formulas by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import openmps as mps
from encoding import Bench, finish
from mac_facts.fact import DEVICE, image
from networks import Weights
from samples.convolution import ArraySource

Loss, Reduction, Method = mps.MPSCNNLossType, mps.MPSCNNReductionType, mps.MPSNNPaddingMethod
Node = mps.MPSNNImageNode
FIVE, EIGHT, NINE, TEN = (image(np.arange(1, count + 1), width=count) for count in (5, 8, 9, 10))


class Network(NamedTuple):
    """A graph that depends on a convention: the node that ends it, and what its sources are."""

    make: Callable[..., Any]
    """The last filter node, of an image node for each source."""
    sources: Sequence[mps.MPSImage]


class Case(NamedTuple):
    """A convention, asked."""

    answers: Mapping[str, Any]
    ask: Callable[[], Any]
    """Of kernels, or of a graph where there is no kernel to ask."""
    network: Network | None = None
    """A graph whose result is the answer."""


def listed(values: Any) -> list[float]:
    """Numbers in a row, to the digits that the answers are written with."""
    return [round(float(value), 4) for value in np.asarray(values, np.float64).reshape(-1)]


def encoded(kernel: Any, *sources: Any, **more: Any) -> Any:
    """What an encode returns, in memory that can be read, once it is done."""
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    command_buffer = Bench(DEVICE).command_buffer()
    result = kernel.encode(command_buffer, *sources, **more)
    finish(command_buffer)
    return result


def graph_of(network: Network) -> mps.MPSNNGraph:
    """A Float32 graph."""
    nodes = [Node(mps.Handle(f"source {place}")) for place in range(len(network.sources))]
    graph = mps.MPSNNGraph(DEVICE, network.make(*nodes).result_image)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    return graph


# --- losses -----------------------------------------------------------------------------------------------------------


def _descriptor(kind: Loss, reduction: Reduction = Reduction.SUM, **more: Any) -> mps.MPSCNNLossDescriptor:
    found = mps.MPSCNNLossDescriptor(kind, reduction)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def _lost(descriptor: Any, y: Any, t: Any, weights: Any = None) -> tuple[list[float], list[float]]:
    """Loss and gradient of MPSCNNLoss."""
    y, t = np.asarray(y, np.float32), np.asarray(t, np.float32)
    size = mps.MTLSize(y.shape[1], y.shape[0], y.shape[2])
    data = mps.MPSCNNLossDataDescriptor(t, size=size)
    of_weights = None if weights is None else mps.MPSCNNLossDataDescriptor(np.asarray(weights, np.float32), size=size)
    labels = mps.MPSCNNLossLabels(DEVICE, data, loss_image_size=mps.MTLSize(1, 1, 1), weights_descriptor=of_weights)
    gradient = encoded(mps.MPSCNNLoss(DEVICE, descriptor), image(y), labels)
    return listed(labels.loss_image().numpy()), listed(gradient.numpy())


def _mean_gradient() -> list[float]:
    kernel = mps.MPSNNLossGradient(DEVICE, _descriptor(Loss.MEAN_SQUARED_ERROR, Reduction.MEAN))
    y = image([[[1, 2], [3, 4]]])
    return listed(encoded(kernel, image([[[1]]]), y, image(np.zeros((1, 2, 2)))).numpy())


def _across_batch() -> list[float]:
    kernel = mps.MPSNNForwardLoss(
        DEVICE, _descriptor(Loss.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, reduce_across_batch=True)
    )
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    one_hot = np.zeros((1, 2, 3))
    one_hot[..., 1] = 1
    batches = [mps.MPSImageBatch([image(each), image(each)]) for each in (np.zeros((1, 2, 3)), one_hot)]
    command_buffer = Bench(DEVICE).command_buffer()
    made = kernel.encode_batch(command_buffer, *batches)
    finish(command_buffer)
    return listed([each.numpy() for each in made])


# --- kernels ----------------------------------------------------------------------------------------------------------


def _reshaped() -> list[float]:
    """Two pixels in one, and the gradient back."""
    kernel, source = mps.MPSNNReshape(DEVICE), image([[[1, 2], [3, 4]]])
    size = {"reshaped_width": 1, "reshaped_height": 1, "reshaped_feature_channels": 4}
    made, state = encoded(kernel, source, destination_state_is_temporary=False, **size)
    back = encoded(mps.MPSNNReshapeGradient(DEVICE), image([[[1, 2, 3, 4]]]), source, state)
    return listed(made.numpy()) + listed(back.numpy())


def _masks_are_equal() -> bool:
    kernel, ones = mps.MPSCNNDropout(DEVICE, keep_probability=0.5, seed=1), image(np.ones((8, 8, 4)))
    first, second = (encoded(kernel, ones).numpy() for _ in range(2))
    return bool(np.array_equal(first, second))


def _ties() -> list[float]:
    equal = image(np.full((1, 1, 4), 7.0))
    kinds = mps.MPSNNReduceFeatureChannelsArgumentMin, mps.MPSNNReduceFeatureChannelsArgumentMax
    return [float(encoded(kind(DEVICE), equal).numpy().item()) for kind in kinds]


def _weighted() -> list[float]:
    features, weights = image([[[1, 2, 3, 4], [5, 6, 7, 8]]]), image([[[1, 0, 1, 0], [1, 0, 1, 0]]])
    return listed(encoded(mps.MPSNNReduceFeatureChannelsAndWeightsMean(DEVICE), features, weights).numpy())


def _convolution() -> Weights:
    return Weights(np.array([1, 10, 100], np.float32).reshape(1, 1, 3, 1))


def _aligned() -> list[float]:
    kernel = mps.MPSCNNConvolution(DEVICE, weights=_convolution())
    kernel.padding = mps.MPSNNDefaultPadding(Method.SIZE_SAME | Method.ALIGN_TOP_LEFT)
    return listed(encoded(kernel, FIVE).numpy())


def _aligned_node(source: Any) -> Any:
    node = mps.MPSCNNConvolutionNode(source, _convolution())
    node.padding_policy = mps.MPSNNDefaultPadding(Method.SIZE_SAME | Method.ALIGN_TOP_LEFT)
    return mps.MPSCNNNeuronReLUNode(node.result_image, 0.0)  # which is fused


def _unclamped() -> list[float]:
    kernel = mps.MPSCNNAdd(DEVICE)
    kernel.maximum_value = 5.0
    first = image([1, 4], width=2)
    _, state = encoded(kernel, first, image([2, 3], width=2), destination_state_is_temporary=False)
    return listed(encoded(mps.MPSCNNAddGradient(DEVICE), image([1, 1], width=2), first, state).numpy())


_VALID = mps.MPSNNDefaultPadding(Method.SIZE_VALID_ONLY | Method.ADD_REMAINDER_TO_BOTTOM_RIGHT)


def _cropped() -> list[float]:
    kernel = mps.MPSCNNPoolingMax(DEVICE, 3, 1, 2, 1)
    kernel.padding = _VALID
    return listed(encoded(kernel, EIGHT).numpy())


def _cropped_node(source: Any) -> Any:
    node = mps.MPSCNNPoolingMaxNode(source, kernel_width=3, kernel_height=1, stride_in_pixels_x=2, stride_in_pixels_y=1)
    node.padding_policy = _VALID
    return node


def _preset(make: Callable[[], Any], source: mps.MPSImage, stride: int) -> tuple[int, list[float]]:
    """The method, and averages of 3."""
    kernel = mps.MPSCNNPoolingAverage(DEVICE, 3, 1, stride, 1)
    kernel.padding = make()
    return int(kernel.padding.padding_method()), listed(encoded(kernel, source).numpy())


_EDGES = mps.MPSNNDefaultPadding(Method.SIZE_SAME | Method.EXCLUDE_EDGES)
_ONES = image(np.ones(4), width=4)


def _edges() -> list[float]:
    kernel = mps.MPSCNNPoolingAverage(DEVICE, 3, 1, 1, 1)
    kernel.padding = _EDGES
    return listed(encoded(kernel, _ONES).numpy())


def _edges_node(source: Any) -> Any:
    node = mps.MPSCNNPoolingAverageNode(
        source, kernel_width=3, kernel_height=1, stride_in_pixels_x=1, stride_in_pixels_y=1
    )
    node.padding_policy = _EDGES
    return node


def _format() -> str:
    source = mps.MPSImage(DEVICE, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.UNORM8, 2, 2, 4))
    return encoded(mps.MPSCNNNeuronReLU(DEVICE, 0.0), source).descriptor().channel_format.name


def _sum_size() -> tuple[int, int]:
    kernel = mps.MPSCNNAdd(DEVICE)
    kernel.primary_stride_in_pixels_x = kernel.primary_stride_in_pixels_y = 0
    made = encoded(kernel, image([1]), image(np.ones(6), width=3))
    return made.width, made.height


def _missing() -> tuple[float, ...]:
    kernel = mps.MPSCNNConvolution(DEVICE, weights=_convolution())
    return kernel.neuron_parameter_a, kernel.neuron_parameter_b, kernel.neuron_parameter_c


def _norms() -> list[float]:
    kernel = mps.MPSCNNPoolingL2Norm(DEVICE, 3, 1)
    kernel.edge_mode = mps.MPSImageEdgeMode.CLAMP
    return listed(encoded(kernel, image([3, 4], width=2)).numpy())


def _region() -> list[float]:
    """The first half of 0 to 4 in three pixels, of the first row."""
    region = mps.MPSRegion(mps.MPSOrigin(0.0, 0.0, 0.0), mps.MPSSize(0.5, 0.0, 1.0))
    kernel = mps.MPSNNCropAndResizeBilinear(DEVICE, 3, 1, 1, [region])
    return listed(encoded(kernel, image(np.arange(5), width=5)).numpy())


def _grid() -> list[float]:
    grid = image([[[-1, 0], [0, 0], [1, 0]]])
    return listed(encoded(mps.MPSNNGridSample(DEVICE), image([10, 20, 30], width=3), grid).numpy())


def _clamped_gradient() -> tuple[list[float], list[float]]:
    """Of the source and of the weights."""
    weights = _convolution()
    forward, gradient = mps.MPSCNNConvolution(DEVICE, weights=weights), mps.MPSCNNConvolutionGradient(DEVICE, weights)
    forward.edge_mode = mps.MPSImageEdgeMode.CLAMP
    source = image([1, 2], width=2)
    _, state = encoded(forward, source, destination_state_is_temporary=False)
    data = encoded(gradient, image([1, 1], width=2), source, state)
    sums = np.frombuffer(state.gradient_for_weights.contents(), np.float32)
    return listed(data.numpy()), listed(sums)


def _binary() -> list[float]:
    """XNOR and AND of one pixel with nine bits of 1."""
    bits = ArraySource(
        mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1), np.full(9, 1, np.uint32), None, mps.MPSDataType.UINT32
    )
    kinds = mps.MPSCNNBinaryConvolutionType.XNOR, mps.MPSCNNBinaryConvolutionType.AND
    kernels = [mps.MPSCNNBinaryConvolution(DEVICE, bits, type=kind) for kind in kinds]
    return [float(encoded(kernel, image([1])).numpy().item()) for kernel in kernels]


# --- graphs -----------------------------------------------------------------------------------------------------------


def _run(network: Network) -> list[float]:
    return listed(encoded(graph_of(network), list(network.sources)).numpy())


def _order() -> str:
    """The sources of (c + b) + a."""
    a, b, c = (Node(mps.Handle(name)) for name in "abc")
    first = mps.MPSNNAdditionNode(c, b).result_image
    graph = mps.MPSNNGraph(DEVICE, mps.MPSNNAdditionNode(first, a).result_image)
    return "".join(handle.label() or "" for handle in graph.source_image_handles)


def _intermediates() -> str:
    """Which of two further images of a chain comes first: one exported, one a further result; both ways."""
    found = ""
    for exported in range(2):
        nodes = [mps.MPSCNNNeuronLinearNode(Node(), 1.0, 1.0)]
        for _ in range(2):
            nodes.append(mps.MPSCNNNeuronLinearNode(nodes[-1].result_image, 1.0, 1.0))
        for node in nodes[:2]:
            node.result_image.image_allocator = mps.MPSImage.default_allocator()
        nodes[exported].result_image.export_from_graph = True
        graph = mps.MPSNNGraph(DEVICE, result_images=[nodes[2].result_image, nodes[1 - exported].result_image])
        made: list[mps.MPSImage] = []
        encoded(graph, [image([0.0])], intermediate_images=made)
        found += "".join("ab"[int(each.numpy().item()) - 1] for each in made) + " "
    return found.strip()


def _left_reads() -> int:
    """The reads that are left of three, when a graph has added an image to itself."""
    graph = graph_of(Network(lambda node: mps.MPSNNAdditionNode(node, node), [image([1])]))
    command_buffer = Bench(DEVICE).command_buffer()
    neuron = mps.MPSCNNNeuronReLU(DEVICE, 0.0)
    source = neuron.encode(command_buffer, image([1]))
    source.read_count = 3
    graph.encode(command_buffer, [source])
    left = source.read_count
    source.read_count = 0
    finish(command_buffer)
    return left


def _scaled(left: Any, right: Any) -> Any:
    node = mps.MPSNNAdditionNode(left, right)
    node.primary_scale = 2.0
    return node


_SCALED = Network(_scaled, (image([1, 2, 3, 4]), image([10, 20, 30, 40])))
_JOINED = Network(lambda a, b: mps.MPSNNConcatenationNode([a, b]), (image([[[1]]]), image([[[5, 6]]])))
_SOFT_MAX = _descriptor(Loss.SOFT_MAX_CROSS_ENTROPY)
CASES: Mapping[str, Case] = {
    "loss_gradient_mean": Case({"undivided": [2, 4, 6, 8], "divided": [0.5, 1, 1.5, 2]}, _mean_gradient),
    "hinge_labels": Case(
        {"signs": ([1.5], [1.0]), "as_given": ([1.0], [0.0])},
        lambda: _lost(_descriptor(Loss.HINGE), [[[0.5]]], [[[0]]]),
    ),
    "soft_max_slope": Case(
        {"difference": [-0.91, -0.7553, 0.6652], "derivative": [-0.8199, -0.5105, 1.3305]},
        lambda: _lost(_SOFT_MAX, [[[1, 2, 3]]], [[[1, 1, 0]]])[1],
    ),
    "cosine_distance": Case(
        {"image": [-2.0], "pixel": [-1.0]},
        lambda: _lost(_descriptor(Loss.COSINE_DISTANCE), [[[1, 2], [3, 4]]], [[[0.1, 0.2], [0.3, 0.4]]])[0],
    ),
    "reshape_order": Case(
        {"pixels": [1, 2, 3, 4] * 2, "planes": [1, 3, 2, 4] * 2},
        _reshaped,
    ),
    "dropout_encodes": Case({"differ": False, "equal": True}, _masks_are_equal),
    "argument_ties": Case({"first": [0, 0], "last": [3, 3]}, _ties),
    "weighted_mean": Case({"channels": [1, 3], "weights": [2, 6]}, _weighted),
    "l2_clamp": Case({"repeated": [5.831, 6.4031], "left_out": [5, 5]}, _norms),
    "region_corners": Case({"corners": [0, 1, 2], "edges": [0, 1.25, 2.5], "steps": [0, 0.8333, 1.6667]}, _region),
    "grid_corners": Case({"corners": [10, 20, 30], "edges": [5, 20, 15], "pixels": [0, 10, 20]}, _grid),
    "clamp_gradient": Case(
        {"adjoint": ([12, 210], [2, 3, 4]), "zeros": ([11, 110], [1, 3, 2]), "mixed": ([11, 110], [2, 3, 4])},
        _clamped_gradient,
    ),
    "binary_border": Case({"zeros": [9, 9], "zero_bits": [-7, 1], "nothing": [1, 1]}, _binary),
    "source_reads": Case({"enough": 1, "one": 2}, _left_reads),
    "alignment": Case(
        {"padding": [100, 210, 321, 432, 543], "reading": [321, 432, 543, 54, 5]},
        _aligned,
        Network(_aligned_node, [FIVE]),
    ),
    "clamp_mask": Case({"applied": [1, 0], "ignored": [1, 1]}, _unclamped),
    "source_order": Case({"depth": "cba", "breadth": "acb"}, _order),
    "negative_remainder": Case({"truncated": [3, 5, 7], "floor": [4, 6, 8]}, _cropped, Network(_cropped_node, [EIGHT])),
    "average_preset": Case(
        {"prose": (0x401C, [2, 4, 6, 8, 9.5]), "code": (0x4010, [1.5, 3, 5, 7, 9])},
        lambda: _preset(mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling, TEN, 2),
    ),
    "average_valid_preset": Case(
        {"bottom_right": (0x400E, [2, 5, 8]), "plain": (0x4000, [2, 5, 8]), "remainder": (0x400C, [2, 5, 8])},
        lambda: _preset(mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only, NINE, 3),
    ),
    "excluded_edges": Case(
        {"window": [0.6667, 1, 1, 0.6667], "none": [1, 1, 1, 1]}, _edges, Network(_edges_node, [_ONES])
    ),
    "result_format": Case({"source": "UNORM8", "float16": "FLOAT16"}, _format),
    "broadcast_size": Case({"larger": (3, 2), "primary": (1, 1)}, _sum_size),
    "concatenation_filler": Case(
        {"texture": [1, 0, 0, 1, 5, 6, 0, 1], "zeros": [1, 0, 0, 0, 5, 6, 0, 0]}, lambda: _run(_JOINED), _JOINED
    ),
    "graph_primary_scale": Case(
        {"kept": [12, 24, 36, 48], "dropped": [11, 22, 33, 44]}, lambda: _run(_SCALED), _SCALED
    ),
    "intermediate_order": Case({"exported": "ab ba", "made": "ab ab", "results": "ba ab"}, _intermediates),
    "missing_neuron": Case({"one": (1.0, 1.0, 1.0), "zero": (0.0, 0.0, 0.0)}, _missing),
    "loss_weights": Case(
        {"image": [3.0], "product": [6.0]},
        lambda: _lost(_descriptor(Loss.MEAN_ABSOLUTE_ERROR, weight=2.0), [[[1]]], [[[0]]], [[[3]]])[0],
    ),
    "batch_divisor": Case(
        {"pixels": [round(math.log(3), 4), 0.0], "numbers": [round(math.log(3) / 3, 4), 0.0]}, _across_batch
    ),
}
"""By the names of the conventions."""
