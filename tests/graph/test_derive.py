"""The training graph: which gradient nodes are made, in which order, and where it ends."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers
from helpers import assert_close
from networks import Weights, convolution, diamond, digits, labels, one_hot, residual, softmax_loss
from openmps.core.image.image import MPSImage
from openmps.errors import MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionGradientNode, MPSNNAdditionNode
from openmps.graph.nodes.convolution import (
    MPSCNNConvolutionGradientNode,
    MPSCNNConvolutionNode,
    MPSCNNFullyConnectedGradientNode,
    MPSCNNFullyConnectedNode,
)
from openmps.graph.nodes.dropout import MPSCNNDropoutGradientNode
from openmps.graph.nodes.neuron import MPSCNNNeuronGradientNode, MPSCNNNeuronReLUNode, MPSCNNNeuronTanHNode
from openmps.graph.nodes.node import Handle, MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxGradientNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxNode
from openmps.types import MPSImageFeatureChannelFormat, MPSNNTrainingStyle

Format = MPSImageFeatureChannelFormat
Call = tuple[Any, Any, MPSNNImageNode, MPSNNImageNode]


def derive(
    last: MPSNNFilterNode, gradient: MPSNNImageNode | None = None, then: Any = None
) -> tuple[list[MPSNNFilterNode] | None, list[Call]]:
    calls: list[Call] = []

    def handler(*call: Any) -> None:
        calls.append(call)
        if then is not None:
            then(*call)

    return last.training_graph(gradient, handler), calls


class _Opaque(MPSNNFilterNode):
    """A filter without a gradient."""


def test_the_sample_makes_ten_nodes_and_one_terminus(rng: np.random.Generator) -> None:
    network = digits(rng, keep=0.5)
    termini, calls = derive(network.loss)
    names = ["fc2", "dropout", "relu3", "fc1", "pool2", "relu2", "conv2", "pool1", "relu1", "conv1"]
    classes = [
        MPSCNNFullyConnectedGradientNode,
        MPSCNNDropoutGradientNode,
        MPSCNNNeuronGradientNode,
        MPSCNNFullyConnectedGradientNode,
        *[MPSCNNPoolingMaxGradientNode, MPSCNNNeuronGradientNode, MPSCNNConvolutionGradientNode] * 2,
    ]
    assert [type(call[0]) for call in calls] == classes
    incoming = network.loss.result_image
    for name, (gradient_node, forward, source, gradient_source) in zip(names, calls, strict=True):
        assert forward is network.nodes[name]
        assert source is forward.sources[0]
        assert gradient_source is incoming
        assert gradient_node.sources == (incoming, source)
        assert gradient_node.forward is forward
        assert getattr(gradient_node, "training_style", MPSNNTrainingStyle.UPDATE_DEVICE_GPU) == 2
        incoming = gradient_node.result_image
    assert termini == [calls[-1][0]]


def test_a_handlers_format_spreads_to_later_nodes(rng: np.random.Generator) -> None:
    """Each gradient image takes the format of the gradient that its node reads."""

    def once(gradient_node: Any, forward: Any, *_: Any) -> None:
        if forward.label == "fc1":
            gradient_node.result_image.format = Format.FLOAT32

    _, calls = derive(digits(rng).loss, then=once)
    formats = [call[0].result_image.format for call in calls]
    assert formats == [Format.NONE] * 2 + [Format.FLOAT32] * 7


def test_the_default_handler_copies_handles(rng: np.random.Generator) -> None:
    network = diamond(rng)
    handle = network.nodes["stem"].result_image.handle = Handle("stem")
    network.image.handle = Handle("image")
    (terminus,) = network.loss.training_graph() or []
    assert terminus.result_image.handle is network.image.handle
    assert terminus.sources[0].producer is not None, "the ReLU's gradient"
    total = terminus.sources[0].producer.sources[0]
    assert isinstance(total.producer, MPSNNAdditionNode) and total.handle is handle


def test_sums_fold_from_the_left_in_the_order_of_the_consumers(rng: np.random.Generator) -> None:
    """The stem's result is read by conv a, conv b, and both sides of an addition: ((a + b) + left) + right."""
    network = diamond(rng)
    stem = network.nodes["stem"].result_image
    _, calls = derive(network.loss)
    additions = [call for call in calls if isinstance(call[0], MPSNNAdditionNode)]
    parts = [call[0].result_image for call in calls if call[2] is stem and call[1] is not None]
    assert len(parts) == 4 and len(additions) == 3
    by_label = {call[1].label: call[0] for call in calls if call[1]}
    sides = [call[0] for call in calls if isinstance(call[0], MPSNNAdditionGradientNode) and call[2] is stem]
    assert [node.is_secondary_source_filter for node in sides] == [False, True]
    ordered = [by_label["a"], by_label["b"], *sides]
    total = ordered[0].result_image
    for (addition, forward, source, incoming), right in zip(additions, ordered[1:], strict=True):
        assert forward is None, "an addition mirrors no forward node"
        assert source is stem and incoming is right.result_image
        assert addition.sources == (total, right.result_image)
        total = addition.result_image
    relu = next(call for call in calls if call[1] is network.nodes["stem"])
    assert relu[3] is total, "the producer's gradient waits for the whole sum"


def test_an_input_read_by_several_filters_ends_in_a_sum(rng: np.random.Generator) -> None:
    """y = x + conv(x): the terminus is the addition, and its value the whole gradient of x."""
    image = MPSNNImageNode()
    source = Weights.of(rng, (2, 3, 3, 2))
    branch = convolution(image, source)
    branch.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_NONE
    last = MPSNNAdditionNode(image, branch.result_image)
    gradient = MPSNNImageNode()
    termini, calls = derive(last, gradient)
    assert termini is not None and [type(node) for node in termini] == [MPSNNAdditionNode]
    assert len(calls) == 4
    bench = Bench.on(torch.device("cpu"))
    graph = MPSNNGraph(bench.device, termini[0].result_image)
    graph.format = Format.FLOAT32
    x, g = rng.normal(size=(2, 2, 4, 4)), rng.normal(size=(2, 2, 4, 4))
    given = {image: x, gradient: g}
    command_buffer = bench.command_buffer()
    batches = [bench.batch(given[node]) for node in graph._interface.inputs]
    result = graph.encode_batch(command_buffer, batches)
    finish(command_buffer)
    weights = torch.tensor(source.array).permute(0, 3, 1, 2)
    expected = g + torch.nn.functional.conv_transpose2d(torch.tensor(g).float(), weights, padding=1).numpy()
    assert_close(numbers(result), expected, 1e-5)


def test_unproduced_inputs_of_a_filter_with_several_sources_are_differentiated(rng: np.random.Generator) -> None:
    """A plain image beside the network is a terminus of its own."""
    image, other = MPSNNImageNode(), MPSNNImageNode()
    last = MPSNNAdditionNode(convolution(image, Weights.of(rng, (2, 3, 3, 2))).result_image, other)
    termini, _ = derive(last, MPSNNImageNode())
    assert termini is not None
    assert [(type(node), node.sources[1]) for node in termini] == [
        (MPSNNAdditionGradientNode, other),
        (MPSCNNConvolutionGradientNode, image),
    ]
    other.stop_gradient = True
    termini, _ = derive(last, MPSNNImageNode())
    assert termini is not None and [type(node) for node in termini] == [MPSCNNConvolutionGradientNode]


def test_consumers_that_the_last_node_does_not_depend_on_are_ignored(rng: np.random.Generator) -> None:
    network = digits(rng)
    expected = len(derive(network.loss)[1])
    MPSCNNSoftMaxNode(network.nodes["fc2"].result_image)
    MPSCNNNeuronReLUNode(network.nodes["conv1"].result_image)
    _, calls = derive(network.loss)
    assert len(calls) == expected
    assert not any(isinstance(call[0], MPSNNAdditionNode) for call in calls)


def test_stop_gradient_ends_the_walk_behind_the_reader(rng: np.random.Generator) -> None:
    """Transfer learning: what made the image gets no gradient nodes, who reads it does."""
    network = digits(rng)
    network.nodes["pool2"].result_image.stop_gradient = True
    termini, calls = derive(network.loss)
    assert [call[1].label or type(call[1]).__name__ for call in calls] == ["fc2", "MPSCNNNeuronReLUNode", "fc1"]
    assert termini == [calls[-1][0]]


def test_stop_gradient_set_by_the_handler_prunes(rng: np.random.Generator) -> None:
    def stop(gradient_node: Any, forward: Any, *_: Any) -> None:
        gradient_node.result_image.stop_gradient = forward.label == "conv2"

    termini, calls = derive(digits(rng).loss, then=stop)
    assert [call[1].label for call in calls if call[1].label] == ["fc2", "fc1", "conv2"]
    assert termini == [calls[-1][0]]


def test_a_pruned_branch_leaves_the_rest_of_a_sum(rng: np.random.Generator) -> None:
    """The gradient that a handler stops is no part of the sum, and its node a terminus."""
    network = residual(rng)

    def stop(gradient_node: Any, forward: Any, *_: Any) -> None:
        gradient_node.result_image.stop_gradient = forward is not None and forward.label == "conv1"

    termini, calls = derive(network.loss, then=stop)
    assert not any(call[1] is None for call in calls), "one part is left: there is nothing to add"
    assert termini is not None
    assert [node.label for node in termini] == ["conv1", "conv0"]


def test_a_stop_on_an_inserted_sum_prunes_too(rng: np.random.Generator) -> None:
    def stop(gradient_node: Any, forward: Any, *_: Any) -> None:
        gradient_node.result_image.stop_gradient = forward is None

    termini, calls = derive(residual(rng).loss, then=stop)
    assert termini is not None and [type(node) for node in termini] == [MPSNNAdditionNode]
    assert "conv0" not in [call[0].label for call in calls]


def test_a_stop_on_one_side_of_a_filter_with_two_sources(rng: np.random.Generator) -> None:
    """The stopped side gets no gradient node of its own: nothing would be trained by it."""
    image = MPSNNImageNode()
    frozen, trained = (convolution(image, Weights.of(rng, (2, 3, 3, 2), name)) for name in ("frozen", "trained"))
    frozen.result_image.stop_gradient = True
    last = MPSNNAdditionNode(frozen.result_image, trained.result_image)
    termini, calls = derive(last, MPSNNImageNode())
    assert [type(call[0]) for call in calls] == [MPSNNAdditionGradientNode, MPSCNNConvolutionGradientNode]
    assert termini is not None and termini[0].label == "trained"


def test_stop_on_the_last_result_makes_nothing(rng: np.random.Generator) -> None:
    network = digits(rng)
    network.loss.result_image.stop_gradient = True
    assert derive(network.loss) == (None, [])


def test_a_loss_on_an_input_makes_nothing() -> None:
    assert derive(softmax_loss(MPSNNImageNode())) == (None, [])


def test_a_source_gradient_takes_the_place_of_the_loss(rng: np.random.Generator) -> None:
    image, gradient = MPSNNImageNode(), MPSNNImageNode()
    gradient.format = Format.FLOAT32
    last = MPSCNNNeuronTanHNode(convolution(image, Weights.of(rng, (2, 3, 3, 1))).result_image)
    termini, calls = derive(last, gradient)
    assert [type(call[0]) for call in calls] == [MPSCNNNeuronGradientNode, MPSCNNConvolutionGradientNode]
    assert calls[0][3] is gradient and calls[1][0].result_image.format is Format.FLOAT32
    assert termini == [calls[1][0]]
    assert derive(last)[1][0][3] is last.result_image, "None starts from the last node's own result"


def test_a_source_gradient_of_a_loss_is_that_of_its_predictions(rng: np.random.Generator) -> None:
    network, gradient = digits(rng), MPSNNImageNode()
    _, calls = derive(network.loss, gradient)
    assert calls[0][1] is network.nodes["fc2"] and calls[0][3] is gradient


def test_two_heads_give_one_terminus_over_a_shared_trunk(rng: np.random.Generator) -> None:
    """Two losses: the heads' gradients are added by hand, and the trunk's training graph starts from the sum."""
    image = MPSNNImageNode()
    sources = {name: Weights.of(rng, shape, name) for name, shape in
               {"trunk": (4, 3, 3, 2), "left": (3, 5, 5, 4), "right": (2, 5, 5, 4)}.items()}  # fmt: skip
    trunk = MPSCNNNeuronReLUNode(convolution(image, sources["trunk"]).result_image)
    heads = [MPSCNNFullyConnectedNode(trunk.result_image, sources[name]) for name in ("left", "right")]
    both = [softmax_loss(head.result_image, weight) for head, weight in zip(heads, (1.0, 0.5), strict=True)]
    for node in (trunk.sources[0].producer, *heads):
        assert isinstance(node, MPSCNNConvolutionNode)
        node.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_NONE
    parts = [head.gradient_filter(loss.result_image).result_image for head, loss in zip(heads, both, strict=True)]
    (terminus,) = trunk.training_graph(MPSNNAdditionNode(parts[0], parts[1]).result_image) or []
    bench = Bench.on(torch.device("cpu"))
    graph = MPSNNGraph(bench.device, terminus.result_image)
    graph.format = Format.FLOAT32
    values = rng.random((3, 2, 5, 5))
    targets = [one_hot(rng.integers(0, count, 3), count) for count in (3, 2)]
    command_buffer = bench.command_buffer()
    given = dict(zip(graph._interface.input_states, range(2), strict=True))
    assert [given[loss.input_labels] for loss in both] == [0, 1], "labels in the order of the losses"
    result = graph.encode_batch(command_buffer, [bench.batch(values)], [labels(bench, target) for target in targets])
    finish(command_buffer)
    x = torch.tensor(values.astype(np.float32), dtype=torch.float64, requires_grad=True)
    p = {name: [torch.tensor(array, dtype=torch.float64) for array in (source.array.transpose(0, 3, 1, 2), source.bias)]
         for name, source in sources.items()}  # fmt: skip
    y = torch.nn.functional.conv2d(x, *p["trunk"], padding=1).relu()
    total = torch.zeros((), dtype=torch.float64)
    for name, target, weight in zip(("left", "right"), targets, (1.0, 0.5), strict=True):
        logits = torch.nn.functional.conv2d(y, *p[name])
        total = total - weight * (torch.log_softmax(logits, 1) * torch.tensor(target)).sum()
    total.backward()
    assert x.grad is not None
    assert_close(numbers(result), x.grad, 1e-5)


def test_filters_without_a_gradient_say_so(rng: np.random.Generator) -> None:
    first = _Opaque([MPSNNImageNode()])
    first.label = "resize"
    last = MPSCNNNeuronReLUNode(first.result_image)
    with pytest.raises(MPSTypeError, match=r"^_Opaque 'resize': gradient_filter .* has no gradient. Set stop_gradient"):
        derive(last, MPSNNImageNode())
    first.result_image.stop_gradient = True
    termini, calls = derive(last, MPSNNImageNode())
    assert len(calls) == 1 and termini == [calls[0][0]]


def test_arguments_are_checked() -> None:
    node = MPSCNNNeuronReLUNode(MPSNNImageNode())
    with pytest.raises(MPSTypeError, match="source_gradient must be an MPSNNImageNode or None, got MPSCNNNeuronReLU"):
        node.training_graph(node)
    with pytest.raises(MPSTypeError, match="node_handler must be callable or None, got str"):
        node.training_graph(None, "handler")


def test_many_layers_need_no_deep_recursion() -> None:
    image = MPSNNImageNode()
    node: MPSNNFilterNode = MPSCNNNeuronReLUNode(image)
    layers = sys.getrecursionlimit() + 100
    for _ in range(layers - 1):
        node = MPSCNNNeuronReLUNode(node.result_image)
    termini, calls = derive(node, MPSNNImageNode())
    assert termini is not None and len(calls) == layers
    bench = Bench.on(torch.device("cpu"))
    graph = MPSNNGraph(bench.device, node.result_image)
    result = graph.encode(command_buffer := bench.command_buffer(), [bench.filled((1, 1, 1, 1), 0.5)])
    finish(command_buffer)
    assert isinstance(result, MPSImage) and result.numpy().item() == 0.5
