"""Which images of a capture are which of a network's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openmps.debug.pairing import pairs
from openmps.errors import MPSArgumentError, lengths_text
from openmps.formats.captures import Capture, CapturedImage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.run.trace import Trace, TracedKind, TracedValue, filter_names, source_names


class Paired(NamedTuple):
    """The images of a capture by their places in a network."""

    source_labels: Sequence[str]
    sources: Sequence[CapturedImage]
    results: Mapping[str, CapturedImage]
    """By the labels of the filters."""
    notes: Sequence[str]


def paired(who: str, graph: MPSNNGraph, capture: Capture) -> Paired:
    """Images by their labels; where the device has other names for some, in order, those of one size."""
    names = source_names(graph.interface.inputs)
    sources = [_source(who, capture, name, is_only=len(names) == 1) for name in names]
    counts = {len(each.array) for each in sources}
    if len(counts) > 1:
        raise MPSArgumentError(who, "capture", "must have as many images of each source", sorted(counts))
    labels = filter_names(graph.kernels, names)
    taken = {each.label for each in sources}
    results = {label: image for label in labels if (image := capture.image(label)) is not None}
    others = [each for each in capture.images if each.label not in taken and each.label not in results]
    notes: list[str] = []
    if others:
        found = _in_order(graph, sources, results, others)
        results |= found
        notes += [f"{image.label!r} is taken for {label!r}" for label, image in found.items()]
        rest = [each for each in others if each not in found.values()]
        if rest:
            notes.append(f"of the capture alone: {', '.join(repr(each.label) for each in rest)}")
    if not results:
        rule = f"must have a result of the network: {', '.join(map(repr, labels[:8]))}"
        raise MPSArgumentError(who, "capture", rule, _listed(others))
    missing = [label for label in labels if label not in results]
    if missing:
        notes.append(f"not in the capture: {', '.join(map(repr, missing))}")
    return Paired(names, sources, results, notes)


def _source(who: str, capture: Capture, name: str, *, is_only: bool) -> CapturedImage:
    found = capture.image(name)
    if found is None:
        which = "the source image" if is_only else "each source image"
        remedy = f"Dump what the network was given under the label {name!r}"
        raise MPSArgumentError(who, "capture", f"must have {which} {name!r}", _listed(capture.images), remedy)
    return found


def _listed(images: Sequence[CapturedImage]) -> str:
    return ", ".join(f"{each.label!r} ({lengths_text(each.array.shape)})" for each in images[:8]) or "none"


def _in_order(
    graph: MPSNNGraph,
    sources: Sequence[CapturedImage],
    results: Mapping[str, CapturedImage],
    others: Sequence[CapturedImage],
) -> dict[str, CapturedImage]:
    """The images of other names by the labels that they are taken for."""
    own = graph.trace([each.numbers for each in sources])
    left = Trace([each for each in own.of(TracedKind.IMAGE) if each.label not in results])
    theirs = Trace([
        TracedValue(each.label, each.label, TracedKind.IMAGE, each.label, each.channel_format, each.numbers)
        for each in others
    ])  # fmt: skip
    by_label = {each.label: each for each in others}
    return {mine: by_label[other] for mine, other in pairs(left, theirs, {})}
