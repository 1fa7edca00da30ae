"""Graphs to export: every sample of every node class with its gradient nodes, and settings that no sample has."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import openmps as mps
from node_catalogue import NODE_SAMPLES
from openmps.runtime.devices import mtl_device

CPU = mtl_device("cpu")


def graphs() -> list[Any]:
    """Each sample of each node class: the node and its gradient nodes, all results needed."""
    return [
        pytest.param(kind, entry, sample, id=f"{kind.__name__} {sample}".replace(" ", "_"))
        for kind, entry in NODE_SAMPLES.items()
        for sample in entry.samples
    ]


def graph_of(kind: Any, entry: Any, sample: Any) -> mps.MPSNNGraph:
    """The graph of one of `graphs`."""
    count = 3 if kind is mps.MPSNNForwardLossNode else len(sample.shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups of few channels
        return with_gradients(entry.make(sample.make(CPU), images(count)))


def images(count: int) -> list[mps.MPSNNImageNode]:
    return [mps.MPSNNImageNode(mps.Handle(f"x{place}")) for place in range(count)]


def with_gradients(node: mps.MPSNNFilterNode) -> mps.MPSNNGraph:
    """The graph of a node and its gradient nodes, as far as it has some."""
    labels = getattr(node, "input_labels", None)
    if labels is not None:
        labels.handle = mps.Handle("labels")
    images = [node.result_image]
    try:
        gradients = node.gradient_filters(mps.MPSNNImageNode(mps.Handle("gradient")))
    except mps.MPSError:
        gradients = []
    images += [each.result_image for each in gradients]
    if gradients and isinstance(node, mps.MPSCNNConvolutionTransposeNode | mps.MPSCNNConvolutionNode):
        assert node.result_state is not None
        node.result_state.export_from_graph = True
    try:
        return mps.MPSNNGraph(CPU, images)
    except mps.MPSArgumentError:  # sub-pixels have no gradient
        return mps.MPSNNGraph(CPU, node.result_image)


def others() -> dict[str, Any]:
    """Nodes without samples, and settings that no sample has."""
    (x,) = images(1)
    size = mps.MTLSize(6, 4, 1)
    scaled = mps.MPSNNAdditionNode(*images(2))
    scaled.primary_scale, scaled.bias, scaled.minimum_value = 0.1, -2.0, -1e-20
    scaled.primary_stride_in_pixels_x = 0
    reduced = mps.MPSNNReductionFeatureChannelsSumNode(x)
    reduced.weight, reduced.clip_rect_source = 0.3, mps.MTLRegion(mps.MTLOrigin(1, 0, 0), mps.MTLSize(2, 3, 1))
    clipped = mps.MPSNNReductionRowMaxNode(x)
    clipped.clip_rect_source = mps.MTLRegion(mps.MTLOrigin(1, 0, 0), mps.MTLSize(2, 2**64 - 1, 2**63))
    weighted = mps.MPSNNForwardLossNode(
        *images(2), loss_descriptor=mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.HUBER, mps.MPSCNNReductionType.MEAN)
    )
    across = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.LOG)
    across.reduce_across_batch = True
    return {
        "reshape": mps.MPSNNReshapeNode(x, 1, 2, 3),
        "bilinear": mps.MPSNNBilinearScaleNode(x, size),
        "lanczos": mps.MPSNNLanczosScaleNode(x, size),
        "scaled addition": scaled,
        "weighted sum": reduced,
        "loss": weighted,
        "across the batch": mps.MPSCNNLossNode(x, across),
        "clipped below": clipped,
        "plain dropout": mps.MPSCNNDropoutNode(x, 0.1, 2**40, mps.MTLSize(0, 1, 1)),
        "infinite": mps.MPSNNPadNode(x, mps.MPSImageCoordinate(1, 2, 0), mps.MPSImageCoordinate(0, 0, 4),
                                     mps.MPSImageEdgeMode.CONSTANT),
    }  # fmt: skip


READ = dict.fromkeys(("NONE", "SIGMOID", "ABSOLUTE", "SOFT_SIGN", "GELU"), 0)
READ |= {"RELU": 1, "ELU": 1, "LINEAR": 2, "HARD_SIGMOID": 2, "TANH": 2, "SOFT_PLUS": 2, "RELU_N": 2}
READ |= dict.fromkeys(("POWER", "EXPONENTIAL", "LOGARITHM"), 3)
"""How many of a, b and c a neuron reads."""


def descriptors() -> Iterator[mps.MPSNNNeuronDescriptor]:
    for kind in mps.MPSCNNNeuronType:
        if kind is mps.MPSCNNNeuronType.PRELU:
            yield mps.MPSNNNeuronDescriptor(data=[0.1, -0.2])
        elif kind is not mps.MPSCNNNeuronType.COUNT:
            yield mps.MPSNNNeuronDescriptor(kind, *(0.1, 0.25, 1e-7)[: READ[kind.name]])


METHODS = [align | rest | size for align in (0, 1, 2) for rest in (0, 4, 8, 12) for size in (0, 16, 32)]
POLICIES = [
    *map(mps.MPSNNDefaultPadding, [*METHODS, 16 | 1 << 15, 16 | 1 << 13]),
    mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling(),
    mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only(),
    mps.ExplicitPadding(1, 2, 3, 4),
    mps.ExplicitPadding(0, -1, 2, 1, ceil_mode=True, edge_mode=mps.MPSImageEdgeMode.CLAMP),
    mps.ExplicitPadding.pytorch(1, count_include_pad=True),
    mps.ExplicitPadding.pytorch(1, count_include_pad=False),
]
