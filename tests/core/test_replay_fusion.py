"""Kernels that are encoded one by one are fused when their command buffer is replayed: the same as apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import openmps as mps
from encoding import Bench, finish, keep_results, numbers
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.ops.op import Op, Value
from openmps.training import ArrayConvolutionDataSource
from replay_twin import assert_same, outcomes, replayer_of, replaying_queue

CHANNELS, ROUNDS = 4, 5
Format = mps.MPSImageFeatureChannelFormat
FORMATS = [Format.FLOAT32, Format.FLOAT16]
Array = np.ndarray


def _bent(x: Tensor, *, bend: float) -> Tensor:
    return x + bend * x.sin()


class Bent(Op, of=_bent):
    """A neuron that the package has never seen."""

    bend: float


class BentKernel(MPSCNNKernel):
    """`Bent` of an image (no header: a test's)."""

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Bent(0.7)(at.read(images[0]))


class Layers:
    """Kernels that a test encodes one behind the other."""

    def __init__(self, bench: Bench, *, biases: bool = True) -> None:
        rng = np.random.default_rng(3)
        descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, CHANNELS, CHANNELS)
        weights = rng.normal(0, 0.3, descriptor.weight_shape()).astype(np.float32)
        summands = rng.normal(0, 0.3, CHANNELS).astype(np.float32) if biases else None
        self.source = ArrayConvolutionDataSource(descriptor, weights, summands)
        device = bench.device
        self.convolution = mps.MPSCNNConvolution(device, self.source)
        self.relu = mps.MPSCNNNeuronReLU(device, 0.0)
        self.tanh = mps.MPSCNNNeuronTanH(device, 1.3, 0.7)
        self.prelu = mps.MPSCNNNeuronPReLU(device, np.linspace(-0.5, 0.5, CHANNELS).astype(np.float32))
        self.bent = BentKernel(device)
        self.add = mps.MPSCNNAdd(device)
        self.pool = mps.MPSCNNPoolingMax(device, 2, 2, 2, 2)


Chain = Callable[[Layers, Any, Any], Any]


def _behind(name: str) -> Chain:
    def chain(layers: Layers, command_buffer: Any, image: Any) -> Any:
        made = layers.convolution.encode_batch(command_buffer, image)
        kernel = getattr(layers, name)
        keep_results(kernel)
        return kernel.encode_batch(command_buffer, made)

    return chain


def _added(layers: Layers, command_buffer: Any, image: Any) -> Any:
    made = layers.convolution.encode_batch(command_buffer, image)
    keep_results(layers.relu)
    return layers.relu.encode_batch(command_buffer, layers.add.encode_batch(command_buffer, made, image))


def _pooled(layers: Layers, command_buffer: Any, image: Any) -> Any:
    keep_results(layers.pool)
    return layers.pool.encode_batch(command_buffer, layers.relu.encode_batch(command_buffer, image))


def _images(bench: Bench, channel_format: Format) -> list[Any]:
    rng = np.random.default_rng(11)
    return [bench.batch(rng.normal(0, 1, (2, CHANNELS, 8, 8)), channel_format) for _ in range(ROUNDS)]


def _run(bench: Bench, chain: Chain, layers: Layers, image: Any) -> tuple[Array, Any]:
    command_buffer = bench.command_buffer()
    result = chain(layers, command_buffer, image)
    finish(command_buffer)
    return numbers(result), command_buffer


def _fused(command_buffer: Any) -> list[str]:
    """The kernels that run as parts of others."""
    return [name for work in command_buffer.explain().works for name in work.fused]


def _pair(device: torch.device) -> tuple[Bench, Bench]:
    """One whose queue replays and fuses, and one that runs step by step."""
    plain, replaying = Bench.on(device), Bench.on(device)
    plain.queue.max_capture_count = 0
    replaying.queue = replaying_queue(device)
    return replaying, plain


CHAINS: dict[str, tuple[Chain, list[str]]] = {
    "relu": (_behind("relu"), ["MPSCNNConvolution"]),
    "tanh": (_behind("tanh"), ["MPSCNNConvolution"]),
    "prelu": (_behind("prelu"), ["MPSCNNConvolution"]),
    "a new neuron": (_behind("bent"), ["MPSCNNConvolution"]),
    "sum": (_added, ["MPSCNNConvolution", "MPSCNNAdd"]),
    "pooling": (_pooled, ["MPSCNNNeuronReLU"]),
}


@pytest.mark.parametrize("channel_format", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", CHAINS)
def test_what_is_fused_gives_what_the_kernels_give(name: str, channel_format: Format, device: torch.device) -> None:
    (fusing, plain), (chain, gone) = _pair(device), CHAINS[name]
    layers, others = Layers(fusing), Layers(plain)
    taken: list[list[str]] = []
    pairs = zip(_images(fusing, channel_format), _images(plain, channel_format), strict=True)
    for image, other in pairs:
        found, command_buffer = _run(fusing, chain, layers, image)
        expected, _ = _run(plain, chain, others, other)
        if (name, channel_format) == ("sum", Format.FLOAT16):
            # Two numbers between are not rounded: half a step each of the largest one.
            np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-10 * float(np.abs(expected).max()) * 2)
        else:
            assert_same(found, expected, device, name)
        taken.append(_fused(command_buffer))
    assert taken == [[]] + [gone] * (ROUNDS - 1)
    assert not replayer_of(fusing.queue).refusals


def test_an_image_that_somebody_holds_is_there(device: torch.device) -> None:
    """One that is not temporary, and one that a second kernel reads."""
    fusing, plain = _pair(device)
    layers, others = Layers(fusing), Layers(plain)

    def kept(each: Layers, command_buffer: Any, image: Any) -> Any:
        keep_results(each.convolution)
        keep_results(each.relu)
        made = each.convolution.encode_batch(command_buffer, image)
        return made, each.relu.encode_batch(command_buffer, made)

    def read_twice(each: Layers, command_buffer: Any, image: Any) -> Any:
        each.convolution.destination_image_allocator = mps.MPSTemporaryImage.default_allocator()
        keep_results(each.tanh)
        made = each.convolution.encode_batch(command_buffer, image)
        for one in made:
            one.read_count = 2
        return each.relu.encode_batch(command_buffer, made), each.tanh.encode_batch(command_buffer, made)

    for chain in (kept, read_twice):
        for image, other in zip(_images(fusing, FORMATS[0]), _images(plain, FORMATS[0]), strict=True):
            found = []
            for bench, mine, given in ((fusing, layers, image), (plain, others, other)):
                command_buffer = bench.command_buffer()
                made = chain(mine, command_buffer, given)
                finish(command_buffer)
                assert not _fused(command_buffer)
                found.append([numbers(each) for each in made])
            for mine, theirs in zip(*found, strict=True):
                assert_same(mine, theirs, device, chain.__name__)
        assert outcomes(command_buffer) != []
    assert replayer_of(fusing.queue).captures >= 2


def test_the_switch_of_a_queue_keeps_kernels_apart(device: torch.device) -> None:
    fusing, plain = _pair(device)
    layers, others, chain = Layers(fusing), Layers(plain), CHAINS["relu"][0]
    for image, other, allows in zip(
        _images(fusing, FORMATS[0]) * 3,
        _images(plain, FORMATS[0]) * 3,
        [False] * 5 + [True] * 5 + [False] * 5,
        strict=True,
    ):
        fusing.queue.allow_fusion = allows
        found, command_buffer = _run(fusing, chain, layers, image)
        assert_same(found, _run(plain, chain, others, other)[0], device)
    assert not _fused(command_buffer)
    assert "replayed" in outcomes(command_buffer)
    fusing.queue.allow_fusion = True
    assert _fused(_run(fusing, chain, layers, image)[1]) == ["MPSCNNConvolution"]


@pytest.mark.parametrize("channel_format", FORMATS, ids=lambda each: each.name)
def test_weights_that_change_between_replays_and_within_them(channel_format: Format, device: torch.device) -> None:
    """At once from the data source, and by recorded work before the kernels and between two runs of them."""
    fusing, plain = _pair(device)
    layers = Layers(fusing), Layers(plain)
    rng = np.random.default_rng(5)
    shape, chain = layers[0].source.weights().shape, CHAINS["relu"][0]
    fused: list[str] = []
    buffers = [bench.device.new_buffer(data=np.zeros(shape, np.float32)) for bench in (fusing, plain)]
    states = [mps.MPSCNNConvolutionWeightsAndBiasesState(weights=each) for each in buffers]
    for turn, pair in enumerate(
        zip(_images(fusing, channel_format) * 3, _images(plain, channel_format) * 3, strict=True)
    ):
        new, found = rng.normal(0, 0.3, shape).astype(np.float32), []
        for bench, mine, image, state, buffer in zip((fusing, plain), layers, pair, states, buffers, strict=True):
            if turn % 5 == 3:
                mine.source._weights[...] = new
                mine.convolution.reload_weights_and_biases_from_data_source()
            command_buffer = bench.command_buffer()
            made = [chain(mine, command_buffer, image)]
            if turn >= 5:
                buffer.contents().view(np.float32)[...] = new.ravel()
                mine.convolution.reload_weights_and_biases(command_buffer, state)
                made.append(chain(mine, command_buffer, image))
            finish(command_buffer)
            found.append([numbers(each) for each in made])
            fused += _fused(command_buffer)
        for mine, theirs in zip(*found, strict=True):
            assert_same(mine, theirs, device, f"turn {turn}")
    assert fused.count("MPSCNNConvolution") > 10


def test_a_graph_that_may_not_be_fused_stays_so(device: torch.device) -> None:
    """Also with a kernel behind it, which would be taken in."""
    fusing, _ = _pair(device)
    layers = Layers(fusing)
    relu = mps.MPSCNNNeuronReLUNode(mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), layers.source).result_image)
    graph = mps.MPSNNGraph(fusing.device, relu.result_image)
    graph.allow_fusion = False
    graph.destination_image_allocator = mps.MPSTemporaryImage.default_allocator()
    keep_results(layers.tanh)
    for image in _images(fusing, FORMATS[0]):
        command_buffer = fusing.command_buffer()
        made: Any = graph.encode_batch(command_buffer, [image])
        layers.tanh.encode_batch(command_buffer, made)
        finish(command_buffer)
        assert not _fused(command_buffer)
    assert "replayed" in outcomes(command_buffer)
