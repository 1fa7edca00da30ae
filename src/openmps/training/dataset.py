"""Labelled images in memory, their held-out part, and the order in which an epoch visits them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openmps.checks import flag, number, of_kind
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError, shown, size_text
from openmps.selectors import name_arguments

LastBatch: TypeAlias = Literal["keep", "drop"]
"""What becomes of the images left when the batch size does not divide their number."""

_HOLD_OUT_STREAM = 0
_MOST_IMAGES = 1 << 40
_SHUFFLE_STREAM = 1


@name_arguments
@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their classes.

    ``images`` are uint8 ``[N, H, W, C]``, 0 to 255, channels as in the file (grey 1, red green blue 3); ``labels`` are
    int64 ``[N]``, each an index into ``class_names``. ``skipped`` has one error for each broken file that was left out
    on request.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    name: str
    skipped: tuple[MPSFileError, ...] = ()

    def __post_init__(self) -> None:
        who = f"Dataset {self.name!r}"
        names = listed(who, "class_names", self.class_names, str)
        if len(set(names)) < len(names):
            raise MPSArgumentError(who, "class_names", "must all be different", shown(names))
        object.__setattr__(self, "class_names", tuple(names))
        _check_array(self.images, np.uint8, 4, who, "images", "[N, H, W, C]")
        _check_array(self.labels, np.int64, 1, who, "labels", "[N]")
        if len(self.images) != len(self.labels):
            rule = f"must be one for each of {len(self.images)} images"
            raise MPSArgumentError(who, "labels", rule, len(self.labels))
        if self.images.size == 0:
            raise MPSArgumentError(who, "images", "must hold at least one pixel", f"shape {self.images.shape}")
        outside = self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))]
        if outside.size:
            raise MPSArgumentError(who, "labels", f"must be 0 to {len(self.class_names) - 1}", int(outside[0]))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        count, *shape = self.images.shape
        classes = len(self.class_names)
        return f"Dataset({self.name!r}, {count} images of {size_text(shape)}, {classes} classes)"

    def subset(self, indices: NDArray[np.int64], name: str) -> Dataset:
        """The images at ``indices``, in that order, copied."""
        return Dataset(self.images[indices], self.labels[indices], self.class_names, name)

    def split(self, *, seed: int = 0, fraction: float = 0.2) -> DataSplit:
        """Hold out a part of the images for testing; both parts keep the order of the images.

        Of each class of n images ``round(fraction * n)`` are held out, at least one and at most n - 1 where n is 2 or
        more; a class of one image stays in training. Which ones is a pure function of ``seed``, the class and n: the
        same on every machine, and adding images to one class leaves the others' split as it was. ``skipped`` stays
        with the training part.
        """
        who = f"Dataset {self.name!r}"
        _check_count(seed, 0, who, "seed")
        if not 0 < number(who, "fraction", fraction, is_nan_allowed=True) < 1:
            raise MPSArgumentError(who, "fraction", "must lie between 0 and 1", fraction)
        held_out = np.zeros(len(self), dtype=np.bool_)
        for label in range(len(self.class_names)):
            members = np.flatnonzero(self.labels == label)
            count = min(max(round(fraction * members.size), 1), members.size - 1)
            if count > 0:
                held_out[members[_permutation(members.size, seed, _HOLD_OUT_STREAM, label)[:count]]] = True
        if not held_out.any():
            rule = "must hold two images or more of one class to be split"
            raise MPSArgumentError(who, "images", rule, f"{len(self)} images of {len(self.class_names)} classes")
        training = self.subset(np.flatnonzero(~held_out), f"{self.name}, training part")
        test = self.subset(np.flatnonzero(held_out), f"{self.name}, held-out part")
        return DataSplit(replace(training, skipped=self.skipped), test)


@name_arguments
class DataSplit(NamedTuple):
    """What a network learns from, and what it is tested with."""

    training: Dataset
    test: Dataset


@name_arguments
@dataclass(frozen=True, eq=False)
class Batch:
    """Some images of a data set: ``images`` uint8 ``[B, H, W, C]``, ``labels`` int64 ``[B]``, their ``indices``."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]


def epoch_order(count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch visits ``count`` images: a permutation that depends on ``seed`` and ``epoch`` alone.

    It is the same on every machine and with every version of NumPy, so that a resumed run goes on as if it had never
    stopped: the images are ordered by 64-bit numbers straight from a Philox generator, whose stream NumPy guarantees.
    """
    who = "epoch_order"
    _check_count(count, 0, who, "count")
    if count > _MOST_IMAGES:
        raise MPSArgumentError(who, "count", f"must be at most {_MOST_IMAGES:,}", count)
    _check_count(seed, 0, who, "seed")
    _check_count(epoch, 0, who, "epoch")
    return _permutation(count, seed, _SHUFFLE_STREAM, epoch)


def batches_per_epoch(count: int, batch_size: int, *, last_batch: LastBatch) -> int:
    """How many batches ``count`` images make; the last one may be smaller (``"keep"``) or be left out (``"drop"``).

    Raises ``MPSArgumentError`` where dropping leaves none.
    """
    who = "iterate_batches"
    _check_count(count, 0, who, "count")
    _check_count(batch_size, 1, who, "batch_size")
    if last_batch not in ("keep", "drop"):
        raise MPSArgumentError(who, "last_batch", "must be 'keep' or 'drop'", shown(last_batch))
    if last_batch == "keep":
        return -(-count // batch_size)
    if count < batch_size:
        rule = f"must be at most the {count} images of the data set when the last, smaller batch is dropped"
        raise MPSArgumentError(who, "batch_size", rule, batch_size, "Use a smaller batch or last_batch='keep'.")
    return count // batch_size


def iterate_batches(
    dataset: Dataset,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    last_batch: LastBatch,
    shuffle: bool = True,
    first_batch: int = 0,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """The batches of one epoch, in an order that is a pure function of ``seed`` and ``epoch`` (:func:`epoch_order`).

    ``last_batch`` says what becomes of the images left over when ``batch_size`` does not divide their number:
    ``"keep"`` gives them as a smaller batch, ``"drop"`` leaves them out of this epoch (another order leaves out
    others). ``shuffle=False`` keeps the data set's order, for testing. ``first_batch`` starts there: the rest of the
    epoch is what it would have been. ``share`` ``(i, n)`` gives the i-th of n equal parts of each batch, counted from
    0, where n processes share it: together they read the batches that one would. Arguments are checked by the call,
    not by the first batch.
    """
    of_kind("iterate_batches", "dataset", dataset, Dataset)
    total = batches_per_epoch(len(dataset), batch_size, last_batch=last_batch)
    _check_count(first_batch, 0, "iterate_batches", "first_batch")
    shuffle = flag("iterate_batches", "shuffle", shuffle)
    part, parts = _share(share, batch_size, last_batch)
    size = batch_size // parts
    order = epoch_order(len(dataset), seed=seed, epoch=epoch) if shuffle else np.arange(len(dataset), dtype=np.int64)

    def batches() -> Iterator[Batch]:
        for index in range(first_batch, total):
            first = index * batch_size + part * size
            chosen = order[first : first + size]
            yield Batch(dataset.images[chosen], dataset.labels[chosen], chosen)

    return batches()


def _share(share: tuple[int, int], batch_size: int, last_batch: LastBatch) -> tuple[int, int]:
    who = "iterate_batches"
    given = listed(who, "share", share, int)
    if len(given) != 2:
        raise MPSArgumentError(who, "share", "must be two whole numbers, (i, n)", tuple(given))
    part, parts = given
    _check_count(parts, 1, who, "share")
    _check_count(part, 0, who, "share")
    if part >= parts:
        raise MPSArgumentError(who, "share", f"must be one of 0 to {parts - 1}, of {parts}", part)
    if batch_size % parts:
        raise MPSArgumentError(who, "batch_size", f"must be a multiple of the {parts} shares", batch_size)
    if parts > 1 and last_batch != "drop":
        rule = "must be 'drop' where a batch is shared: a smaller one has no equal parts"
        raise MPSArgumentError(who, "last_batch", rule, shown(last_batch))
    return part, parts


def _permutation(count: int, seed: int, stream: int, position: int) -> NDArray[np.int64]:
    generator = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream, position)))
    return np.argsort(generator.random_raw(count), kind="stable").astype(np.int64, copy=False)


def _check_count(value: object, least: int, who: str, argument: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise MPSTypeError(who, argument, "must be a whole number", type(value).__name__)
    if value < least:
        raise MPSArgumentError(who, argument, f"must be {least} or more", value)


def _check_array(array: object, dtype: type[np.generic], axes: int, who: str, argument: str, shape: str) -> None:
    if not isinstance(array, np.ndarray):
        raise MPSTypeError(who, argument, "must be a NumPy array", type(array).__name__)
    found: NDArray[Any] = array
    if found.dtype != dtype:
        raise MPSTypeError(who, argument, f"must be {dtype.__name__}", found.dtype)
    if found.ndim != axes:
        raise MPSArgumentError(who, argument, f"must be {shape}", f"shape {found.shape}")
