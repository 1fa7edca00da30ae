"""One run of the training loop: two command buffers in flight, a test after each epoch, and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from openmps.core.training_state import Checkpointed, TrainingState, check_names, finite_number, numbers, whole_number
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSNonFiniteError, MPSTrainingWarning, warn_user
from openmps.formats.paths import is_folder
from openmps.metal.device import MTLDevice
from openmps.selectors import name_arguments
from openmps.training.best_epoch import BestEpoch
from openmps.training.callbacks import Callbacks, EpochReport, read_only
from openmps.training.checkpoint import Checkpoint
from openmps.training.dataset import DataSplit, epoch_order, iterate_batches
from openmps.training.event_files import EventFiles
from openmps.training.inference import Classifier, Evaluation
from openmps.training.interrupt import DeferredInterrupt, SafeInterrupt
from openmps.training.metrics import RunningMetrics, TrainingStatus
from openmps.training.network import Network, NetworkShape
from openmps.training.options import TrainingOptions, check_shares
from openmps.training.pictures import draw_curve, draw_misclassified
from openmps.training.processes import TrainingProcesses, share_of
from openmps.training.run_description import check_same_training, describe_training, flat, machine_differences
from openmps.training.run_folder import RunFolder
from openmps.training.stepper import IN_FLIGHT, TrainingStepper

_LOG_INTERVAL = 10  # iterations that one line of the metrics sums up
_LARGEST_LOSS = 1e9  # float32 numbers of that size are 64 apart: every probability is 0 or 1
# Where no number of steps is given, checkpoints take a fiftieth of the time, and are ten seconds apart at least.
_CHECKPOINT_SHARE = 0.02
_CHECKPOINT_SECONDS = 10
_NUMBERS = ("weights", "biases", "gamma", "beta", "mean", "variance")


class TrainingObserver(Protocol):
    """Hears how training goes; `TrainingProgress` is one."""

    def update(self, status: TrainingStatus) -> None:
        """Called after each batch."""
        ...

    def finish_epoch(self, status: TrainingStatus) -> None:
        """Called after the test at the end of each epoch."""
        ...


@name_arguments
@dataclass(frozen=True)
class TrainingResult:
    """How training ended: the last test, None if there was none; ``notes`` say what could not be drawn.

    ``iterations`` and ``seconds`` are those of the whole run; ``resumed_from`` is the iteration at which `resume` went
    on, None if this was the beginning. ``epochs`` are those that were finished. ``best_epoch`` is the one with the best
    test, None unless patience or keeping the best one asked for it; ``evaluation`` is then of the weights that the run
    keeps.
    """

    evaluation: Evaluation | None
    iterations: int
    seconds: float
    interrupted: bool
    notes: tuple[str, ...] = ()
    resumed_from: int | None = None
    epochs: int = 0
    best_epoch: int | None = None


class Session:
    """One run of the loop, or the part of it that is left."""

    def __init__(
        self,
        data: DataSplit,
        run: RunFolder,
        options: TrainingOptions,
        device: MTLDevice,
        observer: TrainingObserver | None,
        processes: TrainingProcesses | None = None,
        *,
        shards: bool = False,
        callbacks: Callbacks,
    ) -> None:
        self._callbacks = callbacks
        self._about = describe_training(data, options, device, processes=processes)
        self._processes = processes
        self._leads = processes is None or processes.rank == 0
        self._shards = shards and processes is not None
        self._saves = self._leads or self._shards  # whether checkpoints need this process
        check_shares(options, share_of(options.batch_size, processes, options.accumulate), shards=self._shards)
        if processes is not None:
            same = {name: each for name, each in self._about.items() if name != "machine"}
            processes.check_alike("data and options", flat(same), "Give all processes the same images and options")
        names = data.training.class_names
        shape = NetworkShape.of(data.training.images, len(names), options.network)
        self._data, self._run, self._options, self._observer = data, run, options, observer
        self._network = Network.create(shape, seed=options.seed, optimizer=options.optimizer_factory())
        self._stepper = self._new_stepper(device)
        self._classify = partial(
            Classifier,
            device=device,
            class_names=names,
            channel_format=options.channel_format,
            preprocessing=options.augments.preprocessing(shape.channels),
        )
        self._tested_network = self._network
        if options.average is not None:
            self._network.keep_averages(options.average)
            more = {"optimizer": options.optimizer_factory()}
            self._tested_network = Network.from_arrays(shape, self._network.arrays(), **more)
        self._classifier = self._classify(self._tested_network)
        self._keeps_best = options.keep == "best"
        self._best = BestEpoch(shape.arrays() if self._keeps_best else None)
        self._epoch_batches = len(data.training) // options.batch_size
        self._batches = self._epoch_batches * options.epochs
        self._metrics = RunningMetrics(self._batches * options.batch_size)
        self._recent: list[tuple[float, int]] = []
        self._epoch, self._batch = 1, 0  # where the next batch stands, both as they are recorded
        self._iteration = 0  # batches that are done
        self._launched = 0  # by this process
        self._resumed_from: int | None = None
        self._evaluation: Evaluation | None = None
        self._began = self._saved = time.perf_counter()
        self._save_seconds = 0.0  # what the last checkpoint took
        self._notes: list[str] = []
        self._events: EventFiles | None = None

    def _new_stepper(self, device: MTLDevice) -> TrainingStepper:
        return TrainingStepper(
            self._network,
            device,
            self._options.channel_format,
            batch_size=self._options.batch_size,
            dropout_seed=self._options.seed,
            processes=self._processes,
            synchronizes_statistics=self._options.synchronizes_statistics,
            shards_optimizer_state=self._shards,
            norm_limit=self._options.clip_norm,
            parts=self._options.accumulate,
            augmentation=self._options.augments,
        )

    def has_events(self) -> bool:
        """Whether the run has event files, and this process writes them."""
        return self._leads and is_folder(self._run.events_path, "RunFolder")

    def finish(self, interrupt: DeferredInterrupt, *, tensorboard: bool) -> TrainingResult:
        """Train to the end, or until Ctrl-C."""
        try:
            if tensorboard and self._leads:
                self._begin_events()
            self._run_epochs(interrupt)
            is_stopped = False
        except SafeInterrupt:
            self._stop()
            is_stopped = True
        except BaseException as error:
            if self._processes is not None:
                self._processes.say_why(error)
            if isinstance(error, MPSError):
                self._fail(error)
            raise
        finally:
            if self._events is not None:
                self._events.close()
        self._callbacks.raise_fault(self._iteration)
        return self._result(interrupted=is_stopped)

    def _run_epochs(self, interrupt: DeferredInterrupt) -> None:
        """Train and test; an interrupt is heard wherever it is safe to stop."""
        check = interrupt.check
        if self._iteration == 0:
            if self._resumed_from is None:
                self._drop_failed_starts()
            self._save()
            self._checkpoint()
        if self._is_over():
            self._evaluate(check)
        while not self._is_over():
            self._train_epoch(interrupt)
            self._check_loss()
            self._save(keeps=not self._keeps_best)
            self._finish_epoch(self._evaluate(check))
            self._epoch, self._batch = self._epoch + 1, 0
            if self._is_over():
                self._checkpoint()
        if self._keeps_best:
            self._evaluation = self._evaluation_of_best(check)
        self._draw()

    def _is_over(self) -> bool:
        """Whether no epoch is left, or the best one lies so far behind that there is to be none."""
        patience, behind = self._options.patience, self._epoch - 1 - self._best.epoch
        return self._epoch > self._options.epochs or (patience is not None and behind >= patience)

    def _evaluation_of_best(self, check: Callable[[], None]) -> Evaluation:
        """The test of the weights that are kept; again where they come out of a checkpoint."""
        if self._best.evaluation is None:
            classifier = self._classify(Network.from_arrays(self._network.shape, self._best.arrays))
            self._best.evaluation = self._tested(classifier, check)
        return self._best.evaluation

    def _drop_failed_starts(self) -> None:
        """Begin the metrics anew where all that they tell is how starts have failed before the first batch."""
        if all(line.get("iteration") == 0 for line in self._run.read_metrics()):
            self._run.cut_metrics(0)

    def _check_loss(self) -> None:
        """Raise where training has diverged, before its weights take the place of the last good ones."""
        loss = self._metrics.loss
        if loss > _LARGEST_LOSS:
            rule = f"must be below {_LARGEST_LOSS:g}, where float32 still tells classes apart"
            got = f"{loss:.3g} in epoch {self._epoch}"
            raise MPSNonFiniteError("train", "loss", rule, got, "Training diverges: lower the learning rate")

    def _arrays(self) -> dict[str, NDArray[np.float32]]:
        """The numbers that are tested and kept: as they are now, or their averages."""
        return self._network.arrays() if self._options.average is None else self._network.averages()

    def _evaluate(self, check: Callable[[], None]) -> Evaluation:
        if self._tested_network is not self._network:
            self._tested_network.take(self._arrays())
        self._classifier.reload()
        self._evaluation = self._tested(self._classifier, check)
        return self._evaluation

    def _tested(self, classifier: Classifier, check: Callable[[], None]) -> Evaluation:
        shared = {} if self._processes is None else {"processes": self._processes}
        return classifier.evaluate(self._data.test, between_batches=check, **shared)

    def _stop(self) -> None:
        """Save what training has come to so far."""
        self._collect_all()
        self._save(keeps=not self._best.arrays)
        self._evaluation = self._best.evaluation if self._best.arrays else self._evaluation
        self._checkpoint()
        fault = self._callbacks.fault
        event = {"event": "interrupted"} if fault is None else {"event": "failed", "error": f"a callback: {fault!r}"}
        self._run.log({**event, "epoch": self._epoch, "iteration": self._iteration})
        self._draw()

    def _fail(self, error: MPSError) -> None:
        """Note why training broke off; the weights stay those that were saved last."""
        if self._processes is None:  # else what is under way may wait for others
            self._stepper.wait()
        event = {"event": "failed", "epoch": self._epoch, "iteration": self._iteration, "error": str(error)}
        with suppress(MPSFileError):  # on a full disk: the error itself says more
            self._run.log(event)
        self._draw()

    def _result(self, *, interrupted: bool) -> TrainingResult:
        """How it ended."""
        seconds = time.perf_counter() - self._began
        notes = tuple(self._notes)
        resumed, epochs, best = self._resumed_from, self._epoch - 1, self._best_epoch
        return TrainingResult(self._evaluation, self._iteration, seconds, interrupted, notes, resumed, epochs, best)

    def _check_interrupt(self, interrupt: DeferredInterrupt) -> None:
        """Stop between two steps: processes that train together before the same one, as all have heard by then."""
        if self._processes is None:
            interrupt.check()
            if self._callbacks.is_to_stop:
                raise SafeInterrupt
        elif self._stepper.stops_at is not None and self._launched > self._stepper.stops_at + IN_FLIGHT:
            raise SafeInterrupt

    def _train_epoch(self, interrupt: DeferredInterrupt) -> None:
        options, processes = self._options, self._processes
        share = (0, 1) if processes is None else (processes.rank, processes.count)
        if self._batch == 0:
            self._metrics.start_epoch()
        images = len(self._data.training)
        self._stepper.begin_epoch(self._epoch, epoch_order(images, seed=options.seed, epoch=self._epoch))
        own = options.batch_size // share[1]
        for batch in iterate_batches(
            self._data.training,
            options.batch_size,
            seed=options.seed,
            epoch=self._epoch,
            last_batch="drop",
            first_batch=self._batch,
            share=share,
        ):
            self._check_interrupt(interrupt)
            begun = (self._epoch - 1) * self._epoch_batches + self._batch
            self._network.set_learning_rate(options.learning_rate_at(begun, self._batches))
            is_to_save = self._shards and self._is_time_to_save()
            prepared = self._stepper.prepare(batch, self._batch * options.batch_size + share[0] * own)
            is_to_stop = interrupt.is_noted or self._callbacks.is_to_stop
            self._stepper.step(prepared, is_to_stop=is_to_stop, is_to_save=is_to_save)
            self._launched += 1
            self._batch += 1
            self._collect()
            if self._is_checkpoint_due(begun + 1):
                self._collect_all()
                self._checkpoint()
        self._collect_all()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Take over everything that a checkpoint holds, and drop the metrics of the steps behind it."""
        file = "checkpoint" if checkpoint.path is None else str(checkpoint.path)
        check_same_training(self._about, checkpoint.about, file)
        changed = machine_differences(self._about, checkpoint.about)
        if changed:
            message = f"{file} was written elsewhere ({'; '.join(changed)}): the last bits of the numbers may differ"
            warn_user(message, MPSTrainingWarning)
        self._iteration = self._resumed_from = checkpoint.step
        checkpoint.restore(self._parts())
        self._stepper.reload()
        if self._best.arrays:  # the run may have those of an epoch that is yet to come
            self._run.save_weights(self._best.arrays)

    def training_state(self) -> TrainingState:
        """The place in the data, the time, how far the metrics go, and what waits for their next line."""
        recent = np.array(self._recent, np.float64).reshape(-1, 2)
        metrics, seconds = self._run.flush_metrics(), time.perf_counter() - self._began
        place = {"epoch": self._epoch, "batch": self._batch}
        return {**place, "seconds": seconds, "metrics_bytes": metrics, "recent": recent}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on at a place in the data, and cut the metrics to what they were."""
        who = "the training loop"
        check_names(who, state, {"epoch", "batch", "seconds", "metrics_bytes", "recent"})
        epoch = whole_number(who, state, "epoch", most=self._options.epochs + 1)
        batch = whole_number(who, state, "batch", most=self._epoch_batches if epoch <= self._options.epochs else 0)
        recent = numbers(who, state, "recent", (None, 2), np.float64)
        if epoch < 1 or (epoch - 1) * self._epoch_batches + batch != self._iteration:
            got = f"epoch {epoch}, batch {batch}"
            raise MPSArgumentError(who, "state 'epoch'", f"must be where step {self._iteration} is", got)
        if len(recent) >= _LOG_INTERVAL or not ((recent[:, 1] >= 0) & (recent[:, 1] <= self._options.batch_size)).all():
            rule = f"must be fewer than {_LOG_INTERVAL} steps, with 0 to {self._options.batch_size} correct images each"
            raise MPSArgumentError(who, "state 'recent'", rule, recent.tolist())
        seconds = finite_number(who, state, "seconds")
        self._run.cut_metrics(whole_number(who, state, "metrics_bytes"))
        self._epoch, self._batch = epoch, batch
        self._recent = [(loss, int(correct)) for loss, correct in recent.tolist()]
        self._began = time.perf_counter() - seconds

    def _parts(self) -> dict[str, Checkpointed]:
        """What a checkpoint keeps; the loop comes last, because restoring it changes a file."""
        best = {"best epoch": self._best} if self._options.compares_epochs else {}
        return {**self._stepper.parts(), **best, "epoch metrics": self._metrics, "training loop": self}

    def _is_checkpoint_due(self, steps: int) -> bool:
        """Whether to write one after so many steps. When it is written changes nothing in what is computed."""
        every = self._options.checkpoint_every
        if every is not None:
            return self._saves and steps % every == 0
        if self._shards:  # all see in the figures of a step that the first one wants it, and give their shares
            said = self._stepper.saves_at
            return said is not None and self._launched > said + IN_FLIGHT
        return self._is_time_to_save()

    def _is_time_to_save(self) -> bool:
        """Whether this process writes checkpoints, and the last one is long ago."""
        pause = max(self._save_seconds / _CHECKPOINT_SHARE, _CHECKPOINT_SECONDS)
        return self._leads and time.perf_counter() - self._saved >= pause

    def _checkpoint(self) -> None:
        """Write a checkpoint; no step is under way."""
        if not self._saves:
            return
        began = time.perf_counter()
        self._stepper.saves_at = None
        checkpoint = Checkpoint.of(self._iteration, self._parts(), self._about)
        if not self._leads:
            return
        for label, state in checkpoint.parts.items():
            found = {f"{label}.{name}": state[name] for name in _NUMBERS if name in state}
            _check_finite(found, self._iteration)
        self._run.checkpoints.save(checkpoint, keep=self._options.checkpoints_kept)
        self._saved = time.perf_counter()
        self._save_seconds = self._saved - began

    # --- figures ------------------------------------------------------------------------------------------------------

    def _collect_all(self) -> None:
        self._stepper.wait()
        self._collect()

    def _collect(self) -> None:
        for loss, correct in self._stepper.collect():
            self._iteration += 1
            self._metrics.update(loss, correct, self._options.batch_size)
            self._recent.append((loss, correct))
            if len(self._recent) == _LOG_INTERVAL:
                self._log_recent()
            status = partial(self._metrics.status, self._epoch, self._iteration)
            if self._observer is not None:
                self._observer.update(status())
            self._callbacks.finish_step(status)

    def _log_recent(self) -> None:
        losses, correct = zip(*self._recent, strict=True)
        images = len(self._recent) * self._options.batch_size
        self._recent.clear()
        self._log(loss=sum(losses) / len(losses), accuracy=sum(correct) / images)

    def _finish_epoch(self, evaluation: Evaluation) -> None:
        status = self._metrics.status(self._epoch, self._iteration)
        best: dict[str, int] = {}
        if self._options.compares_epochs:
            arrays = self._arrays() if self._keeps_best else {}
            if self._best.note(self._epoch, evaluation, arrays) and self._keeps_best:
                self._run.save_weights(arrays)
            best["best_epoch"] = self._best.epoch
        self._log(
            epoch_loss=status.loss,
            epoch_accuracy=status.accuracy,
            test_loss=evaluation.loss,
            test_accuracy=evaluation.accuracy,
            **best,
        )
        tested = replace(status, test_loss=evaluation.loss, test_accuracy=evaluation.accuracy)
        if self._observer is not None:
            self._observer.finish_epoch(tested)
        self._callbacks.finish_epoch(partial(self._report, tested))

    def _report(self, status: TrainingStatus) -> EpochReport:
        """What callbacks are shown of an epoch."""
        rate = self._options.learning_rate_at(self._iteration - 1, self._batches)
        return EpochReport(status, rate, read_only(self._arrays()), self._best_epoch)

    @property
    def _best_epoch(self) -> int | None:
        """The best epoch so far, where somebody asks for it."""
        return self._best.epoch if self._options.compares_epochs and self._best.epoch else None

    def _log(self, **figures: float) -> None:
        speed, seconds = self._metrics.images_per_second, time.perf_counter() - self._began
        place = {"epoch": self._epoch, "iteration": self._iteration}
        line = {**place, **figures, "images_per_second": round(speed, 1), "seconds": round(seconds, 3)}
        self._run.log(line)
        self._show(line)

    def _begin_events(self) -> None:
        """Event files from this step on; what the metrics say of this step already is said again."""
        self._events = EventFiles(self._run.events_path, self._iteration)
        if self._iteration:
            for line in self._run.read_metrics():
                if line.get("iteration") == self._iteration:
                    self._show(line)
            self._events.log_weights(self._iteration, self._arrays())

    def _show(self, line: Mapping[str, Any]) -> None:
        """Give TensorBoard a line of the metrics, if it is to have any; a line of steps has their rate and speed."""
        if self._events is None:
            return
        if "loss" in line:
            line = {**line, "learning_rate": self._options.learning_rate_at(self._iteration - 1, self._batches)}
        else:
            line = {name: value for name, value in line.items() if name != "images_per_second"}
        self._events.log(self._iteration, line)

    def _save(self, *, keeps: bool = True) -> None:
        """Write the weights into the run, if it keeps them, and show TensorBoard how they are spread."""
        arrays = self._arrays()
        _check_finite(arrays, self._iteration)
        if keeps:
            self._run.save_weights(arrays)
        if self._events is not None:
            self._events.log_weights(self._iteration, arrays)

    def _draw(self) -> None:
        """The pictures; a note in place of one that cannot be drawn, because the training itself is worth keeping."""
        if not self._leads:
            return
        test, run = self._data.test, self._run
        try:
            draw_curve(run.curve_path, run.read_metrics(), title=run.path.name)
            if self._evaluation is not None:
                found, names = self._evaluation, self._classifier.class_names
                pictures = (test.images, test.labels, found.predictions, names, found.confidence)
                draw_misclassified(run.misclassified_path, *pictures)
        except MPSError as error:
            self._notes.append(f"pictures are missing: {error}")


def _check_finite(arrays: Mapping[str, NDArray[np.float32]], steps: int) -> None:
    """Raise where a number is none, after so many steps."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(values))[0]]
            got = f"{values[tuple(place)]} at {place}"
            remedy = "An update made it so: lower the learning rate" if steps else "The network came with it"
            raise MPSNonFiniteError(f"layer {name.partition('.')[0]!r}", name, "must be finite", got, remedy)
