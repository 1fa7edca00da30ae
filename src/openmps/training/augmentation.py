"""How training images are augmented, as a value that a run's description holds: ``flip,crop:4,rotate:10``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.selectors import name_arguments
from openmps.training.preprocessing import Preprocessing
from openmps.types import MPSImageEdgeMode

Flip: TypeAlias = Literal["random", "alternate"]
"""Half of the images in each step, drawn anew; or each image in every second epoch."""

PADDING_MODES: Mapping[str, MPSImageEdgeMode] = {
    "zero": MPSImageEdgeMode.ZERO,
    "edge": MPSImageEdgeMode.CLAMP,
    "reflect": MPSImageEdgeMode.MIRROR,
}
"""What lies outside of an image that is moved."""
_LARGEST_PIXEL = 255.0
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Numbers that float32 has to all its digits: devices may take smaller ones for 0."""


@name_arguments
@dataclass(frozen=True)
class Augmentation:
    """What is done to the images of each step of a training, by `ImageAugmentation` and `MixUp`; tests see none of it.

    As it comes nothing is done. ``crop`` and ``translation`` are pixels that an image is moved by at most, whole ones
    and fractions, ``rotation`` degrees, ``cut_out`` the side of a square of zeros, ``padding`` what lies outside of an
    image that is moved: ``zero``, ``edge`` or ``reflect``. ``brightness`` and ``contrast`` are the most that is added
    to pixels from 0 to 1, and that the factor of their distances from 1/2 departs from 1. ``normalization`` is a mean
    and a deviation of such pixels: the network sees ``(pixel - mean) / deviation``, in tests and predictions too.
    ``label_smoothing`` is the share of each label that is spread over all classes, ``mix_up`` the parameter of the beta
    distribution by which images and labels are mixed with their neighbours; a batch needs pairs, then.

    Raises:
        MPSArgumentError: A number is out of bounds, or a word is none of those named.
    """

    flip: Flip | None = None
    crop: int = 0
    translation: int = 0
    rotation: float = 0.0
    padding: str = "zero"
    cut_out: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    normalization: tuple[float, float] | None = None
    label_smoothing: float = 0.0
    mix_up: float = 0.0

    def __post_init__(self) -> None:
        for item in ITEMS.values():
            value = _plain(getattr(self, item.field))
            is_plain = isinstance(value, int | float | str | None) and not isinstance(value, bool)
            is_default = is_plain and value == getattr(type(self), item.field)
            if not is_default and not item.fits(value):
                raise MPSArgumentError(type(self).__name__, item.field, item.rule, shown(value))
            object.__setattr__(self, item.field, value)

    @classmethod
    def parse(cls, text: str) -> Augmentation:
        """What a text says: items of `ITEMS` between commas, with their values behind colons.

        Raises:
            MPSArgumentError: An item is unknown, stands twice, or has no value or one that does not fit.
        """
        who = cls.__name__
        if not isinstance(text, str):
            raise MPSTypeError(who, "text", "must be items between commas, as flip,crop:4", type(text).__name__)
        values: dict[str, Any] = {}
        for part in text.split(","):
            name, colon, value = part.strip().partition(":")
            item = ITEMS.get(name)
            if item is None:
                raise MPSArgumentError(who, "text", f"must have items of {', '.join(ITEMS)}", shown(part.strip()))
            if item.field in values:
                raise MPSArgumentError(who, name, "must stand once", shown(text))
            values[item.field] = item.alone if not colon and item.alone is not None else _read(who, name, item, value)
        return cls(**values)

    def __str__(self) -> str:
        """The text that `parse` takes; empty where nothing is done."""
        return ",".join(
            f"{name}:{_text(value)}"
            for name, item in ITEMS.items()
            if (value := getattr(self, item.field)) != getattr(type(self), item.field)
        )

    def preprocessing(self, channels: int) -> Preprocessing | None:
        """What a network that is trained so sees of pixels from 0 to 255; None for channels that have no order.

        Raises:
            MPSArgumentError: Images of such channels are to be normalized.
        """
        plain = Preprocessing.plain(channels)
        if self.normalization is None:
            return plain
        if plain is None:
            rule = f"must be left out for images of {channels} channels, which are neither grey nor coloured"
            raise MPSArgumentError(type(self).__name__, "normalization", rule, self.normalization)
        mean, deviation = self.normalization
        each = (_LARGEST_PIXEL * mean,) * channels, (1 / (_LARGEST_PIXEL * deviation),) * channels
        return Preprocessing(plain.order, *each)


class Item(NamedTuple):
    """An item of the text."""

    field: str
    """The field that it sets."""
    read: Callable[[str], Any]
    fits: Callable[[Any], bool]
    rule: str
    """What its value must be."""
    alone: Any = None
    """The value of an item without one; None where it needs one."""


def _read(who: str, name: str, item: Item, value: str) -> Any:
    try:
        found = item.read(value)
    except ValueError:
        found = None
    if found is None or not item.fits(found):
        raise MPSArgumentError(who, name, item.rule, shown(value) if value else "nothing", f"Say {name}:VALUE")
    return found


def _text(value: object) -> str:
    """A value as `parse` reads it, to the last bit."""
    if isinstance(value, tuple):
        return "/".join(_text(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, whose text `parse` reads."""
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return value.item() if isinstance(value, np.generic) else value


def _is_share(value: object) -> bool:
    """Whether it is a finite number of float32, of 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_number(value: Any, most: float = math.inf) -> bool:
    """Whether it is a finite number above 0, as float32 too."""
    return _is_share(value) and _LEAST <= value <= most


def _among(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


def _is_pixels(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_normalization(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    given: tuple[Any, ...] = value
    if len(given) != 2 or not _is_share(given[0]) or not _is_number(given[1]):
        return False
    pixels = np.array([0.0, 1.0, _LARGEST_PIXEL - 1, _LARGEST_PIXEL], np.float32) / np.float32(_LARGEST_PIXEL)
    with np.errstate(over="ignore", under="ignore"):
        seen = (pixels - np.float32(given[0])) / np.float32(given[1])
    return bool(np.isfinite(seen).all() and (np.diff(seen) >= _LEAST).all())


def _pair(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split("/"))


_PIXELS = "must be a whole number of pixels, 1 or more"
_SHARE = "must be a number above 0 in float32, 1 at most"
ITEMS: Mapping[str, Item] = {
    "flip": Item("flip", str, _among(*get_args(Flip)), "must be random or alternate", "random"),
    "crop": Item("crop", int, _is_pixels, _PIXELS),
    "translate": Item("translation", int, _is_pixels, _PIXELS),
    "rotate": Item("rotation", float, partial(_is_number, most=180), "must be degrees above 0 in float32, 180 at most"),
    "pad": Item("padding", str, _among(*PADDING_MODES), f"must be one of {', '.join(PADDING_MODES)}"),
    "cutout": Item("cut_out", int, _is_pixels, _PIXELS),
    "brightness": Item("brightness", float, partial(_is_number, most=1), _SHARE),
    "contrast": Item("contrast", float, partial(_is_number, most=1), _SHARE),
    "normalize": Item(
        "normalization",
        _pair,
        _is_normalization,
        "must be MEAN/DEVIATION, above 0, which leave pixels from 0 to 1 finite and apart in float32",
    ),
    "smooth": Item("label_smoothing", float, partial(_is_number, most=1), _SHARE),
    "mixup": Item("mix_up", float, _is_number, "must be a finite number above 0 in float32", 1.0),
}
"""What a text may have, in the order in which it is written."""
AS_THEY_ARE = Augmentation()
"""Nothing is done."""
