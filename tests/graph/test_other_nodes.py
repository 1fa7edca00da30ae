"""Nodes that the table's samples do not reach: shapes, callbacks, losses in chains, pairs of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from helpers import assert_close
from in_one_test import in_one_test
from networks import Weights
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSImageFeatureChannelFormat, MTLSize
from oracles import loss as loss_oracle
from rounding import largest_difference
from samples.loss import labels_for

FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
TOLERANCE = 1e-5
Type, Reduction = MPSCNNLossType, MPSCNNReductionType


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def image(name: str) -> mps.MPSNNImageNode:
    return mps.MPSNNImageNode(mps.Handle(name))


def graph_of(bench: Bench, *ends: Any) -> mps.MPSNNGraph:
    for end in ends:
        end.result_image.image_allocator = mps.MPSImage.default_allocator()
    graph = mps.MPSNNGraph(bench.device, result_images=[end.result_image for end in ends])
    graph.format = FLOAT32
    return graph


def run(bench: Bench, graph: Any, states: Any = None, **given: np.ndarray) -> list[np.ndarray]:
    others: list[Any] = []
    command_buffer = bench.command_buffer()
    sources = [bench.batch(given[handle.label()]) for handle in graph.source_image_handles]
    result = graph.encode_batch(command_buffer, sources, states, others)
    finish(command_buffer)
    return [numbers(each) for each in (result, *others)]


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_reshape_and_its_gradient(bench: Bench, rng: np.random.Generator) -> None:
    x, flow = rng.normal(size=(2, 6, 4, 3)), rng.normal(size=(2, 9, 2, 4))
    node = mps.MPSNNReshapeNode(image("x"), 4, 2, 9)
    backward = node.gradient_filter(image("flow"))
    found, gradient = run(bench, graph_of(bench, node, backward), x=x, flow=flow)
    # The channel is the fastest index, then the column.
    rows = x.transpose(0, 2, 3, 1).reshape(2, 2, 4, 9).transpose(0, 3, 1, 2)
    assert_close(found, rows, TOLERANCE, "result")
    back = flow.transpose(0, 2, 3, 1).reshape(2, 4, 3, 6).transpose(0, 3, 1, 2)
    assert_close(gradient, back, TOLERANCE, "gradient")


def test_a_reshape_keeps_the_count(bench: Bench) -> None:
    node = mps.MPSNNReshapeNode(image("x"), 4, 2, 8)
    rule = "^MPSNNReshapeNode: result_width, result_height, result_feature_channels must multiply to 72"
    with pytest.raises(mps.MPSArgumentError, match=rule):
        run(bench, graph_of(bench, node), x=np.zeros((1, 6, 4, 3)))


SCALES = [
    (mps.MPSNNBilinearScaleNode, mps.MPSImageBilinearScale),
    (mps.MPSNNLanczosScaleNode, mps.MPSImageLanczosScale),
]


class Provider:
    """Answers with a zoom that can be changed, and keeps what it was asked."""

    def __init__(self, zoom: float) -> None:
        self.zoom, self.asked = zoom, list[Any]()

    def transform(self, source_image: Any, handle: Any) -> mps.MPSScaleTransform:
        shape = source_image.width, source_image.height, source_image.feature_channels
        self.asked.append((shape, handle.label()))
        return mps.MPSScaleTransform(self.zoom, self.zoom, 0.5, -0.25)


def _scaled_by_hand(bench: Bench, kind: Any, x: np.ndarray, transform: Any) -> np.ndarray:
    kernel = kind(bench.device)
    kernel.scale_transform = transform
    result, command_buffer = bench.batch(np.zeros((*x.shape[:2], 6, 7))), bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(x), result)
    finish(command_buffer)
    return numbers(result)


@pytest.mark.parametrize(("kind", "kernel"), SCALES)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_scale_nodes(bench: Bench, rng: np.random.Generator, kind: Any, kernel: Any, depth: int) -> None:
    x = rng.normal(size=(2, 3, 4, 5))
    (found,) = run(bench, graph_of(bench, kind(image("x"), MTLSize(7, 6, depth))), x=x)
    np.testing.assert_array_equal(found, _scaled_by_hand(bench, kernel, x, None))


@pytest.mark.parametrize(("kind", "kernel"), SCALES)
def test_a_provider_is_asked_at_each_encode(bench: Bench, rng: np.random.Generator, kind: Any, kernel: Any) -> None:
    x, provider = rng.normal(size=(2, 3, 4, 5)), Provider(1.5)
    graph = graph_of(bench, kind(image("x"), provider, MTLSize(7, 6, 3)))
    for zoom in (1.5, 1.5, 2.0, 1.5):
        provider.zoom = zoom
        before = len(provider.asked)
        (found,) = run(bench, graph, x=x)
        expected = _scaled_by_hand(bench, kernel, x, mps.MPSScaleTransform(zoom, zoom, 0.5, -0.25))
        np.testing.assert_array_equal(found, expected)
        assert provider.asked[before:] == [((5, 4, 3), "x")], "once an encode"


def test_the_depth_of_a_scale_is_its_channels(bench: Bench) -> None:
    node = mps.MPSNNBilinearScaleNode(image("x"), MTLSize(7, 6, 2))
    with pytest.raises(mps.MPSArgumentError, match="output_size.depth must be the source's feature channels, 3"):
        run(bench, graph_of(bench, node), x=np.zeros((1, 3, 4, 5)))


def test_pixels_of_a_spatial_mean_by_the_public_kernels(bench: Bench, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 5, 4, 7))
    rows, columns = mps.MPSNNReduceRowMean(bench.device), mps.MPSNNReduceColumnMean(bench.device)
    columns.destination_image_allocator = mps.MPSImage.default_allocator()
    command_buffer = bench.command_buffer()
    by_hand = columns.encode_batch(command_buffer, rows.encode_batch(command_buffer, bench.batch(x)))
    finish(command_buffer)
    (found,) = run(bench, graph_of(bench, mps.MPSNNReductionSpatialMeanNode(image("x"))), x=x)
    # The sums are those of one step, in another order.
    np.testing.assert_allclose(found, numbers(by_hand), rtol=1e-5, atol=1e-7)
    wanted = x.astype(np.float32).astype(np.float64).mean(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


# --- callbacks --------------------------------------------------------------------------------------------------------


class Factor:
    """Answers both callbacks with a number that can be changed."""

    def __init__(self, number: float) -> None:
        self.number, self.asked = number, list[Any]()

    def alpha(self, source_image: Any, destination_image: Any) -> float:
        self.asked.append(tuple((each.width, each.height) for each in (source_image, destination_image)))
        return self.number

    scalar_weight = alpha


def test_alpha_of_a_gram_matrix_is_asked_for_at_each_encode(bench: Bench, rng: np.random.Generator) -> None:
    x, flow, factor = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 1, 3)), Factor(0.5)

    def of(alpha: float) -> mps.MPSNNGraph:
        node = mps.MPSNNGramMatrixCalculationNode(image("x"), alpha)
        node.property_call_back = factor if alpha == 1.0 else None
        return graph_of(bench, node, node.gradient_filter(image("flow")))

    asking = of(1.0)
    for number in (0.5, 0.25):
        factor.number = number
        for actual, expected in zip(
            run(bench, asking, x=x, flow=flow), run(bench, of(number), x=x, flow=flow), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)
    assert factor.asked == [((5, 4), (3, 1))] * 2


def test_the_weight_of_a_loss_is_asked_for_at_each_encode(bench: Bench, rng: np.random.Generator) -> None:
    x, t, flow, factor = *(rng.normal(size=(2, 3, 4, 5)) for _ in range(2)), rng.normal(size=(2, 1, 1, 1)), Factor(0.5)

    def of(weight: float, callback: Any) -> mps.MPSNNGraph:
        descriptor = mps.MPSCNNLossDescriptor(Type.MEAN_SQUARED_ERROR, Reduction.SUM)
        descriptor.weight = weight
        node = mps.MPSNNForwardLossNode(image("x"), image("t"), descriptor)
        node.property_call_back = callback
        return graph_of(bench, node, node.gradient_filter(image("flow")))

    asking = of(1.0, factor)
    for number in (0.5, 3.0):
        factor.number = number
        found = run(bench, asking, x=x, t=t, flow=flow)
        for actual, expected in zip(found, run(bench, of(number, None), x=x, t=t, flow=flow), strict=True):
            np.testing.assert_array_equal(actual, expected)
    assert factor.asked == [((5, 4), (1, 1))] * 2


class Former:
    """Callbacks by the names that version 0.1 had for the methods."""

    def transform_for_source_image(self, image: Any, handle: Any) -> Any:
        return mps.MPSScaleTransform(2.0, 2.0, 0.5, -0.25)

    def alpha_for_source_image(self, source_image: Any, destination_image: Any) -> float:
        return 0.25

    scalar_weight_for_source_image = alpha_for_source_image


class Named:
    """The same by the rule for methods."""

    transform, alpha = Former.transform_for_source_image, Former.alpha_for_source_image
    scalar_weight = alpha


def _asking(callback: Any) -> dict[str, mps.MPSNNFilterNode]:
    scale = mps.MPSNNBilinearScaleNode(image("x"), callback, mps.MTLSize(7, 6, 0))
    products = mps.MPSNNGramMatrixCalculationNode(image("x"))
    loss = mps.MPSNNForwardLossNode(image("x"), image("x"), mps.MPSCNNLossDescriptor(Type.HINGE, Reduction.SUM))
    products.property_call_back = loss.property_call_back = callback
    return {"transform": scale, "alpha": products, "scalar_weight": loss}


@pytest.mark.parametrize("method", ["transform", "alpha", "scalar_weight"])
def test_callbacks_by_their_former_names(method: str, bench: Bench, rng: np.random.Generator) -> None:
    """They answer as before, and are told the name by the rule for methods."""
    x = rng.normal(size=(2, 3, 4, 5))
    with pytest.warns(DeprecationWarning, match=f"_for_source_image: call it {method}\\(source_image, ") as caught:
        former = _asking(Former())
    assert [each.filename for each in caught] == [__file__] * 3
    found = [run(bench, graph_of(bench, nodes[method]), x=x) for nodes in (former, _asking(Named()))]
    np.testing.assert_array_equal(*found)
    with pytest.raises(mps.MPSTypeError, match=r"must have a method \w+\(source_image, \w+\), or be None"):
        _asking(object())


# --- losses in chains -------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.NONE])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [Type.MEAN_SQUARED_ERROR, Type.SOFT_MAX_CROSS_ENTROPY, Type.HUBER])
def test_gradients_of_a_forward_loss(
    bench: Bench, rng: np.random.Generator, kind: Any, weighted: bool, reduction: Any
) -> None:
    shape = (2, 3, 2, 4)
    x, t, w = rng.normal(size=shape), labels_for(kind, shape), rng.uniform(0.5, 1.5, size=shape)
    flow = rng.normal(size=shape if reduction is Reduction.NONE else (2, 1, 1, 1))
    given = {"x": x, "t": t, "flow": flow} | ({"w": w} if weighted else {})
    given = {name: np.float64(np.float32(each)) for name, each in given.items()}
    descriptor = mps.MPSCNNLossDescriptor(kind, reduction)
    sources = [image("x"), image("t"), image("w")][: 3 if weighted else 2]
    node = mps.MPSNNForwardLossNode(sources, descriptor)
    backward = node.gradient_filters(image("flow"))
    assert [each.is_labels_gradient_filter for each in backward] == [False, True]
    assert node.gradient_filter(image("flow")).is_labels_gradient_filter is False
    found = run(bench, graph_of(bench, node, *backward), **given)
    parameters = loss_oracle.Parameters(int(kind), int(reduction))
    weights = given.get("w")
    assert_close(found[0], loss_oracle.loss(given["x"], given["t"], weights, parameters)[0], TOLERANCE, "loss")
    for actual, of_labels in zip(found[1:], (False, True), strict=True):
        expected = loss_oracle.flow(given["flow"], given["x"], given["t"], weights, parameters, of_labels)
        assert_close(actual, expected, TOLERANCE, f"gradient, of labels: {of_labels}")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("of_labels", [False, True])
def test_the_gradient_of_a_loss_without_a_state(
    bench: Bench, rng: np.random.Generator, weighted: bool, of_labels: bool
) -> None:
    """Its own descriptor and callback say what the forward encode would; the forward loss need not be in the graph."""
    given = {
        "x": rng.normal(size=(2, 3, 2, 4)),
        "t": rng.normal(size=(2, 3, 2, 4)),
        "flow": rng.normal(size=(2, 1, 1, 1)),
    }
    given |= {"w": rng.uniform(0.5, 1.5, size=(2, 3, 2, 4))} if weighted else {}
    descriptor = mps.MPSCNNLossDescriptor(Type.HUBER, Reduction.SUM)
    descriptor.delta, descriptor.weight = 0.5, 3.0
    sources = [image(name) for name in ("x", "t", *(("w",) if weighted else ()))]
    forward = mps.MPSNNForwardLossNode(sources, descriptor)
    for callback in (None, Factor(0.25)):
        forward.property_call_back = callback
        expected = forward.gradient_filters(image("flow"))[of_labels]
        forms = [
            mps.MPSNNLossGradientNode([image("flow"), *sources], None, descriptor, of_labels),
            mps.MPSNNLossGradientNode(image("flow"), *sources, None, descriptor, of_labels),
            mps.MPSNNLossGradientNode(
                image("flow"), *sources, gradient_state=None, loss_descriptor=descriptor,
                is_labels_gradient_filter=of_labels,
            ),
        ]  # fmt: skip
        (values,) = run(bench, graph_of(bench, expected), **given)
        for node in forms:
            node.property_call_back = callback
            np.testing.assert_array_equal(run(bench, graph_of(bench, node), **given)[0], values)


def test_an_initial_gradient_starts_a_training_graph(bench: Bench, rng: np.random.Generator) -> None:
    x, y, t = (rng.normal(size=(2, 3, 4, 5)).astype(np.float32) for _ in range(3))
    product = mps.MPSNNMultiplicationNode(image("x"), image("y"))
    descriptor = mps.MPSCNNLossDescriptor(Type.MEAN_SQUARED_ERROR, Reduction.SUM)
    loss = mps.MPSNNForwardLossNode(product.result_image, image("t"), descriptor)
    initial = mps.MPSNNInitialGradientNode(loss.result_image)
    ends = initial.training_graph()
    assert ends is not None
    assert [type(end).__name__ for end in ends] == ["MPSNNLossGradientNode", *["MPSNNMultiplicationGradientNode"] * 2]
    of_labels, *of_factors = run(bench, graph_of(bench, *ends), x=x, y=y, t=t)
    leaves = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (x, y, t)]
    ((leaves[0] * leaves[1] - leaves[2]) ** 2).sum().backward()
    gradients = [leaf.grad.numpy() for leaf in leaves if leaf.grad is not None]
    for actual, expected in zip((*of_factors, of_labels), gradients, strict=True):
        assert_close(actual, expected, TOLERANCE, "gradient")


# --- transposed convolution -------------------------------------------------------------------------------------------


def test_a_transposed_convolution_undoes_the_size_of_another(bench: Bench, rng: np.random.Generator) -> None:
    down, up = Weights.of(rng, (4, 3, 3, 2)), Weights.of(rng, (2, 3, 3, 4))
    for each in (down, up):
        each.made.stride_in_pixels_x = each.made.stride_in_pixels_y = 2
    first = mps.MPSCNNConvolutionNode(image("x"), down)
    second = mps.MPSCNNConvolutionTransposeNode(first.result_image, first.convolution_gradient_state, up)
    assert second.convolution_gradient_state is first.result_state
    x = rng.normal(size=(2, 2, 7, 8))
    (found,) = run(bench, graph_of(bench, second), x=x)
    assert found.shape == (2, 2, 7, 8), "as large as the source of the convolution"
    expected = _convolved_and_back(bench, down, up, x)
    for each in (down, up):
        each.array, each.bias = abs(each.array), None if each.bias is None else abs(each.bias)
    # By prepacked weights the graph's first convolution may sum in another order: 18 products, then 36, and biases.
    apart = largest_difference(18 + 36 + 2, _convolved_and_back(bench, down, up, abs(x)))
    assert (abs(found - expected) <= apart).all()


def _convolved_and_back(bench: Bench, down: Weights, up: Weights, x: np.ndarray) -> np.ndarray:
    """The results of the two kernels, one after the other."""
    convolution = mps.MPSCNNConvolution(bench.device, weights=down)
    transposed = mps.MPSCNNConvolutionTranspose(bench.device, weights=up)
    transposed.destination_image_allocator = mps.MPSImage.default_allocator()
    command_buffer = bench.command_buffer()
    y, states = convolution.encode_batch(command_buffer, bench.batch(x), destination_state_is_temporary=False)
    result = transposed.encode_batch(command_buffer, y, states)
    finish(command_buffer)
    return numbers(result)


class Doubling(Weights):
    """Asked for an update, gives twice the gradients as new weights."""

    calls = 0
    state: Any = None

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.calls += 1
        self.state = gradient_state
        return mps.MPSCNNConvolutionWeightsAndBiasesState(
            weights=gradient_state.gradient_for_weights, biases=gradient_state.gradient_for_biases
        )


def test_a_transposed_convolution_is_updated_once_a_batch(bench: Bench, rng: np.random.Generator) -> None:
    source = Doubling.of(rng, (2, 3, 3, 4))
    node = mps.MPSCNNConvolutionTransposeNode(image("x"), None, source)
    backward = node.gradient_filter(image("flow"))
    graph = graph_of(bench, node, backward)
    x, flow = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(2, 2, 5, 6))
    run(bench, graph, x=x, flow=flow)
    assert source.calls == 1
    assert isinstance(source.state, mps.MPSCNNConvolutionTransposeGradientState)
    kernel = graph.kernels[node]
    found = kernel.parameters.weights_buffer.tensor(torch.float32).cpu().numpy()
    np.testing.assert_array_equal(found, source.state.gradient_for_weights.tensor(torch.float32).cpu().numpy())
    assert kernel.parameters is graph.kernels[backward].parameters
    graph.reload_from_data_sources()
    again = kernel.parameters.weights_buffer.tensor(torch.float32).cpu().numpy()
    np.testing.assert_array_equal(again, source.array.ravel())
