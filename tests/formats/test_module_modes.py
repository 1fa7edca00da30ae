"""Modules whose layers are in modes of their own: put back as they were, and trained as PyTorch trains them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import openmps as mps
from onnx_models import CPU, numbers
from openmps.formats import onnx as reader

pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
EXAMPLE = torch.zeros(1, 4, 4, 4)
PIXELS = numbers(2, 4, 4, 4)


def _module() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(4, 4, 1))


def _sources() -> mps.TrainableDataSources:
    return mps.TrainableDataSources(lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.1))


def _kinds(network: reader.TorchNetwork) -> list[str]:
    """The filters of the training graph, up to the loss."""
    (output,) = network.outputs.values()
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    (last,) = mps.MPSCNNLossNode(output, loss).training_graph()
    kinds = [type(each).__name__ for each in mps.MPSNNGraph(CPU, last.result_image).kernels]
    return kinds[: kinds.index("MPSCNNLossNode")]


@pytest.mark.parametrize("look", [
    lambda module: reader.from_torch(module, EXAMPLE),
    lambda module: mps.debug.trace_torch(module, PIXELS),
    lambda module: mps.debug.trace_torch(module, PIXELS[0, :3]),
    lambda module: reader.from_torch(module, torch.zeros(1, 3, 4, 4)),
])  # fmt: skip
@pytest.mark.parametrize("whole", [True, False])
def test_each_layer_stays_in_its_mode(look: Any, whole: bool) -> None:
    module = _module().train(whole)
    module[1].train(not whole)
    with suppress(mps.MPSError):
        look(module)
    assert [each.training for each in module.modules()] == [whole, whole, not whole, whole, whole, whole]


def _refusal(module: nn.Module) -> str:
    with pytest.raises(mps.MPSOperatorError) as caught:
        reader.from_torch(module, EXAMPLE, trainable=_sources())
    (problem,) = caught.value.nodes
    assert problem["node"] == "1"
    return f"{problem['why']} | {problem['remedy']}"


def test_a_normalization_that_trains_by_running_statistics_is_refused() -> None:
    module = _module().train()
    module[1].eval()
    assert "it trains in evaluation mode" in _refusal(module)
    module.eval()  # says nothing of how it is trained
    assert "MPSCNNBatchNormalizationNode" in _kinds(reader.from_torch(module, EXAMPLE, trainable=_sources()))


def test_a_frozen_normalization_by_the_batch_is_refused() -> None:
    module = _module().train()
    for each in module[1].parameters():
        each.requires_grad_(False)
    assert "frozen in training mode" in _refusal(module)
    module[1].eval()
    reader.from_torch(module, EXAMPLE, trainable=_sources())


def test_a_mean_of_all_batches_is_refused() -> None:
    module = _module()
    module[1].momentum = None
    assert "momentum=None" in _refusal(module) and "Give it a momentum" in _refusal(module)
    reader.from_torch(module, EXAMPLE)


def test_a_dropout_in_evaluation_mode_drops_nothing() -> None:
    module = _module().train()
    assert "MPSCNNDropoutNode" in _kinds(reader.from_torch(module, EXAMPLE, trainable=_sources()))
    module[2].eval()
    assert "MPSCNNDropoutNode" not in _kinds(reader.from_torch(module, EXAMPLE, trainable=_sources()))
    module.eval()
    assert "MPSCNNDropoutNode" in _kinds(reader.from_torch(module, EXAMPLE, trainable=_sources()))
