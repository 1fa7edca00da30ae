"""The training loop: two command buffers in flight, a test after each epoch, and a run folder that is always usable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSError, MPSNonFiniteError
from openmps.training.dataset import DataSplit, iterate_batches
from openmps.training.inference import Classifier, Evaluation, describe_network
from openmps.training.interrupt import DeferredInterrupt
from openmps.training.metrics import RunningMetrics, TrainingStatus
from openmps.training.network import NetworkShape, OptimizerName, SampleNetwork, optimizer_factory
from openmps.training.pictures import draw_curve, draw_misclassified
from openmps.training.run_folder import RunFolder
from openmps.training.stepper import TrainingStepper
from openmps.types import MPSImageFeatureChannelFormat

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

_LOG_INTERVAL = 10  # iterations that one line of the metrics sums up


@dataclass(frozen=True)
class TrainingOptions:
    """How a network is trained. ``channel_format`` is how intermediate images are stored; weights are float32.

    ``decay`` is the last part of the training, 0 to 1, over which the learning rate falls to 0 in a straight line.
    """

    epochs: int
    batch_size: int = 40
    learning_rate: float = 1e-3
    decay: float = 0.3
    optimizer: OptimizerName = "adam"
    channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MPSArgumentError(type(self).__name__, name, f"must be a whole number from {least} on", value)
        if not 0 <= self.decay <= 1:
            raise MPSArgumentError(type(self).__name__, "decay", "must be 0 to 1", self.decay)
        formats = (MPSImageFeatureChannelFormat.FLOAT16, MPSImageFeatureChannelFormat.FLOAT32)
        if self.channel_format not in formats:
            rule = "must be FLOAT16 or FLOAT32"
            raise MPSArgumentError(type(self).__name__, "channel_format", rule, self.channel_format)
        optimizer_factory(self.optimizer, self.learning_rate)

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when the fraction ``progress`` of all batches is behind."""
        left = 1 - progress
        return self.learning_rate if left >= self.decay else self.learning_rate * left / self.decay

    def describe(self) -> dict[str, object]:
        """The options as a run's description holds them."""
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "decay": self.decay,
            "optimizer": self.optimizer,
            "format": self.channel_format.name.lower(),
            "seed": self.seed,
        }


class TrainingObserver(Protocol):
    """Hears how training goes; `TrainingProgress` is one."""

    def update(self, status: TrainingStatus) -> None:
        """Called after each batch."""
        ...

    def finish_epoch(self, status: TrainingStatus) -> None:
        """Called after the test at the end of each epoch."""
        ...


@dataclass(frozen=True)
class TrainingResult:
    """How training ended: the last test, None if there was none; ``notes`` say what could not be drawn."""

    evaluation: Evaluation | None
    iterations: int
    seconds: float
    interrupted: bool
    notes: tuple[str, ...] = ()


def describe_run(data: DataSplit, options: TrainingOptions, /, **more: object) -> dict[str, object]:
    """The description for `RunFolder.create` of a run that `train` is to fill; refuses what `train` would refuse."""
    _check_batch_size(data, options)
    names = data.training.class_names
    network = describe_network(NetworkShape.of(data.training.images, len(names)), names)
    return {**network, "options": options.describe(), **more}


def train(
    data: DataSplit,
    run: RunFolder,
    options: TrainingOptions,
    device: MTLDevice,
    observer: TrainingObserver | None = None,
) -> TrainingResult:
    """Train a sample network on ``data.training``, test it on ``data.test`` after each epoch, and fill ``run``.

    The run gets the weights (before the first batch, after each epoch and at the end), the metrics, the curve and a
    sheet of misclassified test images. The images left over when the batch size does not divide their number sit out
    the epoch; each epoch shuffles anew. On one device the same data and options give the same weights, on the CPU bit
    for bit.

    Ctrl-C ends training between two batches: the weights so far are saved and ``interrupted`` is set. A second one is
    a ``KeyboardInterrupt``. Raises ``MPSNonFiniteError`` when a loss or a weight is NaN or infinite, naming the first
    kernel, image and channel; the run keeps the weights saved last.
    """
    with DeferredInterrupt() as interrupt:
        session = _Session(data, run, options, device, observer)
        try:
            session.run(interrupt.check)
        except KeyboardInterrupt:
            session.stop()
            return session.result(interrupted=True)
        except MPSError as error:
            session.fail(error)
            raise
        return session.result(interrupted=False)


class _Session:
    """One run of the loop."""

    def __init__(
        self,
        data: DataSplit,
        run: RunFolder,
        options: TrainingOptions,
        device: MTLDevice,
        observer: TrainingObserver | None,
    ) -> None:
        _check_batch_size(data, options)
        names = data.training.class_names
        shape = NetworkShape.of(data.training.images, len(names))
        optimizer = optimizer_factory(options.optimizer, options.learning_rate)
        self._data, self._run, self._options, self._observer = data, run, options, observer
        self._network = SampleNetwork.create(shape, seed=options.seed, optimizer=optimizer)
        self._stepper = TrainingStepper(
            self._network,
            device,
            options.channel_format,
            batch_size=options.batch_size,
            dropout_seed=options.seed,
        )
        self._classifier = Classifier(self._network, device, names, options.channel_format)
        self._batches = len(data.training) // options.batch_size * options.epochs
        self._metrics = RunningMetrics(self._batches * options.batch_size)
        self._recent: list[tuple[float, int]] = []
        self._epoch = self._begun = self._iteration = 0
        self._evaluation: Evaluation | None = None
        self._began = time.perf_counter()
        self._notes: list[str] = []

    def run(self, check: Callable[[], None]) -> None:
        """Train and test; ``check`` is called wherever it is safe to stop."""
        self._save()
        for epoch in range(1, self._options.epochs + 1):
            self._epoch = epoch
            self._train_epoch(check)
            self._save()
            self._classifier.reload()
            self._evaluation = self._classifier.evaluate(self._data.test, between_batches=check)
            self._finish_epoch(self._evaluation)
        self._draw()

    def stop(self) -> None:
        """Save what training has come to so far."""
        self._settle()
        self._save()
        self._run.log({"event": "interrupted", "epoch": self._epoch, "iteration": self._iteration})
        self._draw()

    def fail(self, error: MPSError) -> None:
        """Note why training broke off; the weights stay those that were saved last."""
        self._stepper.wait()
        event = {"event": "failed", "epoch": self._epoch, "iteration": self._iteration, "error": str(error)}
        self._run.log(event)
        self._draw()

    def result(self, *, interrupted: bool) -> TrainingResult:
        """How it ended."""
        seconds = time.perf_counter() - self._began
        return TrainingResult(self._evaluation, self._iteration, seconds, interrupted, tuple(self._notes))

    def _train_epoch(self, check: Callable[[], None]) -> None:
        options = self._options
        self._metrics.start_epoch()
        for batch in iterate_batches(
            self._data.training, options.batch_size, seed=options.seed, epoch=self._epoch, last_batch="drop"
        ):
            check()
            self._network.set_learning_rate(options.learning_rate_at(self._begun / self._batches))
            self._stepper.step(self._stepper.prepare(batch))
            self._begun += 1
            self._collect()
        self._settle()

    def _settle(self) -> None:
        self._stepper.wait()
        self._collect()

    def _collect(self) -> None:
        for loss, correct in self._stepper.collect():
            self._iteration += 1
            self._metrics.update(loss, correct, self._options.batch_size)
            self._recent.append((loss, correct))
            if len(self._recent) == _LOG_INTERVAL:
                self._log_recent()
            if self._observer is not None:
                self._observer.update(self._metrics.status(self._epoch, self._iteration))

    def _log_recent(self) -> None:
        losses, correct = zip(*self._recent, strict=True)
        images = len(self._recent) * self._options.batch_size
        self._recent.clear()
        self._log(loss=sum(losses) / len(losses), accuracy=sum(correct) / images)

    def _finish_epoch(self, evaluation: Evaluation) -> None:
        status = self._metrics.status(self._epoch, self._iteration)
        self._log(
            epoch_loss=status.loss,
            epoch_accuracy=status.accuracy,
            test_loss=evaluation.loss,
            test_accuracy=evaluation.accuracy,
        )
        if self._observer is not None:
            tested = replace(status, test_loss=evaluation.loss, test_accuracy=evaluation.accuracy)
            self._observer.finish_epoch(tested)

    def _log(self, **figures: float) -> None:
        speed, seconds = self._metrics.images_per_second, time.perf_counter() - self._began
        place = {"epoch": self._epoch, "iteration": self._iteration}
        self._run.log({**place, **figures, "images_per_second": round(speed, 1), "seconds": round(seconds, 3)})

    def _save(self) -> None:
        arrays = self._network.arrays()
        _check_finite(arrays)
        self._run.save_weights(arrays)

    def _draw(self) -> None:
        """The pictures; a note in place of one that cannot be drawn, because the training itself is worth keeping."""
        test, run = self._data.test, self._run
        try:
            draw_curve(run.curve_path, run.read_metrics(), title=run.path.name)
            if self._evaluation is not None:
                predictions, names = self._evaluation.predictions, self._classifier.class_names
                draw_misclassified(run.misclassified_path, test.images, test.labels, predictions, names)
        except MPSError as error:
            self._notes.append(f"pictures are missing: {error}")


def _check_batch_size(data: DataSplit, options: TrainingOptions) -> None:
    count = len(data.training)
    if options.batch_size > count:
        rule = f"must be at most the {count} images that there are to train with"
        raise MPSArgumentError("TrainingOptions", "batch_size", rule, options.batch_size, f"Use {count} or less")


def _check_finite(arrays: Mapping[str, NDArray[np.float32]]) -> None:
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(values))[0]]
            got = f"{values[tuple(place)]} at {place}"
            remedy = "An update made it so: lower the learning rate"
            raise MPSNonFiniteError(f"layer {name.partition('.')[0]!r}", name, "must be finite", got, remedy)
