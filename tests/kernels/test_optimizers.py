"""Optimizers: golden numbers, every rule in every form against float64 loops and torch, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from measured import note_error
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.state.state import MPSState
from openmps.core.vector import MPSMatrix, MPSTemporaryVector, MPSVector
from openmps.core.vector_descriptor import MPSMatrixDescriptor, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.optimizers import (
    MPSNNOptimizerAdam,
    MPSNNOptimizerDescriptor,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.ops.update.shards import Shard
from openmps.runtime.devices import mtl_device
from openmps.types import MPSDataType, MPSNNRegularizationType
from oracles import optimizers as oracle
from samples.batch_normalization import ChannelSource

CPU = mtl_device("cpu")
SGD, RMSProp, Adam = MPSNNOptimizerStochasticGradientDescent, MPSNNOptimizerRMSProp, MPSNNOptimizerAdam
ACCUMULATORS = {
    SGD: ("input_momentum",),
    RMSProp: ("input_sum_of_squares",),
    Adam: ("input_momentum", "input_velocity", "maximum_velocity"),
}
Array = np.ndarray


def _vector(bench: Bench, values: Any) -> MPSVector:
    array = np.asarray(values, np.float32)
    return MPSVector(bench.device.new_buffer(data=array), MPSVectorDescriptor(array.size))


def _step(bench: Bench, optimizer: Any, form: str, operands: dict[str, Any]) -> None:
    """One encode with operands named without their suffix."""
    command_buffer = bench.command_buffer()
    optimizer.encode(command_buffer, **{f"{name}_{form}": operand for name, operand in operands.items()})
    finish(command_buffer)


# --- golden numbers --------------------------------------------------------------------------------------------------

GOLDEN = [
    (lambda device: Adam(device, 1e-3), ("input_momentum", "input_velocity"), [0.999, 0.998]),
    (lambda device: SGD(device, 0.1, momentum_scale=0.9), ("input_momentum",), [0.95, 0.855]),
    (
        lambda device: SGD(device, 0.1, momentum_scale=0.9, use_nesterov_momentum=True),
        ("input_momentum",),
        [0.905, 0.7695],
    ),
    (lambda device: RMSProp(device, 0.1), ("input_sum_of_squares",), [0.683772, 0.454357]),
    (lambda device: SGD(device, 0.1), (), [0.95, 0.9]),
    # Outside the bias correction: sqrt(1e-3) / 0.1 * 0.05 / (sqrt(2.5e-4) + 1), where PyTorch has 0.5 / 1.5.
    (lambda device: Adam(device, 1.0, epsilon=1.0), ("input_momentum", "input_velocity"), [1 - 0.015565]),
    (lambda device: RMSProp(device, 1.0, epsilon=1.0), ("input_sum_of_squares",), [1 - 0.431736]),
]


@pytest.mark.parametrize(("make", "names", "expected"), GOLDEN)
def test_golden(make, names, expected, device: torch.device) -> None:
    """Value 1, gradient 0.5 at each step."""
    bench = Bench.on(device)
    optimizer = make(bench.device)
    values = _vector(bench, [1.0])
    operands = {"input_gradient": _vector(bench, [0.5]), "input_values": values, "result_values": values}
    operands |= {name: _vector(bench, [0.0]) for name in names}
    for wanted in expected:
        _step(bench, optimizer, "vector", operands)
        assert_digits(values.numpy(), wanted, 6)


@pytest.mark.parametrize(
    ("options", "values", "gradient", "expected"),
    [
        ({"regularization_type": MPSNNRegularizationType.L1}, [2, -3, 0], [0, 0, 0], [1.5, -2.5, 0]),
        ({"regularization_type": MPSNNRegularizationType.L2}, [2, -3, 0], [0, 0, 0], [1, -1.5, 0]),
        ({"apply_gradient_clipping": True, "gradient_rescale": 0.25}, [0, 0, 0], [10, -10, 2], [-0.25, 0.75, -0.25]),
        (
            {"apply_gradient_clipping": True, "regularization_type": MPSNNRegularizationType.L2},
            [8, 8, 8],
            [10, -10, 1],
            [8 - 1 - 4, 8 + 3 - 4, 8 - 1 - 4],
        ),
    ],
    ids=["L1 is the sign", "L2 has no factor 2", "clip before rescale", "regularize last"],
)
def test_golden_order(options, values, gradient, expected, device: torch.device) -> None:
    """Rate 1, limits -3 and 1, regularization scale 0.5."""
    bench = Bench.on(device)
    descriptor = MPSNNOptimizerDescriptor(
        1.0, gradient_clip_max=1.0, gradient_clip_min=-3.0, regularization_scale=0.5, **options
    )
    held = _vector(bench, values)
    operands = {"input_gradient": _vector(bench, gradient), "input_values": held, "result_values": held}
    _step(bench, SGD(bench.device, optimizer_descriptor=descriptor), "vector", operands)
    assert held.numpy().tolist() == expected


# --- every rule, every form ------------------------------------------------------------------------------------------

DESCRIPTORS = {
    "plain": {"learning_rate": 0.05},
    "clipped, rescaled": {
        "learning_rate": 0.05,
        "gradient_rescale": 0.5,
        "apply_gradient_clipping": True,
        "gradient_clip_max": 0.4,
        "gradient_clip_min": -0.2,
    },
    "l1": {"learning_rate": 0.05, "regularization_type": MPSNNRegularizationType.L1, "regularization_scale": 0.1},
    "l2": {"learning_rate": 0.05, "regularization_type": MPSNNRegularizationType.L2, "regularization_scale": 0.1},
    "running average": {
        "learning_rate": -0.1,
        "regularization_type": MPSNNRegularizationType.L2,
        "regularization_scale": -1.0,
    },
}
_CLIPPED = DESCRIPTORS["clipped, rescaled"]
ORDERED = {
    "clip, rescale, l1": _CLIPPED | {"regularization_type": MPSNNRegularizationType.L1, "regularization_scale": 0.7},
    "clip, rescale, l2": _CLIPPED | {"regularization_type": MPSNNRegularizationType.L2, "regularization_scale": 0.7},
}
"""All that is done to a gradient: another order of it gives other numbers. Every form is held to these."""
DESCRIPTORS |= ORDERED
DESCRIPTORS["decayed"] = ORDERED["clip, rescale, l2"] | {"weight_decay": 3.0}
RULES = {
    "sgd": (SGD, {}, 0),
    "momentum": (SGD, {"momentum_scale": 0.8}, 1),
    "nesterov": (SGD, {"momentum_scale": 0.8, "use_nestrov_momentum": True}, 1),
    "rmsprop": (RMSProp, {"decay": 0.8, "epsilon": 1e-3}, 1),
    "adam": (Adam, {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "time_step": 2}, 2),
    "amsgrad": (Adam, {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "time_step": 2}, 3),
}


def _common(options: dict[str, Any]) -> oracle.Common:
    clip = (options.get("gradient_clip_min", 0.0), options.get("gradient_clip_max", 0.0))
    return oracle.Common(
        learning_rate=options["learning_rate"],
        gradient_rescale=options.get("gradient_rescale", 1.0),
        clip=clip if options.get("apply_gradient_clipping") else None,
        regularization=int(options.get("regularization_type", 0)),
        regularization_scale=options.get("regularization_scale", 0.0),
        weight_decay=options.get("weight_decay", 0.0),
    )


def _expected(rule: str, step: int, g: Array, v: Array, kept: list[Array], common: oracle.Common) -> list[Array]:
    """New values, and the new accumulators."""
    _, parameters, count = RULES[rule]
    if rule in ("sgd", "momentum", "nesterov"):
        mu = parameters.get("momentum_scale", 0.0)
        values, momentum = oracle.sgd(g, v, kept[0] if count else None, common, mu, rule == "nesterov")
        return [values] if momentum is None else [values, momentum]
    if rule == "rmsprop":
        return list(oracle.rmsprop(g, v, kept[0], common, parameters["decay"], parameters["epsilon"]))
    maximum = kept[2] if count == 3 else None
    constants = parameters["beta1"], parameters["beta2"], parameters["epsilon"]
    found = oracle.adam(g, v, kept[0], kept[1], maximum, parameters["time_step"] + step, common, *constants)
    return [each for each in found if each is not None]


def _optimizer(rule: str, options: dict[str, Any], device: Any) -> Any:
    kind, parameters, _ = RULES[rule]
    own = {name: value for name, value in options.items() if name != "weight_decay"}
    optimizer = kind(device, optimizer_descriptor=MPSNNOptimizerDescriptor(**own), **parameters)
    optimizer.weight_decay = options.get("weight_decay", 0.0)
    return optimizer


@in_one_test
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", DESCRIPTORS)
@pytest.mark.parametrize("place", ["in place", "apart"])
def test_vectors(rule: str, what: str, place: str, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    optimizer = _optimizer(rule, DESCRIPTORS[what], bench.device)
    count = RULES[rule][2]
    values = rng.normal(size=7)
    kept = [np.zeros(7) for _ in range(count)]
    held = _vector(bench, values)
    accumulators = {name: _vector(bench, np.zeros(7)) for name in ACCUMULATORS[type(optimizer)][:count]}
    for step in (1, 2, 3):
        g = rng.normal(size=7)
        before = held.numpy().astype(np.float64)
        result = held if place == "in place" else _vector(bench, np.full(7, np.nan))
        operands = {"input_gradient": _vector(bench, g), "input_values": held, "result_values": result}
        _step(bench, optimizer, "vector", operands | accumulators)
        values, *kept = _expected(rule, step, g, values, kept, _common(DESCRIPTORS[what]))
        assert_close(result.numpy(), values, 1e-5, "values")
        note_error(type(optimizer), "forward", device, result.numpy(), values)
        if place == "apart":
            np.testing.assert_array_equal(held.numpy(), before)
        held = result
        for vector, wanted in zip(accumulators.values(), kept, strict=True):
            assert_close(vector.numpy(), wanted, 1e-5, "accumulator")


def test_the_order_shows() -> None:
    """Clip, rescale, regularize: each other order is told apart by the numbers used here."""
    for options in ORDERED.values():
        p = _common(options)
        assert p.clip is not None
        low, high = p.clip
        term = {1: p.regularization_scale, 2: p.regularization_scale * 0.5}[p.regularization]
        right = oracle.prepared(1.5, 0.5, p)
        assert right == min(max(1.5, low), high) * p.gradient_rescale + term
        others = {
            min(max(1.5 * p.gradient_rescale, low), high) + term,
            (min(max(1.5, low), high) + term) * p.gradient_rescale,
            min(max(1.5 + term, low), high) * p.gradient_rescale,
            min(max(1.5 * p.gradient_rescale + term, low), high),
        }
        assert all(abs(right - other) > 0.01 for other in others)


@in_one_test
@pytest.mark.parametrize("what", ORDERED)
@pytest.mark.parametrize("rule", RULES)
def test_matrices(rule: str, what: str, device: torch.device, rng: np.random.Generator) -> None:
    """Rows may be padded: what lies between them stays as it is."""
    bench = Bench.on(device)
    options = ORDERED[what]
    optimizer = _optimizer(rule, options, bench.device)
    count = RULES[rule][2]
    descriptor = MPSMatrixDescriptor(3, 5, row_bytes=32, data_type=MPSDataType.FLOAT32)

    def matrix(values: Array) -> MPSMatrix:
        padded = np.full((3, 8), 7.0, np.float32)
        padded[:, :5] = values
        return MPSMatrix(bench.device.new_buffer(data=padded), descriptor)

    g, v = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    kept = [np.zeros((3, 5)) for _ in range(count)]
    values = matrix(v)
    operands = {"input_gradient": matrix(g), "input_values": values, "result_values": values}
    operands |= {name: matrix(np.zeros((3, 5))) for name in ACCUMULATORS[type(optimizer)][:count]}
    _step(bench, optimizer, "matrix", operands)
    wanted, *kept = _expected(rule, 1, g, v, kept, _common(options))
    assert_close(values.numpy(), wanted, 1e-5)
    whole = values.data.tensor(torch.float32).reshape(3, 8)
    assert (whole[:, 5:] == 7).all()
    for name, expected in zip(ACCUMULATORS[type(optimizer)], kept, strict=False):
        assert_close(operands[name].numpy(), expected, 1e-5)


def _torch_step(rule: str, parameter: torch.Tensor, lr: float) -> Any:
    """torch's own optimizers, set up to follow the same rule."""
    if rule == "sgd":
        return torch.optim.SGD([parameter], lr=lr)
    if rule == "momentum":
        return torch.optim.SGD([parameter], lr=lr, momentum=0.9)
    if rule == "rmsprop":
        return torch.optim.RMSprop([parameter], lr=lr, alpha=0.9, eps=1e-8)
    if rule == "adamw":
        return torch.optim.AdamW([parameter], lr=lr, betas=(0.9, 0.999), eps=1e-15, weight_decay=0.5)
    return torch.optim.Adam([parameter], lr=lr, betas=(0.9, 0.999), eps=1e-15, amsgrad=rule == "amsgrad")


@pytest.mark.parametrize("rule", ["sgd", "momentum", "rmsprop", "adam", "adamw"])
def test_against_torch(rule: str, rng: np.random.Generator) -> None:
    """With a constant learning rate, and an epsilon too small to tell where it stands."""
    bench = Bench(CPU)
    make = {
        "sgd": lambda: SGD(CPU, 0.02),
        "momentum": lambda: SGD(CPU, 0.02, momentum_scale=0.9),
        "rmsprop": lambda: RMSProp(CPU, 0.02),
        "adam": lambda: Adam(CPU, 0.02, epsilon=1e-15),
        "adamw": lambda: Adam(CPU, 0.02, epsilon=1e-15),
    }[rule]
    optimizer = make()
    optimizer.weight_decay = 0.5 if rule == "adamw" else 0.0
    count = {"sgd": 0, "adam": 2, "adamw": 2}.get(rule, 1)
    start = rng.normal(size=9)
    parameter = torch.tensor(start, dtype=torch.float64)
    theirs = _torch_step(rule, parameter, 0.02)
    values = _vector(bench, start)
    accumulators = {name: _vector(bench, np.zeros(9)) for name in ACCUMULATORS[type(optimizer)][:count]}
    for _ in range(5):
        g = rng.normal(size=9)
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        theirs.step()
        operands = {"input_gradient": _vector(bench, g), "input_values": values, "result_values": values}
        _step(bench, optimizer, "vector", operands | accumulators)
    assert_close(values.numpy(), parameter, 1e-5)


def test_a_decay_changes_from_encode_to_encode_and_a_copy_has_it() -> None:
    bench = Bench(CPU)
    optimizer, values = SGD(CPU, 0.5), _vector(bench, [8.0])
    operands = {"input_gradient": _vector(bench, [0.0]), "input_values": values, "result_values": values}
    for decay, rate, wanted in ((1.0, 0.5, 4.0), (1.0, 0.25, 3.0), (0.0, 0.25, 3.0), (2.0, 0.25, 1.5)):
        optimizer.weight_decay = decay
        optimizer.set_learning_rate(rate)
        _step(bench, optimizer, "vector", operands)
        assert values.numpy().tolist() == [wanted]
    _step(bench, optimizer.copy(), "vector", operands)
    assert values.numpy().tolist() == [0.75]
    for refused in (float("nan"), float("inf"), -1e-3):
        with pytest.raises(
            MPSArgumentError, match=f"weight_decay must be a finite number of at least 0, got {refused}"
        ):
            optimizer.weight_decay = refused


# --- the convolution form --------------------------------------------------------------------------------------------


def _states(bench: Bench, rng: np.random.Generator, biases: bool = True) -> tuple[Any, Any, dict[str, Array]]:
    """A gradient state, a source state, and their numbers."""
    descriptor = MPSCNNConvolutionDescriptor(2, 1, 3, 2)
    numbers = {
        "weights": rng.normal(size=12).astype(np.float32),
        "biases": rng.normal(size=2).astype(np.float32),
        "dw": rng.normal(size=12).astype(np.float32),
        "db": rng.normal(size=2).astype(np.float32),
    }
    kernel = MPSCNNConvolution(bench.device, descriptor, np.zeros(12))
    gradient: Any = kernel.result_state(bench.empty((1, 3, 1, 2)))
    gradient.gradient_for_weights.tensor(torch.float32).copy_(torch.from_numpy(numbers["dw"]))
    gradient.gradient_for_biases.tensor(torch.float32).copy_(torch.from_numpy(numbers["db"]))
    source = MPSCNNConvolutionWeightsAndBiasesState(
        weights=bench.device.new_buffer(data=numbers["weights"]),
        biases=bench.device.new_buffer(data=numbers["biases"]) if biases else None,
    )
    return gradient, source, numbers


def _held(state: Any) -> tuple[Array, Array | None]:
    biases = None if state.biases is None else state.biases.tensor(torch.float32).cpu().numpy().copy()
    return state.weights.tensor(torch.float32).cpu().numpy().copy(), biases


def _update(bench: Bench, optimizer: Any, gradient: Any, source: Any, result: Any, vectors: Any) -> None:
    command_buffer = bench.command_buffer()
    optimizer.encode(
        command_buffer,
        convolution_gradient_state=gradient,
        convolution_source_state=source,
        result_state=result,
        **vectors,
    )
    finish(command_buffer)


def test_a_copy_may_update_a_shard_of_its_own(rng: np.random.Generator) -> None:
    """The second of two processes has nothing of twelve weights, whatever the optimizer it was copied from does."""
    bench, optimizer = Bench(CPU), SGD(CPU, 0.1)
    gradient, source, numbers = _states(bench, rng)
    twin = optimizer.copy()
    twin.update_shards(Shard(1, 2))
    _update(bench, optimizer, gradient, source, source, {})
    after = _held(source)[0]
    assert not np.array_equal(after, numbers["weights"])
    _update(bench, twin, gradient, source, source, {})
    np.testing.assert_array_equal(_held(source)[0], after)


@in_one_test
@pytest.mark.parametrize("what", ORDERED)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("place", ["in place", "apart"])
def test_convolutions(rule: str, what: str, place: str, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    options = ORDERED[what]
    optimizer = _optimizer(rule, options, bench.device)
    count = RULES[rule][2]
    gradient, source, numbers = _states(bench, rng)
    result = source if place == "in place" else _states(bench, rng)[1]
    vectors = {
        f"{name}_vectors": [_vector(bench, np.zeros(length)) for length in (12, 2)]
        for name in ACCUMULATORS[type(optimizer)][:count]
    }
    _update(bench, optimizer, gradient, source, result, vectors)
    for found, index, parameter, slope in (
        (_held(result)[0], 0, "weights", "dw"),
        (_held(result)[1], 1, "biases", "db"),
    ):
        start = numbers[parameter].astype(np.float64)
        kept = [np.zeros(start.shape) for _ in range(count)]
        values, *wanted = _expected(rule, 1, numbers[slope], start, kept, _common(options))
        assert_close(found, values, 1e-5, parameter)
        for lists, expected in zip(vectors.values(), wanted, strict=True):
            assert_close(lists[index].numpy(), expected, 1e-5)
    if place == "apart":
        np.testing.assert_array_equal(_held(source)[0], numbers["weights"])
        np.testing.assert_array_equal(_held(source)[1], numbers["biases"])


@pytest.mark.parametrize("place", ["in place", "apart"])
def test_one_vector_leaves_the_biases(place: str, device: torch.device, rng: np.random.Generator) -> None:
    """They are copied where the result is another state."""
    bench = Bench.on(device)
    gradient, source, numbers = _states(bench, rng)
    result = source if place == "in place" else _states(bench, rng)[1]
    optimizer = SGD(bench.device, 0.1, momentum_scale=0.9)
    _update(bench, optimizer, gradient, source, result, {"input_momentum_vectors": [_vector(bench, np.zeros(12))]})
    weights, biases = _held(result)
    assert_close(weights, numbers["weights"] - 0.1 * numbers["dw"], 1e-5)
    np.testing.assert_array_equal(biases, numbers["biases"])


def test_without_vectors_both_are_updated(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    gradient, source, numbers = _states(bench, rng)
    _update(bench, SGD(bench.device, 0.1), gradient, source, source, {})
    weights, biases = _held(source)
    assert_close(weights, numbers["weights"] - 0.1 * numbers["dw"], 1e-5)
    assert biases is not None
    assert_close(biases, numbers["biases"] - 0.1 * numbers["db"], 1e-5)


def test_no_biases(device: torch.device, rng: np.random.Generator) -> None:
    """The bias gradient is there all the same; there is nothing to add it to."""
    bench = Bench.on(device)
    gradient, source, numbers = _states(bench, rng, biases=False)
    vectors = {"input_momentum_vectors": [_vector(bench, np.zeros(12)), _vector(bench, np.zeros(2))]}
    _update(bench, SGD(bench.device, 0.1, momentum_scale=0.9), gradient, source, source, vectors)
    weights, biases = _held(source)
    assert_close(weights, numbers["weights"] - 0.1 * numbers["dw"], 1e-5)
    assert biases is None


@pytest.mark.parametrize("name", ["gradient_for_weights", "gradient_for_biases"])
def test_a_state_that_shows_other_gradients_is_asked(name: str, device: torch.device, rng: np.random.Generator) -> None:
    """A subclass may override one of the two: the sums below it are not what it shows."""
    bench = Bench.on(device)
    gradient, source, numbers = _states(bench, rng)
    key, parameter = ("dw", "weights") if name == "gradient_for_weights" else ("db", "biases")
    other = rng.normal(size=numbers[key].size).astype(np.float32)
    shown = bench.device.new_buffer(data=other)
    gradient.__class__ = type("Shown", (type(gradient),), {name: property(lambda self: shown)})
    optimizer = SGD(bench.device, 0.1)
    for _ in range(2):
        _update(bench, optimizer, gradient, source, source, {})
    found = dict(zip(("weights", "biases"), _held(source), strict=True))
    for each, slope in (("weights", "dw"), ("biases", "db")):
        assert_close(found[each], numbers[each] - 0.2 * (other if each == parameter else numbers[slope]), 1e-5)


def test_states_in_one_buffer(device: torch.device, rng: np.random.Generator) -> None:
    """Offsets tell where weights and biases begin."""
    bench = Bench.on(device)
    gradient, _, numbers = _states(bench, rng)
    together = np.concatenate([[7.0], numbers["weights"], [7.0], numbers["biases"]]).astype(np.float32)
    buffer = bench.device.new_buffer(data=together)
    state = MPSCNNConvolutionWeightsAndBiasesState(weights=buffer, biases=buffer, weights_offset=4, biases_offset=56)
    _update(bench, SGD(bench.device, 0.1), gradient, state, state, {})
    found = buffer.tensor(torch.float32).cpu().numpy()
    assert found[0] == found[13] == 7
    assert_close(found[1:13], numbers["weights"] - 0.1 * numbers["dw"], 1e-5)
    assert_close(found[14:], numbers["biases"] - 0.1 * numbers["db"], 1e-5)


# --- the batch normalization forms -----------------------------------------------------------------------------------

CHANNELS = 5
SGD_RATE = {"learning_rate": 0.1}


class _Source(ChannelSource):
    """Rows of float32, drawn anew for each test."""

    def __init__(self, rng: np.random.Generator) -> None:
        drawn = {name: rng.normal(size=CHANNELS).astype(np.float32) for name in ("gamma", "beta")}
        super().__init__(CHANNELS, 1e-3, **drawn)


def _normalized(bench: Bench, rng: np.random.Generator, temporary: Any = None) -> tuple[Any, dict[str, Array]]:
    """A batch normalization state that went through a whole step, and its numbers."""
    source = _Source(rng)
    kernel = MPSCNNBatchNormalization(bench.device, source)
    x, g = (bench.batch(rng.normal(size=(3, CHANNELS, 2, 2))) for _ in range(2))
    command_buffer = bench.command_buffer() if temporary is None else temporary
    state: Any = kernel.result_state(x[0]) if temporary is None else kernel.temporary_result_state(command_buffer, x[0])
    if temporary is not None:
        state.read_count = 3
    MPSCNNBatchNormalizationStatistics(bench.device).encode_batch(command_buffer, x, state)
    kernel.encode_batch(command_buffer, x, state)
    MPSCNNBatchNormalizationStatisticsGradient(bench.device).encode_batch(command_buffer, g, x, state)
    if temporary is not None:
        return state, {}
    finish(command_buffer)
    numbers = {name: getattr(state, name)() for name in ("gamma", "beta", "gradient_for_gamma", "gradient_for_beta")}
    return state, {name: buffer.tensor(torch.float32).cpu().double().numpy() for name, buffer in numbers.items()}


def _result(bench: Bench, channels: int = CHANNELS) -> MPSCNNNormalizationGammaAndBetaState:
    """A state of numbers that an update must write over."""
    row = np.full(channels, np.nan, np.float32)
    return MPSCNNNormalizationGammaAndBetaState(*(bench.device.new_buffer(data=row) for _ in range(2)))


def _update_normalization(bench: Bench, optimizer: Any, states: dict[str, Any], result: Any, vectors: Any) -> None:
    command_buffer = bench.command_buffer()
    optimizer.encode(command_buffer, **states, result_state=result, **vectors)
    finish(command_buffer)


@in_one_test
@pytest.mark.parametrize("what", ORDERED)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["one state", "two states", "in place"])
def test_batch_normalizations(rule: str, what: str, form: str, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    options, count = ORDERED[what], RULES[rule][2]
    optimizer = _optimizer(rule, options, bench.device)
    state, numbers = _normalized(bench, rng)
    states, values = {"batch_normalization_state": state}, numbers
    if form == "two states":
        other, values = _normalized(bench, rng)
        states = {"batch_normalization_gradient_state": state, "batch_normalization_source_state": other}
    result = _result(bench, CHANNELS + 1)
    if form == "in place":
        result = MPSCNNNormalizationGammaAndBetaState(state.gamma(), state.beta())
    vectors = {
        f"{name}_vectors": [_vector(bench, np.zeros(CHANNELS)) for _ in range(2)]
        for name in ACCUMULATORS[type(optimizer)][:count]
    }
    _update_normalization(bench, optimizer, states, result, vectors)
    for index, (name, buffer) in enumerate((("gamma", result.gamma), ("beta", result.beta))):
        kept = [np.zeros(CHANNELS) for _ in range(count)]
        slope, start = numbers[f"gradient_for_{name}"], values[name]
        expected, *wanted = _expected(rule, 1, slope, start, kept, _common(options))
        found = buffer.tensor(torch.float32)
        assert_close(found[:CHANNELS], expected, 1e-5, name)
        assert form == "in place" or bool(found[CHANNELS:].isnan().all())
        for lists, each in zip(vectors.values(), wanted, strict=True):
            assert_close(lists[index].numpy(), each, 1e-5, "accumulator")
    if form != "in place":
        source = states.get("batch_normalization_source_state", state)
        np.testing.assert_array_equal(source.gamma().tensor(torch.float32).cpu().numpy(), values["gamma"])
        np.testing.assert_array_equal(source.beta().tensor(torch.float32).cpu().numpy(), values["beta"])


@pytest.mark.parametrize("place", ["in place", "apart"])
def test_one_vector_leaves_beta(place: str, device: torch.device, rng: np.random.Generator) -> None:
    """It is copied where the result is other memory."""
    bench = Bench.on(device)
    state, numbers = _normalized(bench, rng)
    result = _result(bench)
    if place == "in place":
        result = MPSCNNNormalizationGammaAndBetaState(state.gamma(), state.beta())
    optimizer = SGD(bench.device, momentum_scale=0.9, optimizer_descriptor=MPSNNOptimizerDescriptor(**SGD_RATE))
    vectors = {"input_momentum_vectors": [_vector(bench, np.zeros(CHANNELS))]}
    _update_normalization(bench, optimizer, {"batch_normalization_state": state}, result, vectors)
    wanted = numbers["gamma"] - 0.1 * numbers["gradient_for_gamma"]
    assert_close(result.gamma.tensor(torch.float32), wanted, 1e-5)
    np.testing.assert_array_equal(result.beta.tensor(torch.float32).cpu().numpy(), numbers["beta"])


def test_without_vectors_gamma_and_beta_are_updated(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    state, numbers = _normalized(bench, rng)
    result = _result(bench)
    _update_normalization(bench, SGD(bench.device, 0.1), {"batch_normalization_state": state}, result, {})
    for name, buffer in (("gamma", result.gamma), ("beta", result.beta)):
        wanted = numbers[name] - 0.1 * numbers[f"gradient_for_{name}"]
        assert_close(buffer.tensor(torch.float32), wanted, 1e-5, name)


def test_an_update_of_a_batch_normalization_and_its_reload(device: torch.device, rng: np.random.Generator) -> None:
    """The whole of a training step on one command buffer, with temporary states; each is read as often as it says."""
    bench = Bench.on(device)
    command_buffer = bench.command_buffer()
    state, _ = _normalized(bench, rng, command_buffer)
    kernel = state.batch_normalization
    result: Any = MPSCNNNormalizationGammaAndBetaState.temporary_state(command_buffer, CHANNELS)
    before = [row.astype(np.float64) for row in (kernel.data_source.rows["gamma"], kernel.data_source.rows["beta"])]
    slopes = [state.gradient_for_gamma(), state.gradient_for_beta()]
    SGD(bench.device, 0.1).encode(command_buffer, batch_normalization_state=state, result_state=result)
    assert (state.read_count, result.read_count) == (0, 1)
    kernel.reload_gamma_and_beta(command_buffer, result)
    assert result.read_count == 0
    finish(command_buffer)
    for held, start, slope in zip(kernel.gamma_and_beta, before, slopes, strict=True):
        wanted = start - 0.1 * slope.tensor(torch.float32).cpu().double().numpy()
        assert_close(held.tensor(torch.float32), wanted, 1e-5)


def test_one_state_given_twice_is_read_once(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    command_buffer = bench.command_buffer()
    state, _ = _normalized(bench, rng, command_buffer)
    result = _result(bench)
    SGD(bench.device, 0.1).encode(
        command_buffer,
        batch_normalization_gradient_state=state,
        batch_normalization_source_state=state,
        result_state=result,
    )
    assert state.read_count == 0
    finish(command_buffer)
    assert not result.gamma.tensor(torch.float32).isnan().any()


def test_an_update_keeps_the_buffers_of_its_time(device: torch.device, rng: np.random.Generator) -> None:
    """A reset after the encode takes nothing from it."""
    bench = Bench.on(device)
    state, numbers = _normalized(bench, rng)
    result, command_buffer = _result(bench), bench.command_buffer()
    SGD(bench.device, 0.1).encode(command_buffer, batch_normalization_state=state, result_state=result)
    state.reset()
    finish(command_buffer)
    wanted = numbers["gamma"] - 0.1 * numbers["gradient_for_gamma"]
    assert_close(result.gamma.tensor(torch.float32), wanted, 1e-5)


def test_running_averages(device: torch.device, rng: np.random.Generator) -> None:
    """A negative rate and a negative L2 scale make ``v + (1 - mu) (batch - v)`` of a batch's mean."""
    bench = Bench.on(device)
    state, _ = _normalized(bench, rng)
    descriptor = MPSNNOptimizerDescriptor(**DESCRIPTORS["running average"])
    mean = state.mean().tensor(torch.float32).cpu().double().numpy()
    start = rng.normal(size=CHANNELS).astype(np.float32)
    running = _vector(bench, start)
    operands = {
        "input_gradient": MPSVector(state.mean(), MPSVectorDescriptor(CHANNELS)),
        "input_values": running,
        "result_values": running,
    }
    _step(bench, SGD(bench.device, optimizer_descriptor=descriptor), "vector", operands)
    assert_close(running.numpy(), start + 0.1 * (mean - start), 1e-6)


# --- time, rates, reads ----------------------------------------------------------------------------------------------


def test_time_step_counts_encodes(device: torch.device, rng: np.random.Generator) -> None:
    """Once an encode, also where it updates weights and biases together; settable; refused encodes do not count."""
    bench = Bench.on(device)
    optimizer = Adam(bench.device, 0.1)
    gradient, source, _ = _states(bench, rng)
    vectors = {
        f"{name}_vectors": [_vector(bench, np.zeros(12)), _vector(bench, np.zeros(2))]
        for name in ("input_momentum", "input_velocity")
    }
    assert optimizer.time_step == 0
    _update(bench, optimizer, gradient, source, source, vectors)
    assert optimizer.time_step == 1
    optimizer.time_step = 10
    with pytest.raises(MPSTypeError):
        _update(bench, optimizer, gradient, source, source, {})
    done = bench.command_buffer()
    finish(done)
    with pytest.raises(MTLCommandBufferError, match="^MPSNNOptimizerAdam: command_buffer must not be committed"):
        optimizer.encode(done, convolution_gradient_state=gradient)
    assert optimizer.time_step == 10
    _update(bench, optimizer, gradient, source, source, vectors)
    assert optimizer.time_step == 11


def test_the_rate_is_that_of_the_encode(device: torch.device) -> None:
    bench = Bench.on(device)
    optimizer = SGD(bench.device, 1.0)
    values, one = _vector(bench, [0.0]), _vector(bench, [1.0])
    command_buffer = bench.command_buffer()
    for rate in (1.0, 10.0, 100.0):
        optimizer.set_learning_rate(rate)
        optimizer.encode(
            command_buffer, input_gradient_vector=one, input_values_vector=values, result_values_vector=values
        )
    optimizer.set_learning_rate(1e6)
    optimizer.apply_gradient_clipping = True
    finish(command_buffer)
    assert optimizer.learning_rate == 1e6
    assert values.numpy().tolist() == [-111.0]


def test_momentum_holds_the_rate(device: torch.device) -> None:
    """Changing the rate does not rescale the old velocity; Nesterov's form keeps the rate outside."""
    bench = Bench.on(device)
    for nesterov, expected in ((False, [0.1, 0.1 * 0.5 + 0.01]), (True, [1.0, 1.5])):
        optimizer = SGD(bench.device, 0.1, momentum_scale=0.5, use_nesterov_momentum=nesterov)
        values, momentum, one = (_vector(bench, [number]) for number in (0.0, 0.0, 1.0))
        for rate, wanted in zip((0.1, 0.01), expected, strict=True):
            optimizer.set_learning_rate(rate)
            operands = {"input_gradient": one, "input_values": values, "input_momentum": momentum}
            _step(bench, optimizer, "vector", operands | {"result_values": values})
            assert_digits(momentum.numpy(), wanted, 6)


def test_temporary_operands_are_read_once(device: torch.device) -> None:
    bench = Bench.on(device)
    command_buffer = bench.command_buffer()
    gradient = MPSTemporaryVector(command_buffer, MPSVectorDescriptor(3))
    values = _vector(bench, [1, 2, 3])
    SGD(bench.device, 0.1).encode(
        command_buffer, input_gradient_vector=gradient, input_values_vector=values, result_values_vector=values
    )
    assert gradient.read_count == 0
    finish(command_buffer)
    assert values.numpy().tolist() == [1, 2, 3]


def test_temporary_states_are_read_once(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    descriptor = MPSCNNConvolutionDescriptor(2, 1, 3, 2)
    kernel = MPSCNNConvolution(bench.device, descriptor, np.zeros(12))
    command_buffer = bench.command_buffer()
    gradient: Any = kernel.temporary_result_state(command_buffer, bench.empty((1, 3, 1, 2)))
    source = MPSCNNConvolutionWeightsAndBiasesState.temporary_cnn_convolution_weights_and_biases_state(
        command_buffer, descriptor
    )
    momentum = MPSTemporaryVector(command_buffer, MPSVectorDescriptor(12))
    result = _states(bench, rng)[1]
    SGD(bench.device, 0.1).encode(
        command_buffer,
        convolution_gradient_state=gradient,
        convolution_source_state=source,
        input_momentum_vectors=[momentum],
        result_state=result,
    )
    assert (gradient.read_count, source.read_count, momentum.read_count) == (0, 0, 0)
    finish(command_buffer)
    assert not _held(result)[0].any()


# --- properties and what is refused ----------------------------------------------------------------------------------


def test_descriptor_defaults() -> None:
    descriptor = MPSNNOptimizerDescriptor()
    assert (descriptor.learning_rate, descriptor.gradient_rescale) == (1e-3, 1.0)
    assert descriptor.apply_gradient_clipping is False
    assert descriptor.regularization_type is MPSNNRegularizationType.NONE
    assert descriptor.regularization_scale == 0.0
    assert -descriptor.gradient_clip_min == descriptor.gradient_clip_max == np.finfo(np.float32).max


def test_properties() -> None:
    descriptor = MPSNNOptimizerDescriptor(0.5, 2.0, True, 3.0, -4.0, MPSNNRegularizationType.L1, 5.0)
    for optimizer in (
        SGD(CPU, optimizer_descriptor=descriptor),
        RMSProp(CPU, optimizer_descriptor=descriptor),
        Adam(CPU, optimizer_descriptor=descriptor),
    ):
        assert (optimizer.learning_rate, optimizer.gradient_rescale) == (0.5, 2.0)
        assert (optimizer.gradient_clip_max, optimizer.gradient_clip_min) == (3.0, -4.0)
        assert (optimizer.regularization_type, optimizer.regularization_scale) == (MPSNNRegularizationType.L1, 5.0)
        assert optimizer.apply_gradient_clipping is True
    assert (SGD(CPU).momentum_scale, SGD(CPU).use_nesterov_momentum, SGD(CPU).use_nestrov_momentum) == (
        0.0,
        False,
        False,
    )
    assert (RMSProp(CPU).decay, RMSProp(CPU).epsilon) == (0.9, 1e-8)
    adam = Adam(CPU)
    assert (adam.beta1, adam.beta2, adam.epsilon, adam.time_step) == (0.9, 0.999, 1e-8, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"learning_rate": "fast"}, MPSTypeError, "learning_rate must be a number"),
        ({"learning_rate": float("nan")}, MPSArgumentError, "learning_rate must be a number"),
        ({"learning_rate": float("inf")}, MPSArgumentError, "learning_rate must be a finite number, got inf"),
        ({"gradient_rescale": float("inf")}, MPSArgumentError, "gradient_rescale must be a finite number, got inf"),
        ({"regularization_scale": -float("inf")}, MPSArgumentError, "regularization_scale must be a finite number"),
        ({"regularization_type": 9}, MPSArgumentError, "regularization_type must be one of NONE, L1, L2, got 9"),
        (
            {"gradient_clip_max": 1.0, "gradient_clip_min": 2.0},
            MPSArgumentError,
            "gradient_clip_min must not exceed gradient_clip_max 1.0, got 2.0",
        ),
    ],
)
def test_bad_descriptors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^MPSNNOptimizerDescriptor: {message}"):
        MPSNNOptimizerDescriptor(**arguments)


@in_one_test
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Adam(CPU, beta1=1.0), MPSArgumentError, "MPSNNOptimizerAdam: beta1 must lie in"),
        (lambda: Adam(CPU, beta2=-0.1), MPSArgumentError, "MPSNNOptimizerAdam: beta2 must lie in"),
        (lambda: Adam(CPU, time_step=-1), MPSArgumentError, "MPSNNOptimizerAdam: time_step must be an integer of"),
        (lambda: Adam(CPU, time_step=1.5), MPSArgumentError, "MPSNNOptimizerAdam: time_step must be an integer of"),
        (lambda: Adam(CPU, time_step=2**64), MPSArgumentError, "MPSNNOptimizerAdam: time_step must be an integer of"),
        (lambda: Adam(CPU, epsilon=float("inf")), MPSArgumentError, "MPSNNOptimizerAdam: epsilon must be a finite"),
        (lambda: RMSProp(CPU, decay=float("inf")), MPSArgumentError, "MPSNNOptimizerRMSProp: decay must be a finite"),
        (lambda: SGD(CPU, momentum_scale=-float("inf")), MPSArgumentError, ".*momentum_scale must be a finite number"),
        (lambda: SGD(CPU).set_learning_rate(float("inf")), MPSArgumentError, ".*new_learning_rate must be a finite"),
        (lambda: RMSProp(CPU, decay="x"), MPSTypeError, "MPSNNOptimizerRMSProp: decay must be a number"),
        (
            lambda: SGD(CPU, optimizer_descriptor=7),
            MPSTypeError,
            ".*optimizer_descriptor must be an MPSNNOptimizerDesc",
        ),
        (lambda: SGD(CPU).set_learning_rate(None), MPSTypeError, ".*new_learning_rate must be a number"),
        (lambda: SGD(None), MPSTypeError, ".*device must be an MTLDevice"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        make()


@pytest.mark.parametrize("make", [SGD, RMSProp, Adam])
def test_a_negative_rate_ascends(make: Any) -> None:
    """The header sets no bound: a rate of -1 adds."""
    bench, names = Bench(CPU), {SGD: [], RMSProp: ["sum_of_squares"], Adam: ["momentum", "velocity"]}
    optimizer, values = make(CPU, -1.0), _vector(bench, [8.0])
    kept = {f"input_{name}": _vector(bench, [0.0]) for name in names[make]}
    operands = {"input_gradient": _vector(bench, [0.5]), "input_values": values, **kept, "result_values": values}
    _step(bench, optimizer, "vector", operands)
    assert values.numpy().item() > 8.25


def _vectors() -> dict[str, Any]:
    bench = Bench(CPU)
    return {
        "input_gradient_vector": _vector(bench, [1, 2]),
        "input_values_vector": _vector(bench, [1, 2]),
        "input_sum_of_squares_vector": _vector(bench, [0, 0]),
        "result_values_vector": _vector(bench, [0, 0]),
    }


def test_a_temporary_vector_in_two_roles_needs_two_reads() -> None:
    """Refused before anything is recorded, so that the vector may be given its reads and the encode be made again."""
    bench, optimizer = Bench(CPU), SGD(CPU, 1.0)
    optimizer.label = "opt"
    command_buffer, result = bench.command_buffer(), _vector(bench, [1.0, 1.0])
    both = MPSTemporaryVector(command_buffer, MPSVectorDescriptor(2))
    operands = {"input_gradient_vector": both, "input_values_vector": both, "result_values_vector": result}
    with pytest.raises(
        MPSLifetimeError, match="^MPSNNOptimizerStochasticGradientDescent 'opt': input_gradient_vector must"
    ):
        optimizer.encode(command_buffer, **operands)
    assert both.read_count == 1
    both.read_count = 2
    optimizer.encode(command_buffer, **operands)
    assert both.read_count == 0
    finish(command_buffer)
    assert result.numpy().tolist() == [0.0, 0.0]


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(
        MPSTypeError, match="^MPSNNOptimizerAdam: input_momentums_vector is no argument here. Use input_momentum_vector"
    ):
        Adam(CPU).encode(Bench(CPU).command_buffer(), input_momentums_vector=None)  # type: ignore[call-arg]
    with pytest.raises(MPSTypeError, match="^MPSNNOptimizerRMSProp: operands is no argument here"):
        RMSProp(CPU).encode(Bench(CPU).command_buffer(), operands=())  # type: ignore[call-arg]


HALF = MPSVector(descriptor=MPSVectorDescriptor(2, MPSDataType.FLOAT16), device=CPU)
MATRIX = MPSMatrix(descriptor=MPSMatrixDescriptor(1, 2, 8, MPSDataType.FLOAT32), device=CPU)


@in_one_test
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input_gradient_vector": None}, MPSTypeError, "input_gradient_vector is needed"),
        ({"input_values_vector": None}, MPSTypeError, "input_values_vector is needed"),
        ({"input_sum_of_squares_vector": None}, MPSTypeError, "input_sum_of_squares_vector is needed"),
        ({"result_values_vector": None}, MPSTypeError, "result_values_vector is needed"),
        ({"input_values_vector": [1.0, 2.0]}, MPSTypeError, "input_values_vector must be an MPSVector, got list"),
        (
            {"result_values_vector": _vector(Bench(CPU), [1, 2, 3])},
            MPSArgumentError,
            r"result_values_vector must have the gradient's shape, MPSVector of \(1, 2\), got MPSVector of \(1, 3\)",
        ),
        ({"input_values_vector": MATRIX}, MPSTypeError, "input_values_vector must be an MPSVector, got MPSMatrix"),
        ({"input_sum_of_squares_vector": HALF}, MPSArgumentError, "input_sum_of_squares_vector must hold FLOAT32"),
        ({"input_gradient_vector": HALF}, MPSArgumentError, "input_gradient_vector must hold FLOAT32"),
        ({"input_gradient_matrix": MATRIX}, MPSTypeError, "arguments must be states, or vectors, or matrices"),
    ],
)
def test_wrong_vectors(change: dict[str, Any], error: type[Exception], message: str) -> None:
    optimizer = RMSProp(CPU)
    optimizer.label = "opt"
    with pytest.raises(error, match=f"^MPSNNOptimizerRMSProp 'opt': {message}"):
        optimizer.encode(Bench(CPU).command_buffer(), **(_vectors() | change))


def test_wrong_states(rng: np.random.Generator) -> None:
    bench = Bench(CPU)
    gradient, source, _ = _states(bench, rng)
    good = {
        "convolution_gradient_state": gradient,
        "convolution_source_state": source,
        "result_state": source,
        "input_momentum_vectors": [_vector(bench, np.zeros(12)), _vector(bench, np.zeros(2))],
        "input_velocity_vectors": [_vector(bench, np.zeros(12)), _vector(bench, np.zeros(2))],
    }
    small = MPSCNNConvolutionWeightsAndBiasesState(weights=CPU.new_buffer(length=8))
    few = MPSCNNConvolutionWeightsAndBiasesState(weights=CPU.new_buffer(length=48), biases=CPU.new_buffer(length=4))
    cases = [
        ({"convolution_source_state": None}, MPSTypeError, "convolution_source_state must be a state with weights"),
        ({"result_state": MPSState(CPU, buffer_size=4)}, MPSTypeError, "result_state must be a state with weights"),
        ({"convolution_gradient_state": source}, MPSTypeError, "must be a state with gradient_for_weights"),
        ({"convolution_source_state": small}, MPSArgumentError, "convolution_source_state must hold 12 weights, got 2"),
        ({"result_state": few}, MPSArgumentError, "result_state must hold 2 biases, got 1"),
        ({"input_momentum_vectors": None}, MPSTypeError, "input_momentum_vectors are needed"),
        ({"input_momentum_vectors": []}, MPSArgumentError, "input_momentum_vectors must be one vector for the weights"),
        ({"input_velocity_vectors": [1, 2]}, MPSTypeError, r"input_velocity_vectors\[0\] must be an MPSVector"),
        (
            {"input_velocity_vectors": [_vector(bench, np.zeros(12)), _vector(bench, np.zeros(3))]},
            MPSArgumentError,
            r"input_velocity_vectors\[1\] must be one vector of 2 numbers",
        ),
        ({"input_values_vector": _vector(bench, [1])}, MPSTypeError, "arguments must be states, or vectors, or mat"),
        (
            {"input_gradient_matrix": MATRIX, "convolution_gradient_state": None, "convolution_source_state": None},
            MPSTypeError,
            "arguments must be states, or vectors, or matrices",
        ),
        ({"batch_normalization_state": source}, MPSTypeError, "arguments must be states of a convolution, or of a bat"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=f"^MPSNNOptimizerAdam: .*{message}"):
            Adam(CPU).encode(bench.command_buffer(), **(good | change))
    for lonely in ({"result_state": source}, {"input_momentum_vectors": good["input_momentum_vectors"]}):
        with pytest.raises(MPSTypeError, match="arguments must be states of a convolution, .*, got neither"):
            Adam(CPU).encode(bench.command_buffer(), **lonely)


def test_wrong_batch_normalization_states(rng: np.random.Generator) -> None:
    bench = Bench(CPU)
    state, _ = _normalized(bench, rng)
    kernel = state.batch_normalization
    fresh = kernel.result_state(bench.empty((1, CHANNELS, 1, 1)))
    three = MPSCNNBatchNormalization(CPU, ChannelSource(3)).result_state(bench.empty((1, 3, 1, 1)))
    plain = MPSState(CPU, buffer_size=20)
    temporary = kernel.temporary_result_state(bench.command_buffer(), bench.empty((1, CHANNELS, 1, 1)))
    rows = [_vector(bench, np.zeros(CHANNELS)), _vector(bench, np.zeros(CHANNELS))]
    good = {
        "batch_normalization_state": state,
        "result_state": _result(bench),
        "input_momentum_vectors": rows,
        "input_velocity_vectors": rows,
    }
    pair = {"batch_normalization_state": None, "batch_normalization_gradient_state": state}
    gradients, values = "batch_normalization_gradient_state", "batch_normalization_source_state"
    cases = [
        ({"batch_normalization_state": plain}, MPSTypeError, "batch_normalization_state must be a state with gradient"),
        ({"batch_normalization_state": 7}, MPSTypeError, "batch_normalization_state must be a state with .*, got int"),
        (
            {"batch_normalization_state": fresh},
            MPSArgumentError,
            "batch_normalization_state must hold the gradients of gamma and beta, got none. Encode MPSCNNBatchNorm",
        ),
        ({"batch_normalization_state": temporary}, MPSLifetimeError, "batch_normalization_state is temporary"),
        ({"result_state": None}, MPSTypeError, "result_state must be an MPSCNNNormalizationGammaAndBetaState"),
        ({"result_state": state}, MPSTypeError, "result_state must be an MPSCNNNormalizationGammaAndBetaState, got"),
        ({"result_state": _result(bench, 4)}, MPSArgumentError, r"result_state\.gamma must hold 20 bytes"),
        ({values: state}, MPSTypeError, f"{values} must not be given beside batch_normalization_state"),
        ({gradients: state}, MPSTypeError, f"{gradients} must not be given beside batch_normalization_state"),
        (pair, MPSTypeError, f"{values} must be a state with gamma and beta, got NoneType"),
        (pair | {gradients: None, values: state}, MPSTypeError, f"{gradients} must be a state with gradient_for_gamma"),
        (
            pair | {values: three},
            MPSArgumentError,
            rf"{values} must be of 5 feature channel\(s\), as the gradients, got 3",
        ),
        (
            {"input_velocity_vectors": None},
            MPSTypeError,
            "input_velocity_vectors are needed: for the gamma and the beta",
        ),
        (
            {"input_velocity_vectors": []},
            MPSArgumentError,
            "input_velocity_vectors must be one vector for the gamma, or",
        ),
        (
            {"input_momentum_vectors": [rows[0], _vector(bench, np.zeros(3))]},
            MPSArgumentError,
            r"input_momentum_vectors\[1\] must be one vector of 5 numbers, one for each number of beta",
        ),
        ({"convolution_source_state": state}, MPSTypeError, "arguments must be states of a convolution, or of a batch"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=f"^MPSNNOptimizerAdam: .*{message}"):
            Adam(CPU).encode(bench.command_buffer(), **(good | change))
