"""PyTorch modules as networks: what ``torch.export`` traces, read as an ONNX model would be."""

from __future__ import annotations

import logging
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.core.kinds import listed
from openmps.core.numbers import integer
from openmps.errors import MPSOperatorError, MPSTypeError
from openmps.formats.module_modes import evaluation_mode
from openmps.formats.onnx import dropouts, module_windows
from openmps.formats.onnx.build import build
from openmps.formats.onnx.constants import lengths
from openmps.formats.onnx.layout import Atom
from openmps.formats.onnx.model import Array, Attribute, Model, Node
from openmps.formats.onnx.model import Tensor as Port
from openmps.formats.onnx.module_checks import WHO, check_outputs, check_readable, check_written
from openmps.formats.onnx.network import checked_sources, network_of
from openmps.formats.onnx.problems import DEFAULT_FILL, NodeError, unknown
from openmps.formats.onnx.sources import DataSources, FixedSources
from openmps.formats.onnx.torch_network import TorchNetwork, torch_network

_OPSET = 21
_SEEDS = 1 << 64
_FLOAT = 1
_SWITCHED = "Let the module's mode switch it: nn.Dropout, or F.dropout(x, p, self.training)"
_CUT = "Leave it out of the module, or take it apart into operators that the framework has"


def from_torch(
    module: torch.nn.Module,
    example: Tensor | Sequence[Tensor],
    *,
    trainable: bool | DataSources = False,
    dropout_seed: int = 0,
) -> TorchNetwork:
    """The nodes of a PyTorch module, traced by ``torch.export`` with example inputs.

    The first axis of every example is the batch, which varies. The module is traced in evaluation mode, and left as it
    was. Inputs are called as the arguments of ``forward``, outputs ``output``, or ``output_0``, ``output_1``, …;
    ``trainable`` is that of `network`.

    Where ``trainable`` makes data sources that train, each dropout is an `MPSCNNDropoutNode` of the network, as in the
    module's training mode, and `TorchNetwork.inference`, with `TorchNetwork.graph` and `TorchNetwork.model`, has none,
    as in its evaluation mode. The masks of the dropout number i are those of the seed ``dropout_seed + i``, reduced to
    64 bits: other ones than PyTorch's.

    Raises:
        MPSOperatorError: Operators that the framework's nodes cannot express: all of them; or the module cannot be
            traced, or has parameters without numbers.
        MPSTypeError: ``module`` is no module, or an example no tensor.
    """
    given = [example] if isinstance(example, Tensor) else listed(WHO, "example", example, object, "tensors")
    examples: tuple[Any, ...] = tuple(given)
    if not isinstance(module, torch.nn.Module):
        raise MPSTypeError(WHO, "module", "must be a torch.nn.Module", type(module).__name__)
    if not examples or not all(isinstance(each, Tensor) and each.ndim for each in examples):
        rule = "must be a tensor, or several, with the batch as first axis"
        raise MPSTypeError(WHO, "example", rule, [type(each).__name__ for each in examples])
    check_readable([*module.named_parameters(), *module.named_buffers()])
    sources, is_trainable = checked_sources(trainable)
    seed = integer(WHO, "dropout_seed", dropout_seed, most=_SEEDS - 1, rule="must be an integer of 0 to 2**64 - 1")
    is_trained = not isinstance(sources, FixedSources)
    traced = _Traced(_program(module, examples), module, is_trained=is_trained, dropout_seed=seed)
    model, made = traced.model(), list[Any]()
    options: dict[str, Any] = {
        "trainable": is_trainable, "shapes": {}, "outputs": None, "fill_limit": DEFAULT_FILL,
        "what": type(module).__name__,
    }  # fmt: skip
    built = build(model, sources=dropouts.kept_in(made, sources) if is_trained else sources, **options)
    inference = None
    if dropouts.drops_out(model):
        inference = network_of(build(dropouts.without_dropout(model), sources=dropouts.again(made, sources), **options))
    return torch_network(network_of(built), module, traced.targets, built.learnt, traced.parameters, inference)


def _program(module: torch.nn.Module, examples: tuple[Tensor, ...]) -> Any:
    """The traced module, with a batch that varies where it can."""
    try:
        # A batch of one would be taken for a length that never changes.
        pairs = tuple(torch.cat([each, each]) if len(each) == 1 else each for each in examples)
        auto = torch.export.Dim.AUTO  # pyright: ignore[reportAttributeAccessIssue]
        with evaluation_mode(module), _unlogged():
            return torch.export.export(module, pairs, dynamic_shapes=tuple({0: auto} for _ in pairs))
    except Exception as error:  # of whatever the module does
        why = f"torch.export cannot trace it ({type(error).__name__}: {str(error)[:200]})"
        problem = {"node": type(module).__name__, "operator": "module", "why": why, "remedy": ""}
        raise MPSOperatorError(WHO, "module", [problem]) from error


@contextmanager
def _unlogged() -> Generator[None]:
    """Without what ``torch.export`` writes of its own: a failure's traceback, attributes that layers set meanwhile."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attribute")
            yield
    finally:
        log.disabled = was


class _Traced:
    """A traced program on its way to a model."""

    def __init__(self, program: Any, module: torch.nn.Module, *, is_trained: bool, dropout_seed: int) -> None:
        self._program, self._module, self.is_trained = program, module, is_trained
        self._seed = dropout_seed
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        signature = program.graph_signature
        self.targets: dict[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        """The module's names of constants."""
        self.parameters = self._trained() if is_trained else None
        self._problems: list[dict[str, str]] = []
        self._title = ""
        self.layer = module
        """The layer that the operator is of."""
        self._titles: Counter[str] = Counter()

    def _trained(self) -> frozenset[str]:
        """The parameters that are read, and are not frozen."""
        own = dict(self._module.named_parameters(remove_duplicate=False))
        read = {node.name for node in self._program.graph.nodes if node.op == "placeholder" and node.users}
        return frozenset(
            name
            for name, target in self._program.graph_signature.inputs_to_parameters.items()
            if name in read and own[target].requires_grad
        )

    def model(self) -> Model:
        """The model; raises `MPSOperatorError` for operators that have none in ONNX's table."""
        state = {**self._program.state_dict, **self._program.constants}
        held = {**self.targets, **self._program.graph_signature.inputs_to_lifted_tensor_constants}
        check_readable([(target, state[target]) for target in held.values()])
        for name, target in held.items():
            self.constants[name] = _array(state[target])
        size = sum(each.nbytes for each in self.constants.values())
        inputs: list[Port] = []
        outputs: list[Port] = []
        for node in self._program.graph.nodes:
            if node.op == "placeholder" and node.name not in held:
                shape = node.meta["val"].shape
                inputs.append(Port(node.name, _FLOAT, ("n", *(int(length) for length in shape[1:]))))
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = self._outputs(node.args[0])
        if self._problems:
            raise MPSOperatorError(WHO, "module", self._problems)
        nodes = tuple(self.nodes)
        return Model(tuple(inputs), tuple(outputs), self.constants, nodes, _OPSET, size, parameters=self.parameters)

    def _begin(self, node: Any) -> None:
        """Know what the operators to come are of: a node of the program."""
        stack = [*node.meta.get("nn_module_stack", {}).values()]
        path = stack[-1][0].partition("@")[0] if stack else ""
        self.layer = self._module.get_submodule(path)
        self._title = self._titled(node, path)

    def is_in_mode(self, *, training: bool) -> bool:
        """Whether the layer is in this mode, in a module that is in training mode; False in one that is not."""
        return self._module.training and self.layer.training is training

    def _titled(self, node: Any, path: str) -> str:
        """What a node is called: as the layer that it is, its further uses with a number; else within that it is of."""
        weights = [self.targets[each.name] for each in node.all_input_nodes if each.name in self.targets]
        if path and not [*self.layer.children()]:
            title = path
        elif weights:
            title = weights[0].removesuffix(".weight")
        else:
            return f"{path}.{node.name}" if path else str(node.name)
        self._titles[title] += 1
        return title if self._titles[title] == 1 else f"{title} {self._titles[title]}"

    def _outputs(self, given: Sequence[Any]) -> list[Port]:
        names = ["output"] if len(given) == 1 else [f"output_{place}" for place in range(len(given))]
        check_outputs(names, given)
        for name, node in zip(names, given, strict=True):
            self._title = name
            self.add("Identity", [node.name], name)
        return [Port(name, _FLOAT, None) for name in names]

    def _call(self, node: Any) -> None:
        name = str(node.target)
        if _is_length(node):
            return
        self._title = str(node.name)
        try:
            self._begin(node)
            if name not in CALLS:
                raise unknown(name.removeprefix("aten.").partition(".")[0], _CUT)
            schema = node.target._schema.arguments
            check_written(node, self.targets)
            given = {each.name: each.default_value for each in schema if each.has_default_value()}
            given |= {each.name: value for each, value in zip(schema, node.args, strict=False)}
            CALLS[name](self, node.name, {**given, **node.kwargs})
        except (NodeError, KeyError, TypeError, ValueError, AttributeError) as error:  # of what no table foresees
            known = isinstance(error, NodeError)
            problem = error if known else NodeError(f"its operands are not as expected ({type(error).__name__})", _CUT)
            title = {"node": self._title, "operator": name, "why": problem.why, "remedy": problem.remedy}
            self._problems.append(title)

    # --- parts --------------------------------------------------------------------------------------------------------

    def next_seed(self) -> int:
        """The seed of the next dropout."""
        seed, self._seed = self._seed, (self._seed + 1) % _SEEDS
        return seed

    def add(self, kind: str, inputs: Sequence[Any], output: str, **attributes: Attribute) -> None:
        """An operator; its inputs are nodes, names, numbers or None."""
        self.nodes.append(Node(self._title, kind, "", tuple(map(self.name, inputs)), (output,), attributes))

    def name(self, value: Any) -> str:
        """The name of an operand; a number becomes a constant."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, int | float):
            return self.constant(np.array(value, np.float32))
        if _is_length(value):
            raise NodeError(
                "it computes with a length that is not known, as of the batch", "Give the length as a number"
            )
        return value.name

    def constant(self, value: Array) -> str:
        """A new constant, by its name."""
        name = f"constant:{len(self.constants)}"
        self.constants[name] = value
        return name

    def row(self, values: Sequence[Any]) -> str:
        """A row of lengths; a node among them is one that is not known: the batch, or computed of it."""
        return self.constant(lengths([each if isinstance(each, int) else _varying(each) for each in values]))


def _array(value: Tensor) -> Array:
    """The numbers of a tensor; those of bfloat16, which NumPy does not know, as float32."""
    return (value.float() if value.dtype is torch.bfloat16 else value).detach().cpu().numpy()


def _is_length(node: Any) -> bool:
    """Whether a node is a length that is not known when the module is traced, or computed of one."""
    is_computed = node.target in (operator.mul, operator.add, operator.floordiv)
    return is_computed or str(node.target).startswith("aten.sym_size")


def _varying(node: Any) -> Atom | None:
    """The batch, which alone varies; None for a length that is computed of it."""
    return Atom(None) if str(node.target).startswith("aten.sym_size") else None


Call = Callable[[_Traced, str, dict[str, Any]], None]


def _plain(kind: str, *names: str, **attributes: str) -> Call:
    """An operator with operands and attributes of these names."""

    def call(traced: _Traced, output: str, given: dict[str, Any]) -> None:
        found: dict[str, Attribute] = {ours: given[theirs] for ours, theirs in attributes.items()}
        traced.add(kind, [given[name] for name in names or ("self",)], output, **found)

    return call


def _normalization(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    if given.get("training"):
        raise NodeError("it normalizes by the batch", "Let it keep running statistics: track_running_stats=True")
    if given["weight"] is None and traced.is_trained:
        rule = "it has no scales and shifts (affine=False), which its data source would train"
        raise NodeError(rule, "Make it with affine=True")
    if traced.parameters is not None and given["weight"] is not None:
        _check_mode(traced, is_trained=given["weight"].name in traced.parameters)
    count = len(traced.constants[given["running_mean"].name])
    rows = [given["weight"] or traced.constant(np.ones(count, np.float32))]
    rows.append(given["bias"] or traced.constant(np.zeros(count, np.float32)))
    inputs = [given["input"], *rows, given["running_mean"], given["running_var"]]
    traced.add("BatchNormalization", inputs, output, epsilon=given["eps"], momentum=1 - given["momentum"])


def _check_mode(traced: _Traced, *, is_trained: bool) -> None:
    """Raise where PyTorch trains a batch normalization otherwise than by the batch, or by the batch a frozen one."""
    if is_trained and traced.is_in_mode(training=False):
        why = "it trains in evaluation mode, by its running statistics: a layer that is trained normalizes by the batch"
        raise NodeError(why, "Freeze its parameters, or let it normalize by the batch: train()")
    if not is_trained and traced.is_in_mode(training=True):
        why = "it is frozen in training mode, by the batch: a layer that is not trained has its running statistics"
        raise NodeError(why, "Call eval() of the layer, or of the module")
    if is_trained and getattr(traced.layer, "momentum", 0) is None:
        why = "its running statistics are the mean of all batches (momentum=None), which no data source keeps"
        raise NodeError(why, "Give it a momentum")


def _linear(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    """One layer, the biases inside: the third input of a product is ours."""
    if given["weight"].name not in traced.constants:
        raise NodeError("it computes its weights from the module's inputs")
    traced.add("Transpose", [given["weight"]], f"{output}:turned", perm=[1, 0])
    biases = [] if given["bias"] is None else [given["bias"]]
    traced.add("MatMul", [given["input"], f"{output}:turned", *biases], output)


def _sum(kind: str) -> Call:
    def call(traced: _Traced, output: str, given: dict[str, Any]) -> None:
        if given.get("alpha", 1) != 1 or given.get("rounding_mode"):
            raise NodeError("its second operand has a factor, or it rounds")
        traced.add(kind, [given["self"], given["other"]], output)

    return call


def _reshape(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    traced.add("Reshape", [given["self"], traced.row(given["size" if "size" in given else "shape"])], output)


def _flatten(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    if given["start_dim"] != 1 or given["end_dim"] != -1:
        raise NodeError("it flattens a part of the axes")
    traced.add("Flatten", [given["self"]], output, axis=1)


def _mean(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    traced.add("ReduceMean", [given["self"]], output, axes=list(given["dim"]), keepdims=int(given["keepdim"]))


def _clamp(low: str, high: str) -> Call:
    def call(traced: _Traced, output: str, given: dict[str, Any]) -> None:
        traced.add("Clip", [given["self"], given[low], given[high]], output)

    return call


def _prelu(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    slopes = traced.constants.get(given["weight"].name)
    if slopes is None:
        raise NodeError("it computes its slopes")
    rank = len(given["self"].meta["val"].shape)
    traced.add("PRelu", [given["self"], traced.constant(slopes.reshape(-1, *[1] * (rank - 2)))], output)


def _softplus(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    if (given["beta"], given["threshold"]) != (1, 20):
        raise NodeError("its beta or threshold is another than 1 and 20")
    traced.add("Softplus", [given["self"]], output)


def _dropout(*, of_channels: bool = False, is_alpha: bool = False) -> Call:
    def call(traced: _Traced, output: str, given: dict[str, Any]) -> None:
        probability, source = given["p"], given["input" if "input" in given else "self"]
        if given["train"]:
            raise NodeError("it drops out, in evaluation mode too", _SWITCHED)
        if not traced.is_trained or not probability or traced.is_in_mode(training=False):
            traced.add("Identity", [source], output)
            return
        if is_alpha or probability >= 1:
            why = "what it drops becomes another number than 0" if is_alpha else "it drops every number"
            raise NodeError(f"{why}: no node of the framework trains it", "Set its p to 0, or use nn.Dropout")
        said = dropouts.attributes(probability, traced.next_seed(), of_channels=of_channels)
        traced.add(dropouts.OPERATOR, [source], output, **said)

    return call


def _resize(mode: str) -> Call:
    def call(traced: _Traced, output: str, given: dict[str, Any]) -> None:
        factors = given.get("scale_factors")
        if factors is None:
            source = given["input"].meta["val"].shape
            factors = [new / int(old) for new, old in zip(given["output_size"], source[2:], strict=True)]
        where = "asymmetric" if mode == "nearest" else "align_corners" if given["align_corners"] else "half_pixel"
        scales = traced.constant(np.array([1, 1, *factors], np.float32))
        more: dict[str, Attribute] = {"nearest_mode": "floor", "coordinate_transformation_mode": where}
        traced.add("Resize", [given["input"], None, scales], output, mode=mode, **more)

    return call


def _instance(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    if not given["use_input_stats"]:
        raise NodeError("it normalizes by running statistics", "Use a batch normalization")
    traced.add("InstanceNormalization", [given["input"], *_rows(given)], output, epsilon=given["eps"])


def _grouped(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    inputs, groups = [given["input"], *_rows(given)], given["num_groups"]
    traced.add("GroupNormalization", inputs, output, epsilon=given["eps"], num_groups=groups)


def _rows(given: dict[str, Any]) -> list[Any]:
    """Scales and shifts, where there are some."""
    return [] if given["weight"] is None else [given["weight"], given["bias"]]


def _concatenation(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    traced.add("Concat", given["tensors"], output, axis=given["dim"])


def _permuted(traced: _Traced, output: str, given: dict[str, Any]) -> None:
    traced.add("Transpose", [given["self"]], output, perm=list(given["dims"]))


CALLS: dict[str, Call] = {
    **module_windows.CALLS,
    "aten.batch_norm.default": _normalization,
    "aten.instance_norm.default": _instance,
    "aten.group_norm.default": _grouped,
    "aten.linear.default": _linear,
    "aten.mean.dim": _mean,
    "aten.relu.default": _plain("Relu"),
    "aten.relu_.default": _plain("Relu"),
    "aten.leaky_relu.default": _plain("LeakyRelu", alpha="negative_slope"),
    "aten.leaky_relu_.default": _plain("LeakyRelu", alpha="negative_slope"),
    "aten.prelu.default": _prelu,
    "aten.elu.default": _plain("Elu", alpha="alpha"),
    "aten.sigmoid.default": _plain("Sigmoid"),
    "aten.tanh.default": _plain("Tanh"),
    "aten.gelu.default": _plain("Gelu", approximate="approximate"),
    "aten.silu.default": _plain("Swish"),
    "aten.silu_.default": _plain("Swish"),
    "aten.mish.default": _plain("Mish"),
    "aten.hardswish.default": _plain("HardSwish"),
    "aten.hardswish_.default": _plain("HardSwish"),
    "aten.hardsigmoid.default": lambda traced, output, given: traced.add(
        "HardSigmoid", [given["self"]], output, alpha=1 / 6, beta=0.5
    ),
    "aten.softplus.default": _softplus,
    "aten.hardtanh.default": _clamp("min_val", "max_val"),
    "aten.hardtanh_.default": _clamp("min_val", "max_val"),
    "aten.relu6.default": lambda traced, output, given: traced.add("Clip", [given["self"], 0.0, 6.0], output),
    "aten.clamp.default": _clamp("min", "max"),
    "aten.abs.default": _plain("Abs"),
    "aten.exp.default": _plain("Exp"),
    "aten.log.default": _plain("Log"),
    "aten.sqrt.default": _plain("Sqrt"),
    "aten.neg.default": _plain("Neg"),
    "aten.softmax.int": _plain("Softmax", axis="dim"),
    "aten.log_softmax.int": _plain("LogSoftmax", axis="dim"),
    "aten.add.Tensor": _sum("Add"),
    "aten.add_.Tensor": _sum("Add"),
    "aten.sub.Tensor": _sum("Sub"),
    "aten.mul.Tensor": _sum("Mul"),
    "aten.mul_.Tensor": _sum("Mul"),
    "aten.div.Tensor": _sum("Div"),
    "aten.cat.default": _concatenation,
    "aten.view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten.flatten.using_ints": _flatten,
    "aten.permute.default": _permuted,
    "aten.contiguous.default": _plain("Identity"),
    "aten.clone.default": _plain("Identity"),
    **dict.fromkeys(("aten.dropout.default", "aten.dropout_.default"), _dropout()),
    **dict.fromkeys(("aten.feature_dropout.default", "aten.feature_dropout_.default"), _dropout(of_channels=True)),
    **dict.fromkeys(("aten.alpha_dropout.default", "aten.alpha_dropout_.default"), _dropout(is_alpha=True)),
    **dict.fromkeys(
        ("aten.feature_alpha_dropout.default", "aten.feature_alpha_dropout_.default"), _dropout(is_alpha=True)
    ),
    "aten.upsample_nearest2d.vec": _resize("nearest"),
    "aten.upsample_bilinear2d.vec": _resize("linear"),
}
"""How each operator that ``torch.export`` leaves is said in ONNX's terms."""
