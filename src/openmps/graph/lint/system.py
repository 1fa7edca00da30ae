"""Rules on the system and on images that come and go: releases, read counts, exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.graph.lint.findings import Finding, Severity
from openmps.graph.lint.view import View
from openmps.graph.nodes import neuron
from openmps.graph.nodes.catalog import SINCE
from openmps.graph.nodes.convolution import MPSCNNConvolutionGradientNode
from openmps.graph.nodes.loss import MPSCNNYOLOLossNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, handle_label
from openmps.graph.nodes.releases import FIRST
from openmps.graph.nodes.trainable import TrainableNode
from openmps.types import (
    MPSImageEdgeMode,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSNNTrainingStyle,
)

_EDGES = (MPSImageEdgeMode.MIRROR, MPSImageEdgeMode.MIRROR_WITH_EDGE, MPSImageEdgeMode.CONSTANT)


def releases(view: View) -> Iterator[Finding]:
    """Classes and properties that the system does not have."""
    target = view.target
    if target is None:
        return
    for node, kernel in view.layers():
        for what, macos in _used(view, node, kernel):
            if not target.has(macos):
                yield view.finding(
                    Severity.ERROR, "release", node, f"{what} came with {target.since(macos)}", str(target),
                    "Ask for a newer system, or use another filter",
                )  # fmt: skip
    if len(view.graph.interface.outputs()) - len(view.graph.interface.exported) > 1 and not target.has("10.15"):
        yield view.finding(
            Severity.ERROR, "release", None, f"graphs of several results came with {target.since('10.15')}",
            str(target), "Export the other images",
        )  # fmt: skip


def _used(view: View, node: MPSNNFilterNode, kernel: Any) -> Iterator[tuple[str, str]]:
    """What a node needs of the framework, and the macOS that brought it."""
    name = next((base.__name__ for base in type(node).__mro__ if base.__name__ in SINCE), None)
    if name is not None:
        yield name, SINCE[name]
    if isinstance(node, MPSCNNYOLOLossNode):
        yield "MPSCNNYOLOLossDescriptor", "10.14"
    if getattr(getattr(node, "loss_descriptor", None), "reduce_across_batch", False):
        yield "reduceAcrossBatch", "11.0"
    if getattr(node, "edge_mode", None) in _EDGES:
        yield f"the edge mode {node.edge_mode.name}", "10.14.1"  # pyright: ignore[reportAttributeAccessIssue]
    policy = node.padding_policy
    if isinstance(policy, MPSNNDefaultPadding) and int(policy.padding_method()) & int(MPSNNPaddingMethod.CUSTOM):
        yield "paddingForTensorflowAveragePooling", "10.13.4"
    held = getattr(kernel, "parameters", None)
    fused = getattr(getattr(held, "descriptor", None), "fused_neuron_descriptor", None)
    if fused is not None and not isinstance(node, MPSCNNConvolutionGradientNode):
        yield "fusedNeuronDescriptor", "10.13.4"
        yield f"the neuron {fused.neuron_type.name}", neuron.SINCE.get(fused.neuron_type, FIRST)
    half = MPSNNConvolutionAccumulatorPrecisionOption.HALF
    if getattr(node, "accumulator_precision", None) is half and not isinstance(node, MPSNNGradientFilterNode):
        yield "accumulatorPrecision", "10.14"
    style = view.graph.interface.styles.get(node)
    is_forward = isinstance(node, TrainableNode) and not isinstance(node, MPSNNGradientFilterNode)
    if is_forward and style not in (None, MPSNNTrainingStyle.UPDATE_DEVICE_GPU):
        yield "trainingStyle of a forward node", "10.15"


def read_counts(view: View) -> Iterator[Finding]:
    """A temporary source image has as many reads left as the graph's filters take."""
    interface = view.graph.interface
    for image in interface.inputs:
        reads = interface.reads(image)
        if reads > 1:
            yield view.finding(
                Severity.NOTE, "read-count", None, "a temporary source image must have a read count for each filter",
                f"{reads} reads of {view.label_of(image)}",
                f"Set its readCount to {reads}, or give an ordinary image",
            )  # fmt: skip


def exports(view: View) -> Iterator[Finding]:
    """An exported image that the CPU is to read is no temporary one."""
    interface = view.graph.interface
    for image in interface.intermediates:
        if interface.allocators[image] is MPSTemporaryImage.default_allocator() and image.producer is not None:
            yield view.finding(
                Severity.WARNING, "export", image.producer,
                "an exported image is a temporary one unless it has another allocator: the CPU cannot read it, and it "
                "must be read once on the command buffer",
                "the default allocator", "Set its image_allocator to MPSImage.default_allocator()",
            )  # fmt: skip


def labels(view: View) -> Iterator[Finding]:
    """Source images are told apart by the labels of their handles."""
    for kind, nodes in (("image", view.graph.interface.inputs), ("state", view.graph.interface.input_states)):
        named = [handle_label(node.handle) for node in nodes]
        if len(named) > 1 and (None in named or len(set(named)) < len(named)):
            yield view.finding(
                Severity.NOTE, "labels", None,
                f"source {kind}s should have labels of their own: their order on a device is the framework's",
                f"{len(named)} {kind}s, labels {', '.join(map(repr, named))}", "Make their nodes with Handle('name')",
            )  # fmt: skip
