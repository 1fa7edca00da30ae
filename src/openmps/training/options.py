"""How a network is trained, as a value that a run's description holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openmps.checks import flag
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.training.network import DEFAULT_NETWORK, OptimizerName, optimizer_factory, smallest_side
from openmps.types import MPSImageFeatureChannelFormat

_COUNTS = {"epochs": 1, "batch_size": 1, "seed": 0, "checkpoint_every": 1, "checkpoints_kept": 1}
_DESCRIBED = (*_COUNTS, "learning_rate", "decay", "optimizer")
_SAID_IF_TRUE = "synchronizes_statistics"


@dataclass(frozen=True)
class TrainingOptions:
    """How a network is trained. ``channel_format`` is how intermediate images are stored; weights are float32.

    ``decay`` is the last part of the training, 0 to 1, over which the learning rate falls to 0 in a straight line.
    A checkpoint is written every ``checkpoint_every`` steps, or with None as often as takes 2 % of the time and not
    more often than every ten seconds; the newest ``checkpoints_kept`` stay. ``network`` is a name in `NETWORKS`,
    or the path of an ONNX file. ``batch_size`` counts the images of one step in all processes that share it;
    ``synchronizes_statistics`` normalizes with the statistics of all of them, where the network normalizes batches.
    """

    epochs: int
    batch_size: int = 40
    learning_rate: float = 1e-3
    decay: float = 0.3
    optimizer: OptimizerName = "adam"
    channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT32
    seed: int = 0
    checkpoint_every: int | None = None
    checkpoints_kept: int = 2
    network: str = DEFAULT_NETWORK
    synchronizes_statistics: bool = False

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name == "checkpoint_every":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MPSArgumentError(type(self).__name__, name, f"must be a whole number from {least} on", value)
        flag(type(self).__name__, _SAID_IF_TRUE, self.synchronizes_statistics)
        if not 0 <= self.decay <= 1:
            raise MPSArgumentError(type(self).__name__, "decay", "must be 0 to 1", self.decay)
        formats = (MPSImageFeatureChannelFormat.FLOAT16, MPSImageFeatureChannelFormat.FLOAT32)
        if self.channel_format not in formats:
            rule = "must be FLOAT16 or FLOAT32"
            raise MPSArgumentError(type(self).__name__, "channel_format", rule, self.channel_format)
        smallest_side(type(self).__name__, self.network)
        optimizer_factory(self.optimizer, self.learning_rate)

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when the fraction ``progress`` of all batches is behind."""
        left = 1 - progress
        return self.learning_rate if left >= self.decay else self.learning_rate * left / self.decay

    def describe(self) -> dict[str, object]:
        """The options as a run's description holds them; it describes the network apart."""
        options: dict[str, object] = {name: getattr(self, name) for name in _DESCRIBED}
        if self.synchronizes_statistics:
            options[_SAID_IF_TRUE] = True
        return {**options, "format": self.channel_format.name.lower()}

    @classmethod
    def from_description(cls, description: Mapping[str, object], file: str) -> TrainingOptions:
        """The options that `describe` gave, as the file ``file`` holds them; ``MPSFileError`` where it does not."""
        values: dict[str, Any] = {
            name: description[name] for name in (*_DESCRIBED, _SAID_IF_TRUE) if name in description
        }
        try:
            name = str(description["format"]).upper()
            return cls(**values, channel_format=MPSImageFeatureChannelFormat[name])
        except (MPSArgumentError, KeyError, TypeError) as error:
            raise MPSFileError(cls.__name__, file, "must have the options of a training", error) from error
