"""Memory that stays the same, told from other memory by a number."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from torch import Tensor

from openmps.metal.memory import Memory
from openmps.metal.version import Version


class Identity(NamedTuple):
    """Which memory something is bound to, and how it sees it."""

    serial: int
    """The same number for the same part of the same memory, seen in the same way."""
    held: tuple[object, ...]
    """What must stay the same: tensors, or buffers, with their memory."""
    versions: tuple[Version, ...]
    """Of what says that it does."""
    numbers: list[int]
    """The versions that it is the identity of."""

    def is_current(self) -> bool:
        """Whether it still is that of what it was asked of."""
        return [each.number for each in self.versions] == self.numbers

    def things(self) -> list[object]:
        """All of that. The identity itself does not hold the memory of buffers, which may give it back."""
        return [*self.held, *[each.present for each in self.held if isinstance(each, Memory)]]

    def storages(self) -> frozenset[int]:
        """The addresses of the memory."""
        return frozenset([storage_of(each) for each in self.things() if isinstance(each, Tensor)])


_serials: dict[Hashable, int] = {}
_next_serial = itertools.count(1)
_MOST_SERIALS = 1 << 16


def new_serial() -> int:
    """A number that nothing else has."""
    return next(_next_serial)


def serial_of(key: Hashable) -> int:
    """A number for how memory is seen: the same each time while the memory is there."""
    serial = _serials.get(key)
    if serial is None:
        if len(_serials) >= _MOST_SERIALS:
            _serials.clear()
        serial = _serials[key] = new_serial()
    return serial


def identity_of_held(
    kind: type, view_key: Hashable, held: tuple[object, ...], versions: tuple[Version, ...]
) -> Identity:
    """The identity of what a binding of this class sees in this way of things that stay in these versions."""
    identity = Identity(0, held, versions, [each.number for each in versions])
    serial = serial_of((kind, view_key, tuple([id(each) for each in identity.things()])))
    return identity._replace(serial=serial)


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's memory, the same for all that share it."""
    return tensor.untyped_storage().data_ptr()


def storages_of(identities: Iterable[Identity]) -> frozenset[int]:
    """The addresses of the memory of some identities."""
    return frozenset[int]().union(*[each.storages() for each in identities])
