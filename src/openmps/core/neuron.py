"""MPSNNNeuronDescriptor: which neuron, with which parameters (MPSCNNNeuron.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, number
from openmps.core.arrays import numbers, row
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.selectors import Factory, name_arguments
from openmps.types import MPSCNNNeuronType

FloatArray = NDArray[np.float32]

DEFAULT_PARAMETERS: dict[MPSCNNNeuronType, tuple[float, float, float]] = {
    **{kind: (0.0, 0.0, 0.0) for kind in MPSCNNNeuronType if kind is not MPSCNNNeuronType.COUNT},
    MPSCNNNeuronType.LINEAR: (1.0, 0.0, 0.0),
    MPSCNNNeuronType.HARD_SIGMOID: (0.2, 0.5, 0.0),
    MPSCNNNeuronType.TANH: (1.0, 1.0, 0.0),
    MPSCNNNeuronType.SOFT_PLUS: (1.0, 1.0, 0.0),
    MPSCNNNeuronType.ELU: (1.0, 0.0, 0.0),
    MPSCNNNeuronType.RELU_N: (1.0, 6.0, 0.0),
    MPSCNNNeuronType.POWER: (1.0, 0.0, 1.0),
    MPSCNNNeuronType.EXPONENTIAL: (1.0, 0.0, -1.0),
    MPSCNNNeuronType.LOGARITHM: (1.0, 0.0, -1.0),
}
"""``a``, ``b``, ``c`` of each neuron for its default behaviour; 0 where the neuron does not read the parameter.

``RELU_N`` with ``a = 1`` lets negative values through: the ReLU6 of other frameworks is ``a = 0, b = 6``.
"""


class NeuronParameters(NamedTuple):
    """A neuron as a value: what a kernel's configuration holds of a descriptor."""

    neuron_type: MPSCNNNeuronType
    a: float
    b: float
    c: float
    data: tuple[float, ...] | None

    @property
    def is_identity(self) -> bool:
        """Whether there is nothing to apply."""
        return self.neuron_type is MPSCNNNeuronType.NONE

    def descriptor(self) -> MPSNNNeuronDescriptor:
        """A descriptor of its own with these values."""
        data = self.data if self.neuron_type is MPSCNNNeuronType.PRELU else None
        return MPSNNNeuronDescriptor(self.neuron_type, self.a, self.b, self.c, data=data)

    def slopes(self, who: str, channels: int) -> FloatArray | None:
        """PReLU's ``a`` of the first ``channels`` channels; None for the other neurons."""
        if self.neuron_type is not MPSCNNNeuronType.PRELU or self.data is None:
            return None
        if len(self.data) < channels:
            rule = f"must hold one number a channel, {channels}"
            raise MPSArgumentError(who, "neuron data", rule, f"{len(self.data)} number(s)")
        return np.array(self.data[:channels], np.float32)


def _neuron_type(who: str, argument: str, value: object) -> MPSCNNNeuronType:
    """A neuron; COUNT is none."""
    rule = "must be a neuron of MPSCNNNeuronType"
    found = member(who, argument, MPSCNNNeuronType, value, rule)
    if found not in DEFAULT_PARAMETERS:
        raise MPSArgumentError(who, argument, rule, shown(value))
    return found


@name_arguments
class MPSNNNeuronDescriptor(NamedAttributes):
    """A neuron's type and parameters (MPSCNNNeuron.h, macOS 10.13.4).

    ==============  ==================================  =============================
    type            f(x)                                a, b, c by default
    ==============  ==================================  =============================
    NONE            x
    RELU            x >= 0 ? x : a x                    0
    LINEAR          a x + b                             1, 0
    SIGMOID         1 / (1 + exp(-x))
    HARD_SIGMOID    clamp(a x + b, 0, 1)                0.2, 0.5
    TANH            a tanh(b x)                         1, 1
    ABSOLUTE        abs(x)
    SOFT_PLUS       a log(1 + exp(b x))                 1, 1
    SOFT_SIGN       x / (1 + abs(x))
    ELU             x >= 0 ? x : a (exp(x) - 1)         1
    PRELU           x >= 0 ? x : data[channel] x        ``data``, one number a channel
    RELU_N          min(x >= 0 ? x : a x, b)            1, 6
    POWER           (a x + b) ^ c                       1, 0, 1
    EXPONENTIAL     c ^ (a x + b), e if c = -1          1, 0, -1
    LOGARITHM       log_c(a x + b), e if c = -1         1, 0, -1
    GELU            x / 2 (1 + erf(x / sqrt 2))
    ==============  ==================================  =============================

    Without a type it is PRELU if there is ``data``, else NONE.

    Raises:
        MPSArgumentError: No such neuron, a parameter is no number of float32, PReLU comes without ``data``, or another
            neuron with some.
    """

    _attribute_checks = {"neuron_type": _neuron_type}  # noqa: RUF012
    neuron_type: MPSCNNNeuronType
    """Which function."""
    a: float
    """Parameter a of the function."""
    b: float
    """Parameter b of the function."""
    c: float
    """Parameter c of the function."""
    data: FloatArray | None
    """PReLU's parameter a, one number a channel."""

    cnn_neuron_descriptor = Factory("cnnNeuronDescriptorWithType:a:b:c:")

    def __init__(
        self,
        type: MPSCNNNeuronType | None = None,
        a: float | None = None,
        b: float | None = None,
        c: float | None = None,
        *,
        data: Sequence[float] | NDArray[Any] | bytes | None = None,
    ) -> None:
        if type is None:
            type = MPSCNNNeuronType.NONE if data is None else MPSCNNNeuronType.PRELU
        self.neuron_type = _neuron_type("MPSNNNeuronDescriptor", "type", type)
        defaults = DEFAULT_PARAMETERS[self.neuron_type]
        self.a = _number("a", defaults[0] if a is None else a)
        self.b = _number("b", defaults[1] if b is None else b)
        self.c = _number("c", defaults[2] if c is None else c)
        self.data = _data(data)
        if self.data is not None and self.neuron_type is not MPSCNNNeuronType.PRELU:
            rule, got = "must be None: only PRELU reads it", f"{self.data.size} number(s) for {self.neuron_type.name}"
            raise MPSArgumentError("MPSNNNeuronDescriptor", "data", rule, got, "Leave it out, or make the type PRELU")
        if self.neuron_type is MPSCNNNeuronType.PRELU and (self.data is None or self.data.size == 0):
            raise MPSArgumentError("MPSNNNeuronDescriptor", "data", "must give PReLU's a for each channel", data)

    @classmethod
    def cnn_neuron_prelu_descriptor(cls, data: Sequence[float] | NDArray[Any] | bytes) -> Self:
        """That of a PReLU, with parameter a of each channel."""
        return cls(MPSCNNNeuronType.PRELU, data=data)

    def copy(self) -> MPSNNNeuronDescriptor:
        """A descriptor of its own with the same values; data that its neuron does not read stay behind."""
        return self.parameters().descriptor()

    __copy__ = copy

    def parameters(self) -> NeuronParameters:
        """The values as they are now."""
        data = None if self.data is None else tuple(self.data.tolist())
        return NeuronParameters(self.neuron_type, self.a, self.b, self.c, data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MPSNNNeuronDescriptor):
            return NotImplemented
        mine = (self.neuron_type, self.a, self.b, self.c)
        same = mine == (other.neuron_type, other.a, other.b, other.c)
        return same and np.array_equal(_none_as_empty(self.data), _none_as_empty(other.data))

    # Descriptors change: they are no keys.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        data = f", data of {self.data.size}" if self.data is not None else ""
        return f"MPSNNNeuronDescriptor({self.neuron_type.name}, a={self.a}, b={self.b}, c={self.c}{data})"


def _none_as_empty(data: FloatArray | None) -> FloatArray:
    return np.empty(0, np.float32) if data is None else data


def _number(name: str, value: float) -> float:
    try:
        return number("MPSNNNeuronDescriptor", name, value)
    except MPSTypeError as cause:
        raise MPSArgumentError(cause.who, name, cause.rule, cause.got) from cause


def _data(data: Sequence[float] | NDArray[Any] | bytes | None) -> FloatArray | None:
    """A copy of the numbers; raw bytes are float32."""
    if data is None:
        return None
    array = numbers("MPSNNNeuronDescriptor", "data", data)
    rule = "must be float32 numbers in a row, one a channel"
    return row("MPSNNNeuronDescriptor", "data", array, array.size, rule)
