"""NSKeyedArchiver, whose data MPSKeyedUnarchiver reads: archives of openmps."""

from __future__ import annotations

from typing import Any

from openmps.errors import MPSError
from openmps.pyobjc.bridge import object_in
from openmps.pyobjc.data import NSData
from openmps.pyobjc.foundation import error_of
from openmps.pyobjc.nsobject import NSObject
from openmps.pyobjc.values import public


def _archived(cls: Any, thing: Any, is_secure: Any = True) -> Any:
    return NSData.from_python(public("MPSKeyedArchiver").archived_data(object_in(thing), bool(is_secure)))


def _archived_or_error(cls: Any, thing: Any, is_secure: Any, error: None) -> tuple[Any, Any]:
    try:
        return _archived(cls, thing, is_secure), None
    except MPSError as fault:
        return None, error_of(fault)


class NSKeyedArchiver(
    NSObject,
    is_native=True,
    factories={
        "archivedDataWithRootObject_": _archived,
        "archivedDataWithRootObject_requiringSecureCoding_error_": _archived_or_error,
    },
):
    """Writes objects of the framework as data."""
