"""Convolutions of inference with what stands behind them: fused they are what the steps one by one are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from in_one_test import in_one_test
from openmps.core.padding.explicit import ExplicitPadding
from openmps.kernels import neuron as kernel_of_neurons
from openmps.ops.convolution.fused_convolution import PrepareConvolution
from openmps.ops.op import Op
from replay_twin import outcomes, replaying_queue

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning", "ignore:.*channels a group")
Array = np.ndarray
Format = mps.MPSImageFeatureChannelFormat
FORMATS = (Format.FLOAT32, Format.FLOAT16)
CLAMP = mps.MPSImageEdgeMode.CLAMP
SAME = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME)
VALID = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
ROUNDING = {Format.FLOAT32: 2.0**-21, Format.FLOAT16: 2.0**-9}
"""Some roundings each of a product of many terms, and of what stands behind it."""


@dataclass(frozen=True)
class Case:
    """A convolution, and what stands behind it."""

    inputs: int = 3
    outputs: int = 8
    size: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: int = 1
    groups: int = 1
    multiplier: int = 0
    padding: Any = SAME
    biases: bool = False
    normalizes: bool = True
    neuron: str = "relu"
    addend: str = ""
    """What is added before the neuron: nothing, another "image", or a "projection" of the source."""
    images: int = 2
    side: int = 9
    own_neuron: bool = False
    """Whether the neuron is the convolution's own."""

    @property
    def fused(self) -> int:
        """Convolutions that take something in."""
        return 1 + (self.addend == "projection")

    def is_fused(self, device: torch.device) -> bool:
        """Whether anything is taken in, or weights are packed."""
        return bool(self.normalizes or self.neuron in NEURONS_TAKEN_IN or self.addend) or device.type == "cpu"


NEURONS: dict[str, Any] = {
    "none": lambda x: None,
    "relu": mps.MPSCNNNeuronReLUNode,
    "leaky": lambda x: mps.MPSCNNNeuronReLUNode(x, 0.2),
    "relu6": lambda x: mps.MPSCNNNeuronReLUNNode(x, 0.0, 6.0),
    "leaky to 2": lambda x: mps.MPSCNNNeuronReLUNNode(x, 0.1, 2.0),
    "tanh": lambda x: mps.MPSCNNNeuronTanHNode(x, 1.0, 1.0),
}
NEURONS_TAKEN_IN = ("relu", "leaky", "relu6", "leaky to 2", "tanh")

CASES = {
    "plain": Case(),
    "one channel": Case(inputs=1),
    "four channels": Case(inputs=4, outputs=5),
    "five channels": Case(inputs=5, outputs=3),
    "one by one": Case(inputs=16, outputs=24, size=(1, 1)),
    "one by one, strided": Case(inputs=16, outputs=8, size=(1, 1), stride=(2, 2)),
    "wide": Case(size=(1, 5), stride=(1, 2)),
    "large": Case(size=(7, 7), stride=(2, 2), side=17),
    "dilated": Case(dilation=2, side=11),
    "groups": Case(inputs=8, outputs=12, groups=2),
    "depthwise": Case(inputs=8, outputs=8, multiplier=1),
    "depthwise, strided": Case(inputs=8, outputs=16, multiplier=2, stride=(2, 2)),
    "valid": Case(padding=VALID),
    "padded on one side": Case(padding=ExplicitPadding(2, 0, 1, 3)),
    "clamped": Case(padding=ExplicitPadding(1, 1, 1, 1, edge_mode=CLAMP)),
    "biases": Case(biases=True),
    "biases and no normalization": Case(biases=True, normalizes=False),
    "neuron alone": Case(normalizes=False),
    "normalization alone": Case(neuron="none"),
    "leaky": Case(neuron="leaky"),
    "relu6": Case(neuron="relu6"),
    "leaky to 2": Case(neuron="leaky to 2"),
    "another neuron": Case(neuron="tanh"),
    "its own neuron": Case(own_neuron=True, normalizes=False, biases=True),
    "added": Case(addend="image"),
    "alone": Case(normalizes=False, neuron="none"),
    "added, no neuron": Case(addend="image", neuron="none"),
    "added, relu6, no normalization": Case(addend="image", neuron="relu6", normalizes=False, biases=True),
    "projection": Case(addend="projection", inputs=8, outputs=16, size=(1, 1)),
    "projection, biases": Case(addend="projection", biases=True, stride=(2, 2)),
    "one image": Case(images=1, addend="image"),
    "one pixel": Case(side=1),
}


class Network:
    """The nodes of a case over data sources whose arrays can be changed."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case, self.rng = case, rng
        self.convolutions: list[mps.ArrayConvolutionDataSource] = []
        self.normalizations: list[mps.ArrayBatchNormalizationDataSource] = []
        self.image = mps.MPSNNImageNode()
        self.inner: list[Any] = []
        x = self._path(case, self.image)
        if case.addend == "projection":
            y = self._path(replace(case, neuron="none", own_neuron=False), self.image)
        elif case.addend == "image":
            self.other = mps.MPSNNImageNode()
            y = self.other
        if case.addend:
            addition = mps.MPSNNAdditionNode(x, y)
            self.inner.append(x)
            x = addition.result_image
        neuron = None if case.own_neuron else NEURONS[case.neuron](x)
        if neuron is not None:
            self.inner.append(x)
        self.result = x if neuron is None else neuron.result_image

    def _path(self, case: Case, image: Any) -> Any:
        kind = mps.MPSCNNDepthWiseConvolutionDescriptor if case.multiplier else mps.MPSCNNConvolutionDescriptor
        descriptor = kind(case.size[1], case.size[0], case.inputs, case.outputs)
        descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x = case.stride
        descriptor.dilation_rate_x = descriptor.dilation_rate_y = case.dilation
        descriptor.groups = case.groups
        if case.own_neuron:
            descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU_N, 0.0, 1.5)
        weights = self.rng.normal(0, 0.3, descriptor.weight_shape())
        biases = self.rng.normal(0, 0.5, case.outputs) if case.biases else None
        self.convolutions.append(mps.ArrayConvolutionDataSource(descriptor, weights, biases))
        node = mps.MPSCNNConvolutionNode(image, self.convolutions[-1])
        node.padding_policy = case.padding
        if not case.normalizes:
            return node.result_image
        self.inner.append(node.result_image)
        self.normalizations.append(mps.ArrayBatchNormalizationDataSource(case.outputs, *self._rows(case.outputs)))
        return mps.MPSCNNBatchNormalizationNode(node.result_image, self.normalizations[-1]).result_image

    def _rows(self, channels: int) -> list[Array]:
        rng = self.rng
        return [
            rng.normal(1, 0.5, channels), rng.normal(0, 1, channels), rng.normal(0, 1, channels),
            rng.uniform(0.3, 3, channels),
        ]  # fmt: skip

    def change(self) -> None:
        """New weights and rows."""
        for source in self.convolutions:
            source._weights[...] = self.rng.normal(0, 0.4, source._weights.shape)
        for source in self.normalizations:
            for row, values in zip(source._rows.values(), self._rows(self.case.outputs), strict=True):
                row[...] = values

    def graph(self, bench: Bench, channel_format: Format, *, fuses: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion = channel_format, fuses
        return graph

    def sources(self, bench: Bench, channel_format: Format, images: int | None = None) -> list[Any]:
        """A batch for each source image of the graph."""
        case, count = self.case, self.case.images if images is None else images
        x = self.rng.normal(0, 1, (count, case.inputs, case.side, case.side))
        given = [bench.batch(x, channel_format)]
        if case.addend == "image":
            height, width = self._result_size(bench)
            given.append(bench.batch(self.rng.normal(0, 1, (count, case.outputs, height, width)), channel_format))
        return given

    def _result_size(self, bench: Bench) -> tuple[int, int]:
        source = self.convolutions[0]
        node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
        node.padding_policy = self.case.padding
        graph = mps.MPSNNGraph(bench.device, node.result_image)
        shape = mps.MPSImageDescriptor(Format.FLOAT32, self.case.side, self.case.side, self.case.inputs)
        found = graph.program_for([shape]).stages[0].shape.extent
        return found.height, found.width


def _run(graph: mps.MPSNNGraph, bench: Bench, sources: list[Any]) -> Array:
    command_buffer = bench.command_buffer()
    result: Any = graph.encode_batch(command_buffer, sources)
    finish(command_buffer)
    return numbers(result)


def _assert_equal(found: Array, expected: Array, channel_format: Format, network: Network) -> None:
    """To some roundings of the sums behind the numbers."""
    weights = max(
        np.abs(each.weights()).reshape(network.case.outputs, -1).sum(1).max() for each in network.convolutions
    )
    scale = max((np.abs(each.gamma() / np.sqrt(each.variance())).max() for each in network.normalizations), default=1)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING[channel_format] * (4 * weights * scale + 8))


def _descriptors(sources: list[Any]) -> list[mps.MPSImageDescriptor]:
    return [
        mps.MPSImageDescriptor(each[0].feature_channel_format, each[0].width, each[0].height, each[0].feature_channels)
        for each in sources
    ]


@in_one_test
@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_fused_equals_step_by_step(
    name: str, channel_format: Format, device: torch.device, rng: np.random.Generator
) -> None:
    bench, case = Bench.on(device), CASES[name]
    network = Network(case, rng)
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    sources = network.sources(bench, channel_format)
    operations = fused.program_for(_descriptors(sources), case.images).function.operations()
    # The rule "projected end" makes one operation of two where Triton runs.
    convolutions = operations.count("FusedConvolution") + 2 * operations.count("ProjectedConvolution")
    assert convolutions == (case.fused if case.is_fused(device) else 0)
    assert not {"Convolution", "Normalize", "Combination"} & set(operations) or not case.is_fused(device)
    assert "FusedConvolution" not in apart.program_for(_descriptors(sources), case.images).function.operations()
    for _ in range(2):
        _assert_equal(_run(fused, bench, sources), _run(apart, bench, sources), channel_format, network)


def _gate(neuron: Any, primary: float = 1.0, secondary: float = 1.0, bias: float = 0.0) -> Any:
    """The product of an image and its neuron."""

    def made(x: Any) -> Any:
        node = mps.MPSNNMultiplicationNode(x, neuron(x).result_image)
        node.primary_scale, node.secondary_scale, node.bias = primary, secondary, bias
        return node

    return made


def _hard(x: Any) -> Any:
    return mps.MPSCNNNeuronHardSigmoidNode(x, 1 / 6, 0.5)


GATES = {
    "sigmoid": mps.MPSCNNNeuronSigmoidNode,
    "hard sigmoid": _hard,
    "swish": _gate(mps.MPSCNNNeuronSigmoidNode),
    "hard swish": _gate(_hard),
    "scaled hard swish": _gate(_hard, -0.5, 0.75, 0.25),
    "scaled swish": _gate(mps.MPSCNNNeuronSigmoidNode, 1.5),
    "another hard swish": _gate(lambda x: mps.MPSCNNNeuronHardSigmoidNode(x, 0.3, 0.4), bias=1.0),
}
UNDER_GATES = {
    "plain": CASES["plain"],
    "depthwise": CASES["depthwise"],
    "one by one": replace(CASES["one by one"], normalizes=False, biases=True),
    "one by one, many": Case(inputs=96, outputs=96, size=(1, 1), side=48, images=1),
    "added": CASES["added"],
}


@in_one_test
@pytest.mark.parametrize("case", UNDER_GATES)
@pytest.mark.parametrize("gate", GATES)
def test_gates_are_taken_in(
    gate: str, case: str, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32; what is not a number stays so, and infinities become what they do step by step."""
    monkeypatch.setitem(NEURONS, gate, GATES[gate])
    bench, network = Bench.on(device), Network(replace(UNDER_GATES[case], neuron=gate), rng)
    fused, apart = (network.graph(bench, Format.FLOAT32, fuses=fuses) for fuses in (True, False))
    sources = network.sources(bench, Format.FLOAT32)
    operations = fused.program_for(_descriptors(sources), network.case.images).function.operations()
    assert operations == ("FusedConvolution",)
    _assert_equal(_run(fused, bench, sources), _run(apart, bench, sources), Format.FLOAT32, network)
    for value in (np.nan, np.inf, -np.inf) if device.type == "cpu" else (np.nan,):
        pixels = numbers(sources[0]).copy()
        pixels[0, 0, 4, 4] = value
        given = [bench.batch(pixels, Format.FLOAT32), *sources[1:]]
        found, expected = _run(fused, bench, given), _run(apart, bench, given)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(found[~finite], expected[~finite])


def test_a_gate_whose_neuron_is_read_elsewhere_stays(rng: np.random.Generator) -> None:
    bench, network = Bench.on(torch.device("cpu")), Network(replace(CASES["plain"], neuron="none"), rng)
    gate = mps.MPSCNNNeuronSigmoidNode(network.result)
    product = mps.MPSNNMultiplicationNode(network.result, gate.result_image)
    both = mps.MPSNNAdditionNode(product.result_image, gate.result_image)
    sources, found = network.sources(bench, Format.FLOAT32), []
    for result in (both.result_image, product.result_image):
        graph = mps.MPSNNGraph(bench.device, result)
        graph.format = Format.FLOAT32
        found.append(graph.program_for(_descriptors(sources), 2).function.operations())
    assert found == [("FusedConvolution", "Neuron", "Combination", "Combination"), ("FusedConvolution",)]


@pytest.mark.parametrize("channels", [5, 16])
def test_a_permutation_of_channels_copies(channels: int, rng: np.random.Generator) -> None:
    """A matrix of one 1 a row, as shuffled channels are written; with another number it multiplies again."""
    bench, order = Bench.on(torch.device("cpu")), rng.integers(0, channels, 7)
    weights = np.zeros((7, 1, 1, channels), np.float32)
    weights[np.arange(7), 0, 0, order] = 1
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, channels, 7), weights)
    graph = mps.MPSNNGraph(bench.device, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image)
    graph.format = Format.FLOAT32
    pixels = rng.normal(size=(2, channels, 3, 4)).astype(np.float32)
    given = [bench.batch(pixels, Format.FLOAT32)]
    np.testing.assert_array_equal(_run(graph, bench, given), pixels[:, order])
    source._weights[0, 0, 0, order[0]] = 2
    graph.reload_from_data_sources()
    changed = pixels[:, order].copy()
    changed[:, 0] *= 2
    np.testing.assert_allclose(_run(graph, bench, given), changed, atol=1e-6)


@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("name", ["plain", "projection", "depthwise", "biases and no normalization"])
def test_changed_weights_are_seen_by_the_next_encode(
    name: str, channel_format: Format, device: torch.device, rng: np.random.Generator
) -> None:
    """By the data source: at once."""
    bench, network = Bench.on(device), Network(CASES[name], rng)
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    sources = network.sources(bench, channel_format)
    before = _run(fused, bench, sources)
    for _ in range(2):
        network.change()
        np.testing.assert_array_equal(_run(fused, bench, sources), before)
        for graph in (fused, apart):
            graph.reload_from_data_sources()
        after = _run(fused, bench, sources)
        _assert_equal(after, _run(apart, bench, sources), channel_format, network)
        assert np.abs(after - before).max() > 0.05
        before = after


def _reload(graph: mps.MPSNNGraph, command_buffer: Any, bench: Bench, arrays: list[Array], what: str) -> None:
    """Record that the first convolution, and the first normalization, take these weights and rows."""
    device = bench.device
    weights, *rows = [device.new_buffer(data=each.astype(np.float32)) for each in arrays]
    for kernel in graph.kernels.values():
        if isinstance(kernel, mps.MPSCNNConvolution) and "weights" in what:
            state = mps.MPSCNNConvolutionWeightsAndBiasesState(weights=weights)
            kernel.reload_weights_and_biases(command_buffer, state)
        elif isinstance(kernel, mps.MPSCNNBatchNormalization) and "rows" in what:
            gamma_and_beta = mps.MPSCNNNormalizationGammaAndBetaState(*rows[:2])
            kernel.reload_gamma_and_beta(command_buffer, gamma_and_beta)
            mean_and_variance = mps.MPSCNNNormalizationMeanAndVarianceState(*rows[2:])
            kernel.reload_mean_and_variance(command_buffer, mean_and_variance)


@pytest.mark.parametrize("what", ["weights", "rows", "weights and rows"])
@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("channel_format", FORMATS)
def test_reloads_that_are_recorded_take_effect_in_the_order_of_the_queue(
    channel_format: Format, replays: bool, what: str, device: torch.device, rng: np.random.Generator
) -> None:
    """In one command buffer an encode before the reload and one behind it, by turns with buffers without a reload."""
    bench, network = Bench.on(device), Network(CASES["one by one"], rng)
    if replays:
        bench.queue = replaying_queue(bench.device)
    else:
        bench.queue.max_capture_count = 0
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    sources = network.sources(bench, channel_format)
    shape = network.convolutions[0].weights().shape
    taken: list[str] = []
    for turn in range(8):
        arrays = [rng.normal(0, 0.3, shape), *network._rows(network.case.outputs)]
        made: list[list[Any]] = []
        for graph in (fused, apart):
            command_buffer = bench.command_buffer()
            results = [graph.encode_batch(command_buffer, sources)]
            if turn % 2:
                _reload(graph, command_buffer, bench, arrays, what)
            results.append(graph.encode_batch(command_buffer, sources))
            command_buffer.commit()
            made.append([command_buffer, *results])
        for command_buffer, *_ in made:
            command_buffer.wait_until_completed()
        taken += outcomes(made[0][0])
        for mine, theirs in zip(made[0][1:], made[1][1:], strict=True):
            _assert_equal(numbers(mine), numbers(theirs), channel_format, network)
        changed = np.abs(numbers(made[0][1]) - numbers(made[0][2])).max()
        assert (changed > 0.05) == bool(turn % 2)
    assert ("replayed" in taken) == replays


@pytest.mark.parametrize("channel_format", FORMATS)
def test_replays_equal_step_by_step_while_weights_change_at_once(
    channel_format: Format, device: torch.device, rng: np.random.Generator
) -> None:
    bench, network = Bench.on(device), Network(CASES["projection"], rng)
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    slow, bench.queue = bench.queue, replaying_queue(bench.device)
    taken: list[str] = []
    for turn in range(12):
        if turn % 4 == 3:
            network.change()
            for graph in (fused, apart):
                graph.reload_from_data_sources()
        sources = network.sources(bench, channel_format)
        command_buffer = bench.command_buffer()
        result: Any = fused.encode_batch(command_buffer, sources)
        finish(command_buffer)
        taken += outcomes(command_buffer)
        other = slow.command_buffer()
        expected: Any = apart.encode_batch(other, sources)
        finish(other)
        _assert_equal(numbers(result), numbers(expected), channel_format, network)
    assert taken.count("replayed") > 4


@pytest.mark.parametrize(
    "when", ["at first", "reloaded at once", "reloaded by a state", "reloaded in the first record"]
)
def test_what_float16_does_not_hold_stays_float32(when: str, device: torch.device, rng: np.random.Generator) -> None:
    """A variance so small that the weights grow beyond 65504, of images that are small enough for finite results."""
    bench, network = Bench.on(device), Network(replace(CASES["one by one"], biases=False), rng)
    rows = network.normalizations[0]._rows
    network.normalizations[0]._epsilon = 0.0
    rows["mean"][...] = 0.0
    rows["variance"][...] = 1e-12 if when == "at first" else 1.0
    sources = [bench.batch(rng.normal(0, 1e-4, (2, 16, 9, 9)), Format.FLOAT16)]
    graphs = [network.graph(bench, Format.FLOAT16, fuses=fuses) for fuses in (True, False)]
    if when != "reloaded in the first record":
        for graph in graphs:
            _run(graph, bench, sources)
    rows["variance"][...] = 1e-12
    if when == "reloaded at once":
        for graph in graphs:
            graph.reload_from_data_sources()
    elif when != "at first":
        buffers = [bench.device.new_buffer(data=np.float32(rows[name])) for name in ("mean", "variance")]
        state = mps.MPSCNNNormalizationMeanAndVarianceState(mean=buffers[0], variance=buffers[1])
        command_buffer = bench.command_buffer()
        for graph in graphs:
            kernel: Any = next(each for each in graph._kernels.values() if hasattr(each, "reload_mean_and_variance"))
            kernel.reload_mean_and_variance(command_buffer, state)
        finish(command_buffer)
    found, expected = (_run(graph, bench, sources) for graph in graphs)
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=1)
    assert 10 < expected.max() < 65504


def test_weights_are_prepared_once(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, network = Bench.on(torch.device("cpu")), Network(CASES["projection"], rng)
    graph = network.graph(bench, Format.FLOAT32, fuses=True)
    sources, calls, run = network.sources(bench, Format.FLOAT32), [], PrepareConvolution.run
    monkeypatch.setattr(PrepareConvolution, "run", lambda *arguments: calls.append(1) or run(*arguments))
    for _ in range(3):
        _run(graph, bench, sources)
    assert len(calls) == 2
    graph.reload_from_data_sources()
    for _ in range(3):
        _run(graph, bench, sources)
    assert len(calls) == 4


@pytest.mark.parametrize("channel_format", FORMATS)
def test_images_that_come_out_or_are_read_twice_are_there(
    channel_format: Format, device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    for exported in range(3):
        network = Network(CASES["added"], rng)
        node = network.inner[exported]
        node.export_from_graph, node.image_allocator = True, mps.MPSImage.default_allocator()
        sources, found = network.sources(bench, channel_format), []
        for fuses in (True, False):
            images: list[Any] = []
            command_buffer = bench.command_buffer()
            graph = network.graph(bench, channel_format, fuses=fuses)
            result: Any = graph.encode_batch(command_buffer, sources, intermediate_images=images)
            finish(command_buffer)
            found.append((numbers(result), numbers(images[0])))
        for mine, theirs in zip(*found, strict=True):
            _assert_equal(mine, theirs, channel_format, network)
    network = Network(replace(CASES["plain"], neuron="none"), rng)
    twice = mps.MPSNNAdditionNode(network.inner[0], network.result)
    graph = mps.MPSNNGraph(bench.device, twice.result_image)
    operations = graph.program_for(_descriptors(network.sources(bench, channel_format))).function.operations()
    assert {"Normalize", "StoredNormalization"}.intersection(operations), (
        "the result of the convolution that is read twice is there"
    )


@pytest.mark.parametrize("neuron", ["relu", "relu6", "leaky"])
@pytest.mark.parametrize("channel_format", FORMATS)
def test_what_is_not_a_number_stays_so_and_stops_a_run(
    channel_format: Format, neuron: str, device: torch.device, rng: np.random.Generator
) -> None:
    """Of the source, and of the image that is added. On a GPU cuDNN has its own ways with infinities."""
    bench, network = Bench.on(device), Network(replace(CASES["added"], neuron=neuron), rng)
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    for place, value in itertools.product(range(2), (np.nan, np.inf)):
        sources = network.sources(bench, channel_format)
        pixels = numbers(sources[place]).copy()
        pixels[0, 0, 4, 4] = value
        sources[place] = bench.batch(pixels, channel_format)
        found, expected = _run(fused, bench, sources), _run(apart, bench, sources)
        if np.isnan(value) or device.type == "cpu":
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
        if np.isinf(value):
            continue
        assert np.isnan(found).any()
        fused.stop_on_non_finite = True
        command_buffer = bench.command_buffer()
        fused.encode_batch(command_buffer, sources)
        command_buffer.commit()
        with pytest.raises(mps.MTLExecutionError, match="must be finite"):
            command_buffer.wait_until_completed()
        fused.stop_on_non_finite = False


def _bent(x: torch.Tensor, *, bend: float) -> torch.Tensor:
    return x + bend * x.sin()


class Bent(Op, of=_bent):
    """A neuron that the package has never seen, pointwise as operations are unless they say otherwise."""

    bend: float


@pytest.mark.parametrize("name", ["plain", "added", "one by one", "biases and no normalization"])
@pytest.mark.parametrize("channel_format", FORMATS)
def test_a_neuron_that_is_new_is_taken_in(
    channel_format: Format, name: str, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_of_neurons, "activated", lambda at, who, x, *_: Bent(0.7)(x))
    bench, network = Bench.on(device), Network(replace(CASES[name], neuron="tanh"), rng)
    fused, apart = (network.graph(bench, channel_format, fuses=fuses) for fuses in (True, False))
    sources = network.sources(bench, channel_format)
    operations = fused.program_for(_descriptors(sources)).function.operations()
    assert "Bent" not in operations and "FusedConvolution" in operations
    assert "Bent" in apart.program_for(_descriptors(sources)).function.operations()
    _assert_equal(_run(fused, bench, sources), _run(apart, bench, sources), channel_format, network)


def test_what_is_fused_is_told(rng: np.random.Generator) -> None:
    bench, network = Bench.on(torch.device("cpu")), Network(CASES["projection"], rng)
    graph, sources = network.graph(bench, Format.FLOAT32, fuses=True), network.sources(bench, Format.FLOAT32)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, sources)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    (work,) = command_buffer.explain().works
    assert work.operations == ("FusedConvolution", "FusedConvolution")
    assert "fused into others: MPSCNNConvolution, MPSCNNBatchNormalization" in str(command_buffer.explain())
    rows = mps.graph_summary(graph, _descriptors(sources), 2).rows
    kinds = [row.class_name for row in rows if row.is_fused]
    convolution, normalization = "MPSCNNConvolutionNode", "MPSCNNBatchNormalizationNode"
    assert kinds == [convolution, normalization, convolution, "MPSNNAdditionNode"]
    assert all(row.result_bytes == 0 for row in rows if row.is_fused)
