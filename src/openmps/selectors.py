"""How the framework's selectors make objects: class factories by their names, arguments in their order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any, Never, TypeVar

from openmps.checks import is_writable, public_names
from openmps.errors import MPSAttributeError, MPSTypeError
from openmps.spellings import closest, respelt

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Kind = type | tuple[type, ...] | Callable[[Any], bool]
"""What an argument must be for a form to be meant: of a class, or something that a function accepts."""


class Factory:
    """A class factory of the framework under its own name: the class, which is called as ever.

    ``image_descriptor = Factory("imageDescriptorWithChannelFormat:width:height:featureChannels:")``.
    """

    is_writable = False

    def __init__(self, *selectors: str) -> None:
        names = " and ".join(f"`{each}`" for each in selectors)
        self.__doc__ = f"The class itself, under the name of its factory: {names}."
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[T]) -> type[T]:
        return owner

    def __set__(self, instance: object, value: Never) -> Never:
        who, rule = type(instance).__name__, "is a class factory, and cannot be set"
        raise MPSAttributeError(who, self._name, rule, None, f"Call {who}.{self._name}(…)")


def takes(*forms: Mapping[str, Kind]) -> Callable[[Function], Function]:
    """A method that also takes its positional arguments in other orders, those of selectors.

    A form names its arguments in order, each with what it must be; ``object`` is anything. The first form is meant that
    has as many arguments and accepts all of them; where none does, the method's own order holds. Without forms, it only
    names the class, and the argument that was meant, where arguments are unknown or missing.
    """

    def decorate(method: Function) -> Function:
        parameters = inspect.signature(method).parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

        @wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            chosen = _form_of(forms, arguments) if arguments else None
            try:
                if chosen is None:
                    return method(self, *arguments, **named)
                if named and not chosen.keys().isdisjoint(named):
                    raise _twice(self, chosen.keys() & named.keys())
                return method(self, **dict(zip(chosen, arguments, strict=True)), **named)
            except MPSTypeError:
                raise
            except TypeError:
                unknown = () if takes_any else [name for name in named if name not in parameters]
                fault = no_argument(self, unknown[0], list(parameters)[1:]) if unknown else None
                if fault is None and chosen is None:
                    fault = _misfit(self, [*parameters.values()][1:], len(arguments), named, {*map(len, forms)})
                if fault is None:
                    raise
                raise fault from None

        return call  # pyright: ignore[reportReturnType]

    return decorate


def _form_of(forms: Iterable[Mapping[str, Kind]], arguments: Sequence[object]) -> Mapping[str, Kind] | None:
    """The first form that has as many arguments and accepts all of them."""
    for form in forms:
        if len(arguments) == len(form) and all(map(_is, arguments, form.values())):
            return form
    return None


def name_arguments(kind: type[T]) -> type[T]:
    """Have a class's own constructor name the class, and the argument that was meant, as `takes` does.

    A decorator of classes, dataclasses and named tuples, and for a base to call with its subclasses; not for what each
    encode makes.
    """
    own, made = vars(kind).get("__init__"), vars(kind).get("__new__")
    if own is not None and not hasattr(own, "__wrapped__"):
        setattr(kind, "__init__", takes()(own))  # noqa: B010
    elif own is None and made is not None:
        setattr(kind, "__new__", staticmethod(takes()(made.__func__)))  # noqa: B010
    return kind


# --- calls that each encode makes -------------------------------------------------------------------------------------


class _Absent:
    """Stands for an argument that must be given."""


_ABSENT = _Absent()
_BY_PLACE, _BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
_PLACES, _NAMES = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_ONLY_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY
_OWN = tuple([f"_openmps_{name}" for name in ("call", "refuse", "no", "more", "kw")])
_METHOD, _REFUSE, _NOTHING, _SURPLUS, _UNKNOWN = _OWN
"""What the text of a call says besides its arguments' names."""
Checks = Mapping[str, Callable[[str, Any], object]]
"""By arguments' names what raises for a wrong value, told who refuses it."""


def name_calls(kind: type, prefix: str, **checks: Callable[[str, Any], object]) -> None:
    """Have methods that a class defines itself name the object, and what does not fit, as `takes` does; but faster.

    They are those whose names begin so. The values that have ``checks`` must be right before another argument is called
    missing: where one was left out, the next is in its place.

    Python refuses such a call before the method runs. So the method is called by a function of the same arguments,
    which takes what does not fit as well. It is made as text, as those of dataclasses are: one of ``*arguments,
    **named`` takes twice as long, or five times where arguments go by name. What is given by place and by name at once
    Python refuses itself, and names it; so it does calls of coroutines and generators, which are left as they are.
    """
    for name, method in list(vars(kind).items()):
        if name.startswith(prefix) and type(method) is FunctionType and not hasattr(method, "__wrapped__"):
            own = list(inspect.signature(method).parameters.values())[1:]
            is_plain = not method.__code__.co_flags & _DEFERRED
            if is_plain and all(each.kind is not _ONLY_BY_PLACE and each.name not in _OWN for each in own):
                setattr(kind, name, _naming(method, own, checks))


_DEFERRED = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _naming(method: FunctionType, parameters: Sequence[inspect.Parameter], checks: Checks) -> Callable[..., Any]:
    names = {kind: [each.name for each in parameters if each.kind is kind] for kind in (*_STARS, _BY_PLACE, _BY_NAME)}
    defaults = {
        each.name: _ABSENT if each.default is each.empty else each.default
        for each in parameters
        if each.kind not in _STARS
    }
    around = {"__name__": __name__, _METHOD: method, _NOTHING: _ABSENT, _REFUSE: partial(_refuse, checks)}
    required = [name for name, value in defaults.items() if value is _ABSENT]
    call = FunctionType(_code(names, required), around, method.__name__)
    call.__defaults__ = tuple(defaults[name] for name in names[_BY_PLACE])
    call.__kwdefaults__ = {name: defaults[name] for name in names[_BY_NAME]}
    return wraps(method)(call)


_STARS = {_PLACES: "*", _NAMES: "**"}


def _code(names: Mapping[Any, Sequence[str]], required: Sequence[str]) -> CodeType:
    """The code of a function with these arguments."""
    by_place, by_name = names[_BY_PLACE], names[_BY_NAME]
    surplus, unknown = (names[kind] or [other] for kind, other in ((_PLACES, _SURPLUS), (_NAMES, _UNKNOWN)))
    heads = ["self", *by_place, f"*{surplus[0]}", *by_name, f"**{unknown[0]}"]
    taken = [f"{star}{name}" for kind, star in _STARS.items() for name in names[kind]]
    passed = ["self", *by_place, *taken[: len(names[_PLACES])], *(f"{name}={name}" for name in by_name)]
    misfits = [each for each in (_SURPLUS, _UNKNOWN) if each in (surplus[0], unknown[0])]
    is_misfit = " or ".join([*misfits, *(f"{name} is {_NOTHING}" for name in required)])
    given = ", ".join(f"{name!r}: {name}" for name in (*by_place, *by_name))
    more, others = (each if each in misfits else "()" for each in (_SURPLUS, _UNKNOWN))
    text = (
        f"def call({', '.join(heads)}):\n"
        f"    if {is_misfit or False}:\n"
        f"        {_REFUSE}(self, {{{given}}}, {len(by_place)}, {more}, {others})\n"
        f"    return {_METHOD}({', '.join([*passed, *taken[len(names[_PLACES]) :]])})\n"
    )
    module = compile(text, "<arguments of a call>", "exec")
    return next(each for each in module.co_consts if isinstance(each, CodeType))


def _refuse(
    checks: Checks,
    thing: Any,
    given: Mapping[str, object],
    places: int,
    surplus: Sequence[object],
    unknown: Mapping[str, object],
) -> Never:
    """Raise the error of a call; ``given`` are all arguments by their names, ``places`` those that go by place."""
    who, remedy = thing.name, f"The arguments are {', '.join(given)}"
    if unknown:
        raise no_argument(thing, next(iter(unknown)), list(given), who)
    for name, check in checks.items():
        if given.get(name, _ABSENT) is not _ABSENT:
            check(who, given[name])
    if surplus:
        raise MPSTypeError(who, "arguments by place", f"must be at most {places}", places + len(surplus), remedy)
    missing = " and ".join(name for name, value in given.items() if value is _ABSENT)
    raise MPSTypeError(who, missing, "must be given", None, remedy)


# --- what they share --------------------------------------------------------------------------------------------------


def _kind(thing: object) -> type:
    """The class of an object, or the class that is to make one."""
    return thing if isinstance(thing, type) else type(thing)


def accepts(who: str, argument: str, call: Any, names: str) -> None:
    """Raise unless ``call`` can be called with arguments of these names, in this order."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # written in C: it says nothing of its arguments
    try:
        signature.bind(*names.split())
    except TypeError:
        rule = f"must take ({', '.join(names.split())})"
        raise MPSTypeError(
            who, argument, rule, f"{getattr(call, '__name__', type(call).__name__)}{signature}"
        ) from None


class Elsewhere:
    """A method under a name of Swift's or Objective-C's: a call of it says what it is called here.

    For classes whose attributes an encode reads: a ``__getattr__`` would slow down every read.
    """

    is_elsewhere = True

    def __init__(self, name: str) -> None:
        self._here, self._name = name, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., Never]:
        return partial(self._refuse, owner)

    def _refuse(self, owner: type, /, *_: object, **__: object) -> Never:
        raise MPSAttributeError(owner.__name__, self._name, "is called otherwise here", None, f"Use {self._here}")


def no_argument(thing: object, name: str, names: list[str], who: str = "") -> MPSTypeError:
    """The error of an argument that is none of these, with the argument or the attribute that was meant.

    ``who`` refuses it: unless said, the class of the thing.
    """
    kind = _kind(thing)
    meant, own = closest(name, names), respelt(name, public_names(kind))
    if meant is None and "type" in names and (own or "").endswith("_type"):
        meant = "type"  # the framework's initializers call so what their property calls lossType, or neuronType
    if meant is not None:
        remedy = f"Use {meant}"
    elif own and is_writable(kind, own):
        remedy = f"It is an attribute, {own}: set it on the {kind.__name__}"
    else:
        remedy = f"The arguments are {', '.join(names)}"
    return MPSTypeError(who or kind.__name__, name, "is no argument here", None, remedy)


def _misfit(
    thing: object, parameters: Sequence[inspect.Parameter], places: int, named: Mapping[str, object], forms: set[int]
) -> MPSTypeError | None:
    """The error of a call with too few arguments, too many by place, or one given twice; None of one that fits.

    ``forms`` are the numbers of arguments that selectors have.
    """
    who, remedy = _kind(thing).__name__, f"The arguments are {', '.join(each.name for each in parameters)}"
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    if places > len(by_place):
        others = "".join(f", or {count} in the order of a selector" for count in sorted(forms - {len(by_place)}))
        return MPSTypeError(who, "arguments by place", f"must be at most {len(by_place)}{others}", places, remedy)
    given = {*by_place[:places], *named}
    if twice := set(by_place[:places]) & named.keys():
        return _twice(thing, twice)
    required = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    missing = [name for name in required if name not in given]
    return MPSTypeError(who, " and ".join(missing), "must be given", None, remedy) if missing else None


def _twice(thing: object, names: Iterable[str]) -> MPSTypeError:
    rule, remedy = "must be given once, got it by place and by name", "Leave one of them out"
    return MPSTypeError(type(thing).__name__, " and ".join(sorted(names)), rule, None, remedy)


def _is(value: object, kind: Kind) -> bool:
    return isinstance(value, kind) if isinstance(kind, type | tuple) else kind(value)
