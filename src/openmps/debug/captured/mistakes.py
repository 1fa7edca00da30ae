"""Usual mistakes of an app's network, each as the layer that makes it: what gives the device's numbers is found so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.debug.captured.layers import WEIGHTS, Change, Layer
from openmps.ops.geometry import Axis, Window
from openmps.ops.layout.concatenation import Concatenate
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.op import Action, Op
from openmps.ops.pointwise.arithmetic import Combination
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.pointwise.softmax import LogSoftMax, SoftMax
from openmps.ops.pooling.pooling import AveragePooling
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_SIDES = {(0, -1): "left", (0, 1): "right", (-1, 0): "up", (1, 0): "down", (-1, -1): "up and left",
          (-1, 1): "up and right", (1, -1): "down and left", (1, 1): "down and right"}  # fmt: skip
"""Rows and columns."""
_ORDERS = ("HWIO", "OIHW", "IHWO", "IOHW", "HWOI")
_OWN = "OHWI"
_EPSILONS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 2e-5, 1e-4, 1e-3, 1e-2)
_NEURONS = {
    "ReLU": Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0),
    "ReLU6": Neuron(MPSCNNNeuronType.RELU_N, 0.0, 6.0, 0.0),
    **{f"leaky ReLU of slope {slope}": Neuron(MPSCNNNeuronType.RELU, slope, 0.0, 0.0)
       for slope in (0.01, 0.1, 0.2, 0.3)},
    "sigmoid": Neuron(MPSCNNNeuronType.SIGMOID, 0.0, 0.0, 0.0),
    "tanh": Neuron(MPSCNNNeuronType.TANH, 1.0, 1.0, 0.0),
}  # fmt: skip
Found = Iterator[tuple[str, Change]]


class Mistake(NamedTuple):
    """A usual mistake: its name, and what the device says and does where it was made."""

    name: str
    tries: Callable[[Layer], Found]


def _actions(layer: Layer, kind: type[Op]) -> Iterator[tuple[int, Action, Any]]:
    """The places of a kind of operation in a layer."""
    for place, action in enumerate(layer.actions):
        if isinstance(action.op, kind):
            yield place, action, action.op


def _with(op: Op, field: str) -> bool:
    return any(each.name == field for each in fields(op))


# --- windows ----------------------------------------------------------------------------------------------------------


def _windows(layer: Layer) -> Iterator[tuple[int, Any]]:
    for place, action, op in _actions(layer, Op):
        if isinstance(getattr(op, "window", None), Window) and action.writes:
            yield place, op


def _shifted(layer: Layer) -> Found:
    for place, op in _windows(layer):
        for (down, right), side in _SIDES.items():
            x, y = (replace(axis, offset=axis.offset + by) for axis, by in ((op.window.x, right), (op.window.y, down)))
            yield f"its windows lie one pixel further {side}", Change({place: replace(op, window=Window(x, y))})


def _undilated(layer: Layer) -> Found:
    for place, op in _windows(layer):
        if max(op.window.x.dilation, op.window.y.dilation) > 1:
            axes = [replace(axis, dilation=1) for axis in (op.window.x, op.window.y)]
            says = "its windows are not dilated"
            yield says, Change({place: replace(op, window=Window(*axes))})
            # The same first tap: an offset that was computed for the dilated window.
            moved = [replace(axis, offset=axis.offset + _nearer(old)) for axis, old in
                     zip(axes, (op.window.x, op.window.y), strict=True)]  # fmt: skip
            yield says, Change({place: replace(op, window=Window(*moved))})


def _nearer(axis: Axis) -> int:
    return axis.size // 2 - axis.extent // 2


def _edges(layer: Layer) -> Found:
    for place, action, op in _actions(layer, Op):
        if _with(op, "edge_mode") and action.writes:
            for mode in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
                if mode is not op.edge_mode:
                    says = f"outside the image it reads as edge mode {mode.name}, here as {op.edge_mode.name}"
                    yield says, Change({place: replace(op, edge_mode=mode)})


def _averages(layer: Layer) -> Found:
    for place, _, op in _actions(layer, AveragePooling):
        pads = {"by the pixels inside the image": (0, 0),
                "by all pixels of a window": (op.window.x.extent, op.window.y.extent)}  # fmt: skip
        for says, pad in pads.items():
            if pad != op.zero_pad:
                yield f"its means divide {says}", Change({place: replace(op, zero_pad=pad)})


# --- parameters -------------------------------------------------------------------------------------------------------


def weights_of(layer: Layer) -> Iterator[tuple[int, Tensor]]:
    """The weights of a layer's convolutions, OHWI, by value."""
    for value, name in layer.parameters.items():
        if name in WEIGHTS and layer.given[value].dim() == len(_OWN):
            yield value, layer.given[value]


def _orders(layer: Layer) -> Found:
    for value, weights in weights_of(layer):
        for order in _ORDERS:
            stored = weights.permute([_OWN.index(letter) for letter in order])
            read = stored.reshape(weights.shape)
            if not torch.equal(read, weights):
                yield f"its weights lie in the order {order} and are read as {_OWN}", Change(given={value: read})
            turned = weights.flip(1, 2).permute([_OWN.index(letter) for letter in order]).reshape(weights.shape)
            if weights.shape[1:3] != (1, 1):
                says = f"its weights lie in the order {order}, turned by 180 degrees, and are read as {_OWN}"
                yield says, Change(given={value: turned})


def _turns(layer: Layer) -> Found:
    for value, weights in weights_of(layer):
        turns = {"its weights are turned by 180 degrees": weights.flip(1, 2),
                 "its weights are for the input channels in reverse order": weights.flip(3)}  # fmt: skip
        if weights.shape[1] == weights.shape[2]:
            turns["rows and columns of its weights are exchanged"] = weights.transpose(1, 2)
        for says, read in turns.items():
            if not torch.equal(read, weights):
                yield says, Change(given={value: read.contiguous()})


def _biases(layer: Layer) -> Found:
    for value in (value for value, name in layer.parameters.items() if name == "biases"):
        biases = layer.given[value]
        yield "its biases are left out", Change(given={value: torch.zeros_like(biases)})
        yield "its biases are added twice", Change(given={value: 2 * biases})
        yield "its biases are subtracted", Change(given={value: -biases})


def _epsilons(layer: Layer) -> Found:
    for place, _, op in _actions(layer, Op):
        for epsilon in _EPSILONS if _with(op, "epsilon") else ():
            if epsilon != op.epsilon:
                says = f"its epsilon is {epsilon:g}, here {op.epsilon:g}"
                yield says, Change({place: replace(op, epsilon=epsilon)})


def _rows(layer: Layer) -> Found:
    """Mistakes with the rows of a normalization."""
    for _, action, _ in _actions(layer, Normalize):
        _, mean, _, variance, gamma, beta = action.reads
        given = layer.given
        plain = {gamma: torch.ones_like(given[gamma]), beta: torch.zeros_like(given[beta])}
        yield "its gamma and beta are left out", Change(given=plain)
        yield "its beta is left out", Change(given={beta: plain[beta]})
        yield "its mean is not taken off", Change(given={mean: torch.zeros_like(given[mean])})
        yield "its variance is taken for a standard deviation", Change(given={variance: given[variance].square()})
        yield "its standard deviation is taken for a variance", Change(given={variance: given[variance].sqrt()})
        swapped = {mean: given[variance], variance: given[mean].abs()}
        yield "its mean and variance are exchanged", Change(given=swapped)


# --- operations -------------------------------------------------------------------------------------------------------


def _neurons(layer: Layer) -> Found:
    there = list(_actions(layer, Neuron))
    for place, _, op in there:
        yield "its neuron is left out", Change(left_out=frozenset({place}))
        for name, other in _NEURONS.items():
            if other != op:
                yield f"its neuron is {name}, here {_neuron_text(op)}", Change({place: other})
    if not there:
        for name, other in _NEURONS.items():
            yield f"it has a neuron, {name}, and none here", Change(behind=other)


def _neuron_text(op: Neuron) -> str:
    name = next((name for name, each in _NEURONS.items() if each == op), None)
    return name or f"{op.function.name} of {op.a:g}, {op.b:g}, {op.c:g}"


def _exchanged(layer: Layer) -> Found:
    for place, action in enumerate(layer.actions):
        images = [at for at, each in enumerate(action.reads) if each in layer.images or each in layer.inner]
        if len(images) > 1 and action.reads[images[0]] != action.reads[images[1]]:
            reads, op = list(action.reads), action.op
            reads[images[0]], reads[images[1]] = reads[images[1]], reads[images[0]]
            if isinstance(op, Concatenate):
                op = replace(op, channels=(op.channels[1], op.channels[0], *op.channels[2:]))
            yield "its first two sources are exchanged", Change({place: op}, reads={place: tuple(reads)})


def _scales(layer: Layer) -> Found:
    for place, _, op in _actions(layer, Combination):
        for name in ("primary_scale", "secondary_scale"):
            if getattr(op, name) != 1.0:
                yield f"its {name} is left out", Change({place: replace(op, **{name: 1.0})})
        if op.bias:
            yield "its bias is left out", Change({place: replace(op, bias=0.0)})


def _logarithms(layer: Layer) -> Found:
    for kind, other, says in (
        (SoftMax, LogSoftMax(), "it gives logarithms of the softmax"),
        (LogSoftMax, SoftMax(), "it gives the softmax without the logarithm"),
    ):
        for place, _, _ in _actions(layer, kind):
            yield says, Change({place: other})


def _left_out(layer: Layer) -> Found:
    """A whole layer that hands on what it reads."""
    if len(layer.images) == 1:
        (source,) = layer.images
        if source in layer.given:
            makers = [place for place, action in enumerate(layer.actions) if layer.result in action.writes]
            if layer.actions[makers[0]].reads:
                reads = {makers[0]: (source, *layer.actions[makers[0]].reads[1:])}
                yield "the layer is left out", Change(reads=reads, left_out=frozenset(makers))


# --- what is read -----------------------------------------------------------------------------------------------------


def _sources(layer: Layer) -> Found:
    """An image that is read otherwise than it was dumped."""
    for value, label in layer.images.items():
        image = layer.given[value]
        reads = {
            "with its channels in reverse order": image.flip(1),
            "upside down": image.flip(2),
            "mirrored from left to right": image.flip(3),
            "times 255": image * 255,
            "divided by 255": image / 255,
            "times 2, minus 1": 2 * image - 1,
        }
        if image.shape[2] == image.shape[3]:
            reads["with rows and columns exchanged"] = image.transpose(2, 3)
        for how, read in reads.items():
            if not torch.equal(read, image):
                yield (
                    f"it reads {label!r} {how}",
                    Change(given={value: read.contiguous(memory_format=torch.channels_last)}),
                )


MISTAKES: tuple[Mistake, ...] = (
    Mistake("padding", _shifted),
    Mistake("dilation", _undilated),
    Mistake("edge mode", _edges),
    Mistake("average", _averages),
    Mistake("weight order", _orders),
    Mistake("turned weights", _turns),
    Mistake("biases", _biases),
    Mistake("neuron", _neurons),
    Mistake("epsilon", _epsilons),
    Mistake("normalization", _rows),
    Mistake("operands", _exchanged),
    Mistake("scales", _scales),
    Mistake("logarithm", _logarithms),
    Mistake("missing layer", _left_out),
    Mistake("source", _sources),
)
"""Each mistake, the ones that leave fewer numbers to choose first."""
