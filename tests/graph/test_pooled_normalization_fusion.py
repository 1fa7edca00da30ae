"""Graphs whose poolings run with the normalizations and neurons before them, against the same graphs step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import openmps as mps
from normalized_networks import FLOAT32, FORMATS, NEURONS, NormalizedNetwork, assert_alike, both, count
from openmps.ops.normalization.normalized_pooling import (
    NormalizedPooling,
    NormalizedPoolingGradient,
    NormalizedPoolingSums,
)
from openmps.ops.pooling.pooling import MaxPoolingGradient
from pairs import pairs

pytestmark = pytest.mark.usefixtures("rules_of_a_gpu")

POOLS: dict[str, Callable[[Any], Any]] = {
    "3 by 2": lambda image: mps.MPSCNNPoolingMaxNode(image, 3, 2),
    "2 by 2": lambda image: mps.MPSCNNPoolingMaxNode(image, 2),
    "3 by 1": lambda image: mps.MPSCNNPoolingMaxNode(image, 3, 1),
}
SHAPES = [(2, 1, 6, 6), (3, 5, 7, 4), (1, 9, 5, 1)]


class Network(NormalizedNetwork):
    """A convolution, a normalization, a neuron, a pooling and a convolution; their gradients and updates."""

    def __init__(self, channels: int, neuron: str, pool: str, gradient_format: Any, read: str = "") -> None:
        super().__init__(channels, 0.01)
        first = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.layers[0])
        activation = NEURONS[neuron](self.normalized(first.result_image).result_image)
        pooled = POOLS[pool](activation.result_image)
        if read == "exported":
            image = activation.result_image
            image.export_from_graph, image.image_allocator = True, mps.MPSImage.default_allocator()
        total: Any = pooled
        if read == "twice":
            total = mps.MPSNNAdditionNode(pooled.result_image, POOLS[pool](activation.result_image).result_image)
        last = mps.MPSCNNConvolutionNode(total.result_image, self.layers[1])
        self.ends(last.result_image, gradient_format)


@pytest.mark.parametrize(
    ("shape", "neuron", "formats", "pool"), pairs(SHAPES, ["relu", "relu n"], FORMATS, [*POOLS]), ids=str
)
def test_fused_training_equals_that_step_by_step(shape, neuron: str, formats, pool: str, device: torch.device) -> None:
    def make() -> Network:
        return Network(shape[1], neuron, pool, formats[1])

    found, expected, program = both(make, device, shape, formats[0])
    assert_alike(found, expected, device, formats[0])
    for kind in (NormalizedPooling, NormalizedPoolingSums, NormalizedPoolingGradient):
        assert count(program, kind) == 1
    assert not count(program, MaxPoolingGradient)


@pytest.mark.parametrize(("neuron", "read"), [("leaky relu", ""), ("relu", "exported"), ("relu", "twice")])
def test_what_stands_in_the_way(neuron: str, read: str, device: torch.device) -> None:
    """A neuron that passes a part of a gradient, and images between that come out or that others read."""
    shape = (2, 3, 6, 5)
    found, expected, program = both(lambda: Network(3, neuron, "3 by 2", FLOAT32, read), device, shape, FLOAT32)
    assert_alike(found, expected, device, FLOAT32)
    assert not count(program, NormalizedPooling)
