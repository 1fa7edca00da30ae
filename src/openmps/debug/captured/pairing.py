"""Which images of a capture are which of a network's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
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
    labels: Sequence[str]
    """Of all filters, in order."""
    images: Sequence[CapturedImage]
    """All of the capture, in its order."""

    def notes(self) -> list[str]:
        """What belongs together under two names, and what only one of both has."""
        found = [
            f"{each.label!r} is taken for {label!r}" for label, each in self.results.items() if each.label != label
        ]
        alone = [repr(each.label) for each in self.images if self._is_alone(each)]
        missing = [repr(label) for label in self.labels if label not in self.results]
        return [
            *found,
            *([f"of the capture alone: {', '.join(alone)}"] if alone else []),
            *([f"not in the capture: {', '.join(missing)}"] if missing else []),
        ]

    def unpaired_ends(self) -> list[str]:
        """The last filter without an image, and the last image without a filter."""
        mine = [label for label in self.labels[-1:] if label not in self.results]
        return [*mine, *(each.label for each in self.images[-1:] if self._is_alone(each))]

    def alternatives(self, label: str) -> list[tuple[str, CapturedImage]]:
        """What else a result may belong to, as filters and their images.

        Where the network here does in one filter what a device does in several, as a convolution with its neuron, it is
        a later image that only the device has; where a device does that, its image is that of a later filter here.
        """
        image = self.results[label]
        later_images = takewhile(self._is_alone, self.images[self.images.index(image) + 1 :])
        later_labels = takewhile(lambda each: each not in self.results, self.labels[self.labels.index(label) + 1 :])
        alike = (each for each in later_images if each.array.shape == image.array.shape)
        return [*((label, each) for each in alike), *((each, image) for each in later_labels)]

    def with_pair(self, label: str, other: str, image: CapturedImage) -> Paired:
        """With nothing that belongs to ``label``, and then with an image as the result of the filter ``other``."""
        rest = {mine: each for mine, each in self.results.items() if mine != label}
        return self._replace(results={**rest, other: image})

    def _is_alone(self, image: CapturedImage) -> bool:
        return image not in self.sources and image not in self.results.values()


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
    if others:
        results |= _in_order(graph, sources, results, others)
    if not results:
        rule = f"must have a result of the network: {', '.join(map(repr, labels[:8]))}"
        raise MPSArgumentError(who, "capture", rule, _listed(others))
    return Paired(names, sources, results, labels, capture.images)


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
