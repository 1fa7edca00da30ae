"""Graphs and kernels that hold old numbers of normalizations: gamma, beta, running means and variances."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from channel_sources import NORMALIZATIONS, Channels
from encoding import Bench, finish
from openmps.core.weight_versions import HoldsWeights
from openmps.errors import MPSTrainingWarning

C = 4
CPU, GPU = mps.MPSNNTrainingStyle.UPDATE_DEVICE_CPU, mps.MPSNNTrainingStyle.UPDATE_DEVICE_GPU
ROWS = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}


class Source(Channels):
    """Numbers that an update changes, in memory and, if it brings them back, in what the data source gives."""

    def __init__(self, brings_back: bool = True) -> None:
        super().__init__(C, 2)
        self.brings_back = brings_back
        self.rows = {name: np.full(C, value, np.float32) for name, value in ROWS.items()}

    def gamma(self) -> Any:
        return self.rows["gamma"]

    def beta(self) -> Any:
        return self.rows["beta"]

    def mean(self) -> Any:
        return self.rows["mean"]

    def variance(self) -> Any:
        return self.rows["variance"]

    def step(self, command_buffer: Any, state: type, *names: str) -> Any:
        rows = [self.rows[name] + np.float32(0.5) for name in names]
        if self.brings_back:
            self.rows.update(zip(names, rows, strict=True))
        if command_buffer is None:
            return True
        return state(*(command_buffer.device.new_buffer(data=row) for row in rows))

    def update_gamma_and_beta(self, command_buffer: Any, states: Any) -> Any:
        return self.step(command_buffer, mps.MPSCNNNormalizationGammaAndBetaState, "gamma", "beta")


class Running(Source):
    def update_mean_and_variance(self, command_buffer: Any, state: Any) -> Any:
        return self.step(command_buffer, mps.MPSCNNNormalizationMeanAndVarianceState, "mean", "variance")


class Scene:
    """A training graph and an inference graph over one data source of a normalization."""

    def __init__(self, device: torch.device, kind: str, style: Any = GPU, source: Any = None) -> None:
        self.bench, node = Bench.on(device), NORMALIZATIONS[kind][0]
        self.source = source or (Running() if kind == "batch" else Source())
        x, flow = mps.MPSNNImageNode(mps.Handle("x")), mps.MPSNNImageNode(mps.Handle("flow"))
        self.forward = node(x, self.source)
        self.forward.training_style = style
        backward = self.forward.gradient_filter(flow)
        self.training = self.graph(backward.result_image)
        self.inference = self.graph(node(mps.MPSNNImageNode(), self.source).result_image)
        self.name = f"{node.__name__.removesuffix('Node')} 'norm'"

    def graph(self, result: Any) -> mps.MPSNNGraph:
        made = mps.MPSNNGraph(self.bench.device, result)
        made.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return made

    def encode(self, graph: mps.MPSNNGraph) -> list[str]:
        """The warnings of an encode."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            command_buffer = self.bench.command_buffer()
            images = [self.bench.batch(np.ones((2, C, 3, 3))) for _ in graph.source_image_handles]
            graph.encode_batch(command_buffer, images)
            finish(command_buffer)
        assert all(each.category is MPSTrainingWarning for each in caught)
        return [str(each.message) for each in caught]


every_kind = pytest.mark.parametrize("kind", NORMALIZATIONS)


@every_kind
@pytest.mark.parametrize("style", [CPU, GPU], ids=["on the CPU", "on the device"])
def test_an_inference_graph_that_was_not_reloaded(kind: str, style: Any, device: torch.device) -> None:
    scene = Scene(device, kind, style)
    assert (scene.encode(scene.inference), scene.inference.stale_weights()) == ([], [])
    for _ in range(2):
        assert scene.encode(scene.training) == scene.encode(scene.training) == []
        assert scene.training.stale_weights() == []
        assert scene.inference.stale_weights() == [scene.name]
        (message,) = scene.encode(scene.inference)
        assert message.startswith(f"{scene.name}: another graph or kernel of the same data source was given newer")
        assert scene.encode(scene.inference) == [], "said once"
        scene.inference.reload_from_data_sources()
        assert (scene.encode(scene.inference), scene.inference.stale_weights()) == ([], [])


@every_kind
def test_a_data_source_that_keeps_its_first_numbers(kind: str, device: torch.device) -> None:
    kept = Running(False) if kind == "batch" else Source(False)
    scene = Scene(device, kind, source=kept)
    assert scene.encode(scene.training) == []
    assert scene.training.stale_weights() == [scene.name]
    scene.inference.reload_from_data_sources()
    assert len(scene.encode(scene.inference)) == 1, "reloading does not help"
    later = scene.graph(type(scene.forward)(mps.MPSNNImageNode(), scene.source).result_image)
    assert later.stale_weights() == [scene.name]
    assert len(scene.encode(later)) == 1, "nor does making another graph"


@every_kind
def test_copies_and_graphs_that_are_made_later(kind: str, device: torch.device) -> None:
    scene = Scene(device, kind)
    early = scene.inference.copy()
    scene.encode(scene.training)
    assert len(scene.encode(early)) == 1
    assert len(scene.encode(early.copy())) == 1, "a copy holds what its original holds"
    early.reload_from_data_sources()
    assert scene.encode(early.copy()) == []
    later = scene.graph(type(scene.forward)(mps.MPSNNImageNode(), scene.source).result_image)
    assert scene.encode(later) == []


def test_running_statistics_alone(device: torch.device) -> None:
    """They are what an inference graph runs on, and what a training graph never looks at."""
    scene = Scene(device, "batch", source=Running())
    scene.source.rows["mean"] = scene.source.rows["mean"] + np.float32(2)
    assert scene.inference.stale_weights() == [scene.name]
    assert scene.training.stale_weights() == [], "the statistics of the batch are its own"
    scene.inference.reload_from_data_sources()
    assert (scene.inference.stale_weights(), scene.encode(scene.inference)) == ([], [])
    scene.source.rows["mean"] = scene.source.rows["mean"] + np.float32(2)
    other = scene.inference.copy()
    other.reload_from_data_sources()
    assert len(scene.encode(scene.inference)) == 1


KERNELS = {
    "batch": mps.MPSCNNBatchNormalization,
    "instance": mps.MPSCNNInstanceNormalization,
    "group": mps.MPSCNNGroupNormalization,
}


@every_kind
def test_numbers_that_come_again_on_the_device_are_no_news(kind: str, device: torch.device) -> None:
    """A graph that takes the numbers that the data source gives leaves no other behind; one number more does."""
    scene = Scene(device, kind)
    assert scene.encode(scene.inference) == []
    rows = [scene.source.rows[name] for name in ("gamma", "beta")]
    for more, count in ((0.0, 0), (0.5, 1)):
        buffers = [scene.bench.device.new_buffer(data=row + np.float32(more)) for row in rows]
        command_buffer = scene.bench.command_buffer()
        state = mps.MPSCNNNormalizationGammaAndBetaState(*buffers)
        scene.training.kernels[scene.forward].reload_gamma_and_beta(command_buffer, state)
        finish(command_buffer)
        assert len(scene.encode(scene.inference)) == count


@every_kind
def test_kernels_by_themselves(kind: str, device: torch.device) -> None:
    """Two over one data source, of which one is reloaded: from the source, and from a state."""
    bench, source = Bench.on(device), Source()
    first, second = (KERNELS[kind](bench.device, source) for _ in range(2))

    def encode(kernel: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            command_buffer = bench.command_buffer()
            kernel.encode_batch(command_buffer, bench.batch(np.ones((2, C, 2, 2))))
            finish(command_buffer)
        return [str(each.message) for each in caught]

    assert (encode(first), encode(second)) == ([], [])
    source.rows["gamma"] = source.rows["gamma"] * np.float32(3)
    assert first.holds_stale_weights() and second.holds_stale_weights()
    first.reload_gamma_and_beta_from_data_source()
    assert (first.holds_stale_weights(), second.holds_stale_weights()) == (False, True)
    (message,) = encode(second)
    assert message == (
        f"{second.name}: holds version 1 of gamma and beta, and another kernel of the same data source was given "
        "version 2: after each update reload every kernel, with reload_gamma_and_beta_from_data_source() or "
        "reload_gamma_and_beta(command_buffer, gamma_and_beta_state)"
    )
    assert (encode(first), encode(second)) == ([], []), "said once"
    command_buffer = bench.command_buffer()
    rows = [bench.device.new_buffer(data=source.rows[name]) for name in ("gamma", "beta")]
    state = mps.MPSCNNNormalizationGammaAndBetaState(*rows)
    for kernel in (second, first):
        kernel.reload_gamma_and_beta(command_buffer, state)
    finish(command_buffer)
    assert (encode(first), encode(second)) == ([], [])
    command_buffer = bench.command_buffer()
    second.reload_gamma_and_beta(command_buffer, mps.MPSCNNNormalizationGammaAndBetaState(*reversed(rows)))
    finish(command_buffer)
    assert len(encode(first)) == 1


def test_a_kernel_with_statistics_of_the_batch_does_not_look_at_the_stored_ones(device: torch.device) -> None:
    bench, source = Bench.on(device), Running()
    first, second = (mps.MPSCNNBatchNormalization(bench.device, source) for _ in range(2))
    source.rows["mean"] = source.rows["mean"] + np.float32(1)
    first.reload_mean_and_variance_from_data_source()
    command_buffer, images = bench.command_buffer(), bench.batch(np.ones((2, C, 2, 2)))
    state = second.result_state(images[0])
    mps.MPSCNNBatchNormalizationStatistics(bench.device).encode_batch(command_buffer, images, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.encode_batch(command_buffer, images, state)
    with pytest.warns(MPSTrainingWarning, match="holds version 1 of mean and variance"):
        second.encode_batch(command_buffer, images)
    finish(command_buffer)


def test_every_kernel_that_is_reloaded_counts_versions() -> None:
    """Whatever has a method that reads its data source again is one that graphs watch."""
    kernels = [getattr(mps, name) for name in dir(mps) if name.startswith(("MPSCNN", "MPSNN"))]
    reloaded = [
        kernel
        for kernel in kernels
        if isinstance(kernel, type)
        and issubclass(kernel, mps.MPSKernel)
        and any(name.startswith("reload_") and name.endswith("_source") for name in dir(kernel))
    ]
    assert {mps.MPSCNNConvolution, *KERNELS.values()} <= set(reloaded)
    assert [kernel.__name__ for kernel in reloaded if not issubclass(kernel, HoldsWeights)] == []
