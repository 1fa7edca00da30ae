"""Rules on numbers: what float16 holds of weights and activations, and formats (MPSCNNConvolution.h, macOS 11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from openmps.graph.lint.findings import Finding, Severity
from openmps.graph.lint.view import FLOAT16_LIMIT, View, numbers_of
from openmps.graph.nodes.convolution import MPSCNNConvolutionGradientNode
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.reduction import (
    MPSNNReductionFeatureChannelsArgumentMaxNode,
    MPSNNReductionFeatureChannelsArgumentMinNode,
)
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat

_HALF = MPSImageFeatureChannelFormat.FLOAT16
_UNORM = (MPSImageFeatureChannelFormat.UNORM8, MPSImageFeatureChannelFormat.UNORM16)
_HEADROOM = 8.0
"""How far below the limit activations should stay: other images are not those of the samples."""
_VANISHES = 2.0**-25
"""Numbers of at most this magnitude are rounded to zero in float16."""
_PRECISION = "11.0"
"""The macOS since which a data source can ask for weights of float32."""
_EXACT = 2048
"""Integers up to this are all numbers of float16."""
_ARGUMENTS = (MPSNNReductionFeatureChannelsArgumentMaxNode, MPSNNReductionFeatureChannelsArgumentMinNode)


def _weights(view: View) -> Iterator[tuple[MPSNNFilterNode, Any]]:
    """Each forward convolution with weights of numbers, and its weights; those that are shared once."""
    seen: set[int] = set()
    for node, kernel in view.layers():
        held = getattr(kernel, "parameters", None)
        if hasattr(held, "weights_buffer") and not isinstance(node, MPSCNNConvolutionGradientNode):
            if id(held) not in seen:
                yield node, held
            seen.add(id(held))


def weight_range(view: View) -> Iterator[Finding]:
    """Weights are numbers of float16, unless a device multiplies with float32."""
    for node, held in _weights(view):
        weights = numbers_of(held.weights_buffer)
        fold = held.descriptor.batch_normalization
        if fold is not None:
            scale = torch.from_numpy(fold.scale.copy()).to(weights.device)
            weights = (weights.view(scale.numel(), -1) * scale[:, None]).view(-1)
        largest = float(weights.abs().max()) if weights.numel() else 0.0
        exact = held.precision is MPSDataType.FLOAT32 and (view.target is None or view.target.has(_PRECISION))
        if not largest <= FLOAT16_LIMIT and not exact:
            yield view.finding(
                Severity.ERROR, "weight-range", node, f"weights must be at most {FLOAT16_LIMIT:,.0f}, as float16 holds",
                f"{largest:.6g}", "Scale the layer down and the next one up, or ask for weights of float32",
            )  # fmt: skip
        lost = int(((weights != 0) & (weights.abs() <= _VANISHES)).sum())
        if lost and not exact:
            yield view.finding(
                Severity.WARNING, "weight-range", node, "weights that float16 rounds to zero are lost",
                f"{lost:,} of {weights.numel():,}", "Scale the layer up and the next one down",
            )  # fmt: skip


def weight_precision(view: View) -> Iterator[Finding]:
    """A device multiplies with weights of float16, unless the data source asks for float32, from macOS 11 on."""
    for node, held in _weights(view):
        wants = held.precision is MPSDataType.FLOAT32
        read = view.format_read(node.sources[0])
        if wants and view.target is not None and not view.target.has(_PRECISION):
            yield view.finding(
                Severity.WARNING, "weight-precision", node,
                f"weights are rounded to float16 before {view.target.since(_PRECISION)}",
                f"a data source that asks for float32, and {view.target}", "Compare with weights_fp16 of the kernel",
            )  # fmt: skip
        elif held.precision is None and read not in (None, _HALF):
            yield view.finding(
                Severity.WARNING, "weight-precision", node,
                "a device rounds weights to float16 unless the data source has kernel_weights_data_type()",
                f"a source of {read.name.lower()}, which openmps multiplies with weights as they are",
                "Return MPSDataType.FLOAT32 from it, as sources of openmps export --swift do, or set weights_fp16 on "
                "the kernel to see the rounded numbers",
            )  # fmt: skip


def activations(view: View) -> Iterator[Finding]:
    """Images of float16 hold the numbers of the samples, with room for others."""
    for node, _ in view.layers():
        peak = None if view.peaks is None else view.peaks.get(node.result_image)
        if peak is None:
            continue
        is_half = view.format_of(node.result_image) is _HALF
        limit = f"numbers of a float16 image must be at most {FLOAT16_LIMIT:,.0f}"
        remedy = "Store the image in float32 (result_image.format), or scale the layers before it"
        if not peak.is_finite or (is_half and peak.magnitude > FLOAT16_LIMIT):
            got = f"{peak.magnitude:.6g}" if peak.is_finite else "a NaN or an infinity, computed in float32"
            yield view.finding(Severity.ERROR, "activation-range", node, limit, got, remedy)
        elif is_half and peak.magnitude > FLOAT16_LIMIT / _HEADROOM:
            says = f"{limit}, and should stay below an eighth of it"
            yield view.finding(Severity.WARNING, "activation-range", node, says, f"{peak.magnitude:.6g}", remedy)


def formats(view: View) -> Iterator[Finding]:
    """Intermediate images are of floating point: unorm formats cut off what is not within 0 to 1."""
    for node, _ in view.layers():
        form = view.format_of(node.result_image)
        peak = None if view.peaks is None else view.peaks.get(node.result_image)
        if form in _UNORM:
            got = form.name.lower() + ("" if peak is None else f", numbers up to {peak.magnitude:.6g}")
            yield view.finding(
                Severity.WARNING, "format", node, "a result of a unorm format is cut to 0 to 1", got,
                "Use FLOAT16 or FLOAT32",
            )  # fmt: skip


def arguments(view: View) -> Iterator[Finding]:
    """The channel that a reduction finds is a number that its format holds."""
    for node, _ in view.layers():
        if not isinstance(node, _ARGUMENTS):
            continue
        form, shape = view.format_of(node.result_image), view.shape_of(node.sources[0])
        channels = 0 if shape is None else shape.feature_channels
        if form in _UNORM or (form is _HALF and channels > _EXACT + 1):
            yield view.finding(
                Severity.ERROR, "argument-format", node, f"float16 holds channels up to {_EXACT:,}, unorm formats none",
                f"{form.name.lower()}{f' and {channels:,} channels' if channels else ''}",
                "Set result_image.format to FLOAT32",
            )  # fmt: skip
