"""The numbers of a recurrent layer as its descriptor's sources give them, and what its mathematics is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, load_weights
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.recurrent.descriptors import (
    MPSGRUDescriptor,
    MPSLSTMDescriptor,
    MPSRNNDescriptor,
    MPSRNNSingleGateDescriptor,
    Source,
)
from openmps.metal.device import MTLDevice
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm, RecurrentCell, SingleGate
from openmps.types import MPSCNNNeuronType, MPSDataType, MPSRNNMatrixId, MPSRNNSequenceDirection

Array = NDArray[np.float32]
_KINDS = (MPSDataType.FLOAT32, MPSDataType.FLOAT16)
INPUTS, STATES, BIASES, MEMORIES = PARTS = ("inputs", "states", "biases", "memories")
"""What weights are of, as `Parameters` names them."""


class Place(NamedTuple):
    """One weight matrix of a layer: which part of which gate."""

    part: str
    gate: int


class Stretch(NamedTuple):
    """Weight matrices of one part of a layer: those of some gates that follow one another."""

    part: str
    first: int
    last: int

    def places(self) -> list[Place]:
        """Each of them."""
        return [Place(self.part, gate) for gate in range(self.first, self.last + 1)]


@dataclass(frozen=True, slots=True)
class Form:
    """What a layer computes, but for its numbers."""

    cell: RecurrentCell
    inputs: int
    outputs: int
    is_unit: bool
    """Whether gates get the source itself."""
    is_diagonal: bool
    """Whether weights of memories are vectors."""
    places: tuple[Place, ...]
    """The weights that there are, others being 0, in the framework's order."""
    is_float32: bool = False
    """Whether weights are not rounded to float16."""
    is_backward: bool = False
    of_images: bool = False
    """Whether weights are kernels of convolutions, ``[outputs, height, width, channels]``, and float16 always."""

    def has(self, part: str) -> bool:
        """Whether there are such weights at all."""
        return any(each.part == part for each in self.places)

    def parts_in_turn(self) -> list[int]:
        """The numbers of all places, those of the inputs' weights of all gates first, then those of each other part."""
        return sorted(range(len(self.places)), key=lambda at: (PARTS.index(self.places[at].part), self.places[at].gate))

    def stretches(self) -> list[Stretch]:
        """All places, those that see the same together: not all weights of memories do, nor of states in a GRU."""
        found: list[Stretch] = []
        for part, gate in [self.places[at] for at in self.parts_in_turn()]:
            alone = part == MEMORIES or (part == STATES and gate == 2 and isinstance(self.cell, Gru))
            if found and not alone and found[-1].part == part and found[-1].last + 1 == gate:
                found[-1] = Stretch(part, found[-1].first, gate)
            else:
                found.append(Stretch(part, gate, gate))
        return found

    def is_vector(self, part: str) -> bool:
        """Whether a part has a number an output channel."""
        return part == BIASES or (part == MEMORIES and self.is_diagonal)

    def shape(self, place: Place) -> tuple[int, int]:
        """Rows and columns of one weight matrix; of kernels, output and input channels."""
        if self.is_vector(place.part):
            return 1, self.outputs
        return self.outputs, self.inputs if place.part == INPUTS else self.outputs

    def zeros(self, place: Place) -> Array:
        """Weights that are not there, as `Layer` has them."""
        rows, columns = self.shape(place)
        is_kernel = self.of_images and not self.is_vector(place.part)
        return np.zeros((rows, 1, 1, columns) if is_kernel else (rows, columns), np.float32)

    def gates_of(self, part: str) -> range:
        """The gates that a part has weights for: Vh of a GRU stands alone."""
        return range(2, 3) if part == MEMORIES and isinstance(self.cell, Gru) else range(self.cell.gates)


class Layer(NamedTuple):
    """A form and its numbers."""

    form: Form
    weights: Mapping[Place, Array]
    """In the shapes that the form says; kernels with their own numbers of taps."""


def read_layer(who: str, device: MTLDevice, descriptor: MPSRNNDescriptor, *, of_images: bool = False) -> Layer:
    """Read all sources of a descriptor, and check that they fit one another, and the device."""
    inputs, outputs = sizes = descriptor.input_feature_channels, descriptor.output_feature_channels
    gates = len(descriptor._gates)  # pyright: ignore[reportPrivateUsage]
    # Weights without a source are zeros.
    device.check_length(who, "rnn_descriptor", 4 * gates * outputs * (inputs + outputs))
    is_unit = descriptor.use_layer_input_unit_transform_mode
    if is_unit and sizes[0] != sizes[1]:
        rule = f"must be output_feature_channels, {sizes[1]}, for use_layer_input_unit_transform_mode"
        raise MPSArgumentError(who, "input_feature_channels", rule, sizes[0])
    is_diagonal = isinstance(descriptor, MPSLSTMDescriptor) and descriptor.memory_weights_are_diagonal
    form = Form(_NO_CELL, *sizes, is_unit, is_diagonal, (), of_images=of_images)
    weights: dict[Place, Array] = {}
    activations: list[Activation] = []
    for gate, names in enumerate(descriptor._gates):  # pyright: ignore[reportPrivateUsage]
        activations.append(Activation())
        for part, name in ((INPUTS, names.inputs), (STATES, names.states), (MEMORIES, names.memories)):
            source: Source = getattr(descriptor, name) if name else None
            if source is None:
                continue
            read = _Read(f"{who} {name}", source, form, Place(part, gate))
            if part == INPUTS:
                activations[-1] = read.activation
                weights[Place(BIASES, gate)] = read.biases
            if part != INPUTS or not is_unit:
                weights[Place(part, gate)] = read.weights
    cell = _cell(descriptor, activations)
    backward = descriptor.layer_sequence_direction is MPSRNNSequenceDirection.BACKWARD
    form = replace(form, cell=cell, is_backward=backward)
    form = replace(form, places=tuple(sorted(weights, key=partial(matrix_id, form))))
    return Layer(replace(form, is_float32=descriptor.use_float32_weights and not of_images), weights)


_NO_CELL = SingleGate(Activation())


def _cell(descriptor: MPSRNNDescriptor, activations: list[Activation]) -> RecurrentCell:
    if isinstance(descriptor, MPSGRUDescriptor):
        z, r, h = activations
        return Gru((z, r, h), descriptor.gate_pnorm_value, descriptor.flip_output_gates)
    if isinstance(descriptor, MPSLSTMDescriptor):
        i, f, c, o = activations
        named = (getattr(descriptor, f"cell_to_output_neuron_param_{each}") for each in "abc")
        return Lstm((i, f, c, o), Activation(descriptor.cell_to_output_neuron_type, *named))
    return SingleGate(activations[0])


class _Read:
    """What one source gives: weights and biases in the shape of their place, and the neuron."""

    def __init__(self, who: str, source: Any, form: Form, place: Place) -> None:
        loaded = load_weights(who, source, _KINDS)
        given, (rows, columns) = loaded.descriptor, form.shape(place)
        self.activation = _activation(who, given)
        found = loaded.weights.shape
        is_vector, is_kernel = form.is_vector(place.part), form.of_images or found[1:3] == (1, 1)
        fits = loaded.weights.size == columns if is_vector else is_kernel and (found[0], found[3]) == (rows, columns)
        if not fits:
            one = "" if form.of_images else "of one pixel, "
            rule = f"must be those of a kernel {one}of {columns} input and {rows} output channels"
            raise MPSArgumentError(who, "data source weights()", rule, f"{' x '.join(map(str, found))}, OHWI")
        plain = (given.stride_in_pixels_x, given.stride_in_pixels_y, given.dilation_rate_x, given.dilation_rate_y)
        if plain != (1, 1, 1, 1) or given.groups != 1:
            raise MPSArgumentError(who, "data source descriptor()", "must have strides, dilation rates and groups of 1")
        self.weights = loaded.weights if form.of_images and not is_vector else loaded.weights.reshape(rows, columns)
        channels = given.output_feature_channels
        zeros = np.zeros(channels, np.float32)
        self.biases = (zeros if loaded.biases is None else loaded.biases).reshape(1, -1)


def _activation(who: str, descriptor: Any) -> Activation:
    neuron = descriptor.fused_neuron_descriptor
    if neuron is None:
        return Activation()
    if neuron.neuron_type is MPSCNNNeuronType.PRELU:
        raise MPSArgumentError(who, "data source descriptor()", "must have another neuron", "PRELU")
    return Activation(neuron.neuron_type, neuron.a, neuron.b, neuron.c)


def stacked(layer: Layer, part: str) -> Array | None:
    """A part of all gates as `Parameters` has it, as the layer multiplies with it.

    None if there is nothing of it, or if gates get the source itself.
    """
    form = layer.form
    if not form.has(part) and (part != INPUTS or form.is_unit):
        return None
    places = [Place(part, gate) for gate in form.gates_of(part)]
    rows = [layer.weights[each] if each in layer.weights else form.zeros(each) for each in places]
    if form.is_vector(part):
        rows = [each.reshape(-1) for each in rows]
    joined = np.concatenate(_with_taps_alike(rows))
    return joined if part == BIASES or form.is_float32 else joined.astype(np.float16).astype(np.float32)


def _with_taps_alike(weights: list[Array]) -> list[Array]:
    """Kernels of the size of the largest one, with zeros around: the middle of each stays where it is."""
    if weights[0].ndim < 4:
        return weights
    most = np.max([each.shape for each in weights], 0)
    found: list[Array] = []
    for each in weights:
        before = [size // 2 - own // 2 for size, own in zip(most, each.shape, strict=True)]
        behind = [size - own - first for size, own, first in zip(most, each.shape, before, strict=True)]
        found.append(np.pad(each, list(zip(before, behind, strict=True))))
    return found


def unstacked(form: Form, parts: Mapping[str, Array]) -> Layer:
    """The layer of which `stacked` gives these parts."""
    size, weights = form.outputs, dict[Place, Array]()
    for place in form.places:
        first = form.gates_of(place.part).index(place.gate) * size
        part = parts[place.part][first : first + size]
        weights[place] = part.reshape(1, -1) if form.is_vector(place.part) else part
    return Layer(form, weights)


_DESCRIPTORS = {SingleGate: MPSRNNSingleGateDescriptor, Gru: MPSGRUDescriptor, Lstm: MPSLSTMDescriptor}
NewSource = Callable[[MPSCNNConvolutionDescriptor, Array, Array | None], MPSCNNConvolutionDataSource]
"""Makes a source of weights of a descriptor, weights and biases."""


def describe(layer: Layer, new_source: NewSource) -> MPSRNNDescriptor:
    """A descriptor of which `read_layer` makes such a layer; weights that are not given are zeros."""
    form, cell = layer.form, layer.form.cell
    made = _DESCRIPTORS[type(cell)](form.inputs, form.outputs)
    made.use_layer_input_unit_transform_mode, made.use_float32_weights = form.is_unit, form.is_float32
    made.layer_sequence_direction = MPSRNNSequenceDirection(int(form.is_backward))
    if isinstance(made, MPSGRUDescriptor) and isinstance(cell, Gru):
        made.gate_pnorm_value, made.flip_output_gates = cell.p, cell.is_flipped
    if isinstance(made, MPSLSTMDescriptor) and isinstance(cell, Lstm):
        made.memory_weights_are_diagonal = form.is_diagonal
        made.cell_to_output_neuron_type = cell.output.kind
        for name in "abc":
            setattr(made, f"cell_to_output_neuron_param_{name}", getattr(cell.output, name))
    activations = (cell.activation,) if isinstance(cell, SingleGate) else cell.activations
    for gate, names in enumerate(made._gates):  # pyright: ignore[reportPrivateUsage]
        for part, name in ((INPUTS, names.inputs), (STATES, names.states), (MEMORIES, names.memories)):
            # A source of input weights gives the biases, also where the weights are not read.
            if Place(BIASES if part == INPUTS else part, gate) in form.places:
                setattr(made, name, _source(layer, Place(part, gate), activations[gate], new_source))
    return made


def _source(layer: Layer, place: Place, activation: Activation, new_source: NewSource) -> MPSCNNConvolutionDataSource:
    rows, columns = layer.form.shape(place)
    outputs, inputs = (rows, columns) if rows == layer.form.outputs else (columns, rows)
    weights = layer.weights[place] if place in layer.weights else layer.form.zeros(place)
    height, width = weights.shape[1:3] if weights.ndim == 4 else (1, 1)
    descriptor = MPSCNNConvolutionDescriptor(width, height, inputs, outputs)
    biases = None
    if place.part == INPUTS:
        descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(*activation)
        biases = layer.weights.get(Place(BIASES, place.gate))
    kernels = weights.reshape(outputs, height, width, inputs)
    return new_source(descriptor, kernels, None if biases is None else biases.reshape(-1))


_FIRST = {1: MPSRNNMatrixId.SINGLE_GATE_INPUT_WEIGHTS, 3: MPSRNNMatrixId.GRU_INPUT_GATE_INPUT_WEIGHTS}
_LSTM = MPSRNNMatrixId.LSTM_INPUT_GATE_INPUT_WEIGHTS


def matrix_id(form: Form, place: Place) -> MPSRNNMatrixId:
    """The framework's number of a weight matrix."""
    order = [INPUTS, STATES, *([MEMORIES] if form.cell.gates == 4 else []), BIASES]
    if form.cell.gates == 3 and place.gate == 2:
        order.insert(2, MEMORIES)
    first = _FIRST.get(form.cell.gates, _LSTM)
    return MPSRNNMatrixId(first + place.gate * (4 if form.cell.gates == 4 else 3) + order.index(place.part))
