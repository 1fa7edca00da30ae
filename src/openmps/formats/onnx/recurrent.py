"""Recurrent layers out of ONNX files and PyTorch modules: descriptors whose sources hold the weights.

A graph of the framework has no recurrent node, so such a layer is no part of a network here: it is a descriptor, of
which `MPSRNNMatrixInferenceLayer` and `MPSRNNMatrixTrainingLayer` are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.sources import FixedSources
from openmps.kernels.recurrent.descriptors import MPSRNNDescriptor
from openmps.kernels.recurrent.layer import BIASES, INPUTS, MEMORIES, STATES, Form, Layer, Place, describe
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer
from openmps.metal.device import MTLDevice
from openmps.ops.matrix.recurrent_cells import Activation, RecurrentCell
from openmps.types import MPSCNNNeuronType as Neuron
from openmps.types import MPSRNNBidirectionalCombineMode

Row = NDArray[np.float32]
RESETS_BEHIND = NodeError(
    "its reset gate is applied behind the product with the recurrent weights, and in MPSGRUDescriptor before it",
    "Train a GRU that resets before: linear_before_reset=0 in ONNX, reset_after=False in Keras",
)


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """One recurrent layer of a model, in one direction or in both.

    Weights are float32 as the model has them; both biases of a gate are one, their sum. A layer begins with zeros, or
    with the state that an encode is given. One that is `is_reversed` runs from the end: hand its lists over in reverse.
    """

    name: str
    """Of the node, or of the module's parameters."""
    descriptors: tuple[MPSRNNDescriptor, ...]
    """One, or the forward and the backward one."""
    is_reversed: bool = False
    """Whether the only direction is backward."""
    is_batch_first: bool = False
    """Whether arrays of the model have the batch in front of the steps; here a step is a matrix."""

    def inference(self, device: MTLDevice) -> MPSRNNMatrixInferenceLayer:
        """The layer for inference; that of both directions joins their columns, forward first."""
        made = MPSRNNMatrixInferenceLayer(device, rnn_descriptors=self.descriptors)
        if len(self.descriptors) == 2:
            made.bidirectional_combine_mode = MPSRNNBidirectionalCombineMode.CONCATENATE
        made.label = self.name
        return made


class Gates(NamedTuple):
    """The weights of all gates of one direction, in the order that the mathematics here has."""

    inputs: Sequence[Row]
    states: Sequence[Row]
    biases: Sequence[Row]
    memories: Mapping[int, Row]
    """Diagonal ones, by their gates."""


def descriptor(cell: RecurrentCell, gates: Gates, name: str, *, is_backward: bool) -> MPSRNNDescriptor:
    """A descriptor with sources of these weights."""
    size, inputs = gates.inputs[0].shape
    weights: dict[Place, Row] = {}
    for gate in range(cell.gates):
        weights[Place(INPUTS, gate)] = gates.inputs[gate]
        weights[Place(STATES, gate)] = gates.states[gate]
        weights[Place(BIASES, gate)] = gates.biases[gate].reshape(1, -1)
    weights |= {Place(MEMORIES, gate): row.reshape(1, -1) for gate, row in gates.memories.items()}
    form = Form(cell, inputs, size, False, bool(gates.memories), tuple(weights), True, is_backward)
    return describe(Layer(form, weights), partial(FixedSources().convolution, label=name))


def check_reset(recurrent: Row, bias: Row) -> None:
    """Raise where a reset gate behind the product gives other numbers than one before it."""
    if bias.any() or np.count_nonzero(recurrent - np.diag(np.diag(recurrent))):
        raise RESETS_BEHIND


# --- activations ------------------------------------------------------------------------------------------------------


class _Named(NamedTuple):
    """An activation of ONNX: the neuron, and which of its parameters alpha and beta are; what they are unless given."""

    kind: Neuron
    alpha: str = ""
    beta: str = ""
    usual: tuple[float | None, float | None] = (None, None)
    fixed: tuple[float, float, float] = (0.0, 0.0, 0.0)


ACTIVATIONS: Mapping[str, _Named] = {
    "Sigmoid": _Named(Neuron.SIGMOID),
    "Tanh": _Named(Neuron.TANH, fixed=(1.0, 1.0, 0.0)),
    "Relu": _Named(Neuron.RELU),
    "Affine": _Named(Neuron.LINEAR, "a", "b"),
    "LeakyRelu": _Named(Neuron.RELU, "a", usual=(0.01, None)),
    "ScaledTanh": _Named(Neuron.TANH, "a", "b"),
    "HardSigmoid": _Named(Neuron.HARD_SIGMOID, "a", "b", (0.2, 0.5)),
    "Elu": _Named(Neuron.ELU, "a", usual=(1.0, None)),
    "Softsign": _Named(Neuron.SOFT_SIGN),
    "Softplus": _Named(Neuron.SOFT_PLUS, fixed=(1.0, 1.0, 0.0)),
}
"""The activations of ONNX's recurrent operators that are neurons; those with fewer parameters first."""


def read_activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """Activations by their names, each with the next of those parameters that it has."""
    left, found = {"alpha": [*alphas], "beta": [*betas]}, list[Activation]()
    for name in names:
        known = next((each for said, each in ACTIVATIONS.items() if said.lower() == name.lower()), None)
        if known is None:
            raise NodeError(f"its activation {name} is no neuron", f"It may be {', '.join(ACTIVATIONS)}")
        values = dict(zip("abc", known.fixed, strict=True))
        for which, parameter, usual in zip(("alpha", "beta"), (known.alpha, known.beta), known.usual, strict=True):
            if parameter:
                value = left[which].pop(0) if left[which] else usual
                if value is None:
                    raise NodeError(f"its activation {name} has no {which}", f"Give activation_{which}")
                values[parameter] = value
        found.append(Activation(known.kind, **values))
    return found


def written_activation(activation: Activation) -> tuple[str, list[float], list[float]]:
    """The name of an activation, with its alpha and its beta where it has them."""
    if activation.kind is Neuron.NONE:
        activation = Activation(Neuron.LINEAR, 1.0, 0.0)
    for name, known in ACTIVATIONS.items():
        free = {known.alpha, known.beta}
        used = _PARAMETERS.get(activation.kind, "")
        own, fixed = activation._asdict(), dict(zip("abc", known.fixed, strict=True))
        if known.kind is activation.kind and all(each in free or own[each] == fixed[each] for each in used):
            parts = ([own[each]] if each else [] for each in (known.alpha, known.beta))
            alpha, beta = parts
            return name, alpha, beta
    raise NodeError(f"its neuron {activation.kind.name} is no activation of ONNX's recurrent operators")


_PARAMETERS = {
    Neuron.LINEAR: "ab", Neuron.RELU: "a", Neuron.TANH: "ab", Neuron.HARD_SIGMOID: "ab", Neuron.ELU: "a",
    Neuron.SOFT_PLUS: "ab",
}  # fmt: skip
"""The parameters that a neuron has."""
