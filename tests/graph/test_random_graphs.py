"""Random graphs: forward and gradients equal those of the same kernels encoded one by one.

A graph grows by random filters over random images that are there already, so that images fan out, branches join by
arithmetic and concatenation, layers share data sources, and there are one to three results. All images it exports are
compared bit for bit, and the gradients of parameters.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, encode, finish, numbers
from networks import named_gradients
from openmps.graph.nodes.node import row_of
from openmps.graph.nodes.rows import Reads
from random_graphs import CHANNELS, IMAGES, SIZE, Grown

Array = np.ndarray
GRAPHS = int(os.environ.get("OPENMPS_GRAPHS", "120"))


def one_by_one(
    bench: Bench, graph: mps.MPSNNGraph, image: mps.MPSNNImageNode, pixels: Array, targets: dict[Any, Any]
) -> tuple[dict[mps.MPSNNImageNode, Array], dict[str, Array]]:
    """Every image, and the gradients of parameters, from an encode of each kernel of a copy of the graph."""
    command_buffer = bench.command_buffer()
    made: dict[Any, Any] = {image: bench.batch(pixels)}
    states: dict[Any, Any] = {}
    for node, kernel in graph.copy().kernels.items():
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
        sources = [made[each] for each in node.sources]
        if isinstance(node, mps.MPSCNNLossNode):
            result = encode(kernel, command_buffer, sources, targets[node.input_labels])
        elif isinstance(node, mps.MPSNNGradientFilterNode):
            reads, forward = row_of(node).reads, node.forward
            if reads is Reads.RESULT:
                sources[1] = made[forward.result_image]
            elif reads is Reads.OTHER:
                sources[1] = made[forward.sources[0 if node.is_secondary_source_filter else 1]]
            result = encode(kernel, command_buffer, sources, states[forward])
        else:
            result, states[node] = encode(kernel, command_buffer, sources, destination_state_is_temporary=False)
        made[node.result_image] = result
    finish(command_buffer)
    convolutions = [batch for batch in states.values() if batch and hasattr(batch[0], "gradient_for_weights")]
    return {each: numbers(result) for each, result in made.items()}, named_gradients(convolutions)


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize("seed", range(GRAPHS))
@pytest.mark.usefixtures("in_any_order")
def test_a_random_graph_equals_its_kernels(seed: int) -> None:
    """Images bit for bit, where sums are rounded once: parts of larger images may be added up in another order."""
    bench, grown = Bench.on(torch.device("cpu")), Grown(seed)
    graph = grown.graph(bench)
    pixels = grown.rng.normal(0, 1, (IMAGES, CHANNELS, SIZE, SIZE)).astype(np.float32)
    targets = {
        f"labels {number}": grown.rng.normal(0, 1, (IMAGES, SIZE, SIZE, count)).astype(np.float32)
        for number, (_, count) in enumerate(grown.ends)
    }

    def labels() -> dict[str, Any]:
        return {name: mps.MPSCNNLossLabels.batch(bench.device, values) for name, values in targets.items()}

    # First, because a copy's dropout goes on where the original's stands.
    nodes = {node.input_labels: labels()[node.input_labels.handle.label()]
             for node in grown.filters if isinstance(node, mps.MPSCNNLossNode)}  # fmt: skip
    images, gradients = one_by_one(bench, graph, grown.image, pixels, nodes)
    given, others, left = labels(), [], []
    order = [handle.label() for handle in graph.source_state_handles]
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(pixels)], [given[name] for name in order], others, left)
    finish(command_buffer)

    interface = graph.interface
    assert len(others) == len(interface.intermediates)
    for node, batch in ((interface.result, result), *zip(interface.intermediates, others, strict=True)):
        np.testing.assert_array_equal(numbers(batch), images[node], err_msg=repr(node.producer))
    found = named_gradients(left)
    assert found.keys() == gradients.keys()
    for name, values in gradients.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * np.abs(values).max(), err_msg=name)
