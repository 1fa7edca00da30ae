"""Deep networks in torch, by their papers; their parameters are named as the layers of `openmps.training` are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F

Array = np.ndarray
Tensor = torch.Tensor
EPSILON, MOMENTUM = 1e-5, 0.1


class Parameters:
    """Leaves for autograd, and running statistics, of a type."""

    def __init__(
        self, arrays: Mapping[str, Array], dtype: torch.dtype, *, training: bool, by_pooling: bool = False
    ) -> None:
        self.training = training
        self.by_pooling = by_pooling
        self.running: dict[str, Tensor] = {}
        self.leaves: dict[str, Tensor] = {}
        for name, array in arrays.items():
            values = torch.tensor(array.transpose(0, 3, 1, 2) if array.ndim == 4 else array, dtype=dtype)
            if name.endswith((".mean", ".variance")):
                self.running[name] = values
            else:
                self.leaves[name] = values.contiguous().requires_grad_()

    def convolution(self, x: Tensor, label: str, stride: int = 1, groups: int = 1) -> Tensor:
        weights = self.leaves[f"{label}.weights"]
        biases = self.leaves.get(f"{label}.biases")
        return F.conv2d(x, weights, biases, stride, weights.shape[-1] // 2, groups=groups)

    def normalization(self, x: Tensor, label: str) -> Tensor:
        rows = (self.running[f"{label}.mean"], self.running[f"{label}.variance"])
        scales = self.leaves[f"{label}.gamma"], self.leaves[f"{label}.beta"]
        return F.batch_norm(x, *rows, *scales, self.training, MOMENTUM, EPSILON)

    def unit(self, x: Tensor, label: str, stride: int = 1) -> Tensor:
        return self.normalization(self.convolution(x, f"{label}_conv", stride), f"{label}_norm")

    def classified(self, x: Tensor) -> Tensor:
        mean = F.avg_pool2d(x, x.shape[2:]).flatten(1) if self.by_pooling else x.mean((2, 3))
        return F.linear(mean, self.leaves["fc.weights"].flatten(1), self.leaves["fc.biases"])

    def gradients(self) -> dict[str, Array]:
        """By name, laid out as the framework's: OHWI."""
        found = {name: leaf.grad.double().numpy() for name, leaf in self.leaves.items() if leaf.grad is not None}
        return {name: grad.transpose(0, 2, 3, 1) if grad.ndim == 4 else grad for name, grad in found.items()}


def basic_block(p: Parameters, x: Tensor, label: str, stride: int) -> Tensor:
    y = p.unit(x, f"{label}_1", stride).relu()
    return p.unit(y, f"{label}_2")


def bottleneck(p: Parameters, x: Tensor, label: str, stride: int) -> Tensor:
    y = p.unit(x, f"{label}_1").relu()
    y = p.unit(y, f"{label}_2", stride).relu()
    return p.unit(y, f"{label}_3")


def resnet(counts: tuple[int, ...], block: Callable[..., Tensor]) -> Callable[[Parameters, Tensor], Tensor]:
    def run(p: Parameters, x: Tensor) -> Tensor:
        x = F.max_pool2d(p.unit(x, "stem", 2).relu(), 3, 2, 1)
        for stage, count in enumerate(counts, 1):
            for index in range(1, count + 1):
                label, stride = f"stage{stage}_block{index}", 2 if stage > 1 and index == 1 else 1
                short = x
                if f"{label}_projection_conv.weights" in p.leaves:
                    short = p.unit(x, f"{label}_projection", stride)
                x = (block(p, x, label, stride) + short).relu()
        return p.classified(x)

    return run


def mobilenet(p: Parameters, x: Tensor) -> Tensor:
    x = F.relu6(p.unit(x, "stem", 2))
    for index, stride in enumerate((1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1), 1):
        depthwise = p.convolution(x, f"depthwise{index}", stride, groups=x.shape[1])
        x = F.relu6(p.normalization(depthwise, f"depthwise{index}_norm"))
        x = F.relu6(p.unit(x, f"pointwise{index}"))
    return p.classified(x)


def inception(p: Parameters, x: Tensor) -> Tensor:
    x = p.unit(x, "stem").relu()
    for block in ("block1", "block2"):
        x = F.max_pool2d(x, 3, 2, 1)
        x = torch.cat(
            [
                p.unit(x, f"{block}_1x1").relu(),
                p.unit(p.unit(x, f"{block}_3x3_reduction").relu(), f"{block}_3x3").relu(),
                p.unit(p.unit(x, f"{block}_5x5_reduction").relu(), f"{block}_5x5").relu(),
                p.unit(F.max_pool2d(x, 3, 1, 1), f"{block}_pool").relu(),
            ],
            1,
        )
    return p.classified(x)


def tiny(p: Parameters, x: Tensor) -> Tensor:
    x = F.max_pool2d(p.unit(x, "first").relu(), 2, 2, ceil_mode=True)
    return p.classified(p.unit(x, "second").relu())


def lenet(p: Parameters, x: Tensor) -> Tensor:
    for label in ("conv1", "conv2"):
        x = F.avg_pool2d(p.convolution(x, label).tanh(), 2, 2, ceil_mode=True, count_include_pad=False)
    x = x.flatten(1)
    for label in ("fc1", "fc2", "fc3"):
        x = F.linear(x, p.leaves[f"{label}.weights"].flatten(1), p.leaves[f"{label}.biases"])
        x = x if label == "fc3" else x.tanh()
    return x


NETWORKS: dict[str, Callable[[Parameters, Tensor], Tensor]] = {
    "resnet18": resnet((2, 2, 2, 2), basic_block),
    "resnet50": resnet((3, 4, 6, 3), bottleneck),
    "mobilenet": mobilenet,
    "inception": inception,
    "tiny": tiny,
    "lenet": lenet,
}
