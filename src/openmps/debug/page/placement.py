"""Which source pixels each result pixel of a layer reads: tables, from the windows that its kernel is planned with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openmps.core.state.gradient import SourceRecord
from openmps.graph.compile.program import Stage
from openmps.graph.nodes.node import MPSNNGradientFilterNode
from openmps.kernels.pooling import MPSCNNPoolingAverage
from openmps.ops.geometry import Axis
from openmps.types import MPSImageEdgeMode

_MOST = 1 << 16
"""Taps of an axis that are listed."""
_MODES = {
    MPSImageEdgeMode.ZERO: "ZERO: padding counts as 0.",
    MPSImageEdgeMode.CLAMP: "CLAMP: padding repeats the nearest pixel of the edge.",
}
_AVERAGE = {
    MPSImageEdgeMode.ZERO: "ZERO: padding counts as 0, and the mean is that of all taps.",
    MPSImageEdgeMode.CLAMP: "CLAMP: padding is left out, and the mean is that of the taps that are left.",
}


def is_placed(stage: Stage) -> bool:
    """Whether there is something to say on how a filter's windows lie."""
    if isinstance(stage.node, MPSNNGradientFilterNode) or not stage.plan.sources:
        return False
    window = stage.plan.sources[0].window
    return any(axis.size > 1 or axis.stride > 1 or axis.leaves_source for axis in (window.x, window.y))


def sides(stage: Stage, record: SourceRecord) -> list[int]:
    """Pixels that are read beyond the source: at the top, left, bottom and right.

    Of a transposed convolution they are pixels of the source with zeros put between its pixels.
    """
    x, y = (_steps(stage, axis) for axis in (record.window.x, record.window.y))
    return [y.before, x.before, y.after, x.after]


def placement(stage: Stage) -> dict[str, Any] | None:
    """The taps of all windows by axis; None where there are too many to be listed."""
    record = stage.plan.sources[0]
    x, y = record.window.x, record.window.y
    if any(axis.size * axis.result > _MOST for axis in (x, y)):
        return None
    backwards = _is_backwards(stage)
    modes = _AVERAGE if isinstance(stage.kernel, MPSCNNPoolingAverage) else _MODES
    edge = _MODES[MPSImageEdgeMode.ZERO] if backwards else modes.get(record.edge_mode, record.edge_mode.name)
    return {
        "x": _axis(stage, x),
        "y": _axis(stage, y),
        "edge": edge,
        "backwards": backwards,
        "offset": [x.offset, y.offset],
    }


def _axis(stage: Stage, axis: Axis) -> dict[str, Any]:
    steps = _steps(stage, axis)
    taps = [[_pixel(stage, axis, tap) for tap in steps.taps(index)] for index in range(axis.result)]
    facts = {"source": axis.source, "result": axis.result, "size": axis.size}
    return {**facts, "stride": axis.stride, "dilation": axis.dilation, "taps": taps}


def _steps(stage: Stage, axis: Axis) -> Axis:
    """The windows, a step of one pixel apart where zeros are put between the source's pixels."""
    if not _is_backwards(stage):
        return axis
    return replace(axis, source=(axis.source - 1) * axis.stride + 1, stride=1)


def _pixel(stage: Stage, axis: Axis, tap: int) -> int | None:
    """The source pixel under a tap; None for a zero between two of them."""
    if not _is_backwards(stage):
        return tap
    return None if tap % axis.stride else tap // axis.stride


def _is_backwards(stage: Stage) -> bool:
    return bool(getattr(stage.kernel, "is_backwards", False))
