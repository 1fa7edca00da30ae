"""Activations, arithmetic and comparison nodes, soft-max and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from encoding import Bench, run
from node_cases.case import Array, Case, NotExpressible, along, flat, numeric
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.kernels import arithmetic as kernels
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.neuron import MPSCNNNeuron
from openmps.types import MPSCNNNeuronType, MPSNNComparisonType

Type = MPSCNNNeuronType


def activation(kind: Type, parameters: Callable[[Case], tuple[float, ...]] = lambda case: ()) -> Any:
    """A neuron with the numbers that the node's attributes give."""

    def adapter(case: Case, bench: Bench) -> list[Array]:
        x = case.tensor(0)
        neuron = MPSCNNNeuron(bench.device, MPSNNNeuronDescriptor(kind, *parameters(case)))
        return [run(bench, neuron, [bench.image(flat(x))]).reshape(x.shape)]

    return adapter


def prelu(case: Case, bench: Bench) -> list[Array]:
    """The axes that the slopes run over become channels."""
    x, slope = case.tensor(0), case.tensor(1)
    own = slope.reshape([n for n in slope.shape if n > 1] or [1])
    if x.shape[x.ndim - own.ndim :] != own.shape:
        raise NotExpressible("slopes along an axis that is not the last")
    neuron = MPSCNNNeuron(bench.device, MPSNNNeuronDescriptor(Type.PRELU, data=numeric(own).ravel()))
    pixels = numeric(x).reshape(1, -1, own.size).transpose(0, 2, 1)[:, :, None]
    found = run(bench, neuron, [bench.image(pixels)])
    return [found[0, :, 0].T.reshape(x.shape)]


def gelu(case: Case, bench: Bench) -> list[Array]:
    if case.get("approximate", "none") != "none":
        raise NotExpressible("the tanh approximation: the framework's GeLU is the exact one")
    return activation(Type.GELU)(case, bench)


def power(case: Case, bench: Bench) -> list[Array]:
    exponent = case.tensor(1)
    if exponent.size != 1:
        raise NotExpressible("an exponent for each element: the Power neuron has one")
    return activation(Type.POWER, lambda case: (1.0, 0.0, float(exponent.ravel()[0])))(case, bench)


def clip(case: Case, bench: Bench) -> list[Array]:
    """x + 0, clamped."""
    x = case.tensor(0)
    kernel = kernels.MPSCNNAdd(bench.device)
    low, high = case.input(1), case.input(2)
    if low is not None and high is not None and low > high:
        raise NotExpressible("a minimum above the maximum: an arithmetic kernel's limits stand in order")
    kernel.minimum_value = float(low) if low is not None else kernel.minimum_value
    kernel.maximum_value = float(high) if high is not None else kernel.maximum_value
    pixels = flat(x)
    return [run(bench, kernel, [bench.image(pixels), bench.image(np.zeros_like(pixels))]).reshape(x.shape)]


# --- two operands --------------------------------------------------------------------------------------------------


def arithmetic(kind: str) -> Any:
    def adapter(case: Case, bench: Bench) -> list[Array]:
        x, y = case.tensor(0), case.tensor(1)
        if x.dtype.kind in "iu" and kind == "MPSCNNDivide":
            raise NotExpressible("a division of whole numbers, which drops the fraction: images hold real numbers")
        return [_of_two(getattr(kernels, kind)(bench.device), x, y, bench)]

    return adapter


def comparison(kind: MPSNNComparisonType) -> Any:
    def adapter(case: Case, bench: Bench) -> list[Array]:
        kernel = kernels.MPSNNCompare(bench.device)
        kernel.comparison_type = kind
        return [_of_two(kernel, case.tensor(0), case.tensor(1), bench) != 0]

    return adapter


def _of_two(kernel: Any, x: Array, y: Array, bench: Bench) -> Array:
    """Two tensors of one shape; or the second of the shape of the first's last axes, which become channels."""
    if x.shape == y.shape:
        return run(bench, kernel, [bench.image(flat(x)), bench.image(flat(y))]).reshape(x.shape)
    if x.shape[x.ndim - y.ndim :] != y.shape:
        raise NotExpressible("broadcast along axes that are not the first")
    pixels = numeric(x).reshape(1, -1, y.size).transpose(0, 2, 1)[:, :, None]
    kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
    found = run(bench, kernel, [bench.image(pixels), bench.image(numeric(y).reshape(1, -1, 1, 1))])
    return found[0, :, 0].T.reshape(x.shape)


# --- along an axis -------------------------------------------------------------------------------------------------


def softmax(kind: Any) -> Any:
    def adapter(case: Case, bench: Bench) -> list[Array]:
        x = case.tensor(0)
        axis = int(case.get("axis", -1))
        return [run(bench, kind(bench.device), [bench.image(along(x, axis))]).reshape(x.shape)]

    return adapter


def dropout(case: Case, bench: Bench) -> list[Array]:
    """In training, unless nothing is dropped, the mask is ONNX's own; in inference a network has no dropout."""
    training = case.input(2)
    ratio = case.input(1)
    dropped = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training):
        raise NotExpressible("inference: a network for inference has no dropout kernel")
    if dropped:
        raise NotExpressible("a random mask: each implementation draws its own")
    x = case.tensor(0)
    found = run(bench, MPSCNNDropout(bench.device, keep_probability=1.0), [bench.image(flat(x))]).reshape(x.shape)
    return [found, np.ones(x.shape, bool)][: len(case.outputs)]
