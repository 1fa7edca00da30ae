"""Gamma and beta: read from a data source, kept on the device, updated in place."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.core.data_source import channel_row, check_methods, count_of, epsilon_of, loaded
from openmps.core.weight_versions import Held, Lineage, Part, fingerprint
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.runtime.binding import Numbers

_REQUIRED = ("gamma", "beta", "number_of_feature_channels", "label")
_GROUPS = "number_of_groups"
PART = Part.reloaded_by("gamma and beta", "reload_gamma_and_beta", "gamma_and_beta_state")


@dataclass(frozen=True, slots=True)
class LoadedParameters:
    """What a data source gave; without a number of groups each channel is a group."""

    channels: int
    groups: int
    epsilon: float
    gamma: NDArray[np.float32]
    beta: NDArray[np.float32]


def load_parameters(who: str, source: Any, *, is_grouped: bool) -> LoadedParameters:
    """Read a data source, between its load() and its purge() if it has them. None stands for gamma 1 and beta 0."""
    check_methods(who, "data_source", source, (*_REQUIRED, _GROUPS) if is_grouped else _REQUIRED)
    with loaded(who, source) if callable(getattr(source, "load", None)) else nullcontext():
        channels = count_of(who, source, "number_of_feature_channels")
        groups = _groups(who, source, channels) if is_grouped else channels
        epsilon = epsilon_of(who, source)
        gamma = channel_row(who, source, "gamma", channels, 1.0)
        beta = channel_row(who, source, "beta", channels, 0.0)
    return LoadedParameters(channels, groups, epsilon, gamma, beta)


def _groups(who: str, source: Any, channels: int) -> int:
    groups = count_of(who, source, _GROUPS)
    if channels % groups:
        rule = f"must divide number_of_feature_channels(), {channels}"
        raise MPSArgumentError(who, f"data source {_GROUPS}()", rule, groups, "All groups have as many channels")
    return groups


class Settings(NamedTuple):
    """What a gradient kernel must know of the forward kernel besides geometry."""

    groups: int
    epsilon: float


class GammaAndBeta:
    """Float32 numbers, one a channel, in two buffers that stay the same objects for the kernel's life."""

    def __init__(self, device: MTLDevice, gamma: NDArray[np.float32], beta: NDArray[np.float32], held: Held) -> None:
        self.channels = gamma.size
        self.gamma = Numbers(device.new_buffer(data=gamma))
        self.beta = Numbers(device.new_buffer(data=beta))
        self.held = held
        """Which version of the data source's numbers these are."""
        held.memory = WeakMethod(self.numbers)

    @classmethod
    def of(cls, device: MTLDevice, source: object, given: LoadedParameters) -> GammaAndBeta:
        """What ``source`` gave at first."""
        return cls(
            device, given.gamma, given.beta, Held(Lineage.of(source, PART), fingerprint(given.gamma, given.beta))
        )

    def copy(self, device: MTLDevice, source: object) -> GammaAndBeta:
        """The numbers as they are now, in buffers of their own on ``device``; queued work is not waited for.

        ``source`` is the data source of the copy.
        """
        return GammaAndBeta(device, *self._rows(), self.held.copied(source))

    def numbers(self) -> list[Numbers]:
        """Where the numbers are in memory."""
        return [self.gamma, self.beta]

    def equal(self, given: LoadedParameters) -> bool:
        """Whether these are the numbers that a data source gave. Reads them; queued work is not waited for."""
        pairs = zip(self._rows(), (given.gamma, given.beta), strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def _rows(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.gamma.value().cpu().numpy(), self.beta.value().cpu().numpy()

    def reload(self, who: str, given: LoadedParameters) -> None:
        """Take what a data source gave, at once and in place; the number of channels must not have changed."""
        if given.channels != self.channels:
            rule = f"must return {self.channels}, as when the kernel was made"
            remedy = "Make a new kernel for another number of channels"
            raise MPSArgumentError(who, "data source number_of_feature_channels()", rule, given.channels, remedy)
        self.held.read(fingerprint(given.gamma, given.beta), lambda: not self.equal(given))
        self.gamma.value().copy_(torch.from_numpy(given.gamma))
        self.beta.value().copy_(torch.from_numpy(given.beta))
