"""What objects of every floor share: names that errors call them by, checks of names and whole numbers, lengths."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import MemberDescriptorType as _Slot
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Never,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeGuard,
    TypeVar,
    overload,
)

from openmps.enumerated import declared_checks
from openmps.errors import MPSArgumentError, MPSAttributeError, MPSError, MPSMemoryError, MPSTypeError, shown
from openmps.spellings import OtherSpelling, add_other_spellings, closest, respelt, spellings

T = TypeVar("T")

MaybeNone: TypeAlias = Any
"""Beside another type: None is possible, and who knows that it is not need not say so to a type checker."""


class Shown(property, Generic[T]):
    """A read-only property that shows a private attribute or a part of it: ``Shown[float]("_neuron.a", "…")``."""

    def __init__(self, path: str, doc: str, change: Callable[[Any, T], None] | None = None) -> None:
        super().__init__(attrgetter(path), change)
        self.__doc__ = doc

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type, /) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None, /) -> T: ...
        def __get__(self, instance: object, owner: type | None = None, /) -> Self | T: ...
        def __set__(self, instance: object, value: Never, /) -> None: ...


class Checked(property, Generic[T]):
    """A property that is checked where it is set: ``Checked[float](1.0, number, "…")``, kept in ``_name``.

    ``check`` takes the object's class and label, the property's name and a value, and gives the value.
    """

    def __init__(self, default: T, check: Callable[[str, str, Any], T], doc: str) -> None:
        super().__init__()
        self.default, self._check, self.__doc__ = default, check, doc

    def __set_name__(self, owner: type, name: str) -> None:
        kept = f"_{name}"

        def change(thing: object, value: object) -> None:
            store(thing, kept, self._check(_called(thing), name, value))

        setattr(owner, kept, self.default)
        super().__init__(attrgetter(kept), change, None, self.__doc__)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type, /) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None, /) -> T: ...
        def __get__(self, instance: object, owner: type | None = None, /) -> Self | T: ...
        def __set__(self, instance: object, value: T, /) -> None: ...


_PACKAGE = __name__.partition(".")[0]


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


class _Refusal:
    """The setter of a property that can be read only."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, thing: object, value: object) -> Never:
        raise read_only(thing, self._name)


class NamedProperties:
    """An object whose read-only properties say so, by `MPSAttributeError`, where they are set."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The class, and bases that are not such objects by themselves.
        for kind in cls.__mro__ if _is_own(cls) else ():
            if _is_own(kind) and (kind is cls or not issubclass(kind, NamedProperties)):
                _refuse_changes(kind)


def _refuse_changes(kind: type) -> None:
    """Have the properties of a class that can be read only say so."""
    for name, member in vars(kind).items():
        if isinstance(member, property) and member.fset is None:
            property.__init__(member, member.fget, _Refusal(name), member.fdel, member.__doc__)


def is_writable(kind: type, name: str) -> bool:
    """Whether an attribute of a class can be set on its objects; a method is none."""
    member = inspect.getattr_static(kind, name, None)
    if isinstance(member, property):
        return member.fset is not None and not isinstance(member.fset, _Refusal)
    return bool(getattr(member, "is_writable", not inspect.isroutine(member)))


class Labelled(NamedProperties):
    """An object with a label."""

    _label: str | None = None
    _name: str | None = None

    @property
    def label(self) -> str | None:
        """A name for errors and debugging."""
        return self._label

    @label.setter
    def label(self, value: str | None) -> None:
        self._label, self._name = optional_text(type(self).__name__, "label", value), None

    @property
    def name(self) -> str:
        """Class and label, as errors call the object."""
        name = self._name
        if name is None:  # kept, because every encode asks for it
            name = f"{type(self).__name__} {self._label!r}" if self._label else type(self).__name__
            store(self, "_name", name)
        return name


class Single:
    """An object of which there is one: it is neither copied nor pickled, and an error says what to do instead."""

    __slots__ = ()

    _instead: ClassVar[str]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        # Copies ask for this too.
        raise MPSTypeError(
            getattr(self, "name", _called(self)), "a copy or pickle", "is not offered", None, self._instead
        )


def of_kind(who: str, argument: str, value: object, kind: type[T], remedy: str = "") -> T:
    """``value`` if it is of this class, else an error that says so."""
    if not isinstance(value, kind):
        # Letters are spelt in MPSImage, and read as a word in Capture.
        spoken_first = "AEFHILMNORSX" if kind.__name__[:2].isupper() else "AEIOUaeiou"
        article = "an" if kind.__name__[0] in spoken_first else "a"
        raise MPSTypeError(who, argument, f"must be {article} {kind.__name__}", type(value).__name__, remedy)
    return value


def having(method: str, rule: str, remedy: str = "") -> Callable[[str, str, Any], Any]:
    """The check that a value has a method; ``rule`` says so in an error."""

    def check(who: str, argument: str, value: Any) -> Any:
        if not callable(getattr(value, method, None)):
            raise MPSTypeError(who, argument, rule, type(value).__name__, remedy)
        return value

    return check


def or_none(check: Callable[[str, str, Any], T]) -> Callable[[str, str, Any], T | None]:
    """A check that None passes, too."""
    return lambda who, argument, value: None if value is None else check(who, argument, value)


def listed(who: str, argument: str, value: Iterable[T] | None, what: str) -> list[T]:
    """The members of a sequence, none of None; ``what`` says in an error what they must be."""
    if value is None:
        return []
    return members(who, argument, value, f"must be a sequence of {what}")


def members(who: str, argument: str, value: Iterable[T], rule: str) -> list[T]:
    """What a sequence holds; text, mappings and arrays without axes are none."""
    try:
        if not isinstance(value, str | bytes | Mapping):
            return list(value)
    except TypeError:  # arrays without axes are iterable by their class
        pass
    raise MPSTypeError(who, argument, rule, type(value).__name__)


# --- names of attributes ----------------------------------------------------------------------------------------------

_KEPT = 1024
"""Answers kept about classes and names."""
_DERIVED = "It follows from how the object was made, and from its other attributes"
"""Why an attribute cannot be set, where no argument of the constructor has its name."""


class KnownAttributes(NamedProperties):
    """An object that has the attributes of its class and no others.

    Setting another public name raises `MPSAttributeError`, which names the attribute that was probably meant:
    ``edge_mode`` for ``edgeMode``, ``label`` for ``lable``. Names with a leading underscore are not looked at.

    A class outside of the package has attributes of its own as well. It may declare any name in its body, as a value or
    an annotation, and may set any other that is not one of the package's attributes in another spelling: in a subclass
    of `MPSNNFilterNode` ``self.rate = 2`` is fine and ``self.paddingPolicy = policy`` is refused.

    An attribute that a class of the package declares as a ``bool``, a ``float``, a ``str | None`` or an enumeration is
    checked to be one when it is set, and others by `_attribute_checks`, a table of the class: a check takes the
    object's name, the attribute's and a value, and gives the value. One that can be read only is refused.

    All this costs time at each write. What an encode writes, it writes with `store`.
    """

    __slots__ = ()

    _attribute_checks: ClassVar[Mapping[str, Callable[[str, str, Any], Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if _is_own(cls) and not hasattr(cls, "__getattr__"):
            for base in cls.__mro__:
                if base is cls or (_is_own(base) and not issubclass(base, KnownAttributes)):
                    add_other_spellings(cls, sorted(_declared(base)))

    def __dir__(self) -> list[str]:
        found: dict[str, object] = {}
        for base in reversed(type(self).__mro__):
            found.update(vars(base))
        return [name for name in super().__dir__() if not isinstance(found.get(name), OtherSpelling)]

    if not TYPE_CHECKING:  # A type checker knows the attributes without.

        def __setattr__(self, name: str, value: object) -> None:
            if name[0] != "_":
                check = _checks(type(self)).get(name)
                if check is not None:
                    value = check(_called(self), name, value)
                elif name not in public_names(type(self)) and _is_refused(type(self), name):
                    raise _unknown(self, name)
            object.__setattr__(self, name, value)


class NamedAttributes(KnownAttributes):
    """An object that names the attribute that was meant where an unknown one is read, too.

    It slows every read down, so it is not for objects that an encode reads.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            # Called where nothing was found, or where a property has raised an AttributeError.
            if name[0] == "_":
                raise AttributeError(f"{type(self).__name__}.{name} is not set")
            if name in public_names(type(self)):
                remedy = "A constructor of a subclass begins with super().__init__(…)"
                raise MPSAttributeError(type(self).__name__, name, "is not set", None, remedy)
            raise _unknown(self, name)


store = object.__setattr__
"""Sets an attribute of an object with `KnownAttributes` and does not look at the name."""


@lru_cache(_KEPT)
def public_names(kind: type) -> frozenset[str]:
    """The public names that a class has or declares."""
    return frozenset(name for base in kind.__mro__ for name in _declared(base) if name[0] != "_")


def _declared(base: type) -> set[str]:
    """The names in a class's own body, without those that only say what they are called here."""
    here = {name for name, at in vars(base).items() if not hasattr(type(at), "is_elsewhere")}
    return here.union(getattr(base, "__annotations__", ()))


@lru_cache(_KEPT)
def _checks(kind: type) -> Mapping[str, Callable[[str, str, Any], Any]]:
    """The checks of a class's attributes: by their types as the package declares them, and those of its own."""
    found: dict[str, Callable[[str, str, Any], Any]] = {}
    for base in reversed(kind.__mro__):
        if _is_own(base):
            declared = getattr(base, "__annotations__", {}).items()
            found |= {name: _OF_TYPE[declaration] for name, declaration in declared if declaration in _OF_TYPE}
            found |= declared_checks(base)
            found |= vars(base).get("_attribute_checks", {})
    # What a class makes a property of checks its values itself.
    at = {name: getattr(kind, name, None) for name in found}
    return {name: found[name] for name in found if isinstance(at[name], _Slot) or not hasattr(at[name], "__set__")}


@lru_cache(_KEPT)
def _own_names(kind: type) -> frozenset[str]:
    """Those of them that come from the package."""
    inner = next(base for base in kind.__mro__ if _is_own(base))
    return public_names(inner)


@lru_cache(_KEPT)
def _is_refused(kind: type, name: str) -> bool:
    return _is_own(kind) or respelt(name, _own_names(kind)) is not None


@lru_cache(_KEPT)
def _meant(kind: type, name: str) -> str | None:
    """The attribute of a class that ``name`` was probably to be."""
    names = public_names(kind)
    return next(filter(None, (respelt(each, names) for each in spellings(name))), None) or closest(name, names)


def _called(thing: object) -> str:
    """Class and label."""
    label = getattr(thing, "_label", None)
    return f"{type(thing).__name__} {label!r}" if isinstance(label, str) and label else type(thing).__name__


def described(thing: object, *said: object, **values: object) -> str:
    """``<Class 'label': said, name value, …>``: the text of an object in a program that looks at it; without None."""
    parts = [str(each) for each in said if each is not None]
    parts += [f"{name} {value_text(value)}" for name, value in values.items() if value is not None]
    return f"<{_called(thing)}{': ' if parts else ''}{', '.join(parts)}>"


def value_text(value: object) -> str:
    """A property's value in the text of an object: the name of a flag, few digits."""
    if isinstance(value, Enum):
        return value.name or str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_only(thing: object, name: str) -> MPSAttributeError:
    """The error for an attribute that is set and can be read only."""
    kind = type(thing)
    # What users do not make by its class says which call makes it.
    call = getattr(kind, "_made_by", {}).get(name)
    if call is None and name in inspect.signature(kind).parameters:
        call = f"{kind.__name__}(…, {name}=…)"
    remedy = _DERIVED if call is None else f"Make another with {call}"
    return MPSAttributeError(_called(thing), name, "is read-only", None, remedy)


def _unknown(thing: object, name: str) -> MPSAttributeError:
    who = _called(thing)
    meant = _meant(type(thing), name)
    if (elsewhere := getattr(type(thing), "_elsewhere", {}).get(name)) is not None:
        return MPSAttributeError(who, name, "is no attribute of this class", None, elsewhere)
    remedy = "A subclass can have attributes of its own" if meant is None else f"Use {meant}"
    return MPSAttributeError(who, name, "is no attribute of this class", None, remedy)


# --- flags and numbers ------------------------------------------------------------------------------------------------

FLT_MAX = (2.0 - 2.0**-23) * 2.0**127
"""The largest number of float32."""
_ROUNDS_TO_INFINITY = 2.0**128 - 2.0**103


def flag(who: str, argument: str, value: Any, rule: str = "must be True or False") -> bool:
    """``value`` as a bool: one of Python's or NumPy's, or 0 or 1, the framework's NO and YES. Text is none."""
    if (isinstance(value, int) or _is_of_numpy(value)) and value in (0, 1):
        return bool(value)
    raise MPSTypeError(who, argument, rule, shown(value))


def _is_of_numpy(value: Any) -> bool:
    import numpy as np  # here: the command line asks for nothing else of it before a command runs

    return isinstance(value, np.bool_ | np.integer)


def optional_flag(who: str, argument: str, value: Any) -> bool | None:
    """``value`` as a bool, or None."""
    return None if value is None else flag(who, argument, value, "must be None, True or False")


def optional_text(who: str, argument: str, value: Any) -> str | None:
    """``value`` as text, or None."""
    if value is not None and not isinstance(value, str):
        raise MPSTypeError(who, argument, "must be text or None", shown(value))
    return value


def number(who: str, argument: str, value: Any, *, is_nan_allowed: bool = False) -> float:
    """``value`` as a float that is a number of float32 when rounded; infinities too, NaN where it is allowed.

    Raises:
        MPSTypeError: It is none.
        MPSArgumentError: It is NaN, or finite and too large for float32.
    """
    if isinstance(value, str | bytes | bool):
        raise MPSTypeError(who, argument, "must be a number", shown(value))
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise MPSTypeError(who, argument, "must be a number", shown(value)) from fault
    except OverflowError as fault:
        raise _too_large(who, argument, "one beyond float64") from fault
    if math.isnan(found) and not is_nan_allowed:
        raise MPSArgumentError(who, argument, "must be a number", found)
    if abs(found) <= FLT_MAX or not math.isfinite(found):
        return found
    if abs(found) >= _ROUNDS_TO_INFINITY:
        raise _too_large(who, argument, found)
    return math.copysign(FLT_MAX, found)


def finite(who: str, argument: str, value: Any) -> float:
    """``value`` as a float that is a finite number of float32."""
    found = number(who, argument, value)
    if math.isinf(found):
        raise MPSArgumentError(who, argument, "must be a finite number", found)
    return found


def is_whole(value: object, least: int | None = None) -> TypeGuard[int]:
    """Whether ``value`` is an integer, no bool, of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def whole(who: str, argument: str, value: object, least: int = 1, rule: str | None = None) -> int:
    """``value`` if it is an integer of at least ``least``, NumPy's too; ``rule`` says so in other words."""
    found = value if type(value) is int else as_index(value)
    if found is None or found < least:
        raise MPSArgumentError(who, argument, rule or f"must be an integer of at least {least}", shown(value))
    return found


def one_of_two(who: str, first: str, one: object, second: str, other: object) -> None:
    """Raise unless one of two arguments is given, and not both."""
    if (one is None) == (other is None):
        rule = f"or {second} must be given" + ("" if one is None else ", not both")
        raise MPSTypeError(who, first, rule, "neither" if one is None else "both")


def as_index(value: object) -> int | None:
    """``value`` as an int, NumPy's integers too; None for what is no integer, bools among them."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _too_large(who: str, argument: str, got: object) -> MPSArgumentError:
    return MPSArgumentError(who, argument, f"must be a number of float32, at most {FLT_MAX} in magnitude", got)


_OF_TYPE: dict[str, Callable[[str, str, Any], Any]] = {
    "bool": flag,
    "bool | None": optional_flag,
    "float": number,
    "str | None": optional_text,
}
"""What attributes are checked by that are declared so."""


OF_MEMORY = re.compile(r"out of memory|not enough memory|(cannot|can't) allocate memory|^Error -4 while", re.IGNORECASE)
"""How libraries that have no better error for it put it; the last is zlib's."""


@contextmanager
def memory_for(who: str, argument: str) -> Generator[None]:
    """Raise ``MPSMemoryError`` where there is no memory for what is made within.

    Python and NumPy raise ``MemoryError``, torch a ``RuntimeError`` that only its text tells from others.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_of_memory = isinstance(error, MemoryError) or OF_MEMORY.search(str(error))
        if isinstance(error, MPSError) or not is_of_memory:  # ours are named already
            raise
        remedy = "Drop what is no longer used, or use a smaller batch"
        raise MPSMemoryError(who, argument, "needs more memory than there is", None, remedy) from error
