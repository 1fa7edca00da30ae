"""What a case of a convention is, and how its kernels and graphs are made and encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import openmps as mps
from mac_facts.fact import DEVICE, image
from networks import Weights

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
Node = mps.MPSNNImageNode
STEPS = 6
"""Encodes of one thing, the last of them replayed."""
Encode = Callable[..., Sequence[Any]]
"""Of a command buffer and the things that were made: what holds the answer once it is done."""


SOURCES = frozenset({"source_order", "source_reads"})
"""The conventions of graphs with several sources, or that read one twice."""


class Subject(NamedTuple):
    """Kernels, or a graph, that depend on a convention."""

    make: Callable[[], Sequence[Any]]
    """In the block of the convention."""
    encode: Encode
    """Outside of it."""
    sources: Sequence[mps.MPSImage] = ()
    """Of a graph: images like its sources, by the numbers that their handles end with."""


class Absent(NamedTuple):
    """Why a form is not there, and what shows it."""

    reason: str
    claim: Callable[[], bool]


class Case(NamedTuple):
    """A convention, asked in every form."""

    answers: Mapping[str, Sequence[Any]]
    """The numbers of each choice, by formulas in float64; of a thing that counts its encodes, those of each encode."""
    kernel: Subject | Absent
    graph: Subject | Absent
    unfused: str = ""
    """Why no rule changes anything in the graph."""
    unreplayed: str = ""
    """What every replaying queue says of a kernel or graph that it runs each time."""
    counts: bool = False
    """Whether the first answers are those of the first encode, the second of the second, …"""
    unlinted: str = ""
    """Why lint does not name it: no number depends on it."""
    besides: frozenset[str] = SOURCES
    """Further conventions on which the graph may depend."""


def listed(values: Any) -> list[float]:
    """Numbers in a row."""
    if isinstance(values, mps.MPSImage):
        return listed(values.numpy())
    if isinstance(values, mps.MTLBuffer):
        return listed(np.frombuffer(values.contents(), np.float32))
    if isinstance(values, Sequence):
        return [number for each in values for number in listed(each)]
    return [float(value) for value in np.asarray(values, np.float64).reshape(-1)]


@cache
def _plain_queue() -> mps.MTLCommandQueue:
    """One that replays nothing, for the thousands of encodes that need none of their own: each would start a thread."""
    queue = DEVICE.new_command_queue()
    queue.max_capture_count = 0
    return queue


def run(subject: Subject, things: Sequence[Any], queue: mps.MTLCommandQueue | None = None) -> tuple[list[float], Any]:
    """The numbers of one encode, and its command buffer."""
    command_buffer = (queue or _plain_queue()).command_buffer()
    held = subject.encode(command_buffer, *things)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return listed(held), command_buffer


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernels(make: Callable[[], Any], encode: Encode) -> Subject:
    """Kernels whose results can be read."""

    def made() -> Sequence[Any]:
        found = make()
        for kernel in (things := list(found) if isinstance(found, tuple) else [found]):
            kernel.destination_image_allocator = mps.MPSImage.default_allocator()
        return things

    return Subject(made, encode)


def kernel(make: Callable[[], Any], *sources: mps.MPSImage) -> Subject:
    """One, of some images."""
    return kernels(make, lambda command_buffer, made: [made.encode(command_buffer, *sources)])


# --- graphs -----------------------------------------------------------------------------------------------------------


def ahead(node: Any, channels: int) -> Any:
    """The image as it is, by a convolution and a neuron that can be fused."""
    halves = np.eye(channels, dtype=np.float32).reshape(channels, 1, 1, channels) / 2
    return mps.MPSCNNNeuronLinearNode(mps.MPSCNNConvolutionNode(node, Weights(halves)).result_image, 2.0).result_image


def network(
    make: Callable[..., Any], *sources: mps.MPSImage, encode: Encode | None = None, behind: bool = True
) -> Subject:
    """A Float32 graph of the filters that ``make`` returns for image nodes, the first behind two that can be fused.

    ``make`` gives the filter or the image nodes of the results; the graph is encoded with the images in their order.
    """

    def made() -> Sequence[Any]:
        nodes = [Node(mps.Handle(f"source {place}")) for place in range(len(sources))]
        first = ahead(nodes[0], sources[0].feature_channels) if behind else nodes[0]
        return [graph_of(make(first, *nodes[1:]))]

    def of_sources(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        further: list[Any] = []
        states: list[Any] = []
        result = graph.encode(command_buffer, ordered(graph, sources), None, further, states)
        return [result, *further, *(each.gradient_for_weights for each in states)]

    return Subject(made, encode or of_sources, sources)


def ordered(graph: mps.MPSNNGraph, sources: Sequence[Any]) -> list[Any]:
    """What is for nodes that are called ``source`` and a number, as the graph takes it."""
    return [sources[int(str(handle.label()).split()[-1])] for handle in graph.source_image_handles]


def graph_of(result: Any) -> mps.MPSNNGraph:
    """A Float32 graph of a filter, or of image nodes."""
    results = list(result) if isinstance(result, Sequence) else [result.result_image]
    for each in results[1:]:
        each.image_allocator = mps.MPSImage.default_allocator()
    graph = mps.MPSNNGraph(DEVICE, result_images=results)
    graph.format = FLOAT32
    return graph


def trained(filter_node: Any, factors: Any = None) -> list[Any]:
    """The gradient of its first source, of the sum of its result times factors; and its result."""
    last = filter_node if factors is None else mps.MPSNNMultiplicationNode(filter_node.result_image, factors)
    made = mps.MPSNNInitialGradientNode(last.result_image).training_graph(None)
    assert made
    of_source = next(each for each in made if not isinstance(each, mps.MPSNNMultiplicationGradientNode))
    return [of_source.result_image, filter_node.result_image]


def no_node(*classes: str) -> Absent:
    """Kernels that no node makes."""
    return Absent("no node makes it", lambda: not any(hasattr(mps, f"{name}Node") for name in classes))


def pixels(values: Any) -> np.ndarray:
    """``[height, width, channels]`` in float64."""
    return np.asarray(values, np.float64)


def row_image(values: Sequence[float]) -> mps.MPSImage:
    """A row of pixels of one channel."""
    return image(list(values), width=len(values))
