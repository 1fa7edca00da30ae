"""Cases of nodes: a graph of one filter for the first sample that each node class can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import openmps as mps
from conformance_list.describe import DEVICE, described_as, drawn, listed
from conformance_list.kernels import family_of
from encoding import Bench
from node_catalogue import NODE_SAMPLES
from openmps.formats.archive import forms
from openmps.formats.archive.sources import StandIns
from openmps.graph.nodes.catalog import make_kernel
from samples.sample import Sample

APART: dict[str, str] = {}
"""Node classes that no case asks, and why."""
ELSEWHERE = ("MPSCNNLossNode", "MPSCNNYOLOLossNode")
"""Node classes that cases of training ask."""
_PLACES = {"source": 0, "left_source": 0, "right_source": 1}
_SHORT = ("filter_size", "stride", "dilation_rate")
"""Short forms of arguments that are written out."""
FLOAT32 = int(mps.MPSImageFeatureChannelFormat.FLOAT32)


def node_cases() -> Iterator[dict[str, Any]]:
    """One for each node class."""
    for kind, entry in NODE_SAMPLES.items():
        if kind.__name__ not in {*APART, *ELSEWHERE}:
            sample = entry.samples[0]
            images = _images(sample)
            node = entry.make(sample.make(DEVICE), [mps.MPSNNImageNode() for _ in images])
            yield _case(node, sample, images)


def _images(sample: Sample) -> list[dict[str, Any]]:
    """The sources, and behind them the images that losses take besides."""
    found = [
        drawn((height, width, channels), f"{sample.name} source {place}", sample.domain)
        for place, (channels, height, width) in enumerate(sample.shapes)
    ]
    if sample.operands is not None:
        operands = sample.operands(Bench(DEVICE), 0, 1, True)
        found += [listed(each.numpy()) for each in operands if each is not None]
    return found


def _case(node: Any, sample: Sample, images: Sequence[dict[str, Any]]) -> dict[str, Any]:
    name = type(node).__name__
    entry = {
        "name": f"graph: {name} of {sample.name}", "family": family_of(name), "kind": "graph", "classes": [name],
        "nodes": [described_as(node, _arguments(node, len(images)), sample.name)], "format": FLOAT32,
        "sources": list(images), "read": ["result"],
    }  # fmt: skip
    return {**entry, "compare": "shape"} if "random" in sample.traits else entry


def _arguments(node: Any, count: int) -> dict[str, Any]:
    """What makes the node, images by their places among the sources."""
    names = [name for name in forms.signature(type(node)).parameters if name not in _SHORT]
    if "left_source" in names:
        names.remove("sources")
    elif "sources" in names:
        names = [name for name in names if name not in ("source", "labels", "weights")]
    found: dict[str, Any] = {}
    for name in names:
        if name in _PLACES:
            found[name] = {"source": _PLACES[name]}
        elif name == "sources":
            found[name] = [{"source": place} for place in range(count)]
        elif name == "weights":
            found[name] = StandIns().weights(make_kernel(node, DEVICE))
        elif name == "data_source":
            found[name] = StandIns().normalization(make_kernel(node, DEVICE))
        elif getattr(node, name) is not None:
            found[name] = getattr(node, name)
    return found
