"""The sixteen neurons and their derivatives against scalar loops, PyTorch, finite differences and printed numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, on_a_cpu_of, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.pointwise import neuron as ops
from openmps.types import MPSCNNNeuronType
from oracles import neuron as oracle

KINDS = list(enumerate(oracle.NAMES))
NAMES = list(oracle.NAMES)
GELU = NAMES.index("gelu")
# Three settings of a, b, c for each kind: the defaults and two others inside the function's domain.
OTHER = {
    "relu": [(0.25, 1, 1), (-0.5, 1, 1)],
    "linear": [(-1.5, 0.75, 1), (0, 2, 1)],
    "hard_sigmoid": [(0.5, 0.25, 1), (-0.3, 0.6, 1)],
    "tanh": [(1.7159, 0.6667, 1), (-2, 3, 1)],
    "softplus": [(2, 0.5, 1), (0.5, -3, 1)],
    "elu": [(0.5, 1, 1), (2, 1, 1)],
    "relun": [(0, 6, 1), (-0.5, -1, 1)],
    "power": [(1, 5, 0.5), (2, 1, 3), (1, 4, -2), (1, 0, 2)],
    "exponential": [(0.5, -0.25, 2), (-1, 0.5, 10), (2, 0, -1)],
    "logarithm": [(1, 5, 2), (-0.5, 4, 10), (2, 9, -1)],
}


def settings(name: str) -> list[tuple[float, float, float]]:
    return [oracle.DEFAULTS[name], *((float(a), float(b), float(c)) for a, b, c in OTHER.get(name, []))]


CASES = [(kind, name, values) for kind, name in KINDS if name != "prelu" for values in settings(name)]
IDS = [f"{name}{values}" for _, name, values in CASES]


def samples(name: str, values: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """Both signs, zero, the kinks of the function; for the logarithm what it is defined on."""
    a, b, _ = values
    x = rng.normal(size=(2, 3, 4, 5)) * 2
    x[0, 0, 0, :3] = 0.0, -0.0, 1.0
    if name == "hard_sigmoid" and a:
        x[0, 0, 1, :2] = -b / a, (1 - b) / a
    if name == "relun":
        x[0, 0, 1, :2] = b, -1.0
    if name == "logarithm":
        x = (np.abs(x) + 0.1 - b) / a
    return x


@in_one_test
@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0), (1.7159, 0.6667, 1.0), (-2.0, 3.0, 1.0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("is_intel", [True, False])
def test_both_gradients_of_tanh(
    is_intel: bool,
    dtype: torch.dtype,
    values: tuple[float, float, float],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_cpu_of(monkeypatch, is_intel=is_intel)
    x, g = (array(tensor(rng.normal(size=(2, 3, 4, 5)) * 2, dtype)) for _ in range(2))
    x[0, 0, 0, :3] = 0.0, 100.0, -100.0
    kind = NAMES.index("tanh")
    found = ops.neuron_gradient(tensor(g, dtype), tensor(x, dtype), MPSCNNNeuronType(kind), *values)
    assert_close(found, oracle.gradient(g, x, kind, *values), TOLERANCE[dtype], "tanh gradient")
    strange = tensor(np.array([np.nan, np.inf, -np.inf]).reshape(1, 3, 1, 1), dtype)
    slopes = ops.neuron_gradient(torch.ones_like(strange), strange, MPSCNNNeuronType(kind), *values).ravel()
    assert slopes[0].isnan()
    assert slopes[1:].tolist() == [0.0, 0.0]


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "name", "values"), CASES, ids=IDS)
def test_equals_loops(
    kind: int,
    name: str,
    values: tuple[float, float, float],
    layout: str,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    x = array(tensor(samples(name, values, rng), dtype))
    g = array(tensor(rng.normal(size=x.shape), dtype))
    xt, gt = tensor(x, dtype, device, layout), tensor(g, dtype, device, layout)
    result = ops.neuron(xt, MPSCNNNeuronType(kind), *values)
    assert result.dtype == dtype
    # A kink is met exactly only in float64: elsewhere the two sides differ by rounding of a*x+b.
    smooth = np.ones(x.shape, bool)
    if dtype == torch.float32 and name == "hard_sigmoid":
        smooth = np.minimum(abs(values[0] * x + values[1]), abs(values[0] * x + values[1] - 1)) > 1e-5
    assert_close(result, oracle.forward(x, kind, *values), TOLERANCE[dtype], name)
    found = ops.neuron_gradient(gt, xt, MPSCNNNeuronType(kind), *values)
    assert found.dtype == dtype
    expected = oracle.gradient(g, x, kind, *values)
    assert_close(array(found)[smooth], expected[smooth], TOLERANCE[dtype], f"{name} gradient")


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prelu_equals_loops(layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator) -> None:
    kind = NAMES.index("prelu")
    x, g, slopes = rng.normal(size=(2, 5, 3, 4)), rng.normal(size=(2, 5, 3, 4)), rng.normal(size=5)
    x[0, :, 0, 0] = 0.0
    xt, gt, data = tensor(x, dtype, device, layout), tensor(g, dtype, device, layout), tensor(slopes, dtype, device)
    result = ops.neuron(xt, MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, data)
    assert_close(result, oracle.forward(x, kind, 0, 0, 0, slopes), TOLERANCE[dtype], "prelu")
    found = ops.neuron_gradient(gt, xt, MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, data)
    assert_close(found, oracle.gradient(g, x, kind, 0, 0, 0, slopes), TOLERANCE[dtype], "prelu gradient")


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_gelu_numbers(implementation: str) -> None:
    x = np.array([-1.0, 0.5, 2.0]).reshape(1, 1, 1, 3)
    if implementation == "op":
        y = ops.neuron(tensor(x), MPSCNNNeuronType(GELU), 1.0, 1.0, 1.0)
        slope = ops.neuron_gradient(
            torch.ones(1, 1, 1, 3, dtype=torch.float64), tensor(x), MPSCNNNeuronType(GELU), 1.0, 1.0, 1.0
        )
    else:
        y, slope = oracle.forward(x, GELU, 1, 1, 1), oracle.gradient(np.ones(x.shape), x, GELU, 1, 1, 1)
    assert_digits(y, [-0.158655, 0.345731, 1.954500], 6)
    assert_digits(slope, [-0.083315, 0.867495, 1.085232], 6)


@in_one_test
@pytest.mark.parametrize(("kind", "name", "values"), CASES, ids=IDS)
def test_gradient_equals_finite_differences(
    kind: int, name: str, values: tuple[float, float, float], device: torch.device, rng: np.random.Generator
) -> None:
    """Away from the kinks, where there is no derivative."""
    x = rng.normal(size=(1, 2, 5, 6)) * 2
    if name == "logarithm" or (name == "power" and values[2] != int(values[2])):
        x = (np.abs(x) + 0.2 - values[1]) / values[0]
    if name == "power" and values[2] < 0:
        x = (np.abs(x) + 0.5 - values[1]) / values[0]
    h = 1e-5
    neuron_type = MPSCNNNeuronType(kind)
    above = array(ops.neuron(tensor(x + h, device=device), neuron_type, *values))
    middle = array(ops.neuron(tensor(x, device=device), neuron_type, *values))
    below = array(ops.neuron(tensor(x - h, device=device), neuron_type, *values))
    found = array(
        ops.neuron_gradient(
            torch.ones(x.shape, dtype=torch.float64, device=device), tensor(x, device=device), neuron_type, *values
        )
    )
    # At a kink the two one-sided slopes differ by far more than the curvature can make them.
    smooth = np.abs((above - middle) - (middle - below)) < 1e-3 * h * np.maximum(1.0, np.abs(found)) + 1e3 * h * h
    assert smooth.mean() > 0.9
    assert_close(found[smooth], ((above - below) / (2 * h))[smooth], 1e-7, name)


F = torch.nn.functional
PYTORCH = {
    "none": (lambda x: x, (1, 1, 1)),
    "relu": (lambda x: F.leaky_relu(x, 0.1), (0.1, 1, 1)),
    "sigmoid": (torch.sigmoid, (1, 1, 1)),
    # F.hardsigmoid holds 1/6 in single precision only.
    "hard_sigmoid": (lambda x: F.relu6(x + 3) / 6, (1 / 6, 0.5, 1)),
    "tanh": (torch.tanh, (1, 1, 1)),
    "absolute": (torch.abs, (1, 1, 1)),
    "softplus": (lambda x: F.softplus(x, beta=2.0, threshold=1e9), (0.5, 2, 1)),
    "softsign": (F.softsign, (1, 1, 1)),
    "elu": (lambda x: F.elu(x, 0.7), (0.7, 1, 1)),
    "relun": (F.relu6, (0, 6, 1)),
    "exponential": (torch.exp, (1, 0, -1)),
    "logarithm": (torch.log2, (1, 0, 2)),
    "power": (lambda x: x**3, (1, 0, 3)),
    "gelu": (F.gelu, (1, 1, 1)),
}


@in_one_test
@pytest.mark.parametrize("name", PYTORCH)
def test_equals_pytorch(name: str, device: torch.device, rng: np.random.Generator) -> None:
    function, values = PYTORCH[name]
    x = rng.normal(size=(2, 3, 4, 5)) * 4
    leaf = tensor(np.abs(x) + 0.1 if name == "logarithm" else x, device=device).requires_grad_()
    expected = function(leaf)
    kind, parameters = MPSCNNNeuronType(NAMES.index(name)), tuple(map(float, values))
    g = torch.randn(x.shape, dtype=torch.float64, device=device)
    assert_close(ops.neuron(leaf.detach(), kind, *parameters), expected, 1e-12, name)
    found = ops.neuron_gradient(g, leaf.detach(), kind, *parameters)
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-11, f"{name} gradient")


def test_prelu_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    leaf = tensor(rng.normal(size=(2, 3, 4, 5)), device=device).requires_grad_()
    slopes = tensor([0.1, -0.2, 1.5], device=device)
    expected = F.prelu(leaf, slopes)
    g = torch.randn_like(expected)
    assert_close(ops.neuron(leaf.detach(), MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, slopes), expected, 1e-14, "prelu")
    found = ops.neuron_gradient(g, leaf.detach(), MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, slopes)
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-14, "prelu gradient")


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "hard_sigmoid", "softsign", "elu", "gelu"])
def test_large_sources_do_not_overflow(name: str, dtype: torch.dtype, device: torch.device) -> None:
    kind = MPSCNNNeuronType(NAMES.index(name))
    x = torch.tensor([-1e30, -1000.0, -90.0, 90.0, 1000.0, 1e30], dtype=dtype, device=device).reshape(1, 1, 1, 6)
    y = ops.neuron(x, kind, *oracle.DEFAULTS[name])
    slope = ops.neuron_gradient(torch.ones_like(x), x, kind, *oracle.DEFAULTS[name])
    assert bool(torch.isfinite(y).all()), f"{name}: {y.ravel().tolist()}"
    assert bool(torch.isfinite(slope).all()), f"{name} derivative: {slope.ravel().tolist()}"
    if name == "softplus":
        assert y.ravel().tolist()[3:] == x.ravel().tolist()[3:]
        assert float(y.ravel()[1]) == 0.0


def test_edges_of_the_definitions(device: torch.device) -> None:
    def one(kind: MPSCNNNeuronType, x: float, *values: float) -> float:
        return float(ops.neuron(torch.full((1, 1, 1, 1), x, dtype=torch.float64, device=device), kind, *values))

    def slope(kind: MPSCNNNeuronType, x: float, *values: float) -> float:
        place = torch.full((1, 1, 1, 1), x, dtype=torch.float64, device=device)
        return float(ops.neuron_gradient(torch.ones_like(place), place, kind, *values))

    kinds = MPSCNNNeuronType
    assert slope(kinds.RELU, 0.0, 0.25, 0.0, 0.0) == 1.0
    assert slope(kinds.RELU, -0.0, 0.25, 0.0, 0.0) == 1.0
    assert slope(kinds.ABSOLUTE, 0.0, 0.0, 0.0, 0.0) == 0.0
    assert slope(kinds.ELU, 0.0, 0.5, 0.0, 0.0) == 1.0
    assert slope(kinds.RELU_N, 6.0, 1.0, 6.0, 0.0) == 0.0
    assert slope(kinds.RELU_N, 0.0, 0.25, 6.0, 0.0) == 1.0
    assert one(kinds.RELU_N, -3.0, 1.0, 6.0, 0.0) == -3.0
    assert slope(kinds.HARD_SIGMOID, 0.0, 0.5, 0.0, 0.0) == 0.5
    assert slope(kinds.HARD_SIGMOID, 2.0, 0.5, 0.0, 0.0) == 0.5
    assert math.isnan(one(kinds.POWER, -2.0, 1.0, 0.0, 0.5))
    assert one(kinds.POWER, 0.0, 1.0, 0.0, 0.0) == 1.0
    assert one(kinds.POWER, -2.0, 1.0, 0.0, 3.0) == -8.0
    assert one(kinds.LOGARITHM, 0.0, 1.0, 0.0, -1.0) == -math.inf
    assert math.isnan(one(kinds.LOGARITHM, -1.0, 1.0, 0.0, -1.0))


@in_one_test
@pytest.mark.parametrize(("kind", "name"), KINDS, ids=NAMES)
def test_nan_passes_through(kind: int, name: str, device: torch.device) -> None:
    x = torch.full((1, 1, 1, 1), float("nan"), device=device)
    data = torch.full((1,), 0.5, device=device) if name == "prelu" else None
    assert math.isnan(float(ops.neuron(x, MPSCNNNeuronType(kind), *oracle.DEFAULTS[name], data)))


@in_one_test
@pytest.mark.parametrize(("kind", "name"), KINDS, ids=NAMES)
def test_no_images_and_memory_format(kind: int, name: str, device: torch.device) -> None:
    data = torch.full((4,), 0.5, device=device) if name == "prelu" else None
    for images in (0, 2):
        x = torch.rand(images, 4, 3, 2, device=device).contiguous(memory_format=torch.channels_last)
        for found in (
            ops.neuron(x, MPSCNNNeuronType(kind), *oracle.DEFAULTS[name], data),
            ops.neuron_gradient(torch.ones_like(x), x, MPSCNNNeuronType(kind), *oracle.DEFAULTS[name], data),
        ):
            assert found.shape == x.shape
            assert images == 0 or found.is_contiguous(memory_format=torch.channels_last)


@in_one_test
@pytest.mark.parametrize("flush", [False, True], ids=["subnormal numbers", "flushed to zero"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["relu", "leaky relu", "elu", "relun", "leaky relun", "hard_sigmoid"])
def test_kinks_turn_at_zero_exactly(name: str, dtype: torch.dtype, flush: bool, device: torch.device) -> None:
    """The derivative at 0 is that of the positive side, and a step below 0 it is the other."""
    kind = MPSCNNNeuronType(NAMES.index(name.removeprefix("leaky ")))
    a = {"relu": 0.0, "relun": 0.0, "hard_sigmoid": 0.5}.get(name, 0.25)
    b = 0.0 if name == "hard_sigmoid" else 6.0
    step = torch.finfo(dtype).tiny * (4 if flush else torch.finfo(dtype).eps)
    if name == "hard_sigmoid":
        step *= 4  # a*x is met, not x
    x = torch.tensor([step, 0.0, -0.0, -step], dtype=dtype, device=device).reshape(1, 1, 1, 4)
    if flush and not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers")
    try:
        slope = ops.neuron_gradient(torch.ones_like(x), x, kind, a, b, 1.0).ravel().tolist()
    finally:
        torch.set_flush_denormal(False)
    above, below = (a, 0.0) if name == "hard_sigmoid" else (1.0, a)
    assert slope == [above, above, above, below]


@in_one_test
@pytest.mark.parametrize(("kind", "name"), KINDS, ids=NAMES)
def test_sources_stay_untouched(kind: int, name: str, device: torch.device) -> None:
    data = torch.full((4,), 0.5, device=device) if name == "prelu" else None
    x, g = torch.rand(2, 4, 3, 2, device=device), torch.rand(2, 4, 3, 2, device=device)
    kept = x.clone(), g.clone()
    for values in settings(name):
        y = ops.neuron(x, MPSCNNNeuronType(kind), *values, data)
        back = ops.neuron_gradient(g, x, MPSCNNNeuronType(kind), *values, data)
        # Results are the caller's own: writing them changes nothing else.
        y.fill_(7.0)
        back.fill_(7.0)
        assert torch.equal(x, kept[0])
        assert torch.equal(g, kept[1])


def test_what_is_refused(device: torch.device) -> None:
    x = torch.zeros(1, 3, 2, 2, device=device)
    for data in (None, torch.zeros(2, device=device)):
        with pytest.raises(MPSArgumentError, match="3 channels"):
            ops.neuron(x, MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, data)
        with pytest.raises(MPSArgumentError, match="3 channels"):
            ops.neuron_gradient(x, x, MPSCNNNeuronType.PRELU, 0.0, 0.0, 0.0, data)
    with pytest.raises(MPSArgumentError, match="neuron"):
        ops.neuron(x, MPSCNNNeuronType.COUNT, 0.0, 0.0, 0.0)
