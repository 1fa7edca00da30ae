"""MPSNNNeuronDescriptor: defaults, data, errors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.neuron import DEFAULT_PARAMETERS, MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.runtime.binding import Constant
from openmps.types import MPSCNNNeuronType as Kind


def test_every_neuron_has_defaults() -> None:
    assert set(DEFAULT_PARAMETERS) == set(Kind) - {Kind.COUNT}
    made = MPSNNNeuronDescriptor(Kind.HARD_SIGMOID)
    assert (made.neuron_type, made.a, made.b, made.c, made.data) == (Kind.HARD_SIGMOID, 0.2, 0.5, 0.0, None)
    made = MPSNNNeuronDescriptor(Kind.POWER, b=2)
    assert (made.a, made.b, made.c) == (1.0, 2.0, 1.0)
    assert MPSNNNeuronDescriptor().neuron_type is Kind.NONE


@pytest.mark.parametrize(
    "data", [[0.25, -1.0], (0.25, -1.0), np.array([0.25, -1.0]), np.array([0.25, -1], np.float32).tobytes()]
)
def test_data_is_copied_as_float32(data: Any) -> None:
    made = MPSNNNeuronDescriptor(Kind.PRELU, data=data)
    assert made.data is not None
    assert (made.data.dtype, made.data.tolist()) == (np.float32, [0.25, -1.0])
    if isinstance(data, np.ndarray):
        data[0] = 9
        assert made.data[0] == 0.25


def test_copies_are_equal_and_their_own() -> None:
    made = MPSNNNeuronDescriptor(Kind.PRELU, data=[1.0, 2.0])
    for twin in (made.copy(), copy.copy(made)):
        assert twin == made
        twin.data[0] = 5
        assert twin != made
    assert made != MPSNNNeuronDescriptor(Kind.RELU)
    assert made != "descriptor"
    with pytest.raises(TypeError):
        hash(made)
    assert repr(made) == "MPSNNNeuronDescriptor(PRELU, a=0.0, b=0.0, c=0.0, data of 2)"


def test_slopes_of_the_first_channels(device: torch.device) -> None:
    made = MPSNNNeuronDescriptor(Kind.PRELU, data=[1.0, 2.0, 3.0]).parameters()
    slopes = made.slopes("Kernel", 2)
    assert slopes is not None
    on_device = Constant(slopes).on(device).value()
    assert on_device is not None
    assert (on_device.tolist(), on_device.device.type) == ([1.0, 2.0], device.type)
    assert MPSNNNeuronDescriptor(Kind.RELU).parameters().slopes("Kernel", 2) is None
    with pytest.raises(
        MPSArgumentError, match=r"Kernel: neuron data must hold one number a channel, 4, got 3 number\(s\)"
    ):
        made.slopes("Kernel", 4)


@in_one_test
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": 99}, "type must be a neuron of MPSCNNNeuronType, got 99"),
        ({"type": Kind.COUNT}, "type must be a neuron of MPSCNNNeuronType, got <MPSCNNNeuronType.COUNT"),
        ({"type": "relu"}, "type must be a neuron of MPSCNNNeuronType, got 'relu'"),
        ({"a": "x"}, "a must be a number, got 'x'"),
        ({"c": [1]}, "c must be a number, got [1]"),
        ({"type": Kind.PRELU}, "data must give PReLU's a for each channel"),
        ({"type": Kind.PRELU, "data": []}, "data must give PReLU's a for each channel"),
        ({"data": b"abc"}, "data must be whole float32 numbers, got 3 bytes"),
        ({"data": np.ones((2, 3))}, "data must be float32 numbers in a row, one a channel, got shape (2, 3)"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MPSArgumentError) as caught:
        MPSNNNeuronDescriptor(**options)
    assert str(caught.value).startswith("MPSNNNeuronDescriptor: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [1e39, 10**400, "x"])
def test_what_is_changed_is_checked_at_once(value: Any) -> None:
    made = MPSNNNeuronDescriptor(Kind.RELU, 0.5)
    with pytest.raises((MPSArgumentError, MPSTypeError), match="^MPSNNNeuronDescriptor: a must be a number"):
        made.a = value
    assert made.a == 0.5
