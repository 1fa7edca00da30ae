"""What networks are measured at: the same bytes, classes and sizes for every contender."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Work:
    """A network and the size of its batches."""

    network: str
    batch: int
    side: int
    channels: int = 3
    classes: int = 1000
    half: bool = False
    """Images stored as float16, or autocast to it by peers; else float32 everywhere."""
    reads_bytes: bool = False
    """Whether our graph reads the bytes as they come, and not float16 images that are made of them first."""
    optimizer: str = "sgd"
    """``adam``, or ``sgd`` with momentum 0.9."""
    width: int = 16
    """Filters of Tiny-YOLO's first convolution."""
    moments: bool | None = None
    """Ends of blocks by second moments, in training, if not as they come; peers have no such switch."""
    images: int = 0
    """Images in the data set; two batches unless said."""

    @property
    def numpy_dtype(self) -> type:
        """Of the images of inference."""
        return np.float16 if self.half else np.float32


def data_set(work: Work) -> tuple[Array, Array]:
    """Bytes [N, H, W, C] and classes; their contents make no difference to the time."""
    generator, count = np.random.default_rng(0), work.images or 2 * work.batch
    images = generator.integers(0, 256, (count, work.side, work.side, work.channels), np.uint8)
    return images, generator.integers(0, work.classes, count)


_LARGE, _THREADS, _DRAWN = 1 << 20, 8, 256


def batches(work: Work) -> Iterator[tuple[Array, Array]]:
    """Batches picked at random, without end. Large images are good until the next ones but one are picked.

    New memory for these would have the system clear pages, and one thread would copy them for as long as a step takes.
    """
    images, classes = data_set(work)
    generator = np.random.default_rng(1)
    is_large = images[0].nbytes * work.batch > _LARGE
    places = cycle([np.zeros((work.batch, *images.shape[1:]), images.dtype) for _ in range(2)] if is_large else [None])
    with ThreadPoolExecutor(_THREADS) as threads:
        # Drawn for many batches at a time: a draw costs as much as a launch.
        drawn = (each for _ in repeat(None) for each in generator.integers(0, len(images), (_DRAWN, work.batch)))
        for place, picked in zip(places, drawn, strict=False):
            if place is None:
                yield images.take(picked, axis=0), classes.take(picked)
                continue
            parts = zip(np.array_split(picked, _THREADS), np.array_split(place, _THREADS), strict=True)
            list(threads.map(lambda part: np.take(images, part[0], axis=0, out=part[1], mode="clip"), parts))
            yield place, classes[picked]


def pictures(work: Work) -> Array:
    """One batch of images from 0 to 1, [N, H, W, C]."""
    return np.random.default_rng(2).random((work.batch, work.side, work.side, work.channels), np.float32)
