"""The properties of a kernel as one value, from which its encodes are planned.

A kernel holds one immutable `Configuration`; setting a property gives it another one. Plans are functions of a
configuration and of shapes, so they are kept with it, and kernels with equal configurations share them.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, Never, NoReturn, Self, TypeVar, overload

from openmps.checks import read_only, value_text
from openmps.convention import DOCUMENTED, Conventions, current
from openmps.core.image.storage import Extent
from openmps.core.numbers import integer
from openmps.metal.version import Version
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode, MPSOffset

T = TypeVar("T")

ULONG_MAX = 2**64 - 1
FARTHEST = 2**31 - 1
"""The largest window, stride or dilation, in pixels: beyond every image, and near enough for 64-bit arithmetic."""
_NO_OFFSET = MPSOffset(0, 0, 0)
_NONE: Mapping[str, Any] = {}
_CONVENTIONS = "_conventions"
"""The name of the conventions among the values, where they are not all the defaults."""
_MOST_CONFIGURATIONS = 512
_MOST_PLANS = 256
"""Plans kept with one configuration: a program that meets ever new shapes begins anew then."""


class SourceProperties(NamedTuple):
    """How a kernel reads one of its sources."""

    offset: MPSOffset = _NO_OFFSET
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO
    channel_offset: int = 0
    channel_max_count: int = ULONG_MAX
    kernel_width: int = 1
    kernel_height: int = 1
    stride_x: int = 1
    stride_y: int = 1
    dilation_x: int = 1
    dilation_y: int = 1

    def window(self, source: Extent, width: int, height: int) -> Window:
        """The source pixels that ``width`` x ``height`` result pixels read."""
        return Window(
            x=Axis(source.width, width, self.kernel_width, self.stride_x, self.dilation_x, self.offset.x),
            y=Axis(source.height, height, self.kernel_height, self.stride_y, self.dilation_y, self.offset.y),
        )

    def placed(self, x: int, y: int) -> SourceProperties:
        """The same reading with another offset in x and y."""
        return self._replace(offset=MPSOffset(x, y, self.offset.z))


class Configuration:
    """An immutable set of properties: those of each source, and the others by name. Values are plain and hashable."""

    __slots__ = ("__weakref__", "device_type", "is_interned", "kind", "plans", "sources", "values")

    def __init__(
        self,
        kind: type,
        device_type: str,
        sources: tuple[SourceProperties, ...] = (),
        values: Mapping[str, Any] = _NONE,
    ) -> None:
        self.kind = kind
        """The kernel's class."""
        self.device_type = device_type
        """``cpu`` or ``cuda``: where the work will run."""
        self.sources = sources
        self.values = values
        self.is_interned = False
        """Whether this is the one object of its value."""
        self.plans: dict[Any, Any] = {}
        """What was planned from these properties, by shapes."""

    def changed(self, **values: Any) -> Configuration:
        """Other values for some names."""
        return Configuration(self.kind, self.device_type, self.sources, {**self.values, **values})

    def reading(self, sources: tuple[SourceProperties, ...]) -> Configuration:
        """Other properties of the sources."""
        return Configuration(self.kind, self.device_type, sources, self.values)

    def moved(self, device_type: str) -> Configuration:
        """The same properties for another kind of device."""
        return Configuration(self.kind, device_type, self.sources, self.values)

    def interned(self) -> Configuration:
        """The one object of this value, so that equal kernels, and one that is set to and fro, share their plans."""
        if self.is_interned:
            return self
        # By what they say: as numbers 0.0 and -0.0, 1 and True are equal.
        key = f"{id(self.kind)} {(self.kind, self.device_type, self.sources, sorted(self.values.items()))!r}"
        found = _interned.setdefault(key, self)
        if not found.is_interned:
            found.is_interned = True
            _recent.append(found)
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """What copies and pickles hold: properties, not the plans made from them."""
        return type(self), (self.kind, self.device_type, self.sources, dict(self.values))

    def said(self) -> list[str]:
        """What a user has chosen: how the first source is read, and the properties that are not as they come."""
        text: list[str] = []
        if self.sources:
            first, plain = self.sources[0], SourceProperties()
            pairs = (("kernel_width", "kernel_height"), ("stride_x", "stride_y"), ("dilation_x", "dilation_y"))
            for pair in pairs:
                x, y = (getattr(first, name) for name in pair)
                if (x, y) != (1, 1):
                    text.append(f"{pair[0].partition('_')[0]} {x}x{y}")
            if first.offset != plain.offset:
                text.append(f"offset ({first.offset.x}, {first.offset.y})")
            if first.edge_mode != plain.edge_mode:
                text.append(f"edge_mode {value_text(first.edge_mode)}")
        for name, value in self.values.items():
            shown = getattr(self.kind, name, None)
            if isinstance(shown, KernelProperty | Fixed) and not name.startswith("_") and not shown.is_default(value):
                text.append(f"{name} {value_text(value)}")
        if _CONVENTIONS in self.values:
            text.append(repr(self.values[_CONVENTIONS]))
        return text

    def keep(self, key: Any, plan: T) -> T:
        """Keep a plan under its shapes."""
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return plan


_interned: weakref.WeakValueDictionary[str, Configuration] = weakref.WeakValueDictionary()
_recent: deque[Configuration] = deque(maxlen=_MOST_CONFIGURATIONS)
"""Kept though no kernel has them now: a property may be set back."""


def chosen_conventions() -> Mapping[str, Any]:
    """The values that a configuration begins with: the conventions of the block around, but for the defaults."""
    chosen = current().departures()
    return {_CONVENTIONS: Conventions(chosen)} if chosen else _NONE


class Configured:
    """An object whose properties are one `Configuration`."""

    _configuration: Configuration
    _property_version: Version
    """Another one after each change of a property, or of what one is bound to; the kernels of a graph share one."""

    @property
    def conventions(self) -> Conventions:
        """What it follows where the framework's documentation leaves a choice: those of the block it was made in.

        Our addition.
        """
        return self._configuration.values.get(_CONVENTIONS, DOCUMENTED)

    def _follow(self, conventions: Conventions) -> None:
        """Follow others from now on."""
        self._change(**{_CONVENTIONS: conventions})

    @property
    def name(self) -> str:
        """What errors call the object."""
        return type(self).__name__

    def share_property_version(self, version: Version) -> None:
        """Count changes of properties in a version that others share; for those who hold several kernels."""
        self._property_version = version

    def _change(self, **values: Any) -> None:
        """Set properties by name."""
        self._configuration = self._configuration.changed(**values)
        self._property_version.advance()

    @property
    def _sources(self) -> tuple[SourceProperties, ...]:
        return self._configuration.sources

    def _change_source(self, index: int, **fields: Any) -> None:
        """Set properties of one source."""
        sources = list(self._configuration.sources)
        sources[index] = sources[index]._replace(**fields)
        self._configuration = self._configuration.reading(tuple(sources))
        self._property_version.advance()

    def _change_sources(self, **fields: Any) -> None:
        """Set properties of all sources alike."""
        sources = tuple(source._replace(**fields) for source in self._configuration.sources)
        self._configuration = self._configuration.reading(sources)
        self._property_version.advance()


_UNSET: Any = object()


class _Value(Generic[T]):
    """A part of the configuration, under the name that it has in its class."""

    _name = "property"
    _default: Any = _UNSET

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def is_default(self, value: object) -> bool:
        """Whether a value is that of a kernel as it is made."""
        return value is self._default or bool(value == self._default)

    @overload
    def __get__(self, kernel: None, owner: type) -> Self: ...
    @overload
    def __get__(self, kernel: Configured, owner: type) -> T: ...
    def __get__(self, kernel: Configured | None, owner: type) -> Self | T:
        if kernel is None:
            return self
        found = kernel._configuration.values.get(self._name, self._default)  # pyright: ignore[reportPrivateUsage]
        if found is _UNSET:
            raise AttributeError(f"{type(kernel).__name__}.{self._name} is not set yet")
        return found


class Setting(_Value[T]):
    """A value of the class's own, which a constructor sets."""

    def __set__(self, kernel: Configured, value: T) -> None:
        kernel._change(**{self._name: value})  # pyright: ignore[reportPrivateUsage]


class Fixed(_Value[T]):
    """A read-only property: what the constructor gave to `Configured._change` under its name."""

    is_writable = False

    def __init__(self, doc: str, default: Any = _UNSET) -> None:
        self._default = default
        self.__doc__ = doc

    def __set__(self, kernel: Configured, value: Never) -> NoReturn:
        raise read_only(kernel, self._name)


class KernelProperty(_Value[T]):
    """A property with a default. ``check`` takes the kernel's name, the property's and a value, and gives the value."""

    def __init__(self, default: T, check: Callable[[str, str, T], T], doc: str) -> None:
        self._default = default
        self._check = check
        self.__doc__ = doc

    def __set__(self, kernel: Configured, value: T) -> None:
        checked = self._check(kernel.name, self._name, value)
        kernel._change(**{self._name: checked})  # pyright: ignore[reportPrivateUsage]


class SourceProperty(Generic[T]):
    """A property of one source, kept in its `SourceProperties`; read-only without a check."""

    def __init__(self, source: int, field: str, check: Callable[[str, str, T], T] | None, doc: str) -> None:
        self._source = source
        self._field = field
        self._check = check
        self._name = field
        self.is_writable = check is not None
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, kernel: None, owner: type) -> Self: ...
    @overload
    def __get__(self, kernel: Configured, owner: type) -> T: ...
    def __get__(self, kernel: Configured | None, owner: type) -> Self | T:
        if kernel is None:
            return self
        return getattr(kernel._configuration.sources[self._source], self._field)  # pyright: ignore[reportPrivateUsage]

    def __set__(self, kernel: Configured, value: T) -> None:
        if self._check is None:
            raise read_only(kernel, self._name)
        checked = self._check(kernel.name, self._name, value)
        kernel._change_source(self._source, **{self._field: checked})  # pyright: ignore[reportPrivateUsage]


def at_least(least: int, most: float = math.inf) -> Callable[[str, str, int], int]:
    """The check that a value is an integer of at least ``least``, and of at most ``most``."""
    return partial(integer, least=least, most=most)
