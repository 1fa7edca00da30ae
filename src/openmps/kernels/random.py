"""Random numbers in vectors and matrices (MPSMatrixRandom.h, macOS 10.15).

The generators are the published ones. Philox gives the words of Macs, and floats are made of words as Macs make them;
MTGP32 does not, for the framework's constants are not published. The numbers are the same on every device: words and
uniform numbers to the bit, normal ones to rounding.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from openmps.checks import NamedAttributes, Shown, number, one_of_two, store
from openmps.core.kernel.configuration import ULONG_MAX, Setting
from openmps.core.kernel.matrices import BatchKernel
from openmps.core.kernel.operands import Argument, OperandContext, OperandPlan
from openmps.core.lifetime import record_synchronize
from openmps.core.numbers import integer
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.op import Value
from openmps.ops.random.mtgp32 import STEP_WORDS, constants, initial_state, mtgp32
from openmps.ops.random.random import WORD_MASK
from openmps.ops.random.random_distributions import (
    Distribution,
    FillByPhilox,
    FillBySequence,
    Integers,
    Normal,
    Uniform,
    probability,
)
from openmps.runtime.binding import Binding
from openmps.selectors import name_arguments
from openmps.types import MPSDataType, MPSMatrixRandomDistribution

_CHUNKS = {"cpu": 2**20, "cuda": 2**22}
"""Numbers made at once: enough to occupy the device, few enough to bound the memory for words."""
_KEYS = 8
"""How many keys each of the 64 MTGP32 generators runs with, side by side."""


@name_arguments
class MPSMatrixRandomDistributionDescriptor(NamedAttributes):
    """How random numbers are distributed (MPSMatrixRandom.h, macOS 10.15; normal distributions macOS 11).

    ``MPSMatrixRandomDistributionDescriptor(minimum=…, maximum=…)`` is the uniform distribution over [minimum, maximum);
    with ``mean=…, standard_deviation=…`` it is the normal distribution, with all four the normal distribution cut to
    [minimum, maximum]; with none, as `default_distribution_descriptor`, the generator's own. What is not given shows as
    on Macs: a normal distribution's bounds are infinite, a uniform one's mean and standard deviation are those that it
    has, ``(minimum + maximum) / 2`` and ``(maximum - minimum) / sqrt(12)``, and all numbers of the default one are 0.

    Raises:
        MPSArgumentError: A number is NaN or out of its range, or the bounds are the wrong way round.
        MPSTypeError: One number of a pair is missing.
    """

    distribution_type: MPSMatrixRandomDistribution
    """DEFAULT, UNIFORM or NORMAL."""
    minimum: float
    """Lower bound: of UNIFORM, which includes it; of NORMAL, cut there unless it is minus infinity."""
    maximum: float
    """Upper bound: of UNIFORM, which excludes it; of NORMAL, cut there unless it is infinity."""
    mean: float
    """Mean of NORMAL before it is cut; of UNIFORM for information."""
    standard_deviation: float
    """Standard deviation of NORMAL before it is cut, above 0; of UNIFORM for information."""

    def __init__(
        self,
        minimum: float | None = None,
        maximum: float | None = None,
        mean: float | None = None,
        standard_deviation: float | None = None,
    ) -> None:
        name = type(self).__name__
        _check_pair(name, minimum=minimum, maximum=maximum)
        _check_pair(name, mean=mean, standard_deviation=standard_deviation)
        self.distribution_type = MPSMatrixRandomDistribution.DEFAULT
        self.minimum = self.maximum = self.mean = self.standard_deviation = 0.0
        if minimum is not None and maximum is not None:
            self.distribution_type = MPSMatrixRandomDistribution.UNIFORM
            self.minimum, self.maximum = minimum, maximum
        if mean is not None and standard_deviation is not None:
            self.distribution_type = MPSMatrixRandomDistribution.NORMAL
            self.mean, self.standard_deviation = mean, standard_deviation
            if minimum is None:
                self.minimum, self.maximum = -math.inf, math.inf
        self.validate(name)
        if self.distribution_type is MPSMatrixRandomDistribution.UNIFORM:
            self.mean = _float32(name, "mean", (self.minimum + self.maximum) / 2)
            width = self.maximum - self.minimum
            self.standard_deviation = _float32(name, "standard_deviation", width / math.sqrt(12))

    @classmethod
    def default_distribution_descriptor(cls) -> MPSMatrixRandomDistributionDescriptor:
        """The distribution of the generator: words of 32 bits, or as FLOAT32 uniform numbers in [0, 1)."""
        return cls()

    @classmethod
    def uniform_distribution_descriptor(cls, minimum: float, maximum: float) -> MPSMatrixRandomDistributionDescriptor:
        """The uniform distribution over [minimum, maximum)."""
        return cls(minimum, maximum)

    @classmethod
    def normal_distribution_descriptor(
        cls, mean: float, standard_deviation: float, minimum: float | None = None, maximum: float | None = None
    ) -> MPSMatrixRandomDistributionDescriptor:
        """The normal distribution, cut to [minimum, maximum] where these are given (macOS 11)."""
        return cls(minimum, maximum, mean, standard_deviation)

    def copy(self) -> MPSMatrixRandomDistributionDescriptor:
        """A descriptor of its own with the same values."""
        twin = type(self)()
        twin.__dict__.update(self.__dict__)
        return twin

    __copy__ = copy

    def validate(self, who: str) -> None:
        """Raise unless the values, which may have been changed, describe a distribution; they become float32."""
        self.minimum, self.maximum = _float32(who, "minimum", self.minimum), _float32(who, "maximum", self.maximum)
        self.mean = _float32(who, "mean", self.mean)
        self.standard_deviation = _float32(who, "standard_deviation", self.standard_deviation)
        bounds, deviation = f"{self.minimum} and {self.maximum}", self.standard_deviation
        if self.distribution_type is MPSMatrixRandomDistribution.UNIFORM:
            if not (math.isfinite(self.minimum) and math.isfinite(self.maximum) and self.minimum < self.maximum):
                raise MPSArgumentError(who, "minimum and maximum", "must be finite, minimum below maximum", bounds)
        elif self.distribution_type is MPSMatrixRandomDistribution.NORMAL:
            if not (math.isfinite(deviation) and deviation > 0):
                raise MPSArgumentError(who, "standard_deviation", "must be finite and above 0", deviation)
            if not math.isfinite(self.mean):
                raise MPSArgumentError(who, "mean", "must be finite", self.mean)
            if not self.minimum < self.maximum:
                raise MPSArgumentError(who, "minimum", "must be below maximum", bounds)
            if probability(self.mean, deviation, self.minimum, self.maximum) < np.finfo(np.float64).tiny:
                rule = "must leave something of the distribution: both are too many standard deviations from the mean"
                raise MPSArgumentError(who, "minimum and maximum", rule, bounds)

    def numbers(self, words: Tensor) -> Tensor:
        """Float32 numbers of this distribution, one a word; of the default one, those in [0, 1)."""
        return _distribution(self).numbers(words)

    def __repr__(self) -> str:
        return (
            f"MPSMatrixRandomDistributionDescriptor({self.distribution_type.name}, minimum={self.minimum}, "
            f"maximum={self.maximum}, mean={self.mean}, standard_deviation={self.standard_deviation})"
        )


def _distribution(descriptor: MPSMatrixRandomDistributionDescriptor) -> Distribution:
    """What makes float32 numbers of words."""
    if descriptor.distribution_type is MPSMatrixRandomDistribution.DEFAULT:
        return Uniform(0.0, 1.0)
    if descriptor.distribution_type is MPSMatrixRandomDistribution.UNIFORM:
        return Uniform(descriptor.minimum, descriptor.maximum)
    return Normal(descriptor.mean, descriptor.standard_deviation, descriptor.minimum, descriptor.maximum)


def _check_pair(who: str, **pair: float | None) -> None:
    """Raise if one number is given without the other."""
    missing = [name for name, value in pair.items() if value is None]
    if len(missing) == 1:
        raise MPSTypeError(who, missing[0], f"is needed: {' and '.join(pair)} go together", None)


def _float32(who: str, argument: str, value: object) -> float:
    return float(np.float32(number(who, argument, value)))


class MPSMatrixRandom(BatchKernel):
    """The base of kernels that fill vectors and matrices with random numbers (MPSMatrixRandom.h, macOS 10.15).

    An encode takes the next numbers of the kernel's sequence, so that encoding in parts gives the numbers of the whole.
    They fill the vectors or matrices selected by `batch_start` and `batch_size` one after the other, each row by row;
    gaps between rows stay as they are. UINT32 takes the default distribution; FLOAT32 all, the default one being
    uniform over [0, 1).

    Raises:
        MPSTypeError: An object of this base class is made: use one of its subclasses.
    """

    _is_abstract = True

    _data_type, _seed, _numbers = Setting[MPSDataType](), Setting[int](), Setting[Distribution]()
    destination_data_type = Shown[MPSDataType]("_data_type", "Type of the numbers made: UINT32 (default) or FLOAT32.")
    seed = Shown[int]("_seed", "The seed that the kernel was made with. Our addition.")
    distribution_type = Shown[MPSMatrixRandomDistribution](
        "_descriptor.distribution_type", "Distribution of the numbers made."
    )

    def __init__(
        self,
        device: MTLDevice,
        destination_data_type: MPSDataType = MPSDataType.UINT32,
        seed: int = 0,
        distribution_descriptor: MPSMatrixRandomDistributionDescriptor | None = None,
    ) -> None:
        super().__init__(device)
        is_type = isinstance(destination_data_type, int)
        if not is_type or destination_data_type not in (MPSDataType.UINT32, MPSDataType.FLOAT32):
            got = getattr(destination_data_type, "name", repr(destination_data_type))
            raise MPSArgumentError(self.name, "destination_data_type", "must be UINT32 or FLOAT32", got)
        self._seed = integer(self.name, "seed", seed, most=ULONG_MAX, rule="must be an integer of 64 bits, at least 0")
        if distribution_descriptor is None:
            distribution_descriptor = MPSMatrixRandomDistributionDescriptor()
        if not isinstance(distribution_descriptor, MPSMatrixRandomDistributionDescriptor):
            got = type(distribution_descriptor).__name__
            rule = "must be an MPSMatrixRandomDistributionDescriptor"
            raise MPSTypeError(self.name, "distribution_descriptor", rule, got)
        self._descriptor = distribution_descriptor.copy()
        self._descriptor.validate(self.name)
        self._data_type = MPSDataType(destination_data_type)
        is_words = self._data_type is MPSDataType.UINT32
        if is_words and self.distribution_type is not MPSMatrixRandomDistribution.DEFAULT:
            rule = f"must be FLOAT32 for the {self.distribution_type.name} distribution"
            raise MPSArgumentError(self.name, "destination_data_type", rule, "UINT32")
        self._numbers = Integers() if is_words else _distribution(self._descriptor)

    @property
    def distribution_descriptor(self) -> MPSMatrixRandomDistributionDescriptor:
        """A copy of the descriptor that the kernel was made with. Our addition."""
        return self._descriptor.copy()

    def encode(
        self,
        command_buffer: CommandBuffer,
        destination_vector: MPSVector | None = None,
        destination_matrix: MPSMatrix | None = None,
    ) -> None:
        """Record that a vector or a matrix is filled with the next numbers.

        Raises:
            MPSArgumentError: The destination has another type, or no vector or matrix from `batch_start` on.
        """
        one_of_two(self.name, "destination_vector", destination_vector, "destination_matrix", destination_matrix)
        given: object = destination_matrix if destination_vector is None else destination_vector
        chosen = _MATRIX if destination_vector is None else _VECTOR
        chunk = _CHUNKS[self.device.torch_device.type]
        self._encode(command_buffer, given, arguments=(chosen,), asked=(chosen.name, chunk))

    def _lower(self, at: OperandContext) -> None:
        argument, chunk = at.asked
        stored = at.shape(argument).stored_as
        if stored is not self._data_type:
            rule = f"must hold {self._data_type.name}, as destination_data_type says"
            raise MPSArgumentError(self.name, argument, rule, stored.name)
        members = self._members(at, argument)
        at.note = (members.stop - members.start) * math.prod(at.sizes(argument)[1:])
        self._fill(at, at.elements(argument, members), chunk)

    def _fill(self, at: OperandContext, destination: Value, chunk: int) -> None:
        """Fill the destination with ``at.note`` numbers, so many at once."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")


_BY_NAME = "Pass it by the name of the argument"
_VECTOR = Argument("destination_vector", MPSVector, is_result=True, remedy=_BY_NAME)
_MATRIX = Argument("destination_matrix", MPSMatrix, is_result=True, remedy=_BY_NAME)


class MPSMatrixRandomPhilox(MPSMatrixRandom):
    """Random numbers by Philox4x32-10, a counter-based generator (MPSMatrixRandom.h, macOS 10.15).

    ``MPSMatrixRandomPhilox(device)`` makes UINT32 words of seed 0. Number i of the kernel's sequence, counted from 0
    over all its encodes in the order in which they are encoded, is made of word ``i % 4`` of Philox4x32-10 (Salmon et
    al., 2011) with the key ``(seed, seed >> 32)`` and the counter ``(0, 0, i // 4 >> 32, i // 4)``, each reduced to 32
    bits. A float is made of the 23 highest bits of a word, ``t = floor(word / 2**9) / 2**23``: a uniform one is
    ``minimum + (maximum - minimum) t``, a normal one ``mean + standard_deviation F^-1(t)`` with F the distribution
    function. A copy goes on from what has been encoded when it is made.
    """

    _position = 0

    def _fill(self, at: OperandContext, destination: Value, chunk: int) -> None:
        FillByPhilox(self._numbers, chunk, self._seed)(destination, at.number("begin"))

    def _number(self, name: str, given: OperandPlan) -> int:
        begin = self._position
        store(self, "_position", begin + given.note)  # counted whole; see core/numbers.py
        return begin


class _Sequence(Binding):
    """The words of many MTGP32 generators in turn: 256 of the first, 256 of the second, and so on."""

    __slots__ = ("_now",)

    def __init__(self, state: Tensor, left: Tensor) -> None:
        self._now = state, left
        # They come from the host: now, not while an encode runs.
        constants(state.device, len(state))

    @classmethod
    def of_seed(cls, seed: int, device: torch.device) -> _Sequence:
        """The sequence of a seed, at its beginning."""
        low, high = seed & WORD_MASK, seed >> 32
        state = torch.cat([initial_state((low, high, number)) for number in range(_KEYS)]).to(device)
        return cls(state, state.new_empty(0))

    def copy(self, device: torch.device) -> _Sequence:
        """A sequence of its own that goes on from here."""
        state, left = self._now
        return _Sequence(state.to(device, copy=True), left.to(device, copy=True))

    def value(self) -> _Sequence:
        """Itself, as the operand of an encode."""
        return self

    def regions(self) -> tuple[()]:
        """None that anybody else could read."""
        return ()

    def next_words(self, count: int) -> Tensor:
        """The next words."""
        # Two queues may run encodes of one kernel, and a copy is made at any time. What was taken by another in the
        # meantime is made again; a lock would have a forked process wait for a thread that stayed behind.
        while True:
            before = self._now
            taken, after = _taken(*before, count)
            if self._now is before:
                self._now = after
                return taken


def _taken(state: Tensor, left: Tensor, count: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The next words, and the sequence behind them."""
    missing = count - len(left)
    if missing <= 0:
        return left[:count], (state, left[count:])
    words, state = mtgp32(state, -(-missing // (len(state) * STEP_WORDS)))
    made = words.view(-1)
    taken = torch.cat((left, made[:missing])) if len(left) else made[:missing]
    # Memory of its own, or the rest would keep all words alive.
    return taken, (state, made[missing:].clone())


class MPSMatrixRandomMTGP32(MPSMatrixRandom):
    """Random numbers by MTGP32, a Mersenne Twister for graphics processors (MPSMatrixRandom.h, macOS 10.15).

    ``MPSMatrixRandomMTGP32(device)`` makes UINT32 words of seed 0. 512 generators of period 2**11213 - 1 give 256 words
    each in turn: generator g has the published constants (Saito, arXiv:1005.4973) of number ``g % 64`` and is
    initialized by the published routine for arrays with the key ``(seed, seed >> 32, g // 64)``. One word makes one
    number, normal numbers by the inverse distribution function. Encodes take their numbers in the order in which they
    run; a copy of the kernel goes on from what has run when it is made.
    """

    def __init__(
        self,
        device: MTLDevice,
        destination_data_type: MPSDataType = MPSDataType.UINT32,
        seed: int = 0,
        distribution_descriptor: MPSMatrixRandomDistributionDescriptor | None = None,
    ) -> None:
        super().__init__(device, destination_data_type, seed, distribution_descriptor)
        self._sequence = _Sequence.of_seed(seed, self.device.torch_device)

    def synchronize_state(self, command_buffer: CommandBuffer) -> None:
        """Make the generator's state visible to the CPU once ``command_buffer`` has completed: a copy goes on from it.

        Memory is coherent here; the call is checked and keeps its place in the record.
        """
        record_synchronize(self.name, command_buffer, self.device)

    def _unshare(self) -> None:
        super()._unshare()
        self._sequence = self._sequence.copy(self.device.torch_device)

    def _fill(self, at: OperandContext, destination: Value, chunk: int) -> None:
        FillBySequence(self._numbers, chunk)(destination, at.buffer("words"))

    def _memory(self, name: str, given: OperandPlan) -> Binding:
        return self._sequence
