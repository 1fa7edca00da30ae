"""Picture files that are fuzzed: small ones of each format that is decoded."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fuzzing.mutations import BLIND, Mutation, Random
from fuzzing.target import Target
from openmps.core.image.image import MPSImage
from openmps.formats.textures import load_texture, save_texture
from openmps.metal.device import MTLTexture
from openmps.runtime.devices import mtl_device

Image.init()  # Pillow imports every format that it has when it first meets a file of none: once, and by no file's fault
_CPU = mtl_device("cpu")
_HEIGHT, _WIDTH = 20, 24
_WORDS = (0, 1, 2, 3, 6, 7, 8, 16, 32, 255, 1000, 2816, 5000, 20_000, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
"""What numbers of headers become: of bits, of colours, of pixels."""
_SIGNATURE = 8


def _pixels(channels: int, dtype: type[np.generic]) -> np.ndarray:
    random = np.random.default_rng(5)
    smooth = np.add.outer(np.arange(_HEIGHT), np.arange(_WIDTH))[..., np.newaxis] * np.arange(1, channels + 1)
    return (smooth * 7 + random.integers(0, 9, smooth.shape)).astype(dtype)


def changed_chunk(data: bytes, random: Random) -> bytes:
    """One chunk of a PNG changed, doubled, left out, or called otherwise, under a checksum that fits."""
    chunks, at = [], _SIGNATURE
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    index, kind = int(random.integers(len(chunks))), int(random.integers(6))
    name, body = chunks[index]
    if kind == 0:
        chunks.insert(index, (name, body))
    elif kind == 1:
        del chunks[index]
    elif kind == 2:
        names = (b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt", b"gAMA", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"sBIT")
        chunks.insert(1, (names[int(random.integers(len(names)))], random.bytes(int(random.integers(60)))))
    elif kind == 3 and name == b"IHDR":
        sizes = struct.pack(">II", *(_WORDS[int(each)] for each in random.integers(len(_WORDS), size=2)))
        chunks[index] = (name, sizes + body[8:])
    else:
        chunks[index] = (name, bytes(BLIND[int(random.integers(5))](body, random)))  # type: ignore[arg-type]
    whole = (struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks)
    return data[:_SIGNATURE] + b"".join(whole)


def changed_entry(data: bytes, random: Random) -> bytes:
    """One entry of a TIFF's directory changed: its tag, its type, how many numbers, or the first."""
    changed = bytearray(data)
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    entry = start + 2 + 12 * int(random.integers(count))
    form, offset = (("<H", 0), ("<H", 2), ("<I", 4), ("<I", 8))[int(random.integers(4))]
    number = _WORDS[int(random.integers(len(_WORDS)))] if offset else int(random.integers(254, 340))
    struct.pack_into(form, changed, entry + offset, number % 2 ** (8 * struct.calcsize(form)))
    return bytes(changed)


def _says(texture: MTLTexture) -> bytes:
    return repr(texture.pixel_format).encode() + texture.get_bytes().tobytes() + repr(texture).encode()


def _shows_what_pillow_shows(folder: Path, texture: MTLTexture) -> bool:
    """The high bytes are those that Pillow makes of the file, where it has no colours of its own rules."""
    (path,) = folder.iterdir()
    with Image.open(path) as opened:
        found = ImageOps.exif_transpose(opened)
        if (texture.width, texture.height) != found.size:
            return False
        if found.mode not in ("L", "RGB", "RGBA") or "transparency" in found.info:
            return True
        shown, pixels = np.asarray(found), texture.get_bytes()
        wide = pixels >> 8 if pixels.dtype == np.uint16 else pixels
        if found.mode == "RGBA" and pixels.dtype == np.uint16:
            return True  # grey with alpha may be called so, and Pillow rounds it otherwise
        return bool((wide[..., : shown.shape[-1] if shown.ndim == 3 else 1].reshape(shown.shape) == shown).all())


def _written(name: str, channels: int, dtype: type[np.generic]) -> Callable[[Path], Any]:
    def write(folder: Path) -> None:
        if name.endswith((".png", ".tif")):
            save_texture(MPSImage.from_numpy(_CPU, _pixels(channels, dtype)), folder / name)
        else:
            Image.fromarray(_pixels(channels, dtype)).save(folder / name)

    return write


def _picture(what: str, name: str, channels: int, dtype: type[np.generic], *knowing: Mutation) -> Target:
    return Target(
        name=f"picture, {what}",
        write=_written(name, channels, dtype),
        load=lambda folder: load_texture(folder / name, _CPU),
        says=_says,
        is_as_written=_shows_what_pillow_shows,
        knowing=knowing,
        has_checksum=False,
    )


PICTURES = (
    _picture("PNG", "x.png", 3, np.uint8, changed_chunk, changed_chunk, changed_chunk),
    _picture("PNG of 16 bits", "x.png", 4, np.uint16, changed_chunk, changed_chunk, changed_chunk),
    _picture("TIFF", "x.tif", 3, np.uint8, changed_entry, changed_entry),
    _picture("TIFF of 16 bits", "x.tif", 3, np.uint16, changed_entry, changed_entry),
    _picture("JPEG", "x.jpg", 3, np.uint8),
    _picture("BMP", "x.bmp", 3, np.uint8),
)
