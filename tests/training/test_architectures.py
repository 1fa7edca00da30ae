"""Deep networks as training graphs: every gradient and every running statistic against PyTorch's autograd in float64.

Where a rectifier's source is near 0, float32 may take the other branch, and gradients differ visibly between two
correct float32 runs. So the error that is allowed is what float32 runs of torch have, for each array: its norm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import deep_networks
from encoding import Bench, finish, numbers
from helpers import TOLERANCE, assert_close
from networks import labels, losses, one_hot, softmax_loss
from openmps.core.image.image import MPSImage
from openmps.graph.graph import MPSNNGraph
from openmps.kernels.optimizers import MPSNNOptimizerStochasticGradientDescent
from openmps.runtime.devices import mtl_device
from openmps.training import architectures
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.training.normalization_sources import TrainableBatchNormalizationDataSource
from openmps.training.topology import ConvolutionLayer, Topology
from openmps.types import MPSImageFeatureChannelFormat as Format

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # said when oneDNN is turned off
Array = np.ndarray
LAST_OF_BLOCK = re.compile(r"stage\d_block\d_3_norm")
CLASSES = 7
NARROW = {
    "resnet18": partial(architectures.resnet18, width=4),
    "resnet50": partial(architectures.resnet50, width=4),
    "mobilenet": partial(architectures.mobilenet, width=1 / 8),
    "inception": partial(architectures.inception, width=4),
    "tiny": architectures.tiny,
    "lenet": architectures.lenet,
}


@pytest.fixture(autouse=True)
def _one_thread():
    """More take longer for networks as narrow as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plainly() -> Any:
    """Torch without oneDNN, whose float32 convolutions of few channels were seen to corrupt memory."""
    return torch.backends.mkldnn.flags(enabled=False)


class Convolution(ArrayConvolutionDataSource):
    """Keeps the gradients that it is given, and updates nothing."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.state = gradient_state
        return source_state


class Normalization(TrainableBatchNormalizationDataSource):
    """Keeps the gradients that it is given; the running statistics are the library's."""

    def update_gamma_and_beta(self, command_buffer: Any, batch_normalization_state: Any) -> Any:
        self.state = batch_normalization_state


@dataclass
class Step:
    """What one training step gave."""

    losses: Array
    gradients: dict[str, Array]
    running: dict[str, Array] = field(default_factory=dict)

    def last(self) -> dict[str, Array]:
        """What soft-max gives: the losses, of which one may have had luck, and the gradient of the logits' biases."""
        (name,) = (name for name in self.gradients if name.endswith(".biases"))
        return {"losses": self.losses, name: self.gradients[name]}


SEED = 3
SEEDS = {
    ("resnet18", (1, 3, 70, 64)): 4,
    ("resnet50", (8, 3, 32, 32)): 4,
    ("mobilenet", (3, 3, 64, 64)): 4,
    ("mobilenet", (8, 3, 32, 32)): 9,
    ("mobilenet", (1, 3, 70, 64)): 9,
    ("inception", (3, 3, 64, 64)): 6,
    ("inception", (1, 3, 70, 64)): 5,
}
"""Where a sum before a rectifier of `SEED`'s numbers is so near 0 that rounding may decide whether it passes."""
RUNS = 4
"""Of the same step with errors at random."""


@dataclass
class Case:
    """A network with its parameters and a batch."""

    name: str
    topology: Topology
    arrays: dict[str, Array]
    images: Array
    targets: Array

    @classmethod
    def of(cls, name: str, shape: tuple[int, int, int, int], seed: int | None = None) -> Case:
        rng = np.random.default_rng(SEEDS.get((name, shape), SEED) if seed is None else seed)
        count, channels, height, width = shape
        topology = Topology.of(NARROW[name], height, width, channels, CLASSES)
        arrays = {
            f"{label}.{part}": _initial(rng, label, part, shape, getattr(layer, "limit", 0.0))
            for label, layer in topology.layers().items()
            for part, shape in layer.arrays().items()
        }
        images = rng.standard_normal(shape).astype(np.float32)
        return cls(name, topology, arrays, images, one_hot(rng.integers(0, CLASSES, count), CLASSES))

    def sources(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for label, layer in self.topology.layers().items():
            arrays = {name: self.arrays[f"{label}.{name}"] for name in layer.arrays()}
            if isinstance(layer, ConvolutionLayer):
                made[label] = Convolution(layer.descriptor, arrays["weights"], arrays.get("biases"), label)
            else:
                optimizer = MPSNNOptimizerStochasticGradientDescent
                made[label] = Normalization(layer.channels, *arrays.values(), label=label, optimizer=optimizer)
        return made

    # --- the framework ------------------------------------------------------------------------------------------------

    def step(self, bench: Bench) -> Step:
        sources = self.sources()
        loss = softmax_loss(self.topology.logits(sources, None))
        (last,) = loss.training_graph()
        graph = MPSNNGraph(bench.device, last.result_image)
        graph.format = Format.FLOAT32
        given = labels(bench, self.targets)
        command_buffer = bench.command_buffer()
        result = graph.encode_batch(command_buffer, [bench.batch(self.images)], [given])
        finish(command_buffer)
        step = Step(losses(given), {"image": numbers(result)})
        for label, source in sources.items():
            parts = source.arrays()
            for name in parts:
                if name in ("mean", "variance"):
                    step.running[f"{label}.{name}"] = parts[name]
                else:
                    found = _gradient(source.state, name).contents().view(np.float32)
                    step.gradients[f"{label}.{name}"] = found[: parts[name].size].reshape(parts[name].shape)
        return step

    def infer(self, bench: Bench) -> Array:
        logits = self.topology.logits(self.sources(), None)
        graph = MPSNNGraph(bench.device, logits)
        graph.format = Format.FLOAT32
        graph.destination_image_allocator = MPSImage.default_allocator()
        command_buffer = bench.command_buffer()
        result = graph.encode_batch(command_buffer, [bench.batch(self.images)])
        finish(command_buffer)
        return numbers(result)[:, :, 0, 0]

    # --- torch --------------------------------------------------------------------------------------------------------

    def torch_step(self, seed: int | None = None) -> Step:
        """In float64; with a seed, with errors as large as those of float32."""
        parameters, x = self._torch(seed, training=True)
        targets = torch.tensor(self.targets[:, :, 0, 0], dtype=torch.float64)
        with plainly():
            logits = deep_networks.NETWORKS[self.name](parameters, x.requires_grad_())
            found = parameters.losses(logits, targets)
            found.sum().backward()
        gradients = {**parameters.gradients(), "image": x.grad.numpy()}
        running = {name: each.numpy() for name, each in parameters.running.items()}
        return Step(found.detach().numpy(), gradients, running)

    def torch_infer(self, seed: int | None = None) -> Array:
        parameters, x = self._torch(seed, training=False)
        with torch.no_grad(), plainly():
            return deep_networks.NETWORKS[self.name](parameters, x).numpy()

    def _torch(self, seed: int | None, *, training: bool) -> tuple[deep_networks.Parameters, torch.Tensor]:
        x = torch.tensor(self.images, dtype=torch.float64)
        if seed is None:
            return deep_networks.Parameters(self.arrays, torch.float64, training=training), x
        return deep_networks.RoundedParameters(self.arrays, seed, training=training), x


def _initial(rng: np.random.Generator, label: str, part: str, shape: tuple[int, ...], limit: float) -> Array:
    """Weights as at first; no scale, shift or statistic is its default.

    A block of a residual network adds little to its source, else rounding grows from block to block.
    """
    if part == "weights":
        values = rng.uniform(-limit, limit, shape)
    elif part == "gamma" and LAST_OF_BLOCK.fullmatch(label):
        values = rng.uniform(0.1, 0.3, shape)
    elif part in ("gamma", "variance"):
        values = rng.uniform(0.5, 1.5, shape)
    else:
        values = rng.normal(0.0, 0.2, shape)
    return values.astype(np.float32)


def _gradient(state: Any, name: str) -> Any:
    found = getattr(state, f"gradient_for_{name}")
    return found() if callable(found) else found


def relative_norm(found: Array, expected: Array) -> float:
    """The norm of the difference, as a share of the norm of what is expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def check(found: dict[str, Array], expected: dict[str, Array], others: list[dict[str, Array]], largest: float) -> None:
    """Raise unless each array's error is at most twice the largest of the others', which are below ``largest``.

    The others are exact but for errors at random. The largest is that of the array and its neighbours: rounding goes
    from layer to layer, and an array of four numbers may have had luck.
    """
    assert found.keys() == expected.keys()
    names = list(expected)
    errors = {name: max(relative_norm(other[name], expected[name]) for other in others) for name in names}
    for place, name in enumerate(names):
        allowed = max(errors[other] for other in names[max(place - NEIGHBOURS, 0) : place + NEIGHBOURS + 1])
        assert allowed < largest, f"{name}: the case is too sensitive to rounding to show anything, {allowed:.1e}"
        have = relative_norm(found[name], expected[name])
        assert have <= 2 * max(allowed, ROUNDING), f"{name}: error {have:.1e}, rounding {allowed:.1e}"


SHAPES = [(8, 3, 32, 32), (1, 3, 70, 64), (2, 1, 37, 45)]
"""Images, channels, height, width: several images, one alone, odd sizes."""
NEIGHBOURS = 3  # a convolution and its normalization
ROUNDING = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [name for name in NARROW if name != "lenet"])
def test_gradients_and_running_statistics_are_those_of_pytorch(name, shape):
    case = Case.of(name, shape)
    expected, others = case.torch_step(), [case.torch_step(seed) for seed in range(RUNS)]
    found = case.step(Bench(mtl_device("cpu")))
    check(found.gradients, expected.gradients, [other.gradients for other in others], 3e-3)
    check(found.running, expected.running, [other.running for other in others], 1e-4)
    check(found.last(), expected.last(), [other.last() for other in others], 1e-4)
    layers = case.topology.layers().values()
    assert len(found.gradients) == 1 + sum(len(layer.arrays()) for layer in layers) - len(found.running)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_a_network_without_rectifiers(shape):
    case = Case.of("lenet", shape)
    expected, found = case.torch_step(), case.step(Bench(mtl_device("cpu")))
    assert found.gradients.keys() == expected.gradients.keys()
    for name, values in expected.gradients.items():
        assert relative_norm(found.gradients[name], values) < TOLERANCE[torch.float32], name
    assert_close(found.losses, expected.losses, TOLERANCE[torch.float32])


@pytest.mark.parametrize("shape", [(12, 3, 32, 32), (5, 1, 33, 27)], ids=str)
@pytest.mark.parametrize("name", NARROW)
def test_inference_normalizes_with_the_running_statistics(name, shape):
    case = Case.of(name, shape)
    expected = {"logits": case.torch_infer()}
    others = [{"logits": case.torch_infer(seed)} for seed in range(RUNS)]
    check({"logits": case.infer(Bench(mtl_device("cpu")))}, expected, others, 1e-5)


@pytest.mark.parametrize(
    ("describe", "parameters"),
    [
        (architectures.resnet18, 11_689_512),
        (architectures.resnet50, 25_557_032),
        (architectures.mobilenet, 4_231_976),
    ],
)
def test_full_size_networks_have_the_numbers_of_parameters_that_are_published(describe, parameters):
    arrays = Topology.of(describe, 224, 224, 3, 1000).arrays()
    trained = {name: shape for name, shape in arrays.items() if not name.endswith((".mean", ".variance"))}
    assert sum(int(np.prod(shape)) for shape in trained.values()) == parameters
    assert len(arrays) - len(trained) == 2 * sum(name.endswith(".gamma") for name in arrays)
