"""Random graphs: they grow by random filters over random images that are there already.

Images fan out, branches join by arithmetic and concatenation, layers share data sources, and there are one to three
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench
from networks import Weights

IMAGES, SIZE, CHANNELS = 2, 6, 4
SAME = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME)
NEURONS = (
    mps.MPSCNNNeuronReLUNode,
    mps.MPSCNNNeuronTanHNode,
    mps.MPSCNNNeuronSigmoidNode,
    mps.MPSCNNNeuronAbsoluteNode,
)
JOINS = (mps.MPSNNAdditionNode, mps.MPSNNSubtractionNode, mps.MPSNNMultiplicationNode)


class Grown:
    """The nodes of one random graph. All its images have one size; each has its count of channels."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.image = mps.MPSNNImageNode(mps.Handle("image"))
        self.open: list[tuple[mps.MPSNNImageNode, int]] = [(self.image, CHANNELS)]
        self.sources: dict[tuple[int, int], list[Weights]] = {}
        self.filters: list[Any] = []
        for _ in range(int(self.rng.integers(3, 11))):
            self._grow()

    def _grow(self) -> None:
        makers = (self._convolution, self._convolution, self._neuron, self._pooling, self._join, self._concatenation)
        makers += (self._soft_max, self._dropout)
        node, channels = makers[self.rng.integers(len(makers))]()
        node.padding_policy = SAME
        self.filters.append(node)
        self.open.append((node.result_image, channels))

    def _any(self) -> tuple[mps.MPSNNImageNode, int]:
        # Late images more often than early ones: the graph is to be deep as well as wide.
        place = int(len(self.open) * self.rng.random() ** 0.5)
        return self.open[place]

    def _convolution(self) -> tuple[Any, int]:
        image, channels = self._any()
        outputs = int(self.rng.choice([4, 8]))
        known = self.sources.setdefault((channels, outputs), [])
        if not known or self.rng.random() < 0.6:
            label = f"layer {channels}-{outputs}-{len(known)}"
            known.append(Weights.of(self.rng, (outputs, 3, 3, channels), label))
        return mps.MPSCNNConvolutionNode(image, known[self.rng.integers(len(known))]), outputs

    def _neuron(self) -> tuple[Any, int]:
        image, channels = self._any()
        return NEURONS[self.rng.integers(len(NEURONS))](image), channels

    def _pooling(self) -> tuple[Any, int]:
        image, channels = self._any()
        kind = (mps.MPSCNNPoolingMaxNode, mps.MPSCNNPoolingAverageNode)[self.rng.integers(2)]
        return kind(image, 3, 1), channels

    def _join(self) -> tuple[Any, int]:
        image, channels = self._any()
        alike = [each for each, count in self.open if count == channels]
        other = alike[self.rng.integers(len(alike))]
        node = JOINS[self.rng.integers(len(JOINS))](image, other)
        node.primary_scale = float(self.rng.uniform(0.5, 1.5))
        return node, channels

    def _concatenation(self) -> tuple[Any, int]:
        parts = [self._any() for _ in range(int(self.rng.integers(2, 4)))]
        return mps.MPSNNConcatenationNode([image for image, _ in parts]), sum(count for _, count in parts)

    def _soft_max(self) -> tuple[Any, int]:
        image, channels = self._any()
        return mps.MPSCNNSoftMaxNode(image), channels

    def _dropout(self) -> tuple[Any, int]:
        image, channels = self._any()
        return mps.MPSCNNDropoutNode(image, 0.75, int(self.rng.integers(1, 1000)), mps.MTLSize(1, 1, 1)), channels

    def graph(self, bench: Bench) -> mps.MPSNNGraph:
        """Training from one to three losses over images that nobody reads, with what is in between exported."""
        read = {image for node in self.filters for image in node.sources}
        ends = [(image, count) for image, count in self.open[1:] if image not in read][-3:]
        results: list[mps.MPSNNImageNode] = []
        for number, (image, _) in enumerate(ends):
            descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
            loss = mps.MPSCNNLossNode(image, descriptor)
            loss.input_labels.handle = mps.Handle(f"labels {number}")
            self.filters.append(loss)
            results.append(loss.result_image)
        self.ends = ends
        gradients = self._derive(results)
        for node in self.filters:
            if isinstance(node, mps.MPSCNNConvolutionNode):
                node.convolution_gradient_state.export_from_graph = True
            if self.rng.random() < 0.3:
                node.result_image.export_from_graph = True
        for image in (*gradients, *(node.result_image for node in self.filters)):
            image.image_allocator = mps.MPSImage.default_allocator()
        graph = mps.MPSNNGraph(bench.device, result_images=gradients)
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return graph

    def _derive(self, ends: list[mps.MPSNNImageNode]) -> list[mps.MPSNNImageNode]:
        """The gradients of the image: backwards by hand, gradients of an image that fans out added up."""
        flows: dict[mps.MPSNNImageNode, list[mps.MPSNNImageNode]] = {}
        losses = [node for node in self.filters if node.result_image in ends]
        for node in losses:
            flows.setdefault(node.sources[0], []).append(node.result_image)
        for node in reversed([each for each in self.filters if each not in losses]):
            flow = _sum(flows.get(node.result_image, []))
            if flow is not None:
                for source, gradient in zip(node.sources, node.gradient_filters(flow), strict=True):
                    flows.setdefault(source, []).append(gradient.result_image)
        return flows[self.image]


def _sum(flows: list[mps.MPSNNImageNode]) -> mps.MPSNNImageNode | None:
    total = None
    for flow in flows:
        total = flow if total is None else mps.MPSNNAdditionNode(total, flow).result_image
    return total
