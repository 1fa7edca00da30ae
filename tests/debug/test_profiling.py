"""Profiles: operations against those of the formulas, what a row says, and the events of a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.debug.limits import MachineLimits
from openmps.debug.work import bytes_of, operations_of
from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient, FullyConnected, FullyConnectedGradient
from openmps.ops.convolution.convolution_transpose import ConvolutionTranspose, ConvolutionTransposeGradient
from openmps.ops.geometry import Axis, Window
from openmps.ops.matrix.recurrent_library import PackedRecurrence, PackLstm
from openmps.ops.op import Action, Op
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.reduce.gram_matrix import GramMatrix
from openmps.training import Network, NetworkShape, optimizer_factory
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from planted_networks import program

CPU = mps.mtl_device("cpu")
LIMITS = MachineLimits("a machine", {"float32": 1e9}, 1e9)
ALL = (True, True, True)


def _window(source: int, result: int, size: int, stride: int) -> Window:
    axis = Axis(source, result, size, stride, 1, (size - 1) // 2)
    return Window(x=axis, y=axis)


def _action(op: Op, wanted: tuple[bool, ...] = (True,)) -> Action:
    return Action(op, (), (0,) * op.results, wanted, ())


def _x(*shape: int) -> torch.Tensor:
    return torch.ones(shape).contiguous(memory_format=torch.channels_last) if len(shape) == 4 else torch.ones(shape)


ZERO = MPSImageEdgeMode.ZERO
SHAPES = (_x(2, 5, 6, 6), _x(2, 4, 8, 8), _x(5, 3, 3, 4))
CASES: dict[str, tuple[Op, tuple[torch.Tensor, ...], tuple[bool, ...], int]] = {
    "convolution": (Convolution(_window(8, 6, 3, 1), ZERO), SHAPES[1:], (True,), 2 * 2 * 6 * 6 * 5 * 3 * 3 * 4),
    "strides": (
        Convolution(_window(9, 4, 3, 2), ZERO),
        (_x(2, 4, 9, 9), SHAPES[2]),
        (True,),
        2 * 2 * 4 * 4 * 5 * 3 * 3 * 4,
    ),
    "groups": (
        Convolution(_window(8, 6, 3, 1), ZERO, 2),
        (SHAPES[1], _x(6, 3, 3, 2)),
        (True,),
        2 * 2 * 6 * 6 * 6 * 3 * 3 * 2,
    ),
    "gradient": (ConvolutionGradient(_window(8, 6, 3, 1), ZERO), SHAPES, ALL, 2 * 2 * 2 * 6 * 6 * 5 * 3 * 3 * 4),
    "gradient of the source": (
        ConvolutionGradient(_window(8, 6, 3, 1), ZERO),
        SHAPES,
        (True, False, False),
        2 * 2 * 6 * 6 * 5 * 3 * 3 * 4,
    ),
    "fully connected": (FullyConnected(), (_x(3, 4, 2, 2), _x(7, 2, 2, 4)), (True,), 2 * 3 * 7 * 2 * 2 * 4),
    "fully connected, gradient": (
        FullyConnectedGradient(),
        (_x(3, 7, 1, 1), _x(3, 4, 2, 2), _x(7, 2, 2, 4)),
        ALL,
        2 * 2 * 3 * 7 * 2 * 2 * 4,
    ),
    "gram": (GramMatrix(1.0), (_x(2, 3, 4, 5),), (True,), 2 * 2 * 3 * 3 * 4 * 5),
}
"""Operations, their operands, which results are wanted, and two for each product of the formula."""


@in_one_test
@pytest.mark.parametrize("name", CASES)
def test_operations_are_two_for_each_product(name: str) -> None:
    op, operands, wanted, count = CASES[name]
    given = [*operands, None] if op.results == 1 and len(operands) == 2 else [*operands]
    made = op.run(wanted, *given)
    results = made if isinstance(made, tuple) else (made,)
    assert operations_of(_action(op, wanted), given, results) == count


def test_operations_of_a_transposed_convolution() -> None:
    """As often as there are weights for each source pixel, whatever is computed beside: 2 N H W I O kh kw / groups."""
    window, weights, x = _window(4, 8, 3, 2), _x(6, 3, 3, 2), _x(2, 4, 4, 4)
    made = ConvolutionTranspose(window, 2).run((True,), x, weights, None)
    wanted = 2 * 2 * 4 * 4 * 4 * 6 * 3 * 3 // 2
    assert operations_of(_action(ConvolutionTranspose(window, 2)), [x, weights, None], [made]) == wanted
    back = _action(ConvolutionTransposeGradient(window, 2), ALL)
    assert operations_of(back, [made, x, weights], [x, weights, None]) == 2 * wanted


def test_operations_of_a_recurrent_layer_with_packed_weights() -> None:
    """Two for each product of a row of a step with the weights of four gates: of 3 inputs, and of 5 numbers of h."""
    op, packed = PackedRecurrence(2, 5), PackLstm().run((True,), _x(20, 3), _x(20, 5))
    given = [_x(2 * 7, 3), None, None, packed, None]
    made = op.run(ALL, *given)
    assert operations_of(_action(op, ALL), given, made) == 2 * 2 * 7 * 4 * 5 * (3 + 5)


def test_bytes_are_those_of_operands_and_results() -> None:
    x, half = _x(2, 3, 4, 4), torch.ones(5, dtype=torch.float16)
    op = _action(Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0))
    assert bytes_of(op, [x, None, half], [x.clone()]) == 2 * 2 * 3 * 16 * 4 + 10
    assert operations_of(op, [x], [x.clone()]) == x.numel()


def _encoder(form: mps.MPSImageFeatureChannelFormat) -> tuple[mps.MPSNNGraph, Callable[[Any], Any]]:
    network = Network.create(NetworkShape(8, 8, 1, 3, "tiny"), seed=0, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.inference_graph(CPU, form)
    images = mps.MPSImageBatch.from_numpy(CPU, np.zeros((2, 8, 8, 1), np.uint8))
    return graph, lambda command_buffer: graph.encode_batch(command_buffer, [images])


@pytest.fixture
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmps.debug.profiling.machine_limits", lambda device: LIMITS)


@pytest.mark.usefixtures("_limits")
def test_a_row_says_which_filters_are_one_step() -> None:
    _, encode = _encoder(mps.MPSImageFeatureChannelFormat.FLOAT32)
    profile = mps.debug.profile(CPU, encode, repeats=1)
    steps = {step.label: step for step in profile.steps if step.operation != "Load"}
    assert list(steps) == [
        "first_conv + first_norm + relu1", "pool1", "second_conv + second_norm + relu2", "average1", "fc", "softmax",
    ]  # fmt: skip
    fused = steps["first_conv + first_norm + relu1"]
    assert fused.operations == 2 * 2 * 8 * 8 * 8 * 9
    assert steps["fc"].operations == 2 * 2 * 3 * 16
    for step in profile.steps:
        assert step.limit == pytest.approx(min(1.0, max(step.operations, step.bytes) / 1e9 / step.seconds))
    assert all(label in str(profile) for label in steps)
    assert sum(profile.by_label().values()) == pytest.approx(profile.step_seconds)
    assert 0 <= profile.python_share <= 1
    assert profile.encode_seconds + profile.device_seconds <= profile.seconds


@pytest.mark.usefixtures("_limits")
def test_kernels_by_hand_and_updates_are_steps_too() -> None:
    names = program()
    graph = names["graph"]
    images = mps.MPSImageBatch.from_numpy(CPU, names["images"])
    relu = mps.MPSCNNNeuronReLU(CPU)
    relu.label = "mine"

    def encode(command_buffer: Any) -> None:
        graph.encode_batch(command_buffer, [images], [names["labels"]])
        relu.encode_batch(command_buffer, images)

    profile = mps.debug.profile(CPU, encode, repeats=1)
    works = [step.work for step in profile.steps]
    assert works[-1] == "MPSCNNNeuronReLU 'mine'"
    assert works.count("MPSNNOptimizerAdam") == 2
    assert "conv1 gradient" in {step.label for step in profile.steps}


@pytest.mark.usefixtures("_limits")
def test_a_chrome_trace_has_an_event_a_step(tmp_path: Path) -> None:
    _, encode = _encoder(mps.MPSImageFeatureChannelFormat.FLOAT16)
    profile = mps.debug.profile(CPU, encode, repeats=1)
    profile.save_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(profile.steps)
    begins = [event["ts"] for event in complete]
    assert begins == sorted(begins)
    assert begins[0] == 0
    assert all(event["dur"] > 0 for event in complete)


@pytest.mark.parametrize("rate", [1.0, 1e3, 1e6, 1e9, 1e15])
def test_no_step_does_better_than_a_limit(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    limits = MachineLimits("slow", {"float32": rate}, rate)
    monkeypatch.setattr("openmps.debug.profiling.machine_limits", lambda device: limits)
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("x"))).result_image)
    images = mps.MPSImageBatch.from_numpy(CPU, np.ones((1, 8, 8, 4), np.float32))
    found = mps.debug.profile(CPU, lambda command_buffer: graph.encode_batch(command_buffer, [images]), repeats=1)
    assert all(0.0 <= step.limit <= 1.0 for step in found.steps)
    if rate == 1.0:
        assert "100 %" in str(found)


def test_the_limits_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmps.debug.limits._SIDE", {"cpu": 32})
    monkeypatch.setattr("openmps.debug.limits._BYTES", {"cpu": 4096})
    limits = mps.debug.machine_limits(CPU)
    assert limits.operations["float32"] > 0
    assert limits.bandwidth > 0
    assert "GB/s" in str(limits)
    assert LIMITS.least_seconds(2e9, 1e9, torch.float16) == pytest.approx(2.0)
    assert LIMITS.least_seconds(0, 3e9, torch.float32) == pytest.approx(3.0)


def test_what_is_refused() -> None:
    with pytest.raises(mps.MPSTypeError, match="encode must be a function of a command buffer"):
        mps.debug.profile(CPU, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(mps.MPSArgumentError, match="repeats"):
        mps.debug.profile(CPU, lambda command_buffer: None, repeats=0)
    with pytest.raises(mps.MPSTypeError, match="device"):
        mps.debug.profile("cpu", lambda command_buffer: None)  # pyright: ignore[reportArgumentType]
