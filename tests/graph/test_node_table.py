"""Every node class by the table: in a graph it gives the numbers of its kernels encoded by hand, and of the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers, parameter_gradients, train
from helpers import assert_close
from in_one_test import in_one_test
from node_catalogue import APART, NODE_SAMPLES, NodeSamples
from openmps.formats.archive.forms import properties
from openmps.graph.nodes.catalog import NODES, make_kernel
from openmps.runtime.devices import mtl_device
from samples.sample import Sample, readings

TOLERANCE = 1e-5
IMAGES = 3
_BY_POLICY = {"padding", "destination_image_allocator", "label", "uses_batch", "loss_descriptor"}
"""What tells a node's kernel from one that is encoded by hand, besides the numbers."""

_READ_ONLY = {"fused_neuron_descriptor", "fill_value_array"}
"""What only the constructors of kernels take."""


def _expressed(entry: NodeSamples) -> list[Sample]:
    """The samples that a node can say: it has no edge modes and no channel slices."""
    device = mtl_device("cpu")
    found: list[Sample] = []
    for sample in entry.samples:
        kernel = sample.make(device)
        node = entry.make(kernel, _images(sample))
        node.padding_policy = kernel.padding
        own = make_kernel(node, device)
        names = (properties(type(kernel)) | _READ_ONLY) - _BY_POLICY
        if all(repr(getattr(own, name, None)) == repr(getattr(kernel, name, None)) for name in names):
            found.append(sample)
    return found


def _images(sample: Sample) -> list[mps.MPSNNImageNode]:
    count = len(sample.shapes)
    if sample.operands is not None:
        operands = sample.operands(Bench(mtl_device("cpu")), 0, 1, True)
        count += sum(each is not None for each in operands)
    return [mps.MPSNNImageNode(mps.Handle(f"source {index}")) for index in range(count)]


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


CASES = [
    pytest.param(kind, sample, id=f"{kind.__name__}-{sample}")
    for kind, entry in NODE_SAMPLES.items()
    for sample in _expressed(entry)
]


def test_every_row_has_samples() -> None:
    rows = {row.node for row in NODES}
    assert rows == NODE_SAMPLES.keys() | APART.keys()
    assert {case.values[0] for case in CASES} == NODE_SAMPLES.keys(), "a node can say none of its kernel's samples"


class Trained:
    """A graph of one node, with its gradient nodes, and what it is fed."""

    def __init__(self, bench: Bench, kind: Any, sample: Sample, *, with_gradients: bool = True) -> None:
        self.bench, self.sample = bench, sample
        kernel = sample.make(bench.device)
        self.images = _images(sample)
        self.node = NODE_SAMPLES[kind].make(kernel, self.images)
        self.node.padding_policy = kernel.padding
        self.flow = mps.MPSNNImageNode(mps.Handle("flow"))
        gradients = self.node.gradient_filters(self.flow) if sample.gradients and with_gradients else []
        self.gradients = gradients
        state = self.node.result_state
        self.has_parameters = bool(gradients) and hasattr(self.node, "training_style")
        if self.has_parameters:
            assert state is not None
            state.export_from_graph = True
        for each in (self.node, *gradients):
            each.result_image.image_allocator = mps.MPSImage.default_allocator()
        results = [self.node.result_image, *(each.result_image for each in gradients)]
        self.graph = mps.MPSNNGraph(bench.device, result_images=results)
        self.graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32

    def run(self, graph: Any, incoming: np.ndarray) -> tuple[list[np.ndarray], Any]:
        """The results of a graph like this one, and a function that reads gradients of parameters."""
        sources = [self.bench.batch(values) for values in self.sample.sources(IMAGES)]
        more = self.sample.more(self.bench, IMAGES)
        if self.sample.operands is not None:
            sources += [each for each in more if each is not None]
        given = {f"source {index}": batch for index, batch in enumerate(sources)} | {"flow": self.bench.batch(incoming)}
        states = [more[0]] if self.sample.labels is not None else None
        others: list[Any] = []
        left: list[Any] = []
        command_buffer = self.bench.command_buffer()
        order = [handle.label() for handle in graph.source_image_handles]
        result = graph.encode_batch(command_buffer, [given[name] for name in order], states, others, left)
        parameters = parameter_gradients(left[0]) if left else lambda: (None, None)
        finish(command_buffer)
        return [numbers(each) for each in (result, *others)], parameters


@in_one_test
@pytest.mark.filterwarnings("ignore:.*has no update:openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_a_graph_gives_the_numbers_of_kernels_by_hand(kind: Any, sample: Sample, bench: Bench) -> None:
    sources = sample.sources(IMAGES)
    by_hand = train(bench, sample, sources, bench.batch)
    is_multiary = isinstance(by_hand.kernel, mps.MPSCNNMultiaryKernel)
    how = [] if is_multiary else readings(by_hand.kernel, by_hand.result.shape[3], by_hand.result.shape[2])
    incoming = sample.incoming(by_hand.result.shape)
    trained = Trained(bench, kind, sample)
    if not trained.gradients:  # a convolution that nothing is trained of sums in another order with packed weights
        assert_close(
            trained.run(trained.graph, incoming)[0][0], sample.forward(sources, how), TOLERANCE, "fused result"
        )
        trained.graph.allow_fusion = False
    found, parameters = trained.run(trained.graph, incoming)
    assert_close(found[0], sample.forward(sources, how), TOLERANCE, "result")
    np.testing.assert_array_equal(found[0], by_hand.result)
    assert len(found) == 1 + len(sample.gradients)
    for gradient, actual, expected in zip(sample.gradients, found[1:], by_hand.gradients, strict=True):
        assert_close(actual, gradient.oracle(incoming, sources, how), TOLERANCE, f"gradient of {gradient.source}")
        np.testing.assert_array_equal(actual, expected)
    if trained.has_parameters:
        weights, biases = parameters()
        np.testing.assert_array_equal(weights, by_hand.weights)
        np.testing.assert_array_equal(biases, by_hand.biases)


@in_one_test
@pytest.mark.filterwarnings("ignore:.*has no update:openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_archives_and_copies_give_the_same_numbers(kind: Any, sample: Sample, bench: Bench) -> None:
    trained = Trained(bench, kind, sample)
    shape = train(bench, sample, sample.sources(IMAGES), bench.batch).result.shape
    incoming = sample.incoming(shape)
    again = [Trained(bench, kind, sample).graph for _ in range(2)]
    restored = mps.MPSKeyedUnarchiver.unarchived_object_of_class(
        mps.MPSNNGraph, from_data=mps.MPSKeyedArchiver.archived_data(again[0]), device=bench.device
    )
    expected, _ = trained.run(trained.graph, incoming)
    for graph in (restored, again[1].copy()):
        for actual, values in zip(trained.run(graph, incoming)[0], expected, strict=True):
            np.testing.assert_array_equal(actual, values)
