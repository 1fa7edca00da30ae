"""Calls of the framework's selectors, as calls of openmps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openmps.errors import MPSError
from openmps.pyobjc.bridge import object_out, to_native, to_python
from openmps.pyobjc.by_hand import BY_HAND, RENAMED, WITHOUT
from openmps.pyobjc.containers import NSMutableArray
from openmps.pyobjc.declarations import Method
from openmps.pyobjc.foundation import error_of
from openmps.pyobjc.metadata import Types, types_of, warn_if_hidden
from openmps.pyobjc.naming import LEFT_OUT, python_call, snake
from openmps.pyobjc.pointers import NULL, is_null
from openmps.pyobjc.runtime import native_class, native_object, object_for, stand_for
from openmps.pyobjc.subclasses import ancestry
from openmps.pyobjc.types import OBJECT, CType

Implementation = Callable[..., Any]
_IS_TEMPORARY = "destination_state_is_temporary"


def implementation(owner: str, native: type | None, method: Method) -> Implementation | str:
    """What calls a selector of the class ``owner``, on ``native`` of openmps; why not, where there is nothing to call.

    Without ``native``, what is called is known when it is.
    """
    if method.signed in WITHOUT:
        return WITHOUT[method.signed]
    if method.signed in BY_HAND:
        return BY_HAND[method.signed]
    if method.of_property:
        return _of_property(owner, native, method)
    found = _target(native, method)
    if isinstance(found, str):
        return found
    is_initializer = found.name == "__init__" and not method.is_class_method

    def call(receiver: Any, *arguments: Any) -> Any:
        kind = receiver if isinstance(receiver, type) else type(receiver)
        types = types_of(method, owner, ancestry(kind))
        passed = _passed(found.keys, types, arguments)
        function = native_class(kind) if found.name == "__init__" else getattr(_receiver(receiver), found.name)
        made, fault = _called(function, passed)
        if passed.in_place is not None:
            return _overwritten(passed.in_place, made)
        if is_initializer and made is not None:
            stand_for(receiver, made)
        result = _result(receiver, made, types.result, is_initializer, passed)
        passed.give_back()
        return _with_outs(result, types.result, passed, fault)

    return call


# --- what is called ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """A callable of openmps; of each argument its keyword, empty for one that is passed by place."""

    name: str
    keys: tuple[str, ...]


def _target(native: type | None, method: Method) -> _Target | str:
    name, keys = python_call(method.signed)
    if native is None:
        return _Target(name, ("",) * len(keys))
    function = native if name == "__init__" else getattr(native, name, None)
    if function is None:
        return f"openmps has no {name} of {native.__name__}"
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    first = snake(method.selector.split(":")[0])
    keys = [RENAMED.get(each, each) for each in keys]
    keys = ["" if place == 0 and key in (first, "index") else key for place, key in enumerate(keys)]
    unknown = [key for key in keys if key and key not in parameters and key not in LEFT_OUT and not takes_all]
    if unknown:
        return f"{name} of {native.__name__} takes no {', '.join(unknown)} in openmps"
    return _Target(name, tuple(keys))


def _receiver(receiver: Any) -> Any:
    return native_class(receiver) if isinstance(receiver, type) else native_object(receiver)


def _of_property(owner: str, native: type | None, method: Method) -> Implementation | str:
    name = snake(method.of_property)
    if native is not None and not _has(native, name):
        return f"openmps has no {name} of {native.__name__}"
    if method.arguments:

        def write(receiver: Any, value: Any) -> None:
            kind = types_of(method, owner, ancestry(type(receiver))).arguments[0]
            setattr(native_object(receiver), name, to_native(value, kind))

        return write

    def read(receiver: Any) -> Any:
        found = getattr(native_object(receiver), name)
        names = ancestry(type(receiver))
        warn_if_hidden(method, names)
        return to_python(found() if inspect.ismethod(found) else found, types_of(method, owner, names).result)

    return read


def _has(native: type, name: str) -> bool:
    return any(name in vars(each) or name in vars(each).get("__annotations__", {}) for each in native.__mro__)


# --- arguments --------------------------------------------------------------------------------------------------------


@dataclass
class _Passed:
    """What a call passes to openmps, and what comes back besides its result."""

    places: list[Any] = field(default_factory=list[Any])
    named: dict[str, Any] = field(default_factory=dict[str, Any])
    filled: list[tuple[Any, list[Any], int]] = field(default_factory=list[tuple[Any, list[Any], int]])
    """Arrays that openmps appends to: Python's, the one that was passed, and how long that was."""
    in_place: Any = None
    """The texture whose place the result takes."""
    has_error: bool = False
    has_state: bool = False
    nulls: int = 0

    def give_back(self) -> None:
        """Append what openmps appended."""
        for array, passed, length in self.filled:
            array.extend(object_out(each, OBJECT) for each in passed[length:])


def _passed(keys: Sequence[str], types: Types, arguments: Sequence[Any]) -> _Passed:
    passed = _Passed()
    for key, kind, value in zip(keys, types.arguments, arguments, strict=True):
        if kind.code == "^@" and kind.direction == "N":
            passed.named[key], passed.in_place = to_native(value, OBJECT), value
        elif kind.code == "^@" or (kind.code == "^Z" and kind.direction == "o"):
            _pass_out(passed, key, kind, value)
        elif key == _IS_TEMPORARY:
            if passed.has_state:
                passed.named[key] = bool(value)
        elif key not in LEFT_OUT:
            native = _mutable(passed, value) if kind.name == "NSMutableArray*" else to_native(value, kind)
            if key:
                passed.named[key] = native
            else:
                passed.places.append(native)
    _check_lengths(types, arguments)
    return passed


def _pass_out(passed: _Passed, key: str, kind: CType, value: Any) -> None:
    """Note what comes back through a pointer; nothing is passed to openmps for it."""
    if kind.code == "^Z":
        if value is not NULL:
            raise TypeError("Need objc.NULL for an array of unsaid length that a method fills")
        passed.nulls += 1
    elif not is_null(value):
        said = f"depythonifying 'pointer', got '{type(value).__name__}': pass None"
        raise ValueError(f"{said}, or register metadata with a type_modifier, N for a texture that is overwritten")
    elif kind.direction == "o" and value is None:
        passed.has_error, passed.has_state = key == "error" or passed.has_error, key != "error" or passed.has_state


def _mutable(passed: _Passed, value: Any) -> list[Any] | None:
    if is_null(value):
        return None
    if not isinstance(value, (list, NSMutableArray)):
        raise ValueError(f"an NSMutableArray or a list is appended to, got '{type(value).__name__}'")
    native: list[Any] = to_native(list(value), OBJECT)
    passed.filled.append((value, native, len(native)))
    return native


def _check_lengths(types: Types, arguments: Sequence[Any]) -> None:
    """Raise where an array has fewer elements than the argument says that counts them."""
    for kind, value in zip(types.arguments, arguments, strict=True):
        if kind.length_in is not None and kind.code != "^v" and not is_null(value):
            count = int(arguments[kind.length_in - 2])
            if len(value) < count:
                raise ValueError(f"Requesting buffer of {count}, have buffer of {len(value)}")


# --- results ----------------------------------------------------------------------------------------------------------


def _called(function: Callable[..., Any], passed: _Passed) -> tuple[Any, MPSError | None]:
    try:
        return function(*passed.places, **passed.named), None
    except MPSError as fault:
        if not passed.has_error:
            raise
        return None, fault


def _result(receiver: Any, made: Any, kind: CType, is_initializer: bool, passed: _Passed) -> Any:
    if made is None:
        return None
    if is_initializer:
        return receiver
    if passed.has_state:
        image, state = made
        return (to_python(image, kind), to_python(state, OBJECT))
    if kind.name == "instancetype" and isinstance(receiver, type) and not isinstance(made, (list, tuple)):
        return object_for(made, receiver)
    return to_python(made, kind)


def _overwritten(texture: Any, made: Any) -> tuple[bool, Any]:
    """Whether a filter has worked in place, and the texture that is there then."""
    return (False, texture) if made is None else (True, object_out(made, OBJECT))


def _with_outs(result: Any, kind: CType, passed: _Passed, fault: MPSError | None) -> Any:
    """The result and, in order, what comes back through pointers: alone if it is one, else a tuple."""
    if passed.has_state:
        return result
    outs = [NULL] * passed.nulls + ([None if fault is None else error_of(fault)] if passed.has_error else [])
    found = [*([] if kind.code == "v" else [result]), *outs]
    return (found[0] if found else None) if len(found) < 2 else tuple(found)
