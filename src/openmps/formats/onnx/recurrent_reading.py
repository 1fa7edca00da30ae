"""Recurrent layers out of ONNX files, and out of PyTorch's modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSFileError, MPSOperatorError, MPSTypeError
from openmps.formats.onnx.dense import MOVERS, PRODUCTS, DenseLayer, constants_of, dense_layer, readers_of
from openmps.formats.onnx.model import Model, Node
from openmps.formats.onnx.module_checks import check_readable
from openmps.formats.onnx.problems import READER, NodeError
from openmps.formats.onnx.reading import read_model
from openmps.formats.onnx.recurrent import (
    Gates,
    RecurrentLayer,
    Row,
    check_reset,
    descriptor,
    read_activations,
)
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm, RecurrentCell, SingleGate
from openmps.types import MPSCNNNeuronType as Neuron

_MODULES = "openmps.formats.onnx.recurrent_layers_of"
_SEQUENCES = "openmps.formats.onnx.sequence_layers_of"
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
ORDERS = {"LSTM": [0, 2, 3, 1], "GRU": [0, 1, 2], "RNN": [0]}
"""Where ONNX has each gate: i, o, f, c of an LSTM, which are i, f, c, o here."""
PEEPHOLES = {0: 0, 1: 2, 3: 1}
"""Where it has the peephole of a gate: i, o, f."""
_OTHER = "Leave it out of the file, and encode its kernel yourself"
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent_layers(path: str | os.PathLike[str]) -> list[RecurrentLayer]:
    """The recurrent layers of an ONNX file, the operators LSTM, GRU and RNN, in the file's order.

    What else the file has is not looked at. `MPSRNNMatrixInferenceLayer` takes their `RecurrentLayer.descriptors`.

    Raises:
        MPSOperatorError: Layers that the framework cannot express: all of them.
        MPSFileError: There is no file, it is no ONNX model or a damaged one, or it has no recurrent layer.
        MPSError: The onnx package is not installed.
    """
    return recurrent_layers_in(read_model(path), os.fspath(path), READER, _is_layer)


def recurrent_layers_in(model: Model, what: str, who: str, is_layer: Callable[[Node], bool]) -> list[RecurrentLayer]:
    """The same of a model in a file ``what``, of those nodes that are recurrent layers."""
    found = _layers(model, what, who, [*filter(is_layer, model.nodes)])
    if not found:
        raise MPSFileError(who, what, "must have a recurrent layer: an LSTM, a GRU or an RNN")
    return [each for each in found if isinstance(each, RecurrentLayer)]


def _is_layer(node: Node) -> bool:
    return node.operator in ORDERS and not node.domain


def sequence_layers(path: str | os.PathLike[str]) -> list[RecurrentLayer | DenseLayer]:
    """The recurrent and the fully connected layers of an ONNX file of a sequence, in the file's order.

    LSTM, GRU and RNN are as `recurrent_layers` reads them, MatMul and Gemm by a constant matrix are `DenseLayer`, with
    an Add of a constant behind a MatMul as its bias. Operators between them that move numbers are not looked at: what
    lies where, and which step is taken, is the caller's to see to. Others are refused.

    Raises:
        MPSOperatorError: Layers that the framework cannot express, and operators that are none: all of them.
        MPSFileError: There is no file, it is no ONNX model or a damaged one, or it has no such layer.
        MPSError: The onnx package is not installed.
    """
    return sequence_layers_in(read_model(path), os.fspath(path), READER)


def sequence_layers_in(model: Model, what: str, who: str) -> list[RecurrentLayer | DenseLayer]:
    """The same of a model in a file ``what``."""
    found = _layers(model, what, who, [node for node in model.nodes if node.domain or node.operator not in MOVERS])
    if not found:
        raise MPSFileError(who, what, "must have a recurrent layer, a MatMul or a Gemm")
    return found


def _layers(model: Model, what: str, who: str, nodes: Sequence[Node]) -> list[RecurrentLayer | DenseLayer]:
    """What these nodes are; raises what stands in the way of any of them."""
    found, problems, taken = list[RecurrentLayer | DenseLayer](), list[dict[str, str]](), list[Node]()
    constants, readers = constants_of(model), readers_of(model)
    for node in nodes:
        try:
            if node.refusal is not None:
                raise node.refusal
            if _is_layer(node):
                found.append(_layer(node, constants))
            elif node.operator in PRODUCTS and not node.domain:
                layer, added = dense_layer(node, constants, readers)
                found.append(layer)
                taken += [] if added is None else [added]
            elif not any(node is each for each in taken):
                raise NodeError("it is neither a layer of a sequence nor does it only move numbers", _OTHER)
        except NodeError as problem:
            operator = node.original or node.operator
            problems.append({"node": node.title, "operator": operator, "why": problem.why, "remedy": problem.remedy})
    if problems:
        raise MPSOperatorError(who, what, problems)
    return found


def _layer(node: Node, constants: Mapping[str, NDArray[Any]]) -> RecurrentLayer:
    if node.fault:
        raise NodeError(node.fault)
    directions = _DIRECTIONS.get(node.text("direction", "forward"))
    if directions is None:
        raise NodeError(f"its direction is {node.text('direction', '')!r}", "It may be forward, reverse, bidirectional")
    for name, why in (("clip", "clips what gates get"), ("input_forget", "couples the input and the forget gate")):
        if node.given(name) and node.decimal(name, 0.0):
            raise NodeError(f"it {why}, by {name}", "Train a layer that does not")
    names = (*node.inputs, *[""] * 8)
    if names[4]:
        raise NodeError("its sequence_lens says how long each sequence is", "Leave it out, and end rows of later steps")
    for place, what in ((5, "initial_h"), (6, "initial_c")):
        if names[place] in constants and constants[names[place]].any():
            raise NodeError(f"its {what} is a constant that is not 0", "Make it an input of the model")
    weights, recurrent, biases, peepholes = _arrays(node, names, constants, len(directions))
    given = node.attributes.get("activations", _USUAL[node.operator] * len(directions))
    if not isinstance(given, list) or len(given) != len(_USUAL[node.operator]) * len(directions):
        count = len(_USUAL[node.operator]) * len(directions)
        raise NodeError(f"its activations are not {count}, those of each direction")
    alphas, betas = (node.decimals(f"activation_{which}", []) for which in ("alpha", "beta"))
    activations = read_activations([str(each) for each in given], alphas, betas)
    made = []
    for index, is_backward in enumerate(directions):
        own = activations[index * len(activations) // len(directions) :]
        parts = _gates(node, weights[index], recurrent[index], biases[index], peepholes[index])
        made.append(descriptor(_cell(node.operator, own), parts, node.title, is_backward=is_backward))
    is_batch_first = node.integer("layout", 0) == 1
    return RecurrentLayer(node.title, tuple(made), directions == (True,), is_batch_first)


def _arrays(
    node: Node, names: tuple[str, ...], constants: Mapping[str, NDArray[Any]], directions: int
) -> tuple[Row, Row, Row, Row]:
    """W, R, B and P of all directions; what is left out is 0."""
    count = len(ORDERS[node.operator])
    for place, what in ((1, "W"), (2, "R"), (3, "B"), (7, "P")):
        if names[place] and names[place] not in constants:
            raise NodeError(f"its {what} is no constant", "Export the model with its weights as initializers")
    size = node.integer("hidden_size", 0) or constants[names[2]].shape[-1]
    weights = constants[names[1]]
    inputs = weights.shape[-1] if weights.ndim else 0
    wanted = {
        1: (directions, count * size, inputs), 2: (directions, count * size, size), 3: (directions, 2 * count * size),
        7: (directions, 3 * size),
    }  # fmt: skip
    found: list[Row] = []
    for place, shape in wanted.items():
        array = constants[names[place]] if names[place] else np.zeros(shape, np.float32)
        if array.dtype.name not in ("float32", "float16"):
            raise NodeError(f"its {'-WRB---P'[place]} is of {array.dtype}, which float32 does not hold")
        if array.shape != shape or not all(shape):
            raise NodeError(f"its {'-WRB---P'[place]} has shape {array.shape}, and not {shape}")
        found.append(array.astype(np.float32))
    weights, recurrent, biases, peepholes = found
    return weights, recurrent, biases, peepholes


def _gates(node: Node, weights: Row, recurrent: Row, biases: Row, peepholes: Row) -> Gates:
    """The weights of one direction in the order of the mathematics."""
    order, own, other = ORDERS[node.operator], *np.split(biases, 2)
    inputs, states, first, second = (
        [np.split(each, len(order))[place] for place in order] for each in (weights, recurrent, own, other)
    )
    if node.operator == "GRU" and node.integer("linear_before_reset", 0):
        check_reset(states[2], second[2])
    memories = np.split(peepholes, 3)
    kept = {gate: memories[place] for gate, place in PEEPHOLES.items()} if peepholes.any() else {}
    return Gates(inputs, states, [one + two for one, two in zip(first, second, strict=True)], kept)


def _cell(operator: str, activations: list[Activation]) -> RecurrentCell:
    if operator == "LSTM":
        f, g, h = activations[:3]
        return Lstm((f, f, g, f), h)
    if operator == "GRU":
        f, g = activations[:2]
        return Gru((f, f, g))
    return SingleGate(activations[0])


# --- modules ----------------------------------------------------------------------------------------------------------

_SIGMOID, _TANH = Activation(Neuron.SIGMOID), Activation(Neuron.TANH, 1.0, 1.0)


def _single(module: torch.nn.RNN) -> SingleGate:
    return SingleGate(_TANH if module.nonlinearity == "tanh" else Activation(Neuron.RELU))


_CELLS: Mapping[type, tuple[Callable[[Any], RecurrentCell], list[int]]] = {
    torch.nn.LSTM: (lambda _: Lstm((_SIGMOID, _SIGMOID, _TANH, _SIGMOID), _TANH), [0, 1, 2, 3]),
    torch.nn.GRU: (lambda _: Gru((_SIGMOID, _SIGMOID, _TANH)), [1, 0, 2]),
    torch.nn.RNN: (_single, [0]),
}
"""The cell of a module, and where it has each gate: r, z, n of a GRU, which are z, r, h here."""


def recurrent_layers_of(module: torch.nn.Module) -> list[RecurrentLayer]:
    """The layers of a ``torch.nn.LSTM``, ``GRU`` or ``RNN``, the first one first, with the weights as they are now.

    PyTorch resets a GRU behind the product with the recurrent weights of the candidate, the framework before it: they
    give the same where these weights are diagonal and their bias is 0, and others are refused.

    Raises:
        MPSTypeError: It is another module.
        MPSArgumentError: It projects its outputs, or has weights of another type than float32 and float16.
        MPSOperatorError: It is a GRU whose reset gate cannot be expressed, or has parameters without numbers.
    """
    kind = next((each for each in type(module).__mro__ if each in _CELLS), None)
    if kind is None:
        rule = "must be a torch.nn.LSTM, GRU or RNN"
        raise MPSTypeError(_MODULES, "module", rule, type(module).__name__, "Take it out of its module")
    given: Any = module
    check_readable([*given.named_parameters()])
    if given.proj_size:
        raise MPSArgumentError(_MODULES, "module", "must not project its outputs", f"proj_size={given.proj_size}")
    make, order = _CELLS[kind]
    found: list[RecurrentLayer] = []
    for index in range(given.num_layers):
        made = []
        for suffix in ("", "_reverse") if given.bidirectional else ("",):
            name = f"l{index}{suffix}"
            gates = _of_module(given, name, order)
            made.append(descriptor(make(given), gates, name, is_backward=bool(suffix)))
        found.append(RecurrentLayer(f"l{index}", tuple(made), is_batch_first=given.batch_first))
    return found


def sequence_layers_of(module: torch.nn.Module) -> list[RecurrentLayer | DenseLayer]:
    """The layers of a module of recurrent ones and ``torch.nn.Linear``, in the order in which it registers them.

    Modules within it are gone through in their turn; what its ``forward`` does between them is not looked at. Dropout,
    which does nothing when a model infers, and Identity are passed over.

    Raises:
        MPSTypeError: It has a module of another kind.
        MPSArgumentError: As `recurrent_layers_of`, also for weights of ``torch.nn.Linear``.
        MPSOperatorError: As `recurrent_layers_of`.
    """
    if not isinstance(module, torch.nn.Module):
        raise MPSTypeError(_SEQUENCES, "module", "must be a torch.nn.Module", type(module).__name__)
    found: list[RecurrentLayer | DenseLayer] = []
    for name, each in _leaves(module, ""):
        if isinstance(each, (*_CELLS,)):
            found += recurrent_layers_of(each)
        elif isinstance(each, torch.nn.Linear):
            found.append(_dense_of(each, name))
        elif not isinstance(each, torch.nn.Dropout | torch.nn.Identity):
            rule = "must have recurrent layers and torch.nn.Linear alone"
            raise MPSTypeError(_SEQUENCES, name or "module", rule, type(each).__name__, "Encode its kernel yourself")
    return found


def _leaves(module: torch.nn.Module, name: str) -> list[tuple[str, torch.nn.Module]]:
    """Modules that have no others, with their names; recurrent layers count as such."""
    children = [*module.named_children()]
    if not children or isinstance(module, (*_CELLS,)):
        return [(name, module)]
    return [leaf for own, each in children for leaf in _leaves(each, f"{name}.{own}".lstrip("."))]


def _dense_of(module: torch.nn.Linear, name: str) -> DenseLayer:
    check_readable([*module.named_parameters()])
    parameters = dict(module.named_parameters())
    tensors = [parameters[each] for each in ("weight", "bias") if each in parameters]
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float16):
            raise MPSArgumentError(_SEQUENCES, name, "must have weights of float32 or float16", tensor.dtype)
    weights, *biases = [each.detach().cpu().float().numpy().copy() for each in tensors]
    return DenseLayer(name, np.ascontiguousarray(weights.T), biases[0] if biases else None)


def _of_module(module: Any, name: str, order: list[int]) -> Gates:
    arrays: dict[str, list[Row]] = {}
    for what in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        if what.startswith("bias") and not module.bias:
            array = np.zeros(len(order) * module.hidden_size, np.float32)
        else:
            tensor = getattr(module, f"{what}_{name}").detach().cpu()
            if tensor.dtype not in (torch.float32, torch.float16):
                rule = "must have weights of float32 or float16"
                raise MPSArgumentError(_MODULES, f"{what}_{name}", rule, tensor.dtype)
            array = tensor.float().numpy().copy()
        parts = np.split(array, len(order))
        arrays[what] = [parts[place] for place in order]
    if isinstance(module, torch.nn.GRU):
        try:
            check_reset(arrays["weight_hh"][2], arrays["bias_hh"][2])
        except NodeError as problem:
            said = {"node": name, "operator": "GRU", "why": problem.why, "remedy": problem.remedy}
            raise MPSOperatorError(_MODULES, "module", [said]) from None
    biases = [one + two for one, two in zip(arrays["bias_ih"], arrays["bias_hh"], strict=True)]
    return Gates(arrays["weight_ih"], arrays["weight_hh"], biases, {})
