"""Colour spaces by name, and conversions between two (CGColorSpace.h, CGColorConversionInfo.h, macOS 10.12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from openmps.errors import MPSArgumentError
from openmps.spellings import NamedMembers


class CGColorSpace(IntEnum, metaclass=NamedMembers):
    """The colour spaces that conversions know, of those that Core Graphics names (CGColorSpace.h, macOS 10.12).

    ``kCGColorSpaceDisplayP3`` is ``CGColorSpace.DISPLAY_P3``. The numbers are ours: the framework's names are strings.
    """

    SRGB = 0  # primaries of BT.709, the curve of IEC 61966-2-1
    LINEAR_SRGB = 1  # the same primaries, no curve
    DISPLAY_P3 = 2  # primaries of P3, white of sRGB, its curve
    GENERIC_GRAY_GAMMA2_2 = 3  # one component, to the power 2.2
    LINEAR_GRAY = 4  # one component, no curve

    @property
    def number_of_components(self) -> int:
        """1 of grey, 3 of colours."""
        return 1 if self in (CGColorSpace.GENERIC_GRAY_GAMMA2_2, CGColorSpace.LINEAR_GRAY) else 3


@dataclass(frozen=True, slots=True)
class CGColorConversionInfo:
    """From which colour space to which `MPSImageConversion` converts (CGColorConversionInfo.h, macOS 10.12)."""

    src: CGColorSpace
    dst: CGColorSpace

    def __post_init__(self) -> None:
        for name in ("src", "dst"):
            try:
                object.__setattr__(self, name, CGColorSpace(getattr(self, name)))
            except ValueError:
                rule = f"must be one of {', '.join(each.name for each in CGColorSpace)} of CGColorSpace"
                raise MPSArgumentError(type(self).__name__, name, rule, getattr(self, name)) from None
