"""PyTorch modules as networks: the module's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from onnx_models import CPU, error, numbers
from openmps.errors import MPSOperatorError, MPSTypeError
from openmps.formats import onnx as reader

pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")


class Block(nn.Module):
    """What networks for pictures are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=8), nn.BatchNorm2d(8), nn.SiLU())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.up = nn.ConvTranspose2d(8, 5, 3, 2, 1, 1)
        self.head = nn.Linear(13 * 8 * 8, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stem = self.stem(x)
        deep = self.deep(stem)
        deep = deep * self.gate(deep) + stem
        large = F.leaky_relu(self.up(F.max_pool2d(deep, 3, 2, 1)), 0.2)
        joined = torch.cat([large, F.avg_pool2d(deep, 1)], 1)
        joined = F.dropout(joined, 0.5, self.training)
        flat = joined.view(x.shape[0], -1)
        return self.head(flat).softmax(1), F.interpolate(joined, scale_factor=2, mode="nearest").clamp(-1, 0.5)


def _fitted(module: nn.Module) -> nn.Module:
    """Random statistics, so that normalizations do something."""
    torch.manual_seed(0)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2)
    return module


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_module_gives_its_own_numbers(trainable: bool, batch: int) -> None:
    module = _fitted(Block()).train()
    found = reader.from_torch(module, torch.zeros(1, 3, 16, 16), trainable=trainable)
    assert module.training
    x = numbers(batch, 3, 16, 16)
    with torch.no_grad():
        wanted = [each.numpy() for each in module.eval()(torch.from_numpy(x))]
    got = found.model(CPU).run({"x": x})
    assert list(got) == ["output_0", "output_1"]
    assert max(error(each, array) for each, array in zip(got.values(), wanted, strict=True)) < 1e-5


class Faces(nn.Module):
    """Axes in another order before a dense layer, and slopes of both ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.slopes = nn.Conv2d(3, 6, 3), nn.PReLU(6, 0.1)
        self.dense, self.more = nn.Linear(6 * 4 * 4, 5), nn.PReLU(5, 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.slopes(self.conv(x)), 3, 2, ceil_mode=True)
        return self.more(self.dense(torch.flatten(x.permute(0, 3, 2, 1).contiguous(), 1)))


def test_axes_in_another_order() -> None:
    module = Faces().eval()
    x = numbers(2, 3, 10, 10)
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)).numpy()
    got = reader.from_torch(module, torch.zeros(2, 3, 10, 10)).model(CPU).run({"x": x})
    assert error(got["output"], wanted) < 1e-5


class Odd(nn.Module):
    """Operators that no node computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft2(x).abs() + torch.cumsum(x, 1)


def test_operators_that_cannot_be_expressed_are_listed() -> None:
    with pytest.raises(MPSOperatorError) as caught:
        reader.from_torch(Odd(), torch.zeros(1, 3, 4, 4))
    kinds = {each["operator"].split(".")[1] for each in caught.value.nodes}
    assert "cumsum" in kinds
    assert len(kinds) > 1


@pytest.mark.parametrize(("change", "why"), [
    (lambda value: value.to("meta"), "it is on the device meta"),
    (lambda value: value.detach().to_sparse(), "it has the layout torch.sparse_coo"),
    (lambda value: torch.quantize_per_tensor(value.detach(), 0.1, 0, torch.qint8), "its numbers are quantized"),
])  # fmt: skip
@pytest.mark.parametrize("is_read", [True, False])
def test_tensors_without_numbers_of_their_own(change, why: str, is_read: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3))
    if is_read:
        module[0].weight = nn.Parameter(change(module[0].weight), requires_grad=False)
    else:
        module.register_buffer("unread", change(torch.ones(3)))
    with pytest.raises(MPSOperatorError, match=why):
        reader.from_torch(module, torch.zeros(2, 3, 6, 6))


class Function(nn.Module):
    """A module that does what a function says."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize(("function", "why"), [
    (lambda module, x: None, "it is None, and no tensor"),
    (lambda module, x: (x.relu(), None), r"output \(output_1\): it is None, and no tensor"),
    (lambda module, x: (x.relu(), 3), "it is 3, and no tensor"),
    (lambda module, x: x + module.count.add_(1), "it changes a tensor of the module at each call"),
])  # fmt: skip
def test_what_a_module_may_not_do(function, why: str) -> None:
    with pytest.raises(MPSOperatorError, match=why):
        reader.from_torch(Function(function), torch.zeros(2, 3, 6, 6))


def test_what_is_no_module() -> None:
    with pytest.raises(MPSTypeError, match="module must be a torch.nn.Module"):
        reader.from_torch(np.zeros, torch.zeros(1, 3))
    with pytest.raises(MPSTypeError, match="example must be a tensor"):
        reader.from_torch(Faces(), np.zeros((1, 3, 10, 10)))


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _overwritten(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch.relu_(x.view(x.shape[0], -1))
    return x * 2


@pytest.mark.parametrize(("function", "why"), [
    (lambda x: F.softplus(x, 2.0), "beta or threshold"),
    (lambda x: F.dropout(x, 0.5, training=True), "drops out"),
    (nn.InstanceNorm2d(4, track_running_stats=True), "normalizes by running"),
    (lambda x: F.prelu(x, x[0, :1, 0, 0]), "computes its slopes"),
    (_overwritten, "tensor that has a view"),
    (lambda x: x.view(x.shape[0] * 2, -1) * 2, "computed of one"),
])  # fmt: skip
def test_what_no_operator_says_is_refused(function, why: str) -> None:
    with pytest.raises(MPSOperatorError, match=why):
        reader.from_torch(Applied(function), torch.zeros(1, 4, 3, 3))


WINDOWS = {
    "zeros around": lambda x: F.pad(x, (1, 2, 0, 3)),
    "nothing around": lambda x: F.pad(x, (0, 0, 0, 0)) * 2,
    "numbers around": lambda x: F.pad(x, (1, 0, 2, 1), value=-1.5),
    "channels behind": lambda x: F.pad(x, (0, 0, 1, 0, 0, 4)),
    "less": lambda x: F.pad(x, (-1, 1, -2, 0)),
    "mirrored": lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"),
    "edges": lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    "a layer's zeros": nn.ZeroPad2d((1, 0, 0, 2)),
    "cut": lambda x: x[..., :3, 1:6],
    "cut from the end": lambda x: x[:, :, -4:-1, :-2],
    "every second": lambda x: x[:, :, ::2, 1::3],
    "channels": lambda x: x[:, 1:3],
    "all": lambda x: x[:, :, :] * 2,
    "same": nn.Conv2d(4, 8, (4, 3), padding="same", dilation=(1, 2)),
    "valid": nn.Conv2d(4, 8, 3, 2, padding="valid", bias=False),
    "same, mirrored": nn.Conv2d(4, 8, 3, padding="same", padding_mode="reflect", groups=2),
    "edges of a layer": nn.Conv2d(4, 8, 3, padding=1, padding_mode="replicate"),
    "half-pixel": nn.Upsample(scale_factor=2, mode="bilinear"),
    "half-pixel, odd": nn.Upsample(scale_factor=(3, 1), mode="bilinear"),
    "half-pixel, many": nn.Upsample(scale_factor=(4, 5), mode="bilinear"),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, trainable: bool) -> None:
    module, x = Applied(WINDOWS[name]), numbers(2, 4, 6, 7)
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)).numpy()
    got = reader.from_torch(module, torch.zeros(1, 4, 6, 7), trainable=trainable).model(CPU).run({"x": x})["output"]
    assert error(got, wanted) < 1e-6


@pytest.mark.parametrize(("function", "why"), [
    (lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"), "no edge mode reads from the other side"),
    (lambda x: x[:, :, :0], "it takes nothing"),
    (lambda x: x[: x.shape[0] // 2], "length that is not known|limits are computed"),
])  # fmt: skip
def test_windows_that_no_node_has_are_refused(function, why: str) -> None:
    with pytest.raises(MPSOperatorError, match=why.replace(" ", r"\s+")):
        reader.from_torch(Applied(function), torch.zeros(1, 4, 3, 3))


def test_errors_call_operators_by_their_layers() -> None:
    inner = nn.Sequential(nn.LayerNorm(4), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(MPSOperatorError, match="track_running_stats=True") as caught:
        reader.from_torch(nn.Sequential(nn.Conv2d(3, 3, 1), inner, Odd()), torch.zeros(1, 3, 4, 4))
    assert [each["node"] for each in caught.value.nodes][:2] == ["1.0", "1.1"]
    assert all(each["node"].startswith("2") for each in caught.value.nodes[2:])


def test_slopes_of_each_channel_of_a_row() -> None:
    module = nn.PReLU(5)
    module.weight.data = torch.linspace(-1, 1, 5)
    x = torch.from_numpy(numbers(2, 5, 5))
    with torch.no_grad():
        wanted = module(x).numpy()
    found = reader.from_torch(module, x[:1]).model(CPU).run({"input": x.numpy()})["output"]
    assert error(found, wanted) < 3e-6


class ByTheBatch(nn.Module):
    """Computes with a length that it has only when it is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]


def test_a_length_among_the_operands() -> None:
    with pytest.raises(MPSOperatorError, match=r"computes with a length that is not known"):
        reader.from_torch(ByTheBatch(), torch.zeros(2, 3, 4, 4))
