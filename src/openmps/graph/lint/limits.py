"""Rules on shapes: channels of groups and concatenations, sizes of images (MPSCNNConvolution.h, MPSImage.h)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openmps.graph.lint.findings import Finding, Severity
from openmps.graph.lint.view import View
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionGradientNode
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.shape import MPSNNPadNode
from openmps.metal.texture_descriptor import LONGEST_SIDE, MOST_SLICES

_SLICE = 4
"""Feature channels of a texture slice."""
_MOST_CHANNELS = MOST_SLICES * _SLICE
"""Channels of one image."""


def _descriptors(view: View) -> Iterator[tuple[MPSNNFilterNode, Any]]:
    """Each forward convolution and its descriptor."""
    for node, kernel in view.layers():
        held = getattr(kernel, "parameters", None)
        descriptor = getattr(held, "descriptor", None) or getattr(kernel, "convolution_descriptor", None)
        if descriptor is not None and not isinstance(node, MPSCNNConvolutionGradientNode):
            yield node, descriptor


def groups(view: View) -> Iterator[Finding]:
    """A group of a convolution has a multiple of 4 input channels, and of output channels."""
    for node, descriptor in _descriptors(view):
        counts = [int(channels) // descriptor.groups for channels in
                  (descriptor.input_feature_channels, descriptor.output_feature_channels)]  # fmt: skip
        if descriptor.groups > 1 and any(count % _SLICE for count in counts):
            yield view.finding(
                Severity.ERROR, "groups", node, "a group must have a multiple of 4 input and of 4 output channels",
                f"{descriptor.groups} groups of {counts[0]} input and {counts[1]} output channels",
                "Use fewer groups, or add channels with weights of zero",
            )  # fmt: skip


def depthwise(view: View) -> Iterator[Finding]:
    """A depthwise convolution has one output channel an input channel."""
    for node, descriptor in _descriptors(view):
        if descriptor.channel_multiplier > 1:
            yield view.finding(
                Severity.ERROR, "depthwise", node, "the channel multiplier of a depthwise convolution must be 1",
                descriptor.channel_multiplier, "Use one depthwise convolution for each multiple, and concatenate them",
            )  # fmt: skip


def sub_pixels(view: View) -> Iterator[Finding]:
    """Sub-pixels with groups have a multiple of 4 channels."""
    for node, descriptor in _descriptors(view):
        factor = getattr(descriptor, "sub_pixel_scale_factor", 1)
        if factor > 1 and descriptor.groups > 1 and descriptor.result_channels % _SLICE:
            yield view.finding(
                Severity.ERROR, "sub-pixels", node, "with groups a sub-pixel must have a multiple of 4 channels",
                f"{descriptor.result_channels} channels", "Use one group, or more output channels",
            )  # fmt: skip


def concatenations(view: View) -> Iterator[Finding]:
    """Each source of a concatenation begins at a multiple of 4 channels, behind fillers."""
    for node, _ in view.layers():
        if not isinstance(node, MPSNNConcatenationNode):
            continue
        shapes = [view.shape_of(source) for source in node.sources]
        counts = [shape.feature_channels for shape in shapes if shape is not None]
        if any(count % _SLICE for count in counts):
            yield view.finding(
                Severity.WARNING, "concatenation", node,
                "each source is filled up to a multiple of 4 channels, which other frameworks do not do",
                f"sources of {', '.join(map(str, counts))} channels",
                "Give the layer behind it weights of zero for the gaps, or make the channels multiples of 4",
            )  # fmt: skip


def sizes(view: View) -> Iterator[Finding]:
    """An image fits a texture: 16,384 pixels a side, 2,048 slices of 4 channels."""
    if view.program is None:
        return
    made = {node.result_image: node for node, _ in view.layers()}
    for image, descriptor in view.program.descriptors.items():
        side = max(descriptor.width, descriptor.height)
        slices = -(-descriptor.feature_channels // _SLICE) * max(descriptor.number_of_images, 1)
        if side > LONGEST_SIDE or slices * _SLICE > _MOST_CHANNELS:
            got = f"{descriptor.width}x{descriptor.height}x{descriptor.feature_channels}"
            yield view.finding(
                Severity.ERROR, "image-size", made.get(image),
                f"an image must have at most {LONGEST_SIDE:,} pixels a side and {_MOST_CHANNELS:,} channels",
                f"{got} of {view.label_of(image)}" if image not in made else got,
                "Cut it into pieces, or use images of one frame each",
            )  # fmt: skip


def unread_channels(view: View) -> Iterator[Finding]:
    """A convolution reads all slices of channels of its source."""
    for node, descriptor in _descriptors(view):
        shape, inputs = view.shape_of(node.sources[0]), int(descriptor.input_feature_channels)
        if shape is not None and shape.feature_channels > inputs + -inputs % _SLICE:
            yield view.finding(
                Severity.WARNING, "unread-channels", node, "a slice of 4 feature channels is not read",
                f"{shape.feature_channels} channels, of which {inputs} are read",
                "Give images as [images, height, width, channels], of the channels that it reads",
            )  # fmt: skip


def padded_channels(view: View) -> Iterator[Finding]:
    """A padding of feature channels before the image moves channels across slices."""
    for node, _ in view.layers():
        if isinstance(node, MPSNNPadNode) and node.padding_size_before.channel % _SLICE:
            yield view.finding(
                Severity.WARNING, "padded-channels", node,
                "channels put before an image should be a multiple of 4, so that whole slices are moved",
                f"{node.padding_size_before.channel} channels", "Put them behind it, or pad by a multiple of 4",
            )  # fmt: skip
