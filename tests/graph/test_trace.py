"""Traces of graphs: the values are those of the formulas, by label, and a trace changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import openmps as mps
from helpers import assert_close
from openmps.training import Network, NetworkShape, optimizer_factory
from planted_networks import program

FLOAT32, FLOAT16 = mps.MPSImageFeatureChannelFormat.FLOAT32, mps.MPSImageFeatureChannelFormat.FLOAT16
ROUNDING = 1e-5
SHAPE = NetworkShape(8, 8, 1, 3, "tiny")


def _channels_last(x: torch.Tensor) -> np.ndarray:
    return x.detach().permute(0, 2, 3, 1).numpy()


def _expected(trace: mps.Trace) -> dict[str, np.ndarray]:
    """Every image and gradient of `program`, by torch in float64 from its source and its weights alone."""
    x = torch.from_numpy(trace["image"].astype(np.float64)).permute(0, 3, 1, 2)
    given = {name: torch.from_numpy(trace[name].astype(np.float64)) for name in ("conv1/weights", "fc1/weights")}
    kernels = {name: value.permute(0, 3, 1, 2).requires_grad_() for name, value in given.items()}
    conv1 = F.conv2d(x, kernels["conv1/weights"], padding=1)
    relu1 = F.relu(conv1)
    fc1 = F.conv2d(relu1, kernels["fc1/weights"])
    for image in (conv1, relu1, fc1):
        image.retain_grad()
    targets = torch.from_numpy(trace["loss/labels"].argmax(3).reshape(-1))
    losses = F.cross_entropy(fc1.flatten(1), targets, reduction="none")
    losses.sum().backward()
    assert relu1.grad is not None
    assert conv1.grad is not None
    assert fc1.grad is not None
    return {
        "conv1": _channels_last(conv1),
        "relu1": _channels_last(relu1),
        "fc1": _channels_last(fc1),
        "loss/losses": losses.detach().numpy().reshape(-1, 1, 1, 1),
        "loss": _channels_last(fc1.grad),
        "fc1 gradient": _channels_last(relu1.grad),
        "relu1 gradient": _channels_last(conv1.grad),
        **{
            f"{name.partition('/')[0]} gradient/weights_gradient": kernel.grad.permute(0, 2, 3, 1).numpy()
            for name, kernel in kernels.items()
            if kernel.grad is not None
        },
    }


def test_every_image_gradient_and_state_is_that_of_the_formula() -> None:
    names = program()
    trace = names["graph"].trace([names["images"]], [names["labels"]])
    expected = _expected(trace)
    for label, values in expected.items():
        assert_close(trace[label], values, ROUNDING, label)
    kinds = {entry.label: entry.kind for entry in trace.entries}
    assert kinds["image"] is kinds["loss/labels"] is mps.TracedKind.SOURCE
    assert kinds["conv1/weights"] is mps.TracedKind.PARAMETER
    assert kinds["relu1"] is mps.TracedKind.IMAGE
    assert kinds["fc1 gradient"] is mps.TracedKind.GRADIENT
    assert kinds["conv1 gradient/weights_gradient"] is mps.TracedKind.STATE
    assert set(expected) <= set(trace)


def _network(device: Any) -> tuple[mps.MPSNNGraph, Network]:
    shape = NetworkShape(8, 8, 1, 3, "sample")
    network = Network.create(shape, seed=3, optimizer=optimizer_factory("adam", 1e-3))
    return network.training_graph(device, FLOAT32, loss_weight=1.0, dropout_seed=5), network


@pytest.mark.parametrize("fused", [False, True])
def test_a_trace_changes_nothing(fused: bool, device: torch.device, rng: np.random.Generator) -> None:
    """Two equal trainings, of which one is traced between its steps, come to the same bits: masks and weights."""
    images = rng.integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    ends: list[dict[str, np.ndarray]] = []
    for is_traced in (False, True):
        made = mps.mtl_device(device)
        graph, network = _network(made)
        queue, traces = made.new_command_queue(), list[mps.Trace]()
        for _ in range(2):
            labels = mps.MPSCNNLossLabels.batch(made, np.eye(3)[[0, 1, 2, 0]])
            if is_traced:
                traces += [graph.trace([images], [labels], fused=fused) for _ in range(2)]
            command_buffer = mps.MPSCommandBuffer(queue)
            graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(made, images)], [labels])
            command_buffer.commit()
            command_buffer.wait_until_completed()
        ends.append(network.arrays())
        if is_traced:
            dropout = [trace["dropout"] for trace in traces]
            assert np.array_equal(dropout[0], dropout[1]), "the mask of the next encode, both times"
            assert not np.array_equal(dropout[0], dropout[2])
    for name, array in ends[0].items():
        assert np.array_equal(array, ends[1][name]), name


def test_results_that_fusions_hide_are_there_and_the_trace_says_so(
    device: torch.device, rng: np.random.Generator
) -> None:
    network = Network.create(SHAPE, seed=3, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.inference_graph(mps.mtl_device(device), FLOAT32)
    images = rng.integers(0, 256, (2, 8, 8, 1)).astype(np.uint8)
    apart, fused = graph.trace([images]), graph.trace([images], fused=True)
    hidden = {"first_conv", "first_norm", "second_conv", "second_norm"}
    assert hidden <= set(apart)
    assert not hidden & set(fused)
    for trace in (apart, fused):
        assert all(f"'{name}'" in trace.notes[0] for name in hidden)
    assert apart.notes[0].startswith(f"{apart.notes[0].count(chr(39)) // 2} filters not fused here")
    command_buffer = graph.device.new_command_queue().command_buffer()
    result = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, images)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(fused["softmax"], result.numpy())
    shown = {"relu1", "pool1", "relu2", "fc", "softmax"}
    # On a GPU the rectifier runs behind the pooling, so that its own result is hidden, too.
    behind = {"relu1"} if device.type == "cuda" else set[str]()
    assert shown - set(fused) == behind
    assert all(f"'{name}'" in fused.notes[0] for name in behind)
    for name in shown - behind:
        assert_close(fused[name], apart[name], ROUNDING, name)


def test_images_are_given_as_they_are_stored(rng: np.random.Generator) -> None:
    names = program()
    names["graph"].format = FLOAT16
    pixels = rng.integers(0, 256, (4, 6, 6, 1)).astype(np.uint8)
    trace = names["graph"].trace([pixels], [names["labels"]])
    assert trace["conv1"].dtype == np.float16
    assert trace.entry("conv1").channel_format is FLOAT16
    assert trace.entry("image").format_name == "unorm8"
    assert np.array_equal(trace["image"], pixels.astype(np.float32) / np.float32(255))


def test_filters_without_labels_go_by_class_and_number() -> None:
    image = mps.MPSNNImageNode()
    first = mps.MPSCNNNeuronReLUNode(image)
    second = mps.MPSCNNNeuronReLUNode(first.result_image)
    first.label = second.label = "relu"
    last = mps.MPSCNNPoolingMaxNode(second.result_image, 2, 2)
    graph = mps.MPSNNGraph(mps.mtl_device("cpu"), last.result_image)
    trace = graph.trace([np.ones((1, 4, 4, 1), np.float32)])
    labels = [entry.label for entry in trace.entries if entry.kind is not mps.TracedKind.STATE]
    assert labels == ["source 0", "relu", "relu 2", "MPSCNNPoolingMax 2"]


def test_statistics_and_the_table() -> None:
    array = np.array([[0.0, 2.0], [np.nan, -1.0]], np.float32)
    entry = mps.TracedValue("x", "x", mps.TracedKind.STATE, "Kernel", None, array)
    assert entry.statistics == (-1.0, 2.0, pytest.approx(1 / 3), 0.25, 1)
    text = str(mps.Trace([entry], ["a note"]))
    assert "25.0 %" in text
    assert "note: a note" in text
    nothing = mps.TracedValue("y", "y", mps.TracedKind.STATE, "Kernel", None, np.full(2, np.inf))
    assert np.isnan(nothing.statistics.mean)
    assert nothing.statistics.not_finite == 2


def test_what_is_refused() -> None:
    names = program()
    graph, images, labels = names["graph"], names["images"], names["labels"]
    with pytest.raises(mps.MPSTypeError, match=r"source_images must be a sequence.*Pass \[images\]"):
        graph.trace(images)
    with pytest.raises(mps.MPSTypeError, match=r"source_images\[0\]"):
        graph.trace(["image"], [labels])
    with pytest.raises(mps.MPSArgumentError, match="source_states must have 1 entry, one for each input"):
        graph.trace([images])
    with pytest.raises(mps.MPSTypeError, match="fused must be True or False"):
        graph.trace([images], [labels], fused="yes")
    trace = graph.trace([images], [labels])
    with pytest.raises(mps.MPSArgumentError, match=r"label must be a label of the trace.*'conv1/weights'"):
        trace.entry("conv1/weight")
    with pytest.raises(KeyError):
        trace["nothing"]
