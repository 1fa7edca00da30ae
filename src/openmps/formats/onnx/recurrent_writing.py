"""Recurrent layers into ONNX files, with the weights that they multiply with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from openmps.checks import listed, of_kind
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError, MPSOperatorError, MPSTypeError
from openmps.formats.atomic import write_for
from openmps.formats.onnx.dense import DenseLayer
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.reading import require_onnx
from openmps.formats.onnx.recurrent import Row, written_activation
from openmps.formats.onnx.recurrent_reading import ORDERS, PEEPHOLES
from openmps.kernels.recurrent.layer import BIASES, INPUTS, MEMORIES, STATES, Layer, Place
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer
from openmps.kernels.recurrent.matrix_training import MPSRNNMatrixTrainingLayer
from openmps.kernels.recurrent.stack import layers_of
from openmps.kernels.recurrent.training_weights import trained_layer
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm
from openmps.types import MPSRNNBidirectionalCombineMode as Combine

_WHO = "openmps.formats.onnx.save_recurrent"
_OPSET, _IR = 21, 10
_NO_WORD = "ONNX has no word for it"


def save_recurrent(
    layer: MPSRNNMatrixInferenceLayer | MPSRNNMatrixTrainingLayer,
    path: str | os.PathLike[str],
    weights: Sequence[MPSMatrix] | None = None,
    dense: Sequence[DenseLayer] = (),
) -> None:
    """Write a recurrent layer, or a stack of them, as an ONNX file, whole or not at all.

    Its input ``x`` is ``[steps, batch, channels]``, its output ``y`` alike; a stack with layers of both directions is
    written as `MPSRNNMatrixInferenceLayer.encode_bidirectional_sequence` runs it, with outputs ``y_forward`` and
    ``y_backward`` where they are not combined, others as `MPSRNNMatrixInferenceLayer.encode_sequence` does. ``weights``
    are those of a training layer. Behind it come the layers ``dense``, each a MatMul and, for its biases, an Add.
    `recurrent_layers` and `sequence_layers` give the same numbers back.

    Raises:
        MPSOperatorError: What ONNX has no operators for: the unit transform, gates with neurons of their own,
            peepholes that are matrices or belong to the cell gate, p-norms, flipped and minimal units.
        MPSTypeError: It is another kernel, or a training layer without weights, or ``dense`` holds another thing.
        MPSArgumentError: A layer of ``dense`` does not take what comes before it, or there are two outputs before it.
        MPSFileError: The file cannot be written.
        MPSError: The onnx package is not installed.
    """
    for index, each in enumerate(listed(_WHO, "dense", dense, "DenseLayer")):
        of_kind(_WHO, f"dense[{index}]", each, DenseLayer)
    writer = _Writer(require_onnx(_WHO), dense)
    if isinstance(layer, MPSRNNMatrixTrainingLayer):
        if weights is None:
            raise MPSTypeError(_WHO, "weights", "are needed: a training layer keeps none", None)
        write_for(_WHO, path, writer.model([trained_layer(layer, weights)], None))
        return
    if not isinstance(layer, MPSRNNMatrixInferenceLayer):
        rule = "must be an MPSRNNMatrixInferenceLayer or an MPSRNNMatrixTrainingLayer"
        raise MPSTypeError(_WHO, "layer", rule, type(layer).__name__)
    if weights is not None:
        raise MPSTypeError(_WHO, "weights", "belong to a training layer", type(weights).__name__)
    write_for(_WHO, path, writer.model(layers_of(layer), layer.bidirectional_combine_mode))


class _Writer:
    def __init__(self, onnx: Any, dense: Sequence[DenseLayer]) -> None:
        self._onnx = onnx
        self._dense = dense
        self._last = "recurrent" if dense else "y"
        """The output of the recurrent layers."""
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._problems: list[dict[str, str]] = []

    def model(self, layers: Sequence[Layer], mode: Combine | None) -> bytes:
        """The bytes of the file."""
        helper, real = self._onnx.helper, self._onnx.TensorProto.FLOAT
        self._constant("direction", np.array([1]))
        stacks = [[each for each in layers if each.form.is_backward is backward] for backward in (False, True)]
        if mode is None or not all(stacks):
            widths = {self._chain(layers, self._last, "forward"): layers[-1].form.outputs}
        else:
            widths = self._both(stacks, mode)
        if self._problems:
            raise MPSOperatorError(_WHO, "layer", self._problems)
        if self._dense:
            widths = {"y": self._behind(widths)}
        graph = helper.make_graph(
            self._nodes,
            "openmps",
            [helper.make_tensor_value_info("x", real, ["T", "N", layers[0].form.inputs])],
            [helper.make_tensor_value_info(name, real, ["T", "N", width]) for name, width in widths.items()],
            self._constants,
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="openmps")
        return made.SerializeToString()

    def _both(self, stacks: Sequence[Sequence[Layer]], mode: Combine) -> dict[str, int]:
        names = ["y_forward", "y_backward"]
        for stack, name, direction in zip(stacks, names, ("forward", "reverse"), strict=True):
            self._chain(stack, name, direction)
        widths = [stack[-1].form.outputs for stack in stacks]
        if mode is Combine.NONE:
            return dict(zip(names, widths, strict=True))
        if mode is Combine.ADD:
            self._nodes.append(self._onnx.helper.make_node("Add", names, [self._last]))
            return {self._last: widths[0]}
        self._nodes.append(self._onnx.helper.make_node("Concat", names, [self._last], axis=2))
        return {self._last: sum(widths)}

    def _behind(self, widths: dict[str, int]) -> int:
        """The fully connected layers, of which the last one gives ``y``; how many numbers that has."""
        if len(widths) > 1:
            rule, remedy = "must follow one output", "Set bidirectional_combine_mode"
            raise MPSArgumentError(_WHO, "dense", rule, f"{' and '.join(widths)}", remedy)
        make, ((value, width),) = self._onnx.helper.make_node, widths.items()
        for index, layer in enumerate(self._dense):
            inputs, outputs = layer.weights.shape
            if inputs != width:
                raise MPSArgumentError(_WHO, f"dense[{index}]", f"must take {width} numbers, what comes before", inputs)
            name = "y" if index == len(self._dense) - 1 else f"dense_{index}"
            product = name if layer.biases is None else f"{name}_product"
            self._constant(f"{name}_weights", layer.weights)
            self._nodes.append(make("MatMul", [value, f"{name}_weights"], [product], name=layer.name))
            if layer.biases is not None:
                self._constant(f"{name}_biases", layer.biases)
                self._nodes.append(make("Add", [product, f"{name}_biases"], [name]))
            value, width = name, outputs
        return width

    def _chain(self, layers: Sequence[Layer], output: str, direction: str) -> str:
        """Layers one behind the other, from ``x`` on."""
        value = "x"
        for index, layer in enumerate(layers):
            name = f"{output}_{index}"
            try:
                self._add(layer, value, name, direction)
            except NodeError as problem:
                kind = type(layer.form.cell).__name__
                said = {"node": f"layer {index}", "operator": kind, "why": problem.why, "remedy": problem.remedy}
                self._problems.append(said)
            value = output if index == len(layers) - 1 else f"{name}_steps"
            self._nodes.append(self._onnx.helper.make_node("Squeeze", [f"{name}_all", "direction"], [value]))
        return value

    def _add(self, layer: Layer, source: str, name: str, direction: str) -> None:
        form, cell = layer.form, layer.form.cell
        operator = {1: "RNN", 3: "GRU", 4: "LSTM"}[cell.gates]
        activations = _activations(layer)
        _check(layer)
        order = np.argsort(ORDERS[operator])
        weights, states, biases = (
            np.concatenate([_of(layer, Place(part, int(gate))) for gate in order]) for part in (INPUTS, STATES, BIASES)
        )
        arrays: dict[str, Row] = {"W": weights, "R": states, "B": np.concatenate((biases, np.zeros_like(biases)))}
        inputs = [source, f"{name}_W", f"{name}_R", f"{name}_B"]
        if form.has(MEMORIES):
            gates = sorted(PEEPHOLES, key=lambda gate: PEEPHOLES[gate])
            arrays["P"] = np.concatenate([_of(layer, Place(MEMORIES, gate)) for gate in gates])
            inputs += ["", "", "", f"{name}_P"]
        for part, array in arrays.items():
            self._constant(f"{name}_{part}", array[None])
        words = [written_activation(each) for each in activations]
        attributes: dict[str, Any] = {"activations": [word for word, _, _ in words], "hidden_size": form.outputs}
        for place, which in ((1, "activation_alpha"), (2, "activation_beta")):
            numbers = [each for word in words for each in word[place]]
            attributes |= {which: numbers} if numbers else {}
        self._nodes.append(
            self._onnx.helper.make_node(operator, inputs, [f"{name}_all"], name=name, direction=direction, **attributes)
        )

    def _constant(self, name: str, array: Any) -> None:
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))


def _of(layer: Layer, place: Place) -> Row:
    """Weights, zeros where there are none; those of a number a channel as a row."""
    found = layer.weights[place] if place in layer.weights else layer.form.zeros(place)
    return found.reshape(-1) if layer.form.is_vector(place.part) else found


def _activations(layer: Layer) -> list[Activation]:
    """Those that ONNX's operator names."""
    cell = layer.form.cell
    if isinstance(cell, Lstm):
        alike, named = (cell.activations[0], cell.activations[1], cell.activations[3]), "input, forget and output gate"
        rest = [cell.activations[2], cell.output]
    elif isinstance(cell, Gru):
        alike, named, rest = cell.activations[:2], "input and recurrent gate", [cell.activations[2]]
    else:
        return [cell.activation]
    words = [written_activation(each) for each in alike]
    if any(word != words[0] for word in words):
        raise NodeError(f"the neurons of its {named} differ, and {_NO_WORD}")
    return [alike[0], *rest]


def _check(layer: Layer) -> None:
    """Raise for what ONNX's operators do not have."""
    form, cell = layer.form, layer.form.cell
    gru = cell if isinstance(cell, Gru) else None
    reasons = {
        "its gates get the source itself": form.is_unit,
        "its peepholes are matrices": isinstance(cell, Lstm) and form.has(MEMORIES) and not form.is_diagonal,
        "its cell gate has a peephole": isinstance(cell, Lstm) and Place(MEMORIES, 2) in form.places,
        "its output gate has weights of the input gate": gru is not None and form.has(MEMORIES),
        "its p-norm is not 1": gru is not None and gru.p != 1,
        "its output gates are flipped": gru is not None and gru.is_flipped,
    }
    for why, holds in reasons.items():
        if holds:
            raise NodeError(f"{why}, and {_NO_WORD}")
