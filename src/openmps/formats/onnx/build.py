"""From a model to nodes of the framework: each operator by its builder, constants by their folds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from openmps.core.image.image import MPSImage
from openmps.core.kinds import listed, mapped
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSOperatorError
from openmps.formats.onnx import (
    arithmetic,
    convolutions,
    normalizations,
    parts,
    pointwise,
    poolings,
    reductions,
    resizing,
    shapes,
)
from openmps.formats.onnx.constants import FOLDS, ORDERS
from openmps.formats.onnx.joins import with_layers
from openmps.formats.onnx.layout import Atom, Atoms, Layout, atoms
from openmps.formats.onnx.learning import Learning, Learnt
from openmps.formats.onnx.model import Array, Model, Node, Tensor
from openmps.formats.onnx.patterns import joined
from openmps.formats.onnx.pictures import Picture
from openmps.formats.onnx.ports import shape_text
from openmps.formats.onnx.problems import READER, Budget, NodeError, Problem, ShapeError, unknown
from openmps.formats.onnx.site import Builder, Site, Value
from openmps.formats.onnx.sources import DataSources
from openmps.formats.onnx.tensors import dtype_of
from openmps.formats.onnx.whole_numbers import WholeNumbers
from openmps.graph.nodes.neuron import MPSCNNNeuronNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.types import MPSCNNNeuronType

BUILDERS: Mapping[str, Builder] = {
    **convolutions.BUILDERS,
    **poolings.BUILDERS,
    **pointwise.BUILDERS,
    **arithmetic.BUILDERS,
    **normalizations.BUILDERS,
    **reductions.BUILDERS,
    **shapes.BUILDERS,
    **parts.BUILDERS,
    **resizing.BUILDERS,
}
"""Every operator that nodes can express, by its type."""

CONSTANT_INPUTS: Mapping[str, Mapping[int, str]] = {
    "Conv": {1: "weights", 2: "biases"},
    "ConvTranspose": {1: "weights", 2: "biases"},
    "MatMul": {1: "second matrix", 2: "biases"},
    "Gemm": {1: "matrix B", 2: "matrix C"},
    "PRelu": {1: "slopes"},
}
"""Inputs that builders want to be constants, and what they are."""
_TO_PLANES = [0, 3, 1, 2]
_LONGEST = 120  # characters of a message that is not ours
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Built:
    """What was made of a model: the images of its inputs and outputs, and their axes."""

    inputs: list[tuple[Tensor, Picture]]
    outputs: list[tuple[str, int, Picture]]
    learnt: list[Learnt]
    """The constants that data sources train."""


def build(
    model: Model,
    *,
    sources: DataSources,
    trainable: bool,
    shapes: Shapes,
    outputs: Sequence[str] | None,
    fill_limit: int,
    what: str,
    who: str = READER,
) -> Built:
    """Nodes for a model, which ``who`` has read.

    Raises:
        MPSOperatorError: Some operators cannot be expressed: all of them.
        MPSArgumentError: A shape is none of an input, or an output is not there.
    """
    mapped(who, "shapes", shapes, object, "shapes")
    outputs = None if outputs is None else listed(who, "outputs", outputs, str, "text")
    return _Build(model, sources, trainable, fill_limit, who).run(shapes, outputs, what)


class _Build:
    def __init__(self, model: Model, sources: DataSources, trainable: bool, fill_limit: int, who: str) -> None:
        self._model, self._who = model, who
        self._problems: list[Problem] = []
        self._invalid = 0
        """Problems that are the file's own."""
        self._given: list[str] = []
        """Inputs with lengths that the file leaves open and the caller gave."""
        self._failed: set[str] = set()
        self._lost: set[str] = set()
        """Those of the failed values that depend on constants alone."""
        values: dict[str, Value] = dict(model.constants)
        budget = Budget(model.size, fill_limit)
        learning = Learning(sources, model.constants, model.parameters)
        self._at = Site(values, Counter(), model.opset, trainable, learning, budget)
        self._whole = WholeNumbers(self._at)

    def run(self, shapes: Shapes, outputs: Sequence[str] | None, what: str) -> Built:
        wanted = self._wanted(outputs)
        self._model = with_layers(joined(self._model, wanted), wanted, biases=self._at.trainable)
        nodes = self._live(wanted)
        self._at.readers = Counter([*wanted, *(name for node in nodes for name in node.inputs if name)])
        self._whole.inner.update(name for node in nodes for name in node.inputs)
        inputs = self._inputs(shapes, nodes)
        for node in nodes:
            self._node(node)
        found = [self._output(name) for name in wanted]
        self._at.budget.check(what, self._who)
        if self._problems:
            raise MPSOperatorError(self._who, what, [problem._asdict() for problem in self._problems], self._invalid)
        self._at.learning.still(each.image for each in found if each is not None)
        kinds = self._model.kinds()
        return Built(
            [(tensor, picture) for tensor, picture in inputs if self._at.readers[tensor.name]],
            [
                (name, kinds[name].kind if name in kinds else 1, each)
                for name, each in zip(wanted, found, strict=True)
                if each
            ],
            self._at.learning.learnt,
        )

    # --- what is needed -----------------------------------------------------------------------------------------------

    def _wanted(self, outputs: Sequence[str] | None) -> list[str]:
        own = [tensor.name for tensor in self._model.outputs]
        if outputs is None:
            return own
        made = {name: name for node in self._model.nodes for name in node.outputs if name}
        # A node's name stands for its first output.
        made = {node.name: node.outputs[0] for node in self._model.nodes if node.name and node.outputs} | made
        for name in outputs:
            if name not in made:
                near = get_close_matches(name, made, 3)
                remedy = f"Alike are {', '.join(near)}" if near else f"Its own outputs are {', '.join(own[:8])}"
                raise MPSArgumentError(self._who, "outputs", "must be names of values of the model", repr(name), remedy)
        found = [made[name] for name in outputs]
        if not outputs or len(set(found)) < len(found):
            raise MPSArgumentError(self._who, "outputs", "must be at least one, all different", list(outputs))
        return found

    def _live(self, wanted: Sequence[str]) -> list[Node]:
        """The nodes that outputs depend on, in the model's order."""
        needed, found = set(wanted), list[Node]()
        for node in reversed(self._model.nodes):
            if needed.intersection(name for name in node.outputs if name):
                needed.update(node.inputs)
                found.append(node)
        return found[::-1]

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(self, shapes: Shapes, nodes: Sequence[Node]) -> list[tuple[Tensor, Picture]]:
        by_name = {tensor.name: tensor for tensor in self._model.inputs}
        for name in shapes:
            if name not in by_name:
                rule = f"must be of inputs, {', '.join(map(repr, [*by_name][:8]))}"
                raise MPSArgumentError(self._who, "shapes", rule, repr(name))
        read = [tensor for tensor in self._model.inputs if self._at.readers[tensor.name]]
        tensors = [_shaped(tensor, shapes.get(tensor.name), self._who) for tensor in read]
        self._given = [
            f"{new.name[:80]}={shape_text(new.lengths or ())}"
            for own, new in zip(read, tensors, strict=True)
            if (own.lengths or (None,))[1:] != (new.lengths or (None,))[1:]
        ]
        batch = Atom(_batch(tensors))
        found: list[tuple[Tensor, Picture]] = []
        for tensor in tensors:
            readers = [node for node in nodes if tensor.name in node.inputs]
            try:
                layout = _layout(tensor, batch, readers)
            except NodeError as problem:
                self._problems.append(Problem(tensor.name, "input", problem.why, problem.remedy))
                self._failed.add(tensor.name)
                continue
            picture = Picture(MPSNNImageNode(Handle(tensor.name)), layout)
            self._at.values[tensor.name] = picture
            self._whole.add(tensor.name, tensor.kind)
            found.append((tensor, picture))
        return found

    # --- operators ----------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        try:
            made = self._made(node)
        except ShapeError as problem:
            self._list(node, *self._contradiction(problem))
        except NodeError as problem:
            self._list(node, problem.why, problem.remedy)
        except MPSFileError:
            raise
        except MPSError as error:
            self._list(node, f"its node refuses it: {error}"[: 4 * _LONGEST])
        except Exception as error:  # what a damaged model makes of numbers and shapes
            self._list(node, f"it says what no tensor is ({type(error).__name__}: {str(error)[:_LONGEST]})")
        else:
            if made is not None:
                self._keep(node, made)

    def _contradiction(self, problem: NodeError) -> tuple[str, str]:
        """What to say of shapes that do not fit: the file is wrong, unless a caller gave lengths that it does not."""
        if self._given:
            return problem.why, f"Give another shape than {', '.join(self._given)}"
        self._invalid += 1
        return f"the model contradicts itself: {problem.why}", _INVALID

    def _made(self, node: Node) -> Value | Sequence[Value | None] | None:
        """The outputs of a node; None where an input is missing that another problem has taken away."""
        if node.refusal is not None:
            raise node.refusal
        is_known = not node.domain and (node.operator in BUILDERS or node.operator in FOLDS)
        if not is_known:
            where = f", an operator of {node.domain[:40]}" if node.domain else ""
            raise unknown("" if node.domain else node.operator, _CUT, where, self._who)
        if node.fault:
            self._invalid += 1
            raise NodeError(f"it is no {node.operator[:40]} of ONNX: {node.fault}", _INVALID)
        for name in node.inputs:
            if name in self._model.unread:
                raise NodeError(f"its input {name[:80]!r} cannot be read: {self._model.unread[name]}")
        if self._failed.intersection(node.inputs):
            self._check_constants(node)
            self._lose(node)
            return None
        values = [self._at.value(node, index) for index in range(len(node.inputs))]
        constants = [value for value in values if not isinstance(value, Picture)]
        if len(constants) == len(values) and node.operator in FOLDS:
            return self._folded(node, constants)
        if node.operator not in BUILDERS:
            raise NodeError("the framework does it with constants only", _CUT)
        self._whole.check(node)
        return BUILDERS[node.operator](self._at, node)

    def _folded(self, node: Node, constants: Sequence[Array | None]) -> Array:
        """The result of an operator on constants."""
        fold, budget, opset = FOLDS[node.operator], self._at.budget, self._at.opset
        if node.operator in ORDERS:
            self._at.learning.follow(node, lambda array: fold(node, [array, *constants[1:]], budget, opset))
        return fold(node, constants, budget, opset)

    def _check_constants(self, node: Node) -> None:
        """List what is wrong with a node whatever the inputs are that another problem has taken away."""
        for index, what in CONSTANT_INPUTS.get(node.operator, {}).items():
            name = node.inputs[index] if index < len(node.inputs) else ""
            if name and (name in self._failed - self._lost or isinstance(self._at.values.get(name), Picture)):
                self._at.refuse_computed(what)

    def _lose(self, node: Node) -> None:
        """Take away the outputs of a node. Those of a node of constants alone are lost constants."""
        outputs = {name for name in node.outputs if name}
        self._failed |= outputs
        if not any(
            isinstance(self._at.values.get(name), Picture) or name in self._failed - self._lost for name in node.inputs
        ):
            self._lost |= outputs

    def _keep(self, node: Node, made: Value | Sequence[Value | None]) -> None:
        several = made if isinstance(made, list | tuple) else [made]
        for name, value in zip(node.outputs, several, strict=False):
            if name and value is not None:
                self._at.values[name] = value  # type: ignore[assignment]
        for name in node.outputs:
            if name and name not in self._at.values and self._at.readers[name]:
                self._list(node, f"its output {name[:80]!r} is not offered")

    def _list(self, node: Node, why: str, remedy: str = "") -> None:
        operator = node.original or (f"{node.domain}.{node.operator}" if node.domain else node.operator)
        before = next((name for name in node.inputs if isinstance(self._at.values.get(name), Picture)), None)
        if remedy == _CUT and before in {tensor.name for tensor in self._model.inputs}:
            remedy = _WITHOUT  # nothing of the model is left before it
        if "outputs=[…]" in remedy and before is not None:
            remedy = remedy.replace("[…]", f"[{before[:80]!r}]").replace("--result", f"--result {before[:80]}")
        self._problems.append(Problem(node.title, operator, why, remedy))
        self._lose(node)

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _output(self, name: str) -> Picture | None:
        """The picture of an output; an image that a filter makes, for graphs give no other."""
        if name in self._failed:
            return None
        value = self._at.values.get(name)
        if not isinstance(value, Picture):
            why = "the output does not depend on the model's inputs"
            self._problems.append(Problem(name, "output", why, "Leave it out, with outputs=[…] or --result"))
            return None
        if value.image.producer is None:
            same = MPSCNNNeuronNode(value.image, MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, 1.0, 0.0))
            value = Picture(same.result_image, value.layout)
        if value.image.handle is None:
            value.image.handle = Handle(name)
        value.image.image_allocator = MPSImage.default_allocator()  # the CPU reads every output
        return value


_INVALID = "It is no valid ONNX: export it again"
_GIVE = "Give it as shapes={name: shape} or --shape NAME=1,3,224,224"
_WITHOUT = "Export the model without it"
_CUT = "End the model before it, with outputs=[…] or --result, or export it without"


def _shaped(tensor: Tensor, given: Sequence[int] | None, who: str) -> Tensor:
    """An input with the lengths that the caller knows."""
    own = tensor.lengths
    what = f"shapes[{tensor.name[:80]!r}]"
    if given is not None:
        wanted = tuple(given)
        if not all(isinstance(each, int) and 0 < each < 1 << 24 for each in wanted) or not wanted:
            raise MPSArgumentError(who, what, "must be lengths of at least 1, the batch's first", list(wanted))
        if own is not None and len(own) != len(wanted):
            rule = f"must have {len(own)} lengths, {shape_text(own)}"
            raise MPSArgumentError(who, what, rule, shape_text(wanted))
        for mine, length in zip(own or wanted, wanted, strict=True):
            if isinstance(mine, int) and mine != length:
                raise MPSArgumentError(who, what, f"must fit the model's {shape_text(own or ())}", shape_text(wanted))
        # A batch that varies goes on to do so.
        first = own[0] if own is not None else None
        return Tensor(tensor.name, tensor.kind, (first, *wanted[1:]))
    return tensor


def _batch(tensors: Sequence[Tensor]) -> int | None:
    """The images of a batch, where the model says; axis 0 of every input."""
    found = {tensor.lengths[0] for tensor in tensors if tensor.lengths}
    fixed = [length for length in found if isinstance(length, int)]
    return fixed[0] if len(fixed) == len(found) == 1 else None


def _layout(tensor: Tensor, batch: Atom, readers: Sequence[Node]) -> Layout:
    """Where an image has the numbers of an input: N, C, H, W, or N, H, W, C if all that read it transpose that."""
    if dtype_of(tensor.kind) is None:
        raise NodeError(f"it holds no numbers, but ONNX type {tensor.kind}")
    if tensor.lengths is None:
        raise NodeError("its shape is not known", _GIVE)
    lengths = [length if isinstance(length, int) else None for length in tensor.lengths]
    if not 1 <= len(lengths) <= 4:
        raise NodeError(f"it has {len(lengths)} axes: images have N, C, H, W")
    axes: list[Atoms] = [(batch,), *(atoms(length) for length in lengths[1:])]
    is_planar = not readers or not all(is_to_planes(node) for node in readers)
    order = {1: ((), (), ()), 2: (1, (), ()), 3: (1, (), 2), 4: (1, 2, 3) if is_planar else (3, 1, 2)}[len(axes)]
    channels, rows, columns = (axes[place] if isinstance(place, int) else place for place in order)
    if None in [atom.size for atom in channels]:
        raise NodeError("its number of channels is not known", _GIVE)
    return Layout(batch, tuple(axes), channels, rows, columns)


def is_to_planes(node: Node) -> bool:
    """Whether a node makes N, C, H, W of N, H, W, C."""
    return node.operator == "Transpose" and node.attributes.get("perm") == _TO_PLANES


def dtype_name(kind: int) -> str:
    """NumPy's name of the numbers of an ONNX type."""
    found = dtype_of(kind)
    return np.dtype(np.float32 if found is None else found).name
