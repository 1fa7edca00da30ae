"""The exceptions and warnings of the module ``objc``."""

from __future__ import annotations

from typing import Any


class error(Exception):  # noqa: N801, N818  # PyObjC's name
    """``objc.error``: an exception of the framework that has no counterpart among Python's."""


class ProtocolError(error):
    """``objc.ProtocolError``: there is no protocol of that name."""


class BadPrototypeError(error):
    """``objc.BadPrototypeError``: a method takes other arguments than its selector has."""


class nosuchclass_error(error):  # noqa: N801
    """``objc.nosuchclass_error``: there is no class of that name."""


class ObjCSuperWarning(DeprecationWarning):
    """``objc.ObjCSuperWarning``: a class calls ``super()``, and that is not ``objc.super``."""


class RefusedByPyObjCWarning(UserWarning):
    """Something works here that PyObjC refuses on a Mac."""


_KINDS: dict[str, type[Exception]] = {
    "NSInvalidArgumentException": ValueError,
    "NSRangeException": IndexError,
    "NSMallocException": MemoryError,
    "NSUnknownKeyException": KeyError,
}


def exception_of(name: str, reason: str | None, user_info: Any) -> Exception:
    """What an NSException of this name is in Python, with ``_pyobjc_info_``."""
    made = _KINDS.get(name, error)(f"{name} - {reason}")
    made._pyobjc_info_ = {"name": name, "reason": reason, "userInfo": user_info}  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return made
