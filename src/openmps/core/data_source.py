"""Data sources: objects of the user that kernels read their parameters from, checked by what they can do."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, flag
from openmps.core.arrays import elements, row
from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice

FLT_MIN = float(np.finfo(np.float32).tiny)
"""Epsilon of a data source that has none: the smallest normal float32."""


def check_methods(who: str, argument: str, source: object, required: Sequence[str]) -> None:
    """Raise `MPSTypeError` unless ``source`` is an object with all of the methods ``required``."""
    if isinstance(source, type):
        raise MPSTypeError(
            who, argument, "must be a data source", f"the class {source.__name__}", "Make an object of it"
        )
    missing = [name for name in required if not callable(getattr(source, name, None))]
    if missing:
        rule = f"must be a data source with the methods {', '.join(required)}"
        raise MPSTypeError(who, argument, rule, f"{type(source).__name__} without {', '.join(missing)}")


class ArraySource(KnownAttributes):
    """The part of a data source that has its numbers in arrays: there is nothing to load."""

    def load(self) -> bool:
        """Arrays are always there."""
        return True

    def purge(self) -> None:
        """Arrays stay."""


@contextmanager
def loaded(who: str, source: Any) -> Generator[None]:
    """A data source between its load() and its purge()."""
    try:
        answer = source.load()
    except Exception as fault:
        fault.add_note(f"{_called(who, source)}: raised by load() of its data source")
        raise
    if answer is None or not flag(who, "data source load()", answer):
        remedy = "The data source could not provide its numbers" if answer is not None else "Return True from it"
        raise MPSArgumentError(who, "data source load()", "must return True", repr(answer), remedy)
    try:
        yield
    finally:
        source.purge()


def _called(who: str, source: Any) -> str:
    """A kernel that may have no label yet, with that of its data source."""
    try:
        label = source.label()
    except Exception:
        label = None
    return f"{who} {label!r}" if isinstance(label, str) and repr(label) not in who else who


def count_of(who: str, source: Any, method: str) -> int:
    """The positive integer that a method of a data source, such as number_of_feature_channels(), returns."""
    count = getattr(source, method)()
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise MPSArgumentError(who, f"data source {method}()", "must return a positive integer", repr(count))
    return int(count)


def channel_row(who: str, source: Any, method: str, channels: int, default: float) -> NDArray[np.float32]:
    """A copy of the numbers that a method of a data source gives, one a channel; ``default`` of each for None."""
    argument, data = f"data source {method}()", getattr(source, method)()
    if data is None:
        return np.full(channels, default, np.float32)
    array = elements(who, argument, data, np.float32)
    return row(who, argument, array, channels, f"must return one number a feature channel, {channels}")


def optional(who: str, source: Any, name: str) -> Any:
    """What the method ``name`` of a data source returns; None if it has no such method."""
    method = optional_method(who, source, name)
    return None if method is None else method()


def optional_method(who: str, source: Any, name: str) -> Any:
    """The method ``name`` of a data source, None if it has none; what has the name and is no method is refused."""
    found = getattr(source, name, None)
    if found is not None and not callable(found):
        raise MPSTypeError(who, f"data source {name}", "must be a method", repr(found), f"Define {name}(self, …)")
    return found


def epsilon_of(who: str, source: Any) -> float:
    """What the optional method epsilon() of a data source says, FLT_MIN without it."""
    given = optional(who, source, "epsilon")
    return FLT_MIN if given is None else not_negative(who, "data source epsilon()", given)


def copy_of(source: Any, device: MTLDevice) -> Any:
    """The data source of a kernel's copy on ``device``.

    It is made by the first that ``source`` offers of ``copy(device)``, ``copy()`` and ``__copy__()``; without any of
    them it is the source itself.

    Raises:
        MPSTypeError: What the source made is no data source.
    """
    make = next((each for each in (_method(source, "copy"), _method(source, "__copy__")) if each is not None), None)
    if make is None:
        return source
    twin = _made(make, device)
    if _method(twin, "label") is None:
        remedy = "Leave the method out to have the copies of a kernel share the source"
        raise MPSTypeError(type(source).__name__, "copy", "must return a data source", type(twin).__name__, remedy)
    return twin


def _method(source: Any, name: str) -> Any:
    found = getattr(source, name, None)
    return found if callable(found) else None


def _made(make: Any, device: MTLDevice) -> Any:
    """What ``make`` gives for a device, if it has an argument called so or needs one, else what it gives without."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:
        return make()  # written in C: it knows no device
    named, first = parameters.get("device"), next(iter(parameters.values()), None)
    if named is not None and named.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        return make(device=device)
    needs_one = first is not None and first.default is inspect.Parameter.empty and first.kind in _POSITIONAL
    return make(device) if needs_one else make()


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
