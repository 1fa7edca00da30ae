"""Inputs and outputs of a model: arrays with ONNX's axes, and the images that hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.formats.onnx.layout import Atom, Layout
from openmps.formats.onnx.model import length_name

Places = tuple[int, ...]
Lengths = tuple[int | str | None, ...]
_TYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)
_UNORM = (np.dtype(np.uint8), np.dtype(np.uint16))
_MOST = 64
_FEW_CHANNELS = 8
_EXACT = 1 << 24
"""The largest whole number up to which float32 holds all."""


@dataclass(frozen=True)
class OnnxPort:
    """An input or an output of a model.

    ``shape`` has numbers, names of lengths that vary, or None; the batch comes first. ``dtype`` is ONNX's type of the
    numbers. The rest says where an image has them: axes, channels, rows and columns as products of atoms.
    """

    name: str
    dtype: str
    shape: Lengths
    image: int
    """Which of the graph's sources or results."""
    sizes: tuple[int | None, ...]
    """The atoms' lengths; the first is the batch's."""
    axes: tuple[Places, ...]
    channels: Places
    rows: Places
    columns: Places

    @classmethod
    def of(cls, name: str, dtype: str, shape: Lengths, image: int, layout: Layout) -> OnnxPort:
        """The port of a tensor."""
        found: list[Atom] = [layout.batch, *layout.rows, *layout.columns, *layout.channels]
        place = {id(atom): index for index, atom in enumerate(found)}

        def places(axis: Sequence[Atom]) -> Places:
            return tuple(place[id(atom)] for atom in axis)

        sizes = tuple(atom.size for atom in found)
        axes = tuple(map(places, layout.axes))
        return cls(name, dtype, shape, image, sizes, axes, *map(places, layout.places))

    @property
    def text(self) -> str:
        """The shape in words."""
        return shape_text(self.shape)

    def length(self, places: Places) -> int | None:
        """The length of the image's ``channels``, ``rows`` or ``columns``; None where it is not known."""
        sizes = [self.sizes[place] for place in places]
        return None if None in sizes else math.prod(size or 1 for size in sizes)

    # --- arrays and images --------------------------------------------------------------------------------------------

    def pixels(self, array: object, who: str, argument: str) -> NDArray[Any]:
        """An array with ONNX's axes as ``[N, H, W, C]``: float32, or what an image stores as it is; see `is_unorm`.

        Raises:
            MPSTypeError: It holds no real numbers.
            MPSArgumentError: It is of another shape.
        """
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            got = str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
            raise MPSTypeError(who, argument, "must be a NumPy array of real numbers", got)
        given = cast("NDArray[Any]", array)
        sizes = self._solved(given.shape, self.axes)
        if sizes is None or not given.size:
            found = "x".join(map(str, given.shape)) or "one number"
            raise MPSArgumentError(who, argument, f"must be of shape {self.text}", found)
        _check_held(given, who, argument)
        order = [place for axis in self.axes for place in axis]
        flat = given.reshape([sizes[place] for place in order])
        wanted = [0, *self.rows, *self.columns, *self.channels]
        moved = flat.transpose([order.index(place) for place in wanted])
        lengths = [math.prod(sizes[place] for place in axis) for axis in ((0,), self.rows, self.columns, self.channels)]
        with np.errstate(over="ignore"):
            return _together(moved.reshape(lengths), given.dtype if self.is_unorm(given.dtype) else np.float32)

    def is_unorm(self, dtype: np.dtype[Any]) -> bool:
        """Whether numbers of a type stand for 0 to 1: uint8 and uint16, unless the model takes whole numbers."""
        return dtype in _UNORM and self.dtype.startswith("float")

    def array(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """``[N, H, W, C]`` as an array with ONNX's axes."""
        places = ((0,), self.rows, self.columns, self.channels)
        sizes = self._solved(pixels.shape, places)
        if sizes is None:
            rule = f"must be an image whose numbers make {self.text}"
            got = "x".join(map(str, pixels.shape))
            raise MPSArgumentError("OnnxPort", f"output {self.name!r}", rule, f"N x H x W x C of {got}")
        order = [place for axis in places for place in axis]
        moved = pixels.reshape([sizes[place] for place in order])
        wanted = [place for axis in self.axes for place in axis]
        missing = [place for place in order if place not in wanted]  # of length 1
        moved = moved.transpose([order.index(place) for place in (*missing, *wanted)])
        found = moved.reshape([math.prod(sizes[place] for place in axis) for axis in self.axes])
        self._check_given(found)
        return np.ascontiguousarray(found, self.dtype)

    def _check_given(self, found: NDArray[Any]) -> None:
        """Refuse to give whole numbers that are rounded, or beyond their type: images do not wrap around."""
        if np.dtype(self.dtype).kind not in "iu":
            return
        info = np.iinfo(self.dtype)
        low, high = max(int(info.min), 1 - _EXACT), min(int(info.max), _EXACT - 1)
        beyond = ~((found > low - 1) & (found < high + 1))  # a fraction is dropped; NaN is beyond
        if beyond.any():
            rule = f"must hold whole numbers of {self.dtype}, {low:,} to {high:,}: images compute in float32"
            remedy = "Give smaller numbers, or let the model compute with real numbers"
            raise MPSArgumentError("OnnxPort", f"output {self.name!r}", rule, float(found[beyond].flat[0]), remedy)

    def _solved(self, shape: Sequence[int], axes: Sequence[Places]) -> list[int] | None:
        """The atoms' lengths in an array; None if it does not fit."""
        sizes = list(self.sizes)
        if len(shape) != len(axes):
            return None
        for length, axis in zip(shape, axes, strict=True):
            known = math.prod(size for place in axis if (size := sizes[place]) is not None)
            unknown = [place for place in axis if sizes[place] is None]
            if length % known or len(unknown) > 1 or (not unknown and length != known):
                return None
            if unknown:
                sizes[unknown[0]] = length // known
        return [1 if size is None else size for size in sizes]

    # --- files --------------------------------------------------------------------------------------------------------

    def described(self) -> list[Any]:
        """As lists, numbers and text, for an archive."""
        lists = [list(self.shape), list(self.sizes), [list(axis) for axis in self.axes]]
        return [self.name, self.dtype, self.image, *lists, *map(list, (self.channels, self.rows, self.columns))]

    @classmethod
    def restored(cls, given: object, images: int, who: str, what: str) -> OnnxPort:
        """The port that `described` gave, of a graph with so many sources or results."""
        try:
            name, dtype, image, shape, sizes, axes, *places = cast("list[Any]", given)
            port = cls(
                name, dtype, tuple(map(length_name, shape)), image, tuple(sizes), _nested(axes), *_nested(places)
            )
        except (TypeError, ValueError) as error:
            raise _wrong(who, what) from error
        if not port._is_right(images):
            raise _wrong(who, what)
        return port

    def _is_right(self, images: int) -> bool:
        used = [0, *self.channels, *self.rows, *self.columns]
        named = [place for axis in self.axes for place in axis]
        return (
            isinstance(self.name, str)
            and self.dtype in _TYPES
            and _whole(self.image)
            and 0 <= self.image < images
            and len(self.sizes) <= _MOST
            and all(size is None or (_whole(size) and 0 < size < 1 << 40) for size in self.sizes)
            and all(_whole(place) for place in (*used, *named))
            and sorted(used) == list(range(len(self.sizes)))
            and len(set(named)) == len(named)
            and set(named) <= set(used)
            and len(self.axes) <= _MOST
            and all(self.sizes[place] == 1 for place in used if place not in named)
            and len(self.shape) == len(self.axes)
            and all(length is None or isinstance(length, int | str) for length in self.shape)
        )


def _together(image: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """``[N, H, W, C]`` of a type, with the channels of a pixel side by side.

    NumPy copies as many numbers at a time as the last axis has: few channels are faster one by one.
    """
    if image.shape[3] > _FEW_CHANNELS or image.flags.c_contiguous:
        return np.ascontiguousarray(image, dtype)
    result = np.empty(image.shape, dtype)
    for channel in range(image.shape[3]):
        result[..., channel] = image[..., channel]
    return result


def _check_held(array: NDArray[Any], who: str, argument: str) -> None:
    """Refuse what images do not hold: they compute in float32."""
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2:
        if int(array.max()) > _EXACT or int(array.min()) < -_EXACT:
            rule = f"must hold whole numbers up to {_EXACT:,}: images do exactly"
            raise MPSArgumentError(who, argument, rule, max(int(array.max()), int(array.min()), key=abs))
    elif array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            beyond = np.isinf(array.astype(np.float32)) & np.isfinite(array)
        if beyond.any():
            raise MPSArgumentError(who, argument, "must hold numbers that float32 does", float(array[beyond].flat[0]))


def shape_text(shape: Lengths) -> str:
    """A shape in words: ``1x3x?x8``, or ``n x 3 x h x 8`` where lengths have names."""
    between = " x " if any(isinstance(length, str) for length in shape) else "x"
    return between.join("?" if length is None else str(length) for length in shape) or "one number"


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _nested(lists: Any) -> Any:
    if not all(isinstance(each, list) for each in lists):
        raise TypeError("a list is needed")
    return tuple(tuple(each) for each in lists)


def _wrong(who: str, what: str) -> MPSFileError:
    return MPSFileError(who, what, "must say where images have the numbers of an input or output", "something else")
