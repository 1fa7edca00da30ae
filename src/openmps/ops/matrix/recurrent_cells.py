"""Recurrent layers over sequences of vectors, which are rows, or of images (MPSRNNLayer.h, macOS 10.13; some 10.14).

With x a step's source, h0 and c0 the state before it, ``.`` a product number by number and g the neuron of a gate:

single gate  h1 = g(W x + U h0 + b)
GRU          z = g(Wz x + Uz h0 + bz), r = g(Wr x + Ur h0 + br), h = g(Wh x + Uh (r . h0) + Vh (z . h0) + bh),
             h1 = (1 - z^p)^(1/p) . h + z . h0; flipped (1 - z^p)^(1/p) . h0 + z . h
LSTM         i = g(Wi x + Ui h0 + Vi c0 + bi), f and c alike, c1 = f . c0 + i . c,
             o = g(Wo x + Uo h0 + Vo c1 + bo), h1 = o . g(c1)

Gates stand one behind the other: weights of inputs are ``[gates n, inputs]``, of states ``[gates n, n]``, biases
``[gates n]``. The rows of all steps stand one behind the other, too, so that what does not depend on the state is one
product. Later steps may have fewer rows: a row that ends keeps its state.

In layers over images, which have no gradients, weights are kernels of convolutions, ``[gates n, height, width, n]``,
whose middle is the pixel that the result is for, with zeros around the image; diagonal ones are those of every pixel.
A vector ``[rows, n]`` is an image ``[images, n, height, width]`` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window
from openmps.ops.pointwise.neuron import neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType


class Activation(NamedTuple):
    """A neuron of a gate."""

    kind: MPSCNNNeuronType = MPSCNNNeuronType.NONE
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """The neuron of ``x``."""
        return x if self.kind is MPSCNNNeuronType.NONE else neuron(x, self.kind, self.a, self.b, self.c)

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient with respect to ``x``."""
        if self.kind is MPSCNNNeuronType.NONE:
            return gradient
        return neuron_gradient(gradient.contiguous(), x.contiguous(), self.kind, self.a, self.b, self.c)


class Parameters(NamedTuple):
    """Of all gates, as the head of this file says; None stands for zeros."""

    inputs: Tensor | None
    """None where each gate gets the source itself: the unit transform."""
    states: Tensor | None
    biases: Tensor | None
    memories: Tensor | None = None
    """Weights of peepholes ``[gates n, n]``, or ``[gates n]`` where they are diagonal; of a GRU Vh ``[n, n]``."""


class State(NamedTuple):
    """What a step leaves for the next one: ``[rows, n]`` each; ``memory`` is that of an LSTM."""

    hidden: Tensor
    memory: Tensor | None = None

    def first(self, rows: int) -> State:
        """That of the first rows."""
        return State(self.hidden[:rows], None if self.memory is None else self.memory[:rows])


class Steps(NamedTuple):
    """What the gradient needs of some steps, the rows of all of them one behind the other."""

    gates: Tensor
    """What neurons of gates are applied to, ``[rows, gates n]``."""
    hidden: Tensor
    """h0."""
    before: Tensor | None
    """c0."""
    after: Tensor | None
    """c1."""

    def rows(self, part: slice) -> Steps:
        """Some of the rows."""
        memories = [None if each is None else each[part] for each in (self.before, self.after)]
        return Steps(self.gates[part], self.hidden[part], *memories)


class Step(NamedTuple):
    """One step: h1, and what its gradient needs."""

    hidden: Tensor
    gates: Tensor
    memory: Tensor | None


class StepGradient(NamedTuple):
    """Gradients of one step: with respect to what neurons of gates are applied to, and to the state before it."""

    gates: Tensor
    hidden: Tensor
    memory: Tensor | None


def _part(stacked: Tensor | None, gate: int, size: int) -> Tensor | None:
    return None if stacked is None else stacked[gate * size : (gate + 1) * size]


def _of_channels(numbers: Tensor, x: Tensor) -> Tensor:
    """A number a channel, to be taken with ``x``."""
    return numbers if x.dim() == 2 else numbers.view(-1, 1, 1)


def _product(x: Tensor, weights: Tensor | None) -> Tensor:
    """``x`` by the transpose of weights; of a vector of weights number by number; of kernels a convolution."""
    if weights is None:
        return torch.zeros_like(x)
    if weights.dim() == 1:
        return x * _of_channels(weights, x)
    return x @ weights.T if x.dim() == 2 else _correlated(x, weights)


def _correlated(x: Tensor, kernels: Tensor, biases: Tensor | None = None) -> Tensor:
    """A convolution whose result is as large as the image."""
    from openmps.ops.convolution.convolution import convolution  # layers over matrices need none of it

    (_, _, height, width), (_, high, wide, _) = x.shape, kernels.shape
    return convolution(x, kernels, biases, Window(y=Axis(height, height, high), x=Axis(width, width, wide)))


def _plus_product(sums: Tensor, x: Tensor, weights: Tensor | None) -> Tensor:
    """``sums`` and the product of ``x``; ``sums`` themselves where there are no weights."""
    if weights is None:
        return sums
    return torch.addmm(sums, x, weights.T) if x.dim() == 2 else sums + _correlated(x, weights)


def _back(gradient: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.zeros_like(gradient)
    return gradient * weights if weights.dim() == 1 else gradient @ weights


@dataclass(frozen=True, slots=True)
class SingleGate:
    """The cell of a single gate."""

    activation: Activation
    gates = 1
    has_memory = False

    def step(self, projected: Tensor, state: State, given: Parameters) -> Step:
        """One step; ``projected`` is what follows from the source."""
        x = _plus_product(projected, state.hidden, given.states)
        return Step(self.activation(x), x, None)

    def back(self, gradient: Tensor, memory: Tensor | None, at: Steps, given: Parameters) -> StepGradient:
        """The gradient of one step; ``gradient`` is that of h1, ``memory`` that of c1."""
        a = self.activation.back(gradient, at.gates)
        return StepGradient(a, _back(a, given.states), None)


@dataclass(frozen=True, slots=True)
class Gru:
    """The cell of gated recurrent units; gates in the order z, r, h."""

    activations: tuple[Activation, Activation, Activation]
    p: float = 1.0
    is_flipped: bool = False
    gates = 3
    has_memory = False

    def step(self, projected: Tensor, state: State, given: Parameters) -> Step:
        """One step; see `SingleGate.step`."""
        h0, n = state.hidden, state.hidden.shape[1]
        gates = projected.clone()
        if given.states is not None:
            gates[:, : 2 * n] += _product(h0, given.states[: 2 * n])
        z, r = self.activations[0](gates[:, :n]), self.activations[1](gates[:, n : 2 * n])
        candidate = gates[:, 2 * n :]
        candidate += _product(r * h0, _part(given.states, 2, n))
        candidate += _product(z * h0, given.memories)
        h = self.activations[2](candidate)
        kept, made = (h, h0) if self.is_flipped else (h0, h)
        return Step(self._rest(z) * made + z * kept, gates, None)

    def back(self, gradient: Tensor, memory: Tensor | None, at: Steps, given: Parameters) -> StepGradient:
        """The gradient of one step; see `SingleGate.back`."""
        h0, n = at.hidden, at.hidden.shape[1]
        x, u = [at.gates[:, k * n : (k + 1) * n] for k in range(3)], [_part(given.states, k, n) for k in range(3)]
        z, r, h = (act(each) for act, each in zip(self.activations, x, strict=True))
        rest, slope = self._rest(z), self._rest_slope(z)
        kept, made = (h, h0) if self.is_flipped else (h0, h)
        to_z, to_h = gradient * (made * slope + kept), gradient * (z if self.is_flipped else rest)
        to_h0 = gradient * (rest if self.is_flipped else z)
        ah = self.activations[2].back(to_h, x[2])
        to_reset, to_scaled = _back(ah, u[2]), _back(ah, given.memories)
        az = self.activations[0].back(to_z + to_scaled * h0, x[0])
        ar = self.activations[1].back(to_reset * h0, x[1])
        to_h0 = to_h0 + to_reset * r + to_scaled * z + _back(az, u[0]) + _back(ar, u[1])
        return StepGradient(torch.cat((az, ar, ah), 1), to_h0, None)

    def _rest(self, z: Tensor) -> Tensor:
        return 1 - z if self.p == 1 else (1 - z**self.p) ** (1 / self.p)

    def _rest_slope(self, z: Tensor) -> Tensor:
        """The derivative of `_rest`; 0 at its poles."""
        if self.p == 1:
            return torch.full_like(z, -1)
        slope = -(z ** (self.p - 1)) * (1 - z**self.p) ** (1 / self.p - 1)
        return slope.where(slope.isfinite() | slope.isnan(), 0)


@dataclass(frozen=True, slots=True)
class Lstm:
    """The cell of long short-term memory; gates in the order i, f, c, o."""

    activations: tuple[Activation, Activation, Activation, Activation]
    output: Activation
    """Of the memory, on its way out."""
    gates = 4
    has_memory = True

    def step(self, projected: Tensor, state: State, given: Parameters) -> Step:
        """One step; see `SingleGate.step`."""
        c0, n = state.memory, state.hidden.shape[1]
        assert c0 is not None
        x = _plus_product(projected, state.hidden, given.states)
        if given.memories is not None:
            x = x.clone() if x is projected else x
            x[:, : 3 * n] += _peeped(c0, given.memories[: 3 * n])
        i, f, c = (act(x[:, k * n : (k + 1) * n]) for k, act in enumerate(self.activations[:3]))
        c1 = torch.addcmul(f * c0, i, c)
        if given.memories is not None:
            x[:, 3 * n :] += _product(c1, given.memories[3 * n :])
        return Step(self.activations[3](x[:, 3 * n :]) * self.output(c1), x, c1)

    def back(self, gradient: Tensor, memory: Tensor | None, at: Steps, given: Parameters) -> StepGradient:
        """The gradient of one step; see `SingleGate.back`."""
        c0, c1, n = at.before, at.after, at.hidden.shape[1]
        assert c0 is not None
        assert c1 is not None
        assert memory is not None
        x, v = [at.gates[:, k * n : (k + 1) * n] for k in range(4)], [_part(given.memories, k, n) for k in range(4)]
        i, f, c, o = (act(each) for act, each in zip(self.activations, x, strict=True))
        ao = self.activations[3].back(gradient * self.output(c1), x[3])
        to_memory = self.output.back(gradient * o, c1) + memory + _back(ao, v[3])
        given_to = (to_memory * c, to_memory * c0, to_memory * i)
        others = [
            act.back(each, source) for act, each, source in zip(self.activations[:3], given_to, x[:3], strict=True)
        ]
        to_c0 = to_memory * f
        for each, weights in zip(others, v[:3], strict=True):
            to_c0 = to_c0 + _back(each, weights)
        a = torch.cat((*others, ao), 1)
        to_h0 = torch.zeros_like(c0) if given.states is None else a @ given.states
        return StepGradient(a, to_h0, to_c0)


def _peeped(memory: Tensor, weights: Tensor) -> Tensor:
    """What gates see of a memory."""
    if weights.dim() > 1:
        return _product(memory, weights)
    return (memory.unsqueeze(1) * weights.view(-1, memory.shape[1], *[1] * (memory.dim() - 2))).flatten(1, 2)


RecurrentCell = SingleGate | Gru | Lstm


def project(x: Tensor, given: Parameters, gates: int) -> Tensor:
    """What gates get of sources: ``W x + b``, or ``x + b`` for each."""
    if given.inputs is None:
        copies = torch.cat([x] * gates, 1)
        return copies if given.biases is None else copies + _of_channels(given.biases, x)
    if x.dim() > 2:
        return _correlated(x, given.inputs, given.biases)
    return torch.nn.functional.linear(x, given.inputs, given.biases)


def starts(rows: Sequence[int]) -> list[int]:
    """Where the rows of each step begin."""
    return [0, *accumulate(rows[:-1])]


def forward(
    cell: RecurrentCell, x: Tensor, rows: Sequence[int], state: State, given: Parameters, *, backward: bool = False
) -> Iterator[tuple[int, State, Step]]:
    """Steps in the order in which they run, each with the state of all rows behind it.

    ``x`` has the rows of all steps, the first step's first; ``backward`` begins with the last of them.
    """
    projected, firsts = project(x, given, cell.gates), starts(rows)
    hidden, memory = state
    for t in reversed(range(len(rows))) if backward else range(len(rows)):
        count = rows[t]
        made = cell.step(projected[firsts[t] : firsts[t] + count], State(hidden, memory).first(count), given)
        if count == len(hidden):
            hidden, memory = made.hidden, made.memory
        else:
            hidden = torch.cat((made.hidden, hidden[count:]))
            if memory is not None and made.memory is not None:
                memory = torch.cat((made.memory, memory[count:]))
        yield t, State(hidden, memory), made


def gradients(
    cell: RecurrentCell, gradient: Tensor, rows: Sequence[int], at: Steps, state: State, given: Parameters
) -> tuple[Tensor, list[State]]:
    """Of gates, for the rows of all steps, and of the state before each step; ``state`` is that of the last step's."""
    firsts, made = starts(rows), torch.empty_like(at.gates)
    hidden, memory = state
    before: list[State] = []
    for t in reversed(range(len(rows))):
        count, part = rows[t], slice(firsts[t], firsts[t] + rows[t])
        whole = gradient[part] + hidden[:count]
        found = cell.back(whole, None if memory is None else memory[:count], at.rows(part), given)
        made[part] = found.gates
        hidden = torch.cat((found.hidden, hidden[count:]))
        if memory is not None and found.memory is not None:
            memory = torch.cat((found.memory, memory[count:]))
        before.insert(0, State(hidden, memory))
    return made, before
