"""What a capture of a device says of a network: which layers rounding explains, and the first one that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import of_kind
from openmps.convention import conventions
from openmps.convention.table import CONVENTIONS
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.kinds import listed
from openmps.debug.captured.layers import Change, Layer, Layers, arrays_for, check_infers
from openmps.debug.captured.mistakes import MISTAKES, weights_of
from openmps.debug.captured.pairing import Paired, paired
from openmps.debug.captured.pictures import picture_mistake
from openmps.debug.captured.rounding import (
    Expected,
    Precision,
    expected,
    explained,
    operand_format,
    share_of_bound,
)
from openmps.debug.comparing import FLOAT16_LIMIT, error_percentiles
from openmps.debug.hints import hint
from openmps.errors import MPSError, counted, lengths_text
from openmps.formats.captures import Capture, CapturedImage, numbers_of
from openmps.graph.graph import MPSNNGraph
from openmps.selectors import name_arguments
from openmps.tables import note_text, printed_html, table
from openmps.types import MPSImageFeatureChannelFormat

_WHO = "openmps.debug.compare_capture"
_HEADINGS = ("layer", "format", "median", "90 %", "99 %", "largest", "of rounding", "")
_NUMBERS = (False, False, True, True, True, True, True, False)
_CLOSE = 0.05
"""The largest error over the magnitude beyond which a try is not looked at closely."""
_MOST_NAMES = 3
_MOST_TIMES = 1e6
"""Above it only the order of magnitude is printed: beside a number that must be 0 hardly anything is explained."""
_PICTURE = 2.0**-8
"""Of the largest number of a source image: what preprocessing in float16 may do."""


@name_arguments
@dataclass(frozen=True)
class JudgedLayer:
    """A layer of a capture beside what it gives here from the device's own images. Our addition.

    ``within`` are the filters that run in it: the device shows the result of the last one alone. ``percentiles`` are
    the errors that 50, 90 and 99 percent of the numbers stay below, over the largest magnitude, ``error`` is the
    largest; ``share`` is the largest error over what rounding explains of that number.
    """

    label: str
    within: tuple[str, ...]
    channel_format: MPSImageFeatureChannelFormat
    percentiles: tuple[float, float, float]
    error: float
    share: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Of the device's images, and here."""
    mistakes: tuple[str, ...] = ()
    """What would give the device's numbers, of the first layer that departs."""

    @property
    def departs(self) -> bool:
        """Whether rounding does not explain it."""
        return not self.share <= 1

    def cells(self) -> tuple[str, ...]:
        """The layer as a row of the table that `CaptureVerdict` prints."""
        name = self.label if len(self.within) < 2 else f"{self.label} (behind {', '.join(self.within[:-1])})"
        form = self.channel_format.name.lower()
        if self.shapes[0] != self.shapes[1]:
            sizes = " there, ".join(map(lengths_text, self.shapes))
            return (name, form, "-", "-", "-", "-", "-", f"departs: {sizes} here")
        share = _share_text(self.share)
        errors = (f"{each:.1e}" for each in (*self.percentiles, self.error))
        return (name, form, *errors, share, "departs" if self.departs else "")


@name_arguments
@dataclass(frozen=True)
class CaptureVerdict:
    """What a capture says of a network, layer by layer; printable as a table. Our addition.

    Each layer runs from the device's own images, so that none is blamed for another. ``sources`` are the source images
    beside those that the network should have been given, where these are known. ``unpaired_ends`` are the last result
    of the network and the last image of the capture, as far as the other one has nothing like it: where there are any,
    what the network comes to was not judged.
    """

    sources: tuple[JudgedLayer, ...]
    layers: tuple[JudgedLayer, ...]
    notes: tuple[str, ...] = ()
    unpaired_ends: tuple[str, ...] = ()

    @property
    def first(self) -> JudgedLayer | None:
        """The first that departs, a source image or a layer; None where rounding explains all."""
        return next((each for each in (*self.sources, *self.layers) if each.departs), None)

    @property
    def ok(self) -> bool:
        """Whether rounding explains all, and the last images are among those that were judged."""
        return self.first is None and not self.unpaired_ends

    def __str__(self) -> str:
        rows = (*self.sources, *self.layers)
        lines = [table(_HEADINGS, [each.cells() for each in rows], _NUMBERS), *map(note_text, self.notes)]
        first, departing = self.first, sum(each.departs for each in rows)
        if first is None:
            formats = ", ".join(sorted({each.channel_format.name.lower() for each in self.layers}))
            lines.append(f"explained by rounding: {counted(len(rows), 'image')}, in {formats}")
            if self.unpaired_ends:
                lines.append(f"what comes last was not judged: {' and '.join(self.unpaired_ends)} is of one alone")
            return "\n".join(lines)
        looks = "; or ".join(first.mistakes) or "none of the usual mistakes gives these numbers"
        lines.append(f"the first true difference: {first.label}: {looks}; {departing} of {len(rows)} depart")
        return "\n".join(lines)

    _repr_html_ = printed_html


def compare_capture(
    graph: MPSNNGraph, capture: Capture, source_images: Sequence[NDArray[Any]] | None = None
) -> CaptureVerdict:
    """Hold what a device has computed against the network here, layer by layer. Our addition.

    Every layer runs in float32 from the images that the device has shown before it. Where a result departs, it is held
    against those of the layers behind it that only one side has, too, and the closest counts: a neuron may be a part of
    the convolution before it here, and a layer of its own there, or the other way round. A number is explained where it
    lies within one step of the format that the device stores and three times the spread that random roundings of the
    layer's operands give. The first layer that departs is run again with each of the usual mistakes; those that give
    the device's numbers, within what rounding explains, are named. ``source_images`` are what the network should have
    been given, an array ``[images, height, width, channels]`` a source, as `MPSNNGraph.trace` takes it.

    Raises:
        MPSArgumentError: The graph trains, or the capture lacks a source image or all results, or has source images
            that the graph refuses.
    """
    check_infers(_WHO, graph)
    of_kind(_WHO, "capture", capture, Capture)
    listed(_WHO, "capture.images", capture.images, CapturedImage, "images")
    arrays = None if source_images is None else map(numbers_of, arrays_for(_WHO, graph, source_images))
    return _Judge(graph, capture).verdict(None if arrays is None else list(arrays))


def _share_text(share: float) -> str:
    """``37 %``, ``5,123 times`` or ``3e+38 times`` of what rounding explains."""
    if share < 100:
        return f"{100 * share:.0f} %"
    return f"{share:,.0f} times" if share < _MOST_TIMES else f"{share:.0e} times"


class _Held(NamedTuple):
    """A layer beside an image of the device."""

    layer: Layer
    image: CapturedImage
    precision: Precision
    found: Tensor
    wanted: Expected
    share: float
    """As that of `JudgedLayer`."""


class _Judge:
    """Judges one capture."""

    def __init__(self, graph: MPSNNGraph, capture: Capture) -> None:
        self._graph, self._capture = graph, capture
        self._pairs: Paired = paired(_WHO, graph, capture)
        self._count = len(self._pairs.sources[0].array)
        self._images = [_descriptor(each) for each in self._pairs.sources]
        self._layers = Layers(graph, self._images, self._count)
        self._shown: dict[str, Tensor] = {}

    def verdict(self, source_images: Sequence[NDArray[np.float32]] | None) -> CaptureVerdict:
        """Of all images."""
        sources: list[JudgedLayer] = []
        for place, (name, image) in enumerate(zip(self._pairs.source_labels, self._pairs.sources, strict=True)):
            self._shown[name] = self._tensor(image)
            if source_images is not None:
                sources.append(_judged_source(name, image, source_images[place]))
        layers: list[JudgedLayer] = []
        for label in self._layers.labels:
            held = self._held(label) if label in self._pairs.results else None
            if held is not None:
                layers.append(self._judged(held, is_first=not any(each.departs for each in layers)))
        notes = [*([f"the device: {self._capture.about}"] if self._capture.about else []), *self._pairs.notes()]
        if source_images is None:
            notes.append("the capture's own source images are taken; with images, compare looks at these, too")
        return CaptureVerdict(tuple(sources), tuple(layers), tuple(notes), tuple(self._pairs.unpaired_ends()))

    def _tensor(self, image: CapturedImage) -> Tensor:
        return torch.from_numpy(image.numbers).permute(0, 3, 1, 2).to(self._graph.device.torch_device)

    def _held(self, label: str) -> _Held | None:
        """A result beside the image that belongs to it; None where that belongs to a later filter."""
        held = self._beside(label, self._pairs.results[label])
        if not held.share <= 1:
            others = (self._beside(*each) for each in self._pairs.alternatives(label))
            closest = min((held, *others), key=lambda each: each.share)
            self._pairs = self._pairs.with_pair(label, closest.layer.label, closest.image)
            return closest if closest.layer.label == label else None
        return held

    def _beside(self, label: str, image: CapturedImage) -> _Held:
        layer = self._layers.layer(label, self._shown)
        precision = self._precision(layer, image)
        found, wanted = self._tensor(image), expected(layer, precision)
        share = share_of_bound(found, wanted) if found.shape == wanted.numbers.shape else np.inf
        return _Held(layer, image, precision, found, wanted, share)

    def _judged(self, held: _Held, *, is_first: bool) -> JudgedLayer:
        layer, image, precision, found, wanted, share = held
        label, numbers = layer.label, _pixels_last(wanted.numbers)
        shapes = tuple(image.array.shape), numbers.shape
        if shapes[0] != shapes[1]:
            nothing = (np.inf, np.inf, np.inf)
            mistakes = ("its size is another: its padding, stride or kernel",) if is_first else ()
            return JudgedLayer(label, layer.within, image.channel_format, nothing, np.inf, np.inf, shapes, mistakes)
        self._shown[label] = found
        percentiles, error = error_percentiles(image.numbers, numbers)
        judged = JudgedLayer(label, layer.within, image.channel_format, percentiles, error, share, shapes)
        if judged.departs and is_first:
            return replace(judged, mistakes=tuple(self._mistakes(layer, found, wanted, precision)))
        return judged

    def _precision(self, layer: Layer, image: CapturedImage) -> Precision:
        """By what the layer reads and makes; by all that is shown where it makes images that are not."""
        results = self._pairs.results
        sources = dict(zip(self._pairs.source_labels, self._pairs.sources, strict=True))
        shown = results.values() if layer.inner else [{**results, **sources}[name] for name in layer.images.values()]
        operands = operand_format(each.channel_format for each in (image, *shown))
        weights = operands if self._capture.precise_weights else MPSImageFeatureChannelFormat.FLOAT16
        return Precision(image.channel_format, operands, weights)

    # --- mistakes -----------------------------------------------------------------------------------------------------

    def _mistakes(self, layer: Layer, found: Tensor, wanted: Expected, precision: Precision) -> list[str]:
        """What gives the device's numbers, the simplest first; else what they look like."""
        beyond = _beyond_float16(layer, found, wanted)
        if beyond:
            return [f"its {beyond} are beyond float16's {FLOAT16_LIMIT:,.0f}"]
        names = [says for says, other, change in self._tries(layer) if _gives(found, other, change, precision)]
        if names:
            return list(dict.fromkeys(names))[:_MOST_NAMES]
        tolerance = float((wanted.bound.max() / wanted.numbers.double().abs().max().clamp(min=1e-30)).clamp(max=_CLOSE))
        looks = hint(_pixels_last(found), _pixels_last(wanted.numbers), tolerance)
        return [looks] if looks else []

    def _tries(self, layer: Layer) -> Iterator[tuple[str, Layer, Change]]:
        yield from self._other_conventions(layer)
        for mistake in MISTAKES:
            for says, change in mistake.tries(layer):
                yield says, layer, change

    def _other_conventions(self, layer: Layer) -> Iterator[tuple[str, Layer, Change]]:
        """The layer by each reading of the documentation that is not the graph's own."""
        own = self._graph.conventions
        for name in sorted(self._graph.conventions_asked(self._images, self._count)):
            for choice in CONVENTIONS[name].choices:
                if choice == own[name]:
                    continue
                chosen = conventions(None, **{**own.departures(), name: choice})
                try:
                    other = Layers(self._graph, self._images, self._count, chosen).layer(layer.label, self._shown)
                except MPSError:  # what that reading makes of the network cannot be run
                    continue
                yield f"it follows the convention {name}={choice!r}, here {own[name]!r}", other, Change()


def _gives(found: Tensor, layer: Layer, change: Change, precision: Precision) -> bool:
    """Whether a layer gives a device's numbers, within what rounding explains."""
    made = layer.run(change)
    scale = float(found.abs().nan_to_num(0.0, 0.0, 0.0).max()) or 1.0
    if made.shape != found.shape or not float((made - found).abs().max()) <= _CLOSE * scale:
        return False
    return bool(explained(found, expected(layer, precision, change)).all())


def _beyond_float16(layer: Layer, found: Tensor, wanted: Expected) -> str:
    """What float16 cannot hold, where numbers are not finite; empty where that is not why."""
    is_lost = ~found.isfinite()
    if not is_lost.any():
        return ""
    if any(float(weights.abs().max()) > FLOAT16_LIMIT for _, weights in weights_of(layer)):
        return "weights"
    return "numbers" if bool((wanted.numbers.abs()[is_lost] > FLOAT16_LIMIT * (1 - _PICTURE)).all()) else ""


def _judged_source(label: str, image: CapturedImage, wanted: NDArray[np.float32]) -> JudgedLayer:
    found = image.numbers
    percentiles, error = error_percentiles(found, wanted)
    share = error / _PICTURE
    looks = "" if share <= 1 else picture_mistake(found, wanted, _PICTURE)
    shapes, mistakes = (tuple(found.shape), tuple(wanted.shape)), (looks,) if looks else ()
    return JudgedLayer(label, (), image.channel_format, percentiles, error, share, shapes, mistakes)


def _descriptor(image: CapturedImage) -> MPSImageDescriptor:
    _, height, width, channels = image.array.shape
    return MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, width, height, channels)


def _pixels_last(images: Tensor) -> NDArray[Any]:
    return images.permute(0, 2, 3, 1).cpu().numpy()
