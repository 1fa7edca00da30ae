"""The sample network against the same network in PyTorch, for many sizes of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from openmps.core.image.batch import MPSImageBatch
from openmps.errors import MPSArgumentError, MPSError
from openmps.formats import ohwi_to_oihw
from openmps.kernels.loss import MPSCNNLossLabels
from openmps.ops.pointwise.dropout import dropout_mask
from openmps.runtime.devices import mtl_device
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.types import MPSImageFeatureChannelFormat as Format

SHAPES = [NetworkShape(8, 8, 1, 10), NetworkShape(4, 4, 1, 2), NetworkShape(7, 5, 3, 3), NetworkShape(9, 28, 3, 11)]


def _network(shape, *, seed=0, optimizer="sgd", learning_rate=1.0):
    return SampleNetwork.create(shape, seed=seed, optimizer=optimizer_factory(optimizer, learning_rate))


def _data(shape, rng, count=5):
    images = rng.integers(0, 256, (count, shape.height, shape.width, shape.channels), dtype=np.uint8)
    return images, rng.integers(0, shape.classes, count)


def _step(network, images, labels, *, channel_format=Format.FLOAT32, dropout_seed=3, device="cpu"):
    """One training step; returns the losses and the logits."""
    machine = mtl_device(device)
    graph = network.training_graph(machine, channel_format, loss_weight=1 / len(images), dropout_seed=dropout_seed)
    one_hot = np.eye(network.shape.classes, dtype=np.float32)[labels].reshape(len(labels), 1, 1, -1)
    states = [MPSCNNLossLabels(machine, labels_image=image) for image in MPSImageBatch.from_numpy(machine, one_hot)]
    command_buffer = machine.new_command_queue().command_buffer()
    logits = []
    result = graph.encode_batch(command_buffer, [MPSImageBatch.from_numpy(machine, images)], [states], logits)
    assert result is None
    command_buffer.commit()
    command_buffer.wait_until_completed()
    losses = [float(state.loss_image().numpy().item()) for state in states]
    return losses, logits[0].numpy().reshape(len(images), -1)


def _infer(network, images, channel_format=Format.FLOAT32, device="cpu"):
    machine = mtl_device(device)
    graph = network.inference_graph(machine, channel_format)
    command_buffer = machine.new_command_queue().command_buffer()
    result = graph.encode_batch(command_buffer, [MPSImageBatch.from_numpy(machine, images)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result.numpy().reshape(len(images), -1)


def _torch_parameters(network):
    arrays = network.arrays()
    return {
        name: torch.tensor(ohwi_to_oihw(array) if array.ndim == 4 else array, dtype=torch.float64, requires_grad=True)
        for name, array in arrays.items()
    }


def _torch_logits(parameters, images, mask=None):
    x = torch.from_numpy(images).to(torch.float64).permute(0, 3, 1, 2) / 255
    for label in ("conv1", "conv2"):
        x = functional.conv2d(x, parameters[f"{label}.weights"], parameters[f"{label}.biases"], padding=2)
        x = functional.max_pool2d(functional.relu(x), 2, 2, ceil_mode=True)
    x = functional.relu(functional.conv2d(x, parameters["fc1.weights"], parameters["fc1.biases"]))
    if mask is not None:
        x = x * mask.to(torch.float64) / 0.5
    return functional.conv2d(x, parameters["fc2.weights"], parameters["fc2.biases"]).flatten(1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_probabilities_are_those_of_the_network_in_pytorch(shape, rng):
    network = _network(shape)
    images, _ = _data(shape, rng)
    expected = torch.softmax(_torch_logits(_torch_parameters(network), images), 1).detach().numpy()
    np.testing.assert_allclose(_infer(network, images), expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_training_step_has_the_loss_and_the_gradients_of_pytorch(shape, rng):
    network = _network(shape)
    images, labels = _data(shape, rng)
    parameters = _torch_parameters(network)
    mask = dropout_mask((len(images), 1024, 1, 1), 0.5, seed=3, step=0, device="cpu")
    logits = _torch_logits(parameters, images, mask)
    losses = functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none") / len(images)
    losses.sum().backward()
    before = network.arrays()

    found, exported = _step(network, images, labels)

    np.testing.assert_allclose(exported, logits.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, losses.detach().numpy(), rtol=1e-4, atol=1e-5)
    after = network.arrays()
    for name, parameter in parameters.items():
        gradient = parameter.grad.numpy()
        expected = gradient.transpose(0, 2, 3, 1) if gradient.ndim == 4 else gradient
        moved = before[name].astype(np.float64) - after[name]
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(moved, expected, atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_every_optimizer_moves_every_array(optimizer, rng):
    shape = SHAPES[0]
    network = _network(shape, optimizer=optimizer, learning_rate=1e-3)
    before = network.arrays()
    _step(network, *_data(shape, rng))
    for name, array in network.arrays().items():
        assert (array != before[name]).any(), name
        assert np.isfinite(array).all(), name


def test_half_precision_is_near_single_precision(rng):
    shape = SHAPES[0]
    images, labels = _data(shape, rng)
    single, half = _network(shape), _network(shape)
    np.testing.assert_allclose(_infer(half, images, Format.FLOAT16), _infer(single, images), atol=0.02)
    losses = _step(single, images, labels)[0]
    halves = _step(half, images, labels, channel_format=Format.FLOAT16)[0]
    np.testing.assert_allclose(halves, losses, rtol=0.02, atol=0.02)
    assert halves != losses


def test_weights_are_a_function_of_the_seed():
    first, again, other = (_network(SHAPES[0], seed=seed).arrays() for seed in (0, 0, 1))
    assert list(first) == list(SHAPES[0].arrays())
    for name, array in first.items():
        assert array.dtype == np.float32
        assert array.shape == SHAPES[0].arrays()[name]
        np.testing.assert_array_equal(array, again[name])
        if name.endswith("biases"):
            assert (array == np.float32(0.1)).all()
        else:
            assert np.abs(array).max() <= 0.2
            assert np.abs(array.mean()) < 0.02
            assert array.std() == pytest.approx(0.2 / 3**0.5, rel=0.1)
            assert (array != other[name]).any()
    assert not np.array_equal(first["conv2.weights"].ravel()[:100], first["fc1.weights"].ravel()[:100])


def test_a_network_of_given_arrays_is_the_same_network(rng):
    network = _network(SHAPES[2])
    images, labels = _data(SHAPES[2], rng)
    _step(network, images, labels)
    copy = SampleNetwork.from_arrays(network.shape, network.arrays())
    np.testing.assert_array_equal(_infer(copy, images), _infer(network, images))


def test_the_learning_rate_of_updates_to_come(rng):
    network = _network(SHAPES[0], learning_rate=1.0)
    network.set_learning_rate(1e-30)
    before = network.arrays()
    _step(network, *_data(SHAPES[0], rng))
    for name, array in network.arrays().items():
        np.testing.assert_allclose(array, before[name], rtol=0, atol=1e-20)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((3, 8, 1, 10), "height must be 4 or more, got 3. Give larger images, or resize them"),
        ((8, 1, 1, 10), "width must be 4 or more, got 1. Give larger images, or resize them"),
        ((8, 8, 0, 10), "channels must be 1 or more, got 0"),
        ((8, 8, 1, 1), "classes must be 2 or more, got 1"),
        ((8, 8.0, 1, 10), "width must be a whole number, got 8.0"),
        ((True, 8, 1, 10), "height must be a whole number, got True"),
    ],
)
def test_shapes_that_make_no_network_are_named(lengths, message):
    with pytest.raises(MPSError) as caught:
        NetworkShape(*lengths)
    assert str(caught.value) == f"NetworkShape: {message}"


@pytest.mark.parametrize(
    ("name", "rate", "message"),
    [
        ("adamw", 1e-3, "must be one of adam, sgd, rmsprop, muon, got 'adamw'"),
        ("adam", 0, "must be above 0 and finite, got 0"),
        ("adam", -1, "must be above 0"),
        ("adam", float("nan"), "learning_rate must be a number, got nan"),
        ("adam", float("inf"), "learning_rate must be a finite number, got inf"),
    ],
)
def test_optimizers_that_cannot_be_made_are_named(name, rate, message):
    with pytest.raises(MPSArgumentError, match=message):
        optimizer_factory(name, rate)
