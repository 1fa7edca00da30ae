"""Picture files as textures and back: bits, orientation, alpha, options, and files that are refused."""

from __future__ import annotations

import importlib
import io
import struct
import sys
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import openmps as mps
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSTypeError
from openmps.metal.device import MTLTexture
from openmps.types import MTLPixelFormat, MTLStorageMode, MTLTextureType

CPU = mps.mtl_device("cpu")


def noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    return min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]


def png(pixels: np.ndarray, kind: int, more: bytes = b"") -> bytes:
    """A PNG of 16 bits whose rows take each of the five filters in turn (PNG specification, section 9)."""
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels, ">u2").view(np.uint8).reshape(height, -1).astype(int)
    step, before, body = 2 * channels, [0] * rows.shape[1], b""
    for index, row in enumerate(rows.tolist()):
        left = [0] * step + row[:-step]
        corner = [0] * step + before[:-step]
        filters = (
            lambda a, b, c: 0, lambda a, b, c: a, lambda a, b, c: b, lambda a, b, c: (a + b) // 2, paeth,
        )  # fmt: skip
        guess = map(filters[index % 5], left, before, corner)
        body += bytes([index % 5, *((x - g) % 256 for x, g in zip(row, guess, strict=True))])
        before = row
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    )


def load(data: Any, **options: Any) -> MTLTexture:
    return mps.load_texture(data, CPU, **options)


def elements(data: Any, **options: Any) -> np.ndarray:
    return load(data, **options).get_bytes()


# --- round trips -----------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("suffix", "channels", "dtype"),
    [*product((".png", ".tif"), (1, 3, 4), (np.uint8, np.uint16)), (".tif", 1, np.float32)],
)
def test_file_texture_image_file(
    suffix: str, channels: int, dtype: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The same bits in the texture, in the image of its memory, and in the file that is written of either."""
    pixels = noise(rng, (7, 5, channels), dtype)
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    mps.save_texture(mps.MPSImage.from_numpy(CPU, pixels), first)
    texture = load(first)
    assert texture.label == first.name
    assert texture.pixel_format.name.startswith("R8" if (channels, dtype) == (1, np.uint8) else "R")
    np.testing.assert_array_equal(texture.get_bytes()[..., :channels], pixels)
    if channels == 3:
        assert (texture.get_bytes()[..., 3] == np.iinfo(dtype).max).all()
    image = mps.MPSImage(texture=texture, feature_channels=channels)
    np.testing.assert_array_equal(image.read_bytes(), pixels)
    mps.save_texture(image, second)
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_transparent_greys_of_few_bits(bits: int) -> None:
    steps, packed = (1 << bits) - 1, 0b00011011
    greys = [packed >> (8 - bits * (place + 1)) & steps for place in range(8 // bits)]
    header = struct.pack(">IIBBBBB", len(greys), 1, bits, 0, 0, 0, 0)
    row = zlib.compress(bytes([0, packed]))
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"tRNS", struct.pack(">H", 1)) + chunk(b"IDAT", row)
    expected = [[grey * 255 // steps] * 3 + [0 if grey == 1 else 255] for grey in greys]
    assert elements(file + chunk(b"IEND", b"")).tolist() == [expected]


def test_a_blank_fax_is_no_bomb() -> None:
    """Lines like those above them take a bit each, whatever their length is."""
    data = encoded(Image.new("1", (5000, 3000), 1), "TIFF", compression="group4")
    assert len(data) < 3000
    assert (elements(data) == 255).all()


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_others_read_what_is_written(suffix: str, tmp_path: Path, rng: np.random.Generator) -> None:
    for shape, dtype in (((6, 5, 1), np.uint8), ((6, 5, 1), np.uint16), ((6, 5, 3), np.uint8), ((6, 5, 4), np.uint8)):
        pixels = noise(rng, shape, dtype)
        mps.save_texture(mps.MPSImage.from_numpy(CPU, pixels), tmp_path / f"x{suffix}")
        with Image.open(tmp_path / f"x{suffix}") as found:
            np.testing.assert_array_equal(np.asarray(found).reshape(shape), pixels)


def test_the_texture_of_a_level_and_of_bgra(tmp_path: Path, rng: np.random.Generator) -> None:
    descriptor = mps.MTLTextureDescriptor.texture_2d_descriptor(MTLPixelFormat.BGRA8_UNORM, 8, 4, True)
    texture, pixels = CPU.new_texture(descriptor), noise(rng, (2, 4, 4))
    texture.replace_region(None, 1, pixels)
    mps.save_texture(texture, tmp_path / "level.png", mipmap_level=1)
    np.testing.assert_array_equal(elements(tmp_path / "level.png"), pixels[..., (2, 1, 0, 3)])


# --- files of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_of_png(kind: int, channels: int, rng: np.random.Generator) -> None:
    """Every bit of every filter; grey with alpha becomes RGBA."""
    pixels = noise(rng, (11, 6, channels), np.uint16)
    found = elements(png(pixels, kind))
    assert found.dtype == np.uint16
    expected = pixels[..., (0, 0, 0, 1)] if channels == 2 else pixels
    np.testing.assert_array_equal(found[..., : expected.shape[2]], expected)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [1, 8])
def test_sixteen_bits_of_tiff(order: str, compression: int, rng: np.random.Generator) -> None:
    """Both orders of bytes, stored and deflated, which Pillow hands to other decoders."""
    pixels = noise(rng, (9, 6, 3), np.uint16)
    raw = np.ascontiguousarray(pixels, f"{order}u2").tobytes()
    body = raw if compression == 1 else zlib.compress(raw)
    bits = 8 + len(body)
    rows = [
        (256, 6),
        (257, 9),
        (258, bits),
        (259, compression),
        (262, 2),
        (273, 8),
        (277, 3),
        (278, 9),
        (279, len(body)),
    ]
    directory = struct.pack(f"{order}H", len(rows))
    for tag, value in rows:
        wide = tag in (273, 279, 258)
        code = f"{order}HHI" + ("I" if wide else "H2x")
        directory += struct.pack(code, tag, 3 if tag == 258 else 4 if wide else 3, 3 if tag == 258 else 1, value)
    file = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, bits + 6) + body
    file += struct.pack(f"{order}3H", 16, 16, 16) + directory + bytes(4)
    np.testing.assert_array_equal(elements(file)[..., :3], pixels)


MODES: dict[str, tuple[Any, str, list[int]]] = {
    "one bit": (Image.new("1", (3, 2), 1), "R8_UNORM", [255]),
    "grey": (Image.new("L", (3, 2), 7), "R8_UNORM", [7]),
    "grey with alpha": (Image.new("LA", (3, 2), (7, 9)), "RGBA8_UNORM", [7, 7, 7, 9]),
    "colour": (Image.new("RGB", (3, 2), (1, 2, 3)), "RGBA8_UNORM", [1, 2, 3, 255]),
    "colour with alpha": (Image.new("RGBA", (3, 2), (1, 2, 3, 4)), "RGBA8_UNORM", [1, 2, 3, 4]),
    "palette": (Image.new("RGB", (3, 2), (10, 20, 30)).convert("P", palette=Image.Palette.ADAPTIVE), "RGBA8_UNORM",
                [10, 20, 30, 255]),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
def test_kinds_of_colours(name: str) -> None:
    picture, pixel_format, pixel = MODES[name]
    texture = load(encoded(picture))
    assert texture.pixel_format.name == pixel_format
    np.testing.assert_array_equal(texture.get_bytes(), np.broadcast_to(pixel, (2, 3, len(pixel))))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_colour(channels: int, bits: int, rng: np.random.Generator) -> None:
    """tRNS of PNG: of 16 bits all must agree, of which Pillow shows half."""
    pixels = noise(rng, (4, 5, channels), np.uint8 if bits == 8 else np.uint16)
    key = [int(each) for each in pixels[1, 2]]
    if bits == 16:
        pixels[0, 0] = [each ^ 1 for each in key]
        data = png(pixels, 0 if channels == 1 else 2, chunk(b"tRNS", struct.pack(f">{channels}H", *key)))
    else:
        data = encoded(
            pixels[..., 0] if channels == 1 else pixels, transparency=key[0] if channels == 1 else tuple(key)
        )
    found = elements(data)
    largest = 2**bits - 1
    np.testing.assert_array_equal(found[..., :3], np.broadcast_to(pixels, (4, 5, 3)))
    np.testing.assert_array_equal(found[..., 3] == 0, (pixels == key).all(-1))
    assert set(np.unique(found[..., 3])) == {0, largest}


@in_one_test
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_upright(kind: str, orientation: int, rng: np.random.Generator) -> None:
    picture = Image.fromarray(noise(rng, (4, 7, 3)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture, kind, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    assert expected.shape == ((4, 7, 3) if orientation < 5 else (7, 4, 3))
    np.testing.assert_array_equal(elements(data)[..., :3], expected)


def test_deep_colours_are_turned_too(rng: np.random.Generator) -> None:
    pixels, exif = noise(rng, (4, 7, 3), np.uint16), Image.Exif()
    exif[0x0112] = 6
    found = elements(png(pixels, 2, chunk(b"eXIf", exif.tobytes()[6:])))
    np.testing.assert_array_equal(found[..., :3], np.rot90(pixels, -1))


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_file", [True, False])
def test_sources(as_file: bool, rng: np.random.Generator) -> None:
    pixels = noise(rng, (3, 4))
    data = encoded(pixels)
    np.testing.assert_array_equal(elements(io.BytesIO(data) if as_file else bytearray(data))[..., 0], pixels)


def test_origins(rng: np.random.Generator) -> None:
    pixels = noise(rng, (3, 4))
    for origin, rows in (("top_left", 1), ("bottom_left", -1), ("flipped_vertically", -1)):
        np.testing.assert_array_equal(elements(encoded(pixels), origin=origin)[..., 0], pixels[::rows])


def test_srgb_formats(rng: np.random.Generator) -> None:
    grey, colour = noise(rng, (3, 4)), noise(rng, (3, 4, 3))
    assert load(encoded(grey), srgb=True).pixel_format is MTLPixelFormat.R8_UNORM_SRGB
    texture = load(encoded(colour), srgb=True)
    assert texture.pixel_format is MTLPixelFormat.RGBA8_UNORM_SRGB
    np.testing.assert_array_equal(texture.get_bytes()[..., :3], colour)
    with pytest.raises(MPSArgumentError, match="^load_texture: srgb must be False for a picture of more than 8 bits"):
        load(encoded(grey.astype(np.uint16)), srgb=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_premultiplied(dtype: Any, rng: np.random.Generator) -> None:
    """Exactly, by integers: c a / max, to nearest."""
    pixels = noise(rng, (16, 16, 4), dtype)
    data = encoded(pixels) if dtype is np.uint8 else png(pixels, 6)
    largest = int(np.iinfo(dtype).max)
    expected = [[[round(int(c) * int(p[3]) / largest) for c in p[:3]] + [int(p[3])] for p in row] for row in pixels]
    np.testing.assert_array_equal(elements(data, premultiply=True), expected)


@pytest.mark.parametrize("srgb", [False, True])
def test_mipmaps(srgb: bool, rng: np.random.Generator) -> None:
    """Each level is the mean of the one above as it is stored, by loops; in linear numbers for sRGB."""
    texture = load(encoded(noise(rng, (12, 9, 4))), generate_mipmaps=True, srgb=srgb)
    assert texture.mipmap_level_count == 4
    for level in range(1, 4):
        above, found = texture.numpy(level - 1).astype(np.float64), texture.get_bytes(mipmap_level=level)
        height, width = found.shape[:2]
        for y, x, c in np.ndindex(found.shape):
            rows = slice(y * len(above) // height, -(-(y + 1) * len(above) // height))
            columns = slice(x * above.shape[1] // width, -(-(x + 1) * above.shape[1] // width))
            mean = float(above[rows, columns, c].mean())
            if srgb and c < 3:
                mean = 12.92 * mean if mean <= 0.0031308 else 1.055 * mean ** (1 / 2.4) - 0.055
            assert abs(found[y, x, c] - 255 * mean) <= 0.5 + 1e-4


def test_private_memory_is_filled(rng: np.random.Generator) -> None:
    pixels = noise(rng, (3, 4))
    texture = load(encoded(pixels), storage_mode=MTLStorageMode.PRIVATE)
    with pytest.raises(MPSArgumentError, match="get_bytes needs memory that the CPU may touch"):
        texture.get_bytes()
    command_buffer = CPU.new_command_queue().command_buffer()
    result = mps.MPSImage(CPU, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.UNORM8, 4, 3, 1))
    mps.MPSCNNNeuronReLU(CPU, 0.0).encode(command_buffer, mps.MPSImage(texture=texture), result)
    command_buffer.commit()
    np.testing.assert_array_equal(result.read_bytes()[..., 0], pixels)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_by_name_and_one_at_a_time(tmp_path: Path, rng: np.random.Generator) -> None:
    pictures = {name: noise(rng, (3, 4)) for name in ("b.png", "a.BMP", "c.tif")}
    for name, pixels in pictures.items():
        (tmp_path / name).write_bytes(encoded(pixels, {"p": "PNG", "B": "BMP", "t": "TIFF"}[name[2]]))
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_text("no picture")
    (tmp_path / "d.png").write_bytes(b"broken")
    found = mps.load_textures(tmp_path, CPU)
    for name in ("a.BMP", "b.png", "c.tif"):
        texture = next(found)
        assert texture.label == name
        np.testing.assert_array_equal(texture.get_bytes()[..., 0], pictures[name])
    with pytest.raises(MPSFileError, match=r"^load_textures: .*d\.png must be a whole image"):
        next(found)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    """At once, not when the first is asked for."""
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(MPSFileError, match=r"must hold pictures \(\.png, .* got 1 other files"):
        mps.load_textures(tmp_path, CPU)
    (tmp_path / "x.webp").write_bytes(b"")
    with pytest.raises(MPSFileError, match=r"x\.webp must be a picture \(\.png, .*got \.webp\. Convert it"):
        mps.load_textures(tmp_path, CPU)
    with pytest.raises(MPSFileError, match="must be a folder, got nothing there"):
        mps.load_textures(tmp_path / "none", CPU)


# --- what is refused -------------------------------------------------------------------------------------------------


def planar() -> bytes:
    """A TIFF of red, green and blue of 16 bits that lie apart, of which Pillow gives some bytes as colours."""
    rows = [(256, 2), (257, 2), (259, 1), (262, 2), (277, 3), (278, 2), (284, 2)]
    start, places = 8 + 24, 8 + 24 + 6
    wide = [(258, 3, start), (273, 4, places), (279, 4, places + 12)]
    entries = [(tag, 3, 1, value) for tag, value in rows] + [(tag, kind, 3, value) for tag, kind, value in wide]
    file = struct.pack("<2sHI", b"II", 42, places + 24) + bytes(range(24)) + struct.pack("<3H", 16, 16, 16)
    file += struct.pack("<6I", 8, 16, 24, 8, 8, 8) + struct.pack("<H", len(entries))
    for entry in sorted(entries):
        file += struct.pack("<HHII", *entry)
    return file + bytes(4)


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "UnidentifiedImageError"),
    "a cut file": (encoded(np.full((40, 40), 200, np.uint8))[:60], "OSError|SyntaxError"),
    "cmyk": (encoded(Image.new("CMYK", (2, 2)), "JPEG"), "colours of the mode CMYK, which has no pixel format. Save"),
    "colours apart": (planar(), "16 bits a channel in planes"),
    "integers": (encoded(Image.new("I", (2, 2)), "TIFF"), "colours of the mode I, which"),
    "gif": (encoded(np.zeros((2, 2), np.uint8), "GIF"), "UnidentifiedImageError"),
    "a bomb": (
        encoded(np.zeros((5, 5), np.uint8))[:16] + struct.pack(">II", 6000, 6000),
        "OSError|SyntaxError|UnidentifiedImageError|struct.error",
    ),
    "a large one in few bytes": (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 5000, 5000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", b""),
        "75,000,000 bytes, more than 1,100 times the file's 45: a decompression bomb",
    ),
    "too many pixels": (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 1, 0, 0, 0, 0)) + chunk(b"IDAT", b""),
        "81,000,000 pixels, more than 50,000,000",
    ),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(name: str, tmp_path: Path) -> None:
    data, said = REFUSED[name]
    path = tmp_path / "x.png"
    path.write_bytes(data)
    with pytest.raises(MPSFileError, match=rf"^load_texture: .*x\.png must be a whole image \(BMP, .*({said})"):
        load(path)
    with pytest.raises(MPSFileError, match="^load_texture: source must be a whole image"):
        load(data)


@in_one_test
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: load(7), "load_texture: source must be a path, bytes or a binary file, got int"),
        (lambda: load(io.StringIO("")), "load_texture: source must be a file that is open for bytes, got str"),
        (
            lambda: load(b"", origin="left"),
            "load_texture: origin must be one of top_left, bottom_left, flipped_vertica",
        ),
        (lambda: load(b"", srgb="no"), "load_texture: srgb must be True or False"),
        (lambda: mps.load_texture(b"", "cpu"), "load_texture: device must be an MTLDevice"),  # type: ignore[arg-type]
        (lambda: mps.save_texture(np.zeros(3), "x.png"), "save_texture: texture must be an MTLTexture or an MPSImage"),  # type: ignore[arg-type]
        (lambda: mps.save_texture(image(np.uint8), "x.jpg"), r"save_texture: path must end in one of \.png, \.tif, "),
        (
            lambda: mps.save_texture(image(np.float16), "x.png"),
            "save_texture: texture must be uint8 or uint16 of 1, 3 or 4",
        ),
        (lambda: mps.save_texture(image(np.uint8, 2), "x.png"), "save_texture: texture must be .* got uint8 of 2"),
        (lambda: mps.save_texture(image(np.uint8, 1, 2), "x.png"), "save_texture: texture must be one image"),
    ],
)
def test_calls_that_are_refused(call: Any, said: str) -> None:
    with pytest.raises((MPSArgumentError, MPSTypeError), match=f"^{said}"):
        call()


def image(dtype: Any, channels: int = 1, images: int = 1) -> mps.MPSImage:
    return mps.MPSImage.from_numpy(CPU, np.zeros((images, 2, 2, channels), dtype))


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MPSError, match=r"load_texture: .*needs pillow.*pip install '\.\[train\]'"):
        load(b"")


def test_a_file_that_is_there_survives_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"before")
    with pytest.raises(MPSArgumentError):
        mps.save_texture(image(np.float32), path)
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"before", 1)


def test_a_side_that_no_texture_has() -> None:
    with pytest.raises(MPSFileError, match="load_texture: source must have at most 16,384 pixels a side.* got 16385x1"):
        load(encoded(np.zeros((1, 16385), np.uint8)))


def test_an_array_is_saved_by_slice(tmp_path: Path, rng: np.random.Generator) -> None:
    texture = CPU.new_texture(
        mps.MTLTextureDescriptor(width=4, height=3, texture_type=MTLTextureType.TYPE_2D_ARRAY, array_length=2)
    )
    pixels = noise(rng, (3, 4, 4))
    texture.replace_region(None, 0, pixels, slice=1)
    mps.save_texture(texture, tmp_path / "x.tiff", slice=1)
    np.testing.assert_array_equal(elements(tmp_path / "x.tiff"), pixels)


# --- changed files ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of Pillow, by which the test reads files too: metadata that nobody asks for
def test_changed_files_are_loaded_or_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A short form of ``make fuzz`` for pictures: 200 cases of files and changes, in this process."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    pictures = importlib.import_module("fuzzing.pictures").PICTURES
    random, refused = np.random.default_rng(11), list[str]()
    for number, target in enumerate(pictures):
        folder = tmp_path / str(number)
        folder.mkdir()
        target.write(folder)
        (path,) = folder.iterdir()
        honest, changes = path.read_bytes(), (*target.blind, *target.knowing)
        for _ in range(34):
            changed = changes[int(random.integers(len(changes)))](honest, random)
            if not isinstance(changed, bytes):  # a folder or a pipe in the file's place
                continue
            path.write_bytes(changed)
            try:
                found = load(path)
            except (MPSFileError, MPSArgumentError) as error:
                refused.append(str(error))
            else:
                assert target.says(found) == target.says(load(honest)) or target.is_as_written(folder, found)
    assert len(refused) > 100
    assert [said for said in refused if str(tmp_path) not in said] == []


def test_what_is_no_picture_is_said_without_an_address() -> None:
    with pytest.raises(mps.MPSError, match="cannot identify image file") as caught:
        mps.load_texture(b"no picture", CPU)
    assert "0x" not in str(caught.value)
