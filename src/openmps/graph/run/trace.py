"""Traces: what encodes compute, by label: sources, parameters, images, gradients and states as arrays."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import NamedAttributes, Shown, listed, of_kind
from openmps.core.kernel.lowering_context import RESULT
from openmps.core.training_state import Checkpointed
from openmps.errors import MPSArgumentError, MPSTypeError, counted, lengths_text
from openmps.graph.compile.interface import source_label
from openmps.graph.compile.program import Program, Stage
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, handle_label, row_of
from openmps.graph.nodes.rows import Row
from openmps.graph.run.non_finite import CheckedEncoding
from openmps.ops.elements import decode
from openmps.ops.op import Action, Function, Input, Role
from openmps.runtime.binding import Binding
from openmps.runtime.dispatch import Dispatch
from openmps.selectors import name_arguments
from openmps.tables import note_text, printed_html, short, table
from openmps.types import MPSImageFeatureChannelFormat

_UNORM = (MPSImageFeatureChannelFormat.UNORM8, MPSImageFeatureChannelFormat.UNORM16)
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_LABELS, _LOSSES = "labels", "losses"
"""Images among what kernels bind and leave."""
_GRADIENT = "Gradient"
_NAMED = re.compile(r"(?P<group>(?:.*/)?)(?P<kind>\w+)(?: (?P<quote>['\"])(?P<label>.*)(?P=quote))?(?P<rest>.*)")
_HEADINGS = ("label", "kind", "shape", "format", "least", "largest", "mean", "zeros", "not finite")
_NUMBERS = (False, False, False, False, True, True, True, True, True)


class TracedKind(Enum):
    """What a traced value is. Our addition."""

    SOURCE = "source"
    """A source image, or labels."""
    PARAMETER = "parameter"
    """Memory that a kernel reads: weights, biases, rows of a normalization."""
    IMAGE = "image"
    """The result of a filter."""
    GRADIENT = "gradient"
    """The result of a gradient filter."""
    STATE = "state"
    """What a kernel leaves besides: what its gradient needs, losses, statistics, gradients of parameters."""


@name_arguments
class TraceStatistics(NamedTuple):
    """The range of numbers; of those that are finite, where there are some. Our addition."""

    least: float
    largest: float
    mean: float
    zeros: float
    """The share of zeros, 0 to 1."""
    not_finite: int
    """How many are NaN or infinite."""


@name_arguments
@dataclass(frozen=True)
class TracedValue:
    """One value of a trace. Images are ``[images, height, width, channels]``, weights OHWI. Our addition.

    ``label`` is its key, ``layer`` the label of the filter or kernel, ``class_name`` its class; ``channel_format`` is
    how an image is stored, None for what is no image. Unorm images are given as float32 numbers from 0 to 1.
    """

    label: str
    layer: str
    kind: TracedKind
    class_name: str
    channel_format: MPSImageFeatureChannelFormat | None
    array: NDArray[Any]

    @cached_property
    def statistics(self) -> TraceStatistics:
        """The range of the numbers."""
        return statistics_of(self.array)

    @property
    def format_name(self) -> str:
        """The channel format, or the type of the numbers."""
        return str(self.array.dtype) if self.channel_format is None else self.channel_format.name.lower()

    def cells(self) -> tuple[str, ...]:
        """The value as a row of the table that `Trace` prints."""
        found = self.statistics
        numbers = (short(found.least), short(found.largest), short(found.mean), f"{100 * found.zeros:.1f} %")
        shape, bad = lengths_text(self.array.shape), str(found.not_finite or "-")
        return (self.label, self.kind.value, shape, self.format_name, *numbers, bad)

    def __repr__(self) -> str:
        return f"<TracedValue {self.label!r}: {self.kind.value}, {self.format_name} {lengths_text(self.array.shape)}>"


def statistics_of(array: NDArray[Any]) -> TraceStatistics:
    """The range of an array's numbers; NaN where none is finite."""
    finite = array[np.isfinite(array)]
    missing = array.size - finite.size
    if not finite.size:
        return TraceStatistics(np.nan, np.nan, np.nan, 0.0, missing)
    mean = float(finite.mean(dtype=np.float64))
    return TraceStatistics(float(finite.min()), float(finite.max()), mean, float((array == 0).mean()), missing)


class Trace(NamedAttributes, Mapping[str, "NDArray[Any]"]):
    """What encodes computed: arrays by label, in the order in which they were made. Our addition.

    ``trace["conv1"]`` is the result of the filter with this label, ``trace["conv1/weights"]`` what it multiplies with,
    ``trace["conv1 gradient/weights_gradient"]`` what the gradient filter leaves. Filters without a label go by their
    class and number. Printed, it is a table of ranges; ``notes`` say where a trace is not what an encode does.
    """

    def __init__(self, entries: Sequence[TracedValue], notes: Sequence[str] = ()) -> None:
        given = listed("Trace", "entries", entries, "TracedValue")
        for index, entry in enumerate(given):
            of_kind("Trace", f"entries[{index}]", entry, TracedValue)
        self._entries = {entry.label: entry for entry in given}
        self._notes = tuple(listed("Trace", "notes", notes, "texts"))

    notes = Shown[tuple[str, ...]](
        "_notes", "Where the trace is not what an encode does: what is fused there, and what was not seen."
    )

    @property
    def entries(self) -> tuple[TracedValue, ...]:
        """The values with all that is known of them."""
        return tuple(self._entries.values())

    def entry(self, label: str) -> TracedValue:
        """One value with all that is known of it."""
        found = self._entries.get(label)
        if found is None:
            near = ", ".join(repr(each) for each in self._entries if each.split("/")[0] == str(label).split("/")[0])
            remedy = f"There are {near}" if near else "Print the trace to see its labels"
            raise MPSArgumentError("Trace", "label", "must be a label of the trace", repr(label), remedy)
        return found

    def of(self, kind: TracedKind) -> list[TracedValue]:
        """The values of one kind."""
        return [entry for entry in self._entries.values() if entry.kind is kind]

    def __getitem__(self, label: str) -> NDArray[Any]:
        return self._entries[label].array

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        lines = [table(_HEADINGS, [entry.cells() for entry in self._entries.values()], _NUMBERS)]
        return "\n".join([*lines, *map(note_text, self.notes)])

    def __repr__(self) -> str:
        return f"<Trace: {len(self)} values>"

    _repr_html_ = printed_html


def check_trace(who: str, argument: str, value: object) -> None:
    """Raise unless a value is a trace."""
    if not isinstance(value, Trace):
        remedy = "Pass what graph.trace(…) or load_trace(…) gives"
        raise MPSTypeError(who, argument, "must be a Trace", type(value).__name__, remedy)


# --- collecting -------------------------------------------------------------------------------------------------------


class Tracer:
    """Runs encodes step by step and keeps what they compute."""

    def __init__(self) -> None:
        self._entries: dict[str, TracedValue] = {}
        self._notes: list[str] = []

    def trace(self) -> Trace:
        """What was kept so far."""
        return Trace(tuple(self._entries.values()), tuple(self._notes))

    def note(self, text: str) -> None:
        """Say something about the trace."""
        if text not in self._notes:
            self._notes.append(text)

    def run(self, label: str, dispatch: Dispatch) -> None:
        """Run an encode; where fusions hide images of a graph, its kernels one behind the other."""
        program = program_of(dispatch.function)
        if program is None:
            self._run_kernel(label, dispatch)
            return
        values = [each.value() for each in dispatch.inputs]
        made = self.run_unfused(program, dispatch.function.inputs, values)
        self.note_apart(dispatch.function.fused)
        for name, output_binding in zip(dispatch.function.outputs, dispatch.output_bindings, strict=True):
            output_binding.take(made.get(name), is_shared=True)
        if isinstance(dispatch, CheckedEncoding):
            dispatch.check([made.get(name) for name in dispatch.function.outputs])

    def run_program(self, program: Program, bound: Sequence[Binding], *, fused: bool) -> None:
        """Run a program by itself: nothing is handed out."""
        values = [each.value() for each in bound]
        if fused:
            self.run_fused(program, values)
        else:
            self.run_unfused(program, program.function.inputs, values)

    def run_unfused(self, program: Program, inputs: Sequence[Input], values: Sequence[Any]) -> dict[str, Any]:
        """Run every kernel of a program, one behind the other; gives what they make, by place and name."""
        given, made = program.run_apart(dict(zip(inputs, values, strict=True)))
        self._keep_program(program, given, made)
        return made

    def note_apart(self, fused: Sequence[str]) -> None:
        """Say which kernels run by themselves in the trace only."""
        if fused:
            layers = counted(len(fused), "filter")
            self.note(f"{layers} not fused here with neighbours, as an encode does: {', '.join(fused)}")

    def run_fused(self, program: Program, values: list[Any]) -> None:
        """Run a program as an encode does, and keep what fusions leave."""
        _, makers = program.assemble()
        given, made = dict(zip(program.function.inputs, values, strict=True)), dict[str, Any]()

        def perform(action: Action, operands: list[Any]) -> Any:
            results = action.op.run(action.wanted, *operands)
            for slot, value in zip(
                action.writes, (results,) if len(action.writes) == 1 else results or (), strict=False
            ):
                if slot in makers:
                    made[f"{makers[slot]}:{RESULT}"] = value
            return results

        made.update(zip(program.function.outputs, program.function.run_each(list(values), perform), strict=True))
        self._keep_program(program, given, made)
        if program.function.fused:
            layers, names = counted(len(program.function.fused), "filter"), ", ".join(program.function.fused)
            self.note(f"{layers} fused with neighbours, without a result: {names}")

    # --- what is kept of a graph --------------------------------------------------------------------------------------

    def _keep_program(self, program: Program, given: Mapping[Input, Any], made: Mapping[str, Any]) -> None:
        for index, node in enumerate(program.inputs):
            label = handle_label(node.handle)
            form = program.descriptors[node].channel_format
            label = self._fresh(label or source_label(index))
            self._keep(label, label, TracedKind.SOURCE, "MPSImage", form, given.get(Input(Role.SOURCE, str(index))))
        layers, gradients = layer_names(program), gradient_images(program)
        for place, stage in enumerate(program.stages):
            layer = self._fresh(layers[place])
            taken = [name for role, name in stage.plan.function.inputs if role is Role.BUFFER]
            for name in taken:
                value, label = given.get(Input(Role.BUFFER, f"{place}:{name}")), f"{layer}/{_plain(name)}"
                if name == _LABELS:
                    self._keep(label, layer, TracedKind.SOURCE, type(stage.node).__name__, _FLOAT32, value)
                elif not isinstance(stage.node, MPSNNGradientFilterNode):
                    self._keep(label, layer, TracedKind.PARAMETER, type(stage.node).__name__, None, value)
            names = [name for name in stage.plan.function.outputs if name not in taken]
            for name in sorted(names, key=lambda name: name != RESULT):
                kind = TracedKind.GRADIENT if stage.node.result_image in gradients else TracedKind.IMAGE
                self._keep_output(stage, layer, name, kind, made.get(f"{place}:{name}"))

    def _keep_output(self, stage: Stage, layer: str, name: str, kind: TracedKind, value: Any) -> None:
        kind_name = type(stage.node).__name__
        if name != RESULT:
            form = _FLOAT32 if name == _LOSSES else None
            self._keep(f"{layer}/{name}", layer, TracedKind.STATE, kind_name, form, value)
            return
        self._keep(layer, layer, kind, kind_name, stage.shape.channel_format, value)

    # --- what is kept of a kernel -------------------------------------------------------------------------------------

    def _run_kernel(self, label: str, dispatch: Dispatch) -> None:
        function, values = dispatch.function, dispatch.values()
        kind, name = _kind_and_label(label)
        layer = self._fresh(name)
        overwritten = set(function.overwritten())
        before = dict(zip(function.inputs, values, strict=True))
        for place, (role, what) in enumerate(function.inputs):
            if role is Role.BUFFER and place not in overwritten:
                self._keep(f"{layer}/{_plain(what)}", layer, TracedKind.PARAMETER, kind, None, values[place])
        made = function.run(values)
        for what, value, output_binding in zip(function.outputs, made, dispatch.output_bindings, strict=True):
            stack = getattr(output_binding, "stack", None)
            if what == RESULT and stack is not None:
                found = TracedKind.GRADIENT if _GRADIENT in kind else TracedKind.IMAGE
                self._keep(layer, layer, found, kind, stack.shape.channel_format, value)
            else:
                self._keep(f"{layer}/{what}", layer, TracedKind.STATE, kind, None, value)
        for place in sorted(overwritten):
            each = function.inputs[place]
            self._keep(f"{layer}/{each.name}", layer, TracedKind.STATE, kind, None, before[each])
        dispatch.hand_out(made)

    # --- entries ------------------------------------------------------------------------------------------------------

    def _keep(
        self,
        label: str,
        layer: str,
        kind: TracedKind,
        class_name: str,
        channel_format: MPSImageFeatureChannelFormat | None,
        value: Any,
    ) -> None:
        if isinstance(value, Tensor):
            array = array_of(value, channel_format)
            self._entries[label] = TracedValue(label, layer, kind, class_name, channel_format, array)

    def _fresh(self, layer: str) -> str:
        """A label that no layer has yet."""
        taken = {entry.layer for entry in self._entries.values()}
        number, label = 1, layer
        while label in taken:
            number += 1
            label = f"{layer} {number}"
        return label


@contextmanager
def without_steps(kernels: Iterable[object]) -> Generator[None]:
    """Leave kernels that count their encodes, as dropouts do, as they were."""
    before = [(kernel, kernel.training_state()) for kernel in kernels if isinstance(kernel, Checkpointed)]
    try:
        yield
    finally:
        for kernel, state in before:
            kernel.restore_training_state(state)


def array_of(value: Tensor, channel_format: MPSImageFeatureChannelFormat | None) -> NDArray[Any]:
    """A copy of numbers: of an image ``[N, H, W, C]``, of anything else as it is."""
    if channel_format is not None and channel_format in _UNORM:
        value = decode(value, channel_format)
    value = value.detach()
    if channel_format is not None and value.dim() == 4:
        value = value.permute(0, 2, 3, 1)
    return np.array(value.cpu().numpy(), order="C")


def program_of(function: Function) -> Program | None:
    """The program of a graph's function, while there is one."""
    origin = None if function.origin is None else function.origin()
    return origin if isinstance(origin, Program) else None


def layer_names(program: Program) -> list[str]:
    """What the stages of a program are called: their labels, or their classes and numbers, each once."""
    return filter_names([stage.node for stage in program.stages])


def filter_names(filters: Iterable[MPSNNFilterNode], taken: Iterable[str] = ()) -> list[str]:
    """What filters are called in a trace: labels, or classes and numbers, each once and none of them ``taken``."""
    names = list(taken)
    before = len(names)
    for place, node in enumerate(filters):
        name = _name(node, place)
        number, fresh = 1, name
        while fresh in names:
            number += 1
            fresh = f"{name} {number}"
        names.append(fresh)
    return names[before:]


def source_names(inputs: Iterable[MPSNNImageNode]) -> list[str]:
    """What source images are called in a trace: the labels of their handles, or their numbers."""
    return [handle_label(node.handle) or source_label(place) for place, node in enumerate(inputs)]


def gradient_images(program: Program) -> set[MPSNNImageNode]:
    """The images that are gradients: results of losses and of gradient filters, and what is made of those alone."""
    found: set[MPSNNImageNode] = set()
    for stage in program.stages:
        row = row_of(stage.node)
        is_loss = isinstance(row, Row) and row.is_gradient
        if is_loss or isinstance(stage.node, MPSNNGradientFilterNode) or found.issuperset(stage.sources):
            found.add(stage.node.result_image)
    return found


def _name(node: MPSNNFilterNode, place: int) -> str:
    forward = node.forward.label if isinstance(node, MPSNNGradientFilterNode) else None
    if node.label and node.label != forward:
        return node.label
    return f"{forward} gradient" if forward else f"{type(node).__name__.removesuffix('Node')} {place}"


def _plain(name: str) -> str:
    """``weights for float16``, which are float32 numbers as well, are the weights."""
    return name.partition(" ")[0]


def _kind_and_label(text: str) -> tuple[str, str]:
    """``MPSCNNConvolution 'conv1'`` → its class, and the label, or the class where it has none.

    Gradient kernels have the label of their data source, as their forward kernels do.
    """
    found = _NAMED.fullmatch(text)
    if found is None:
        return text, text
    own = found["label"] or found["kind"]
    if found["label"] and _GRADIENT in found["kind"] and _GRADIENT.lower() not in own:
        own = f"{own} gradient"
    return found["kind"], f"{found['group']}{own}{found['rest']}"
