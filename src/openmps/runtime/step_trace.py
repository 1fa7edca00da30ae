"""Work that is recorded once and done again in each step: how an update declares what it does.

An update that is declared records its work on a `StepTrace`, a command buffer that is never committed. Numbers that are
new in each step are given as functions, and what else `update` does for each step as actions; whatever the work depends
on is named, and has a version. As long as no version changes, the work is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

from openmps.metal.device import CommandBuffer, MTLCommandBuffer, MTLCommandQueue
from openmps.metal.execution import Work
from openmps.metal.reusable_commands import ReusableCommands
from openmps.metal.version import Version
from openmps.ops.op import Function, Role
from openmps.runtime.binding import Binding, Number
from openmps.runtime.dispatch import Frame

F = TypeVar("F", bound=Callable[..., object])
_DECLARED = "_is_declared_update"


class UndeclaredError(Exception):
    """Something may record other work in each step, so it has to be asked in each."""


class StepNumber(Binding):
    """A number of a traced step, which each step asks for."""

    __slots__ = ("ask",)

    def __init__(self, ask: Callable[[], float]) -> None:
        self.ask = ask

    def regions(self) -> tuple[()]:
        """None."""
        return ()


@final
class StepTrace(MTLCommandBuffer):
    """Takes the work of the updates of a step, to be done again in each step.

    It has no subclasses: to ask for the class itself is faster than to ask an abstract one.
    """

    actions: list[tuple[Callable[..., object], tuple[object, ...]]]
    """What is to be done at the encode of each step, in order: functions and their arguments."""
    checks: list[Callable[[CommandBuffer], None]]
    """What is to be asked of the command buffer of each step."""
    versions: dict[int, tuple[Version, int]]
    """Those of what the work depends on, by identity, and what they were when it was recorded."""
    declared: list[tuple[object, str]]
    """Whose methods have recorded it."""
    collections: list[tuple[object, object]]
    """Collections of the user's that it depends on, each with a copy of what it held."""

    def __init__(self, queue: MTLCommandQueue) -> None:
        super().__init__(queue, queue.command_buffer().recording.executor)
        vars(self).update(actions=[], checks=[], versions={}, declared=[], collections=[])

    def take(self) -> list[tuple[str, Work]]:
        """The work; the trace has none afterwards, for nothing of it will be missed."""
        works = self.recording.execution.works
        taken = [*works]
        works.clear()
        return taken


def declared(update: F) -> F:
    """Declare a method of a data source or an optimizer: it records the same work in each step, on a trace too.

    Whoever overrides it, on a class or on an object, is asked in each step, as the framework documents.
    """
    setattr(update, _DECLARED, True)
    return update


def is_declared(owner: object, method: str) -> bool:
    """Whether an object's method is declared, and nobody else answers for it."""
    bound: Any = getattr(owner, method, None)
    return getattr(bound, "__self__", None) is owner and getattr(getattr(bound, "__func__", None), _DECLARED, False)


def check_numbers(command_buffer: CommandBuffer, label: str, function: Function) -> None:
    """Called before the numbers of an encode are asked for, which counts it: raise where they would hold for more."""
    numbers = [name for role, name in function.inputs if role is Role.NUMBER]
    if numbers:
        check_reusable(command_buffer, label, f"an encode with a number of its own, {numbers[0]!r}")


def check_reusable(command_buffer: CommandBuffer, label: str, got: str) -> None:
    """Called before an encode that something takes note of, ``got``: raise where it would be done more than once."""
    if isinstance(command_buffer, ReusableCommands):
        command_buffer.refuse(label, got)


def step_number(command_buffer: CommandBuffer, ask: Callable[[], float]) -> Binding:
    """The number that a work is bound to: that of now, or on a trace that of each step."""
    if isinstance(command_buffer, ReusableCommands):  # as `check_reusable`, without a call
        command_buffer.refuse("update", "a number of one step, such as a rate")
    return StepNumber(ask) if isinstance(command_buffer, StepTrace) else Number(ask())


def at_each_step(command_buffer: CommandBuffer, action: Callable[..., object], *arguments: object) -> None:
    """Do something at an encode: now, or on a trace in each step."""
    check_reusable(command_buffer, "reload", "new numbers, which kernels take note of")
    if isinstance(command_buffer, StepTrace):
        command_buffer.actions.append((action, arguments))
    else:
        action(*arguments)


def check_each_step(command_buffer: CommandBuffer, check: Callable[[CommandBuffer], None]) -> None:
    """Ask something of the command buffer of an encode: of this one, or on a trace of that of each step."""
    if isinstance(command_buffer, StepTrace):
        command_buffer.checks.append(check)
    else:
        check(command_buffer)


def depends_on(command_buffer: CommandBuffer, version: Version) -> None:
    """Say on a trace that the work that is recorded depends on something: it may be other work in another version.

    The same for `ReusableCommands`.
    """
    if isinstance(command_buffer, StepTrace):
        command_buffer.versions.setdefault(id(version), (version, version.number))
    elif isinstance(command_buffer, ReusableCommands):
        command_buffer.depends_on(version)


def depends_on_contents(command_buffer: CommandBuffer, collection: object, copy: object) -> None:
    """Say on a trace that the work depends on what a collection holds, which anybody may change."""
    if isinstance(command_buffer, StepTrace):
        command_buffer.collections.append((collection, copy))


def require_declared(command_buffer: CommandBuffer, owner: object, method: str) -> None:
    """Raise on a trace unless a method, which is about to be called, is declared."""
    if isinstance(command_buffer, StepTrace):
        if not is_declared(owner, method):
            raise UndeclaredError(f"{method} of {type(owner).__name__}")
        command_buffer.declared.append((owner, method))


class Traced:
    """What was traced; good as long as no version and no method has changed."""

    def __init__(self, trace: StepTrace, frame: Frame | None) -> None:
        self._versions = [version for version, _ in trace.versions.values()]
        self._numbers = [number for _, number in trace.versions.values()]
        self._collections = [each for each, _ in trace.collections]
        self._contents = [copy for _, copy in trace.collections]
        self._owners = [owner for owner, _ in trace.declared]
        self._names = [method for _, method in trace.declared]
        self._nothing = [None] * len(self._names)
        self._methods = [*map(getattr, self._owners, self._names, self._nothing)]
        self.frame = frame
        """Of dispatches of the step; None where the updates have to be asked for in each step."""

    def is_current(self) -> bool:
        """Whether the same work would be recorded now."""
        if [each.number for each in self._versions] != self._numbers or self._collections != self._contents:
            return False
        return [*map(getattr, self._owners, self._names, self._nothing)] == self._methods
