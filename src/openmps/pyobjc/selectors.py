"""``objc.selector``: methods of classes, by their selectors."""

from __future__ import annotations

import dis
import inspect
import keyword
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from openmps.pyobjc.errors import BadPrototypeError
from openmps.pyobjc.metadata import Types, described, signature_types
from openmps.pyobjc.types import OBJECT, VOID, ctype

Implementation = Callable[..., Any]


class selector:  # noqa: N801  # PyObjC's name
    """A method under its selector: a descriptor of a class, and bound to an object what is called.

    ``types`` tells the types for a class; where it is None all are objects, and a method that returns nothing is void.
    """

    def __init__(
        self,
        function: Implementation,
        selector: bytes | str | None = None,
        signature: bytes | None = None,
        isClassMethod: bool = False,
        isRequired: bool = True,
        *,
        types: Callable[[Any], Types] | None = None,
    ) -> None:
        name = selector if selector is not None else default_selector(function.__name__) or b""
        self.callable = function
        self.selector = name.encode() if isinstance(name, str) else name
        self.isClassMethod, self.isRequired = bool(isClassMethod), bool(isRequired)
        self.self: Any = None
        self.definingClass: Any = None
        self._types, self._signature = types, signature

    def __set_name__(self, owner: type, name: str) -> None:
        self.definingClass = owner

    @property
    def __name__(self) -> str:
        return self.selector.decode()

    @property
    def signature(self) -> bytes:
        """The encodings of the result, self, the selector and the arguments."""
        return self._signature or self.types().signature

    def types(self, kind: Any = None) -> Types:
        """The types in a class, or in that of the object that it is bound to."""
        if self._types is not None:
            return self._types(kind or self._class())
        if self._signature is not None:
            return signature_types(self._signature)
        return objects(self.selector.count(b":"), returns_value(self.callable))

    def __metadata__(self) -> dict[str, Any]:
        """Result and arguments, self and the selector first, each with its encoding."""
        return described(self.types(), self.selector.decode(), self.isClassMethod)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if self.isClassMethod and instance is not None:
            raise AttributeError(f"'{owner.__name__}' object has no attribute '{python_name(self.selector)}'")
        bound = object.__new__(type(self))
        bound.__dict__.update(vars(self), self=owner if self.isClassMethod else instance, _owner=owner)
        return bound

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The result, of arguments in the selector's order, behind the object if it is not bound."""
        if named:
            raise TypeError(f"{python_name(self.selector)}() does not accept keyword arguments")
        receiver = self.self
        if receiver is None:
            if not arguments:
                raise TypeError("Missing argument: self")
            receiver, arguments = arguments[0], arguments[1:]
            if self.definingClass is not None and not isinstance(receiver, self.definingClass):
                raise TypeError(
                    f"Expecting instance of {self.definingClass.__name__} as self, got one of {type(receiver).__name__}"
                )
        return self._call(receiver, arguments)

    def _call(self, receiver: Any, arguments: tuple[Any, ...]) -> Any:
        return self.callable(receiver, *arguments)

    def _class(self) -> Any:
        return vars(self).get("_owner") or self.definingClass

    def __repr__(self) -> str:
        of = "unbound" if self.self is None else "bound"
        whose = getattr(self._class(), "__name__", "?")
        return f"<{of} {type(self).__name__} {self.selector.decode()} of {whose}>"


class native_selector(selector):  # noqa: N801  # PyObjC's name
    """A method that is not written in Python, as far as users see: it counts its arguments."""

    def _call(self, receiver: Any, arguments: tuple[Any, ...]) -> Any:
        check_count(self.selector.count(b":"), len(arguments))
        return self.callable(receiver, *arguments)


def native_method(
    name: str, function: Implementation, is_boolean: bool = False, *, isClassMethod: bool = False
) -> native_selector:
    """A function as the method of this Python name: of objects, with a BOOL or an object as the result."""
    types = objects(name.count("_"), has_result=True)
    if is_boolean:
        types = Types(ctype("BOOL"), types.arguments)
    found = default_selector(name)
    return native_selector(function, found, isClassMethod=isClassMethod, types=lambda kind: types)


class unavailable_selector(native_selector):  # noqa: N801
    """A method that the headers mark NS_UNAVAILABLE."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raise TypeError."""
        raise TypeError(f"{self.selector.decode()!r} is NS_UNAVAILABLE")


class lazy_selector:  # noqa: N801
    """A selector of a class that is made when it is first asked for.

    ``make`` gives it, or why openmps does not offer it.
    """

    def __init__(self, make: Callable[[], selector | str]) -> None:
        self._make = make
        self._made: selector | str | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def resolve(self) -> selector | str:
        """The selector, which takes this one's place in its class, or the reason."""
        if self._made is None:
            self._made = self._make()
            if isinstance(self._made, selector):
                self._made.definingClass = self._owner
                type.__setattr__(self._owner, self._name, self._made)
        return self._made

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        found = self.resolve()
        if isinstance(found, str):
            raise AttributeError(self._name)  # the class or the object then says why
        return found.__get__(instance, owner)


def check_count(needed: int, given: int) -> None:
    """Raise unless a method or block gets as many arguments as it takes."""
    if needed != given:
        raise TypeError(f"Need {needed} arguments, got {given}")


class python_method:  # noqa: N801  # PyObjC's name
    """``objc.python_method``: what it decorates stays a method of Python."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.__wrapped__.__get__(instance, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function gives."""
        return self.__wrapped__(*arguments, **named)


def typed_selector(signature: bytes) -> Callable[[Implementation], selector]:
    """``objc.typedSelector``: a decorator that gives a method a signature."""
    return lambda function: selector(function, signature=signature)


# --- names ------------------------------------------------------------------------------------------------------------


def default_selector(name: str) -> bytes | None:
    """The selector of a method in a class body; None for a method of Python: ``add_one``, ``__len__``."""
    if name.endswith("__") and keyword.iskeyword(name[:-2]):
        name = name[:-2]
    is_special = name.startswith("__") and name.endswith("__")
    if is_special or ("_" in name[1:] and not name.endswith("_")):
        return None
    found = name.replace("_", ":")
    return ("_" + found[1:] if found[:1] == ":" else found).encode()


def python_name(selector: bytes | str) -> str:
    """The attribute of a selector: colons as underscores, and two behind a word of Python's."""
    text = selector.decode() if isinstance(selector, bytes) else selector
    return text + "__" if keyword.iskeyword(text) else text.replace(":", "_")


def selector_name(value: object) -> str:
    """The selector that a SEL argument says: str, bytes, or a selector."""
    if isinstance(value, selector):
        return value.selector.decode()
    if isinstance(value, (str, bytes)):
        return value.decode() if isinstance(value, bytes) else value
    raise TypeError(f"expecting a SEL, got instance of {type(value).__name__}")


# --- functions of class bodies ----------------------------------------------------------------------------------------


def objects(count: int, has_result: bool) -> Types:
    """The types of a method of which nothing is known."""
    return Types(OBJECT if has_result else VOID, (OBJECT,) * count)


def returns_value(function: Any) -> bool:
    """Whether a function has a ``return`` with anything but None."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType) or not isinstance(function, FunctionType):
        return True
    before = None
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_CONST" and each.argval is not None:
            return True
        if each.opname == "RETURN_VALUE" and not (
            before is not None and before.opname == "LOAD_CONST" and before.argval is None
        ):
            return True
        before = each
    return False


def check_prototype(function: Any, name: bytes) -> None:
    """Raise `BadPrototypeError` unless a function can be called with self and an argument a colon."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (AttributeError, ValueError, TypeError):
        return
    count = name.count(b":")
    only = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if only:
        raise BadPrototypeError(f"{function!r} has {len(only)} keyword-only arguments without a default")
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = sum(each.default is each.empty for each in places)
    if not needed <= count + 1 <= len(places):
        most = len(places) - 1
        has = f"{most}" if needed == len(places) else f"between {needed - 1} and {most}"
        raise BadPrototypeError(
            f"{name.decode()!r} expects {count} arguments, {function!r} has {has} positional arguments"
        )
