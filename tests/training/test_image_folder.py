"""Folders of images: order, colour, size, and broken files by name."""

import errno
import io
import os
import struct
import sys
import warnings
import zlib

import forked
import numpy as np
import pytest
from PIL import Image

from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSMemoryError
from openmps.training.data import load_dataset
from openmps.training.image_folder import load_image, load_image_folder

GREY = np.random.default_rng(0).integers(0, 256, (5, 7)).astype(np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def encoded(pixels, kind="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return buffer.getvalue()


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "letters"
    for index, name in enumerate(["b/2.png", "b/10.bmp", "a/x.PNG"]):
        put(root, name, encoded(GREY + index, "BMP" if name.endswith("bmp") else "PNG"))
    return root


def test_classes_and_images_are_sorted_by_name(folder):
    put(folder, ".hidden/x.png", b"not an image")
    put(folder, "a/.hidden.png", b"not an image")
    put(folder, "a/notes.txt", b"not an image")
    put(folder, "README.md", b"not an image")
    dataset = load_image_folder(folder)
    assert dataset.class_names == ("a", "b")
    assert dataset.name == "letters"
    assert dataset.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(dataset.images[..., 0], np.stack([GREY + 2, GREY + 1, GREY]))
    assert dataset.skipped == ()


def test_one_image_in_colour_makes_all_red_green_blue(folder):
    put(folder, "b/11.png", encoded(COLOUR))
    dataset = load_image_folder(folder)
    assert dataset.images.shape == (4, 5, 7, 3)
    np.testing.assert_array_equal(dataset.images[2], COLOUR)
    for image, grey in zip(dataset.images[[0, 1, 3]], (GREY + 2, GREY + 1, GREY), strict=True):
        np.testing.assert_array_equal(image, np.repeat(grey[..., None], 3, axis=2))
    assert load_image_folder(folder, channels=1).images.shape == (4, 5, 7, 1)


def test_load_dataset_recognises_the_folder_and_splits_it(folder):
    training, test = load_dataset(folder, size=(3, 4), channels=3)
    assert training.images.shape == (2, 3, 4, 3)
    assert len(test) == 1


def test_channels_and_luma(tmp_path):
    grey, colour = put(tmp_path, "grey.png", encoded(GREY)), put(tmp_path, "colour.png", encoded(COLOUR))
    luma = COLOUR.astype(float) @ (0.299, 0.587, 0.114)
    np.testing.assert_allclose(load_image(colour, channels=1)[..., 0], luma, atol=1)
    for channels in (None, 3):
        np.testing.assert_array_equal(load_image(colour, channels=channels), COLOUR)
    for channels in (None, 1):
        np.testing.assert_array_equal(load_image(grey, channels=channels), GREY[..., None])
    np.testing.assert_array_equal(load_image(grey, channels=3), np.repeat(GREY[..., None], 3, axis=2))


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path):
    wide = np.array([[0, 128, 257], [32896, 65278, 65535]], dtype=np.uint16)
    assert load_image(put(tmp_path, "wide.png", encoded(wide))).tolist() == [[[0], [0], [1]], [[128], [254], [255]]]


def test_other_modes(tmp_path):
    black_and_white = Image.fromarray(GREY > 127)
    black_and_white.save(tmp_path / "1.png")
    np.testing.assert_array_equal(load_image(tmp_path / "1.png")[..., 0], np.where(GREY > 127, 255, 0))
    Image.fromarray(COLOUR).quantize(255).save(tmp_path / "p.png")
    assert load_image(tmp_path / "p.png").shape == (5, 7, 3)
    Image.fromarray(np.dstack([COLOUR, GREY])).save(tmp_path / "rgba.png")
    np.testing.assert_array_equal(load_image(tmp_path / "rgba.png"), COLOUR)
    Image.fromarray(COLOUR).convert("CMYK").save(tmp_path / "cmyk.jpg")
    assert load_image(tmp_path / "cmyk.jpg").shape == (5, 7, 3)


def test_jpeg_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by a quarter, clockwise
    ramp = np.repeat(np.linspace(0, 255, 16).astype(np.uint8)[None], 8, axis=0)
    path = put(tmp_path, "a.jpeg", encoded(ramp, "JPEG", exif=exif, quality=95))
    found = load_image(path)[..., 0].astype(int)
    assert found.shape == (16, 8)
    np.testing.assert_allclose(found, ramp.T, atol=6)


def test_size_is_height_and_width(tmp_path):
    path = put(tmp_path, "a.png", encoded(np.full((10, 20), 77, dtype=np.uint8)))
    found = load_image(path, size=(4, 6))
    assert found.shape == (4, 6, 1)
    assert (found == 77).all()


def test_images_of_two_sizes_name_both_files(folder):
    odd = put(folder, "b/3.png", encoded(GREY[:4]))
    for skip_broken in (False, True):
        with pytest.raises(MPSFileError) as caught:
            load_image_folder(folder, skip_broken=skip_broken)
        message = str(caught.value)
        assert f"{odd} must be 7x5 as {folder / 'a' / 'x.PNG'} is, got 7x4" in message
        assert "size=(height, width)" in message
    assert load_image_folder(folder, size=(5, 7)).images.shape == (4, 5, 7, 1)


def png(width, height, data=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


WHOLE = encoded(COLOUR)
BROKEN = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "png truncated": WHOLE[: len(WHOLE) // 2],
    "png header": WHOLE[:20],
    "png damaged": WHOLE[:45] + bytes(20) + WHOLE[65:],
    "png without pixels": png(4, 4),
    "png of garbage": png(4, 4, b"garbage"),
    "png of no width": png(0, 4, zlib.compress(b"")),
    "jpeg truncated": encoded(COLOUR.repeat(20, 0), "JPEG")[:400],
    "bmp truncated": encoded(COLOUR, "BMP")[:-30],
    "gif": encoded(GREY, "GIF"),
    "bomb": png(30_000, 30_000, zlib.compress(b"")),
    "almost a bomb": png(10_000, 10_000, zlib.compress(b"")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_or_skipped_on_request(folder, kind):
    path = put(folder, "b/broken.png", BROKEN[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MPSFileError) as caught:
            load_image_folder(folder)
        dataset = load_image_folder(folder, skip_broken=True)
    assert f"{path} must be a whole image (BMP, JPEG, PNG), got " in str(caught.value)
    assert caught.value.__cause__ is not None
    assert dataset.labels.tolist() == [0, 1, 1]
    assert [error.argument for error in dataset.skipped] == [str(path)]
    np.testing.assert_array_equal(dataset.images[..., 0], np.stack([GREY + 2, GREY + 1, GREY]))
    assert dataset.split().training.skipped == dataset.skipped


@pytest.mark.parametrize("limit", [34, 17])
def test_pillows_limit_of_pixels_is_kept(tmp_path, monkeypatch, limit):
    """Above the limit pillow only warns, above twice the limit it refuses; here both are an error."""
    path = put(tmp_path, "a.png", WHOLE)
    load_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(MPSFileError, match=r"a\.png must be .* decompression bomb"):
            load_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    np.testing.assert_array_equal(load_image(path), COLOUR)


@pytest.mark.parametrize("name", ["b/x.webp", "a/x.GIF", "b/x.tiff", "a/more/x.png"])
def test_images_that_would_be_left_out_unnoticed_are_named(folder, name):
    put(folder, name, WHOLE)
    path = folder / ("a/more" if "more" in name else name)
    got = "a folder" if "more" in name else path.suffix
    with pytest.raises(MPSFileError) as caught:
        load_image_folder(folder)
    assert f"{path} must be an image (.png, .jpg, .jpeg, .bmp), got {got}. Convert it" in str(caught.value)
    dataset = load_image_folder(folder, skip_broken=True)
    assert ([error.argument for error in dataset.skipped], len(dataset)) == ([str(path)], 3)


def test_images_beside_the_class_folders_are_named(folder):
    put(folder, "x.webp", b"")
    with pytest.raises(MPSFileError, match=r"letters/x\.webp must be in the folder of its class, got 1 image files"):
        load_image_folder(folder, skip_broken=True)


@pytest.mark.parametrize("where", ["PIL.Image.open", "PIL.ImageOps.exif_transpose", "numpy.array"])
def test_a_machine_without_memory_makes_no_image_a_broken_one(folder, monkeypatch, where):
    monkeypatch.setattr(where, lambda *arguments, **options: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MPSMemoryError, match=r"letters/a/x\.PNG needs more memory than there is"):
        load_image_folder(folder, skip_broken=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("out of memory error when reading image file"), MPSMemoryError),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), MPSMemoryError),
        (zlib.error("Error -4 while decompressing data: insufficient memory"), MPSMemoryError),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), MPSError),
    ],
    ids=["pillow", "system", "zlib", "open files"],
)
def test_what_libraries_say_of_a_machine_at_its_limits(folder, monkeypatch, error, kind):
    """No broken image, though the error is none of memory by its class."""
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", lambda *arguments, **options: (_ for _ in ()).throw(error))
    with pytest.raises(kind, match=r"letters/a/x\.PNG") as caught:
        load_image_folder(folder, skip_broken=True)
    assert not isinstance(caught.value, MPSFileError)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads how much memory is used")
def test_a_sound_image_under_a_limit_of_memory(tmp_path):
    """Whatever the limit is, it is read, or memory is said to be short: it is never taken for a broken one."""
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3)).astype(np.uint8)
    paths = [str(tmp_path / f"x.{suffix}") for suffix in ("png", "jpg", "bmp")]
    for path in paths:
        Image.fromarray(noise).save(path)
    program = (
        "import resource, sys\n"
        "from openmps.errors import MPSMemoryError\n"
        "from openmps.training.image_folder import load_image\n"
        "import PIL.Image, PIL.ImageOps\n"
        "PIL.Image.init()\n"
        "seen = []\n"
        "for path, extra in [(path, mib << 20) for path in sys.argv[1:] for mib in range(0, 60, 4)]:\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        load_image(path, size=(20, 20))\n"
        "        seen.append('read')\n"
        "    except MPSMemoryError:\n"
        "        seen.append('short')\n"
        "print(*sorted(set(seen)))\n"
    )
    child = forked.run("-c", program, *paths)
    assert (child.returncode, child.stdout.split()) == (0, ["read", "short"]), child.stderr


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_machine_without_files_makes_no_image_a_broken_one(folder, monkeypatch, number):
    def fail(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("openmps.formats.paths.os.stat", fail)
    monkeypatch.setattr("openmps.formats.paths.os.path.isfile", lambda path: True)
    monkeypatch.setattr("openmps.formats.paths.os.path.isdir", lambda path: True)
    monkeypatch.setattr("openmps.training.image_folder._class_folders", lambda *arguments: [folder / "a", folder / "b"])
    with pytest.raises(MPSError, match="could not be read") as caught:
        load_image_folder(folder, skip_broken=True)
    assert not isinstance(caught.value, MPSFileError)


def test_a_long_file_is_refused_unread(folder):
    path = folder / "a" / "long.jpg"
    with path.open("wb") as file:
        file.write(b"\xff\xd8")
        file.truncate(10 << 30)
    with pytest.raises(MPSFileError, match=r"long\.jpg must be no longer than 268,435,456 bytes, got 10,737,418,240"):
        load_image(path)


def test_pixels_are_counted_before_they_are_decoded(tmp_path):
    path = put(tmp_path, "a.png", png(8000, 7000, zlib.compress(bytes(7000 * 8001))))
    assert path.stat().st_size < 100_000
    with pytest.raises(MPSFileError, match=r"must be a whole image .* 56,000,000 pixels, more than 50,000,000"):
        load_image(path)


def test_sixteen_bits_of_every_value(tmp_path):
    wide = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = load_image(put(tmp_path, "wide.png", encoded(wide)))[..., 0]
    np.testing.assert_array_equal(found, np.rint(wide / 257))


def test_a_class_of_broken_images_only_is_an_error(folder):
    put(folder, "a/x.PNG", b"")
    with pytest.raises(MPSFileError, match=r"letters/a must hold at least one image that can be read, got 1 broken"):
        load_image_folder(folder, skip_broken=True)


@pytest.mark.parametrize(
    ("content", "found"),
    [({}, "an empty folder"), ({"c/x.webp": b"", "c/y.txt": b""}, r"\.txt, \.webp"), ({"c/d/x.png": b""}, "folders")],
)
def test_a_class_without_images_says_what_it_holds(folder, content, found):
    (folder / "c").mkdir()
    for name, data in content.items():
        put(folder, name, data)
    with pytest.raises(MPSFileError, match=rf"letters/c must hold images .* got {found}$"):
        load_image_folder(folder)


def test_folders_that_are_none(tmp_path, folder):
    with pytest.raises(MPSFileError, match="must be a folder, got nothing there"):
        load_image_folder(tmp_path / "none")
    with pytest.raises(MPSFileError, match="must be a folder, got a file"):
        load_image_folder(folder / "a" / "x.PNG")
    (tmp_path / "one" / "a").mkdir(parents=True)
    with pytest.raises(
        MPSFileError, match="at least two class folders, each with the images of one class, got 1 folder"
    ):
        load_image_folder(tmp_path / "one")
    (folder / "a\nb").mkdir()
    with pytest.raises(MPSFileError, match="must have a printable name"):
        load_image_folder(folder)


def test_options_are_checked(folder):
    for size in ((3,), (0, 3), (3, 3.5), 28, (True, 3), (3, 3, 3), (70_000, 3)):
        with pytest.raises(MPSArgumentError, match=r"size must be \(height, width\)"):
            load_image_folder(folder, size=size)
    for channels in (0, 2, 4, "L"):
        with pytest.raises(MPSArgumentError, match="channels must be 1"):
            load_image(folder / "a" / "x.PNG", channels=channels)
    with pytest.raises(MPSFileError, match="must be a file, got nothing there"):
        load_image(folder / "none.png")


def test_what_does_not_fit_in_memory_is_an_error(folder, monkeypatch):
    real = np.empty

    def empty(shape, *arguments, **options):
        if isinstance(shape, tuple) and shape[0] == 3:
            raise MemoryError
        return real(shape, *arguments, **options)

    monkeypatch.setattr("openmps.training.image_folder.np.empty", empty)
    with pytest.raises(MPSArgumentError, match=r"must fit in memory, got 3 images of 7x5x1\. Give size"):
        load_image_folder(folder)
    monkeypatch.setattr("openmps.training.image_folder._decode", None)  # nothing is read
    with pytest.raises(MPSArgumentError, match=r"got 3 images of 60000x60000x3\. Give a smaller size"):
        load_image_folder(folder, size=(60000, 60000), channels=3)


def test_without_pillow_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MPSError, match=r"needs pillow.*pip install '\.\[train\]'") as caught:
        load_image_folder(folder, skip_broken=True)
    assert isinstance(caught.value.__cause__, ImportError)
