"""Plain structs of Metal and Metal Performance Shaders."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform

from openmps.checks import flag, read_only
from openmps.errors import MPSArgumentError, MPSAttributeError, MPSTypeError
from openmps.selectors import name_arguments
from openmps.types.enumerations import CGColorSpace
from openmps.types.metal import MTLPixelFormat, MTLTextureType, MTLTextureUsage

_Struct = TypeVar("_Struct")


@dataclass_transform(frozen_default=True)
def _struct(described: type[_Struct]) -> type[_Struct]:
    """A frozen dataclass with slots, whose errors of arguments, and where a field is set, are the package's."""
    made: Any = name_arguments(dataclass(frozen=True, slots=True)(described))
    made.__setattr__ = made.__delattr__ = _refuse_change
    return made


def _refuse_change(struct: Any, name: str, *_: object) -> NoReturn:
    names = [field.name for field in fields(struct)]
    if name in names:
        raise read_only(struct, name)
    raise MPSAttributeError(type(struct).__name__, name, f"is no field: those are {', '.join(names)}")


def _require_integers(struct: object, *names: str, least: int | None = 0) -> None:
    for name in names:
        value = getattr(struct, name)
        if type(value) is not int:
            try:
                object.__setattr__(struct, name, value := int(operator.index(value)))
            except TypeError:
                raise MPSTypeError(type(struct).__name__, name, "must be an integer", repr(value)) from None
        if least is not None and value < least:
            raise MPSArgumentError(type(struct).__name__, name, f"must be at least {least}", value)


def _require_kinds(struct: object, **kinds: type) -> None:
    for name, kind in kinds.items():
        value = getattr(struct, name)
        if not isinstance(value, kind):
            raise MPSTypeError(type(struct).__name__, name, f"must be an {kind.__name__}", repr(value))


class _Counts:
    """A struct of integers from 0 on."""

    __slots__ = ()

    def __post_init__(self) -> None:
        _require_integers(self, *self.__slots__)


class _Numbers:
    """A struct of real numbers."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not float:
                try:
                    object.__setattr__(self, name, float(value))
                except (TypeError, ValueError, OverflowError):
                    raise MPSTypeError(type(self).__name__, name, "must be a real number", repr(value)) from None


@_struct
class MTLOrigin(_Counts):
    """A position in a texture, in pixels from the top left corner (MTLTypes.h, macOS 10.11)."""

    x: int = 0
    y: int = 0
    z: int = 0


@_struct
class MTLSize(_Counts):
    """The size of a region of a texture, in pixels (MTLTypes.h, macOS 10.11)."""

    width: int
    height: int
    depth: int = 1


@_struct
class MTLRegion:
    """A box of pixels: ``origin`` up to, not including, ``origin + size`` (MTLTypes.h, macOS 10.11)."""

    origin: MTLOrigin
    size: MTLSize

    def __post_init__(self) -> None:
        _require_kinds(self, origin=MTLOrigin, size=MTLSize)


MPSRectNoClip: Final = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(2**64 - 1, 2**64 - 1, 2**64 - 1))
"""The clip rectangle that clips nothing: every kernel's default (MPSCoreTypes.h, macOS 10.13)."""


@_struct
class MPSOffset:
    """A signed position in pixels, or in images for ``z`` (MPSCoreTypes.h, macOS 10.13)."""

    x: int = 0
    y: int = 0
    z: int = 0

    def __post_init__(self) -> None:
        _require_integers(self, "x", "y", "z", least=None)


@_struct
class MPSOrigin(_Numbers):
    """A position in an image that need not fall on a pixel (MPSCoreTypes.h, macOS 10.13)."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@_struct
class MPSSize(_Numbers):
    """The size of a region of an image, in fractions of pixels too (MPSCoreTypes.h, macOS 10.13)."""

    width: float
    height: float
    depth: float = 1.0


@_struct
class MPSRegion:
    """A box in an image that need not fall on pixels (MPSCoreTypes.h, macOS 10.13)."""

    origin: MPSOrigin
    size: MPSSize

    def __post_init__(self) -> None:
        _require_kinds(self, origin=MPSOrigin, size=MPSSize)


@_struct
class MPSScaleTransform(_Numbers):
    """Result pixel = scale · source pixel + translation, for each axis (MPSCoreTypes.h, macOS 10.13)."""

    scale_x: float = 1.0
    scale_y: float = 1.0
    translate_x: float = 0.0
    translate_y: float = 0.0


@_struct
class MPSImageCoordinate(_Counts):
    """A pixel and one of its feature channels, or counts of them (MPSCoreTypes.h, macOS 10.13)."""

    x: int = 0
    y: int = 0
    channel: int = 0


@_struct
class MPSImageRegion:
    """A box of pixels and feature channels of an image (MPSCoreTypes.h, macOS 10.13)."""

    offset: MPSImageCoordinate
    size: MPSImageCoordinate

    def __post_init__(self) -> None:
        _require_kinds(self, offset=MPSImageCoordinate, size=MPSImageCoordinate)


@_struct
class MPSImageReadWriteParams(_Counts):
    """Which feature channels a read or write of an image touches (MPSImage.h, macOS 10.13).

    The offset is a multiple of 4, and so is the number unless the offset is 0; the image that is accessed checks both.
    """

    feature_channel_offset: int
    number_of_feature_channels_to_read_write: int


@_struct
class MPSImageHistogramInfo:
    """Bins of a histogram, and what they span (MPSImageHistogram.h, macOS 10.13).

    The number of bins is a power of two. Bounds are four numbers each, for red, green, blue and alpha.
    """

    number_of_histogram_entries: int = 256
    histogram_for_alpha: bool = False
    min_pixel_value: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    max_pixel_value: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        name, entries = type(self).__name__, self.number_of_histogram_entries
        _require_integers(self, "number_of_histogram_entries")
        if not entries or entries & (entries - 1):
            raise MPSArgumentError(name, "number_of_histogram_entries", "must be a power of two", entries)
        object.__setattr__(self, "histogram_for_alpha", flag(name, "histogram_for_alpha", self.histogram_for_alpha))
        for bound in ("min_pixel_value", "max_pixel_value"):
            object.__setattr__(self, bound, _four_numbers(name, bound, getattr(self, bound)))
        for low, high in zip(self.min_pixel_value, self.max_pixel_value, strict=True):
            if low >= high:
                rule = f"must be above min_pixel_value in every channel, {self.min_pixel_value}"
                raise MPSArgumentError(name, "max_pixel_value", rule, self.max_pixel_value)


def _four_numbers(who: str, argument: str, values: object) -> tuple[float, float, float, float]:
    try:
        red, green, blue, alpha = map(float, values)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        raise MPSTypeError(who, argument, "must be four real numbers", repr(values)) from None
    if not all(map(math.isfinite, (red, green, blue, alpha))):
        raise MPSArgumentError(who, argument, "must be finite", values)
    return red, green, blue, alpha


@_struct
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


@_struct
class MPSDimensionSlice(_Counts):
    """``length`` elements of one dimension of an array, from ``start`` on (MPSCoreTypes.h, macOS 10.15)."""

    start: int
    length: int


@_struct
class MPSMatrixCopyOffsets(_Counts):
    """Where the parts of a copy begin, in rows and columns (MPSMatrixCombination.h, macOS 10.13)."""

    source_row_offset: int = 0
    source_column_offset: int = 0
    destination_row_offset: int = 0
    destination_column_offset: int = 0


@_struct
class MPSMatrixOffset(_Counts):
    """Where a part of a matrix begins, in rows and columns (MPSKernelTypes.h, macOS 10.13)."""

    row_offset: int = 0
    column_offset: int = 0


@_struct
class MPSStateTextureInfo:
    """The shape of a texture that a state holds (MPSState.h, macOS 10.13.4); all zero where it holds none."""

    width: int = 0
    height: int = 0
    depth: int = 0
    array_length: int = 0
    pixel_format: MTLPixelFormat = MTLPixelFormat.INVALID
    texture_type: MTLTextureType = MTLTextureType.TYPE_1D
    usage: MTLTextureUsage = MTLTextureUsage.UNKNOWN

    def __post_init__(self) -> None:
        _require_integers(self, "width", "height", "depth", "array_length")
        _require_kinds(self, pixel_format=MTLPixelFormat, texture_type=MTLTextureType, usage=MTLTextureUsage)


@_struct
class NSRange(_Counts):
    """``length`` positions from ``location`` on (Foundation's NSRange.h)."""

    location: int
    length: int
