"""ONNX networks with instance and group normalization, trained by `openmps train`'s network beside PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from onnx_models import conv, model, node, numbers, saved
from openmps import MPSImageFeatureChannelFormat, mtl_device
from openmps.training import Batch, Classifier, Network, NetworkShape, optimizer_factory
from openmps.training.stepper import TrainingStepper

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
CPU = mtl_device("cpu")
SIDE, CLASSES, CHANNELS, BATCH, STEPS, RATE = 8, 3, 8, 5, 20, 0.1
FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
NORMS = {
    "instance": (lambda: nn.InstanceNorm2d(CHANNELS, affine=True), "InstanceNormalization", {}),
    "group": (lambda: nn.GroupNorm(2, CHANNELS), "GroupNormalization", {"num_groups": 2}),
    "batch": (lambda: nn.BatchNorm2d(CHANNELS), "BatchNormalization", {}),
}


def module(kind: str) -> nn.Sequential:
    torch.manual_seed(1)
    made = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1), NORMS[kind][0](), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(CHANNELS * 16, CLASSES),
    )  # fmt: skip
    for parameter in made[1].parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    return made


def exported(kind: str, folder: Path) -> Path:
    """The module with each layer as one operator."""
    rows = {name.replace(".", "_"): value.numpy() for name, value in module(kind).state_dict().items()}
    statistics = " 1_running_mean 1_running_var" if kind == "batch" else ""
    _, operator, attributes = NORMS[kind]
    nodes = [
        conv("x", "c", "0_weight 0_bias", pads=[1, 1, 1, 1]),
        node(operator, f"c 1_weight 1_bias{statistics}", "n", epsilon=1e-5, **attributes),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "m", "f"),
        node("Gemm", "f 5_weight 5_bias", "l", transB=1),
    ]
    shape = {"x": ["n", 3, SIDE, SIDE]}
    return saved(model(nodes, shape, ("l",), opset=21 if kind == "group" else 17, **rows), folder)


def network(path: Path, optimizer: str = "sgd") -> Network:
    shape = NetworkShape(SIDE, SIDE, 3, CLASSES, str(path))
    return Network.create(shape, seed=0, optimizer=optimizer_factory(optimizer, RATE))


def data() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8), np.arange(BATCH) % CLASSES


def torch_losses(made: nn.Module) -> list[float]:
    images, labels = data()
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 255
    optimizer, found = torch.optim.SGD(made.parameters(), RATE), list[float]()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(made(x), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def our_losses(trained: Network) -> list[float]:
    images, labels = data()
    stepper, found = TrainingStepper(trained, CPU, FLOAT32, batch_size=BATCH, dropout_seed=0), list[float]()
    for _ in range(STEPS):
        stepper.step(stepper.prepare(Batch(images, labels, np.arange(BATCH))))
        stepper.wait()
        found += [loss for loss, _ in stepper.collect()]
    return found


@pytest.mark.parametrize("kind", NORMS)
def test_normalizations_are_trained_as_in_torch(kind: str, tmp_path: Path) -> None:
    made, trained = module(kind), network(exported(kind, tmp_path))
    theirs, ours = torch_losses(made), our_losses(trained)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    (label,) = {name.split(".")[0] for name in trained.arrays() if name.endswith(".gamma")}
    for name, key in (("gamma", "1.weight"), ("beta", "1.bias")):
        wanted = made.state_dict()[key].numpy()
        np.testing.assert_allclose(trained.arrays()[f"{label}.{name}"], wanted, rtol=1e-4, atol=1e-5)
        assert np.abs(wanted - module(kind).state_dict()[key].numpy()).max() > 1e-3
    # What was trained comes back from arrays alone, and trains on from there.
    again = Network.from_arrays(trained.shape, trained.arrays())
    assert list(again.arrays()) == list(trained.arrays()) == list(trained.shape.arrays())
    found = Classifier(again, CPU, ("a", "b", "c")).probabilities(data()[0])
    np.testing.assert_allclose(found, Classifier(trained, CPU, ("a", "b", "c")).probabilities(data()[0]), atol=1e-6)
    further = Network.from_arrays(trained.shape, trained.arrays(), optimizer=optimizer_factory("sgd", RATE))
    np.testing.assert_allclose(our_losses(further)[0], torch_losses(made)[0], rtol=1e-4)


def test_scales_of_whole_groups_stay(tmp_path: Path) -> None:
    """Version 18 has one number a group; the framework's layer has one a channel."""
    nodes = [
        conv("x", "c"),
        node("GroupNormalization", "c g h", "n", num_groups=2),
        node("GlobalAveragePool", "n", "q"),
        node("Flatten", "q", "f"),
        node("Gemm", "f k", "l"),
    ]
    made = model(
        nodes, {"x": ["n", 3, SIDE, SIDE]}, ("l",), opset=18, w=numbers(4, 3, 3, 3), g=numbers(2), h=numbers(2),
        k=numbers(4, CLASSES),
    )  # fmt: skip
    assert not any(name.endswith("gamma") for name in network(saved(made, tmp_path)).arrays())
