"""Scripts as somebody on a Mac writes them run unchanged, and give the numbers of loops over NumPy arrays."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import convolution, image_filters, image_scale, loss, neuron, optimizers, pooling, softmax
from oracles.geometry import Axis

SCRIPTS = Path(__file__).with_name("scripts")
FLOAT32, FLOAT16 = 1e-5, 2e-3
CROSS_ENTROPY = loss.Parameters(loss.NAMES.index("softmax_cross_entropy"))


@pytest.fixture
def numbers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a script writes into its file."""
    path = tmp_path / "numbers.npz"
    monkeypatch.setattr("sys.argv", [request.param, str(path)])
    runpy.run_path(str(SCRIPTS / f"{request.param}.py"), run_name="__main__")
    with np.load(path) as found:
        return dict(found)


def planes(images: np.ndarray) -> np.ndarray:
    """``[H, W, C]``, or images of it, as float64 ``[N, C, H, W]``."""
    return images.reshape(-1, *images.shape[-3:]).transpose(0, 3, 1, 2).astype(np.float64)


def valid(result: int, size: int, stride: int = 1) -> Axis:
    """An axis whose first window begins at pixel 0."""
    return Axis(result, size, stride, offset=size // 2)


@pytest.mark.parametrize("numbers", ["classify"], indirect=True)
def test_inference_with_a_data_source(numbers: dict[str, Any]) -> None:
    x, filters, dense = planes(numbers["pixels"]), np.float64(numbers["filters"]), np.float64(numbers["dense"])
    x = convolution.forward(x, filters, np.float64(numbers["biases"]), valid(6, 3), valid(6, 3))
    x = neuron.forward(x, 1, 0.1, 0.0, 0.0)
    x = pooling.maximum(x, valid(3, 2, 2), valid(3, 2, 2), 0)
    expected = softmax.softmax(convolution.fully_connected(x, dense, None))
    assert np.allclose(numbers["probabilities"], expected.ravel(), atol=FLOAT16)
    assert expected.max() > 2 / expected.size


@pytest.mark.parametrize("numbers", ["step_by_kernels"], indirect=True)
def test_a_training_step_with_gradient_kernels_and_states(numbers: dict[str, Any]) -> None:
    x, filters = planes(numbers["pixels"]), np.float64(numbers["filters"])
    biases, labels = np.full(3, 0.25), np.float64(numbers["labels"]).reshape(1, 3, 1, 1)
    axes = (valid(1, 3), valid(1, 3))
    logits = convolution.forward(x, filters, biases, *axes)
    total, slope = loss.loss(logits, labels, None, CROSS_ENTROPY)
    down, weight_gradient, bias_gradient = convolution.gradient(slope, x, filters, *axes)
    rate = optimizers.Common(learning_rate=0.5)
    weights, _ = optimizers.sgd(weight_gradient, filters, None, rate)
    new_biases, _ = optimizers.sgd(bias_gradient, biases, None, rate)
    assert np.allclose(planes(numbers["logits"]), logits, atol=FLOAT32)
    assert np.allclose(numbers["loss"].ravel(), total.ravel(), atol=FLOAT32)
    assert np.allclose(planes(numbers["down"]), down, atol=FLOAT32)
    assert np.allclose(numbers["weights"], weights, atol=FLOAT32)
    again = convolution.forward(x, weights, new_biases, *axes)
    assert np.allclose(planes(numbers["again"]), again, atol=FLOAT32)


@pytest.mark.parametrize("numbers", ["graph_inference"], indirect=True)
def test_a_graph_runs(numbers: dict[str, Any]) -> None:
    x, filters = planes(numbers["pixels"]), np.float64(numbers["filters"])
    y = neuron.forward(convolution.forward(x, filters, None, Axis(5, 3), Axis(6, 3)), 1, 0.0, 0.0, 0.0)
    expected = pooling.average(x + y, valid(2, 2, 2), valid(3, 2, 2), 0)
    assert np.allclose(planes(numbers["result"]), expected, atol=FLOAT32)
    assert np.array_equal(numbers["result"], numbers["later"])


@pytest.mark.parametrize("numbers", ["graph_training"], indirect=True)
def test_a_graph_trains_with_a_loss_and_an_optimizer(numbers: dict[str, Any]) -> None:
    x, weights = planes(numbers["pixels"]), np.float64(numbers["weights"])
    labels = np.eye(3)[numbers["classes"]].reshape(4, 3, 1, 1)
    losses = []
    for _ in range(3):
        total, slope = loss.loss(convolution.fully_connected(x, weights, None), labels, None, CROSS_ENTROPY)
        _, gradient, _ = convolution.gradient(slope, x, weights, valid(1, 4), valid(1, 4))
        weights, _ = optimizers.sgd(
            gradient, weights, None, optimizers.Common(learning_rate=0.25, gradient_rescale=1 / 4)
        )
        losses.append(total.sum())
    assert np.allclose(numbers["losses"], losses, atol=FLOAT32 * 10)
    assert np.allclose(numbers["trained"], weights, atol=FLOAT32)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("numbers", ["copies"], indirect=True)
def test_bytes_of_images_and_buffers(numbers: dict[str, Any]) -> None:
    pixels = numbers["pixels"]
    for y, x, c in np.ndindex(*pixels.shape):
        assert numbers["planes"][c, y, x] == pixels[y, x, c]
    for y, x, c in np.ndindex(2, 3, 4):
        assert numbers["rows"][y, x, c] == pixels[1 + y, 1 + x, 4 + c]
    assert (numbers["rows"][:, 3:] == -1).all()
    assert np.array_equal(numbers["second"], numbers["spaced"][1, :4])
    assert np.array_equal(numbers["copied"], pixels)
    assert numbers["constant"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("numbers", ["thumbnail"], indirect=True)
def test_image_filters_over_textures(numbers: dict[str, Any]) -> None:
    clamp = 1
    x = planes(numbers["picture"]) / 255
    weights = image_filters.bell(0.8)
    taps = image_filters.windows(x, Axis(14, len(weights)), Axis(20, len(weights)), clamp)
    soft = image_filters.correlate(taps, np.outer(weights, weights))
    assert np.allclose(planes(numbers["soft"]), soft, atol=FLOAT32)
    down = image_scale.axis_matrix(Axis(7), 14, 7 / 14, 0.0, "lanczos", clamp)
    across = image_scale.axis_matrix(Axis(7), 20, 7 / 20, 0.0, "lanczos", clamp)
    small = image_scale.scale(soft, down, across)
    assert np.allclose(planes(numbers["small"]), small, atol=FLOAT32)
    assert np.allclose(numbers["mean"].ravel(), x.mean(axis=(0, 2, 3)), atol=FLOAT32)
    gray = image_filters.gray(small, (0.5, 0.25, 0.25))
    edges = image_filters.sobel(image_filters.windows(gray, Axis(7, 3), Axis(7, 3), 0))
    assert np.array_equal(planes(numbers["mask"]), image_filters.threshold("Binary", edges, 0.5, 1.0))
    zeros, ones = (0.0,) * 4, (1.0,) * 4
    assert np.array_equal(numbers["counts"], image_filters.histogram(x, 8, zeros, ones, zeros))
