"""A fact: what was asked of a Mac, what it answered, and how to ask openmps the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import openmps as mps
from encoding import Bench, finish

DEVICE = mps.mtl_device("cpu")


class Fact(NamedTuple):
    """One of them."""

    name: str
    says: str
    grade: str
    """How well the Mac's answer is known; see the package."""
    answer: Any
    """The Mac's, as far as it is printed; a prefix of longer results."""
    ask: Callable[[], Any]
    """The same of openmps."""
    tolerance: float = 0.0
    """Relative: the digits that are printed, or what the source allows; 0 for equal numbers and objects."""
    switch: Mapping[str, str] | None = None
    """The conventions that make it hold, where the default keeps to the documentation instead."""


def image(values: Any, *, width: int | None = None, label: str | None = None) -> mps.MPSImage:
    """A Float32 image: of one channel from numbers in rows of ``width``, or ``[height, width, channels]``."""
    array = np.asarray(values, np.float32)
    if array.ndim != 3:
        side = width or round(array.size**0.5)
        array = array.reshape(-1, side, 1)
    made = mps.MPSImage.from_numpy(DEVICE, array)
    made.label = label
    return made


def encoded(kernel: Any, *sources: mps.MPSImage, width: int | None = None, height: int | None = None) -> np.ndarray:
    """What a kernel writes into a given image, as large as its first source unless said: all numbers in a row."""
    first = sources[0]
    size = width or first.width, height or first.height
    form = mps.MPSImageFeatureChannelFormat.FLOAT32
    destination = mps.MPSImage(DEVICE, mps.MPSImageDescriptor(form, *size, first.feature_channels))
    command_buffer = Bench(DEVICE).command_buffer()
    kernel.encode(command_buffer, *sources, destination_image=destination)
    finish(command_buffer)
    return destination.numpy().reshape(-1)


def set_up(kernel: Any, **properties: Any) -> Any:
    """A kernel with some properties set."""
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def agrees(found: Any, answer: Any, tolerance: float) -> bool:
    """Whether what openmps says is what the Mac says."""
    if found is None:
        return answer is None
    if isinstance(answer, np.ndarray) or (isinstance(answer, Sequence) and tolerance):
        expected = np.asarray(answer)
        got = np.asarray(found).reshape(-1)[: expected.size].reshape(expected.shape)
        if tolerance:
            return bool(np.allclose(got, expected, rtol=tolerance, atol=0.0))
        return got.dtype.kind == expected.dtype.kind and np.array_equal(got, expected)
    if isinstance(answer, float) and tolerance:
        return abs(found - answer) <= tolerance * abs(answer)
    return type(found) is type(answer) and found == answer


def or_none(ask: Callable[[], Any]) -> Any:
    """The answer, or None where it is refused."""
    try:
        return ask()
    except mps.MPSArgumentError:
        return None


def row(*numbers: float) -> np.ndarray:
    """Numbers of float32."""
    return np.array(numbers, np.float32)
