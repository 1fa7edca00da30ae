"""Random number kernels: sequences, distributions, destinations, statistics, and what is refused."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from in_one_test import in_one_test
from measured import note_error
from openmps.core.vector import (
    MPSMatrix,
    MPSMatrixDescriptor,
    MPSTemporaryMatrix,
    MPSTemporaryVector,
    MPSVector,
    MPSVectorDescriptor,
)
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.kernels import random as module
from openmps.kernels.random import (
    MPSMatrixRandom,
    MPSMatrixRandomDistributionDescriptor,
    MPSMatrixRandomMTGP32,
    MPSMatrixRandomPhilox,
)
from openmps.metal.device import MTLDevice
from openmps.ops.random.mtgp32_parameters import PARAMETERS
from openmps.types import MPSDataType, MPSMatrixRandomDistribution, MTLResourceOptions
from oracles import mtgp32 as mtgp_oracle
from oracles import random as oracle
from scenes import CPU

Descriptor = MPSMatrixRandomDistributionDescriptor
Distribution = MPSMatrixRandomDistribution
FLOAT32, UINT32 = MPSDataType.FLOAT32, MPSDataType.UINT32
KINDS = [MPSMatrixRandomPhilox, MPSMatrixRandomMTGP32]
DISTRIBUTIONS = {
    "words": (UINT32, None),
    "default": (FLOAT32, None),
    "uniform": (FLOAT32, Descriptor(-2.0, 3.0)),
    "normal": (FLOAT32, Descriptor(mean=1.0, standard_deviation=2.0)),
    "truncated": (FLOAT32, Descriptor(-1.0, 2.0, 1.0, 2.0)),
}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
each_distribution = pytest.mark.parametrize("name", DISTRIBUTIONS)


def _make(kind: Any, device: MTLDevice, name: str = "words", seed: int = 5) -> Any:
    data_type, descriptor = DISTRIBUTIONS[name]
    return kind(device, data_type, seed, descriptor)


def _vector(bench: Bench, length: int, data_type: MPSDataType = UINT32, vectors: int = 1) -> MPSVector:
    return MPSVector(device=bench.device, descriptor=MPSVectorDescriptor(length, data_type, vectors))


def _matrix(bench: Bench, *shape: int, data_type: MPSDataType = UINT32, **more: Any) -> MPSMatrix:
    return MPSMatrix(device=bench.device, descriptor=MPSMatrixDescriptor(*shape, data_type=data_type, **more))


def _draw(bench: Bench, kernel: Any, count: int) -> np.ndarray:
    """The kernel's next numbers."""
    vector = _vector(bench, count, kernel.destination_data_type)
    command_buffer = bench.command_buffer()
    assert kernel.encode(command_buffer, vector) is None
    finish(command_buffer)
    return vector.numpy()


# --- sequences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 7, 2**64 - 1])
def test_philox_sequence(seed: int, device: torch.device) -> None:
    bench = Bench.on(device)
    found = _draw(bench, MPSMatrixRandomPhilox(bench.device, UINT32, seed), 101)
    assert found.dtype == np.uint32
    assert found.tolist() == [oracle.philox_word(seed, index) for index in range(101)]


@pytest.mark.parametrize("seed", [0, 2**33 + 7])
def test_mtgp32_sequence(seed: int, device: torch.device) -> None:
    """256 words of each of the 512 generators in turn, keyed by the seed's halves and a number."""
    bench = Bench.on(device)
    found = _draw(bench, MPSMatrixRandomMTGP32(bench.device, UINT32, seed), 512 * 256 + 300)
    rows = [line for line in PARAMETERS.split("\n") if line]
    for number in (0, 1, 40, 63, 64, 300, 511):
        generator = mtgp_oracle.parse(rows[number % 64])
        state = mtgp_oracle.initialize(generator, (seed % 2**32, seed >> 32, number // 64))
        words = list(itertools.islice(mtgp_oracle.words(generator, state), 512))
        assert found[number * 256 : (number + 1) * 256].tolist() == words[:256]
        if number < 2:
            again = found[512 * 256 + number * 256 :][:256].tolist()
            assert again == words[256 : 256 + len(again)]


@each_kind
@each_distribution
def test_encoding_in_parts_gives_the_numbers_of_the_whole(kind: Any, name: str, device: torch.device) -> None:
    bench = Bench.on(device)
    whole = _draw(bench, _make(kind, bench.device, name), 140000)
    kernel = _make(kind, bench.device, name)
    parts = [_draw(bench, kernel, count) for count in (1, 2, 3, 250, 130816, 8928)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    one_buffer = _make(kind, bench.device, name)
    vectors = [_vector(bench, count, whole_type(whole)) for count in (5, 131072, 8923)]
    command_buffer = bench.command_buffer()
    for vector in vectors:
        one_buffer.encode(command_buffer, vector)
    finish(command_buffer)
    np.testing.assert_array_equal(np.concatenate([vector.numpy() for vector in vectors]), whole)


def whole_type(numbers: np.ndarray) -> MPSDataType:
    return UINT32 if numbers.dtype == np.uint32 else FLOAT32


@each_kind
def test_more_numbers_than_are_made_at_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(CPU)
    whole = _draw(bench, _make(kind, CPU, "normal"), 140001)
    monkeypatch.setattr(module, "_CHUNKS", {"cpu": 5001})
    np.testing.assert_array_equal(_draw(bench, _make(kind, CPU, "normal"), 140001), whole)


@in_one_test
@each_kind
@each_distribution
def test_devices_agree(kind: Any, name: str, device: torch.device) -> None:
    """To the bit, but for normal numbers, which agree to one rounding."""
    here, there = Bench(CPU), Bench.on(device)
    expected = _draw(here, _make(kind, CPU, name), 50000)
    found = _draw(there, _make(kind, there.device, name), 50000)
    if name in ("normal", "truncated"):
        np.testing.assert_array_max_ulp(found, expected, 1)
    else:
        np.testing.assert_array_equal(found, expected)


@each_kind
def test_seeds_differ(kind: Any) -> None:
    bench = Bench(CPU)
    draws = [_draw(bench, kind(CPU, UINT32, seed), 1000) for seed in (0, 1, 2**32, 2**32 + 1, 2**63)]
    for one, other in itertools.combinations(draws, 2):
        assert np.count_nonzero(one == other) <= 2
    np.testing.assert_array_equal(_draw(bench, kind(CPU), 1000), draws[0])
    np.testing.assert_array_equal(_draw(bench, kind(CPU, UINT32, 1), 1000), draws[1])


# --- distributions ---------------------------------------------------------------------------------------------------


@each_kind
def test_one_word_makes_one_number(kind: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    words = _draw(bench, _make(kind, bench.device), 200).tolist()
    uniform = oracle.uniform(words, -2.0, 3.0).astype(np.float32)
    np.testing.assert_array_equal(_draw(bench, _make(kind, bench.device, "uniform"), 200), uniform)
    default = oracle.uniform(words, 0.0, 1.0).astype(np.float32)
    assert default.max() < 1
    np.testing.assert_array_equal(_draw(bench, _make(kind, bench.device, "default"), 200), default)
    normal = oracle.normal(words, 1.0, 2.0).astype(np.float32)
    found = _draw(bench, _make(kind, bench.device, "normal"), 200)
    np.testing.assert_array_max_ulp(found, normal, 1)
    note_error(kind, "forward", device, found, normal)
    cut = oracle.normal(words, 1.0, 2.0, -1.0, 2.0).astype(np.float32)
    np.testing.assert_array_max_ulp(_draw(bench, _make(kind, bench.device, "truncated"), 200), cut, 1)


COUNT = 400_000


def _sigmas(found: float, expected: float, deviation: float) -> float:
    return abs(found - expected) / deviation


@each_kind
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_words_are_uniform_and_independent(kind: Any, seed: int) -> None:
    """Frequencies of bits, bytes and pairs, and correlations of neighbours, within five standard deviations."""
    words = _draw(Bench(CPU), kind(CPU, UINT32, seed), COUNT)
    for bit in range(32):
        assert _sigmas(float((words >> np.uint32(bit) & 1).sum()), COUNT / 2, math.sqrt(COUNT) / 2) < 5, bit
    for shift in (0, 8, 16, 24):
        assert _chi_square(words >> np.uint32(shift) & 255, 256) < 5
    for lag in (1, 2, 255, 256, 351, 16384, 131072):
        pairs = (words[:-lag] >> np.uint32(28)) * 16 + (words[lag:] >> np.uint32(28))
        assert _chi_square(pairs, 256) < 5, lag
    unit = words / 2.0**32 - 0.5
    for lag in (1, 2, 4, 256, 16384, 131072):
        correlation = float((unit[:-lag] * unit[lag:]).mean()) * 12
        assert abs(correlation) * math.sqrt(COUNT - lag) < 5, lag


def _chi_square(values: np.ndarray, cells: int) -> float:
    """Distance of the frequencies from equal ones, in standard deviations of the statistic."""
    counts = np.bincount(values.astype(np.int64), minlength=cells)
    expected = len(values) / cells
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return _sigmas(statistic, cells - 1, math.sqrt(2 * (cells - 1)))


def _kolmogorov(numbers: np.ndarray, below: Callable[[np.ndarray], np.ndarray]) -> float:
    """The largest distance of the distribution functions times the root of the count."""
    ordered = np.sort(numbers.astype(np.float64))
    ideal = below(ordered)
    ranks = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((ranks[1:] - ideal).max(), (ideal - ranks[:-1]).max()) * math.sqrt(len(ordered)))


FIVE_SIGMA = 2.74
"""What `_kolmogorov` exceeds as seldom as a normal number leaves five standard deviations."""


def _normal_below(deviations: Any) -> np.ndarray:
    return torch.special.ndtr(torch.as_tensor(deviations, dtype=torch.float64)).numpy()


@each_kind
@pytest.mark.parametrize("seed", [5, 6])
def test_distributions_are_what_they_say(kind: Any, seed: int) -> None:
    bench = Bench(CPU)
    numbers = {name: _draw(bench, _make(kind, CPU, name, seed), COUNT) for name in DISTRIBUTIONS if name != "words"}
    low, high = _normal_below(-1.0), _normal_below(0.5)
    functions: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "default": lambda x: x,
        "uniform": lambda x: (x + 2) / 5,
        "normal": lambda x: _normal_below((x - 1) / 2),
        "truncated": lambda x: (_normal_below((x - 1) / 2) - low) / (high - low),
    }
    for name, function in functions.items():
        assert numbers[name].dtype == np.float32
        assert _kolmogorov(numbers[name], function) < FIVE_SIGMA, name
    assert _sigmas(float(numbers["normal"].mean(dtype=np.float64)), 1.0, 2.0 / math.sqrt(COUNT)) < 5
    assert _sigmas(float(numbers["normal"].std(dtype=np.float64)), 2.0, 2.0 / math.sqrt(2 * COUNT)) < 5
    assert numbers["default"].min() >= 0
    assert numbers["default"].max() < 1
    assert numbers["uniform"].min() >= -2
    assert numbers["uniform"].max() < 3
    assert numbers["truncated"].min() >= -1
    assert numbers["truncated"].max() <= 2


# --- destinations ----------------------------------------------------------------------------------------------------


@each_kind
def test_matrices_are_filled_row_by_row(kind: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    expected = _draw(bench, _make(kind, bench.device), 3 * 4 * 5).reshape(3, 4, 5)
    matrix = _matrix(bench, 4, 5, matrices=3)
    command_buffer = bench.command_buffer()
    _make(kind, bench.device).encode(command_buffer, destination_matrix=matrix)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy(), expected)


@each_kind
@pytest.mark.parametrize("name", ["words", "normal"])
def test_gaps_stay_as_they_are(kind: Any, name: str, device: torch.device) -> None:
    bench = Bench.on(device)
    data_type = DISTRIBUTIONS[name][0]
    expected = _draw(bench, _make(kind, bench.device, name), 2 * 3 * 5).reshape(2, 3, 5)
    buffer = bench.device.new_buffer(length=4 * (1 + 2 * 40))
    descriptor = MPSMatrixDescriptor(3, 5, row_bytes=32, data_type=data_type, matrices=2, matrix_bytes=160)
    matrix = MPSMatrix(buffer, descriptor, offset=4)
    command_buffer = bench.command_buffer()
    _make(kind, bench.device, name).encode(command_buffer, destination_matrix=matrix)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy(), expected)
    whole = buffer.tensor(torch.int32).cpu().numpy()
    gaps = whole[1:].reshape(2, 40)
    assert whole[0] == 0
    assert not gaps[:, 24:].any()
    assert not gaps[:, :24].reshape(2, 3, 8)[..., 5:].any()


@each_kind
def test_part_of_the_batch(kind: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = _make(kind, bench.device)
    kernel.batch_start, kernel.batch_size = 1, 2
    expected = _draw(bench, _make(kind, bench.device), 14).reshape(2, 7)
    vector = _vector(bench, 7, vectors=4)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, vector)
    finish(command_buffer)
    found = vector.numpy()
    np.testing.assert_array_equal(found[1:3], expected)
    assert not found[[0, 3]].any()
    beyond = _make(kind, bench.device)
    beyond.batch_start, beyond.batch_size = 3, 100
    matrix = _matrix(bench, 2, 3, matrices=4)
    command_buffer = bench.command_buffer()
    beyond.encode(command_buffer, destination_matrix=matrix)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy()[3].ravel(), expected.ravel()[:6])
    assert not matrix.numpy()[:3].any()


@each_kind
def test_temporary_destinations(kind: Any, device: torch.device) -> None:
    """A destination is written, not read: its reads stay."""
    bench = Bench.on(device)
    kernel = _make(kind, bench.device)
    command_buffer = bench.command_buffer()
    vector = MPSTemporaryVector(command_buffer, MPSVectorDescriptor(5, UINT32))
    matrix = MPSTemporaryMatrix(command_buffer, MPSMatrixDescriptor(2, 2, data_type=UINT32))
    kernel.encode(command_buffer, vector)
    kernel.encode(command_buffer, destination_matrix=matrix)
    assert (vector.read_count, matrix.read_count) == (1, 1)
    with pytest.raises(MPSLifetimeError, match="destination_vector is temporary and must be used on"):
        kernel.encode(bench.command_buffer(), vector)
    finish(command_buffer)


@each_kind
def test_private_memory(kind: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    buffer = bench.device.new_buffer(length=16, options=MTLResourceOptions.STORAGE_MODE_PRIVATE)
    command_buffer = bench.command_buffer()
    _make(kind, bench.device).encode(command_buffer, MPSVector(buffer, MPSVectorDescriptor(4, UINT32)))
    finish(command_buffer)
    assert buffer.tensor(torch.int32).any()


# --- copies and state ------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("make_copy", [lambda kernel: kernel.copy(), copy.copy], ids=["copy()", "copy.copy"])
def test_a_copy_goes_on_by_itself(kind: Any, make_copy: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = _make(kind, bench.device, "normal")
    kernel.batch_start, kernel.batch_size = 0, 9
    _draw(bench, kernel, 1000)
    twin = make_copy(kernel)
    assert type(twin) is kind
    assert (twin.destination_data_type, twin.distribution_type) == (FLOAT32, Distribution.NORMAL)
    assert (twin.batch_start, twin.batch_size) == (0, 9)
    twin.batch_size = 3
    assert kernel.batch_size == 9
    first = _draw(bench, twin, 20000)
    np.testing.assert_array_equal(_draw(bench, kernel, 20000), first)


@each_kind
def test_a_copy_on_another_device(kind: Any, device: torch.device) -> None:
    here, there = Bench(CPU), Bench.on(device)
    kernel = _make(kind, CPU)
    _draw(here, kernel, 777)
    twin = kernel.copy(there.device)
    np.testing.assert_array_equal(_draw(there, twin, 500), _draw(here, kernel, 500))


def test_synchronize_state(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSMatrixRandomMTGP32(bench.device)
    vector = _vector(bench, 10)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, vector)
    assert kernel.synchronize_state(command_buffer) is None
    finish(command_buffer)
    whole = _draw(bench, MPSMatrixRandomMTGP32(bench.device), 20)
    np.testing.assert_array_equal(_draw(bench, kernel.copy(), 10), whole[10:])
    with pytest.raises(MTLCommandBufferError, match="^MPSMatrixRandomMTGP32: command_buffer must not be committed"):
        kernel.synchronize_state(command_buffer)
    other = Bench(MTLDevice(torch.device("cpu")))
    with pytest.raises(MPSDeviceError, match="^MPSMatrixRandomMTGP32: command_buffer must belong"):
        kernel.synchronize_state(other.command_buffer())


def test_an_encode_keeps_the_properties_of_its_time(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel, vector = MPSMatrixRandomPhilox(bench.device), _vector(bench, 3, vectors=2)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, vector)
    kernel.batch_start = 1
    finish(command_buffer)
    assert vector.numpy()[0].any()


def test_the_descriptor_is_copied() -> None:
    descriptor = Descriptor(0.0, 1.0)
    kernel = MPSMatrixRandomPhilox(CPU, FLOAT32, 0, descriptor)
    descriptor.minimum, descriptor.maximum = 5.0, 6.0
    assert _draw(Bench(CPU), kernel, 100).max() < 1


# --- properties ------------------------------------------------------------------------------------------------------


@each_kind
def test_properties_and_their_defaults(kind: Any) -> None:
    kernel = kind(CPU)
    assert isinstance(kernel, MPSMatrixRandom)
    assert kernel.destination_data_type is UINT32
    assert kernel.distribution_type is Distribution.DEFAULT
    assert kernel.seed == 0
    assert _values(kernel.distribution_descriptor) == _values(Descriptor())
    kernel.distribution_descriptor.distribution_type = Distribution.NORMAL
    assert kernel.distribution_type is Distribution.DEFAULT
    assert (kernel.batch_start, kernel.batch_size) == (0, 2**64 - 1)
    for name in ("destination_data_type", "distribution_type"):
        with pytest.raises(AttributeError):
            setattr(kernel, name, 1)
    names = ["device", "destination_data_type", "seed", "distribution_descriptor"]
    assert list(inspect.signature(kind).parameters) == names
    parameters = list(inspect.signature(kernel.encode).parameters)
    assert parameters == ["command_buffer", "destination_vector", "destination_matrix"]


def _values(descriptor: Descriptor) -> tuple[Any, ...]:
    return (
        descriptor.distribution_type,
        descriptor.minimum,
        descriptor.maximum,
        descriptor.mean,
        descriptor.standard_deviation,
    )


def test_descriptors() -> None:
    infinity = math.inf
    assert _values(Descriptor.default_distribution_descriptor()) == (
        Distribution.DEFAULT, 0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    deviation = float(np.float32(math.sqrt(0.75)))
    assert _values(Descriptor(minimum=-1, maximum=2)) == (Distribution.UNIFORM, -1.0, 2.0, 0.5, deviation)
    assert _values(Descriptor(mean=3, standard_deviation=4)) == (Distribution.NORMAL, -infinity, infinity, 3.0, 4.0)
    cut = Descriptor(mean=3.0, standard_deviation=4.0, minimum=1.0, maximum=2.0)
    assert _values(cut) == (Distribution.NORMAL, 1.0, 2.0, 3.0, 4.0)
    assert _values(Descriptor(0.1, 0.2))[1] == float(np.float32(0.1))
    twin = copy.copy(cut)
    twin.mean = 9.0
    assert _values(cut)[3] == 3.0
    assert _values(cut.copy()) == _values(cut)
    assert repr(cut) == (
        "MPSMatrixRandomDistributionDescriptor(NORMAL, minimum=1.0, maximum=2.0, mean=3.0, standard_deviation=4.0)"
    )


def test_a_descriptor_that_was_changed() -> None:
    descriptor = Descriptor()
    descriptor.distribution_type = Distribution.NORMAL
    descriptor.mean, descriptor.standard_deviation = 100.0, 1.0
    descriptor.minimum, descriptor.maximum = -math.inf, math.inf
    assert _draw(Bench(CPU), MPSMatrixRandomPhilox(CPU, FLOAT32, 0, descriptor), 100).min() > 90
    descriptor.distribution_type = Distribution.UNIFORM
    rule = "^MPSMatrixRandomPhilox: minimum and maximum must be finite, minimum below maximum, got -inf and inf"
    with pytest.raises(MPSArgumentError, match=rule):
        MPSMatrixRandomPhilox(CPU, FLOAT32, 0, descriptor)
    with pytest.raises(MPSArgumentError, match="Descriptor: distribution_type must be one of DEFAULT, UNIFORM, NORMAL"):
        descriptor.distribution_type = 7  # type: ignore[assignment]


# --- misuse ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"minimum": 1.0, "maximum": 1.0}, MPSArgumentError, "minimum and maximum must be finite, minimum below"),
        ({"minimum": 0.0, "maximum": 1e39}, MPSArgumentError, "maximum must be a number of float32, at most"),
        ({"minimum": math.nan, "maximum": 1.0}, MPSArgumentError, "minimum must be a number, got nan"),
        ({"minimum": 0.0}, MPSTypeError, "maximum is needed: minimum and maximum go together"),
        ({"standard_deviation": 1.0}, MPSTypeError, "mean is needed: mean and standard_deviation go together"),
        ({"minimum": "low", "maximum": 1.0}, MPSTypeError, "minimum must be a number, got 'low'"),
        ({"mean": 0.0, "standard_deviation": 0.0}, MPSArgumentError, "standard_deviation must be finite and above 0"),
        ({"mean": 0.0, "standard_deviation": math.inf}, MPSArgumentError, "standard_deviation must be finite"),
        ({"mean": math.inf, "standard_deviation": 1.0}, MPSArgumentError, "mean must be finite"),
        ({"mean": 0, "standard_deviation": 1, "minimum": 2, "maximum": 1}, MPSArgumentError, "minimum must be below"),
        (
            {"mean": 0, "standard_deviation": 1, "minimum": 60, "maximum": 61},
            MPSArgumentError,
            "minimum and maximum must leave something of the distribution",
        ),
    ],
)
def test_wrong_descriptors(arguments: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=f"^MPSMatrixRandomDistributionDescriptor: {match}"):
        Descriptor(**arguments)


@each_kind
def test_wrong_constructors(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(MPSArgumentError, match=f"^{name}: destination_data_type must be UINT32 or FLOAT32, got FLOAT"):
        kind(CPU, MPSDataType.FLOAT16)
    for wrong in (-1, 2**64, 1.5, True):
        with pytest.raises(MPSArgumentError, match=f"^{name}: seed must be an integer of 64 bits"):
            kind(CPU, UINT32, wrong)
    with pytest.raises(MPSTypeError, match=f"^{name}: distribution_descriptor must be an MPSMatrixRandomDistribution"):
        kind(CPU, UINT32, 0, Distribution.DEFAULT)
    with pytest.raises(MPSArgumentError, match=f"^{name}: destination_data_type must be FLOAT32 for the UNIFORM distr"):
        kind(CPU, UINT32, 0, Descriptor(0.0, 1.0))
    with pytest.raises(MPSTypeError, match=f"^{name}: device must be an MTLDevice"):
        kind("cpu")


@each_kind
def test_wrong_properties(kind: Any) -> None:
    kernel = kind(CPU)
    kernel.label = "noise"
    for wrong in (-1, 0.5, True):
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'noise': batch_start must be an integer of at"):
            kernel.batch_start = wrong
    for wrong in (0, 0.5, True):
        with pytest.raises(MPSArgumentError, match="'noise': batch_size must be an integer of at least 1"):
            kernel.batch_size = wrong


@each_kind
def test_wrong_destinations(kind: Any) -> None:
    bench, kernel, name = Bench(CPU), kind(CPU), kind.__name__
    vector, matrix = _vector(bench, 4), _matrix(bench, 2, 2)
    command_buffer = bench.command_buffer()
    with pytest.raises(MPSTypeError, match=f"^{name}: destination_vector or destination_matrix must be given, got"):
        kernel.encode(command_buffer)
    with pytest.raises(MPSTypeError, match="must be given, not both, got both"):
        kernel.encode(command_buffer, vector, matrix)
    with pytest.raises(MPSTypeError, match=f"^{name}: destination_vector must be an MPSVector, got MPSMatrix. Pass it"):
        kernel.encode(command_buffer, matrix)
    with pytest.raises(MPSTypeError, match=f"^{name}: destination_matrix must be an MPSMatrix, got ndarray"):
        kernel.encode(command_buffer, destination_matrix=np.zeros(3))
    with pytest.raises(MPSArgumentError, match=f"^{name}: destination_vector must hold UINT32, .*, got FLOAT32"):
        kernel.encode(command_buffer, _vector(bench, 4, FLOAT32))
    kernel.batch_start = 2
    with pytest.raises(MPSArgumentError, match=f"^{name}: batch_start must be below 2, as many as destination_"):
        kernel.encode(command_buffer, destination_matrix=_matrix(bench, 2, 2, matrices=2))
    other = Bench(MTLDevice(torch.device("cpu")))
    with pytest.raises(MPSDeviceError, match=f"^{name}: destination_vector must belong to the device"):
        kernel.encode(command_buffer, _vector(other, 4))
    with pytest.raises(MPSDeviceError, match=f"^{name}: command_buffer must belong to the device"):
        kernel.encode(other.command_buffer(), vector)
    finish(command_buffer)
    with pytest.raises(MTLCommandBufferError, match=f"^{name}: command_buffer must not be committed"):
        kernel.encode(command_buffer, vector)


def test_the_base_class_makes_no_numbers() -> None:
    bench = Bench(CPU)
    with pytest.raises(MPSTypeError, match="^MPSMatrixRandom: device makes no kernel of this base class"):
        MPSMatrixRandom(CPU).encode(bench.command_buffer(), _vector(bench, 4))


def test_distributions_by_their_factories() -> None:
    kind, types = MPSMatrixRandomDistributionDescriptor, MPSMatrixRandomDistribution
    uniform, normal = kind.uniform_distribution_descriptor(1, 2), kind.normal_distribution_descriptor(3, 0.5)
    cut = kind.normal_distribution_descriptor(3, 0.5, 2.5, 4)
    assert (uniform.distribution_type, uniform.minimum, uniform.maximum) == (types.UNIFORM, 1, 2)
    assert (normal.distribution_type, normal.mean, normal.standard_deviation) == (types.NORMAL, 3, 0.5)
    assert (normal.minimum, normal.maximum) == (-np.inf, np.inf)
    assert (cut.mean, cut.standard_deviation, cut.minimum, cut.maximum) == (3, 0.5, 2.5, 4)
    assert repr(cut) == repr(kind(2.5, 4, 3, 0.5))
    with pytest.raises(MPSTypeError, match="maximum is needed"):
        kind.normal_distribution_descriptor(3, 0.5, 2.5)
