"""Picture files: opened within limits, decoded to arrays with all their bits, and written.

One owner for what Pillow decodes: every way that a picture can be broken, too large or of another kind ends in an
error that names it. What is written needs no library.
"""

from __future__ import annotations

import io
import os
import re
import struct
import sys
import warnings
import zlib
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from openmps.core.image.picture import png
from openmps.errors import MPSArgumentError, MPSFileError, MPSMemoryError, MPSTypeError
from openmps.formats.extras import missing_package
from openmps.formats.paths import path_of, read_file, reading, shortage

if TYPE_CHECKING:
    from PIL import Image as PillowImage

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
"""What is decoded, by the suffix of a file's name."""
OTHER_FORMATS = frozenset(
    ".avif .dng .exr .gif .heic .heif .hdr .ico .j2k .jfif .jp2 .jxl .pbm .pgm .pnm .ppm .psd .svg .tga .webp".split()
)
"""Pictures that are not read. Leaving them out would go unnoticed; text and other files are no pictures to anybody."""
LONGEST = 256 << 20
"""Bytes of the longest file."""
MOST_PIXELS = 50_000_000
_ALWAYS_DECODED, _MOST_TIMES = 8 << 20, 1100
"""Bytes that any file may decode to, and how many times its length: deflate packs 1,032 bytes into one."""
_FEW_BITS = ("1", "L", "P")
"""Modes whose pixels may have one bit in the file, and have eight when they are decoded."""
_FAX = ("group3", "group4", "tiff_ccitt")
"""Compressions of TIFF that know lines of one bit a pixel."""
_ADDRESS = re.compile(r" <[\w.]+ object at 0x[0-9a-f]+>")
"""What Pillow's errors say of an object of ours."""

# --- opened -----------------------------------------------------------------------------------------------------------


def bytes_of_source(source: object, who: str) -> tuple[bytes, str]:
    """All bytes of a path, of bytes or of a binary file, of which there may be `LONGEST`; and what errors call it."""
    if isinstance(source, str | os.PathLike):
        path = path_of(cast("str", source), who, "source")
        return read_file(path, who, LONGEST), str(path)
    name = str(getattr(source, "name", "source"))
    if isinstance(source, bytes | bytearray | memoryview):
        data: object = bytes(source)
    elif hasattr(source, "read"):
        with reading(name, who):
            data = cast("BinaryIO", source).read(LONGEST + 1)
    else:
        raise MPSTypeError(who, "source", "must be a path, bytes or a binary file", type(source).__name__)
    if not isinstance(data, bytes):
        raise MPSTypeError(who, "source", "must be a file that is open for bytes", type(data).__name__)
    if len(data) > LONGEST:
        raise MPSFileError(who, name, f"must be no longer than {LONGEST:,} bytes", f"{len(data):,}")
    return data, name


@contextmanager
def opened(data: bytes, name: str, who: str, formats: Collection[str]) -> Generator[PillowImage.Image]:
    """A picture of one of ``formats`` that Pillow may decode; what it raises within is an error that names the file.

    Raises:
        MPSFileError: It is broken, of another format, or so large that decoding it is refused: of more than 50 million
            pixels, more than ``PIL.Image.MAX_IMAGE_PIXELS``, or more bytes than a file of its length can hold.
        MPSMemoryError: There is no memory for it.
        MPSError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package(who, "pillow", "reading images") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that nobody asks for
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=sorted(formats)) as image:
                _check_size(image, len(data))
                yield image
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception, SyntaxError among them
        scarce = shortage(error)
        if scarce is MPSMemoryError:
            remedy = "Free some, or make the image smaller."
            raise MPSMemoryError(who, name, "needs more memory than there is", None, remedy) from error
        if scarce is not None:  # nothing is wrong with the image
            raise scarce(who, name, "could not be read", str(error)) from error
        rule = f"must be a whole image ({', '.join(sorted(formats))})"
        said = _ADDRESS.sub("", str(error))
        raise MPSFileError(who, name, rule, f"{type(error).__name__}: {said}") from error


def _check_size(image: PillowImage.Image, length: int) -> None:
    count = image.width * image.height
    if count > MOST_PIXELS:
        raise ValueError(f"{count:,} pixels, more than {MOST_PIXELS:,}")
    decoded, times = count * len(image.getbands()), _MOST_TIMES * (8 if image.mode in _FEW_BITS else 1)
    if image.info.get("compression") in _FAX:
        times = 8 * image.width  # a line like the one above it takes one bit
    if decoded > max(_ALWAYS_DECODED, times * length):
        raise ValueError(f"{decoded:,} bytes, more than {times:,} times the file's {length:,}: a decompression bomb")


# --- decoded ----------------------------------------------------------------------------------------------------------

_CONVERSIONS = {"1": "L", "L": "L", "LA": "RGBA", "PA": "RGBA", "RGB": "RGB", "RGBX": "RGB", "RGBA": "RGBA"}
"""How pixels of eight bits are read; palettes become what they name."""
_REMEDY = "Save it as grey, RGB or RGBA."
_GREYS = {"L": 1, "1": 1, "L;2": 85, "L;4": 17}
"""What the greys of a file are multiplied by as they are decoded; of one bit the transparent one is already."""
_ORIENTATION, _BITS, _PLANES = 274, 258, 284
"""Tags of TIFF and EXIF."""
_FLIPS = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}
"""Axes that are reversed by the orientations of EXIF, behind the transposition of those from 5 on."""
_SIXTEEN_BITS = re.compile(r";16[BLN]")
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
"""Pillow keeps one byte of 16 bits of a colour: that which the order of its raw mode puts first."""


def decoded(data: bytes, name: str, who: str) -> NDArray[Any]:
    """A picture upright, ``[H, W, C]`` of 1, 3 or 4 components, straight alpha last, with the bits that the file has.

    Elements are uint8, uint16, or float32 of a TIFF of one channel. Grey stays one component; palettes become red,
    green and blue; a colour that is transparent, and grey with alpha, become four. Profiles are not applied.

    Raises:
        MPSFileError: As `opened`; or its colours are CMYK or others that have no component here.
    """
    with opened(data, name, who, set(FORMATS.values())) as image:
        pixels = _pixels(image, data)
        # Asked for now: Pillow turns some pictures itself as it decodes them, and says no orientation then.
        orientation = image.getexif().get(_ORIENTATION, 1)
        turned = pixels.swapaxes(0, 1) if orientation in range(5, 9) else pixels
        return np.require(np.flip(turned, _FLIPS.get(orientation, ())), requirements=["C", "W"])


def _pixels(image: PillowImage.Image, data: bytes) -> NDArray[Any]:
    """The elements of a picture as it lies in the file."""
    raw = {_raw_mode(tile) for tile in _tiles(image)}
    _check_planes(image)
    key = image.info.get("transparency")
    if image.mode == "F":
        return np.asarray(image, np.float32)[..., np.newaxis]
    if image.mode.startswith("I;16") or raw == {"I;16B"}:
        return _with_key(np.asarray(image).astype(np.uint16)[..., np.newaxis], key)
    if any(_SIXTEEN_BITS.search(mode) for mode in raw):
        return _with_key(_deep(image, data, raw), key)
    if image.mode == "P":
        return np.asarray(image.convert("RGB" if key is None and not _has_alpha(image) else "RGBA"))
    if image.mode not in _CONVERSIONS:
        raise ValueError(f"colours of the mode {image.mode}, which has no pixel format. {_REMEDY}")
    pixels = np.asarray(image.convert(_CONVERSIONS[image.mode]))
    grey = pixels.ndim == 2
    if grey and isinstance(key, int):
        (mode,) = raw if len(raw) == 1 else ("",)
        if mode not in _GREYS:
            raise ValueError(f"a transparent grey of pixels as {', '.join(sorted(raw))}. {_REMEDY}")
        key *= _GREYS[mode]
    return _with_key(pixels[..., np.newaxis] if grey else pixels, key)


def _check_planes(image: PillowImage.Image) -> None:
    """Pillow mistakes the bytes of 16 bits where the colours of a TIFF lie apart."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if tags.get(_PLANES) == 2 and max(tags.get(_BITS) or (1,)) > 8:
        raise ValueError(f"16 bits a channel in planes. {_REMEDY}")


def _has_alpha(image: PillowImage.Image) -> bool:
    return image.palette is not None and image.palette.mode == "RGBA"


def _tiles(image: PillowImage.Image) -> list[Any]:
    """Which bytes of the file are decoded, and how; empty where they are already."""
    return cast("Any", image).tile


def _raw_mode(tile: Any) -> str:
    arguments = tile[3]
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def _deep(image: PillowImage.Image, data: bytes, raw: set[str]) -> NDArray[Any]:
    """Colours of 16 bits: Pillow decodes one byte of each, so the file is decoded once for each of the two."""
    (mode,) = raw if len(raw) == 1 else ("",)
    if mode == "LA;16B":  # as many bits as a pixel of four bytes, which come unchanged
        _decode_as(image, "RGBA")
        high, low = np.moveaxis(np.asarray(image).astype(np.uint16).reshape(image.height, image.width, 2, 2), -1, 0)
        grey, alpha = np.moveaxis(high << 8 | low, -1, 0)
        return np.stack([grey, grey, grey, alpha], -1)
    if mode[:-1] not in ("RGB;16", "RGBX;16", "RGBA;16"):
        raise ValueError(f"16 bits a channel as {', '.join(sorted(raw))}. {_REMEDY}")
    from PIL import Image

    wide: NDArray[Any] = np.asarray(image).astype(np.uint16) << 8
    with Image.open(io.BytesIO(data), formats=[str(image.format)]) as again:
        _decode_as(again, mode[:-1] + _OTHER_BYTE[mode[-1]])
        wide |= np.asarray(again)
    return wide


def _decode_as(image: PillowImage.Image, mode: str) -> None:
    """Have a picture that is not decoded yet be read by another raw mode of as many bits."""
    tiles = _tiles(image)
    for index, tile in enumerate(tiles):
        codec, extents, offset, arguments = tile
        changed = (mode, *arguments[1:]) if isinstance(arguments, tuple) else mode
        tiles[index] = getattr(tile, "_make", tuple)((codec, extents, offset, changed))


def _with_key(pixels: NDArray[Any], key: object) -> NDArray[Any]:
    """Pixels of one colour made transparent, where a file names one (tRNS of PNG)."""
    if key is None:
        return pixels
    largest = np.iinfo(pixels.dtype).max
    alpha = np.where((pixels == np.array(key)).all(-1), 0, largest).astype(pixels.dtype)
    colours = pixels if pixels.shape[-1] == 3 else pixels.repeat(3, -1)
    return np.concatenate([colours, alpha[..., np.newaxis]], -1)


# --- written ----------------------------------------------------------------------------------------------------------

_WRITTEN = {
    ".png": ("uint8", "uint16"),
    ".tif": ("uint8", "uint16", "float32"),
    ".tiff": ("uint8", "uint16", "float32"),
}
"""Elements that files keep as they are, by the suffix."""
_TIFF_SHORT, _TIFF_LONG = 3, 4


def encoded(pixels: NDArray[Any], suffix: str, who: str) -> bytes:
    """A PNG or TIFF of elements ``[H, W, C]`` of 1, 3 or 4 components, which `decoded` gives back bit by bit.

    Raises:
        MPSArgumentError: The suffix is of another format, or the format has no such elements.
    """
    kinds = _WRITTEN.get(suffix.lower())
    if kinds is None:
        rule = f"must end in one of {', '.join(_WRITTEN)}, which lose nothing"
        raise MPSArgumentError(who, "path", rule, suffix or "no suffix")
    channels = pixels.shape[2]
    if pixels.dtype.name not in kinds or channels not in ((1,) if pixels.dtype.kind == "f" else (1, 3, 4)):
        rule = f"must be {' or '.join(kinds)} of 1, 3 or 4 components, of 1 where they are floats, for {suffix}"
        got = f"{pixels.dtype.name} of {channels}"
        raise MPSArgumentError(who, "texture", rule, got, "Encode into another format first")
    return png(pixels) if suffix.lower() == ".png" else _tiff(pixels)


def _tiff(pixels: NDArray[Any]) -> bytes:
    """A file of one deflated strip (TIFF 6.0, Adobe's compression 8)."""
    height, width, channels = pixels.shape
    body = zlib.compress(np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).tobytes())
    bits, start = 8 * pixels.dtype.itemsize, 8
    is_float = pixels.dtype.kind == "f"
    entries: list[tuple[int, int, tuple[int, ...]]] = [
        (256, _TIFF_LONG, (width,)),
        (257, _TIFF_LONG, (height,)),
        (258, _TIFF_SHORT, (bits,) * channels),
        (259, _TIFF_SHORT, (8,)),
        (262, _TIFF_SHORT, (1 if channels == 1 else 2,)),  # black is 0; or red, green, blue
        (273, _TIFF_LONG, (start,)),
        (277, _TIFF_SHORT, (channels,)),
        (278, _TIFF_LONG, (height,)),
        (279, _TIFF_LONG, (len(body),)),
        *([(338, _TIFF_SHORT, (2,))] if channels == 4 else []),  # straight alpha
        (339, _TIFF_SHORT, ((3 if is_float else 1),) * channels),
    ]
    place = start + len(body) + len(body) % 2
    beside = place + 2 + 12 * len(entries) + 4
    directory, values = struct.pack("<H", len(entries)), b""
    for tag, kind, numbers in entries:
        packed = struct.pack(f"<{len(numbers)}{'H' if kind == _TIFF_SHORT else 'I'}", *numbers)
        if len(packed) > 4:
            packed, values = struct.pack("<I", beside + len(values)), values + packed
        directory += struct.pack("<HHI", tag, kind, len(numbers)) + packed.ljust(4, b"\0")
    return struct.pack("<2sHI", b"II", 42, place) + body + bytes(len(body) % 2) + directory + bytes(4) + values
