"""Foundation's strings, numbers, errors and exceptions."""

# Tables of selectors, which have the private parts of objects.
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
from __future__ import annotations

from typing import Any, NoReturn

from openmps.pyobjc.containers import NSDictionary
from openmps.pyobjc.errors import exception_of
from openmps.pyobjc.nsobject import NSObject

_CODED = ("NSCopying", "NSSecureCoding")

# --- errors -----------------------------------------------------------------------------------------------------------


def _error(cls: Any, domain: str, code: int, user_info: Any) -> Any:
    made = cls.alloc()
    made._said = (domain, code, dict(user_info or {}))
    return made


def _description(error: Any) -> str:
    domain, code, user_info = error._said
    return str(user_info.get("NSLocalizedDescription", f"{domain} error {code}"))


class NSError(
    NSObject,
    is_native=True,
    protocols=_CODED,
    selectors={
        "domain": lambda self: self._said[0],
        "code": lambda self: self._said[1],
        "userInfo": lambda self: NSDictionary.from_python(self._said[2]),
        "localizedDescription": _description,
        "description": lambda self: f"Error Domain={self._said[0]} Code={self._said[1]} {_description(self)!r}",
    },
    factories={"errorWithDomain_code_userInfo_": _error},
):
    """What went wrong."""

    __slots__ = ("_said",)


def error_of(fault: BaseException, code: int = 0) -> Any:
    """An NSError with an exception's class as the domain, and its sentence; the exception is in the user info."""
    return _error(
        NSError, type(fault).__name__, code, {"NSLocalizedDescription": str(fault), "NSUnderlyingException": fault}
    )


def _exception(self: Any, name: str, reason: str | None, user_info: Any) -> Any:
    self._said = (name, reason, user_info)
    return self


def _raise(exception: Any) -> NoReturn:
    raise exception_of(*exception._said)


class NSException(
    NSObject,
    is_native=True,
    protocols=_CODED,
    selectors={
        "initWithName_reason_userInfo_": _exception,
        "name": lambda self: self._said[0],
        "reason": lambda self: self._said[1],
        "userInfo": lambda self: self._said[2],
        "raise__": _raise,
    },
    factories={
        "exceptionWithName_reason_userInfo_": lambda cls, *said: _exception(cls.alloc(), *said),
    },
):
    """An exception that can be raised: a ValueError, IndexError … in Python, by its name."""

    __slots__ = ("_said",)


class NSAutoreleasePool(NSObject, is_native=True, selectors={"drain": lambda self: None}):
    """Memory is Python's here: a pool keeps nothing."""


# --- strings and numbers, which are Python's --------------------------------------------------------------------------


class pyobjc_unicode(str):  # noqa: N801  # PyObjC's name
    """``objc.pyobjc_unicode``: a str that answers as an NSString."""

    __slots__ = ()

    def nsstring(self) -> pyobjc_unicode:
        """The string itself."""
        return self

    def length(self) -> int:
        """How many UTF-16 units it has."""
        return len(self.encode("utf-16-le")) // 2

    def UTF8String(self) -> bytes:
        """Its bytes in UTF-8."""
        return self.encode()


class _Number:
    """The values of an NSNumber."""

    __slots__ = ()
    intValue = integerValue = longValue = unsignedIntegerValue = int.__int__  # noqa: N815
    doubleValue = floatValue = int.__float__  # noqa: N815
    boolValue = int.__bool__  # noqa: N815
    stringValue = int.__str__  # noqa: N815


class OC_PythonInt(_Number, int):  # noqa: N801  # PyObjC's name
    """An int that answers as an NSNumber."""

    __slots__ = ()


class OC_PythonFloat(_Number, float):  # noqa: N801  # PyObjC's name
    """A float that answers as an NSNumber."""

    __slots__ = ()
    intValue = integerValue = longValue = unsignedIntegerValue = float.__int__  # noqa: N815
    doubleValue = floatValue = float.__float__  # noqa: N815
    boolValue = float.__bool__  # noqa: N815
    stringValue = float.__str__  # noqa: N815


def string(value: str) -> pyobjc_unicode:
    """A string as the framework gives it."""
    return pyobjc_unicode(value)


def number(value: Any) -> Any:
    """A number as the framework gives it; a bool stays one."""
    if isinstance(value, bool):
        return value
    return OC_PythonFloat(value) if isinstance(value, float) else OC_PythonInt(value)


class NSString(
    NSObject,
    is_native=True,
    protocols=_CODED,
    factories={"string": lambda cls: string(""), "stringWithString_": lambda cls, value: string(value)},
):
    """Strings are Python's: each factory gives a str."""

    @classmethod
    def from_python(cls, value: Any = "") -> Any:
        """``NSString("text")``."""
        return string(value)


class NSNumber(
    NSObject,
    is_native=True,
    protocols=_CODED,
    factories={
        "numberWithBool_": lambda cls, value: bool(value),
        **dict.fromkeys(
            ("numberWithInt_", "numberWithInteger_", "numberWithUnsignedInteger_"),
            lambda cls, value: number(int(value)),
        ),
        **dict.fromkeys(("numberWithFloat_", "numberWithDouble_"), lambda cls, value: number(float(value))),
    },
):
    """Numbers are Python's: each factory gives an int, a float or a bool."""

    @classmethod
    def from_python(cls, value: Any = 0) -> Any:
        """``NSNumber(3)``."""
        return number(value)
