"""Bytes in and out of images, in the framework's two layouts (MPSImage.h, readBytes / writeBytes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import as_index, of_kind
from openmps.core.image.storage import Extent, Storage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.host_elements import as_elements
from openmps.types import NUMPY_DTYPES, MPSDataLayout, MPSImageReadWriteParams, MTLRegion

# Stored [n, c, y, x] to the layout's order, and back.
_TO_LAYOUT = {
    MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS: (0, 2, 3, 1),
    MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH: (0, 1, 2, 3),
}
_FROM_LAYOUT = {
    MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS: (0, 3, 1, 2),
    MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH: (0, 1, 2, 3),
}


@dataclass(frozen=True, slots=True)
class _Selection:
    """The images, channels, rows and columns that one call names."""

    layout: MPSDataLayout
    images: slice
    channels: slice
    rows: slice
    columns: slice

    def of(self, stored: Tensor) -> Tensor:
        return stored[self.images, self.channels, self.rows, self.columns]


def read(
    who: str,
    storage: Storage,
    layout: MPSDataLayout,
    region: MTLRegion | None,
    channels: MPSImageReadWriteParams | None,
    image_index: int,
) -> NDArray[Any]:
    """The selected elements as a new array; the image axis is dropped unless a region of depth > 1 asks for it."""
    selection = _select(who, storage.extent, layout, region, channels, image_index)
    selected = selection.of(storage.tensor()).permute(_TO_LAYOUT[selection.layout])
    array = np.array(selected.cpu().numpy(), order="C")
    return array if region is not None and region.size.depth > 1 else array[0]


def write(
    who: str,
    storage: Storage,
    data: Any,
    layout: MPSDataLayout,
    region: MTLRegion | None,
    channels: MPSImageReadWriteParams | None,
    image_index: int,
) -> None:
    """Store ``data`` in the selected elements."""
    selection = _select(who, storage.extent, layout, region, channels, image_index)
    destination = selection.of(storage.tensor())
    shape = tuple(destination.shape[axis] for axis in _TO_LAYOUT[selection.layout])
    dtype = NUMPY_DTYPES[storage.block.channel_format]
    array = as_elements(who, "data_bytes", data, dtype, shape, "Look at data_layout and region")
    destination.copy_(torch.from_numpy(array).permute(_FROM_LAYOUT[selection.layout]))


def _select(
    who: str,
    extent: Extent,
    layout: object,
    region: object,
    channels: object,
    image_index: object,
) -> _Selection:
    try:
        order = MPSDataLayout(layout)  # pyright: ignore[reportArgumentType]
    except ValueError as fault:
        raise MPSArgumentError(who, "data_layout", "must be a value of MPSDataLayout", repr(layout)) from fault
    x, y, z, width, height, depth = 0, 0, 0, extent.width, extent.height, 1
    if isinstance(region, MTLRegion):
        x, y, z = region.origin.x, region.origin.y, region.origin.z
        width, height, depth = region.size.width, region.size.height, region.size.depth
    elif region is not None:
        raise MPSTypeError(who, "region", "must be an MTLRegion", type(region).__name__)
    images = "image_index" if region is None else "image_index + region (depth)"
    return _Selection(
        order,
        _slice(who, images, _index(who, image_index) + z, depth, extent.images),
        _channels(who, extent.channels, channels),
        _slice(who, "region (rows)", y, height, extent.height),
        _slice(who, "region (columns)", x, width, extent.width),
    )


def _index(who: str, image_index: object) -> int:
    found = as_index(image_index)
    if found is None:
        raise MPSTypeError(who, "image_index", "must be an integer", repr(image_index))
    return found


def _slice(who: str, argument: str, start: int, size: int, limit: int) -> slice:
    if start < 0 or size < 1 or start + size > limit:
        raise MPSArgumentError(who, argument, f"must select some of 0 to {limit - 1}", f"start {start}, size {size}")
    return slice(start, start + size)


def _channels(who: str, total: int, channels: object) -> slice:
    if channels is None:
        return slice(0, total)
    channels = of_kind(who, "feature_channel_info", channels, MPSImageReadWriteParams)
    offset = channels.feature_channel_offset
    count = channels.number_of_feature_channels_to_read_write
    if offset % 4:
        rule = "must be a multiple of 4"
        raise MPSArgumentError(who, "feature_channel_info.feature_channel_offset", rule, offset)
    end = offset + count
    if count < 1 or end > total or (count % 4 and offset and end != total):
        rule = f"must be positive, a multiple of 4 unless the offset is 0, and stay within {total} channels"
        argument = "feature_channel_info.number_of_feature_channels_to_read_write"
        raise MPSArgumentError(who, argument, rule, f"{count} from channel {offset}")
    return slice(offset, end)
