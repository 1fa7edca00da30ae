"""Objects across the bridge: what openmps gets for an argument, and what Python gets for a result.

What Python implements (data sources, padding policies, allocators, callbacks, handles) openmps asks by an `Adapter`. It
has the Python name of each protocol method that the object answers, and asks by the selector.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from openmps.pyobjc.containers import NSArray, NSDictionary, NSMutableArray, NSSet
from openmps.pyobjc.data import NSData
from openmps.pyobjc.declarations import Method
from openmps.pyobjc.foundation import error_of, number, string
from openmps.pyobjc.metadata import Types, informal
from openmps.pyobjc.naming import python_call
from openmps.pyobjc.pointers import NULL, bytes_in, element_dtype, is_null, numbers_in, varlist
from openmps.pyobjc.returned_pointers import read_returned
from openmps.pyobjc.runtime import (
    classes,
    native_class,
    native_object,
    objc_class,
    objc_object,
    object_for,
    selector_of,
    stand_for,
)
from openmps.pyobjc.selectors import check_count, python_name, selector_name
from openmps.pyobjc.types import BLOCKS, CType, ctype
from openmps.pyobjc.values import is_value, value_in, value_out

# --- in ---------------------------------------------------------------------------------------------------------------


def to_native(value: Any, kind: CType) -> Any:
    """What openmps gets for an argument of a type.

    Raises:
        ValueError: A number does not fit, or a struct or pointer cannot be made of the value.
        TypeError: It is of a kind that the type does not take.
    """
    if kind.name in BLOCKS:
        return block_in(value, kind.name)
    if is_value(kind):
        return value_in(value, kind)
    if kind.code == ":":
        return selector_name(value)
    if kind.code[0] == "^":
        return _pointer_in(value, kind)
    return object_in(value)


def _pointer_in(value: Any, kind: CType) -> Any:
    if is_null(value):
        return None
    if not kind.direction:
        said = f"depythonifying 'pointer', got '{type(value).__name__}'"
        raise ValueError(f"{said}: register metadata with a type_modifier for it, or pass None")
    if kind.code == "^v":
        return bytes_in(value)
    if kind.code[1] == "{":
        pointed = CType(kind.name.removesuffix("*"), kind.code[1:])
        return [value_in(each, pointed) for each in value] if kind.is_array else value_in(value, pointed)
    return numbers_in(value, kind)


def object_in(value: Any) -> Any:
    """What openmps gets for an object: its own, or Python's number, text, bytes, list or dict."""
    if isinstance(value, objc_object):
        return _framework_object_in(value)
    if isinstance(value, objc_class):
        return native_class(value) or value
    if isinstance(value, (list, tuple)):
        return [object_in(each) for each in value]
    if isinstance(value, dict):
        return {object_in(key): object_in(each) for key, each in value.items()}
    return None if value is NULL else value


def _framework_object_in(value: Any) -> Any:
    if isinstance(value, NSData):
        return bytes(value)
    if isinstance(value, (NSArray, NSSet)):
        batch = None if isinstance(value, NSMutableArray) else value._native  # pyright: ignore[reportPrivateUsage]
        return [object_in(each) for each in value] if batch is None else batch
    if isinstance(value, NSDictionary):
        return {object_in(key): object_in(each) for key, each in value.items()}
    if value._native is None and native_class(type(value)) is None:
        stand_for(value, adapter_class(type(value))(value))
    return native_object(value)


# --- out --------------------------------------------------------------------------------------------------------------


def to_python(value: Any, kind: CType) -> Any:
    """What Python gets for a result of a type."""
    if kind.code == "v":
        return None
    if is_value(kind):
        return value_out(value, kind)
    if kind.code[0] == "^":
        return NULL if value is None else _pointer_out(value, kind)
    return object_out(value, kind)


def _pointer_out(value: Any, kind: CType) -> Any:
    if kind.count is not None:
        return tuple(np.asarray(value, element_dtype(kind))[: kind.count].tolist())
    if kind.is_array:
        return varlist(value, kind)
    said = f"PyObjC gives no numbers for a '{kind.name}' of which it knows no length"
    raise ValueError(f"{said}: register metadata with c_array_of_fixed_length for the result")


def object_out(value: Any, kind: CType) -> Any:
    """The object of the framework, or Python's own value, for one of openmps."""
    if value is None or isinstance(value, objc_object):
        return value
    if isinstance(value, Adapter):
        return value.thing
    if isinstance(value, type):
        return classes().get(value.__name__, value)
    for python, convert in _OUT.items():
        if isinstance(value, python):
            return convert(value)
    found = _class_for(value, kind)
    return value if found is None else object_for(value, found)


def _class_for(value: Any, kind: CType) -> Any:
    for each in type(value).__mro__:
        found = classes().get(each.__name__) or classes().get("_" + each.__name__)
        if found is not None and found.is_native:
            return found
    return classes().get("_" + (kind.protocol or ""))


def _array_out(value: Sequence[Any]) -> Any:
    made = NSArray.from_python(object_out(each, CType("id", "@")) for each in value)
    if not isinstance(value, (list, tuple)):
        made._native = value  # a batch is one block of memory: it goes back as it came
    return made


def _dictionary_out(value: Mapping[Any, Any]) -> Any:
    thing = CType("id", "@")
    return NSDictionary.from_python({key: object_out(each, thing) for key, each in value.items()})


_OUT: dict[type, Callable[[Any], Any]] = {
    str: string,
    bool: bool,
    int: number,
    float: number,
    bytes: NSData.from_python,
    np.ndarray: lambda value: NSData.from_python(np.ascontiguousarray(value)),
    BaseException: error_of,
    Mapping: _dictionary_out,
    Sequence: _array_out,
}

# --- blocks -----------------------------------------------------------------------------------------------------------


def block_in(value: Any, name: str) -> Any:
    """A callable that openmps calls for a block; None stays None."""
    if value is None or value is NULL:
        return None
    if not callable(value):
        raise TypeError(f"Cannot use {type(value).__name__} as a block: it is not callable")
    result, arguments = ctype(BLOCKS[name][0]), [ctype(each) for each in BLOCKS[name][1]]

    def block(*given: Any) -> Any:
        check_count(len(arguments), len(given))
        answer = value(*(to_python(each, kind) for each, kind in zip(given, arguments, strict=True)))
        return returned(answer, result, repr(value))

    block.__qualname__ = getattr(value, "__qualname__", repr(value))  # which errors of handlers name
    return block


def returned(answer: Any, kind: CType, who: str) -> Any:
    """What openmps gets for the result of a callable of Python's; a void one must return None."""
    if kind.code == "v":
        if answer is not None:
            raise ValueError(f"{who}: returned {answer!r}, and its type is void")
        return None
    return to_native(answer, kind)


# --- what Python implements -------------------------------------------------------------------------------------------


class Adapter:
    """What stands for an object of Python's in openmps."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __repr__(self) -> str:
        return repr(self.thing)


@cache
def adapter_class(kind: Any) -> type[Adapter]:
    """The adapter of a class: a method for each Python name of the selectors that it answers."""
    found: dict[str, list[Method]] = {}
    for method in informal().values():
        own = kind.selector_named(python_name(method.selector))
        if own is not None and not own.definingClass.is_native and not method.is_class_method:
            found.setdefault(python_call(method.signed)[0], []).append(method)
    return type(kind.__name__, (Adapter,), {name: _asked(methods) for name, methods in found.items()})


def _asked(methods: Sequence[Method]) -> Callable[..., Any]:
    """A method that asks one of the selectors: of those that update, the one with or without a command buffer."""
    keys = [[each for each in python_call(method.signed)[1] if each != "zone"] for method in methods]
    names = max(keys, key=len)
    is_update = methods[0].selector.startswith("update")
    if is_update and _COMMAND_BUFFER not in names:
        names = [_COMMAND_BUFFER, *names]
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in ("self", *names)]
    signature = inspect.Signature(parameters)

    def ask(*given: Any, **named: Any) -> Any:
        adapter, *values = signature.bind(*given, **named).args
        has_command_buffer = is_update and values[0] is not None
        for method, key in zip(methods, keys, strict=True):
            if not is_update or (_COMMAND_BUFFER in key) == has_command_buffer:
                return _answer(adapter.thing, method, values[len(values) - len(key) :])
        return None  # an optional method that the object does not have

    setattr(ask, "__signature__", signature)  # noqa: B010
    return ask


_COMMAND_BUFFER = "command_buffer"


def _answer(thing: Any, method: Method, given: Sequence[Any]) -> Any:
    bound = selector_of(thing, python_name(method.selector))
    types: Types = bound.types(type(thing))
    zone = [None] if method.selector.startswith("copyWithZone:") else []
    arguments = [to_python(each, kind) for each, kind in zip(given, types.arguments[len(zone) :], strict=True)]
    answer = bound(*zone, *arguments)
    if types.result.code[0] == "^":
        return read_returned(thing, method.selector, types.result, answer)
    return returned(answer, types.result, f"{type(thing).__name__}.{python_name(method.selector)}")
