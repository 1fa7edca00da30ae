"""A folder of class folders of PNG, JPEG or BMP images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openmps.checks import flag, is_whole
from openmps.errors import MPSArgumentError, MPSFileError, shown, size_text
from openmps.formats.paths import is_folder, is_forbidden, path_of, read_file, visible_entries
from openmps.formats.picture_files import FORMATS, LONGEST, OTHER_FORMATS, opened
from openmps.training.dataset import Dataset
from openmps.training.scaling import Scaler, ScalingName

if TYPE_CHECKING:
    from PIL import Image as PillowImage

Channels: TypeAlias = Literal[1, 3]
"""Grey, or red green blue."""

_FORMATS = {suffix: kind for suffix, kind in FORMATS.items() if kind in ("PNG", "JPEG", "BMP")}
_LEFT_OUT = "--skip-broken leaves such files out, skip_broken=True in Python"
LONGEST_SIDE = 65535
"""Pixels that an image may be resized to, down or across."""
_GREY_MODES = ("1", "L", "LA", "La")


def load_image(
    path: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    channels: Channels | None = None,
    scaling: ScalingName | None = None,
) -> NDArray[np.uint8]:
    """One PNG, JPEG or BMP image as uint8 ``[H, W, C]``, turned upright where its EXIF data say so.

    ``channels`` 1 makes it grey (ITU-R 601 luma), 3 red green blue; ``None`` keeps what it is (a palette counts as
    colour). Transparency is dropped, 16-bit grey is scaled to 8 bits. ``size`` is (height, width) to resize to, without
    keeping the proportions: as Pillow does (bilinear, wider as the image shrinks), or with a ``scaling`` of bilinear or
    lanczos by `MPSImageBilinearScale` or `MPSImageLanczosScale`, from and to 8 bits.

    Raises ``MPSFileError`` naming the file where it is missing, broken, of another format, or so large that decoding it
    is refused: longer than 256 MiB, of more than 50 million pixels or more than ``PIL.Image.MAX_IMAGE_PIXELS``, or than
    a file of its length can hold. ``MPSMemoryError`` where there is no memory for it.
    """
    who = "load_image"
    resize = _checked_options(size, channels, scaling, who)
    return _decode(path_of(path, who), resize, channels, who)


def load_image_folder(
    folder: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    channels: Channels | None = None,
    scaling: ScalingName | None = None,
    skip_broken: bool = False,
) -> Dataset:
    """The images of a folder with one folder for each class, named after it: ``digits/0/a.png``, ``digits/1/b.png``.

    Classes are the folders in order of their names, images the ``.png``, ``.jpg``, ``.jpeg`` and ``.bmp`` files
    directly in them, by name; hidden files and folders and files of other kinds are ignored, but images of other
    formats, and folders in class folders, count as broken. Without ``channels`` the
    images become grey when every file is grey, and red green blue as soon as one has colour, so that no information
    is lost. All must have one size unless ``size`` (height, width) says which to resize them to, by ``scaling`` as for
    `load_image`.

    Raises ``MPSFileError`` naming the file or folder at fault: no class folders, images beside them, a class without
    images, an image of another size, a broken image; ``MPSMemoryError`` where there is not the memory. With
    ``skip_broken=True`` broken images are left out and their errors are the result's ``skipped``; one that may not be
    read is an error all the same, for nothing is known of it.
    """
    who = "load_image_folder"
    resize = _checked_options(size, channels, scaling, who)
    root = path_of(folder, who, "folder")
    skip_broken = flag(who, "skip_broken", skip_broken)
    classes = _class_folders(root, who)
    files = [(path, label) for label, name in enumerate(classes) for path in _image_files(name, who)]
    remedy = "Give a smaller size." if size else "Give size=(height, width) to resize all images."
    stack = _Stack(len(files), remedy, who)
    if resize is not None:
        stack.reserve((*resize.size, channels or 1))
    labels: list[int] = []
    skipped: list[MPSFileError] = []
    for path, label in files:
        try:
            if path.suffix.lower() not in _FORMATS:
                got = "a folder" if is_folder(path, who) else path.suffix
                rule = f"must be an image ({', '.join(_FORMATS)})"
                raise MPSFileError(who, str(path), rule, got, "Convert it, or take it away.")
            pixels = _decode(path, resize, channels, who)
        except MPSFileError as error:
            if is_forbidden(error):
                raise
            if not skip_broken:
                remedy = f"{error.remedy} {_LEFT_OUT}".lstrip()
                raise MPSFileError(who, error.argument, error.rule, error.got, remedy) from error.__cause__
            skipped.append(error)
            continue
        stack.add(pixels, path)
        labels.append(label)
    names = tuple(path.name for path in classes)
    _check_every_class(classes, labels, skipped, who)
    return Dataset(stack.images(), np.array(labels, dtype=np.int64), names, root.resolve().name, tuple(skipped))


class _Stack:
    """Images of one size, gathered into one array that grows to three channels with the first image in colour."""

    def __init__(self, count: int, remedy: str, who: str) -> None:
        self._count = count
        self._remedy = remedy
        self._who = who
        self._used = 0
        self._array = np.empty((0, 0, 0, 0), dtype=np.uint8)
        self._first = Path()

    def reserve(self, shape: Sequence[int]) -> None:
        """Raise where there is no memory for images of this size; nothing was read yet."""
        self._array = self._allocate(shape)

    def add(self, pixels: NDArray[np.uint8], path: Path) -> None:
        if self._used == 0:
            self._first = path
            self._array = self._allocate(pixels.shape)
        elif pixels.shape[:2] != self._array.shape[1:3]:
            rule = f"must be {size_text(self._array.shape[1:3])} as {self._first} is"
            raise MPSFileError(self._who, str(path), rule, size_text(pixels.shape[:2]), self._remedy)
        if pixels.shape[2] > self._array.shape[3]:
            grey = self._array
            self._array = self._allocate(pixels.shape)
            self._array[: self._used] = grey[: self._used]
        self._array[self._used] = pixels
        self._used += 1

    def images(self) -> NDArray[np.uint8]:
        return self._array[: self._used]

    def _allocate(self, shape: Sequence[int]) -> NDArray[np.uint8]:
        try:
            return np.empty((self._count, *shape), dtype=np.uint8)
        except (MemoryError, ValueError) as error:
            got = f"{self._count} images of {size_text(shape)}"
            raise MPSArgumentError(self._who, "folder", "must fit in memory", got, self._remedy) from error


def _class_folders(folder: Path, who: str) -> list[Path]:
    entries = visible_entries(folder, who)
    found = [path for path in entries if is_folder(path, who)]
    loose = [path for path in entries if path not in found and _is_image(path)]
    if loose and found:
        raise MPSFileError(who, str(loose[0]), "must be in the folder of its class", f"{len(loose)} image files")
    if len(found) < 2:
        rule = "must hold at least two class folders, each with the images of one class"
        raise MPSFileError(who, str(folder), rule, f"{len(found)} folders")
    for path in found:
        if not path.name.isprintable():
            raise MPSFileError(who, shown(str(path)), "must have a printable name, being a class folder")
    return found


def _is_image(path: Path) -> bool:
    """Whether a file is an image by its name, of whatever format."""
    return path.suffix.lower() in (*FORMATS, *OTHER_FORMATS)


def _image_files(folder: Path, who: str) -> list[Path]:
    entries = visible_entries(folder, who)
    found = [path for path in entries if _is_image(path) or is_folder(path, who)]
    if not any(path.suffix.lower() in _FORMATS for path in found):
        kinds = sorted(
            {"folders" if is_folder(path, who) else path.suffix or "files without suffix" for path in entries}
        )
        got = ", ".join(kinds[:5]) or "an empty folder"
        raise MPSFileError(who, str(folder), f"must hold images ({', '.join(_FORMATS)}), being a class folder", got)
    return found


def _check_every_class(classes: list[Path], labels: list[int], skipped: list[MPSFileError], who: str) -> None:
    for label in sorted(set(range(len(classes))) - set(labels)):
        broken = [error for error in skipped if Path(error.argument).parent == classes[label]]
        rule = "must hold at least one image that can be read"
        raise MPSFileError(who, str(classes[label]), rule, f"{len(broken)} broken ones") from broken[0]


class _Resize(NamedTuple):
    """The size that pictures are brought to, and by what: the framework's filter, or Pillow."""

    size: tuple[int, int]
    scaler: Scaler | None


def _decode(path: Path, resize: _Resize | None, channels: Channels | None, who: str) -> NDArray[np.uint8]:
    with opened(read_file(path, who, LONGEST), str(path), who, set(_FORMATS.values())) as image:
        from PIL import ImageOps

        ImageOps.exif_transpose(image, in_place=True)
        return _pixels(image, resize, channels)


def _pixels(image: PillowImage.Image, resize: _Resize | None, channels: Channels | None) -> NDArray[np.uint8]:
    from PIL import Image

    if image.mode.startswith("I"):
        # 16-bit grey: pillow's own conversion clips at 255.
        wide = np.array(image, np.int32)
        np.clip(wide, 0, 65535, out=wide)
        wide += 128
        wide //= 257  # in place: an image may be large
        image = Image.fromarray(wide.astype(np.uint8))
    grey = image.mode in _GREY_MODES if channels is None else channels == 1
    converted = image.convert("L" if grey else "RGB")
    if resize is not None and resize.scaler is None:
        converted = converted.resize((resize.size[1], resize.size[0]), Image.Resampling.BILINEAR)
    pixels = np.array(converted, dtype=np.uint8)
    pixels = pixels[..., np.newaxis] if grey else pixels
    return pixels if resize is None or resize.scaler is None else resize.scaler(pixels, resize.size)


def _checked_options(
    size: tuple[int, int] | None, channels: object, scaling: ScalingName | None, who: str
) -> _Resize | None:
    lengths = tuple(size) if isinstance(size, Sequence) else ()
    if size is not None and (len(lengths) != 2 or not all(is_whole(n, 1) and n <= LONGEST_SIDE for n in lengths)):
        raise MPSArgumentError(who, "size", f"must be (height, width), each 1 to {LONGEST_SIDE}", shown(size))
    if channels is not None and not (is_whole(channels) and channels in (1, 3)):
        raise MPSArgumentError(who, "channels", "must be 1 (grey), 3 (red green blue) or None", shown(channels))
    scaler = None if scaling is None else Scaler(who, scaling)
    if size is None and scaler is not None:
        remedy = "Give size=(height, width), or leave it out"
        raise MPSArgumentError(who, "scaling", "must be given with a size to scale to", scaling, remedy)
    return None if size is None else _Resize((size[0], size[1]), scaler)
