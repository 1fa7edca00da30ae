"""PyTorch modules that are trained: loss by loss beside PyTorch, under the module's own names, and back into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import openmps as mps
from onnx_models import CPU, numbers
from openmps.formats import onnx as reader

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
STEPS, RATE, BATCH = 20, 0.05, 4
CLOSE = 1e-5


class Applied(nn.Module):
    """Layers by name, and a function of them and an image."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Scaled(nn.Module):
    """A number a channel times an image, and one added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, channels)[:, None, None])
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def _block(channels: int) -> nn.Module:
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
    inner = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))
    return Applied(lambda self, x: torch.relu(x + self.inner(x)), inner=inner)


def _ended(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def _u_net() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        first = torch.relu(self.down(x))
        second = torch.relu(self.deep(F.max_pool2d(first, 2)))
        return self.out(torch.cat([first, torch.relu(self.up(second))], 1))

    return Applied(
        forward, down=nn.Conv2d(4, 8, 3, padding=1), deep=nn.Conv2d(8, 8, 3, padding=1),
        up=nn.ConvTranspose2d(8, 4, 2, 2), out=nn.Conv2d(12, 4, 1),
    )  # fmt: skip


def _shared() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        row = self.mix(torch.relu(self.mix(x))).mean((2, 3))
        return self.head(self.same(torch.tanh(self.same(row))))

    layers = {"mix": nn.Conv2d(4, 4, 3, padding=1), "same": nn.Linear(4, 4), "head": nn.Linear(4, 4)}
    return Applied(forward, **layers)


def _tokens() -> nn.Module:
    return Applied(
        lambda self, x: self.second(torch.relu(self.first(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2),
        first=nn.Linear(4, 8), second=nn.Linear(8, 4, bias=False),
    )  # fmt: skip


class Still(nn.BatchNorm2d):
    """A normalization by fixed numbers, which stays in evaluation mode."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        rows = (self.weight, self.bias, self.running_mean, self.running_var)
        for place, row in enumerate(rows):
            row.requires_grad_(False).copy_(torch.linspace(0.5, 1.5 + place, channels))
        self.eval()

    def train(self, mode: bool = True) -> Still:
        return super().train(False)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 12), nn.ReLU(), nn.Linear(12, 4)),
    "residual": lambda: _ended(nn.Conv2d(4, 8, 3), _block(8), _block(8)),
    "grouped": lambda: _ended(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4, bias=False)),
    "depthwise": lambda: _ended(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU6(), nn.Conv2d(4, 8, 1), nn.Hardswish()),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), nn.LeakyReLU(0.1), nn.ConvTranspose2d(6, 4, 3, groups=2)
    ),
    "group normalization": lambda: _ended(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()),
    "instance normalization": lambda: _ended(
        nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU()
    ),
    "shared": _shared,
    "shared by functions": lambda: Applied(
        lambda self, x: F.conv2d(F.conv2d(x, self.mix.weight, padding=1).relu(), self.mix.weight, padding=1),
        mix=nn.Conv2d(4, 4, 3, bias=False),
    ),
    "U-Net": _u_net,
    "dropout off": lambda: _ended(nn.Conv2d(4, 8, 3), nn.Dropout2d(0.0), nn.ELU(), nn.Dropout(0.0)),
    "batch normalization": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4),
        nn.Softmax(1),
    ),
    "frozen normalization": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, bias=False), Still(8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    ),
    "momenta": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.0), nn.Conv2d(8, 4, 1),
        nn.BatchNorm2d(4, momentum=0.01),
    ),
    "half pixels": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ReLU(), nn.Conv2d(8, 4, 3),
        nn.Upsample(scale_factor=(1, 3), mode="bilinear"),
    ),
    "cut and padded": lambda: Applied(
        lambda self, x: self.out(F.pad(torch.relu(self.first(x))[:, 2:, 1:, :5], (1, 0, 2, 1), mode="reflect")),
        first=nn.Conv2d(4, 8, 3, padding="same", dilation=2),
        out=nn.Conv2d(6, 4, 3, padding=1, padding_mode="replicate"),
    ),
    "tokens": _tokens,
    "scaled": lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), Scaled(8), nn.Conv2d(8, 4, 1)),
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODULES[name]()


def sources() -> mps.TrainableDataSources:
    return mps.TrainableDataSources(lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, RATE))


def torch_losses(module: nn.Module, x: Tensor, target: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    module.train()
    found: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(module(x), target)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def our_losses(network: reader.OnnxNetwork, x: np.ndarray, target: np.ndarray) -> list[float]:
    """The mean square of a network's output and a target, before each step."""
    (output,) = network.outputs.values()
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    descriptor.weight = 1 / target.size
    (last,) = mps.MPSCNNLossNode(output, descriptor).training_graph()
    graph = mps.MPSNNGraph(CPU, last.result_image, result_image_is_needed=False)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    queue, pixels, wanted = CPU.new_command_queue(), _pixels(x), _pixels(target)
    found: list[float] = []
    for _ in range(STEPS):
        one = mps.MTLSize(1, 1, 1)
        labels = [
            mps.MPSCNNLossLabels(CPU, labels_image=mps.MPSImage.from_numpy(CPU, each), loss_image_size=one)
            for each in wanted
        ]
        command_buffer = queue.command_buffer()
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, pixels)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(sum(each.loss_image().numpy().item() for each in labels))
    return found


def _pixels(x: np.ndarray) -> np.ndarray:
    whole = x if x.ndim == 4 else x[:, :, None, None]
    return np.ascontiguousarray(whole.transpose(0, 2, 3, 1))


def trained(name: str) -> tuple[nn.Module, reader.OnnxNetwork, list[float], list[float]]:
    """A module and its network behind the same steps, with the losses of each."""
    module, x = made(name), torch.from_numpy(numbers(BATCH, 4, 6, 6))
    network = reader.from_torch(module, x[:1], trainable=sources())
    with torch.no_grad():
        target = torch.from_numpy(numbers(*module.eval()(x).shape, seed=1))
    ours = our_losses(network, x.numpy(), target.numpy())
    return module, network, torch_losses(module, x, target), ours


@pytest.mark.parametrize("name", MODULES)
def test_a_module_trains_as_in_torch_and_comes_back(name: str) -> None:
    module, network, theirs, ours = trained(name)
    assert theirs[-1] < 0.99 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=CLOSE, atol=CLOSE)
    found, wanted = network.state_dict(), module.state_dict()
    assert list(found) == list(wanted)
    for key in wanted:
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(found[key], wanted[key], rtol=2e-4, atol=2e-5, err_msg=key)
    fresh = made(name).eval()
    assert str(fresh.load_state_dict(found)) == "<All keys matched successfully>"
    x = numbers(BATCH, 4, 6, 6, seed=5)
    inference: Mapping[str, np.ndarray] = network.model(CPU).run({next(iter(network.inputs)): x})
    with torch.no_grad():
        np.testing.assert_allclose(inference["output"], fresh(torch.from_numpy(x)), rtol=1e-4, atol=CLOSE)


# --- names, and what is not trained -----------------------------------------------------------------------------------


def _labels(network: reader.OnnxNetwork) -> list[str | None]:
    return [node.label for node in network.graph(CPU).kernels]


def test_layers_have_the_module_s_names() -> None:
    layers = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    module = Applied(lambda self, x: self.out(self.layers(x).mean((2, 3))), layers=layers, out=nn.Linear(4, 3))
    network = reader.from_torch(module, torch.zeros(1, 4, 6, 6), trainable=sources())
    assert _labels(network) == ["layers.0", "layers.1", "layers.2", "mean", "out"]
    assert _labels(reader.from_torch(made("shared"), torch.zeros(1, 4, 6, 6), trainable=True))[:3] == [
        "mix", "relu", "mix 2"
    ]  # fmt: skip


def _frozen(module: nn.Module, *names: str) -> nn.Module:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(names))
    return module


def test_what_is_frozen_stays() -> None:
    layers = nn.Conv2d(4, 8, 3), nn.PReLU(8), Scaled(8), nn.PReLU(init=0.5), nn.Conv2d(8, 4, 1)
    module = _frozen(nn.Sequential(*layers), "0", "1", "2", "3")
    x = torch.from_numpy(numbers(BATCH, 4, 6, 6))
    target = torch.from_numpy(numbers(BATCH, 4, 4, 4, seed=1))
    network = reader.from_torch(module, x[:1], trainable=sources())
    ours = our_losses(network, x.numpy(), target.numpy())
    np.testing.assert_allclose(ours, torch_losses(module, x, target), rtol=CLOSE, atol=CLOSE)
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(network.state_dict()[key], value, rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    """One matrix, with biases of its own in each place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.relu(self.one(x)))


class Doubled(nn.Module):
    """Weights that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(4, 4, 1, 1)), nn.Parameter(torch.ones(4, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.factor)


_PLANES, _ROW = (1, 4, 6, 6), (1, 4)


@pytest.mark.parametrize(("module", "shape", "why"), [
    (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.PReLU(4)), _PLANES, r"parameter \(1.weight\): no layer .* trains it"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), _ROW, r"parameter \(1.weight\): no layer .* trains it"),
    (lambda: Applied(lambda self, x: x.relu() + self.own.shift, own=Scaled(4)), _PLANES, "own.shift"),
    (lambda: Applied(lambda self, x: x / self.own.scale, own=Scaled(4)), _PLANES, "own.scale"),
    (lambda: Applied(lambda self, x: x * self.own.scale, own=Scaled(1)), _PLANES, "own.scale"),
    (lambda: _frozen(nn.Conv2d(4, 4, 1), "bias"), _PLANES, "a part of its numbers is trained, and a part is not"),
    (lambda: nn.BatchNorm2d(4, affine=False), _PLANES, "no scales and shifts"),
    (lambda: nn.Sequential(norm := nn.BatchNorm2d(4), nn.ReLU(), norm), _PLANES, "2 layers train it"),
    (lambda: nn.Sequential(norm := nn.GroupNorm(2, 4), nn.ReLU(), norm), _PLANES, "2 layers train it"),
    (Tied, _ROW, "weights in common with another layer"),
    (Doubled, _PLANES, "no layer of the framework trains it"),
])  # fmt: skip
def test_what_would_train_otherwise_than_the_module_is_refused(module: Any, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(mps.MPSOperatorError, match=why.replace(" ", r"\s+")):
        reader.from_torch(module(), torch.zeros(shape), trainable=sources())
    reader.from_torch(module(), torch.zeros(shape), trainable=True)  # fixed numbers are nobody's to train


def test_a_momentum_that_is_given_must_be_the_module_s() -> None:
    given = mps.TrainableDataSources(lambda device: mps.MPSNNOptimizerAdam(device), momentum=0.1)
    with pytest.raises(mps.MPSOperatorError, match=r"momentum\s+is\s+0.01,\s+that\s+of\s+its\s+data\s+source\s+0.1"):
        reader.from_torch(nn.BatchNorm2d(4, momentum=0.01), torch.zeros(_PLANES), trainable=given)
    reader.from_torch(nn.BatchNorm2d(4), torch.zeros(_PLANES), trainable=given)


def test_numbers_of_other_types_come_back_in_theirs() -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Flatten()).to(torch.bfloat16)
    network = reader.from_torch(module, torch.zeros(1, 4, 2, 2, dtype=torch.bfloat16), trainable=sources())
    found = network.state_dict()
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    assert all(torch.equal(found[key], value) for key, value in module.state_dict().items())
