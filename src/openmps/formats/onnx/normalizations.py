"""Batch, instance, group and local response normalization."""

from __future__ import annotations

import numpy as np

from openmps.formats.onnx.joins import OF_CHANNELS, SHAPE
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError, ShapeError
from openmps.formats.onnx.site import Builder, Row, Site
from openmps.graph.nodes.local_normalization import MPSCNNCrossChannelNormalizationNode
from openmps.graph.nodes.normalization import MPSCNNGroupNormalizationNode, MPSCNNInstanceNormalizationNode


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
    rows = _scales_and_shifts(at, node, channels_of(x.layout.channels), 1)
    source = at.learning.image_normalization(node, rows, node.decimal("epsilon", 1e-5), None)
    return at.made(MPSCNNInstanceNormalizationNode(x.image, source), x.layout, node.title)


def group(at: Site, node: Node) -> Picture:
    """Channels in groups; scales and shifts of each group in version 18, of each channel later."""
    x, groups = at.planar(node), node.integer("num_groups", 0)
    channels = channels_of(x.layout.channels)
    if groups < 1 or channels % groups:
        raise ShapeError(f"{groups} groups do not divide {channels} channels")
    _check_shape(node.integers(SHAPE, []), x.layout.shape)
    repeats = 1 if at.opset >= 21 or node.given(OF_CHANNELS) else channels // groups
    rows = _scales_and_shifts(at, node, channels, repeats)
    epsilon = node.decimal("epsilon", 1e-5)
    source = at.learning.image_normalization(node, rows, epsilon, groups, learns=repeats == 1)
    return at.made(MPSCNNGroupNormalizationNode(x.image, source), x.layout, node.title)


def _check_shape(given: list[int], own: tuple[int | None, ...]) -> None:
    """Raise unless what a model reshapes a result to is the shape of the input; the batch may be 0, as it is."""
    pairs = zip(given, own, strict=False)
    if (given and len(given) != len(own)) or any(
        length not in (-1, mine) and mine is not None and (place or length)
        for place, (length, mine) in enumerate(pairs)
    ):
        raise NodeError(f"its result is reshaped to {given[:8]}, another shape than its input has")


def _scales_and_shifts(at: Site, node: Node, channels: int, repeats: int) -> tuple[Row, Row]:
    """Inputs 1 and 2, each number for so many channels; 1 and 0 where they are left out."""
    if at.value(node, 1) is None and at.value(node, 2) is None:
        return np.ones(channels, np.float32), np.zeros(channels, np.float32)
    scales, shifts = (at.row(node, 1 + place, ("scales", "shifts")[place], channels // repeats) for place in (0, 1))
    return np.repeat(scales, repeats), np.repeat(shifts, repeats)


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
