"""Each rule of the table of fusions, on every pair of operations that its patterns take, against the unfused run.

The nodes of the catalogue follow one another in twos, in every configuration that their samples have, and in threes
and fours where a rule works on what other rules make. What a rule claims by its pattern and never changes is told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import FLOAT16, FLOAT32, Bench, finish, keep_results, numbers
from node_catalogue import NODE_SAMPLES
from openmps.core.kernel.lowering_context import RESULT
from openmps.errors import MPSError
from openmps.graph.compile import compiler
from openmps.ops.op import Equation, Function
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.fuse import fuse
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rule import Place, Rule, Situation
from openmps.ops.rewrite.table import RULES
from openmps.runtime.replay import fusion
from openmps.training import TrainableBatchNormalizationDataSource
from replay_twin import replayer_of, replaying_queue
from samples.sample import Sample

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning", "ignore:.*channels a group")
IMAGES, SIDE, CHANNELS = 2, 6, 4
ROUNDING = {FLOAT32: 2.0**-17, FLOAT16: 2.0**-8}
"""Of the largest number of a result: some roundings of the sums before it, and of what stands between."""


class Link(NamedTuple):
    """A node of a chain, by the sample of its kernel."""

    kind: type[mps.MPSNNFilterNode]
    sample: Sample


LINKS = [Link(kind, sample) for kind, entry in NODE_SAMPLES.items() for sample in entry.samples]


class Chain:
    """Nodes one behind the other; each reads the one before, and images of the same size besides."""

    def __init__(self, bench: Bench, links: Sequence[Link]) -> None:
        self.bench = bench
        first = mps.MPSNNImageNode()
        self.shapes = {first: links[0].sample.shapes[0]}
        self.result = first
        for link in links:
            others = [mps.MPSNNImageNode() for _ in link.sample.shapes[1:]]
            if others:
                self.shapes |= dict.fromkeys(others, self.size())
            kernel = link.sample.make(bench.device)
            node = NODE_SAMPLES[link.kind].make(kernel, [self.result, *others])
            self.result = node.result_image

    def size(self) -> tuple[int, int, int]:
        """Of the result so far."""
        if self.result not in self.shapes:
            graph = mps.MPSNNGraph(self.bench.device, self.result)
            extent = graph.program_for(self.descriptors(graph, FLOAT32)).stages[-1].shape.extent
            self.shapes[self.result] = extent.channels, extent.height, extent.width
        return self.shapes[self.result]

    def descriptors(self, graph: mps.MPSNNGraph, channel_format: Any) -> list[mps.MPSImageDescriptor]:
        sizes = [self.shapes[node] for node in graph.interface.inputs]
        return [mps.MPSImageDescriptor(channel_format, width, height, channels) for channels, height, width in sizes]

    def graph(self, channel_format: Any, *, trains: bool, asks: bool = True) -> mps.MPSNNGraph:
        """With a result, or one that trains alone."""
        result = self.result
        if trains:
            # Gradients of ones are 0 behind a normalization: nothing but rounding would be compared.
            weights = mps.MPSNNImageNode()
            self.shapes[weights] = self.size()
            weighted = mps.MPSNNMultiplicationNode(result, weights).result_image
            _, *made = mps.MPSNNInitialGradientNode(weighted).training_graph(None) or ()
            assert made
            result = made[0].result_image
        graph = mps.MPSNNGraph(self.bench.device, result, asks)
        graph.format, graph.allow_second_moments, graph.stop_on_non_finite = channel_format, trains, False
        return graph


class Claim(NamedTuple):
    """A match of a rule's pattern, and whether the rule has changed it."""

    rule: str
    operations: tuple[str, ...]
    fired: bool


def claims(function: Function, situation: Situation) -> Iterator[Claim]:
    """All matches while the table is applied."""
    fused = FusedFunction(function, {}, {})
    for rule in RULES:
        if not rule.may_run(fused.function, situation):
            continue
        after = rule.apply(fused, situation)
        left = set(after.function.equations) if after.recipes == fused.recipes else set[Equation]()
        for match in _matches(rule, fused.function):
            yield Claim(rule.name, tuple(map(_name, match)), after is not fused and not left.issuperset(match))
        fused = after


def _matches(rule: Rule, function: Function) -> list[tuple[Equation, ...]]:
    flow = DataFlow(function)
    return [match for equation in function.equations for match in rule.matches(flow, equation)]


def _name(equation: Equation) -> str:
    """An operation, and which neuron or arithmetic it is."""
    op: Any = equation.op
    which = getattr(op, "function", None) or getattr(op, "operation", None)
    return type(op).__name__ + (f" {which.name}" if isinstance(which, Enum) else "")


# --- a network for each rule ------------------------------------------------------------------------------------------


def _stays(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerStochasticGradientDescent(device, 0.0)


class Layers:
    """Nodes with data sources of their own, over images of four channels."""

    optimizer: Callable[[mps.MTLDevice], mps.MPSNNOptimizer] = staticmethod(_stays)

    def __init__(self) -> None:
        self._rng = np.random.default_rng(2)
        self.sources: list[mps.TrainableConvolutionDataSource] = []
        self.image = mps.MPSNNImageNode()

    def convolution(self, x: Any, size: int = 3, outputs: int = CHANNELS) -> Any:
        descriptor = mps.MPSCNNConvolutionDescriptor(size, size, CHANNELS, outputs)
        weights = self._rng.normal(0, 0.3, descriptor.weight_shape())
        biases = self._rng.normal(0, 0.3, outputs)
        source = mps.TrainableConvolutionDataSource(descriptor, weights, biases, optimizer=self.optimizer)
        self.sources.append(source)
        return mps.MPSCNNConvolutionNode(x, source).result_image

    def connected(self, x: Any) -> Any:
        descriptor = mps.MPSCNNConvolutionDescriptor(SIDE, SIDE, CHANNELS, 3)
        weights = self._rng.normal(0, 0.1, descriptor.weight_shape())
        node = mps.MPSCNNFullyConnectedNode(x, mps.ArrayConvolutionDataSource(descriptor, weights))
        node.result_image.format = FLOAT32
        return node.result_image

    def normalized(self, x: Any) -> Any:
        label = f"norm {self._rng.integers(1 << 30)}"
        source = TrainableBatchNormalizationDataSource(CHANNELS, label=label, optimizer=_stays)
        return mps.MPSCNNBatchNormalizationNode(x, source).result_image

    def relu(self, x: Any) -> Any:
        return mps.MPSCNNNeuronReLUNode(x).result_image

    def gelu(self, x: Any) -> Any:
        return mps.MPSCNNNeuronGeLUNode(x).result_image

    def sum(self, x: Any, y: Any) -> Any:
        return mps.MPSNNAdditionNode(x, y).result_image

    def pooled(self, x: Any) -> Any:
        return mps.MPSCNNPoolingMaxNode(x, 2, 2).result_image

    def mean(self, x: Any) -> Any:
        node = mps.MPSCNNPoolingAverageNode(x, SIDE, SIDE)
        node.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
        return node.result_image

    def block(self, x: Any) -> Any:
        return self.relu(self.sum(self.normalized(self.convolution(x, 1)), x))


class Network(Chain):
    """What a function makes of layers."""

    def __init__(self, bench: Bench, make: Callable[[Layers], Any]) -> None:
        self.bench, self.layers = bench, Layers()
        self.result = make(self.layers)
        self.shapes = defaultdict(lambda: (CHANNELS, SIDE, SIDE))


class Example(NamedTuple):
    """A network that a rule has something to do in."""

    make: Callable[[Layers], Any]
    place: Place = Place.CPU
    trains: bool = False
    channel_format: Any = FLOAT32
    asks: bool = True
    """Whether a result is asked for; else parameters are compared."""


def _elu(layers: Layers, a: float) -> Any:
    return mps.MPSCNNNeuronELUNode(layers.image, a).result_image


def _grown(layers: Layers) -> Any:
    first = mps.MPSNNConcatenationNode([layers.image, mps.MPSNNImageNode()])
    return mps.MPSNNConcatenationNode([first.result_image, mps.MPSNNImageNode()]).result_image


def _added(it: Layers) -> Any:
    return it.convolution(it.relu(it.sum(it.convolution(it.image), it.convolution(it.image))))


def _projected(it: Layers) -> Any:
    return it.relu(it.sum(it.normalized(it.convolution(it.image)), it.normalized(it.convolution(it.image))))


def _ended(it: Layers) -> Any:
    return it.relu(it.sum(it.normalized(it.convolution(it.image)), it.normalized(it.convolution(it.image, 1))))


def _followed(it: Layers) -> tuple[Any, Any]:
    end = it.block(it.image)
    return end, it.relu(it.convolution(end, 1))


EXAMPLES: dict[str, Example] = {
    "convolution with GeLU": Example(lambda it: it.gelu(it.convolution(it.image)), Place.TRITON),
    "convolution end": Example(lambda it: it.block(it.image)),
    "packed convolution": Example(lambda it: it.convolution(it.image)),
    "joined biases": Example(lambda it: it.sum(it.convolution(it.image), it.convolution(it.image))),
    "projected end": Example(_ended, Place.TRITON, channel_format=FLOAT16),
    "followed end": Example(lambda it: it.sum(*_followed(it)), Place.TRITON, channel_format=FLOAT16),
    "stored normalization": Example(lambda it: it.normalized(it.image)),
    "preactivation": Example(lambda it: it.convolution(it.relu(it.normalized(it.image)), 1)),
    "growing concatenation": Example(_grown),
    "numbers loaded once": Example(lambda it: it.sum(_elu(it, 0.3), _elu(it, 0.7)), channel_format=FLOAT16),
    "gradient handed on": Example(_added, trains=True),
    "rounded once": Example(_added, trains=True, channel_format=FLOAT16),
    "normalized neuron": Example(lambda it: it.relu(it.normalized(it.image)), Place.TRITON, trains=True),
    "normalized pooling": Example(
        lambda it: it.pooled(it.relu(it.normalized(it.convolution(it.image)))), Place.TRITON, trains=True
    ),
    "added normalization": Example(_projected, Place.TRITON, trains=True),
    "spread gradient": Example(lambda it: it.mean(it.block(it.convolution(it.image))), Place.TRITON, trains=True),
    "end by moments": Example(lambda it: it.block(it.relu(it.convolution(it.image))), Place.TRITON, trains=True),
    "pooling before ReLU": Example(lambda it: it.pooled(it.relu(it.image))),
    "pooled convolution": Example(lambda it: it.pooled(it.relu(it.convolution(it.image))), Place.TRITON),
    "layer end": Example(lambda it: it.relu(it.pooled(it.convolution(it.image))), Place.TRITON, trains=True),
    "convolution with its end": Example(
        lambda it: it.convolution(it.pooled(it.convolution(it.image))),
        Place.TRITON,
        trains=True,
        channel_format=FLOAT16,
    ),
    "gradient of a convolution with its end": Example(
        lambda it: it.relu(it.pooled(it.convolution(it.image))), Place.TRITON, trains=True, asks=False
    ),
    "wide products": Example(lambda it: it.connected(it.image), Place.TRITON, channel_format=FLOAT16),
}


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_does_something_and_gives_the_same(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES[rule]
    monkeypatch.setattr(compiler, "place_of", lambda device: example.place)
    monkeypatch.setattr(compiler, "_PIXELS", 0)
    monkeypatch.setattr(compiler, "_MADE", 0)
    if example.asks:
        network = Network(Bench.on(torch.device("cpu")), example.make)
        found = _try(network, example.channel_format, trains=example.trains)
    else:
        found = _try_parameters(example, monkeypatch)
    assert rule in {each.rule for each in found if each.fired}


# --- every pair of nodes ----------------------------------------------------------------------------------------------


def _chain(bench: Bench, links: Sequence[Link]) -> Chain | None:
    """The nodes of the links, where they fit."""
    try:
        chain = Chain(bench, links)
        chain.size()
    except MPSError:
        return None
    return chain


def _program(chain: Any, graph: mps.MPSNNGraph, channel_format: Any) -> Any:
    return graph.program_for(chain.descriptors(graph, channel_format), IMAGES)


@cache
def _own(link: Link) -> tuple[Equation, ...]:
    """The equations of a node by itself."""
    chain = _chain(Bench.on(torch.device("cpu")), [link])
    if chain is None:
        return ()
    graph = chain.graph(FLOAT32, trains=False)
    graph.allow_fusion = False
    return _program(chain, graph, FLOAT32).function.equations


PATTERNS = [pattern for rule in RULES for pattern in rule.patterns]


@cache
def _matched(link: Link, at: int) -> frozenset[int]:
    """The patterns whose term at this place is such as the node has."""
    ops = [each.op for each in _own(link)]
    return frozenset(
        number for number, terms in enumerate(PATTERNS) if len(terms) > at and any(map(terms[at].names, ops))
    )


FIRSTS = [each for each in LINKS if _matched(each, 0)]
"""The nodes that a pattern can begin with."""


@cache
def _pairs(first: Link) -> list[tuple[Link, Chain]]:
    """The nodes that may stand behind it in a pattern, and both of them where they fit."""
    bench = Bench.on(torch.device("cpu"))
    seconds = [each for each in LINKS if not _matched(first, 0).isdisjoint(_matched(each, 1))]
    chains = [(second, _chain(bench, [first, second])) for second in seconds]
    return [(second, chain) for second, chain in chains if chain is not None]


def _sources(chain: Any, graph: mps.MPSNNGraph, channel_format: Any) -> list[Any]:
    rng = np.random.default_rng(4)
    sizes = [(IMAGES, *chain.shapes[node]) for node in graph.interface.inputs]
    return [chain.bench.batch(rng.normal(0, 1, size), channel_format) for size in sizes]


def _result(chain: Any, graph: mps.MPSNNGraph, sources: list[Any]) -> np.ndarray:
    command_buffer = chain.bench.command_buffer()
    made: Any = graph.encode_batch(command_buffer, sources)
    finish(command_buffer)
    return numbers(made)


def _try(chain: Any, channel_format: Any, *, trains: bool) -> list[Claim]:
    """Compare what a network gives fused and unfused, as `compiler.place_of` says; what the rules have claimed."""
    return _try_at(chain, channel_format, [compiler.place_of(chain.bench.device.torch_device)], trains=trains)[0]


def _try_at(chain: Any, channel_format: Any, places: Sequence[Place], *, trains: bool) -> list[list[Claim]]:
    """`_try` for each of several places, where the unfused run is the same."""
    plain = chain.graph(channel_format, trains=trains)
    plain.allow_fusion = False
    program = _program(chain, plain, channel_format)
    moments = compiler._narrow(program, program.function) if trains else frozenset()
    found, apart = list[list[Claim]](), None
    for place in places:
        found.append([*claims(program.function, Situation(place, IMAGES, moments=moments))])
        if not any(each.fired for each in found[-1]):
            continue
        sources = _sources(chain, plain, channel_format)
        apart = _result(chain, plain, sources) if apart is None else apart
        with mock.patch.object(compiler, "place_of", lambda device, place=place: place):
            fused = _result(chain, chain.graph(channel_format, trains=trains), sources)
        finite = np.abs(apart[np.isfinite(apart)])
        scale = float(finite.max()) if finite.size else 1.0
        np.testing.assert_allclose(fused, apart, rtol=ROUNDING[channel_format], atol=ROUNDING[channel_format] * scale)
    return found


def _try_parameters(example: Example, taken: pytest.MonkeyPatch) -> list[Claim]:
    """Compare the parameters that a step of a network gives fused and unfused; what the rules have claimed."""
    taken.setattr(Layers, "optimizer", lambda _, device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.5))
    found, networks = list[Claim](), [Network(Bench.on(torch.device("cpu")), example.make) for _ in range(2)]
    for network, fuses in zip(networks, (True, False), strict=True):
        graph = network.graph(example.channel_format, trains=True, asks=False)
        graph.allow_fusion = fuses
        if not fuses:
            function = _program(network, graph, example.channel_format).function
            found = [*claims(function, Situation(example.place, IMAGES))]
        command_buffer = network.bench.command_buffer()
        graph.encode_batch(command_buffer, _sources(network, graph, example.channel_format))
        finish(command_buffer)
    fused, apart = ([each.arrays() for each in network.layers.sources] for network in networks)
    for one, other in zip(fused, apart, strict=True):
        for name, expected in other.items():
            np.testing.assert_allclose(one[name], expected, rtol=0.0, atol=ROUNDING[example.channel_format])
    return found


PLACES = Place.CPU, Place.TRITON


@pytest.mark.parametrize("first", FIRSTS, ids=lambda each: f"{each.kind.__name__}: {each.sample}")
def test_each_rule_on_each_pair(first: Link) -> None:
    """In training and in float16 by turns, so that each is among them often."""
    silent = _silent(first)
    assert not any(silent.values()), "rules claim these pairs by patterns and never change them: sharpen the patterns"


def _silent(first: Link) -> dict[Place, set[Any]]:
    """What rules claim of the pairs of a node, and never change."""
    claimed = {place: Counter[tuple[str, tuple[str, ...]]]() for place in PLACES}
    fired = {place: set[tuple[str, tuple[str, ...]]]() for place in PLACES}
    for number, (_, chain) in enumerate(_pairs(first)):
        turn = FIRSTS.index(first) + number
        tries = [_try_at(chain, FLOAT32, PLACES, trains=False)]
        if turn % 3 == 0:
            tries.append(_try_at(chain, FLOAT16, PLACES, trains=False))
        elif turn % 3 == 1 and _trains(chain):
            tries.append(_try_at(chain, FLOAT32, PLACES, trains=True))
        for tried in tries:
            for place, found in zip(PLACES, tried, strict=True):
                claimed[place].update(each[:2] for each in found if len(each.operations) > 1)
                fired[place] |= {each[:2] for each in found if each.fired}
    return {place: claimed[place].keys() - fired[place] for place in PLACES}


def _trains(chain: Chain) -> bool:
    try:
        chain.graph(FLOAT32, trains=True)
    except MPSError:  # Not every node has a gradient.
        return False
    return True


# --- kernels encoded one by one ---------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What kernels give one behind the other, their operations, and whether one runs as a part of another."""

    result: np.ndarray
    operations: list[str]
    is_fused: bool


def _one_by_one(bench: Bench, kernels: Sequence[Any], sources: Sequence[Any]) -> Told:
    """Kernels one behind the other, the images between them temporary."""
    command_buffer = bench.command_buffer()
    (image, *others), made = sources, None
    for kernel in kernels:
        count = len(kernel._source_arguments) - 1
        given = [image if made is None else made, *others[:count]]
        others, made = others[count:], kernel.encode_batch(command_buffer, *given)
    finish(command_buffer)
    works = command_buffer.explain().works
    return Told(numbers(made), [name for each in works for name in each.operations], any(each.fused for each in works))


@pytest.mark.parametrize("first", FIRSTS, ids=lambda each: f"{each.kind.__name__}: {each.sample}")
def test_each_pair_encoded_one_by_one(first: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed and fused they give what they give step by step."""
    plain = Bench.on(torch.device("cpu"))
    plain.queue.max_capture_count = 0
    replaying = {place: Bench.on(torch.device("cpu")) for place in PLACES}
    for bench in replaying.values():
        bench.queue = replaying_queue(bench.device)
    for second, chain in _pairs(first):
        if "MPSNNConcatenationNode" in (first.kind.__name__, second.kind.__name__):
            continue  # The kernel of a concatenation is no public one.
        graph = chain.graph(FLOAT32, trains=False)
        program = _program(chain, graph, FLOAT32)
        function, makers = program.assemble({(len(program.stages) - 1, RESULT)})
        # What is drawn at random is another number in each encode, and all else the same.
        times = RUNS if "random" in first.sample.traits | second.sample.traits else 1
        sources = [_sources(chain, graph, FLOAT32) for _ in range(RUNS)]
        expected = _told(plain, (first, second), sources[:times]) * (RUNS // times)
        for place, bench in replaying.items():
            monkeypatch.setattr(fusion, "place_of", lambda device, place=place: place)
            found, what = _told(bench, (first, second), sources), f"{second.sample}, {place}"
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine.result, theirs.result, err_msg=what)
            if found and found[-1].operations == [*function.operations()]:
                gone = fuse(function, Situation(place, IMAGES, prepares=False)).gone
                assert found[-1].is_fused == (not makers.keys().isdisjoint(gone)), what
    assert not any(replayer_of(bench.queue).refusals for bench in replaying.values())


RUNS = 3
"""Step by step, captured, and replayed."""


def _told(bench: Bench, links: Sequence[Link], sources: Sequence[Sequence[Any]]) -> list[Told]:
    """What the kernels of a chain give of each sources; nothing where they have other paddings and refuse the size."""
    kernels = [link.sample.make(bench.device) for link in links]
    keep_results(kernels[-1])
    with suppress(MPSError):
        return [_one_by_one(bench, kernels, each) for each in sources]
    return []
