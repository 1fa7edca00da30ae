"""MPSCNNBatchNormalizationDataSource, and the numbers read from one (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from openmps.core.arrays import variances
from openmps.core.data_source import channel_row, check_methods, count_of, epsilon_of, loaded
from openmps.kernels.batch_normalization.pairs import Rows

_REQUIRED = ("number_of_feature_channels", "gamma", "beta", "mean", "variance", "load", "purge", "label")


@runtime_checkable
class MPSCNNBatchNormalizationDataSource(Protocol):
    """Parameters of a batch normalization (MPSCNNBatchNormalization.h, macOS 10.13.4).

    Checked structurally: any object with these methods will do. ``load()`` comes before numbers are read and
    ``purge()`` after, in pairs. Optional methods: ``epsilon()``, FLT_MIN if it is missing;
    ``update_gamma_and_beta(command_buffer, batch_normalization_state)`` and, from macOS 10.14,
    ``update_mean_and_variance(command_buffer, batch_normalization_state)``, which return a state with the new numbers
    or None (on the device; on the CPU the command buffer is None and the result a bool); ``copy(device=None)``.
    """

    def number_of_feature_channels(self) -> int:
        """C, the channels of the images to be normalized."""
        ...

    def gamma(self) -> Any:
        """C scales, or None for ones."""
        ...

    def beta(self) -> Any:
        """C shifts, or None for zeros."""
        ...

    def mean(self) -> Any:
        """C means to normalize with outside training, or None for zeros."""
        ...

    def variance(self) -> Any:
        """C variances to normalize with outside training, or None for ones."""
        ...

    def load(self) -> bool:
        """Make the numbers readable; False makes the kernel fail."""
        ...

    def purge(self) -> None:
        """The numbers were read and may be given up."""
        ...

    def label(self) -> str | None:
        """A name for the kernel, or None."""
        ...


class Loaded(NamedTuple):
    """What a data source gave."""

    channels: int
    gamma_and_beta: Rows
    mean_and_variance: Rows
    epsilon: float


def load_parameters(who: str, source: Any) -> Loaded:
    """Load, read and purge a data source. None stands for gamma 1, beta 0, mean 0, variance 1."""
    check_methods(who, "data_source", source, _REQUIRED)
    with loaded(who, source):
        channels = count_of(who, source, "number_of_feature_channels")
        defaults = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}
        gamma, beta, mean, variance = (
            channel_row(who, source, method, channels, default) for method, default in defaults.items()
        )
        variances(who, "data source variance()", variance)
        epsilon = epsilon_of(who, source)
    return Loaded(channels, (gamma, beta), (mean, variance), epsilon)
