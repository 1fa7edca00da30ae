"""Recurrent layers of Core ML as ONNX's operators LSTM, GRU and RNN, which no graph has, but `recurrent_layers` reads.

Neural networks limit what gates get to ±50, which changes nothing where their functions end; and the cell of an LSTM to
a threshold, which from 50 on a sequence of as many steps does not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmps.formats.coreml.blobs import Array
from openmps.formats.coreml.draft import Draft
from openmps.formats.onnx.problems import NodeError

_LIMIT = 50.0
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LSTM, _PEEPHOLES, _GRU = (0, 2, 1, 3), (0, 2, 1), (2, 0, 1)
"""ONNX's gates i, o, f, c of Core ML's i, f, o, z, and z, r, h of r, o, z."""


class _Function(NamedTuple):
    """The function of a gate, as ONNX calls it, and its parameters where it has them."""

    name: str
    alpha: float | None = None
    beta: float | None = None


class _Direction(NamedTuple):
    """The weights of one direction, a matrix or a row a gate, in ONNX's order of gates."""

    inputs: Sequence[Array]
    states: Sequence[Array]
    biases: Sequence[Array]
    """Those of the inputs, and those of the states or nothing."""
    peepholes: Sequence[Array] = ()


def _put(
    draft: Draft, operator: str, names: Sequence[str | None], directions: Sequence[_Direction],
    functions: Sequence[_Function], outputs: Sequence[str], **attributes: Any,
) -> None:  # fmt: skip
    """Write a layer as one operator; ``names`` are its input and the states that it begins with."""
    weights, states = (np.stack([np.concatenate(each[part]) for each in directions]) for part in (0, 1))
    biases = np.stack([np.concatenate(each.biases) for each in directions])
    if biases.shape[1] == weights.shape[1]:
        biases = np.concatenate([biases, np.zeros_like(biases)], 1)
    peepholes = [np.concatenate(each.peepholes) for each in directions if each.peepholes]
    x, hidden, cell = (*names, None, None, None)[:3]
    draft.several(
        operator, [x, weights, states, biases, None, hidden, cell, np.stack(peepholes) if peepholes else None],
        outputs, activations=[each.name for each in functions], hidden_size=weights.shape[1] // _GATES[operator],
        activation_alpha=[each.alpha for each in functions if each.alpha is not None],
        activation_beta=[each.beta for each in functions if each.beta is not None], **attributes,
    )  # fmt: skip


def _check_threshold(threshold: float) -> None:
    if 0 < threshold < _LIMIT:
        raise NodeError(
            f"it limits its cell to {threshold:g}", f"Train a layer that does not, or to {_LIMIT:g} or more"
        )


# --- ML programs ------------------------------------------------------------------------------------------------------

_WORDS: Mapping[str, _Function] = {
    "sigmoid": _Function("Sigmoid"),
    "tanh": _Function("Tanh"),
    "relu": _Function("Relu"),
    "linear": _Function("Affine", 1.0, 0.0),
    "hard_sigmoid": _Function("HardSigmoid", 0.2, 0.5),
    "sigmoid_hard": _Function("HardSigmoid", 0.2, 0.5),
}


def _word(operation: Any, argument: str, default: str) -> _Function:
    word = operation.text(argument, default)
    if word not in _WORDS:
        raise NodeError(f"its {argument} is {word[:40]!r}")
    return _WORDS[word]


def _ordered(array: Array, order: Sequence[int]) -> list[Array]:
    parts = np.split(array, len(order))
    return [parts[place] for place in order]


def _lstm(operation: Any) -> None:
    _check_threshold(operation.decimal("clip", 0.0))
    direction = operation.text("direction", "forward")
    directions = [_of_program(operation, end, _LSTM) for end in ("", "_back")[: 1 + (direction == "bidirectional")]]
    words = (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    functions = [_word(operation, *each) for each in words] * len(directions)
    names = [operation.name(), operation.optional("initial_h"), operation.optional("initial_c")]
    _put(operation.draft, "LSTM", names, directions, functions, operation.outputs, direction=direction)


def _of_program(operation: Any, end: str, order: Sequence[int]) -> _Direction:
    inputs, states = (_ordered(operation.array(f"weight_{which}{end}"), order) for which in ("ih", "hh"))
    size = states[0].shape[-1]
    peepholes: list[Array] = []
    if operation.given(f"peephole{end}"):
        peepholes = _ordered(operation.array(f"peephole{end}"), _PEEPHOLES)
    return _Direction(inputs, states, _row(operation, f"bias{end}", size, order), peepholes)


def _row(operation: Any, argument: str, size: int, order: Sequence[int]) -> list[Array]:
    given = operation.given(argument)
    return _ordered(operation.array(argument) if given else np.zeros(size * len(order), np.float32), order)


def _gru(operation: Any) -> None:
    made = _of_program(operation, "", _GRU)
    more = _row(operation, "input_bias", made.states[0].shape[-1], _GRU)
    resets_behind = operation.flag("reset_after", default=False)
    biases = [*more, *made.biases] if resets_behind else [a + b for a, b in zip(made.biases, more, strict=True)]
    functions = [_word(operation, "recurrent_activation", "sigmoid"), _word(operation, "activation", "tanh")]
    _put(
        operation.draft, "GRU", [operation.name(), operation.optional("initial_h")],
        [made._replace(biases=biases)], functions, operation.outputs,
        direction=operation.text("direction", "forward"), linear_before_reset=int(resets_behind),
    )  # fmt: skip


def _rnn(operation: Any) -> None:
    names = [operation.name(), operation.optional("initial_h")]
    _put(
        operation.draft, "RNN", names, [_of_program(operation, "", (0,))], [_word(operation, "activation", "tanh")],
        operation.outputs, direction=operation.text("direction", "forward"),
    )  # fmt: skip


OPERATIONS: Mapping[str, Callable[[Any], None]] = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}
"""How each operation of an ML program is written."""

# --- neural networks --------------------------------------------------------------------------------------------------

_BOUNDED: Mapping[str, tuple[str, bool]] = {
    "sigmoid": ("Sigmoid", False), "tanh": ("Tanh", False), "sigmoidHard": ("HardSigmoid", True),
    "scaledTanh": ("ScaledTanh", True),
}  # fmt: skip
"""Functions that end before ±50, and whether they have parameters."""


def _functions(given: Sequence[Any], count: int) -> list[_Function]:
    found: list[_Function] = []
    for each in given:
        word = each.WhichOneof("NonlinearityType") or ""
        if word not in _BOUNDED:
            raise NodeError(f"the function of a gate is {word or 'none'}, of what is limited to ±{_LIMIT:g}")
        name, has_more = _BOUNDED[word]
        of = getattr(each, word)
        found.append(_Function(name, float(of.alpha), float(of.beta)) if has_more else _Function(name))
    if len(found) != count:
        raise NodeError(f"it has {len(found)} functions, and not {count}")
    return found


def _of_layer(layer: Any, of: Any, gates: Sequence[str], *, has_biases: bool) -> _Direction:
    """The weights of gates by the words that their fields begin with."""
    size, width = int(layer.params.outputVectorSize), int(layer.params.inputVectorSize)

    def numbers(end: str, *shape: int) -> list[Array]:
        return [layer.weights(getattr(of, f"{gate}{end}"), shape) for gate in gates]

    inputs, states = numbers("WeightMatrix", size, width), numbers("RecursionMatrix", size, size)
    biases = numbers("BiasVector", size) if has_biases else [np.zeros(len(each), np.float32) for each in states]
    return _Direction(inputs, states, biases)


def _memory(layer: Any, of: Any) -> _Direction:
    """One direction of an LSTM."""
    params = layer.params.params
    made = _of_layer(
        layer, of, ("inputGate", "outputGate", "forgetGate", "blockInput"), has_biases=params.hasBiasVectors
    )
    if params.forgetBias:
        made = made._replace(biases=[*made.biases[:2], made.biases[2] + np.float32(1), made.biases[3]])
    if params.hasPeepholeVectors:
        row = int(layer.params.outputVectorSize)
        names = (f"{gate}GatePeepholeVector" for gate in ("input", "output", "forget"))
        made = made._replace(peepholes=[layer.weights(getattr(of, name), (row,)) for name in names])
    return made


def _long_short(layer: Any, directions: Sequence[_Direction], given: Sequence[Any], direction: str) -> None:
    params = layer.params.params
    if params.coupledInputAndForgetGate:
        raise NodeError("it couples the input and the forget gate", "Train a layer that does not")
    _check_threshold(float(params.cellClipThreshold))
    functions = _functions(given, 3 * len(directions))
    _put(layer.draft, "LSTM", layer.inputs[:3], directions, functions, layer.outputs, direction=direction)


def _one_way(layer: Any) -> None:
    of = layer.params
    _long_short(layer, [_memory(layer, of.weightParams)], of.activations, _direction(of))


def _both_ways(layer: Any) -> None:
    of = layer.params
    if len(of.weightParams) != 2:
        raise NodeError(f"it has weights of {len(of.weightParams)} directions")
    given = [*of.activationsForwardLSTM, *of.activationsBackwardLSTM]
    _long_short(layer, [_memory(layer, each) for each in of.weightParams], given, "bidirectional")


def _gated(layer: Any) -> None:
    of, gates = layer.params, ("updateGate", "resetGate", "outputGate")
    made = _of_layer(layer, of, gates, has_biases=of.hasBiasVectors)
    functions = _functions(of.activations, 2)
    _put(layer.draft, "GRU", layer.inputs[:2], [made], functions, layer.outputs, direction=_direction(of))


def _simple(layer: Any) -> None:
    of = layer.params
    size, width = int(of.outputVectorSize), int(of.inputVectorSize)
    weights, states = layer.weights(of.weightMatrix, (size, width)), layer.weights(of.recursionMatrix, (size, size))
    biases = layer.weights(of.biasVector, (size,)) if of.hasBiasVector else np.zeros(len(states), np.float32)
    made, functions = _Direction([weights], [states], [biases]), _functions([of.activation], 1)
    _put(layer.draft, "RNN", layer.inputs[:2], [made], functions, layer.outputs, direction=_direction(of))


def _direction(of: Any) -> str:
    return "reverse" if of.reverseInput else "forward"


LAYERS: Mapping[str, Callable[[Any], None]] = {
    "uniDirectionalLSTM": _one_way,
    "biDirectionalLSTM": _both_ways,
    "gru": _gated,
    "simpleRecurrent": _simple,
}
"""How each layer of a neural network is written."""
