"""What kernels of histograms share: bins, and the buffers that hold their counts (MPSImageHistogram.h, macOS 10.13)."""

from __future__ import annotations

from functools import lru_cache

from openmps.checks import is_whole, of_kind
from openmps.core.vector import MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLBuffer
from openmps.types import MPSDataType, MPSImageHistogramInfo

COUNT = MPSDataType.UINT32
HISTOGRAM_ALIGNMENT = 32
"""What offsets of histograms that are written are multiples of, in bytes."""
_COLOURS, _COMPONENTS = 3, 4


def check_info(who: str, info: object) -> MPSImageHistogramInfo:
    """``histogram_info`` if it is one."""
    return of_kind(who, "histogram_info", info, MPSImageHistogramInfo)


def channels_counted(who: str, argument: str, info: MPSImageHistogramInfo, channels: int) -> int:
    """Channels of a picture that have a histogram: alpha, the fourth one, has if it is asked for."""
    if channels > _COMPONENTS:
        raise MPSArgumentError(who, argument, f"must have at most {_COMPONENTS} feature channels", channels)
    return channels if info.histogram_for_alpha else min(channels, _COLOURS)


def counts_in(who: str, argument: str, buffer: object, offset: object, count: int, alignment: int = 4) -> MPSVector:
    """``count`` numbers of a buffer from a byte on."""
    given = of_kind(who, argument, buffer, MTLBuffer)
    if not is_whole(offset, 0) or offset % alignment:
        raise MPSArgumentError(who, f"{argument}_offset", f"must be a multiple of {alignment}, at least 0", offset)
    if given.length < offset + 4 * count:
        rule, got = f"must hold {4 * count} bytes from the offset on", f"{given.length} bytes, offset {offset}"
        raise MPSArgumentError(who, argument, rule, got)
    return MPSVector(given, _counts_descriptor(count), offset)


@lru_cache(maxsize=16)
def _counts_descriptor(count: int) -> MPSVectorDescriptor:
    """One for each number of counts: vectors copy it."""
    return MPSVectorDescriptor(count, COUNT)
