"""What the pickle of a state dict says, without unpickling: nothing that it names is imported, called or made.

A pickle is a program for a stack machine. This reads those instructions that state dicts are written with, and stands
in for each object that they would make.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MARK = object()
_LONGEST_INTEGER = 16
"""Bytes."""
_MOST_INSTRUCTIONS = 500_000
"""Each of which may make an object; a tensor of a state dict takes about 25."""


class PickleError(Exception):
    """The bytes are no pickle that can be read so; the text says why."""


@dataclass(frozen=True, slots=True)
class Named:
    """A class or function that a pickle names."""

    name: str


@dataclass(slots=True)
class Made:
    """What a pickle would have made by calling something."""

    of: Named
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Persistent:
    """Something that is kept beside the pickle: a storage."""

    key: tuple[Any, ...]


class _Machine:
    """The stack machine. Every instruction takes time and memory in proportion to its bytes."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    # --- bytes --------------------------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        part = self.data[self.place : self.place + count]
        if len(part) != count:
            raise PickleError("it ends too early")
        self.place += count
        return part

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return found

    def line(self) -> str:
        end = self.data.find(b"\n", self.place)
        if end < 0:
            raise PickleError("it ends too early")
        text = self.take(end - self.place)
        self.place += 1
        return _text(text)

    # --- stack --------------------------------------------------------------------------------------------------------

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleError("its stack is empty")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            raise PickleError("its stack is empty")
        return self.stack[-1]

    def to_mark(self) -> list[Any]:
        items: list[Any] = []
        while True:
            if not self.stack:
                raise PickleError("its stack has no mark")
            item = self.stack.pop()
            if item is _MARK:
                items.reverse()
                return items
            items.append(item)

    def remember(self, key: int) -> None:
        self.memo[key] = self.top()

    def recall(self, key: int) -> None:
        if key not in self.memo:
            raise PickleError(f"it recalls entry {key}, which is not there")
        self.stack.append(self.memo[key])

    # --- what is made -------------------------------------------------------------------------------------------------

    def put_items(self, items: list[Any]) -> None:
        target = self.top()
        table = target.arguments[0] if isinstance(target, Made) and target.of.name == ORDERED else target
        if not isinstance(table, dict) or len(items) % 2:
            raise PickleError("it puts entries into what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | bool | None):
                raise PickleError("a dictionary has keys that are no text")
            table[key] = value

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise PickleError("it appends to what is no list")
        target += items

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise PickleError("it calls what has no name")
        if function.name == ORDERED:
            if arguments not in ((), ([],)):
                raise PickleError("an ordered dictionary is made of more than nothing")
            self.stack.append(Made(function, ({},)))
        else:
            self.stack.append(Made(function, arguments))

    def build(self) -> None:
        self.pop()  # the attributes of an object, such as the versions of a state dict's modules
        if not isinstance(self.top(), Made):
            raise PickleError("it gives attributes to what has none")


ORDERED = "collections.OrderedDict"


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise PickleError("a text is no UTF-8") from None


def _integer(machine: _Machine, length: int) -> int:
    if length > _LONGEST_INTEGER:
        raise PickleError(f"it has an integer of {length} bytes")
    return int.from_bytes(machine.take(length), "little", signed=True)


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        machine.stack.append(make(machine))

    return run


def _tuple(count: int) -> Callable[[_Machine], None]:
    return _push(lambda machine: tuple([machine.pop() for _ in range(count)][::-1]))


def _global(machine: _Machine) -> Named:
    module = machine.line()
    return Named(f"{module}.{machine.line()}")


def _stack_global(machine: _Machine) -> Named:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise PickleError("it names a class by what is no text")
    return Named(f"{module}.{name}")


def _persistent(machine: _Machine) -> Persistent:
    key = machine.pop()
    if not isinstance(key, tuple):
        raise PickleError("what is kept beside it has no name")
    return Persistent(key)


def _pair(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put_items([key, value])


_INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: lambda machine: _check_protocol(machine.take(1)[0]),
    0x95: lambda machine: machine.skip(8),  # the length of what follows
    ord("("): _push(lambda machine: _MARK),
    ord("}"): _push(lambda machine: {}),
    ord("]"): _push(lambda machine: []),
    ord(")"): _push(lambda machine: ()),
    ord("N"): _push(lambda machine: None),
    0x88: _push(lambda machine: True),
    0x89: _push(lambda machine: False),
    ord("K"): _push(lambda machine: machine.number("<B")),
    ord("M"): _push(lambda machine: machine.number("<H")),
    ord("J"): _push(lambda machine: machine.number("<i")),
    0x8A: _push(lambda machine: _integer(machine, machine.number("<B"))),
    ord("G"): _push(lambda machine: machine.number(">d")),
    ord("X"): _push(lambda machine: _text(machine.take(machine.number("<I")))),
    0x8C: _push(lambda machine: _text(machine.take(machine.number("<B")))),
    ord("U"): _push(lambda machine: machine.take(machine.number("<B")).decode("latin-1")),
    ord("c"): _push(_global),
    0x93: _push(_stack_global),
    ord("Q"): _push(_persistent),
    ord("t"): _push(lambda machine: tuple(machine.to_mark())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("q"): lambda machine: machine.remember(machine.number("<B")),
    ord("r"): lambda machine: machine.remember(machine.number("<I")),
    0x94: lambda machine: machine.remember(len(machine.memo)),
    ord("h"): lambda machine: machine.recall(machine.number("<B")),
    ord("j"): lambda machine: machine.recall(machine.number("<I")),
    ord("s"): _pair,
    ord("u"): lambda machine: machine.put_items(machine.to_mark()),
    ord("a"): lambda machine: machine.append([machine.pop()]),
    ord("e"): lambda machine: machine.append(machine.to_mark()),
    ord("R"): lambda machine: machine.call(),
    ord("b"): lambda machine: machine.build(),
}
_STOP = ord(".")
_NEWEST_PROTOCOL = 5


def _check_protocol(version: int) -> None:
    if version > _NEWEST_PROTOCOL:
        raise PickleError(f"it has version {version}")


def read_pickle(data: bytes, place: int = 0) -> tuple[Any, int]:
    """What the pickle that begins at a place says, and where it ends.

    Raises:
        PickleError: It is cut, wrong, or has an instruction that no state dict has.
    """
    machine = _Machine(data, place)
    for _ in range(_MOST_INSTRUCTIONS):
        (code,) = machine.take(1)
        if code == _STOP:
            return machine.pop(), machine.place
        run = _INSTRUCTIONS.get(code)
        if run is None:
            raise PickleError(f"it has the instruction {bytes([code])!r}, which no state dict has")
        run(machine)
    raise PickleError(f"it has more than {_MOST_INSTRUCTIONS:,} instructions")
