"""Training from the beginning, and from where a run was stopped; the run folder is always usable."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from openmps.checks import memory_for, of_kind
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.metal.device import MTLDevice
from openmps.training.callbacks import Callbacks, TrainingCallback
from openmps.training.checkpoint import Checkpoint
from openmps.training.dataset import DataSplit
from openmps.training.imported import keep_network
from openmps.training.inference import check_preprocessing
from openmps.training.interrupt import DeferredInterrupt
from openmps.training.options import TrainingOptions
from openmps.training.processes import FollowedRun, TrainingProcesses, from_the_first, together
from openmps.training.run_description import check_described, describe_run, run_options
from openmps.training.run_folder import RunFolder
from openmps.training.schedules import Schedule, check_schedule, described_schedule
from openmps.training.session import Session, TrainingObserver, TrainingResult

__all__ = ["TrainingObserver", "TrainingOptions", "TrainingResult", "describe_run", "resume", "train"]


def train(
    data: DataSplit,
    run: RunFolder,
    options: TrainingOptions,
    device: MTLDevice,
    observer: TrainingObserver | None = None,
    *,
    tensorboard: bool = False,
    processes: TrainingProcesses | None = None,
    shards_optimizer_state: bool = False,
    callbacks: Sequence[TrainingCallback] = (),
) -> TrainingResult:
    """Train the network that ``options`` name on ``data.training``, test it on ``data.test`` after each epoch.

    ``run`` gets the weights (before the first batch, after each epoch and at the end), the metrics, the curve and a
    sheet of misclassified test images. The images left over when the batch size does not divide their number sit out
    the epoch; each epoch shuffles anew. On one device the same data and options give the same weights, on the CPU bit
    for bit. Checkpoints (before the first batch, every ``options.checkpoint_every`` steps and at the end) let `resume`
    go on after any end. With ``tensorboard`` the run gets event files, too: loss, accuracy, learning rate and speed by
    step, and after each epoch histograms of all weights; `resume` goes on with them.

    ``callbacks`` are called at steps and epochs. One that asks for it, or raises, ends training as Ctrl-C does; what it
    has raised is raised then. See `TrainingCallback`.

    Ctrl-C ends training between two batches: the weights so far and a checkpoint are saved and ``interrupted`` is set.
    A second one is a ``KeyboardInterrupt``. Raises ``MPSNonFiniteError`` when a loss or a weight is NaN or infinite,
    naming the first kernel, image and channel, or when the mean loss of an epoch is above 1e9; the run keeps the
    weights saved last. Raises ``MPSFileError`` where the
    run has checkpoints already.

    ``processes``, an `openmps.distributed.Group`, train together: each calls this with the same data and options and
    steps on its share of every batch, so that the weights are those of one process but for rounding. The first one
    writes; the others get a `FollowedRun`. Ctrl-C in one ends all. With ``shards_optimizer_state`` each keeps what the
    optimizers keep of its share of the weights only; numbers and checkpoints are the same.
    """
    _check_kinds("train", data, run, device)
    called = Callbacks("train", callbacks)
    of_kind("train", "options", options, TrainingOptions)

    def begin() -> TrainingOptions:
        if isinstance(run, FollowedRun):  # the first process looks into the folder
            return options
        if run.checkpoints.steps():
            rule, remedy = "must be a run that has not begun", "Go on with it by resume(), or create a new run."
            raise MPSFileError("train", str(run.path), rule, "one with checkpoints", remedy)
        kept = keep_network(run.path, options.network)  # which the run's description speaks of
        check_preprocessing(run, "train", options.augments)
        found = replace(options, network=kept)
        check_described(run, data, found)
        return found

    with _in_training(run, processes) as interrupt:
        kept = together(processes, begin)
        session = Session(data, run, kept, device, observer, processes, shards=shards_optimizer_state, callbacks=called)
        return session.finish(interrupt, tensorboard=tensorboard)


def _check_kinds(who: str, data: object, run: object, device: object) -> None:
    of_kind(who, "data", data, DataSplit)
    of_kind(who, "run", run, RunFolder)
    of_kind(who, "device", device, MTLDevice)


def resume(
    data: DataSplit,
    run: RunFolder,
    device: MTLDevice,
    observer: TrainingObserver | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    epochs: int | None = None,
    checkpoint_every: int | None = None,
    checkpoints_kept: int | None = None,
    schedule: Schedule | None = None,
    tensorboard: bool = False,
    processes: TrainingProcesses | None = None,
    shards_optimizer_state: bool = False,
    callbacks: Sequence[TrainingCallback] = (),
) -> TrainingResult:
    """Go on with a run that was stopped, however it was, as if it had never been: on the CPU bit for bit.

    It goes on from the newest checkpoint that is whole, unless given ``checkpoint``; the metrics written since are
    dropped and written again. ``data`` must be those of the run (`run_data`). The options are those of the run's
    description; ``epochs`` may be raised, which lengthens a finished run, too: the learning rate then follows the
    schedule of the longer training from there on. A run that has ended and is not lengthened is tested once more. One
    that was killed before its first checkpoint starts from the beginning.

    Event files of TensorBoard go on where there are some, and begin with ``tensorboard``.

    Raises ``MPSFileError`` where no checkpoint is whole, where data, network or options are not those of the
    checkpoint, saying what differs, and where another process is training the run. ``processes`` are as in `train`;
    there may be more or fewer than before, with ``shards_optimizer_state`` or without, and the checkpoint is that of
    the first one. Warns (``MPSTrainingWarning``) of damaged checkpoints, and of another device, version of PyTorch,
    number of threads or of processes. Otherwise as `train`.
    """
    _check_kinds("resume", data, run, device)
    called = Callbacks("resume", callbacks)
    if checkpoint is not None:
        of_kind("resume", "checkpoint", checkpoint, Checkpoint)
    changes = {"epochs": epochs, "checkpoint_every": checkpoint_every, "checkpoints_kept": checkpoints_kept}
    own = _with_function(run_options(run), schedule)
    check_preprocessing(run, "resume", own.augments)
    options = replace(own, **{name: value for name, value in changes.items() if value is not None})
    if options.epochs < own.epochs:
        rule = f"must be at least the {own.epochs} that the run was started with"
        raise MPSArgumentError("resume", "epochs", rule, options.epochs, "Leave it out")

    with _in_training(run, processes) as interrupt:
        found = together(processes, partial(_found_checkpoint, run, checkpoint))
        if processes is not None:
            found = from_the_first(processes, found)
        session = Session(
            data, run, options, device, observer, processes, shards=shards_optimizer_state, callbacks=called
        )
        if found is not None:
            together(processes, partial(session.go_on_from, found))
        if options != own:
            together(processes, partial(run.amend, {"options": options.describe()}))
        return session.finish(interrupt, tensorboard=tensorboard or session.has_events())


def _found_checkpoint(run: RunFolder, given: Checkpoint | None) -> Checkpoint | None:
    """The one that is given, or the newest whole one; None where nothing was trained yet."""
    found = given or run.checkpoints.newest()
    if found is None and any(line.get("iteration") != 0 for line in run.read_metrics()):
        rule, remedy = "must hold a checkpoint", "They were removed, or an older openmps trained it: train again."
        raise MPSFileError("resume", str(run.path), rule, "a run without one", remedy)
    return found


def _with_function(options: TrainingOptions, schedule: Schedule | None) -> TrainingOptions:
    """The options of a run with its schedule's function, if given: it must be of the name that the run knows."""
    if schedule is None:
        return options
    check_schedule("resume", schedule)
    known, given = described_schedule(options.schedule), described_schedule(schedule)
    if known != given:
        raise MPSArgumentError("resume", "schedule", f"must be that of the run, {known}", given, "Leave it out")
    return replace(options, schedule=schedule)


@contextmanager
def _in_training(run: RunFolder, processes: TrainingProcesses | None) -> Generator[DeferredInterrupt]:
    """Hold back Ctrl-C, then the run, so that neither arrives while the run says that it is in training.

    The host's memory may end anywhere within.
    """
    with ExitStack() as stack:
        stack.enter_context(memory_for("train", "the training"))
        interrupt = stack.enter_context(DeferredInterrupt(of_launcher=processes is not None))
        together(processes, partial(stack.enter_context, run.in_training()))
        yield interrupt
