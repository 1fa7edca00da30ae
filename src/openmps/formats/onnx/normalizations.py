"""Batch, instance, group and local response normalization."""

from __future__ import annotations

import numpy as np

from openmps.formats.archive.sources import ArchivedNormalizationParameters
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError, ShapeError
from openmps.formats.onnx.site import Builder, Site
from openmps.graph.local_normalization_nodes import MPSCNNCrossChannelNormalizationNode
from openmps.graph.normalization_nodes import MPSCNNGroupNormalizationNode, MPSCNNInstanceNormalizationNode


def batch(at: Site, node: Node) -> Picture:
    """By fixed statistics: folded into a convolution before it, unless the network is trained."""
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        raise NodeError("it normalizes by the batch, or pixel by pixel", "Export the model in evaluation mode")
    if len([name for name in node.outputs[1:] if name and at.readers[name]]):
        raise NodeError("its outputs of statistics are read", "Export the model in evaluation mode")
    x = at.planar(node)
    channels = channels_of(x.layout.channels)
    names = ("scale", "shifts", "means", "variances")
    gamma, beta, mean, variance = (at.row(node, place + 1, name, channels) for place, name in enumerate(names))
    epsilon = node.decimal("epsilon", 1e-5)
    if not np.all(variance + epsilon > 0):
        raise NodeError("a variance plus epsilon is not above 0")
    if x.open is not None:
        scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        if x.open.affine(scale, beta - scale * mean):
            return x
    return at.normalization(node, x, (gamma, beta, mean, variance), epsilon)


def instance(at: Site, node: Node) -> Picture:
    """Each channel of each image by its own mean and variance."""
    x = at.planar(node)
    channels = channels_of(x.layout.channels)
    rows = at.row(node, 1, "scales", channels), at.row(node, 2, "shifts", channels)
    source = ArchivedNormalizationParameters(*rows, epsilon_value=node.decimal("epsilon", 1e-5), name=node.title)
    return at.made(MPSCNNInstanceNormalizationNode(x.image, source), x.layout)


def group(at: Site, node: Node) -> Picture:
    """Channels in groups; scales and shifts of each group in version 18, of each channel later."""
    x, groups = at.planar(node), node.integer("num_groups", 0)
    channels = channels_of(x.layout.channels)
    if groups < 1 or channels % groups:
        raise ShapeError(f"{groups} groups do not divide {channels} channels")
    count = groups if at.opset < 21 else channels
    rows = [
        np.repeat(at.row(node, place, what, count), channels // count) for place, what in ((1, "scales"), (2, "shifts"))
    ]
    epsilon = node.decimal("epsilon", 1e-5)
    source = ArchivedNormalizationParameters(*rows, epsilon_value=epsilon, groups=groups, name=node.title)
    return at.made(MPSCNNGroupNormalizationNode(x.image, source), x.layout)


def local_response(at: Site, node: Node) -> Picture:
    """LRN: by the squares of the channels around each."""
    size = node.integer("size", 0)
    if size < 1 or size % 2 == 0:
        raise NodeError("an even window: it leans to the upper channels in ONNX, to the lower ones here")
    x = at.planar(node)
    made = MPSCNNCrossChannelNormalizationNode(x.image, size)
    made.alpha, made.beta = node.decimal("alpha", 1e-4), node.decimal("beta", 0.75)
    made.delta = node.decimal("bias", 1.0)
    return at.made(made, x.layout, node.title)


BUILDERS: dict[str, Builder] = {
    "BatchNormalization": batch,
    "InstanceNormalization": instance,
    "GroupNormalization": group,
    "LRN": local_response,
}
