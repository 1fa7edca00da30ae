"""How a network is trained, as a value that a run's description holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from openmps.checks import finite, flag, of_kind, whole
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError, shown
from openmps.selectors import name_arguments
from openmps.training.augmentation import AS_THEY_ARE, Augmentation
from openmps.training.network import DEFAULT_NETWORK, OptimizerName, optimizer_factory, smallest_side
from openmps.training.optimized import OptimizerFactory
from openmps.training.schedules import (
    DEFAULT_DECAY,
    Schedule,
    ScheduleName,
    check_schedule,
    described_schedule,
    factor_at,
    schedule_of,
)
from openmps.types import MPSImageFeatureChannelFormat

KeptEpoch: TypeAlias = Literal["last", "best"]
"""Of which epoch a run has the weights."""

_COUNTS = {
    "epochs": 1,
    "batch_size": 1,
    "seed": 0,
    "warmup": 0,
    "checkpoint_every": 1,
    "checkpoints_kept": 1,
    "patience": 1,
    "accumulate": 1,
}
_NUMBERS = ("learning_rate", "decay", "weight_decay", "average", "clip_norm")
_OPTIONAL = ("checkpoint_every", "patience", "decay", "average", "clip_norm")
_DESCRIBED = ("epochs", "batch_size", "seed", "checkpoint_every", "checkpoints_kept", "learning_rate", "optimizer")
_SAID_UNLESS_DEFAULT = (
    *("synchronizes_statistics", "schedule", "warmup", "patience", "keep", "weight_decay", "average"),
    *("clip_norm", "accumulate", "augmentation"),
)
"""So that descriptions from before there were these options are as they would be."""
_DESCRIPTIONS: Mapping[str, Callable[[Any], object]] = {"schedule": described_schedule, "augmentation": str}
"""How options that are no numbers or words are described."""


@name_arguments
@dataclass(frozen=True)
class TrainingOptions:
    """How a network is trained. ``channel_format`` is how intermediate images are stored; weights are float32.

    ``schedule`` gives the factor of the learning rate in each step: a name of `openmps.training.schedules`, or a
    function of the step, counted from 0, and the number of steps; ``warmup`` is the number of steps over which the rate
    rises to where the schedule begins. ``decay``, of the schedule ``linear`` alone, is the last part of the training, 0
    to 1, over which the rate falls to 0; None is 0.3.
    ``patience`` ends training when so many epochs in a row were no better than the best one before them: no test
    accuracy above its, nor an equal one with less loss. ``keep`` says whether the run has the weights of the ``last``
    epoch or of the ``best`` one.
    ``augmentation`` is what is done to the images of each step: an `Augmentation`, or its text.

    Each step first takes ``weight_decay`` times the learning rate of the numbers off them, apart from the gradient: of
    weights, biases, gamma and beta. With ``adam`` this is AdamW.
    ``average``, above 0 and below 1, keeps an exponential average of all numbers, which keeps so much of itself in each
    step: the tests are then of it, and the run has it in the place of the weights. See
    `TrainableConvolutionDataSource.keep_average`.
    ``clip_norm`` limits the norm of the gradients of all parameters together, `MPSNNGraph.gradient_norm_limit`.
    ``accumulate`` is the number of equal parts that a batch is computed in, whose gradients are added up before the one
    update: images in a row are a part.

    A checkpoint is written every ``checkpoint_every`` steps, or with None as often as takes 2 % of the time and not
    more often than every ten seconds; the newest ``checkpoints_kept`` stay. ``network`` is a name in `NETWORKS`,
    or the path of an ONNX file. ``batch_size`` counts the images of one step in all processes that share it;
    ``synchronizes_statistics`` normalizes with the statistics of all of them, where the network normalizes batches.
    """

    epochs: int
    batch_size: int = 40
    learning_rate: float = 1e-3
    decay: float | None = None
    optimizer: OptimizerName = "adam"
    channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT32
    seed: int = 0
    checkpoint_every: int | None = None
    checkpoints_kept: int = 2
    network: str = DEFAULT_NETWORK
    synchronizes_statistics: bool = False
    schedule: ScheduleName | Schedule = "linear"
    warmup: int = 0
    patience: int | None = None
    keep: KeptEpoch = "last"
    weight_decay: float = 0.0
    average: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    augmentation: Augmentation | str | None = None

    def __post_init__(self) -> None:
        self._take_numbers()
        check_schedule(type(self).__name__, self.schedule)
        if self.keep not in get_args(KeptEpoch):
            raise MPSArgumentError(type(self).__name__, "keep", "must be last or best", shown(self.keep))
        if self.decay is not None and not 0 <= self.decay <= 1:
            raise MPSArgumentError(type(self).__name__, "decay", "must be 0 to 1", self.decay)
        if self.decay is not None and self.schedule != "linear":
            rule = "must be left out: it is of the schedule linear alone"
            raise MPSArgumentError(type(self).__name__, "decay", rule, self.decay)
        formats = (MPSImageFeatureChannelFormat.FLOAT16, MPSImageFeatureChannelFormat.FLOAT32)
        if self.channel_format not in formats:
            rule = "must be FLOAT16 or FLOAT32"
            raise MPSArgumentError(type(self).__name__, "channel_format", rule, self.channel_format)
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise MPSArgumentError(type(self).__name__, "clip_norm", "must be above 0, or None", self.clip_norm)
        if self.average is not None:
            from openmps.training.averages import checked_decay

            checked_decay(type(self).__name__, "average", self.average)
        self._take_augmentation()
        smallest_side(type(self).__name__, self.network)
        self.optimizer_factory()

    def optimizer_factory(self) -> OptimizerFactory:
        """Makes the optimizer of each layer."""
        return optimizer_factory(self.optimizer, self.learning_rate, self.weight_decay)

    def _take_numbers(self) -> None:
        """Take numbers as Python's: a run's description has no others."""
        who = type(self).__name__
        for name in (*_COUNTS, *_NUMBERS):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if (least := _COUNTS.get(name)) is None:
                found = finite(who, name, value)
            else:
                found = whole(who, name, value, least, f"must be a whole number from {least} on")
            object.__setattr__(self, name, found)
        synchronizes = flag(who, "synchronizes_statistics", self.synchronizes_statistics)
        object.__setattr__(self, "synchronizes_statistics", synchronizes)

    def _take_augmentation(self) -> None:
        given = self.augmentation
        found = Augmentation.parse(given) if isinstance(given, str) else given
        if found is not None:
            of_kind(type(self).__name__, "augmentation", found, Augmentation, "Give one, or its text, as flip,crop:4")
        object.__setattr__(self, "augmentation", found if found != AS_THEY_ARE else None)

    @property
    def augments(self) -> Augmentation:
        """What is done to the images of each step, which may be nothing."""
        return self.augmentation if isinstance(self.augmentation, Augmentation) else AS_THEY_ARE

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate in step ``step``, counted from 0, of a training of ``steps``."""
        who = type(self).__name__
        step = whole(who, "step", step, 0, "must be a whole number from 0 on")
        steps = whole(who, "steps", steps)
        if step > steps:
            raise MPSArgumentError(who, "step", f"must be at most the {steps} steps of the training", step)
        if steps <= self.warmup:
            rule = f"must be fewer than the {steps} steps of the training"
            raise MPSArgumentError(who, "warmup", rule, self.warmup)
        return self.learning_rate * factor_at(who, self.schedule, self._decay, step, steps, self.warmup)

    @property
    def _decay(self) -> float:
        return DEFAULT_DECAY if self.decay is None else self.decay

    @property
    def compares_epochs(self) -> bool:
        """Whether training asks for the best epoch."""
        return self.patience is not None or self.keep == "best"

    def describe(self) -> dict[str, object]:
        """The options as a run's description holds them; it describes the network apart."""
        options: dict[str, object] = {name: getattr(self, name) for name in _DESCRIBED}
        if self.schedule == "linear":
            options["decay"] = self._decay
        for name in _SAID_UNLESS_DEFAULT:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                options[name] = _DESCRIPTIONS[name](value) if name in _DESCRIPTIONS else value
        return {**options, "format": self.channel_format.name.lower()}

    @classmethod
    def from_description(cls, description: Mapping[str, object], file: str) -> TrainingOptions:
        """The options that `describe` gave, as the file ``file`` holds them; ``MPSFileError`` where it does not."""
        known = (*_DESCRIBED, "decay", *_SAID_UNLESS_DEFAULT)
        values: dict[str, Any] = {name: description[name] for name in known if name in description}
        try:
            if "schedule" in values:
                values["schedule"] = schedule_of(values["schedule"])
            name = str(description["format"]).upper()
            return cls(**values, channel_format=MPSImageFeatureChannelFormat[name])
        except (MPSArgumentError, MPSTypeError, KeyError, TypeError) as error:
            raise MPSFileError(cls.__name__, file, "must have the options of a training", error) from error


def check_shares(options: TrainingOptions, share: int, *, shards: bool) -> None:
    """Raise where a process has a part of what belongs together: pairs of mixed images, matrices that Muon updates."""
    if options.augments.mix_up and share % 2:
        rule = f"must give each process pairs of images, which mix-up mixes: {share} are none"
        raise MPSArgumentError("TrainingOptions", "batch_size", rule, options.batch_size)
    if shards and options.optimizer == "muon":
        rule = "must be left out with the optimizer muon, which multiplies whole matrices"
        raise MPSArgumentError("train", "shards_optimizer_state", rule, True, "Leave out --shard-optimizer")
