"""How training goes: loss and accuracy so far, how fast, how long still, and which classes are taken for which."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, described, having
from openmps.core.kinds import listed
from openmps.core.training_state import TrainingState, check_names, finite_number, whole_number
from openmps.errors import MPSArgumentError
from openmps.selectors import name_arguments

_WINDOW = 100


@name_arguments
@dataclass(frozen=True)
class TrainingStatus:
    """One moment of a training run.

    ``epoch`` counts from 1, ``iteration`` (batches since the start of the run) too. ``loss`` is the mean loss of an
    image and ``accuracy`` the fraction classified correctly (0 to 1), both over the epoch so far. ``seconds_left`` is
    ``None`` as long as the speed is unknown; the test values are ``None`` unless the network has just been tested.
    """

    epoch: int
    iteration: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None


@name_arguments
class RunningMetrics(NamedAttributes):
    """Mean loss and accuracy of the epoch, images per second of late, and the time left.

    Speed is measured over the last 100 batches. ``clock`` gives seconds; tests pass their own.
    """

    def __init__(self, total_images: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._total_images = total_images
        self._clock = having("__call__", "must be a function that gives seconds")(type(self).__name__, "clock", clock)
        self._seen = 0
        self._speed = 0.0
        self._marks: deque[tuple[float, int]] = deque(maxlen=_WINDOW + 1)
        self.start_epoch()

    def __repr__(self) -> str:
        return described(self, f"{self._count} images", loss=self.loss, accuracy=self.accuracy)

    def start_epoch(self) -> None:
        """Begin loss and accuracy anew, and time from now, so that the test between two epochs is not counted."""
        self._loss_sum = 0.0
        self._correct = 0
        self._count = 0
        self._marks.clear()
        self._marks.append((self._clock(), self._seen))

    def update(self, loss: float, correct: int, count: int) -> None:
        """Add a batch of ``count`` images with mean ``loss``, ``correct`` of them classified correctly."""
        if count < 1 or not 0 <= correct <= count:
            rule = "must be 1 or more, and correct 0 to count"
            raise MPSArgumentError("RunningMetrics.update", "count", rule, f"count {count}, correct {correct}")
        self._loss_sum += loss * count
        self._correct += correct
        self._count += count
        self._seen += count
        now = self._clock()
        self._marks.append((now, self._seen))
        start, seen = self._marks[0]
        if now > start:
            self._speed = (self._seen - seen) / (now - start)

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps: the sums over the epoch and how many images were seen; not the speed."""
        return {"loss_sum": self._loss_sum, "correct": self._correct, "count": self._count, "seen": self._seen}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on in the middle of an epoch; speed is measured from now on."""
        name = type(self).__name__
        check_names(name, state, set(self.training_state()))
        loss_sum = finite_number(name, state, "loss_sum")
        seen = whole_number(name, state, "seen")
        count = whole_number(name, state, "count", most=seen)
        correct = whole_number(name, state, "correct", most=count)
        self._seen = seen
        self.start_epoch()
        self._loss_sum, self._correct, self._count = loss_sum, correct, count

    @property
    def loss(self) -> float:
        """Mean loss of an image over the epoch so far; NaN before the first batch."""
        return self._loss_sum / self._count if self._count else math.nan

    @property
    def accuracy(self) -> float:
        """Fraction of the epoch's images classified correctly so far; NaN before the first batch."""
        return self._correct / self._count if self._count else math.nan

    images_per_second = Shown[float]("_speed", "Images per second over the last 100 batches; 0 while unknown.")

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest of the images takes at this speed; ``None`` while the speed is unknown."""
        return max(self._total_images - self._seen, 0) / self._speed if self._speed else None

    def status(self, epoch: int, iteration: int) -> TrainingStatus:
        """All of it at this moment."""
        return TrainingStatus(epoch, iteration, self.loss, self.accuracy, self.images_per_second, self.seconds_left)


@name_arguments
class ConfusionCounts(NamedAttributes):
    """How often images of one class (row) were taken for another (column)."""

    class_names: tuple[str, ...]
    counts: NDArray[np.int64]

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = tuple(listed("ConfusionCounts", "class_names", class_names, str, "text"))
        self.counts = np.zeros((len(self.class_names),) * 2, dtype=np.int64)

    def __repr__(self) -> str:
        return described(self, f"{len(self.class_names)} classes", f"{self.total} images", accuracy=self.accuracy)

    def update(self, labels: NDArray[np.integer[Any]], predictions: NDArray[np.integer[Any]]) -> None:
        """Count a batch: true ``labels`` and ``predictions``, both ``[N]`` class indices."""
        who, classes = "ConfusionCounts.update", len(self.class_names)
        if labels.shape != predictions.shape or labels.ndim != 1:
            rule = f"must be one for each label, shape {labels.shape}"
            raise MPSArgumentError(who, "predictions", rule, f"shape {predictions.shape}")
        for argument, values in (("labels", labels), ("predictions", predictions)):
            outside = values[(values < 0) | (values >= classes)]
            if outside.size:
                raise MPSArgumentError(who, argument, f"must be 0 to {classes - 1}", int(outside[0]))
        np.add.at(self.counts, (labels, predictions), 1)

    @property
    def total(self) -> int:
        """Images counted."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Fraction on the diagonal; NaN before the first image."""
        return float(np.trace(self.counts)) / self.total if self.total else math.nan

    @property
    def recall(self) -> NDArray[np.float64]:
        """For each class the fraction of its images that were recognised; NaN for a class without images."""
        return _fraction(np.diagonal(self.counts), self.counts.sum(axis=1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """For each class the fraction right among the images taken for it; NaN where there are none."""
        return _fraction(np.diagonal(self.counts), self.counts.sum(axis=0))

    def most_confused(self, count: int = 10) -> list[tuple[str, str, int]]:
        """The commonest mistakes, (true class, taken for, how often), most frequent first; never those of count 0."""
        mistakes = self.counts - np.diag(np.diagonal(self.counts))
        order = np.argsort(-mistakes, axis=None, kind="stable")[:count]
        rows, columns = np.unravel_index(order, mistakes.shape)
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return [(self.class_names[r], self.class_names[c], int(mistakes[r, c])) for r, c in pairs if mistakes[r, c]]


def _fraction(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    result = np.full(whole.shape, math.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
