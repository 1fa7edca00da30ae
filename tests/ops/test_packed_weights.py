"""Packed weights of windows of one pixel, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.convolution.packed_weights import packed_weights
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode


@in_one_test
@pytest.mark.parametrize("outputs", [1, 2, 5, 8, 9])
@pytest.mark.parametrize(("images", "stride"), [(1, 1), (2, 1), (3, 2), (0, 1)])
@pytest.mark.parametrize("has_biases", [True, False])
def test_products_of_few_outputs(
    outputs: int, images: int, stride: int, has_biases: bool, rng: np.random.Generator
) -> None:
    side = 33
    x, residual = (
        rng.normal(size=(images, side, side, 6)),
        rng.normal(size=(images, *[-(-side // stride)] * 2, outputs)),
    )
    weights, biases = rng.normal(size=(outputs, 6)), rng.normal(size=outputs)
    axis = Axis(side, -(-side // stride), stride=stride)
    rows = torch.from_numpy(weights).float().view(outputs, 1, 1, 6)
    given = torch.from_numpy(biases).float() if has_biases else None
    packed = packed_weights(rows, given, Window(axis, axis), MPSImageEdgeMode.ZERO, 1, images)
    wanted = x[:, ::stride, ::stride] @ weights.T + (biases if has_biases else 0.0)
    image = torch.from_numpy(x).float().permute(0, 3, 1, 2)
    for added in (None, residual):
        more = None if added is None else torch.from_numpy(added).float().permute(0, 3, 1, 2)
        found = packed(image, more, None)
        assert found.is_contiguous(memory_format=torch.channels_last)
        expected = wanted if added is None else wanted + added
        np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_weights_that_are_no_normal_numbers(size: int) -> None:
    rows = torch.tensor([1e-39, 1.2e-38, float("nan")]).repeat(size * size, 1).view(size, size, 3)
    weights = torch.stack([rows, rows.nan_to_num(1.0)])
    axis = Axis(4, 4, size)
    packed = packed_weights(weights, None, Window(axis, axis), MPSImageEdgeMode.ZERO, 1, 1)
    for channel, wanted in ((0, 0.0), (1, 1.2), (2, 1e38)):
        x = torch.zeros(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        x[:, channel, 2, 2] = 1e38
        found = packed(x, None, None)[0, :, 2, 2]
        assert found[0].isnan(), "a weight that is not a number shows"
        assert found[1].item() == pytest.approx(wanted, rel=1e-2)


@in_one_test
@pytest.mark.parametrize("channels", [1, 2, 3, 32])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5), (5, 1), (3, 3)])
@pytest.mark.parametrize("images", [1, 3])
def test_an_image_is_added_whatever_its_shape(
    images: int, height: int, width: int, channels: int, rng: np.random.Generator
) -> None:
    """One pixel or one channel is contiguous in both orders of memory."""
    x, residual = (torch.from_numpy(rng.normal(size=(images, height, width, channels))) for _ in range(2))
    weights = torch.from_numpy(rng.normal(size=(channels, 3, 3, channels)))
    window = Window(x=Axis(width, width, 3), y=Axis(height, height, 3))
    packed = packed_weights(weights.float(), None, window, MPSImageEdgeMode.ZERO, 1, images)
    source, added = x.permute(0, 3, 1, 2), residual.permute(0, 3, 1, 2)
    expected = torch.conv2d(source, weights.permute(0, 3, 1, 2), padding=1) + added
    np.testing.assert_allclose(packed(source.float(), added.float(), None), expected, rtol=1e-5, atol=1e-4)
