"""Networks whose blocks end by second moments, against the same networks without; and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from normalized_networks import FLOAT16, FLOAT32, FORMATS, NEURONS, Format, NormalizedNetwork, count, programs, trained
from openmps.graph.compile import compiler
from openmps.graph.compile.program import Program
from openmps.graph.compile.sharing import Sharing
from openmps.ops.normalization.second_moments import FoldByMoments, MomentsEnd, MomentsGradient, MomentsPassed
from openmps.ops.rewrite.rule import Place
from openmps.ops.update.collectives import Processes
from openmps.training import TrainableBatchNormalizationDataSource, architectures
from openmps.training.architectures import NETWORKS, NetworkRow
from openmps.training.network import Network, NetworkShape
from replay_twin import replaying_queue

pytestmark = pytest.mark.usefixtures("rules_of_a_gpu", "few_pixels")

SHAPE = (6, 6, 5, 3)
"""Of the input: images, channels, height, width."""
BOUNDS = {FLOAT32: 2e-4, FLOAT16: 4e-2}
"""After three steps, of the largest number."""


@pytest.fixture
def few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are right where nothing is gained, too."""
    monkeypatch.setattr(compiler, "_PIXELS", 1)


class Block(NormalizedNetwork):
    """A bottleneck: convolutions to ``narrow`` channels and back to those of the input, added to it, rectified."""

    def __init__(
        self,
        neuron: Callable[[Any], Any] = mps.MPSCNNNeuronReLUNode,
        *,
        narrow: int = 2,
        groups: int = 1,
        projects: bool = False,
        stride: int = 1,
        mean: bool = False,
        adds: bool = True,
        gradient_format: Format = FLOAT32,
        has_biases: bool = False,
        before_end: Callable[[Block], None] = lambda block: None,
    ) -> None:
        wide = SHAPE[1]
        super().__init__(wide, 1e-3)
        self.layers = []
        image = mps.MPSNNImageNode()
        first = self.normed(self.convolved(image, wide, narrow, "first"), narrow)
        inner = mps.MPSCNNNeuronReLUNode(first.result_image)
        outer = inner
        if stride > 1:
            middle = self.convolved(inner.result_image, narrow, narrow, "middle", stride=stride)
            inner = mps.MPSCNNNeuronReLUNode(self.normed(middle, narrow).result_image)
        more: Any = {"has_biases": has_biases}
        self.convolution = self.convolved(inner.result_image, narrow, wide, "second", groups, **more)
        self.normalization = self.normed(self.convolution, wide)
        shortcut: Any = image
        if projects:
            third = self.convolved(outer.result_image, narrow, wide, "third", stride=stride)
            shortcut, self.third = self.normed(third, wide).result_image, third.result_image
        end: Any = self.normalization
        self.sum = mps.MPSNNAdditionNode(end.result_image, shortcut) if adds else end
        activation: Any = neuron(self.sum.result_image)
        before_end(self)
        if mean:
            size = {"kernel_height": SHAPE[2], "kernel_width": SHAPE[3]}
            strides = {"stride_in_pixels_x": 1, "stride_in_pixels_y": 1}
            activation = mps.MPSCNNPoolingAverageNode(activation.result_image, **size, **strides)
            activation.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
        last: Any = self.convolved(activation.result_image, wide, wide, "last")
        self.last = last
        self.ends(last.result_image, gradient_format)

    def convolved(
        self,
        image: Any,
        inputs: int,
        outputs: int,
        label: str,
        groups: int = 1,
        *,
        has_biases: bool = False,
        stride: int = 1,
    ) -> mps.MPSCNNConvolutionNode:
        """A convolution of 1 x 1 pixels."""
        generator = np.random.default_rng(len(self.layers))
        descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, inputs, outputs)
        descriptor.groups, descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y = groups, stride, stride
        weights = generator.normal(0, 0.5, (outputs, 1, 1, inputs // groups)).astype(np.float32)
        biases = generator.normal(0, 0.5, outputs).astype(np.float32) if has_biases else None
        more: Any = {"label": label, "optimizer": self._optimizer}
        self.layers.append(mps.TrainableConvolutionDataSource(descriptor, weights, biases, **more))
        return mps.MPSCNNConvolutionNode(image, self.layers[-1])

    def normed(self, node: Any, channels: int) -> mps.MPSCNNBatchNormalizationNode:
        """A normalization behind it."""
        norm = TrainableBatchNormalizationDataSource(
            channels, label=f"norm{len(self.norms)}", optimizer=self._optimizer
        )
        self.norms.append(norm)
        return mps.MPSCNNBatchNormalizationNode(node.result_image, norm)


def both(
    make: Callable[[], Block], device: torch.device, channel_format: Format
) -> tuple[list[Any], list[Any], Program]:
    """What a network gives with the switch, replayed, and without; and the program with it."""
    found: list[list[Any]] = []
    program = None
    for switch in (True, False):
        bench, network = Bench.on(device), make()
        if switch:
            bench.queue = replaying_queue(device)
        graph = network.graph(bench, channel_format, fusion=True)
        asks = switch if channel_format is FLOAT32 else None if switch else False
        graph.allow_second_moments = asks
        found.append(trained(network, graph, bench, SHAPE, channel_format is FLOAT16))
        program = program or programs(graph, SHAPE, channel_format)
    assert program is not None
    return found[0], found[1], program


def assert_alike(found: list[Any], expected: list[Any], channel_format: Format) -> None:
    """Gradients of the source, then all parameters and averages: within the rounding of the format.

    Of float16 a few numbers may fall on the other side of a rectifier's edge, and take their pixels' gradients along.
    """
    for one, other in zip(found, expected, strict=True):
        bound = BOUNDS[channel_format] * (float(np.abs(other).max()) + 0.05)
        apart = np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)) > bound
        assert apart.mean() <= (0.02 if channel_format is FLOAT16 and one.ndim == 4 else 0.0)


def ends(program: Program) -> tuple[int, ...]:
    """How many of each operation of the rewrite there are."""
    return tuple(count(program, kind) for kind in (FoldByMoments, MomentsEnd, MomentsPassed, MomentsGradient))


VARIANTS: dict[str, dict[str, Any]] = {
    "identity": {},
    "biases": {"has_biases": True},
    "projection": {"projects": True},
    "strides": {"projects": True, "stride": 2},
    "mean": {"mean": True},
    "leaky relu": {"neuron": NEURONS["leaky relu"]},
    "relu n": {"neuron": NEURONS["relu n"]},
}


@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(each.name for each in pair))
@pytest.mark.parametrize("name", VARIANTS)
def test_training_equals_that_without(name: str, formats: tuple[Format, Format], device: torch.device) -> None:
    def make() -> Block:
        return Block(gradient_format=formats[1], **VARIANTS[name])

    found, expected, program = both(make, device, formats[0])
    assert_alike(found, expected, formats[0])
    branches = 2 if name in ("projection", "strides") else 1
    assert ends(program) == (branches, 1, 1, branches)
    assert any((one != other).any() for one, other in zip(found, expected, strict=True)), "is it another way at all?"


def _exports(image: Any) -> None:
    image.export_from_graph, image.image_allocator = True, mps.MPSImage.default_allocator()


REFUSED: dict[str, dict[str, Any]] = {
    "weights that are not narrow": {"narrow": 4},
    "groups": {"groups": 2},
    "nothing is added": {"adds": False},
    "the products are exported": {"before_end": lambda block: _exports(block.convolution.result_image)},
    "the normalization is exported": {"before_end": lambda block: _exports(block.normalization.result_image)},
    "the sum is exported": {"before_end": lambda block: _exports(block.sum.result_image)},
    "another neuron": {"neuron": mps.MPSCNNNeuronSigmoidNode},
    "a branch of the two that are added": {"projects": True, "before_end": lambda block: _exports(block.third)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_stays(name: str, device: torch.device) -> None:
    found, expected, program = both(lambda: Block(**REFUSED[name]), device, FLOAT16)
    assert ends(program) == (0, 0, 0, 0)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_pixels_stay(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over them cost less than the products."""
    graph = Block().graph(Bench.on(device), FLOAT16, fusion=True)
    graph.allow_second_moments = True
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "place_of", lambda device: Place.TRITON)
    pixels = SHAPE[2] * SHAPE[3]
    for images, found in ((256 // pixels, 0), (256 // pixels + 1, 1)):
        assert count(programs(graph, (images, *SHAPE[1:]), FLOAT16), MomentsEnd) == found


@pytest.mark.parametrize("together", [True, False])
def test_statistics_of_several_processes_stay(together: bool) -> None:
    """Those of each process's own share do not."""
    processes = Processes(None, 0, 2, in_order=False, explain=lambda error: error)
    graph = Block().graph(Bench.on(torch.device("cpu")), FLOAT16, fusion=True)
    graph.allow_second_moments = True
    graph.share_among(Sharing(processes, synchronizes_statistics=together))
    assert count(programs(graph, SHAPE, FLOAT16), MomentsEnd) == (not together)


class ReadTwice(Block):
    """The products are read by another filter, too."""

    def ends(self, image: Any, gradient_format: Format) -> None:
        both_read = mps.MPSNNAdditionNode(image, self.convolution.result_image)
        super().ends(both_read.result_image, gradient_format)


def test_what_others_read_stays(device: torch.device) -> None:
    _, _, program = both(ReadTwice, device, FLOAT16)
    assert ends(program) == (0, 0, 0, 0)


class Exported(Block):
    """The gradient of the products is exported."""

    def ends(self, image: Any, gradient_format: Format) -> None:
        def store(gradient: Any, inference: Any, *_: Any) -> None:
            gradient.result_image.format = gradient_format
            if inference is self.normalization:
                _exports(gradient.result_image)

        made = mps.MPSNNInitialGradientNode(image).training_graph(None, store)
        assert made is not None
        self.result = made[0].result_image


def test_an_exported_gradient_stays(device: torch.device) -> None:
    _, _, program = both(Exported, device, FLOAT16)
    assert ends(program) == (0, 0, 0, 0)


def test_without_gradients_nothing_is_rewritten(device: torch.device) -> None:
    bench, network = Bench.on(device), Block()
    graph = mps.MPSNNGraph(bench.device, network.last.result_image)
    graph.allow_second_moments = True
    assert ends(programs(graph, SHAPE, FLOAT16)) == (0, 0, 0, 0)


def test_the_switch_may_change_between_encodes(device: torch.device) -> None:
    bench = Bench.on(device)
    graph = Block().graph(bench, FLOAT16, fusion=True)
    seen: list[int] = []
    for fusion, switch in ((True, False), (True, True), (False, True), (True, True), (True, False)):
        graph.allow_fusion, graph.allow_second_moments = fusion, switch
        seen.append(count(programs(graph, SHAPE, FLOAT16), MomentsEnd))
    assert seen == [0, 1, 0, 1, 0]
    assert not count(graph.program_for([mps.MPSImageDescriptor(FLOAT16, 3, 5, 6)], allow_fusion=False), MomentsEnd)


def test_steps_that_are_like_the_last_see_the_switch(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes out of these, so that they are encoded again without being looked at."""
    monkeypatch.setitem(NETWORKS, "small", NetworkRow(_small, 8))  # pyright: ignore[reportArgumentType]
    bench, shape = Bench.on(device), NetworkShape(8, 8, 1, 10, "small")
    network = Network.create(shape, seed=1, optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 0.003))
    graph = network.training_graph(bench.device, FLOAT16, loss_weight=1.0, dropout_seed=1)
    graph.stop_on_non_finite = False
    pixels = np.random.default_rng(1).random((40, 8, 8, 1)).astype(np.float16)
    one_hot = np.eye(10, dtype=np.float32)[np.arange(40) % 10]
    seen: list[int] = []
    for switch in (False, False, False, True, True, True, False):
        graph.allow_second_moments = switch
        command_buffer = bench.command_buffer()
        images, labels = (
            mps.MPSImageBatch.from_numpy(bench.device, pixels),
            mps.MPSCNNLossLabels.batch(bench.device, one_hot),
        )
        graph.encode_batch(command_buffer, [images], [labels])
        finish(command_buffer)
        seen.append(sum(work.operations.count("MomentsEnd") for work in command_buffer.explain().works))
    assert seen == [0, 0, 0, 3, 3, 3, 0]


def test_the_cpu_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    graph = Block().graph(Bench.on(torch.device("cpu")), FLOAT16, fusion=True)
    graph.allow_second_moments = True
    assert ends(programs(graph, SHAPE, FLOAT16)) == (0, 0, 0, 0)


def test_explain_names_it(device: torch.device) -> None:
    bench, network = Bench.on(device), Block()
    network.convolution.label, network.normalization.label = "a convolution", "a norm"
    graph = network.graph(bench, FLOAT16, fusion=True)
    graph.allow_second_moments = True
    pixels = np.zeros((SHAPE[0], SHAPE[2], SHAPE[3], SHAPE[1]), np.float16)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(bench.device, pixels)])
    finish(command_buffer)
    (work,) = [each for each in command_buffer.explain().works if "MomentsEnd" in each.operations]
    assert any("a convolution" in name for name in work.fused)
    assert any("a norm" in name for name in work.fused)


def test_a_trace_shows_the_images(device: torch.device) -> None:
    """All filters run apart there, unless fused is asked for; averages are those of an encode."""
    network = Block()
    network.convolution.label = "a convolution"
    graph = network.graph(Bench.on(device), FLOAT32, fusion=True)
    graph.allow_second_moments = True
    pixels = np.random.default_rng(1).normal(0, 1, (SHAPE[0], SHAPE[2], SHAPE[3], SHAPE[1])).astype(np.float32)
    assert any("a convolution" in label for label in graph.trace([pixels]))


def _small(net: Any) -> Any:
    return architectures._resnet(net, (2, 1), 8, is_deep=True)  # pyright: ignore[reportPrivateUsage]


RATE, EPOCHS = 0.02, 4


@pytest.mark.parametrize("channel_format", [FLOAT32, FLOAT16], ids=lambda each: each.name)
def test_a_residual_network_learns_as_well(
    channel_format: Format, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bottlenecks with and without projections, on scikit-learn's digits."""
    datasets: Any = pytest.importorskip("sklearn.datasets")
    monkeypatch.setitem(NETWORKS, "small", NetworkRow(_small, 8))  # pyright: ignore[reportArgumentType]
    digits = datasets.load_digits()
    dtype = np.float16 if channel_format is FLOAT16 else np.float32
    pixels, classes = (digits.images[..., None] / 16).astype(dtype), digits.target
    rates = [_rate(pixels, classes, Bench.on(device), channel_format, switch=switch) for switch in (True, False)]
    # Of those that training has not seen alone, 300 by other hands, seeds differ by 0.03; of all by 0.006.
    assert min(rates) > 0.95
    assert abs(rates[0] - rates[1]) < 0.015


def _rate(
    pixels: np.ndarray, classes: np.ndarray, bench: Bench, channel_format: Format, *, switch: bool, batch: int = 75
) -> float:
    """The share of all images classified rightly, five of six of which training has seen."""
    shape = NetworkShape(8, 8, 1, 10, "small")
    network = Network.create(shape, seed=1, optimizer=lambda device: mps.MPSNNOptimizerAdam(device, RATE))
    graph = network.training_graph(bench.device, channel_format, loss_weight=1 / batch, dropout_seed=1)
    graph.allow_second_moments = switch
    descriptor = mps.MPSImageDescriptor(channel_format, 8, 8, 1)
    expected = (5, 3, 3, 5) if switch else (0, 0, 0, 0)
    assert ends(graph.program_for([descriptor], batch)) == expected, "three blocks, two of which project"
    one_hot, generator, seen = np.eye(10, dtype=np.float32), np.random.default_rng(1), 1500
    for epoch in range(EPOCHS):
        # Down to small steps: by the last of large ones a few hundred images are classified with luck.
        network.set_learning_rate(RATE * (1 - epoch / EPOCHS))
        for picked in np.array_split(generator.permutation(seen), seen // batch):
            command_buffer = bench.command_buffer()
            images = mps.MPSImageBatch.from_numpy(bench.device, pixels[picked])
            labels = mps.MPSCNNLossLabels.batch(bench.device, one_hot[classes[picked]])
            graph.encode_batch(command_buffer, [images], [labels])
            finish(command_buffer)
    tested = Network.from_arrays(shape, network.arrays()).inference_graph(bench.device, channel_format)
    command_buffer = bench.command_buffer()
    found: Any = tested.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(bench.device, pixels)])
    finish(command_buffer)
    return float((found.numpy().reshape(len(pixels), 10).argmax(1) == classes).mean())
