"""Data sources of normalizations that note what they are asked."""

from __future__ import annotations

from typing import Any

import numpy as np

import openmps as mps


class Channels:
    """That of an instance or group normalization."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        self.channels, self.groups = channels, groups
        self.log: list[str] = []
        self.scale = np.linspace(0.5, 1.5, channels).astype(np.float32)

    def number_of_feature_channels(self) -> int:
        return self.channels

    def number_of_groups(self) -> int:
        return self.groups

    def gamma(self) -> Any:
        return self.scale

    def beta(self) -> Any:
        return np.zeros(self.channels, np.float32)

    def mean(self) -> Any:
        return np.zeros(self.channels, np.float32)

    def variance(self) -> Any:
        return np.ones(self.channels, np.float32)

    def epsilon(self) -> float:
        return 1e-3

    def load(self) -> bool:
        self.log.append("load")
        return True

    def purge(self) -> None:
        self.log.append("purge")

    def label(self) -> str:
        return "norm"

    def update_gamma_and_beta(self, command_buffer: Any, states: Any) -> Any:
        self.log.append("gamma and beta" if command_buffer is not None else "gamma and beta on the CPU")


class BatchChannels(Channels):
    """That of a batch normalization."""

    def update_mean_and_variance(self, command_buffer: Any, state: Any) -> Any:
        self.log.append("mean and variance" if command_buffer is not None else "mean and variance on the CPU")


NORMALIZATIONS: dict[str, tuple[Any, Any, list[str]]] = {
    "batch": (mps.MPSCNNBatchNormalizationNode, BatchChannels, ["gamma and beta", "mean and variance"]),
    "instance": (mps.MPSCNNInstanceNormalizationNode, Channels, ["gamma and beta"]),
    "group": (mps.MPSCNNGroupNormalizationNode, Channels, ["gamma and beta"]),
}
