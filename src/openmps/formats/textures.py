"""Textures from picture files and back: what MetalKit's MTKTextureLoader does (MTKTextureLoader.h, macOS 10.11)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from openmps.checks import flag
from openmps.core.image.image import MPSImage
from openmps.core.lifetime import check_is_device
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError, shown, size_text
from openmps.formats.atomic import write_for
from openmps.formats.paths import path_of, visible_entries
from openmps.formats.picture_files import FORMATS, OTHER_FORMATS, bytes_of_source, decoded, encoded
from openmps.metal.device import MTLDevice, MTLTexture
from openmps.metal.pixel_formats import PIXEL_LAYOUTS, elements_of, numbers_of
from openmps.metal.texture_descriptor import LONGEST_SIDE, MTLTextureDescriptor
from openmps.types import NUMPY_DTYPES, MTLPixelFormat, MTLStorageMode, MTLTextureUsage

Origin: TypeAlias = Literal["top_left", "bottom_left", "flipped_vertically"]
"""Where the first row of a texture is in the picture: MTKTextureLoaderOrigin…; files begin at the top."""
Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"

_IS_FLIPPED = {"top_left": False, "bottom_left": True, "flipped_vertically": True}
_PIXEL_FORMATS = {
    (NUMPY_DTYPES[layout.channel_format], layout.components, layout.is_srgb): pixel_format
    for pixel_format, layout in PIXEL_LAYOUTS.items()
    if not layout.is_bgra
}


class _Options(NamedTuple):
    """What is done to the pixels of a file, and what the texture is made for."""

    is_flipped: bool
    is_srgb: bool
    has_levels: bool
    is_premultiplied: bool
    usage: MTLTextureUsage
    storage_mode: MTLStorageMode


def load_texture(
    source: Source,
    device: MTLDevice,
    *,
    origin: Origin = "top_left",
    srgb: bool = False,
    generate_mipmaps: bool = False,
    premultiply: bool = False,
    usage: MTLTextureUsage = MTLTextureUsage.SHADER_READ,
    storage_mode: MTLStorageMode = MTLStorageMode.SHARED,
) -> MTLTexture:
    """A texture of a PNG, JPEG, BMP or TIFF picture: what MTKTextureLoader makes (MTKTextureLoader.h, macOS 10.11).

    Grey becomes R, all else RGBA, of 8 or 16 bits as the file has them, of 32 for grey floats of a TIFF: the elements
    are those of the file. Palettes become RGB, RGB has alpha 1; grey with alpha, and pictures with a transparent
    colour, become RGBA. Pictures are turned upright where EXIF says so, and TIFF files of several give the first.
    Colours are taken for those of sRGB; profiles are not applied. CMYK is refused by name. Pillow decodes (extra
    ``train``).

    Args:
        source: A path, the bytes of a file, or a file that is open for bytes.
        device: Where the texture is.
        origin: Whether the first row is the picture's top, or its bottom (``bottom_left``, ``flipped_vertically``).
        srgb: Make an sRGB format of 8 bits, of which shaders read linear numbers. MTKTextureLoader asks the file where
            it is not told; here it is False, as most networks are trained.
        generate_mipmaps: Make all levels, each the mean of the one above, linear in sRGB formats; where a side is
            odd, its middle counts in both neighbours.
        premultiply: Multiply colours by alpha, which files have beside straight colours, and round once.
        usage: As of `MTLTextureDescriptor`.
        storage_mode: As of `MTLTextureDescriptor`; PRIVATE is written all the same.

    Raises:
        MPSFileError: The file is missing, broken or of another format; longer than 256 MiB, of more than 50 million
            pixels or ``PIL.Image.MAX_IMAGE_PIXELS`` or 16,384 pixels a side, or decodes to more than a file of its
            length can hold.
        MPSArgumentError: An option is none; ``srgb`` of 16 bits or floats.
        MPSMemoryError: There is no memory for it.
        MPSError: Pillow is not installed.
    """
    who = "load_texture"
    check_is_device(who, "device", device)
    options = _checked(who, origin, srgb, generate_mipmaps, premultiply, usage, storage_mode)
    return _loaded(who, source, device, options)


def load_textures(
    folder: str | os.PathLike[str],
    device: MTLDevice,
    *,
    origin: Origin = "top_left",
    srgb: bool = False,
    generate_mipmaps: bool = False,
    premultiply: bool = False,
    usage: MTLTextureUsage = MTLTextureUsage.SHADER_READ,
    storage_mode: MTLStorageMode = MTLStorageMode.SHARED,
) -> Iterator[MTLTexture]:
    """A texture of each picture that lies in a folder, by name, one at a time: memory holds those that you keep.

    The label is the file's name. Hidden files and files that are no pictures are left out. Options as for
    `load_texture`.

    Raises:
        MPSFileError: There is no such folder, no picture in it, or a picture of another format; while it is gone
            through, what `load_texture` raises.
    """
    who = "load_textures"
    check_is_device(who, "device", device)
    options = _checked(who, origin, srgb, generate_mipmaps, premultiply, usage, storage_mode)
    entries = visible_entries(path_of(folder, who, "folder"), who)
    found = [path for path in entries if path.suffix.lower() in (*FORMATS, *OTHER_FORMATS)]
    for path in found:
        if path.suffix.lower() not in FORMATS:
            rule, remedy = f"must be a picture ({', '.join(FORMATS)})", "Convert it, or take it away"
            raise MPSFileError(who, str(path), rule, path.suffix, remedy)
    if not found:
        raise MPSFileError(
            who, str(folder), f"must hold pictures ({', '.join(FORMATS)})", f"{len(entries)} other files"
        )

    def each() -> Generator[MTLTexture]:
        for path in found:
            yield _loaded(who, path, device, options)

    return each()


def save_texture(
    texture: MTLTexture | MPSImage, path: str | os.PathLike[str], *, mipmap_level: int = 0, slice: int = 0
) -> None:
    """Write a texture, or an image, as a PNG or TIFF file, by the suffix, with its elements as they are.

    8 and 16 bits of 1, 3 or 4 channels; a TIFF may have one channel of float32. A texture of an RGB picture has alpha:
    save ``MPSImage(texture=…, feature_channels=3)`` for a file without. Elements of sRGB formats are written as they
    are. The file is written as `openmps.formats.write_atomic` does; `load_texture` gives the same elements.

    Raises:
        MPSArgumentError: The format has no such elements; the image object holds several images; the storage mode is
            PRIVATE; there is no such level or slice.
        MPSFileError: The file cannot be written.
        MTLCommandBufferError: A command buffer that is not committed has yet to write it.
    """
    who, target = "save_texture", path_of(path, "save_texture")
    if isinstance(texture, MTLTexture):
        pixels = texture.get_bytes(None, mipmap_level, slice)
        pixels = pixels[..., (2, 1, 0, 3)] if PIXEL_LAYOUTS[texture.pixel_format].is_bgra else pixels
    elif not isinstance(texture, MPSImage):
        raise MPSTypeError(who, "texture", "must be an MTLTexture or an MPSImage", type(texture).__name__)
    elif texture.number_of_images != 1 or (mipmap_level, slice) != (0, 0):
        rule, remedy = "must be one image, of which there are no levels and slices", "Use batch_representation()"
        raise MPSArgumentError(who, "texture", rule, repr(texture), remedy)
    else:
        pixels = texture.read_bytes()
    write_for(who, target, encoded(pixels, target.suffix, who))


def _checked(
    who: str,
    origin: object,
    srgb: object,
    generate_mipmaps: object,
    premultiply: object,
    usage: MTLTextureUsage,
    storage_mode: MTLStorageMode,
) -> _Options:
    if not isinstance(origin, str) or origin not in _IS_FLIPPED:
        raise MPSArgumentError(who, "origin", f"must be one of {', '.join(_IS_FLIPPED)}", shown(origin))
    return _Options(
        _IS_FLIPPED[origin],
        flag(who, "srgb", srgb),
        flag(who, "generate_mipmaps", generate_mipmaps),
        flag(who, "premultiply", premultiply),
        usage,
        storage_mode,
    )


def _loaded(who: str, source: object, device: MTLDevice, options: _Options) -> MTLTexture:
    data, name = bytes_of_source(source, who)
    pixels = decoded(data, name, who)
    if pixels.shape[2] == 3:
        pixels = np.concatenate([pixels, np.full((*pixels.shape[:2], 1), np.iinfo(pixels.dtype).max, pixels.dtype)], -1)
    if options.is_premultiplied and pixels.shape[2] == 4:
        pixels = _premultiplied(pixels)
    if options.is_flipped:
        pixels = np.flip(pixels, 0)
    descriptor = _descriptor(who, name, pixels, options)
    texture = device.new_texture(descriptor)
    if isinstance(source, str | os.PathLike):
        texture.label = Path(name).name
    texture.put(0, pixels)
    for level in range(1, descriptor.mipmap_level_count):
        pixels = _level_below(pixels, descriptor.pixel_format)
        texture.put(level, pixels)
    return texture


def _descriptor(who: str, name: str, pixels: NDArray[Any], options: _Options) -> MTLTextureDescriptor:
    height, width, components = pixels.shape
    if max(height, width) > LONGEST_SIDE:
        rule = f"must have at most {LONGEST_SIDE:,} pixels a side, as textures have"
        raise MPSFileError(who, name, rule, size_text((height, width)))
    pixel_format = _PIXEL_FORMATS.get((pixels.dtype, components, options.is_srgb))
    if pixel_format is None:
        rule = "must be False for a picture of more than 8 bits: there is no such pixel format"
        raise MPSArgumentError(who, "srgb", rule, f"{8 * pixels.itemsize} bits of {name}")
    descriptor = MTLTextureDescriptor.texture_2d_descriptor(pixel_format, width, height, options.has_levels)
    descriptor.usage, descriptor.storage_mode = options.usage, options.storage_mode
    return descriptor


def _premultiplied(pixels: NDArray[Any]) -> NDArray[Any]:
    largest = np.iinfo(pixels.dtype).max
    wide = pixels.astype(np.uint64)
    wide[..., :3] = (2 * wide[..., :3] * wide[..., 3:] + largest) // (2 * largest)
    return wide.astype(pixels.dtype)


def _level_below(pixels: NDArray[Any], pixel_format: MTLPixelFormat) -> NDArray[Any]:
    """The means of squares of two pixels a side, rounded once."""
    layout = PIXEL_LAYOUTS[pixel_format]
    numbers = torch.from_numpy(numbers_of(pixels, layout).astype(np.float64)).permute(2, 0, 1)
    height, width = (max(1, side // 2) for side in pixels.shape[:2])
    return elements_of(adaptive_avg_pool2d(numbers, (height, width)).permute(1, 2, 0).numpy(), layout)
