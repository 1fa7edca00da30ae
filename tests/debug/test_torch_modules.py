"""Traces of PyTorch modules: what each layer gives, as images, beside the graph that is made of the module."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.formats import onnx

CPU = mps.mtl_device("cpu")


def _module() -> torch.nn.Sequential:
    layers = OrderedDict[str, torch.nn.Module](
        conv1=torch.nn.Conv2d(3, 4, 3, padding=1),
        relu1=torch.nn.ReLU(inplace=True),
        drop=torch.nn.Dropout(),
        pool1=torch.nn.MaxPool2d(2),
        flat=torch.nn.Flatten(),
        fc1=torch.nn.Linear(4 * 3 * 3, 5),
    )
    return torch.nn.Sequential(layers)


def test_a_graph_made_of_a_module_agrees_with_it(rng: np.random.Generator) -> None:
    module, images = _module(), rng.random((2, 6, 6, 3), np.float32)
    module.train()
    trace = mps.debug.trace_torch(module, images)
    assert module.training
    network = onnx.from_torch(module, torch.from_numpy(images).permute(0, 3, 1, 2), trainable=True)
    graph = network.graph(CPU)
    found = mps.debug.compare(graph.trace([images]), trace)
    assert found.ok, str(found)
    assert {"conv1", "relu1", "pool1", "fc1"} <= {row.other for row in found.rows}
    assert "conv1/weights" in {row.other for row in found.rows}
    with torch.no_grad():
        module.get_parameter("conv1.weight")[:] = module.get_parameter("conv1.weight").transpose(2, 3).clone()
    wrong = mps.debug.compare(graph.trace([images]), mps.debug.trace_torch(module, images))
    assert wrong.first is not None
    assert wrong.first.other == "conv1/weights"
    assert "its rows are the columns" in wrong.first.hint


def _normalized() -> torch.nn.Sequential:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 8, (3, 2), 2, groups=2), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 6, 4, 2, 1), torch.nn.InstanceNorm2d(6, affine=True),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for layer in module:
            for row in (*layer.parameters(), *(each for each in layer.buffers() if each.ndim)):
                row.copy_(row + torch.rand_like(row) / 4)
    return module


@pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
def test_each_number_of_a_layer_is_held_against_its_own(rng: np.random.Generator) -> None:
    module, images = _normalized(), rng.random((2, 6, 6, 3), np.float32)
    network = onnx.from_torch(module, torch.from_numpy(images).permute(0, 3, 1, 2), trainable=True)
    trace = network.graph(CPU).trace([images])
    found = mps.debug.compare(trace, mps.debug.trace_torch(module, images))
    assert found.ok, str(found)
    assert [*found.only_first, *found.only_second] == []
    assert {"1/mean", "1/variance", "3/weights", "4/gamma", "6/weights", "7/beta"} <= {row.label for row in found.rows}
    with torch.no_grad():
        module.get_buffer("1.running_mean")[3] += 1
    wrong = mps.debug.compare(trace, mps.debug.trace_torch(module, images)).first
    assert wrong is not None and wrong.label == "1/mean"


def test_layers_that_became_a_part_of_another_are_held_against_its_last(rng: np.random.Generator) -> None:
    module, images = _normalized(), rng.random((2, 6, 6, 3), np.float32)
    folded = onnx.from_torch(module[:3], torch.from_numpy(images).permute(0, 3, 1, 2)).graph(CPU).trace([images])
    theirs = mps.debug.trace_torch(module[:3], images)
    for pair, labels in (((folded, theirs), ("0", "2")), ((theirs, folded), ("2", "0"))):
        found = mps.debug.compare(*pair)
        assert found.ok, str(found)
        assert [(row.label, row.other) for row in found.rows][1:] == [labels], "0/weights are others"
        assert any(f"{labels[0]!r} gives what {labels[1]!r} gives" in note for note in found.notes)
    kept = mps.debug.compare(folded, theirs, names={"0": "0"})
    assert kept.row("0").departs, "names that are given stay"
    with torch.no_grad():
        module.get_buffer("1.running_mean")[3] += 1
    wrong = mps.debug.compare(folded, mps.debug.trace_torch(module[:3], images))
    assert wrong.row("0").departs and not any("gives what" in note for note in wrong.notes)


def test_values_are_those_before_a_layer_overwrites_them(rng: np.random.Generator) -> None:
    module, pixels = _module(), rng.integers(0, 256, (2, 6, 6, 3)).astype(np.uint8)
    trace = mps.debug.trace_torch(module, pixels)
    assert trace["conv1"].min() < 0 <= trace["relu1"].min()
    assert np.array_equal(trace["image"], pixels.astype(np.float32) / np.float32(255))
    assert trace["fc1"].shape == (2, 1, 1, 5)
    assert trace["conv1/weights"].shape == (4, 3, 3, 3)
    assert trace["fc1/weights"].shape == (5, 1, 1, 36)


def test_what_is_refused(rng: np.random.Generator) -> None:
    module = _module()
    with pytest.raises(mps.MPSTypeError, match=r"module must be a torch.nn.Module"):
        mps.debug.trace_torch(lambda x: x, rng.random((1, 6, 6, 3)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(mps.MPSArgumentError, match="images must be an array"):
        mps.debug.trace_torch(module, rng.random((6, 6, 3)))
    with pytest.raises(mps.MPSArgumentError, match="images must be such as the module computes"):
        mps.debug.trace_torch(module, rng.random((1, 5, 6, 3)))
    with pytest.raises(mps.MPSTypeError, match="images"):
        mps.debug.trace_torch(module, "images")
    assert not any(layer._forward_hooks for layer in module.modules())
