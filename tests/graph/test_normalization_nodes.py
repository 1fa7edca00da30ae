"""Batch, instance and group normalization in training graphs: numbers, flags, updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import FLOAT16, FLOAT32, Bench, finish, numbers
from helpers import assert_close
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState, MPSCNNNormalizationMeanAndVarianceState
from openmps.types import MPSCNNBatchNormalizationFlags, MPSNNTrainingStyle

Flags, Style = MPSCNNBatchNormalizationFlags, MPSNNTrainingStyle
C, EPSILON, TOLERANCE = 4, 1e-3, 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:.*has no update:openmps.errors.MPSTrainingWarning")


class Source:
    """Parameters as arrays, without updates."""

    def __init__(self, bench: Bench, seed: int = 0, epsilon: float | None = EPSILON) -> None:
        rng = np.random.default_rng(seed)
        self.bench = bench
        self.rows = {
            "gamma": rng.uniform(0.5, 1.5, C).astype(np.float32),
            "beta": rng.normal(size=C).astype(np.float32),
            "mean": rng.normal(size=C).astype(np.float32),
            "variance": rng.uniform(0.5, 2.0, C).astype(np.float32),
        }
        self.calls: list[tuple[str, Any, Any]] = []
        if epsilon is not None:
            self.epsilon = lambda: epsilon

    def number_of_feature_channels(self) -> int:
        return C

    def number_of_groups(self) -> int:
        return 2

    def gamma(self) -> Any:
        return self.rows["gamma"]

    def beta(self) -> Any:
        return self.rows["beta"]

    def mean(self) -> Any:
        return self.rows["mean"]

    def variance(self) -> Any:
        return self.rows["variance"]

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str:
        return "norm"


class Trained(Source):
    """Adds the batch's gradients to gamma and beta, and moves the running statistics by a tenth."""

    def update_gamma_and_beta(self, command_buffer: Any, states: Any) -> Any:
        self.calls.append(("gamma and beta", command_buffer, states))
        if command_buffer is not None:
            zeros, ones = np.zeros(C, np.float32), np.ones(C, np.float32)
            buffers = (self.bench.device.new_buffer(data=each) for each in (zeros, ones))
            return MPSCNNNormalizationGammaAndBetaState(*buffers)
        sums = self.gradients()
        self.rows["gamma"] = self.rows["gamma"] + sums[0]
        self.rows["beta"] = self.rows["beta"] + sums[1]
        return True

    def gradients(self) -> list[np.ndarray]:
        """Those that the last call got, summed over the images."""
        states = next(states for name, _, states in reversed(self.calls) if name == "gamma and beta")
        listed = list(states) if isinstance(states, mps.MPSStateBatch) else [states]
        names = ("gradient_for_gamma", "gradient_for_beta")
        return [np.sum([_row(getattr(state, name)) for state in listed], axis=0) for name in names]


class Running(Trained):
    """Has running statistics too."""

    def update_mean_and_variance(self, command_buffer: Any, state: Any) -> Any:
        self.calls.append(("mean and variance", command_buffer, state))
        if command_buffer is not None:
            rows = (np.full(C, 3.0, np.float32), np.full(C, 4.0, np.float32))
            return MPSCNNNormalizationMeanAndVarianceState(*(self.bench.device.new_buffer(data=row) for row in rows))
        for name in ("mean", "variance"):
            self.rows[name] = np.float32(0.9) * self.rows[name] + np.float32(0.1) * _row(getattr(state, name))
        return True


def _row(buffer: Any) -> np.ndarray:
    found = buffer() if callable(buffer) else buffer
    return np.array(found.tensor(torch.float32).cpu().numpy())


KINDS = {
    "batch": mps.MPSCNNBatchNormalizationNode,
    "instance": mps.MPSCNNInstanceNormalizationNode,
    "group": mps.MPSCNNGroupNormalizationNode,
}


class Net:
    """One normalization and its gradient."""

    def __init__(self, bench: Bench, kind: str, source: Any, flags: Flags | None = None, style: Any = None) -> None:
        self.bench, self.source = bench, source
        self.x, self.flow = mps.MPSNNImageNode(mps.Handle("x")), mps.MPSNNImageNode(mps.Handle("flow"))
        self.node = KINDS[kind](self.x, source)
        if flags is not None:
            self.node.flags = flags
        if style is not None:
            self.node.training_style = style
        self.backward = self.node.gradient_filter(self.flow)
        for each in (self.node, self.backward):
            each.result_image.image_allocator = mps.MPSImage.default_allocator()
        self.graph = mps.MPSNNGraph(bench.device, result_images=[self.node.result_image, self.backward.result_image])
        self.graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32

    def run(self, x: np.ndarray, flow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        graph = self.graph
        given = {"x": self.bench.batch(x, graph.format), "flow": self.bench.batch(flow, graph.format)}
        others: list[Any] = []
        command_buffer = self.bench.command_buffer()
        order = [given[handle.label()] for handle in graph.source_image_handles]
        result = graph.encode_batch(command_buffer, order, None, others)
        finish(command_buffer)
        return numbers(result), numbers(others[0])


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


@pytest.fixture
def arrays(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(3, C, 4, 5)).astype(np.float32), rng.normal(size=(3, C, 4, 5)).astype(np.float32)


# --- batch normalization ----------------------------------------------------------------------------------------------


def _torch_batch(source: Source, x: np.ndarray, flow: np.ndarray, *, batch: bool) -> list[np.ndarray]:
    """Result, and the gradients of image, gamma and beta, in float64."""
    leaf, gamma, beta = (
        torch.tensor(each, dtype=torch.float64, requires_grad=True)
        for each in (x, source.rows["gamma"], source.rows["beta"])
    )
    mean, variance = (torch.tensor(source.rows[name], dtype=torch.float64) for name in ("mean", "variance"))
    epsilon = getattr(source, "epsilon", lambda: float(np.finfo(np.float32).tiny))()
    y = torch.nn.functional.batch_norm(leaf, mean, variance, gamma, beta, batch, 0.0, epsilon)
    y.backward(torch.tensor(flow, dtype=torch.float64))
    return [each.detach().numpy() for each in (y, leaf.grad, gamma.grad, beta.grad) if each is not None]


@pytest.mark.parametrize("epsilon", [EPSILON, None], ids=["epsilon", "no epsilon"])
@pytest.mark.parametrize("flags", [Flags.DEFAULT, Flags.CALCULATE_STATISTICS_ALWAYS, Flags.CALCULATE_STATISTICS_NEVER])
def test_batch_normalization_is_that_of_autograd(bench: Bench, arrays: Any, flags: Flags, epsilon: Any) -> None:
    source = Trained(bench, epsilon=epsilon)
    net = Net(bench, "batch", source, flags)
    expected = _torch_batch(source, *arrays, batch=flags is not Flags.CALCULATE_STATISTICS_NEVER)
    found = net.run(*arrays)
    for actual, values in zip((*found, *source.gradients()), expected, strict=True):
        assert_close(actual, values, TOLERANCE, "of the graph")


@pytest.mark.parametrize("channel_format", [FLOAT32, FLOAT16])
def test_batch_normalization_gives_the_bits_of_the_four_kernels(bench: Bench, arrays: Any, channel_format: Any) -> None:
    source = Running(bench)
    net = Net(bench, "batch", source)
    net.graph.format = channel_format
    found = net.run(*arrays)
    device = bench.device
    x, flow = (bench.batch(each, channel_format) for each in arrays)
    normalization, gradient = (
        mps.MPSCNNBatchNormalization(device, Source(bench)),
        mps.MPSCNNBatchNormalizationGradient(device),
    )
    for kernel in (normalization, gradient):
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    command_buffer = bench.command_buffer()
    state = normalization.result_state(x[0])
    mps.MPSCNNBatchNormalizationStatistics(device).encode_batch(command_buffer, x, state)
    y = normalization.encode_batch(command_buffer, x, state)
    mps.MPSCNNBatchNormalizationStatisticsGradient(device).encode_batch(command_buffer, flow, x, state)
    dx = gradient.encode_batch(command_buffer, flow, x, state)
    finish(command_buffer)
    np.testing.assert_array_equal(found[0], numbers(y))
    np.testing.assert_array_equal(found[1], numbers(dx))
    (_, _, given), (_, _, again) = source.calls
    assert given is again, "both updates get the one state of the batch"
    for name in ("gamma", "beta", "mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
        np.testing.assert_array_equal(_row(getattr(given, name)), _row(getattr(state, name)), err_msg=name)


def test_without_a_gradient_the_stored_statistics_are_used(bench: Bench, arrays: Any) -> None:
    source = Source(bench)
    x = mps.MPSNNImageNode()
    results = []
    for flags in (Flags.DEFAULT, Flags.CALCULATE_STATISTICS_NEVER, Flags.CALCULATE_STATISTICS_ALWAYS):
        node = mps.MPSCNNBatchNormalizationNode(x, source)
        node.flags = flags
        graph = mps.MPSNNGraph(bench.device, node.result_image)
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        command_buffer = bench.command_buffer()
        result = graph.encode_batch(command_buffer, [bench.batch(arrays[0])])
        finish(command_buffer)
        results.append(numbers(result))
    stored, batch = (_torch_batch(source, *arrays, batch=each)[0] for each in (False, True))
    for actual, expected in zip(results, (stored, stored, batch), strict=True):
        assert_close(actual, expected, TOLERANCE, "result")


def test_an_exported_state_holds_statistics_and_gradients(bench: Bench, arrays: Any) -> None:
    net = Net(bench, "batch", Source(bench))
    net.node.result_state.export_from_graph = True
    graph = mps.MPSNNGraph(bench.device, result_image=net.backward.result_image)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    states: list[Any] = []
    command_buffer = bench.command_buffer()
    given = {"x": bench.batch(arrays[0]), "flow": bench.batch(arrays[1])}
    graph.encode_batch(command_buffer, [given[each.label()] for each in graph.source_image_handles], None, None, states)
    finish(command_buffer)
    (batch,) = states
    assert len(batch) == 3
    assert batch[0] is batch[2]
    expected = _torch_batch(net.source, *arrays, batch=True)
    assert_close(_row(batch[0].mean), arrays[0].astype(np.float64).mean((0, 2, 3)), TOLERANCE, "mean")
    assert_close(_row(batch[0].gradient_for_gamma), expected[2], TOLERANCE, "gradient of gamma")


@pytest.mark.parametrize("value", [3, 4, "always", None])
def test_flags_are_checked(bench: Bench, value: Any) -> None:
    node = mps.MPSCNNBatchNormalizationNode(mps.MPSNNImageNode(), Source(bench))
    with pytest.raises(mps.MPSArgumentError, match=r"^MPSCNNBatchNormalizationNode 'norm': flags must be DEFAULT"):
        node.flags = value


# --- updates ----------------------------------------------------------------------------------------------------------


def _kernel_rows(kernel: Any) -> tuple[np.ndarray, np.ndarray]:
    pair = kernel.gamma_and_beta if hasattr(kernel, "gamma_and_beta") else None
    buffers = (kernel.numbers.gamma.buffer, kernel.numbers.beta.buffer) if pair is None else pair
    return _row(buffers[0]), _row(buffers[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_device_updates_once_a_batch(bench: Bench, arrays: Any, kind: str) -> None:
    source = Running(bench) if kind == "batch" else Trained(bench)
    net = Net(bench, kind, source)
    first = net.run(*arrays)
    asked = ["gamma and beta", "mean and variance"] if kind == "batch" else ["gamma and beta"]
    assert [name for name, _, _ in source.calls] == asked
    assert all(command_buffer is not None for _, command_buffer, _ in source.calls)
    states = source.calls[0][2]
    assert (isinstance(states, mps.MPSStateBatch) and len(states) == 3) is (kind != "batch")
    gamma, beta = _kernel_rows(net.graph.kernels[net.node])
    np.testing.assert_array_equal(gamma, np.zeros(C))
    np.testing.assert_array_equal(beta, np.ones(C))
    if kind == "batch":
        np.testing.assert_array_equal(_row(net.graph.kernels[net.node].mean_and_variance.second), np.full(C, 4.0))
    second = net.run(*arrays)
    assert np.any(first[0] != second[0])
    np.testing.assert_array_equal(second[0], np.ones_like(second[0]))
    assert len(source.calls) == 2 * len(asked)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cpu_updates_when_the_batch_is_done(bench: Bench, arrays: Any, kind: str) -> None:
    source = Running(bench) if kind == "batch" else Trained(bench)
    before = {name: row.copy() for name, row in source.rows.items()}
    net = Net(bench, kind, source, style=Style.UPDATE_DEVICE_CPU)
    assert net.backward.training_style is Style.UPDATE_DEVICE_CPU
    net.run(*arrays)
    assert [command_buffer for _, command_buffer, _ in source.calls] == [None] * (2 if kind == "batch" else 1)
    gradients = source.gradients()
    np.testing.assert_array_equal(source.rows["gamma"], before["gamma"] + gradients[0])
    gamma, beta = _kernel_rows(net.graph.kernels[net.node])
    np.testing.assert_array_equal(gamma, source.rows["gamma"])
    np.testing.assert_array_equal(beta, source.rows["beta"])
    if kind == "batch":
        means = _row(net.graph.kernels[net.node].mean_and_variance.first)
        np.testing.assert_array_equal(means, source.rows["mean"])
        assert np.any(means != before["mean"])


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_updates_where_the_style_says_so(bench: Bench, arrays: Any, kind: str) -> None:
    source = Running(bench)
    net = Net(bench, kind, source, style=Style.UPDATE_DEVICE_NONE)
    net.run(*arrays)
    assert source.calls == []


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_read_data_sources_again(bench: Bench, arrays: Any, kind: str) -> None:
    source = Source(bench)
    net = Net(bench, kind, source)
    net.run(*arrays)
    source.rows = Source(bench, seed=5).rows
    net.graph.reload_from_data_sources()
    fresh = Net(bench, kind, Source(bench, seed=5))
    for actual, expected in zip(net.run(*arrays), fresh.run(*arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_update_returns_is_checked(bench: Bench, arrays: Any, kind: str) -> None:
    source = Trained(bench)
    source.update_gamma_and_beta = lambda command_buffer, states: 3
    net = Net(bench, kind, source)
    rule = r"data source update_gamma_and_beta\(\) must return an MPSCNNNormalizationGammaAndBetaState or None"
    with pytest.raises(mps.MPSTypeError, match=rule):
        net.run(*arrays)


def test_nodes_over_one_data_source_follow_its_update(bench: Bench, arrays: Any) -> None:
    source = Trained(bench)
    x, flow = mps.MPSNNImageNode(mps.Handle("x")), mps.MPSNNImageNode(mps.Handle("flow"))
    first = mps.MPSCNNInstanceNormalizationNode(x, source)
    second = mps.MPSCNNInstanceNormalizationNode(first.result_image, source)
    ends = second.training_graph(flow, lambda *nodes: None)
    assert ends is not None
    graph = mps.MPSNNGraph(bench.device, ends[0].result_image)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    given = {"x": bench.batch(arrays[0]), "flow": bench.batch(arrays[1])}
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [given[handle.label()] for handle in graph.source_image_handles])
    finish(command_buffer)
    assert len(source.calls) == 2, "once for each of them"
    for node in (first, second):
        np.testing.assert_array_equal(_kernel_rows(graph.kernels[node])[1], np.ones(C))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_nothing_updates_are_named(bench: Bench, arrays: Any, kind: str) -> None:
    net = Net(bench, kind, Source(bench))
    name = type(net.backward).__name__
    with pytest.warns(mps.MPSTrainingWarning, match=f"{name} 'norm': the data source has no update"):
        net.run(*arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_name_the_kernel_that_users_know(bench: Bench, kind: str) -> None:
    class Short(Source):
        def gamma(self) -> Any:
            return [1.0]

    known = KINDS[kind].__name__.removesuffix("Node")
    with pytest.raises(
        mps.MPSArgumentError, match=rf"^{known}: data source gamma\(\) must return one number a feature"
    ):
        Net(bench, kind, Short(bench))


@pytest.mark.parametrize(("kind", "rows"), [("batch", 4), ("instance", 2), ("group", 2)])
def test_a_summary_counts_the_parameters(bench: Bench, kind: str, rows: int) -> None:
    net = Net(bench, kind, Source(bench))
    descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 5, 4, C)
    assert mps.graph_summary(net.graph, [descriptor] * 2, 3).parameters == rows * C
