"""Rules as data: which operations a fusion is about, where it may run, what it must equal.

A rule's pattern is a chain of terms, each about one operation: its `Kind`, its class where the kind says too little,
and fields. Each operation of a match reads a result of the one before, as it is or by way of conversions between
float16 and float32. What else must hold, and what the match becomes, is the rule's function to say: it asks the `Site`,
which is the function being rewritten, and gives a `Change`, or None where the match must stay as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

import torch

from openmps.ops import triton
from openmps.ops.elements import Load, Store
from openmps.ops.op import Equation, Function, Input, Kind, Op, Role
from openmps.ops.rewrite.data_flow import DataFlow, filled
from openmps.ops.rewrite.recipe import FusedFunction, Recipe


class Place(Enum):
    """Where a function is to run, as far as rules depend on it."""

    CPU = auto()
    """Convolutions gain by prepared weights alone."""
    CUDA = auto()
    """A GPU without Triton."""
    TRITON = auto()
    """A GPU where a fused operation is one pass over memory. Elsewhere it costs a gradient what it computes again."""


def place_of(device: torch.device) -> Place:
    """The place that a device is."""
    return Place.CPU if device.type == "cpu" else Place.TRITON if triton.runs_on(device) else Place.CUDA


class Situation(NamedTuple):
    """What rules may ask besides the function."""

    place: Place
    images: int
    """How many of them a batch has."""
    prepares: bool = True
    """Whether what follows from memory that stays is made ahead; else the function makes it each time that it runs."""
    moments: Container[Input] = frozenset()
    """Weights of convolutions that the rule "end by moments" may take in."""


class Term(NamedTuple):
    """One operation of a pattern."""

    kind: Kind
    of: tuple[type[Op], ...] = (Op,)
    fields: Mapping[str, Container[object]] = MappingProxyType({})
    """The values that fields may have."""
    besides: frozenset[Role] | None = None
    """What it may read besides the result of the one before: inputs of these roles, or anything."""

    def names(self, op: Op) -> bool:
        """Whether an operation is such."""
        is_such = op.kind is self.kind and isinstance(op, self.of)
        return is_such and all(getattr(op, name) in values for name, values in self.fields.items())

    def takes(self, flow: DataFlow, equation: Equation, value: int) -> bool:
        """Whether an equation that reads ``value`` is such, and what else it reads."""
        if not self.names(equation.op):
            return False
        roles = self.besides
        return roles is None or all(each == value or flow.is_input(each, roles) for each in equation.reads)


Pattern = tuple[Term, ...]


@dataclass(slots=True)
class Change:
    """What one match becomes."""

    equations: dict[int, list[Equation]] = field(default_factory=dict[int, list[Equation]])
    """What takes the place of equations, by their identity; nothing where they go."""
    same: dict[int, int] = field(default_factory=dict[int, int])
    """Values that are no longer made, with those that hold the same numbers."""
    recipes: dict[Input, Recipe] = field(default_factory=dict[Input, Recipe])
    """How prepared inputs are made: new ones, and others than before."""
    prepared: dict[Input, int] = field(default_factory=dict[Input, int])
    """The values of the new ones."""


class Rule(NamedTuple):
    """One row of the table."""

    name: str
    patterns: tuple[Pattern, ...]
    conditions: str
    """What must hold besides, in words."""
    becomes: Callable[..., Change | None]
    """Gets the site and the equations of a match."""
    becomes_what: str
    equals: str
    """The equations that it must equal, in words."""
    on: frozenset[Place] = frozenset(Place)
    in_training: bool = True
    """Whether it may run where gradients of sums of products are computed."""
    prepares: bool = False
    """Whether it needs memory that is prepared ahead."""

    def may_run(self, function: Function, situation: Situation) -> bool:
        """Whether it is for this place and function."""
        if situation.place not in self.on or (self.prepares and not situation.prepares):
            return False
        return self.in_training or not any(each.op.kind is Kind.CONTRACTION_GRADIENT for each in function.equations)

    def matches(self, flow: DataFlow, first: Equation) -> Iterator[tuple[Equation, ...]]:
        """The chains of equations that begin with one and that a pattern takes."""
        for terms in self.patterns:
            if terms[0].takes(flow, first, first.reads[0] if first.reads else -1):
                yield from _chains(flow, (first,), terms[1:])

    def apply(self, before: FusedFunction, situation: Situation) -> FusedFunction:
        """The function with every match that may be changed; the same if there is none."""
        kinds = {pattern[0].kind for pattern in self.patterns}
        firsts = [each for each in before.function.equations if each.op.kind in kinds]
        if not firsts:
            return before
        site = Site(before, situation)
        for equation in firsts:
            for match in self.matches(site.flow, equation):
                if site.is_free(match):
                    site.take(self.becomes(site, *match))
        return site.finish(self.name)


def _chains(flow: DataFlow, made: tuple[Equation, ...], terms: Pattern) -> Iterator[tuple[Equation, ...]]:
    if not terms:
        yield made
        return
    for equation, value in flow.followers(made[-1]):
        if terms[0].takes(flow, equation, value):
            yield from _chains(flow, (*made, equation), terms[1:])


class Site:
    """A function that a rule is applied to."""

    def __init__(self, before: FusedFunction, situation: Situation) -> None:
        self.flow = DataFlow(before.function)
        self.situation = situation
        self.recipes = before.recipes
        self.inputs = self.flow.inputs
        self._before = before
        self._value_count = before.function.value_count
        self._change = Change()

    def new_value(self) -> int:
        """A value that nobody uses yet."""
        self._value_count += 1
        return self._value_count - 1

    def has_conversions(self) -> bool:
        """Whether any number is stored in a format on the way."""
        return any(isinstance(each.op, (Load, Store)) for each in self._before.function.equations)

    def is_free(self, equations: tuple[Equation, ...]) -> bool:
        """Whether nothing was changed yet of these."""
        return self._change.equations.keys().isdisjoint(map(id, equations))

    def take(self, change: Change | None) -> None:
        """Note a change, unless one before it changes the same equations."""
        mine = self._change
        if change is None or not mine.equations.keys().isdisjoint(change.equations):
            return
        for all_of, more in (
            (mine.equations, change.equations), (mine.same, change.same), (mine.recipes, change.recipes),
            (mine.prepared, change.prepared),
        ):  # fmt: skip
            all_of.update(more)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def finish(self, name: str) -> FusedFunction:
        """The function with all changes, by the rule of this name."""
        before, change = self._before, self._change
        if not change.equations and not change.recipes:
            return before
        function = before.function
        found = [new for each in function.equations for new in change.equations.get(id(each), [each])]
        equations = (
            [each._replace(reads=tuple(map(self._same, each.reads))) for each in found] if change.same else found
        )
        inputs = {each: value for value, each in self.inputs.items()} | change.prepared
        if change.prepared or change.recipes:
            was_read = {value for each in function.equations for value in each.reads}
            unread = was_read.difference(function.output_values, *(each.reads for each in equations))
            inputs = {each: value for each, value in inputs.items() if value not in unread}
        fused = function.with_equations(equations, self._value_count, inputs)
        gone = dict.fromkeys(filled(function) - filled(fused), name)
        recipes = {each: recipe for each, recipe in {**before.recipes, **change.recipes}.items() if each in inputs}
        return FusedFunction(fused, {**gone, **before.gone}, recipes)

    def _same(self, value: int) -> int:
        while value in self._change.same:
            value = self._change.same[value]
        return value
