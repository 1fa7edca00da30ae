"""Dropout of PyTorch modules: there while they are trained, as in training mode, and not in inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import openmps as mps
from encoding import keep_results
from formats.test_onnx_module_training import Applied, our_losses, sources, torch_losses
from onnx_models import CPU, numbers
from openmps.formats import onnx as reader

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
BATCH, SEED = 4, 11
FLATTENED = 8, 4, 4
"""Images of so many channels, rows and columns stay what they are where a module flattens them."""


class Masked(nn.Module):
    """Dropout by the masks of the framework's kernel, one after the other; nothing in evaluation mode."""

    def __init__(self, probability: float, seed: int, *, of_channels: bool) -> None:
        super().__init__()
        stride = mps.MTLSize(0, 0, 1) if of_channels else mps.MTLSize(1, 1, 1)
        self.kernel, self.kept = mps.MPSCNNDropout(CPU, 1 - probability, seed, stride), 1 - probability
        keep_results(self.kernel)

    def forward(self, x: Tensor) -> Tensor:
        return x * self._mask(x.shape) if self.training else x

    def _mask(self, shape: Any) -> Tensor:
        whole = (shape[0], *FLATTENED) if shape[1:] == (128,) else (*shape, 1, 1)[:4]
        ones = mps.MPSImageBatch.from_numpy(CPU, np.ones((whole[0], *whole[2:], whole[1]), np.float32))
        command_buffer = mps.MPSCommandBuffer(CPU.new_command_queue())
        result = self.kernel.encode_batch(command_buffer, ones)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return torch.from_numpy(np.ascontiguousarray(result.numpy().transpose(0, 3, 1, 2))).reshape(shape)


class Functional(nn.Module):
    """`F.dropout` by the module's mode."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.probability, self.training)


Make = Callable[[float, bool], nn.Module]


def _layers(drop: Make) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), drop(0.25, True), nn.ReLU(), nn.GroupNorm(2, 8), nn.Flatten(),
        drop(0.5, False), nn.Linear(128, 6), nn.Tanh(), drop(0.1, False), nn.Linear(6, 4),
    )  # fmt: skip


def _shared(drop: Make) -> nn.Module:
    """One matrix twice, with one dropout between, and biases behind another."""
    return Applied(
        lambda self, x: self.same(self.drop(torch.tanh(self.same(x.mean((2, 3)))))), same=nn.Linear(4, 4),
        drop=drop(0.3, False),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[Make], nn.Module]] = {"layers": _layers, "shared": _shared}
DROPS: dict[str, Make] = {
    "modules": lambda probability, of_channels: (nn.Dropout2d if of_channels else nn.Dropout)(probability),
    "in place": lambda probability, of_channels: (nn.Dropout2d if of_channels else nn.Dropout)(probability, True),
    "functions": lambda probability, of_channels: nn.Dropout2d(probability) if of_channels else Functional(probability),
}


def made(name: str, drop: Make) -> nn.Module:
    torch.manual_seed(3)
    return NETWORKS[name](drop)


def masked(name: str) -> nn.Module:
    """The same module with the masks that the network of the seed draws."""
    count = iter(range(9))
    return made(name, lambda probability, of: Masked(probability, SEED + next(count), of_channels=of))


@pytest.mark.parametrize(("name", "drop"), [
    ("layers", "modules"), ("layers", "functions"), ("shared", "modules"), ("shared", "functions"),
    ("shared", "in place"),  # the other one would write into a view
])  # fmt: skip
def test_it_drops_out_in_training_and_not_in_inference(name: str, drop: str) -> None:
    module, x = made(name, DROPS[drop]), torch.from_numpy(numbers(BATCH, 4, 6, 6))
    network = reader.from_torch(module, x[:1], trainable=sources(), dropout_seed=SEED)
    with torch.no_grad():
        target = torch.from_numpy(numbers(*module.eval()(x).shape, seed=1))
    ours = our_losses(network, x.numpy(), target.numpy())
    judge = masked(name)
    theirs = torch_losses(judge, x, target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    plain = torch_losses(made(name, lambda probability, of: nn.Identity()), x, target)
    assert np.abs(np.subtract(plain, theirs)).max() > 1e-2
    for key, wanted in judge.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(network.state_dict()[key], wanted, rtol=2e-4, atol=2e-5, err_msg=key)
    for model in (network.model(CPU), network.inference.model(CPU)):
        assert not any(isinstance(node, mps.MPSCNNDropoutNode) for node in model.graph.kernels)
        found = model.run({next(iter(network.inputs)): x.numpy()})["output"]
        with torch.no_grad():
            np.testing.assert_allclose(found, judge.eval()(x).numpy(), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(node, mps.MPSCNNDropoutNode) for node in network.graph(CPU).kernels)


def _nodes(network: Any) -> list[mps.MPSCNNDropoutNode]:
    (output,) = network.outputs.values()
    found, ahead = list[Any](), [output]
    while ahead:
        node = ahead.pop().producer
        if node is not None:
            found.append(node)
            ahead.extend(node.sources)
    return [node for node in reversed(found) if isinstance(node, mps.MPSCNNDropoutNode)]


def test_nodes_have_the_module_s_numbers_and_names() -> None:
    network = reader.from_torch(made("layers", DROPS["modules"]), torch.zeros(1, 4, 6, 6), trainable=sources())
    nodes = _nodes(network)
    assert [(node.label, node.keep_probability, node.seed) for node in nodes] == [
        ("2", 0.75, 0), ("6", 0.5, 1), ("9", 0.9, 2)
    ]  # fmt: skip
    strides = [node.mask_stride_in_pixels for node in nodes]
    assert strides == [mps.MTLSize(0, 0, 1), mps.MTLSize(1, 1, 1), mps.MTLSize(1, 1, 1)]


@pytest.mark.parametrize("trainable", [False, True])
def test_networks_without_data_sources_that_train_have_none(trainable: bool) -> None:
    network = reader.from_torch(made("layers", DROPS["modules"]), torch.zeros(1, 4, 6, 6), trainable=trainable)
    assert _nodes(network) == [] and network.inference is network


@pytest.mark.parametrize(("layer", "why"), [
    (nn.AlphaDropout(0.5), "what it drops becomes another number than 0.*Set its p to 0, or use nn.Dropout"),
    (nn.FeatureAlphaDropout(0.5), "what it drops becomes another number than 0"),
    (nn.Dropout(1.0), "it drops every number"),
    (Applied(lambda self, x: F.dropout(x, 0.5, True)), "it drops out, in evaluation mode too.*nn.Dropout"),
])  # fmt: skip
def test_what_cannot_be_trained_as_it_is_is_refused(layer: nn.Module, why: str) -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 1), layer)
    with pytest.raises(mps.MPSOperatorError, match="(?s)" + why.replace(" ", r"\s+")):
        reader.from_torch(module, torch.zeros(1, 4, 6, 6), trainable=sources())


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True])
def test_seeds_are_checked(seed: Any) -> None:
    with pytest.raises(mps.MPSArgumentError, match="from_torch: dropout_seed must be an integer of 0 to"):
        reader.from_torch(nn.Conv2d(4, 4, 1), torch.zeros(1, 4, 6, 6), trainable=sources(), dropout_seed=seed)
