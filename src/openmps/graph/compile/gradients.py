"""What becomes of a step's gradients before the updates: sums over several encodes, and a limit of their norm.

Data sources record their updates as they always do; here the recorded work is changed: updates read sums, or get a
factor of their gradients as one number more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

from openmps.metal.device import MTLDevice
from openmps.ops.elements import Overwrite
from openmps.ops.op import Op
from openmps.ops.update.optimizers import Update
from openmps.ops.update.rows import AddNumbers, NormScale
from openmps.runtime.binding import Binding, CountedBinding, Number, Numbers
from openmps.runtime.derived import Dependents
from openmps.runtime.dispatch import Dispatch, function_of_op
from openmps.runtime.step_trace import StepNumber, UndeclaredError

Works = list[tuple[str, Dispatch]]


class Treatment(NamedTuple):
    """What becomes of the gradients of one encode."""

    is_limited: bool = False
    """Whether their norm has a limit."""
    adds: bool = False
    """Whether they are added to those that are kept."""
    updates: bool = True
    """Whether there are updates; else the gradients are kept."""


PLAIN = Treatment()
"""There are updates by the gradients as they are: what nearly every encode has."""


class KeptGradients:
    """What a graph keeps of gradients from one encode to the next, and the limit of their norm."""

    def __init__(self) -> None:
        self.limit: float | None = None
        self.encodes = 0
        """How many have kept theirs since the last update."""
        self._sums: list[Numbers] = []
        self._scale: Numbers | None = None

    def ask_limit(self) -> float:
        """The limit of the step that is encoded."""
        assert self.limit is not None
        return self.limit

    def sums_for(self, device: MTLDevice, gradients: Sequence[CountedBinding]) -> list[Numbers]:
        """Where sums of these gradients are, which are the same ones, in the same order, in each encode."""
        counts = [_count(each) for each in gradients]
        if [each.count for each in self._sums] != counts:
            self._sums = [Numbers(device.new_buffer(4 * count), 0, count) for count in counts]
        return self._sums

    def scale_on(self, device: MTLDevice) -> Numbers:
        """Where the factor of the gradients is."""
        if self._scale is None:
            self._scale = Numbers(device.new_buffer(4), 0, 1)
        return self._scale


def treated(works: Works, treatment: Treatment, kept: KeptGradients, device: MTLDevice) -> Works:
    """The work of updates with what comes before it.

    Raises:
        UndeclaredError: An update has gradients that are no numbers in a row.
    """
    if treatment == Treatment():
        return works
    steps = [work for _, work in works if _is_step(work)]
    gradients = [each for work in steps for each in _gradients_of(work)]
    memory = {id(each) for bound in gradients for each in bound.memories()}
    found = [(label, work) for label, work in works if not _is_step(work) and memory & _written(work)]
    rest = [each for each in works if each not in found]
    if treatment.adds or not treatment.updates:
        sums = kept.sums_for(device, gradients)
        op = AddNumbers() if treatment.adds else Overwrite()
        found.append(("sums of gradients", _dispatch(op, [*sums, *gradients])))
        gradients = sums
    if not treatment.updates:
        return found + _without_updates(rest)
    scale = None
    if treatment.is_limited:
        scale = kept.scale_on(device)
        rescales = tuple(_update_of(work).rule.rescale for work in steps for _ in _gradients_of(work))
        found.append(
            ("norm of gradients", _dispatch(NormScale(rescales), [StepNumber(kept.ask_limit), *gradients, scale]))
        )
    given = iter(gradients)
    return found + [(label, _reading(work, given, scale) if _is_step(work) else work) for label, work in rest]


def _op_of(work: Dispatch) -> Op | None:
    """The one operation of a work; None of several, or of none."""
    equations = work.function.equations
    return equations[0].op if len(equations) == 1 else None


def _is_step(work: Dispatch) -> bool:
    """Whether it is an update by gradients."""
    op = _op_of(work)
    return isinstance(op, Update) and op.takes_gradients


def _update_of(work: Dispatch) -> Update:
    op = _op_of(work)
    assert isinstance(op, Update)
    return op


def _gradients_of(work: Dispatch) -> list[CountedBinding]:
    op = _update_of(work)
    found = work.inputs[op.numbers : op.numbers + op.vectors]
    if work.function.equations[0].reads != tuple(range(len(work.inputs))) or not _are_counted(found):
        raise UndeclaredError(f"gradients of {op}")
    return list(found)


def _are_counted(bound: Sequence[Binding]) -> TypeGuard[Sequence[CountedBinding]]:
    return all(isinstance(each, CountedBinding) for each in bound)


def _count(bound: CountedBinding) -> int:
    part = bound.row_part
    if part is None:
        raise UndeclaredError("gradients that do not lie in a row")
    return part.shape[0]


def _written(work: Dispatch) -> set[int]:
    """The memory that it writes, by identity."""
    return {id(memory) for index in work.function.overwritten() for memory in work.inputs[index].memories()}


def _without_updates(works: Works) -> Works:
    """The works that neither are updates nor take what updates have written."""
    found, gone = Works(), set[int]()
    for label, work in works:
        touched = {id(memory) for bound in work.inputs for memory in bound.memories()}
        if (
            isinstance(_op_of(work), Update)
            or touched & gone
            or any(isinstance(bound, Dependents) for bound in work.inputs)
        ):
            gone |= _written(work)
        else:
            found.append((label, work))
    return found


def _reading(work: Dispatch, gradients: Any, scale: Binding | None) -> Dispatch:
    """An update that reads the next of other gradients, with a factor."""
    op, inputs = _update_of(work), [*work.inputs]
    inputs[op.numbers : op.numbers + op.vectors] = [next(gradients) for _ in range(op.vectors)]
    if scale is not None:
        inputs.insert(op.numbers, scale)
        op = replace(op, is_scaled=True)
    return _dispatch(op, inputs)


def _dispatch(op: Op, inputs: Sequence[Binding]) -> Dispatch:
    kinds = tuple(Number if isinstance(each, StepNumber) else type(each) for each in inputs)
    return Dispatch(function_of_op(op, kinds), tuple(inputs), (True,) * len(inputs), ())
