"""The measured networks in PyTorch: layer for layer what `openmps.training.architectures` and the examples describe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bench.work import Work


def make_network(work: Work) -> nn.Module:
    """The network of a work, by its name."""
    return _NETWORKS[work.network](work)


class Digits(nn.Module):
    """The sample network of the digits."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        side = work.side // 4
        self.conv1, self.conv2 = nn.Conv2d(work.channels, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2, self.dropout = nn.Linear(side**2 * 64, 1024), nn.Linear(1024, work.classes), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(self.dropout(torch.relu(self.fc1(x.flatten(1)))))


def _unit(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.path = nn.Sequential(
            *_unit(inputs, width, 1), relu, *_unit(width, width, 3, stride), relu, *_unit(width, 4 * width, 1)
        )
        is_same = stride == 1 and inputs == 4 * width
        self.projection = nn.Identity() if is_same else nn.Sequential(*_unit(inputs, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.path(x) + self.projection(x))


def _resnet50(work: Work) -> nn.Module:
    layers = [*_unit(work.channels, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            layers.append(Block(inputs, 64 * 2**stage, 2 if stage and not block else 1))
            inputs = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, work.classes))


_MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def _mobilenet(work: Work) -> nn.Module:
    layers, inputs = [*_unit(work.channels, 32, 3, 2), nn.ReLU6(inplace=True)], 32
    for outputs, stride in _MOBILENET:
        layers += [*_unit(inputs, inputs, 3, stride, inputs), nn.ReLU6(inplace=True)]
        layers += [*_unit(inputs, outputs, 1), nn.ReLU6(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, work.classes))


class Detector(nn.Module):
    """Tiny-YOLO, as in examples/tiny_yolo.py."""

    BOXES, CELL = 3, 32

    def __init__(self, work: Work) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = work.channels
        for level, power in enumerate((0, 1, 2, 3, 4, 5, 6, 6)):
            layers += [*_unit(inputs, work.width * 2**power, 3), nn.LeakyReLU(0.1, inplace=True)]
            inputs = work.width * 2**power
            if level < 5:
                layers.append(nn.MaxPool2d(2, 2))
            elif level == 5:
                layers += [nn.ReplicationPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(inputs, self.BOXES * (5 + work.classes), 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    @classmethod
    def labels(cls, work: Work) -> NDArray[np.float32]:
        """One box in the middle of each picture: [N, cells, cells, boxes, 5 + classes]."""
        cells = work.side // cls.CELL
        labels = np.zeros((work.batch, cells, cells, cls.BOXES, 5 + work.classes), np.float32)
        labels[:, cells // 2, cells // 2, :, :6] = 0.5, 0.5, cells / 2, cells / 2, 1.0, 1.0
        return labels


@cache
def _anchors(device: torch.device) -> Tensor:
    """Widths and heights: made once, since a captured step copies nothing from the host."""
    return torch.tensor([[0.7, 1.4], [1.0, 1.0], [1.4, 0.7]], device=device)


def detector_loss(y: Tensor, labels: Tensor) -> Tensor:
    """The loss of the framework's detector (MPSCNNYOLOLoss): what an app would write for it in PyTorch."""
    images, _, rows, columns = y.shape
    y = y.permute(0, 2, 3, 1).reshape(images, rows, columns, Detector.BOXES, -1)
    anchors = _anchors(y.device)
    center, size = torch.sigmoid(y[..., :2]), labels[..., 2:4]
    common = torch.minimum(anchors, size).prod(-1)
    fit = common / (anchors.prod(-1) + size.prod(-1) - common)
    objects = labels[..., 4] * ((fit == fit.amax(-1, keepdim=True)) | (fit > 0.7))
    absent = (objects == 0) & (fit < 0.3)
    with torch.no_grad():
        predicted = y[..., 2:4].exp() * anchors
        low = torch.maximum(center - predicted / 2, labels[..., :2] - size / 2)
        high = torch.minimum(center + predicted / 2, labels[..., :2] + size / 2)
        common = (high - low).clamp_min(0).prod(-1)
        target = objects * common / (predicted.prod(-1) + size.prod(-1) - common)
    raw = torch.log(size / anchors + 1e-5)
    total = 10 * objects * functional.mse_loss(center, labels[..., :2], reduction="none").sum(-1)
    total = total + 10 * objects * functional.huber_loss(y[..., 2:4], raw, reduction="none").sum(-1)
    sure = functional.binary_cross_entropy_with_logits(y[..., 4], target, reduction="none")
    total = total + (10 * objects + absent) * sure
    total = total - 10 * objects * (labels[..., 5:] * torch.log_softmax(y[..., 5:], -1)).sum(-1)
    return total.sum() / images


_NETWORKS: dict[str, Callable[[Work], Any]] = {
    "sample": Digits,
    "resnet50": _resnet50,
    "mobilenet": _mobilenet,
    "tiny-yolo": Detector,
}
