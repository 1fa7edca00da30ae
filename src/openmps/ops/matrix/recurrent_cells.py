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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window
from openmps.ops.matrix.products import product_of_rows, repeated_product
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

    @property
    def has_slope_of_result(self) -> bool:
        """Whether its slope follows from its result."""
        return self.kind in _PLAIN and (self.kind is not MPSCNNNeuronType.TANH or self.a == self.b == 1.0)

    def applied(self, *, in_place: bool = False) -> Callable[[Tensor], Tensor]:
        """The same, for as many calls as a sequence has steps; in place where `has_slope_of_result`."""
        if not self.has_slope_of_result:
            return self
        return _PLAIN[self.kind].in_place if in_place else _PLAIN[self.kind].function

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient with respect to ``x``."""
        if self.kind is MPSCNNNeuronType.NONE:
            return gradient
        return neuron_gradient(gradient.contiguous(), x.contiguous(), *self)

    def back_from(self, gradient: Tensor, result: Tensor) -> Tensor:
        """The same by the result of the neuron, where `has_slope_of_result`."""
        return _PLAIN[self.kind].back_from(gradient, result)


class _Plain(NamedTuple):
    """A neuron of the engine's, whose slope follows from its result."""

    function: Callable[[Tensor], Tensor]
    in_place: Callable[[Tensor], Tensor]
    back_from: Callable[[Tensor, Tensor], Tensor]
    """The gradient by that of the result, and the result."""


def _same(x: Tensor) -> Tensor:
    return x


def _gradient_itself(gradient: Tensor, _: Tensor) -> Tensor:
    return gradient


_aten: Any = torch.ops.aten
_PLAIN: dict[MPSCNNNeuronType, _Plain] = {
    MPSCNNNeuronType.NONE: _Plain(_same, _same, _gradient_itself),
    MPSCNNNeuronType.SIGMOID: _Plain(torch.sigmoid, torch.sigmoid_, _aten.sigmoid_backward.default),
    MPSCNNNeuronType.TANH: _Plain(torch.tanh, torch.tanh_, _aten.tanh_backward.default),
}
"""TANH where a and b are 1."""


class Neurons(tuple[Activation, ...]):
    """Those of the gates of a cell, and what a layer keeps of them for the gradient.

    Where every slope follows from the result of the neuron, that is the results, which are made in place; else what the
    neurons are applied to.
    """

    __slots__ = ()

    @property
    def keep_results(self) -> bool:
        """Whether results are kept."""
        return all(each.has_slope_of_result for each in self)

    def applied(self) -> list[Callable[[Tensor], Tensor]]:
        """One function a gate."""
        in_place = self.keep_results
        return [each.applied(in_place=in_place) for each in self]

    def results(self, kept: Sequence[Tensor]) -> list[Tensor]:
        """What gates gave, by what is kept of each."""
        return [self.result(gate, kept) for gate in range(len(self))]

    def result(self, gate: int, kept: Sequence[Tensor]) -> Tensor:
        """The same of one gate."""
        return kept[gate] if self.keep_results else self[gate](kept[gate])

    def back(self, gate: int, gradient: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The gradient with respect to what the neuron of a gate is applied to, by that of its result."""
        act = self[gate]
        return act.back_from(gradient, kept[gate]) if self.keep_results else act.back(gradient, kept[gate])


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
        if rows == self.hidden.shape[0]:
            return self
        return State(self.hidden[:rows], None if self.memory is None else self.memory[:rows])

    def behind(self, step: State) -> State:
        """That of all rows behind a step of the first ones."""
        count = step.hidden.shape[0]
        if count == self.hidden.shape[0]:
            return step
        memory = None
        if self.memory is not None and step.memory is not None:
            memory = torch.cat((step.memory, self.memory[count:]))
        return State(torch.cat((step.hidden, self.hidden[count:])), memory)


Held = tuple[Tensor, Tensor | None]
"""A `State`, or two tensors: of a step of few rows, to make one takes as long as an operation."""
Stepper = Callable[[Sequence[Tensor], Held, Held], None]
"""One step: what gates get of the source, in the parts that the cell names, to which what they get of the state is
added in place; the state before the step, and the one behind it, which is filled."""
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


def adder(weights: Tensor | None, rows: Sequence[int]) -> Adder:
    """Adds the product of ``x`` by weights, in steps of so many rows: matrices, kernels, or vectors of gates."""
    if weights is None:
        return lambda sums, x: None
    if weights.dim() == 1:
        return partial(_add_number_by_number, weights)
    if weights.dim() == 4:
        return lambda sums, x: sums.add_(_correlated(x, weights))
    return repeated_product(weights, rows[0], len(rows))


def part(stacked: Tensor | None, first: int, last: int, size: int) -> Tensor | None:
    """The weights of some gates."""
    return None if stacked is None else stacked[first * size : last * size]


@dataclass(frozen=True, slots=True)
class SingleGate:
    """The cell of a single gate."""

    activation: Activation
    gates = 1
    has_memory = False

    @property
    def neurons(self) -> Neurons:
        """Those of its gates."""
        return Neurons((self.activation,))

    def parts(self, gates: Tensor, size: int) -> Sequence[Tensor]:
        """Of what gates get, what a step takes."""
        return (gates,)

    def stepper(self, given: Parameters, size: int, rows: Sequence[int]) -> Stepper:
        """The steps of a sequence."""
        add, (act,) = adder(given.states, rows), self.neurons.applied()

        def step(parts: Sequence[Tensor], before: Held, behind: Held) -> None:
            (gates,) = parts
            add(gates, before[0])
            behind[0].copy_(act(gates))

        return step


@dataclass(frozen=True, slots=True)
class Gru:
    """The cell of gated recurrent units; gates in the order z, r, h."""

    activations: tuple[Activation, Activation, Activation]
    p: float = 1.0
    is_flipped: bool = False
    gates = 3
    has_memory = False

    @property
    def neurons(self) -> Neurons:
        """Those of its gates."""
        return Neurons(self.activations)

    def parts(self, gates: Tensor, size: int) -> Sequence[Tensor]:
        """Of what gates get, what a step takes: z and r together, then each gate's."""
        return gates[:, : 2 * size], *gates.split(size, 1)

    def stepper(self, given: Parameters, size: int, rows: Sequence[int]) -> Stepper:
        """The steps of a sequence."""
        add_gates, add_reset = (
            adder(part(given.states, 0, 2, size), rows),
            adder(part(given.states, 2, 3, size), rows),
        )
        add_scaled = adder(given.memories, rows)
        to_z, to_r, to_h = self.neurons.applied()
        are_alike = self.neurons.keep_results and self.activations[0] == self.activations[1]
        has_scaled, is_flipped, is_linear = given.memories is not None, self.is_flipped, self.p == 1

        def step(parts: Sequence[Tensor], before: Held, behind: Held) -> None:
            (both, z, r, candidate), (h0, _), (h1, _) = parts, before, behind
            add_gates(both, h0)
            if are_alike:
                to_z(both)
            else:
                z, r = to_z(z), to_r(r)
            add_reset(candidate, r * h0)
            if has_scaled:
                add_scaled(candidate, z * h0)
            h = to_h(candidate)
            kept, made = (h, h0) if is_flipped else (h0, h)
            if is_linear:
                torch.lerp(made, kept, z, out=h1)
            else:
                torch.addcmul(self.rest(z) * made, z, kept, out=h1)

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

    @property
    def neurons(self) -> Neurons:
        """Those of its gates."""
        return Neurons(self.activations)

    def parts(self, gates: Tensor, size: int) -> Sequence[Tensor]:
        """Of what gates get, what a step takes: all together, all but o, then each gate's."""
        return gates, gates[:, : 3 * size], *gates.split(size, 1)

    def stepper(self, given: Parameters, size: int, rows: Sequence[int]) -> Stepper:
        """The steps of a sequence."""
        add, has_peepholes = adder(given.states, rows), given.memories is not None
        add_before, add_after = (
            adder(part(given.memories, 0, 3, size), rows),
            adder(part(given.memories, 3, 4, size), rows),
        )
        to_i, to_f, to_c, to_o = self.neurons.applied()
        to_output = self.output.applied()

        def step(parts: Sequence[Tensor], before: Held, behind: Held) -> None:
            (gates, but_o, i, f, c, o), (h0, c0), (h1, c1) = parts, before, behind
            assert c0 is not None
            assert c1 is not None
            add(gates, h0)
            if has_peepholes:
                add_before(but_o, c0)
            torch.mul(to_f(f), c0, out=c1)
            c1.addcmul_(to_i(i), to_c(c))
            if has_peepholes:
                add_after(o, c1)
            torch.mul(to_o(o), to_output(c1), out=h1)

        return step


RecurrentCell = SingleGate | Gru | Lstm


def project(x: Tensor, given: Parameters, gates: int) -> Tensor:
    """What gates get of sources: ``W x + b``, or ``x + b`` for each; in memory of its own."""
    if given.inputs is None:
        copies = torch.cat([x] * gates, 1)
        return copies if given.biases is None else copies.add_(_of_channels(given.biases, x))
    if x.dim() > 2:
        return _correlated(x, given.inputs, given.biases)
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return product_of_rows(x, given.inputs, given.biases)
    return torch.nn.functional.linear(x, given.inputs, given.biases)


_SMALL = 1 << 18
"""Multiplications of a step for which one thread is enough: two, which wait for one another at each step, take from
0.8 to 1.7 of its time, or many times that beside a busy process."""


def has_small_steps(rows: int, weights: int) -> bool:
    """Whether steps of so many rows by so many numbers of weights are best done by one thread of the CPU."""
    return rows * weights <= _SMALL


def starts(rows: Sequence[int]) -> list[int]:
    """Where the rows of each step begin."""
    return [0, *accumulate(rows[:-1])]


class Run(NamedTuple):
    """What a run over a sequence leaves."""

    hidden: Tensor
    """h1, the rows of all steps."""
    memory: Tensor | None
    """c1 of a long short-term memory."""
    before: Sequence[Held]
    """The state before each step, of the rows that it has."""
    behind: Sequence[Held]
    """The state behind each step, of all rows, in the order in which steps run."""


def forward(
    cell: RecurrentCell, gates: Tensor, rows: Sequence[int], state: State, given: Parameters, *, backward: bool = False
) -> Run:
    """Run over a sequence.

    ``gates`` is what gates get of the sources, the rows of all steps, the first step's first; it becomes what is kept
    for the gradient, see `Neurons`. ``backward`` begins with the last step.
    """
    counts, size = list(rows), state.hidden.shape[1]
    step = cell.stepper(given, size, rows)
    hidden = torch.empty_like(gates[:, :size])
    memory = torch.empty_like(hidden) if cell.has_memory else None
    # A quarter faster than `split`, from which it differs where gradients are recorded alone.
    split = torch.unsafe_split_with_sizes
    parts = [*zip(*(split(each, counts) for each in cell.parts(gates, size)), strict=True)]
    hiddens, memories = split(hidden, counts), [None] * len(counts) if memory is None else split(memory, counts)
    held, order = [*zip(hiddens, memories, strict=True)], slice(None, None, -1 if backward else 1)
    before, behind = list[Held](), list[Held]()
    if counts == [len(state.hidden)] * len(counts):
        behind = held[order]
        before = [state, *behind[:-1]]
        for each, h0, h1 in zip(parts[order], before, behind, strict=True):
            step(each, h0, h1)
        return Run(hidden, memory, before[order], behind)
    for each, made in zip(parts[order], held[order], strict=True):
        before.append(state.first(len(made[0])))
        step(each, before[-1], made)
        state = state.behind(State(*made))
        behind.append(state)
    return Run(hidden, memory, before[order], behind)
