"""``openmps train``: from images to a run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from openmps import __version__
from openmps.cli.options import (
    Device,
    Scaling,
    channels_of,
    console,
    note,
    parse_size,
    percent,
    sentence,
)
from openmps.cli.reading import open_run, require_data, require_network
from openmps.cli.together import is_alone, is_first, joined, run_of_all, run_to_go_on_with, work_of_each
from openmps.cli.training_options import (
    ENOUGH_BATCHES,
    NETWORK_NAMES,
    Accumulate,
    Augment,
    Average,
    BatchSize,
    ChannelsOption,
    CheckpointEvery,
    ClipNorm,
    Data,
    Decay,
    Epochs,
    Format,
    FormatOption,
    ImageSize,
    Keep,
    KeepCheckpoints,
    KeptEpoch,
    LearningRate,
    Network,
    Optimizer,
    OptimizerOption,
    Output,
    Patience,
    Quiet,
    Resume,
    Schedule,
    ScheduleName,
    Seed,
    ShardOptimizer,
    SkipBroken,
    SyncStatistics,
    Tensorboard,
    Warmup,
    WeightDecay,
    check_begun,
    check_options,
    chosen_options,
    given_options,
)
from openmps.errors import size_text

if TYPE_CHECKING:
    from openmps.distributed import Group
    from openmps.metal.device import MTLDevice
    from openmps.training.dataset import DataSplit
    from openmps.training.image_folder import Channels
    from openmps.training.loop import TrainingResult
    from openmps.training.options import TrainingOptions
    from openmps.training.run_folder import RunFolder
    from openmps.training.scaling import ScalingName

_FEWEST_EPOCHS = 2
_INTERRUPTED = 130


def train(
    context: typer.Context,
    data: Data = None,
    run: Output = None,
    resume: Resume = None,
    network: Network = NETWORK_NAMES[0],
    epochs: Epochs = None,
    batch_size: BatchSize = 40,
    learning_rate: LearningRate = 1e-3,
    schedule: Schedule = ScheduleName.LINEAR,
    warmup: Warmup = 0,
    decay: Decay = None,
    patience: Patience = None,
    keep: KeptEpoch = Keep.LAST,
    augment: Augment = None,
    optimizer: OptimizerOption = Optimizer.ADAM,
    weight_decay: WeightDecay = 0.0,
    average: Average = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = 1,
    format: FormatOption = Format.FLOAT32,
    device: Device = "auto",
    seed: Seed = 0,
    image_size: ImageSize = None,
    channels: ChannelsOption = None,
    scaling: Scaling = None,
    skip_broken: SkipBroken = False,
    checkpoint_every: CheckpointEvery = None,
    keep_checkpoints: KeepCheckpoints = 2,
    sync_statistics: SyncStatistics = False,
    shard_optimizer: ShardOptimizer = False,
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Train a network on images.

    Makes a run folder with the weights, the metrics, the training curve and the misclassified test images. The last
    line is the accuracy on the test images: those that the data bring along, or a fifth that is held out. Ctrl-C ends
    training early and keeps the weights so far; --resume goes on from there, and after any other end.

    Started by torchrun, as many processes share every batch, each on a GPU of its own or on the CPU, and come to the
    weights that one would; the first writes the run.
    """
    _check_paths(run, resume, data)
    with joined(device) as group:
        going_on = run_to_go_on_with(group, run, resume)
        if going_on is not None:
            given = given_options(context)
            check = partial(check_options, given=given) if resume else partial(check_begun, context=context)
            return _resume(going_on, given, group, check, shards=shard_optimizer, quiet=quiet)
        from openmps.cli.torch_networks import network_file
        from openmps.training.processes import together

        size, form = _side_lengths(image_size), channels_of(channels)
        filter_name = None if scaling is None else scaling.value
        split = together(group, partial(_load, data, size, form, network, seed, filter_name, skip_broken))
        with network_file(group, network, split, seed) as file:
            chosen = chosen_options(context, epochs or _default_epochs(split, batch_size), file)
            more = {"tensorboard": tensorboard, "shards": shard_optimizer, "quiet": quiet}
            _begin(split, chosen, device, group, run, _source(data, filter_name, skip_broken), network, **more)


def _check_paths(run: Path | None, resume: Path | None, data: Path | None) -> None:
    """Raise where ``--run`` can name no folder to be made, or what one process alone is to read is not there."""
    if run is not None and run.name in ("", ".."):
        raise typer.BadParameter(f"'{run}' is no name of a new folder", param_hint="--run")
    if is_alone():  # others look together
        require_network(resume)
        require_data(data)


def _side_lengths(image_size: str | None) -> tuple[int, int] | None:
    """``--image-size``, of images that can be read."""
    from openmps.training.image_folder import LONGEST_SIDE

    return parse_size(image_size, "--image-size", LONGEST_SIDE)


def _source(data: Path | None, scaling: ScalingName | None, skip_broken: bool) -> dict[str, Any]:
    """What a run keeps of where its images come from."""
    source: dict[str, Any] = {"path": None if data is None else str(data.resolve()), "skip_broken": skip_broken}
    return source if scaling is None else {**source, "scaling": scaling}


def _load(
    data: Path | None,
    width_height: tuple[int, int] | None,
    form: Channels | None,
    network: str,
    seed: int,
    scaling: ScalingName | None,
    skip_broken: bool,
) -> DataSplit:
    """The images; of the size of an ONNX file's input where nothing else is said."""
    from openmps.training.data import has_class_folders, load_dataset
    from openmps.training.imported import imported_size, is_imported

    size = None if width_height is None else (width_height[1], width_height[0])
    if is_imported(network) and has_class_folders(data):
        rows, columns, planes = imported_size(network)
        size = size or (None if rows is None or columns is None else (rows, columns))
        form = form or channels_of(planes)
    return load_dataset(data, seed=seed, size=size, channels=form, scaling=scaling, skip_broken=skip_broken)


def _begin(
    split: DataSplit,
    chosen: TrainingOptions,
    device: str,
    group: Group | None,
    run: Path | None,
    source: Mapping[str, object],
    network: str,
    *,
    tensorboard: bool,
    shards: bool,
    quiet: bool,
) -> None:
    """Make the run folder and train from the beginning; ``network`` is what the command line says."""
    from openmps.cli.own_code import has_form
    from openmps.runtime.devices import mtl_device
    from openmps.training import loop
    from openmps.training.event_files import require_tensorboard
    from openmps.training.imported import network_files
    from openmps.training.processes import together
    from openmps.training.run_description import describe_run
    from openmps.training.run_folder import RunFolder

    if is_first(group):
        _say_what_is_new(split, chosen.network, network)
    if tensorboard:
        together(group, require_tensorboard)
    machine = mtl_device(device) if group is None else group.device
    kind = machine.torch_device.type
    named = {"module": network} if has_form(network) else {}
    more = {"device": machine.name, "device_type": kind, "openmps": __version__, **named}
    description = describe_run(split, chosen, data=source, **more)
    parent, name = (Path("runs"), None) if run is None else (run.parent, run.name)
    files = together(group, lambda: network_files(chosen.network))
    folder = run_of_all(group, lambda: RunFolder.create(parent, description, name=name, files=files))
    if files:
        chosen = replace(chosen, network=str(folder.network_path))
    asked = {"processes": group, "shards_optimizer_state": shards, "tensorboard": tensorboard}
    work = partial(loop.train, split, folder, chosen, machine, **asked)
    with folder.removed_unless_begun():
        _train(split, folder, chosen, machine, work, group, quiet=quiet)


def _resume(
    path: Path,
    given: Mapping[str, Any],
    group: Group | None,
    check: Callable[[RunFolder], None],
    *,
    shards: bool,
    quiet: bool,
) -> None:
    """Go on with a run; ``given`` is what the command line says beside it, which ``check`` holds against the run."""
    from openmps.runtime.devices import mtl_device
    from openmps.training import loop
    from openmps.training.processes import together
    from openmps.training.run_description import run_data, run_options

    folder = run_of_all(group, lambda: open_run(path))
    together(group, lambda: check(folder))
    config = folder.config
    named = given.get("device") or str(config.get("device_type", "auto"))
    machine = mtl_device(named) if group is None else group.device
    options = run_options(folder)
    split = together(group, lambda: run_data(folder, given.get("data")))
    changes = {
        "epochs": given.get("epochs"),
        "checkpoint_every": given.get("checkpoint_every"),
        "checkpoints_kept": given.get("keep_checkpoints"),
        "tensorboard": given.get("tensorboard", False),
        "shards_optimizer_state": shards,
    }
    shown = replace(options, epochs=max(options.epochs, given.get("epochs") or 0))
    checkpoint = together(group, folder.checkpoints.newest)
    go_on = partial(loop.resume, split, folder, machine, checkpoint=checkpoint, processes=group, **changes)
    behind = 0 if checkpoint is None else checkpoint.step
    _train(split, folder, shown, machine, go_on, group, quiet=quiet, behind=behind)


def _train(
    split: DataSplit,
    folder: RunFolder,
    options: TrainingOptions,
    machine: MTLDevice,
    work: Callable[..., TrainingResult],
    group: Group | None,
    *,
    quiet: bool,
    behind: int | None = None,
) -> None:
    """Do the work, and say how it goes; ``behind`` are the iterations of a run that goes on."""
    from openmps.training.progress import TrainingProgress

    lines = [] if group is None else work_of_each(group, options.batch_size)
    if not is_first(group):
        if work().interrupted:
            raise typer.Exit(_INTERRUPTED)
        return
    if split.training.skipped:
        note(f"{len(split.training.skipped)} broken images left out, the first: {sentence(split.training.skipped[0])}")
    if not quiet:
        _print_start(split, machine.name, folder, behind)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    batches = len(split.training) // options.batch_size
    progress = None if quiet else TrainingProgress(options.epochs, batches, console=console())
    try:
        with progress or nullcontext():
            result = work(observer=progress)
    except KeyboardInterrupt:  # a second one, which does not wait
        if os.path.exists(folder.weights_path):
            note(f"interrupted: {folder.path} holds the weights that were saved last")
            note(f"openmps train --resume {folder.path} goes on from there")
        raise
    _print_end(result, folder, options, quiet=quiet)


def _say_what_is_new(split: DataSplit, network: str, shown: str) -> None:
    """Say whether the layer of the classes keeps the numbers of its file, where the network is out of one."""
    from openmps.training.imported import imported_topology, is_imported

    if not is_imported(network):
        return

    count = len(split.training.class_names)
    height, width, channels = split.training.images.shape[1:]
    head = imported_topology(network, height, width, channels, count).head
    if head.is_new:
        note(f"{head.label} gives {head.classes} classes in {shown} and {count} here: its weights are new")


def _default_epochs(split: DataSplit, batch_size: int) -> int:
    batches = max(len(split.training) // batch_size, 1)
    return max(-(-ENOUGH_BATCHES // batches), _FEWEST_EPOCHS)


def _print_start(split: DataSplit, device: str, folder: RunFolder, behind: int | None) -> None:
    count, *shape = split.training.images.shape
    size, classes = size_text(shape), len(split.training.class_names)
    print(f"{count:,} images to train with, {len(split.test):,} to test with: {size}, {classes} classes")
    going_on = "" if behind is None else f", from iteration {behind:,} on"
    print(f"on {device}, into {folder.path}{going_on}", flush=True)


def _print_end(result: TrainingResult, folder: RunFolder, options: TrainingOptions, *, quiet: bool) -> None:
    from openmps.training.progress import format_seconds

    note(*result.notes)
    if result.interrupted:
        of_best = options.keep == "best" and result.best_epoch is not None
        held = f"of epoch {result.best_epoch}, the best" if of_best else f"after {result.iterations} iterations"
        note(f"interrupted: {folder.path} holds the weights {held}")
        note(f"openmps train --resume {folder.path} goes on from there")
        raise typer.Exit(_INTERRUPTED)
    assert result.evaluation is not None
    best, patience = result.best_epoch, options.patience
    is_past = best is not None and patience is not None and result.epochs - best >= patience
    if result.resumed_from == result.iterations:
        more = "" if is_past else "; --epochs with a higher number goes on with it"
        note(f"{folder.path} was finished already{more}")
    if is_past and not quiet:
        print(f"ended after epoch {result.epochs}: none has tested better than epoch {best}")
    if not quiet:
        print(f"{result.iterations:,} iterations in {format_seconds(result.seconds)}; see {folder.path}")
    print(f"test accuracy {percent(result.evaluation.accuracy)}")
