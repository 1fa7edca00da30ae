"""Deep networks in torch, by their papers; their parameters are named as the layers of `openmps.training` are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Array = np.ndarray
Tensor = torch.Tensor
EPSILON, MOMENTUM = 1e-5, 0.1


class Parameters:
    """Leaves for autograd, and running statistics, of a type."""

    def __init__(self, arrays: Mapping[str, Array], dtype: torch.dtype, *, training: bool) -> None:
        self.training = training
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
        return F.linear(x.mean((2, 3)), self.leaves["fc.weights"].flatten(1), self.leaves["fc.biases"])

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -(torch.log_softmax(logits, 1) * targets).sum(1)

    def gradients(self) -> dict[str, Array]:
        """By name, laid out as the framework's: OHWI."""
        found = {name: leaf.grad.double().cpu().numpy() for name, leaf in self.leaves.items() if leaf.grad is not None}
        return {name: grad.transpose(0, 2, 3, 1) if grad.ndim == 4 else grad for name, grad in found.items()}


class Rounding:
    """Errors at random, as large as float32 may round sums: twice its unit of the sum of the terms' magnitudes.

    With an even seed each number has an error of its own; with an odd one those of a channel have one in common, as
    sums of like terms in one order may have.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._is_common = seed % 2 == 1

    def of(self, magnitudes: Tensor) -> Tensor:
        shape = magnitudes.shape
        if self._is_common and len(shape) == 4:
            shape = (1, shape[1], 1, 1)
        noise = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        return (2.0 * noise - 1.0) * torch.finfo(torch.float32).eps * magnitudes


class _RoundedSum(torch.autograd.Function):
    """A function that sums products of its operands, one of each, and its gradients, with errors."""

    @staticmethod
    def forward(ctx: Any, rounding: Rounding, function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        ctx.rounding, ctx.function = rounding, function
        ctx.save_for_backward(*operands)
        return function(*operands) + rounding.of(function(*map(torch.abs, operands)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        found = []
        for change in (lambda each: each, torch.abs):
            with torch.enable_grad():
                operands = [change(each.detach()).requires_grad_() for each in ctx.saved_tensors]
                found.append(torch.autograd.grad(ctx.function(*operands), operands, change(gradient)))
        return None, None, *(each + ctx.rounding.of(most) for each, most in zip(*found, strict=True))


class _RoundedNormalization(torch.autograd.Function):
    """Batch normalization by the statistics of the batch, which it returns, too, and its gradients, with errors."""

    @staticmethod
    def forward(ctx: Any, rounding: Rounding, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pixels = (0, 2, 3)
        mean = x.mean(pixels) + rounding.of(x.abs().mean(pixels))
        centred, spread = x - _rows(mean), x.abs() + _rows(mean.abs())
        variance = centred.square().mean(pixels)
        variance = variance + rounding.of(variance)
        inverse = _rows((variance + EPSILON).rsqrt())
        normalized = (centred + rounding.of(spread)) * inverse
        y = _rows(gamma) * normalized + _rows(beta)
        ctx.rounding = rounding
        ctx.save_for_backward(normalized, spread * inverse, gamma, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return y + rounding.of(_rows(gamma.abs()) * normalized.abs() + _rows(beta.abs())), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        normalized, spread, gamma, inverse = ctx.saved_tensors
        pixels, count = (0, 2, 3), gradient[:, 0].numel()
        for_beta = gradient.sum(pixels) + ctx.rounding.of(gradient.abs().sum(pixels))
        products = gradient.abs() * spread
        for_gamma = (gradient * normalized).sum(pixels) + ctx.rounding.of(products.sum(pixels))
        parts = gradient, -_rows(for_beta / count), -normalized * _rows(for_gamma / count)
        error = ctx.rounding.of(sum(part.abs() for part in parts))
        return None, (sum(parts) + error) * _rows(gamma) * inverse, for_gamma, for_beta


def _rows(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]


class RoundedParameters(Parameters):
    """In float64, with errors at random in each layer and in its gradients, as large as float32 may make them.

    What comes out tells how far the results of a float32 computation may be from the exact ones, in whatever order its
    sums are made: no float32 number of any processor is asked.
    """

    def __init__(self, arrays: Mapping[str, Array], seed: int, *, training: bool) -> None:
        super().__init__(arrays, torch.float64, training=training)
        self._rounding = Rounding(seed)

    def _sum(self, function: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
        return _RoundedSum.apply(self._rounding, function, *(each for each in operands if each is not None))

    def convolution(self, x: Tensor, label: str, stride: int = 1, groups: int = 1) -> Tensor:
        weights = self.leaves[f"{label}.weights"]
        how = {"stride": stride, "padding": weights.shape[-1] // 2, "groups": groups}
        return self._sum(lambda *each: F.conv2d(*each, **how), x, weights, self.leaves.get(f"{label}.biases"))

    def normalization(self, x: Tensor, label: str) -> Tensor:
        mean, variance = self.running[f"{label}.mean"], self.running[f"{label}.variance"]
        gamma, beta = self.leaves[f"{label}.gamma"], self.leaves[f"{label}.beta"]
        if not self.training:
            scale = gamma * (variance + EPSILON).rsqrt()
            y = (x - _rows(mean)) * _rows(scale) + _rows(beta)
            return y + self._rounding.of((x.abs() + _rows(mean.abs())) * _rows(scale.abs()) + _rows(beta.abs()))
        y, own, spread = _RoundedNormalization.apply(self._rounding, x, gamma, beta)
        count = x[:, 0].numel()
        mean.lerp_(own, MOMENTUM)
        variance.lerp_(spread * count / (count - 1), MOMENTUM)
        return y

    def classified(self, x: Tensor) -> Tensor:
        mean = self._sum(lambda each: each.mean((2, 3)), x)
        return self._sum(F.linear, mean, self.leaves["fc.weights"].flatten(1), self.leaves["fc.biases"])

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        found = super().losses(logits, targets)
        errors = self._rounding.of(logits.detach().abs().sum(1) + found.detach().abs())
        shares = torch.softmax(logits.detach(), 1) + targets
        logits.register_hook(lambda gradient: gradient + self._rounding.of(shares))
        return found + errors


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
