"""Graphs: what they compute and show (C, macOS 27.0)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench, finish
from mac_facts.fact import DEVICE, Fact, image, row

ONE, TEN = image([1, 2, 3, 4], label="a"), image([10, 20, 30, 40], label="b")
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
Node = mps.MPSNNImageNode


def _graph(make: Callable[..., Any], images: Sequence[mps.MPSImage], **options: Any) -> mps.MPSNNGraph:
    """The graph of a filter, or of the last of some, over one node for each image, which is its handle."""
    graph = mps.MPSNNGraph(DEVICE, make(*(Node(each) for each in images)).result_image, **options)
    graph.format = FLOAT32
    return graph


def _encoded(graph: mps.MPSNNGraph, images: Sequence[mps.MPSImage]) -> mps.MPSImage | None:
    command_buffer = Bench(DEVICE).command_buffer()
    result = graph.encode(command_buffer, list(images))
    finish(command_buffer)
    return result


def _run(make: Callable[..., Any], *images: mps.MPSImage) -> np.ndarray:
    result = _encoded(_graph(make, images), images)
    assert result is not None
    return result.numpy().reshape(-1)


def _of_both(make: Callable[..., Any]) -> np.ndarray:
    return _run(make, ONE, TEN)


def _sum(a: Node, b: Node) -> Any:
    return mps.MPSNNAdditionNode(a, b)


def _names(make: Callable[..., Any]) -> list[str | None]:
    return [each.label for each in _graph(make, (ONE, TEN)).source_image_handles]  # type: ignore[attr-defined, misc]


def _three_nodes() -> tuple[int, str]:
    """Sources of (a + b) + b with a node of its own for each operand, and what an encode of two images does."""
    graph = _graph(lambda a, b, c: mps.MPSNNAdditionNode(_sum(a, b).result_image, c), (ONE, TEN, TEN))
    try:
        graph.encode(Bench(DEVICE).command_buffer(), [ONE, TEN])
    except mps.MPSArgumentError:
        return len(graph.source_image_handles), "refused"
    return len(graph.source_image_handles), "taken"


def _image_handles() -> bool:
    """Whether the source handles are the very images."""
    return [id(each) for each in _graph(_sum, (ONE, TEN)).source_image_handles] == [id(ONE), id(TEN)]


def _default_format() -> tuple[int, int, tuple[int, ...]]:
    graph = mps.MPSNNGraph(DEVICE, _sum(Node(ONE), Node(TEN)).result_image)
    result = _encoded(graph, (ONE, TEN))
    assert result is not None
    halves = tuple(int(each) for each in result.numpy().reshape(-1).astype(np.float16).view(np.uint16))
    return int(graph.format), int(result.pixel_format), halves


def _scaled() -> np.ndarray:
    def make(a: Node, b: Node) -> Any:
        node = _sum(a, b)
        node.primary_scale = 2.0
        return node

    return _of_both(make)


def _joined(*channels: int) -> np.ndarray:
    """1x1 images concatenated: the first holds 1, 2, …, the second 5, 6, …"""
    images = [
        image([[[first + place for place in range(count)]]]) for first, count in zip((1, 5), channels, strict=False)
    ]
    return _run(lambda *nodes: mps.MPSNNConcatenationNode(list(nodes)), *images)


def _pooled(kind: type[Any]) -> tuple[int, int, int]:
    source = image(np.arange(1, 10))
    result = _encoded(_graph(lambda node: kind(node, 2, 1), (source,)), (source,))
    assert result is not None
    return result.width, result.height, result.feature_channels


def _unneeded() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _encoded(_graph(_sum, (ONE, TEN), result_image_is_needed=False), (ONE, TEN))


def _client() -> tuple[int, int]:
    """Handles of intermediate images, and batches that an encode appends: one image exported, one further result."""
    source = Node()
    first = mps.MPSCNNNeuronAbsoluteNode(source)
    second = mps.MPSCNNNeuronAbsoluteNode(first.result_image)
    third = mps.MPSCNNNeuronAbsoluteNode(second.result_image)
    first.result_image.export_from_graph = True
    graph = mps.MPSNNGraph(DEVICE, result_images=[third.result_image, second.result_image])
    made: list[mps.MPSImageBatch] = []
    batch = mps.MPSImageBatch([ONE])
    command_buffer = Bench(DEVICE).command_buffer()
    graph.encode_batch(command_buffer, [batch], None, made)
    finish(command_buffer)
    return len(graph.intermediate_image_handles), len(made)


FACTS = [
    Fact("graph-add", "a + b", "A", row(11, 22, 33, 44), lambda: _of_both(mps.MPSNNAdditionNode)),
    Fact("graph-subtract", "a - b", "A", row(-9, -18, -27, -36), lambda: _of_both(mps.MPSNNSubtractionNode)),
    Fact("graph-multiply", "a b", "A", row(10, 40, 90, 160), lambda: _of_both(mps.MPSNNMultiplicationNode)),
    Fact("graph-divide", "a / b", "A", [0.1] * 4, lambda: _of_both(mps.MPSNNDivisionNode), 1e-6),
    Fact(
        "graph-one-node-an-image-add",
        "(a + b) + b",
        "A",
        row(21, 42, 63, 84),
        lambda: _of_both(lambda a, b: mps.MPSNNAdditionNode(_sum(a, b).result_image, b)),
    ),
    Fact(
        "graph-one-node-an-image-subtract",
        "(a + b) - b",
        "A",
        row(1, 2, 3, 4),
        lambda: _of_both(lambda a, b: mps.MPSNNSubtractionNode(_sum(a, b).result_image, b)),
    ),
    Fact("graph-order-of-sources", "sources of a + b are left, right", "A", ["a", "b"], lambda: _names(_sum)),
    Fact(
        "graph-two-nodes-of-an-image",
        "two nodes over one image are two sources; two images are too few",
        "A",
        (3, "refused"),
        _three_nodes,
    ),
    Fact(
        "graph-image-as-handle", "an image is a handle, and stands among the source handles", "A", True, _image_handles
    ),
    Fact(
        "graph-no-source-states",
        "without source states their handles are an empty list",
        "A",
        [],
        lambda: _graph(_sum, (ONE, TEN)).source_state_handles,
    ),
    Fact(
        "graph-no-intermediates",
        "without exports handles of intermediate images are an empty list",
        "A",
        [],
        lambda: _graph(_sum, (ONE, TEN)).intermediate_image_handles,
    ),
    Fact(
        "graph-intermediates-of-clients",
        "handles name exported images alone, encodes append further results too",
        "P",
        (1, 2),
        _client,
    ),
    Fact(
        "graph-format",
        "Float16 unless set; the result is R16Float",
        "A",
        (3, 25, (0x4980, 0x4D80, 0x5020, 0x5180)),
        _default_format,
    ),
    Fact(
        "graph-arithmetic-defaults",
        "scales 1 and 1, bias 0",
        "A",
        (1.0, 1.0, 0.0),
        lambda: tuple(getattr(_sum(Node(), Node()), name) for name in ("primary_scale", "secondary_scale", "bias")),
    ),
    Fact(
        "graph-concatenation-1-1",
        "the fourth channel behind one is 1",
        "A",
        row(1, 0, 0, 1, 5, 0, 0, 1),
        lambda: _joined(1, 1),
    ),
    Fact(
        "graph-concatenation-2-2",
        "the fourth channel behind two is 1",
        "A",
        row(1, 2, 0, 1, 5, 6, 0, 1),
        lambda: _joined(2, 2),
    ),
    Fact(
        "graph-concatenation-1-4",
        "the second begins at channel 4",
        "A",
        row(1, 0, 0, 1, 5, 6, 7, 8),
        lambda: _joined(1, 4),
    ),
    Fact(
        "graph-concatenation-3-1",
        "the fourth channel behind three is 0",
        "A",
        row(1, 2, 3, 0, 5, 0, 0, 1),
        lambda: _joined(3, 1),
    ),
    Fact("graph-concatenation-1", "one source alone", "A", row(1, 0, 0, 1), lambda: _joined(1)),
    Fact("graph-concatenation-2", "one source alone", "A", row(1, 2, 0, 1), lambda: _joined(2)),
    Fact("graph-concatenation-4-4", "no filler", "A", row(1, 2, 3, 4, 5, 6, 7, 8), lambda: _joined(4, 4)),
    Fact(
        "graph-pooling-average-size",
        "2x2, stride 1, same size",
        "A",
        (3, 3, 1),
        lambda: _pooled(mps.MPSCNNPoolingAverageNode),
    ),
    Fact(
        "graph-pooling-maximum-size",
        "2x2, stride 1, same size",
        "A",
        (3, 3, 1),
        lambda: _pooled(mps.MPSCNNPoolingMaxNode),
    ),
    Fact("graph-result-is-not-needed", "an encode gives nil", "A", None, _unneeded),
]

SWITCHED = [
    Fact(
        "graph-primary-scale",
        "a graph drops the primaryScale 2 of an addition node, which keeps it",
        "A",
        row(11, 22, 33, 44),
        _scaled,
        switch={"graph_primary_scale": "dropped"},
    ),
    Fact(
        "graph-result-handle",
        "resultHandle is nil where none was set",
        "C",
        None,
        lambda: _graph(_sum, (ONE, TEN)).result_handle,
        switch={"nil_handles": "none"},
    ),
]
"""Facts that conventions make hold, where the default keeps to the documentation."""
