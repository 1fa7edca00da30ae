"""Every forward node class, with sample configurations of its kernel and how a node says the same.

The samples are those of the kernels (tests/catalogue.py), so that nodes have their oracles. A node class that is
missing here fails tests/graph/test_node_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import openmps as mps
from catalogue import SAMPLES
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.kernels import concatenation as concatenation_kernels
from openmps.kernels import reduce as reduce_kernels
from openmps.runtime.devices import mtl_device
from samples.loss import FORWARD_LOSSES
from samples.reduce import region
from samples.sample import Array, GradientSample, Reading, Sample, configured

MakeNode = Callable[[Any, Sequence[mps.MPSNNImageNode]], mps.MPSNNFilterNode]


@dataclass(frozen=True)
class NodeSamples:
    """Samples of a kernel, and a node like such a kernel over some images."""

    samples: Sequence[Sample]
    make: MakeNode


def _window(kind: Any) -> MakeNode:
    names = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
    return lambda kernel, images: kind(images[0], **{name: getattr(kernel, name) for name in names})


def _dilated(kernel: Any, images: Sequence[Any]) -> Any:
    names = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
    more = ("dilation_rate_x", "dilation_rate_y")
    return mps.MPSCNNDilatedPoolingMaxNode(images[0], **{name: getattr(kernel, name) for name in (*names, *more)})


def _plain(kind: Any, *properties: str, arguments: Sequence[str] = ()) -> MakeNode:
    """A node whose constructor takes the kernel's properties ``arguments``, and that has its other ``properties``."""

    def make(kernel: Any, images: Sequence[Any]) -> Any:
        node = kind(images[0], **{name: getattr(kernel, name) for name in arguments})
        return configured(node, {name: getattr(kernel, name) for name in properties})

    return make


def _weights(kind: Any) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        node = kind(images[0], weights=kernel.data_source)
        node.accumulator_precision = kernel.accumulator_precision_option
        return node

    return make


def _binary(kind: Any) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        words, descriptor, terms = kernel.weight_words(), kernel.convolution_descriptor, kernel.terms._asdict()
        rows = {f"{name}_terms": None if row is None else row.cpu().numpy() for name, row in terms.items()}
        source = mps_source(descriptor, words)
        return kind(images[0], source, type=kernel.type, flags=kernel.flags, **rows)

    return make


def mps_source(descriptor: Any, words: Any) -> Any:
    """A data source over binary words."""

    class Words:
        def data_type(self) -> Any:
            return mps.MPSDataType.UINT32

        def descriptor(self) -> Any:
            return descriptor

        def weights(self) -> Any:
            return words

        def bias_terms(self) -> None:
            return None

        def load(self) -> bool:
            return True

        def purge(self) -> None:
            pass

        def label(self) -> None:
            return None

    return Words()


def _data_source(kind: Any) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        source = kernel.data_source
        source.epsilon = lambda: kernel.epsilon
        return kind(images[0], source)

    return make


_ARITHMETIC = (
    "primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value",
    "primary_stride_in_pixels_x", "primary_stride_in_pixels_y", "primary_stride_in_feature_channels",
    "secondary_stride_in_pixels_x", "secondary_stride_in_pixels_y", "secondary_stride_in_feature_channels",
)  # fmt: skip


def _arithmetic(kind: Any, *more: str) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        return configured(kind(*images), {name: getattr(kernel, name) for name in (*_ARITHMETIC, *more)})

    return make


def _local(kind: Any, size: str, *properties: str) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        node = kind(images[0], getattr(kernel, size))
        return configured(node, {name: getattr(kernel, name) for name in ("alpha", "beta", "delta", *properties)})

    return make


def _neuron(kernel: Any, images: Sequence[Any]) -> Any:
    descriptor = MPSNNNeuronDescriptor(kernel.neuron_type, kernel.a, kernel.b, kernel.c, data=kernel.data)
    return mps.MPSCNNNeuronNode(images[0], descriptor)


def _upsampling(kind: Any, *more: str) -> MakeNode:
    def make(kernel: Any, images: Sequence[Any]) -> Any:
        factors = int(kernel.scale_factor_x), int(kernel.scale_factor_y)
        return kind(images[0], *factors, *(getattr(kernel, name) for name in more))

    return make


def _pad(kernel: Any, images: Sequence[Any]) -> Any:
    before, after = kernel.padding_size_before, kernel.padding_size_after
    node = mps.MPSNNPadNode(images[0], before, after, kernel.edge_mode)
    node.fill_value = kernel.fill_value
    return node


def _loss(kind: Any) -> MakeNode:
    return lambda kernel, images: kind(images[0], kernel.loss_descriptor)


def _forward_loss(kernel: Any, images: Sequence[Any]) -> Any:
    return mps.MPSNNForwardLossNode(sources=images, loss_descriptor=kernel.loss_descriptor)


def _dropout(kernel: Any, images: Sequence[Any]) -> Any:
    return mps.MPSCNNDropoutNode(images[0], kernel.keep_probability, kernel.seed, kernel.mask_stride_in_pixels)


# --- kernels that the framework does not name -----------------------------------------------------------------------


def _spatial_mean(name: str, part: Any, **properties: Any) -> Sample:
    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return sources[0][(..., *part)].mean(axis=(2, 3), keepdims=True)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        found = np.zeros(sources[0].shape)
        inner = found[(..., *part)]
        inner += g / inner[0, 0].size
        return found

    return Sample(
        f"spatial mean {name}",
        lambda device: configured(reduce_kernels.SpatialMean(device), properties),
        ((5, 4, 6),),
        forward,
        (GradientSample(reduce_kernels.SpatialMeanGradient, differentiate, needs_state=True),),
    )


SPATIAL_MEANS = [
    _spatial_mean("plain", (slice(None), slice(None))),
    _spatial_mean("in a region", (slice(1, 3), slice(2, 6)), clip_rect_source=region(2, 1, 9, 2)),
]


def _slots(shapes: Sequence[Any]) -> list[int]:
    return [-(-shape[0] // 4) * 4 for shape in shapes]


def _concatenation(*channels: int) -> Sample:
    shapes = tuple((count, 3, 2) for count in channels)
    firsts = np.cumsum([0, *_slots(shapes)])

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        whole = np.zeros((len(sources[0]), firsts[-1], 3, 2))
        for first, x in zip(firsts, sources, strict=False):
            whole[:, first : first + x.shape[1]] = x
            if x.shape[1] <= 2:  # as a texture of one or two channels is read
                whole[:, first + 3] = 1.0
        return whole

    def backward(index: int) -> GradientSample:
        def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
            return g[:, firsts[index] : firsts[index] + channels[index]]

        return GradientSample(
            lambda device: concatenation_kernels.ConcatenationGradient(device, index), differentiate, source=index
        )

    return Sample(
        f"concatenation of {channels}",
        lambda device: concatenation_kernels.Concatenation(device, len(channels)),
        shapes,
        forward,
        tuple(backward(index) for index in range(len(channels))),
    )


def _of(kernel: str) -> Sequence[Sample]:
    found = next((samples for kind, samples in SAMPLES.items() if kind.__name__ == kernel), None)
    assert found is not None, f"{kernel} has no row in SAMPLES of tests/catalogue.py"
    return found


def _reductions() -> dict[type[mps.MPSNNFilterNode], NodeSamples]:
    found: dict[type[mps.MPSNNFilterNode], NodeSamples] = {}
    for kind, samples in SAMPLES.items():
        name = kind.__name__.replace("MPSNNReduce", "MPSNNReduction") + "Node"
        if issubclass(kind, reduce_kernels.MPSNNReduceUnary):
            weight = ("weight",) if hasattr(kind, "weight") else ()
            found[getattr(mps, name)] = NodeSamples(samples, _plain(getattr(mps, name), "clip_rect_source", *weight))
    return found


NODE_SAMPLES: dict[type[mps.MPSNNFilterNode], NodeSamples] = {
    mps.MPSCNNConvolutionNode: NodeSamples(_of("MPSCNNConvolution"), _weights(mps.MPSCNNConvolutionNode)),
    mps.MPSCNNFullyConnectedNode: NodeSamples(_of("MPSCNNFullyConnected"), _weights(mps.MPSCNNFullyConnectedNode)),
    mps.MPSCNNConvolutionTransposeNode: NodeSamples(
        _of("MPSCNNConvolutionTranspose"), _weights(mps.MPSCNNConvolutionTransposeNode)
    ),
    mps.MPSCNNBinaryConvolutionNode: NodeSamples(
        _of("MPSCNNBinaryConvolution"), _binary(mps.MPSCNNBinaryConvolutionNode)
    ),
    mps.MPSCNNBinaryFullyConnectedNode: NodeSamples(
        _of("MPSCNNBinaryFullyConnected"), _binary(mps.MPSCNNBinaryFullyConnectedNode)
    ),
    mps.MPSCNNNeuronNode: NodeSamples(_of("MPSCNNNeuron"), _neuron),
    mps.MPSCNNPoolingMaxNode: NodeSamples(_of("MPSCNNPoolingMax"), _window(mps.MPSCNNPoolingMaxNode)),
    mps.MPSCNNPoolingAverageNode: NodeSamples(_of("MPSCNNPoolingAverage"), _window(mps.MPSCNNPoolingAverageNode)),
    mps.MPSCNNPoolingL2NormNode: NodeSamples(_of("MPSCNNPoolingL2Norm"), _window(mps.MPSCNNPoolingL2NormNode)),
    mps.MPSCNNDilatedPoolingMaxNode: NodeSamples(_of("MPSCNNDilatedPoolingMax"), _dilated),
    mps.MPSCNNSpatialNormalizationNode: NodeSamples(
        _of("MPSCNNSpatialNormalization"), _local(mps.MPSCNNSpatialNormalizationNode, "kernel_width")
    ),
    mps.MPSCNNLocalContrastNormalizationNode: NodeSamples(
        _of("MPSCNNLocalContrastNormalization"),
        _local(mps.MPSCNNLocalContrastNormalizationNode, "kernel_width", "p0", "pm", "ps"),
    ),
    mps.MPSCNNCrossChannelNormalizationNode: NodeSamples(
        _of("MPSCNNCrossChannelNormalization"), _local(mps.MPSCNNCrossChannelNormalizationNode, "kernel_size")
    ),
    mps.MPSCNNBatchNormalizationNode: NodeSamples(
        _of("MPSCNNBatchNormalization"), _data_source(mps.MPSCNNBatchNormalizationNode)
    ),
    mps.MPSCNNInstanceNormalizationNode: NodeSamples(
        _of("MPSCNNInstanceNormalization"), _data_source(mps.MPSCNNInstanceNormalizationNode)
    ),
    mps.MPSCNNGroupNormalizationNode: NodeSamples(
        _of("MPSCNNGroupNormalization"), _data_source(mps.MPSCNNGroupNormalizationNode)
    ),
    mps.MPSCNNSoftMaxNode: NodeSamples(_of("MPSCNNSoftMax"), _plain(mps.MPSCNNSoftMaxNode)),
    mps.MPSCNNLogSoftMaxNode: NodeSamples(_of("MPSCNNLogSoftMax"), _plain(mps.MPSCNNLogSoftMaxNode)),
    mps.MPSCNNDropoutNode: NodeSamples(_of("MPSCNNDropout"), _dropout),
    mps.MPSCNNLossNode: NodeSamples(_of("MPSCNNLoss"), _loss(mps.MPSCNNLossNode)),
    mps.MPSCNNYOLOLossNode: NodeSamples(_of("MPSCNNYOLOLoss"), _loss(mps.MPSCNNYOLOLossNode)),
    mps.MPSNNInitialGradientNode: NodeSamples(_of("MPSNNInitialGradient"), _plain(mps.MPSNNInitialGradientNode)),
    mps.MPSNNForwardLossNode: NodeSamples(FORWARD_LOSSES, _forward_loss),
    mps.MPSNNAdditionNode: NodeSamples(_of("MPSCNNAdd"), _arithmetic(mps.MPSNNAdditionNode)),
    mps.MPSNNSubtractionNode: NodeSamples(_of("MPSCNNSubtract"), _arithmetic(mps.MPSNNSubtractionNode)),
    mps.MPSNNMultiplicationNode: NodeSamples(_of("MPSCNNMultiply"), _arithmetic(mps.MPSNNMultiplicationNode)),
    mps.MPSNNDivisionNode: NodeSamples(_of("MPSCNNDivide"), _arithmetic(mps.MPSNNDivisionNode)),
    mps.MPSNNComparisonNode: NodeSamples(_of("MPSNNCompare"), _arithmetic(mps.MPSNNComparisonNode, "comparison_type")),
    **_reductions(),
    mps.MPSNNReductionSpatialMeanNode: NodeSamples(
        SPATIAL_MEANS, _plain(mps.MPSNNReductionSpatialMeanNode, "clip_rect_source")
    ),
    mps.MPSNNPadNode: NodeSamples(_of("MPSNNPad"), _pad),
    mps.MPSCNNUpsamplingNearestNode: NodeSamples(
        _of("MPSCNNUpsamplingNearest"), _upsampling(mps.MPSCNNUpsamplingNearestNode)
    ),
    mps.MPSCNNUpsamplingBilinearNode: NodeSamples(
        _of("MPSCNNUpsamplingBilinear"), _upsampling(mps.MPSCNNUpsamplingBilinearNode, "align_corners")
    ),
    mps.MPSNNGramMatrixCalculationNode: NodeSamples(
        _of("MPSNNGramMatrixCalculation"), _plain(mps.MPSNNGramMatrixCalculationNode, arguments=("alpha",))
    ),
    mps.MPSNNConcatenationNode: NodeSamples(
        [_concatenation(4, 8), _concatenation(3, 5, 1), _concatenation(1, 2), _concatenation(2, 6)],
        lambda kernel, images: mps.MPSNNConcatenationNode(list(images)),
    ),
}
"""The rows of the table of nodes, each with its samples."""

APART = {
    mps.MPSNNReshapeNode: "its kernel is told the shape by the destination",
    mps.MPSNNBilinearScaleNode: "its kernel never sizes its result",
    mps.MPSNNLanczosScaleNode: "its kernel never sizes its result",
}
"""Node classes with tests of their own instead, and why."""

NODES_OF_KERNELS: dict[str, str] = {
    **{type(entry.samples[0].make(mtl_device("cpu"))).__name__: kind.__name__ for kind, entry in NODE_SAMPLES.items()},
    **{
        kind.__name__: f"{kind.__name__}Node"
        for kind in SAMPLES
        if kind.__name__.startswith("MPSCNNNeuron") and hasattr(mps, f"{kind.__name__}Node")
    },
    "MPSNNReshape": "MPSNNReshapeNode",
    "MPSNNLossGradient": "MPSNNLossGradientNode",
    "MPSImageBilinearScale": "MPSNNBilinearScaleNode",
    "MPSImageLanczosScale": "MPSNNLanczosScaleNode",
    "MPSCNNBatchNormalizationStatistics": "MPSCNNBatchNormalizationNode",
    "MPSCNNBatchNormalizationStatisticsGradient": "MPSCNNBatchNormalizationGradientNode",
    "MPSCNNBatchNormalizationGradient": "MPSCNNBatchNormalizationGradientNode",
}
"""The node that runs each kernel in a graph, by names."""
