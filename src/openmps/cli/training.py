"""``openmps train``: from images to a run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps import __version__
from openmps.checks import size_text
from openmps.cli.options import (
    Device,
    Scaling,
    channels_of,
    console,
    is_given,
    note,
    open_run,
    parse_size,
    percent,
    sentence,
)
from openmps.cli.together import is_first, joined, run_of_all, run_to_go_on_with, work_of_each
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.distributed import Group
    from openmps.metal.device import MTLDevice
    from openmps.training.dataset import DataSplit
    from openmps.training.image_folder import Channels
    from openmps.training.loop import TrainingResult
    from openmps.training.options import TrainingOptions
    from openmps.training.run_folder import RunFolder
    from openmps.training.scaling import ScalingName

NETWORK_NAMES = ("sample", "tiny", "lenet", "mobilenet", "resnet18", "resnet50", "inception")
"""Those of `openmps.training.NETWORKS`; the first is the default."""
_ENOUGH_BATCHES = 1000
_FEWEST_EPOCHS = 2
_INTERRUPTED = 130


class Optimizer(StrEnum):
    """The optimizers by name."""

    ADAM = "adam"
    SGD = "sgd"
    RMSPROP = "rmsprop"


class ScheduleOption(StrEnum):
    """The schedules by name."""

    LINEAR = "linear"
    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"
    ONE_CYCLE = "one-cycle"


class Format(StrEnum):
    """How intermediate images are stored."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A folder of MNIST-style files, plain or gzipped, or of one folder of images for each class. "
        "Without it: the handwritten digits that scikit-learn brings along.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--run-folder",  # torchrun takes --run for one of its own
        metavar="DIR",
        help="The run folder to make.  [default: runs/DATE_TIME]",
        show_default=False,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"Passes over the images.  [default: enough for {_ENOUGH_BATCHES} batches]", show_default=False
    ),
]


def _known_network(name: str) -> str:
    if name not in NETWORK_NAMES and not name.lower().endswith(".onnx"):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(NETWORK_NAMES)}, and no .onnx file")
    return name


Network = Annotated[
    str,
    typer.Option(
        metavar="|".join((*NETWORK_NAMES, "FILE.onnx")),
        callback=_known_network,
        help="What to train: sample is the network of the framework's best-known sample, tiny learns in seconds; an "
        "ONNX file goes on from its own weights, but for the last layer where the classes are others.",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was stopped, killed or finished: its folder, or its name in runs. It has its "
        "options already; --epochs may be raised, --data may say where the same images are now.",
        show_default=False,
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        min=1,
        help="Steps from one checkpoint to the next.  [default: ten seconds apart, further where writing them would "
        "take more than 2 % of the time]",
        show_default=False,
    ),
]
KeepCheckpoints = Annotated[int, typer.Option(min=1, help="How many checkpoints stay, the newest.")]


Decay = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Of the linear schedule: the last part of the training, over which the step size falls to 0.  "
        "[default: 0.3]",
        show_default=False,
    ),
]
Warmup = Annotated[int, typer.Option(min=0, help="Steps over which the step size rises to where the schedule begins.")]
ImageSize = Annotated[
    str | None,
    typer.Option(metavar="WIDTHxHEIGHT", help="Resize the images of class folders.", show_default=False),
]
ChannelsOption = Annotated[
    int | None,
    typer.Option(help="Make the images of class folders grey (1) or red green blue (3).", show_default=False),
]
SyncStatistics = Annotated[
    bool,
    typer.Option("--sync-statistics", help="Normalize batches over all processes that share them (torchrun)."),
]
ShardOptimizer = Annotated[
    bool,
    typer.Option(
        "--shard-optimizer",
        help="Keep a share of the optimizer's state in each process (torchrun): the same numbers.",
    ),
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run's tensorboard folder.")
]


def train(
    context: typer.Context,
    data: Data = None,
    run: Output = None,
    resume: Resume = None,
    network: Network = NETWORK_NAMES[0],
    epochs: Epochs = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of one step.")] = 40,
    learning_rate: Annotated[float, typer.Option(help="Step size of the optimizer.")] = 1e-3,
    schedule: Annotated[
        ScheduleOption, typer.Option(help="How the step size changes over the training.")
    ] = ScheduleOption.LINEAR,
    warmup: Warmup = 0,
    decay: Decay = None,
    optimizer: Annotated[Optimizer, typer.Option(help="How weights follow from gradients.")] = Optimizer.ADAM,
    format: Annotated[Format, typer.Option(help="How intermediate images are stored.")] = Format.FLOAT32,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, order, dropout and held-out images.")] = 0,
    image_size: ImageSize = None,
    channels: ChannelsOption = None,
    scaling: Scaling = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out broken images.")] = False,
    checkpoint_every: CheckpointEvery = None,
    keep_checkpoints: KeepCheckpoints = 2,
    sync_statistics: SyncStatistics = False,
    shard_optimizer: ShardOptimizer = False,
    tensorboard: Tensorboard = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the test accuracy only.")] = False,
) -> None:
    """Train a network on images.

    Makes a run folder with the weights, the metrics, the training curve and the misclassified test images. The last
    line is the accuracy on the test images: those that the data bring along, or a fifth that is held out. Ctrl-C ends
    training early and keeps the weights so far; --resume goes on from there, and after any other end.

    Started by torchrun, as many processes share every batch, each on a GPU of its own or on the CPU, and come to the
    weights that one would; the first writes the run.
    """
    with joined(device) as group:
        going_on = run_to_go_on_with(group, run, resume)
        if going_on is not None:
            given = given_options(context) if resume else {}
            return _resume(going_on, given, group, shards=shard_optimizer, quiet=quiet)
        from openmps.training.options import TrainingOptions
        from openmps.training.processes import together
        from openmps.types import MPSImageFeatureChannelFormat

        size, form = parse_size(image_size, "--image-size"), channels_of(channels)
        filter_name = None if scaling is None else scaling.value
        split = together(group, partial(_load, data, size, form, network, seed, filter_name, skip_broken))
        chosen = TrainingOptions(
            epochs=epochs or _default_epochs(split, batch_size),
            batch_size=batch_size,
            learning_rate=learning_rate,
            schedule=schedule.value,
            warmup=warmup,
            decay=decay,
            optimizer=optimizer.value,
            channel_format=MPSImageFeatureChannelFormat[format.name],
            seed=seed,
            checkpoint_every=checkpoint_every,
            checkpoints_kept=keep_checkpoints,
            network=network,
            synchronizes_statistics=sync_statistics,
        )
        source = {"path": None if data is None else str(data.resolve()), "skip_broken": skip_broken}
        source |= {} if filter_name is None else {"scaling": filter_name}
        _begin(split, chosen, device, group, run, source, tensorboard=tensorboard, shards=shard_optimizer, quiet=quiet)


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
    *,
    tensorboard: bool,
    shards: bool,
    quiet: bool,
) -> None:
    """Make the run folder and train from the beginning."""
    from openmps.runtime.devices import mtl_device
    from openmps.training import loop
    from openmps.training.event_files import require_tensorboard
    from openmps.training.imported import network_files
    from openmps.training.processes import together
    from openmps.training.run_description import describe_run
    from openmps.training.run_folder import RunFolder

    if is_first(group):
        _say_what_is_new(split, chosen.network)
    if tensorboard:
        together(group, require_tensorboard)
    machine = mtl_device(device) if group is None else group.device
    kind = machine.torch_device.type
    description = describe_run(split, chosen, data=source, device=machine.name, device_type=kind, openmps=__version__)
    parent, name = (Path("runs"), None) if run is None else (run.parent, run.name)
    files = together(group, lambda: network_files(chosen.network))
    folder = run_of_all(group, lambda: RunFolder.create(parent, description, name=name, files=files))
    if files:
        chosen = replace(chosen, network=str(folder.network_path))
    more = {"processes": group, "shards_optimizer_state": shards, "tensorboard": tensorboard}
    work = partial(loop.train, split, folder, chosen, machine, **more)
    with folder.removed_unless_begun():
        _train(split, folder, chosen, machine, work, group, quiet=quiet)


def _resume(path: Path, given: Mapping[str, Any], group: Group | None, *, shards: bool, quiet: bool) -> None:
    """Go on with a run; ``given`` is what the command line says beside it."""
    from openmps.runtime.devices import mtl_device
    from openmps.training import loop
    from openmps.training.processes import together
    from openmps.training.run_description import run_data, run_options

    folder = run_of_all(group, lambda: open_run(path))
    together(group, lambda: check_options(folder, given))
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
    _print_end(result, folder, quiet=quiet)


def _say_what_is_new(split: DataSplit, network: str) -> None:
    """Say whether the layer of the classes keeps the numbers of its file, where the network is out of one."""
    from openmps.training.imported import imported_topology, is_imported

    if not is_imported(network):
        return

    count = len(split.training.class_names)
    height, width, channels = split.training.images.shape[1:]
    head = imported_topology(network, height, width, channels, count).head
    if head.is_new:
        note(f"{head.label} gives {head.classes} classes in {network} and {count} here: its weights are new")


def _default_epochs(split: DataSplit, batch_size: int) -> int:
    batches = max(len(split.training) // batch_size, 1)
    return max(-(-_ENOUGH_BATCHES // batches), _FEWEST_EPOCHS)


def _print_start(split: DataSplit, device: str, folder: RunFolder, behind: int | None) -> None:
    count, *shape = split.training.images.shape
    size, classes = size_text(shape), len(split.training.class_names)
    print(f"{count:,} images to train with, {len(split.test):,} to test with: {size}, {classes} classes")
    going_on = "" if behind is None else f", from iteration {behind:,} on"
    print(f"on {device}, into {folder.path}{going_on}", flush=True)


def _print_end(result: TrainingResult, folder: RunFolder, *, quiet: bool) -> None:
    from openmps.training.progress import format_seconds

    for text in result.notes:
        note(text)
    if result.interrupted:
        note(f"interrupted: {folder.path} holds the weights after {result.iterations} iterations")
        note(f"openmps train --resume {folder.path} goes on from there")
        raise typer.Exit(_INTERRUPTED)
    assert result.evaluation is not None
    if result.resumed_from == result.iterations:
        note(f"{folder.path} was finished already; --epochs with a higher number goes on with it")
    if not quiet:
        print(f"{result.iterations:,} iterations in {format_seconds(result.seconds)}; see {folder.path}")
    print(f"test accuracy {percent(result.evaluation.accuracy)}")


_WHO = "openmps train --resume"
_FREE = (
    *("resume", "epochs", "checkpoint_every", "keep_checkpoints"),
    *("device", "data", "shard_optimizer", "tensorboard", "quiet"),
)
"""Options that may be given with ``--resume``; a lower number of epochs and other data are refused later."""


def given_options(context: typer.Context) -> dict[str, Any]:
    """What stands on the command line, by the name of the parameter."""
    names = [name for name in context.params if is_given(context, name)]
    return {name: context.params[name] for name in names}


def check_options(run: RunFolder, given: Mapping[str, Any]) -> None:
    """Raise where an option contradicts the run's; one that says the same is accepted."""
    from openmps.training.inference import described_network
    from openmps.training.run_description import run_options
    from openmps.training.scaling import described_scaling
    from openmps.training.schedules import described_schedule

    shape, _ = described_network(run)
    source = run.config.get("data")
    skip_broken = isinstance(source, Mapping) and source.get("skip_broken") is True
    size = f"{shape.width}x{shape.height}"
    options = run_options(run)
    scaling = described_scaling(run.config, str(run.path / "run.json"))
    own = {"skip_broken": skip_broken, "channels": shape.channels, "network": shape.network, "scaling": scaling}
    own |= {"schedule": described_schedule(options.schedule), "warmup": options.warmup}
    has: dict[str, Any] = {**options.describe(), **own, "sync_statistics": options.synchronizes_statistics}
    for name, value in given.items():
        if name == "run":
            raise MPSArgumentError(_WHO, "--run", "must be left out: the run goes on in its own folder", value)
        if name == "image_size":
            if parse_size(value, "--image-size") != (shape.width, shape.height):
                raise _contradiction(name, size, value)
        elif name not in _FREE and has.get(name) != getattr(value, "value", value):
            raise _contradiction(name, has.get(name), getattr(value, "value", value))


def _contradiction(name: str, own: Any, got: Any) -> MPSArgumentError:
    option = f"--{name.replace('_', '-')}"
    return MPSArgumentError(_WHO, option, f"must be {own}, as the run was started with", got, "Leave it out")
