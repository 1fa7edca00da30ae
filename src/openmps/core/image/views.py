"""Views of images: which part of the memory of an image belongs to another one."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.checks import whole
from openmps.core.image.descriptor import slices_of
from openmps.core.image.storage import Storage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import NSRange


def of_images(who: str, storage: Storage, span: NSRange | range | None) -> list[Storage]:
    """One view an image, of all images or those of ``span``."""
    first, count = (0, storage.count) if span is None else _span(who, "sub_range", span)
    if count < 1 or first + count > storage.count:
        rule = f"must select some of the {storage.count} image(s)"
        raise MPSArgumentError(who, "sub_range", rule, f"location {first}, length {count}")
    return [storage.narrowed(first + index, 1) for index in range(count)]


def of_channels(who: str, storage: Storage, span: NSRange | range) -> Storage:
    """A view of some channels of all images."""
    first, count = _span(who, "feature_channel_range", span)
    total = storage.channels
    if first % 4 or first >= total:
        rule = f"must be a multiple of 4 below {total}"
        raise MPSArgumentError(who, "feature_channel_range.location", rule, first)
    rest = total - first
    if count < 1 or (count % 4 and count < rest):
        rule = "must be a positive multiple of 4, or reach the last channel"
        raise MPSArgumentError(who, "feature_channel_range.length", rule, count)
    return storage.with_channels(first, min(count, rest))


def of_slices(who: str, storage: Storage, span: NSRange | range | None, feature_channels: int | None) -> Storage:
    """A view of a range of four-channel slices: whole images, or some channels of one image."""
    channels = whole(who, "feature_channels", storage.channels if feature_channels is None else feature_channels)
    per_image, needed = slices_of(storage.channels), slices_of(channels)
    total = per_image * storage.count
    first, count = (0, total) if span is None else _span(who, "slice_range", span)
    if count < needed or first + count > total:
        rule = f"must lie within the {total} slice(s) and hold an image of {channels} channel(s), {needed} slice(s)"
        raise MPSArgumentError(who, "slice_range", rule, f"location {first}, length {count}")
    image, first_slice = divmod(first, per_image)
    if first_slice == 0 and needed == per_image and channels <= storage.channels:
        return storage.narrowed(image, count // per_image).with_channels(0, channels)
    if count // needed == 1 and 4 * first_slice + channels <= storage.channels:
        return storage.narrowed(image, 1).with_channels(4 * first_slice, channels)
    rule = f"must hold whole images, or channels of one image ({storage.channels} channels, {per_image} slice(s))"
    got = f"location {first}, length {count} for {channels} channel(s)"
    raise MPSArgumentError(who, "slice_range", rule, got, "Use batch_representation() or sub_image()")


def merge(parts: Sequence[Storage]) -> list[Storage]:
    """Neighbouring runs of one block joined into one."""
    merged: list[Storage] = []
    last: Storage | None = None
    for part in parts:
        if (
            last is not None
            and last.block is part.block
            and last.first + last.count == part.first
            and (last.channel, last.channels) == (part.channel, part.channels)
        ):
            last.count += part.count
        else:
            last = Storage(part.block, part.first, part.count, part.channel, part.channels)
            merged.append(last)
    return merged


def _span(who: str, argument: str, span: NSRange | range) -> tuple[int, int]:
    """Location and length of a range."""
    if isinstance(span, NSRange):
        return span.location, span.length
    if isinstance(span, range) and span.step == 1 and span.start >= 0:
        return span.start, len(span)
    raise MPSTypeError(who, argument, "must be an NSRange(location, length), or a range of step 1", repr(span))
