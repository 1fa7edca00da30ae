"""A device that is none: a network with a mistake in it, float16 throughout, and a capture as an app writes it.

The capture is written by the documentation's words, without the code that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import openmps as mps
from openmps.training import ArrayBatchNormalizationDataSource

CPU = mps.mtl_device("cpu")
FLOAT16, FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT16, mps.MPSImageFeatureChannelFormat.FLOAT32
Array = np.ndarray
NAMES = {np.dtype(np.float16): "float16", np.dtype(np.float32): "float32", np.dtype(np.uint8): "unorm8"}


@dataclass
class App:
    """A network as an app makes it; each field is a place for a mistake."""

    weights: Callable[[str, Array], Array] = lambda label, array: array
    biases: Callable[[str, Array], Array | None] = lambda label, array: array
    epsilon: float = 1e-5
    rows: Callable[[dict[str, Array]], dict[str, Array]] = lambda rows: rows
    shift: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Pixels right and down that windows of a layer are read further."""
    edge_mode: mps.MPSImageEdgeMode = mps.MPSImageEdgeMode.ZERO
    dilation: int = 2
    neuron: Callable[[Any], Any] | None = mps.MPSCNNNeuronReLUNode
    pooling: Callable[..., Any] = mps.MPSCNNPoolingMaxNode
    is_exchanged: bool = False
    primary_scale: float = 0.5
    softmax: Callable[[Any], Any] = mps.MPSCNNSoftMaxNode
    conventions: dict[str, str] = field(default_factory=dict)
    loud: float = 1.0

    def graph(self, channel_format: mps.MPSImageFeatureChannelFormat = FLOAT16) -> mps.MPSNNGraph:
        with mps.conventions(**self.conventions):
            graph = mps.MPSNNGraph(CPU, self._result())
        graph.format = channel_format
        for node, kernel in graph.kernels.items():
            if node.label == "second":
                kernel.edge_mode = self.edge_mode
        return graph

    def _result(self) -> Any:
        rng = np.random.default_rng(3)
        first = self._convolution(rng, mps.MPSNNImageNode(mps.Handle("image")), "first", (6, 3, 3, 3), self.loud)
        norm = named(mps.MPSCNNBatchNormalizationNode(first, self._norm(rng)), "norm")
        relu = norm if self.neuron is None else named(self.neuron(norm), "relu")
        pool = named(self.pooling(relu, 2, 2), "pool")
        second = self._convolution(rng, pool, "second", (6, 3, 3, 6))
        third = self._convolution(rng, pool, "third", (2, 1, 1, 6))
        added = mps.MPSNNAdditionNode(second, pool)
        added.primary_scale = self.primary_scale
        images = [named(added, "added"), third]
        joined = named(mps.MPSNNConcatenationNode(images[::-1] if self.is_exchanged else images), "joined")
        fourth = self._convolution(rng, joined, "fourth", (8, 3, 3, 12))
        average = named(mps.MPSCNNPoolingAverageNode(fourth, 3, 2), "average")
        connected = self._convolution(rng, average, "connected", (5, 3, 3, 8), kind=mps.MPSCNNFullyConnectedNode)
        return named(self.softmax(connected), "probabilities")

    def _convolution(
        self, rng: Any, image: Any, label: str, shape: Any, scale: float = 1.0, kind: Any = mps.MPSCNNConvolutionNode
    ) -> Any:
        weights = rng.normal(0, scale / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        biases = rng.normal(0, 0.2, shape[0]).astype(np.float32)
        descriptor = mps.MPSCNNConvolutionDescriptor(shape[2], shape[1], shape[3], shape[0])
        if label == "fourth":
            descriptor.dilation_rate_x = descriptor.dilation_rate_y = self.dilation
        source = mps.ArrayConvolutionDataSource(
            descriptor, self.weights(label, weights), self.biases(label, biases), label=label
        )
        node = kind(image, source)
        if kind is mps.MPSCNNConvolutionNode:
            right, down = self.shift.get(label, (0, 0))
            padding = descriptor.dilation_rate_x * (shape[2] // 2)
            node.padding_policy = mps.ExplicitPadding(
                left=padding - right, right=padding + right, top=padding - down, bottom=padding + down
            )
        return named(node, label)

    def _norm(self, rng: Any) -> Any:
        rows = {
            "gamma": rng.uniform(0.5, 1.5, 6), "beta": rng.normal(0, 0.3, 6), "mean": rng.normal(0, 0.2, 6),
            "variance": rng.uniform(0.01, 0.3, 6),
        }  # fmt: skip
        given = {name: row.astype(np.float32) for name, row in self.rows(rows).items()}
        return ArrayBatchNormalizationDataSource(6, **given, epsilon=self.epsilon, label="norm")


def named(node: Any, label: str) -> Any:
    node.label = label
    return node.result_image


def photo(count: int = 1) -> Array:
    """Images that no turn or exchange leaves as they are, in float16."""
    rng = np.random.default_rng(5)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 0.1, (count, 12, 12, 3)), 1), 2)
    return (0.5 + 0.4 * np.tanh(smooth) + 0.05 * rng.random((count, 12, 12, 3))).astype(np.float16)


def dump(folder: Path, images: dict[str, Array], **head: Any) -> Path:
    """A capture by hand."""
    folder.mkdir()
    rows = [
        {"label": label, "count": len(array), "height": array.shape[1], "width": array.shape[2],
         "channels": array.shape[3], "format": NAMES[array.dtype]}
        for label, array in images.items()
    ]  # fmt: skip
    folder.joinpath("capture.json").write_text(
        json.dumps({"format": "openmps.capture", "version": 1, **head, "images": rows})
    )
    folder.joinpath("images.dat").write_bytes(b"".join(array.tobytes() for array in images.values()))
    return folder


def play(
    folder: Path, app: App, given: Array, *, left_out: tuple[str, ...] = (), names: dict[str, str] | None = None
) -> Path:
    """Run the app's network on an image, and dump every image of the encode."""
    trace = app.graph().trace([given])
    images = {"image": given}
    for entry in trace.of(mps.debug.TracedKind.IMAGE):
        if entry.label not in left_out:
            images[(names or {}).get(entry.label, entry.label)] = entry.array
    return dump(folder, images)
