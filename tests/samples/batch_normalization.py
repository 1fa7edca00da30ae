"""Batch normalization with the stored mean and variance; with those of a batch it is tested for itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.kernels import batch_normalization as kernels
from openmps.types import MPSCNNNeuronType
from oracles import batch_normalization as oracle
from oracles import neuron
from samples.sample import CLAMP, Array, CountedSource, Reading, Sample, Shape, configured, exact


class ChannelSource(CountedSource):
    """A data source over rows, each of which may be missing; it counts its loads."""

    name = "normalization"

    def __init__(self, channels: int, epsilon: float | None = None, **rows: Any) -> None:
        self.channels, self.rows = channels, rows
        if epsilon is not None:
            self.epsilon = lambda: epsilon

    def number_of_feature_channels(self) -> int:
        return self.channels

    def _row(self, name: str) -> Any:
        self.check_loaded()
        return self.rows.get(name)

    def gamma(self) -> Any:
        return self._row("gamma")

    def beta(self) -> Any:
        return self._row("beta")

    def mean(self) -> Any:
        return self._row("mean")

    def variance(self) -> Any:
        return self._row("variance")


def rows(channels: int) -> dict[str, Array]:
    """gamma, beta, mean and variance that float32 holds; the same ones each time."""
    random = np.random.default_rng(channels)
    drawn = {
        "gamma": random.normal(size=channels) + 1.5,
        "beta": random.normal(size=channels),
        "mean": random.normal(size=channels),
        "variance": random.uniform(0.5, 2.0, size=channels),
    }
    return {name: exact(row) for name, row in drawn.items()}


def activated(z: Array, fused: MPSNNNeuronDescriptor | None) -> Array:
    """The fused neuron of the oracle."""
    return z if fused is None else neuron.forward(z, *_arguments(fused))


def activated_gradient(g: Array, z: Array, fused: MPSNNNeuronDescriptor | None) -> Array:
    """Its derivative."""
    return g if fused is None else neuron.gradient(g, z, *_arguments(fused))


def _arguments(fused: MPSNNNeuronDescriptor) -> tuple[Any, ...]:
    data = None if fused.data is None else fused.data.astype(np.float64)
    return int(fused.neuron_type), fused.a, fused.b, fused.c, data


def _normalization(
    name: str, shape: Shape, fused: MPSNNNeuronDescriptor | None = None, epsilon: float = 1e-3, **properties: Any
) -> Sample:
    channels = shape[0]
    p = rows(channels)

    def make(device: Any) -> Any:
        return configured(
            kernels.MPSCNNBatchNormalization(device, ChannelSource(channels, epsilon, **p), fused), properties
        )

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        region = how[0].region(sources[0])
        z = oracle.forward(region, p["mean"], p["variance"], p["gamma"], p["beta"], epsilon)
        return activated(z, fused)

    return Sample(
        f"batch normalization {name}", make, (shape,), forward, traits=frozenset({"pointwise", "across channels"})
    )


PRELU = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=[0.25, -0.5, 0.125, 2.0, 0.75])
BATCH_NORMALIZATIONS = [
    _normalization("5 channels", (5, 4, 3)),
    _normalization("one pixel", (1, 1, 1)),
    _normalization("4 channels, clamp", (4, 3, 5), edge_mode=CLAMP),
    _normalization("relu", (3, 2, 4), MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, 0.1)),
    _normalization("prelu, large epsilon", (5, 3, 3), PRELU, epsilon=0.5),
]
