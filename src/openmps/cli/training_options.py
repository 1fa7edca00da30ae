"""The options of ``openmps train``: how they are declared, and what they say of a training."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.options import is_given, parse_size
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.training.options import TrainingOptions
    from openmps.training.run_folder import RunFolder

NETWORK_NAMES = ("sample", "tiny", "lenet", "mobilenet", "resnet18", "resnet50", "inception")
"""Those of `openmps.training.NETWORKS`; the first is the default."""
ENOUGH_BATCHES = 1000


class Optimizer(StrEnum):
    """The optimizers by name."""

    ADAM = "adam"
    SGD = "sgd"
    RMSPROP = "rmsprop"
    MUON = "muon"


class ScheduleName(StrEnum):
    """The schedules by name."""

    LINEAR = "linear"
    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"
    ONE_CYCLE = "one-cycle"


class Keep(StrEnum):
    """Of which epoch a run has the weights."""

    LAST = "last"
    BEST = "best"


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
        min=1, help=f"Passes over the images.  [default: enough for {ENOUGH_BATCHES} batches]", show_default=False
    ),
]


def _known_network(name: str) -> str:
    if name in NETWORK_NAMES or name.lower().endswith(".onnx"):
        return name
    from openmps.cli.own_code import has_form

    if not has_form(name):
        others = "no .onnx file and no package.module:function"
        raise typer.BadParameter(f"{name!r} is none of {', '.join(NETWORK_NAMES)}, {others}")
    return name


Network = Annotated[
    str,
    typer.Option(
        metavar="|".join((*NETWORK_NAMES, "FILE.onnx")),
        callback=_known_network,
        help="What to train: sample is the network of the framework's best-known sample, tiny learns in seconds; an "
        "ONNX file, or the PyTorch module that package.module:function gives, goes on from its own weights, but for "
        "the last layer where the classes are others.",
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
BatchSize = Annotated[int, typer.Option(min=1, help="Images of one step.")]
LearningRate = Annotated[float, typer.Option(help="Step size of the optimizer.")]
Schedule = Annotated[ScheduleName, typer.Option(help="How the step size changes over the training.")]
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
Patience = Annotated[
    int | None,
    typer.Option(
        metavar="EPOCHS",
        min=1,
        help="End training when so many epochs in a row have tested no better than the best one before them.",
        show_default=False,
    ),
]
KeptEpoch = Annotated[Keep, typer.Option(help="Which epoch's weights the run has: best is that of the best test.")]


def _augmentation(text: str | None) -> Any:
    """What is done to training images; the words of `openmps.training.augmentation.ITEMS`."""
    if text is None:
        return None
    from openmps.training.augmentation import Augmentation

    return Augmentation.parse(text)


Augment = Annotated[
    str | None,
    typer.Option(
        metavar="flip,crop:4,…",
        callback=_augmentation,
        help="What is done to training images at random, on the device: flip or flip:alternate, crop:PIXELS, "
        "translate:PIXELS, rotate:DEGREES, pad:zero|edge|reflect, cutout:PIXELS, brightness:MOST, contrast:MOST, "
        "normalize:MEAN/DEVIATION, smooth:SHARE, mixup:ALPHA.",
        show_default=False,
    ),
]
OptimizerOption = Annotated[Optimizer, typer.Option(help="How weights follow from gradients.")]
WeightDecay = Annotated[
    float,
    typer.Option(min=0, help="Part of all numbers, times the step size, that each step takes off: with adam, AdamW."),
]
Average = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0,
        max=1,
        help="Test and keep an exponential average of the weights, which keeps this share of itself in each step: "
        "0.99, 0.999.",
        show_default=False,
    ),
]
ClipNorm = Annotated[
    float | None,
    typer.Option(metavar="NORM", help="Limit the norm of all gradients together.", show_default=False),
]
Accumulate = Annotated[
    int, typer.Option(metavar="PARTS", min=1, help="Parts that a batch is computed in, for less memory: one update.")
]
FormatOption = Annotated[Format, typer.Option(help="How intermediate images are stored.")]
Seed = Annotated[int, typer.Option(min=0, help="Of initial weights, order, dropout and held-out images.")]
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
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out broken images.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the test accuracy only.")]

_WHO = "openmps train --resume"
_FREE = (
    *("resume", "epochs", "checkpoint_every", "keep_checkpoints"),
    *("device", "data", "shard_optimizer", "tensorboard", "quiet"),
)
"""Options that may be given with ``--resume``; a lower number of epochs and other data are refused later."""
_SAME = (
    *("batch_size", "learning_rate", "schedule", "warmup", "decay", "patience", "keep", "optimizer", "seed"),
    *("checkpoint_every", "network", "weight_decay", "average"),
    *("clip_norm", "accumulate"),
)
"""Options that are fields of `TrainingOptions` of the same name."""
_OTHERS = {
    "checkpoints_kept": "keep_checkpoints",
    "synchronizes_statistics": "sync_statistics",
    "augmentation": "augment",
}
"""Fields of another name than their option."""


def chosen_options(context: typer.Context, epochs: int, network: str) -> TrainingOptions:
    """What the command line says of a training, whose ``network`` may be in a file by now."""
    from openmps.training.options import TrainingOptions
    from openmps.types import MPSImageFeatureChannelFormat

    fields = {**dict(zip(_SAME, _SAME, strict=True)), **_OTHERS}
    values: dict[str, Any] = {field: _plain(context.params[option]) for field, option in fields.items()}
    form = MPSImageFeatureChannelFormat[_plain(context.params["format"]).upper()]
    values["network"] = network
    return TrainingOptions(epochs=epochs, channel_format=form, **values)


def _plain(value: Any) -> Any:
    """An option's value; of one of several words the word."""
    return getattr(value, "value", value)


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
    own |= {"patience": options.patience, "keep": options.keep, "weight_decay": options.weight_decay}
    own |= {"average": options.average, "clip_norm": options.clip_norm, "accumulate": options.accumulate}
    own |= {"augment": options.augmentation}
    has: dict[str, Any] = {**options.describe(), **own, "sync_statistics": options.synchronizes_statistics}
    for name, value in given.items():
        if name == "run":
            raise MPSArgumentError(_WHO, "--run", "must be left out: the run goes on in its own folder", value)
        if name == "image_size":
            if parse_size(value, "--image-size") != (shape.width, shape.height):
                raise _contradiction(name, size, value)
        elif name not in _FREE and has.get(name) != _plain(value):
            raise _contradiction(name, has.get(name), _plain(value))


def check_begun(run: RunFolder, context: typer.Context) -> None:
    """Raise unless a run is one that the same command line has begun, which a launcher has started again."""
    from openmps.cli.own_code import has_form
    from openmps.training.imported import is_imported
    from openmps.training.run_description import flat, run_options

    own, given = run_options(run), str(context.params["network"])
    network = own.network if is_imported(own.network) and (is_imported(given) or has_form(given)) else given
    chosen = chosen_options(context, context.params["epochs"] or own.epochs, network)
    found, wanted = ({"network": each.network, **flat(each.describe())} for each in (own, chosen))
    for name in dict.fromkeys((*wanted, *found)):
        if found.get(name) != wanted.get(name):
            rule = f"must be new, or hold what this command line has begun, with the {name} {wanted.get(name)}"
            raise MPSArgumentError("openmps train", "--run-folder", rule, found.get(name), "Give another name")


def _contradiction(name: str, own: Any, got: Any) -> MPSArgumentError:
    option = f"--{name.replace('_', '-')}"
    if own is None:
        return MPSArgumentError(_WHO, option, "must be left out, as the run was started without it", got)
    return MPSArgumentError(_WHO, option, f"must be {own}, as the run was started with", got, "Leave it out")
