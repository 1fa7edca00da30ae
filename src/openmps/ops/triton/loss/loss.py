"""Softmax cross entropy and its gradient in Triton: one launch (`openmps.ops.loss.loss`)."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.blocks import next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_CLASSES = 4096
MOST_PIXELS = 16
"""Of an image: they are summed one after the other."""


@Overlapping
@triton.jit
def _soft_max_cross_entropy(
    y, t, losses, gradient, pixels, classes, pitch, pitch_of_labels, weight, kept, added, divisor,
    CLASSES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """All pixels of one image."""
    in_turn(OVERLAPS)
    image, at = tl.program_id(0).to(tl.int64), tl.arange(0, CLASSES)
    is_class = at < classes
    total = tl.zeros([CLASSES], tl.float32)
    for pixel in range(pixels):
        place = image * pixels + pixel
        value = tl.load(y + place * pitch + at, is_class, float("-inf")).to(tl.float32)
        label = tl.load(t + place * pitch_of_labels + at, is_class, 0.0).to(tl.float32)
        label = tl.where(is_class, label * kept + added, 0.0)
        shifted = value - tl.max(value, 0)
        logarithm = shifted - tl.log(tl.sum(tl.exp(shifted), 0))
        loses = is_class & ((label != 0) | (logarithm != float("-inf")))
        total -= tl.where(loses, label * logarithm, 0.0)
        slope = (tl.exp(logarithm) - label) * weight
        tl.store(gradient + place * classes + at, slope.to(gradient.dtype.element_ty), is_class)
    tl.store(losses + image, tl.sum(total, 0) * weight / divisor)


def soft_max_cross_entropy(
    y: Tensor, t: Tensor, pitches: tuple[int, int], weight: float, labels: tuple[float, float], divisor: float
) -> tuple[Tensor, Tensor]:
    """The loss of each image and the gradient, of the type of ``y``.

    Channels lie side by side, ``pitches`` numbers from pixel to pixel. Labels become ``t labels[0] + labels[1]``.
    """
    images, classes, height, width = y.shape
    losses = torch.empty((images, 1, 1, 1), dtype=torch.float32, device=y.device)
    gradient = torch.empty((images, height, width, classes), dtype=y.dtype, device=y.device).permute(0, 3, 1, 2)
    block = next_power_of_2(classes)
    _soft_max_cross_entropy[(images,)](
        y, t, losses, gradient, height * width, classes, *pitches, float(weight), *map(float, labels), float(divisor),
        block, num_warps=max(1, min(8, block // 128)),
    )  # fmt: skip
    return losses, gradient
