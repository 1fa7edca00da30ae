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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
        """The neuron of ``x``; ``x`` itself where there is none."""
        return x if self.kind is MPSCNNNeuronType.NONE else neuron(x, *self)

    def applied(self) -> Callable[[Tensor], Tensor]:
        """The same, for as many calls as a sequence has steps: the engine's function where it is that."""
        if self.kind is MPSCNNNeuronType.SIGMOID:
            return torch.sigmoid
        if self.kind is MPSCNNNeuronType.TANH and self.a == self.b == 1.0:
            return torch.tanh
        return self

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient with respect to ``x``."""
        if self.kind is MPSCNNNeuronType.NONE:
            return gradient
        return neuron_gradient(gradient.contiguous(), x.contiguous(), *self)


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
        if rows == len(self.hidden):
            return self
        return State(self.hidden[:rows], None if self.memory is None else self.memory[:rows])

    def behind(self, step: State) -> State:
        """That of all rows behind a step of the first ones."""
        count = len(step.hidden)
        if count == len(self.hidden):
            return step
        memory = None
        if self.memory is not None and step.memory is not None:
            memory = torch.cat((step.memory, self.memory[count:]))
        return State(torch.cat((step.hidden, self.hidden[count:])), memory)


Stepper = Callable[[Tensor, State], State]
"""One step: what gates get of the source, to which what they get of the state is added in place, and the state."""
Adder = Callable[[Tensor, Tensor], object]
"""Adds a product with weights to sums, in place."""


def _of_channels(numbers: Tensor, x: Tensor) -> Tensor:
    """A number a channel, to be taken with ``x``."""
    return numbers if x.dim() == 2 else numbers.view(-1, 1, 1)


def _correlated(x: Tensor, kernels: Tensor, biases: Tensor | None = None) -> Tensor:
    """A convolution whose result is as large as the image."""
    from openmps.ops.convolution.convolution import convolution  # layers over matrices need none of it

    (_, _, height, width), (_, high, wide, _) = x.shape, kernels.shape
    return convolution(x, kernels, biases, Window(y=Axis(height, height, high), x=Axis(width, width, wide)))


def _add_number_by_number(weights: Tensor, sums: Tensor, x: Tensor) -> None:
    size = x.shape[1]
    factors = weights.view(-1, size, *[1] * (x.dim() - 2))
    sums.unflatten(1, (-1, size)).addcmul_(x.unsqueeze(1), factors)


_MANY_STEPS = 8
"""For more it pays on the CPU to transpose a matrix that each of them multiplies with."""


def adder(weights: Tensor | None, steps: int) -> Adder:
    """Adds the product of ``x`` by weights, in so many steps: matrices, kernels, or vectors of one or several gates."""
    if weights is None:
        return lambda sums, x: None
    if weights.dim() == 1:
        return partial(_add_number_by_number, weights)
    if weights.dim() == 4:
        return lambda sums, x: sums.add_(_correlated(x, weights))
    transposed = weights.t()
    if steps > _MANY_STEPS and weights.device.type == "cpu":
        transposed = transposed.contiguous()
    return lambda sums, x: sums.addmm_(x, transposed)


def part(stacked: Tensor | None, first: int, last: int, size: int) -> Tensor | None:
    """The weights of some gates."""
    return None if stacked is None else stacked[first * size : last * size]


@dataclass(frozen=True, slots=True)
class SingleGate:
    """The cell of a single gate."""

    activation: Activation
    gates = 1
    has_memory = False

    def stepper(self, given: Parameters, size: int, steps: int) -> Stepper:
        """The steps of a sequence."""
        add, act = adder(given.states, steps), self.activation

        def step(gates: Tensor, state: State) -> State:
            add(gates, state.hidden)
            return State(act(gates))

        return step


@dataclass(frozen=True, slots=True)
class Gru:
    """The cell of gated recurrent units; gates in the order z, r, h."""

    activations: tuple[Activation, Activation, Activation]
    p: float = 1.0
    is_flipped: bool = False
    gates = 3
    has_memory = False

    def stepper(self, given: Parameters, size: int, steps: int) -> Stepper:
        """The steps of a sequence."""
        add_gates, add_reset = (
            adder(part(given.states, 0, 2, size), steps),
            adder(part(given.states, 2, 3, size), steps),
        )
        add_scaled = adder(given.memories, steps)
        to_z, to_r, to_h = (each.applied() for each in self.activations)

        def step(gates: Tensor, state: State) -> State:
            h0, (both, candidate) = state.hidden, gates.split((2 * size, size), 1)
            add_gates(both, h0)
            z, r = both.split(size, 1)
            z, r = to_z(z), to_r(r)
            add_reset(candidate, r * h0)
            if given.memories is not None:
                add_scaled(candidate, z * h0)
            h = to_h(candidate)
            if self.p == 1:
                return State(torch.lerp(h0, h, z) if self.is_flipped else torch.lerp(h, h0, z))
            kept, made = (h, h0) if self.is_flipped else (h0, h)
            return State(self.rest(z) * made + z * kept)

        return step

    def rest(self, z: Tensor) -> Tensor:
        """``(1 - z^p)^(1/p)``."""
        return 1 - z if self.p == 1 else (1 - z**self.p) ** (1 / self.p)

    def rest_slope(self, z: Tensor) -> Tensor:
        """The derivative of `rest`; 0 at its poles."""
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

    def stepper(self, given: Parameters, size: int, steps: int) -> Stepper:
        """The steps of a sequence."""
        add, has_peepholes = adder(given.states, steps), given.memories is not None
        add_before, add_after = (
            adder(part(given.memories, 0, 3, size), steps),
            adder(part(given.memories, 3, 4, size), steps),
        )
        to_i, to_f, to_c, to_o = (each.applied() for each in self.activations)
        to_output = self.output.applied()

        def step(gates: Tensor, state: State) -> State:
            h0, c0 = state
            assert c0 is not None
            add(gates, h0)
            if has_peepholes:
                add_before(gates[:, : 3 * size], c0)
            i, f, c, o = gates.split(size, 1)
            c1 = torch.addcmul(to_f(f) * c0, to_i(i), to_c(c))
            if has_peepholes:
                add_after(o, c1)
            return State(to_o(o) * to_output(c1), c1)

        return step


RecurrentCell = SingleGate | Gru | Lstm


def project(x: Tensor, given: Parameters, gates: int) -> Tensor:
    """What gates get of sources: ``W x + b``, or ``x + b`` for each; in memory of its own."""
    if given.inputs is None:
        copies = torch.cat([x] * gates, 1)
        return copies if given.biases is None else copies.add_(_of_channels(given.biases, x))
    if x.dim() > 2:
        return _correlated(x, given.inputs, given.biases)
    return torch.nn.functional.linear(x, given.inputs, given.biases)


def starts(rows: Sequence[int]) -> list[int]:
    """Where the rows of each step begin."""
    return [0, *accumulate(rows[:-1])]


def forward(
    cell: RecurrentCell, gates: Tensor, rows: Sequence[int], state: State, given: Parameters, *, backward: bool = False
) -> Iterator[tuple[int, State, State]]:
    """Steps in the order in which they run: the number, the state of all rows behind it, and that of its own rows.

    ``gates`` is what gates get of the sources, the rows of all steps, the first step's first; it becomes what neurons
    of gates are applied to. ``backward`` begins with the last step.
    """
    step = cell.stepper(given, state.hidden.shape[1], len(rows))
    parts = gates.split(list(rows))
    for t in reversed(range(len(rows))) if backward else range(len(rows)):
        made = step(parts[t], state.first(rows[t]))
        state = state.behind(made)
        yield t, state, made
