"""Which of several readings of the framework's documentation holds: for what is made in a block, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType

from openmps.checks import KnownAttributes
from openmps.convention.table import CONVENTIONS, MACHINES, Convention
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.spellings import closest

_WHO = "conventions"


class Conventions(KnownAttributes, Mapping[str, str]):
    """A choice for each open question; `conventions` makes one. As a block, it holds for what is made inside.

    A kernel, a graph or a preset of padding policies keeps the conventions of the block that it was made in, wherever
    it is used: they are part of what its encodes are planned from, and copies and archives keep them. Nodes keep none:
    they are read when their graph is made. Questions to other objects, as `MPSState.resource_size`, are answered by the
    block in which they are put.

    Blocks may stand in one another; the inner one decides on what it names, the outer one on the rest. A block holds in
    its own thread or task: threads that are started in it have the defaults, tasks of asyncio the block's.
    """

    __slots__ = ("_chosen",)

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self._chosen = dict(chosen)

    def __getitem__(self, name: str) -> str:
        return self._chosen.get(name) or CONVENTIONS[name].default

    def __iter__(self) -> Iterator[str]:
        return iter(CONVENTIONS)

    def __len__(self) -> int:
        return len(CONVENTIONS)

    def unnoted(self, name: str) -> str:
        """The choice, where it bears on NaN and infinity alone: finite numbers do not depend on it."""
        return Conventions.__getitem__(self, name)

    def departures(self) -> dict[str, str]:
        """The choices that are not the default, by name."""
        return {name: self._chosen[name] for name in sorted(self._chosen) if self._chosen[name] != self._default(name)}

    @staticmethod
    def _default(name: str) -> str:
        return CONVENTIONS[name].default

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conventions) and self.departures() == other.departures()

    def __hash__(self) -> int:
        return hash(tuple(self.departures().items()))

    def __enter__(self) -> Conventions:
        inner = Conventions({**current()._chosen, **self._chosen})
        _blocks.set((*_blocks.get(), inner))
        return inner

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        _blocks.set(_blocks.get()[:-1])

    def __repr__(self) -> str:
        return f"conventions({', '.join(f'{name}={choice!r}' for name, choice in self.departures().items())})"


class NotingConventions(Conventions):
    """The same, which note what they are asked for: what depends on them."""

    __slots__ = ("asked",)

    def __init__(self, conventions: Conventions) -> None:
        super().__init__(conventions.departures())
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def __enter__(self) -> NotingConventions:
        _blocks.set((*_blocks.get(), self))
        return self

    def __repr__(self) -> str:
        return f"{super().__repr__()} noted by {id(self)}"  # so that nothing is taken that others have planned


DOCUMENTED = Conventions({})
"""The default of each."""
_blocks: ContextVar[tuple[Conventions, ...]] = ContextVar("conventions", default=())


def current() -> Conventions:
    """Those of the innermost block; the defaults outside of all."""
    blocks = _blocks.get()
    return blocks[-1] if blocks else DOCUMENTED


def conventions(machine: str | None = None, /, **choices: str) -> Conventions:
    """Choices among readings of the documentation, for what is made in a block. Our addition.

    ``with conventions("macOS 27, M4"):`` takes all that is known of a machine, ``conventions(reshape_order="planes")``
    single ones, by name or by the question's, ``K7="planes"``; both together are the machine's but for the single ones.
    The page on conventions lists questions, choices and what is known of each.

    Raises:
        MPSArgumentError: There is no such machine, convention or choice, or a convention has no other choice yet or is
            named twice.
        MPSTypeError: A choice is no text.
    """
    chosen: dict[str, str] = {}
    if machine is not None:
        if not isinstance(machine, str):
            raise MPSTypeError(_WHO, "machine", "must be the name of a machine", type(machine).__name__)
        if machine not in MACHINES:
            rule = f"must be {' or '.join(map(repr, MACHINES))}"
            raise MPSArgumentError(_WHO, "machine", rule, shown(machine))
        chosen.update(MACHINES[machine])
    named: dict[str, str] = {}
    for given, choice in choices.items():
        row = _named(given)
        if row.name in named:
            raise MPSArgumentError(_WHO, given, f"is {row.name}, which must be named once", shown(choice))
        named[row.name] = _checked(row, choice)
    return Conventions({**chosen, **named})


def _named(given: str) -> Convention:
    """The convention of a name, or the only one of a question."""
    if given in CONVENTIONS:
        return CONVENTIONS[given]
    asked = [row for row in CONVENTIONS.values() if given in row.questions]
    if len(asked) == 1:
        return asked[0]
    if asked:
        rule = f"has several conventions: {', '.join(row.name for row in asked)}"
        raise MPSArgumentError(_WHO, given, rule, None, "Name one of them")
    like = closest(given, CONVENTIONS)
    remedy = f"Did you mean {like}?" if like else "The page on conventions has all names"
    raise MPSArgumentError(_WHO, given, "is no convention and no question", None, remedy)


def _checked(row: Convention, choice: object) -> str:
    """A choice that there is."""
    if not isinstance(choice, str):
        raise MPSTypeError(_WHO, row.name, "must be the name of a choice", type(choice).__name__)
    if choice in row.choices:
        return choice
    if len(row.choices) == 1:
        raise MPSArgumentError(_WHO, row.name, f"has no choice but {row.default!r}: {row.why_not}", shown(choice))
    raise MPSArgumentError(_WHO, row.name, f"must be {' or '.join(map(repr, row.choices))}", shown(choice))
