"""How often temporary objects may still be read.

A temporary image or state starts at one read. Every encode that reads it takes one; at zero its memory is given back.
The images of a batch are counted apart, but a batch that is only ever read as a whole pays for one counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openmps.checks import Labelled, whole
from openmps.errors import MPSLifetimeError


class ReadCounts:
    """The read counts of the ``size`` members of one block of temporary objects.

    ``on_exhausted`` is called once, when the last member reaches zero.
    """

    __slots__ = ("_alive", "_common", "_on_exhausted", "_own", "size")

    def __init__(self, size: int, on_exhausted: Callable[[], None] | None = None) -> None:
        self.size = size
        self._common = 1
        self._own: dict[int, int] | None = None
        self._alive = size
        self._on_exhausted = on_exhausted

    def get(self, index: int) -> int:
        """The count of one member."""
        return self._common if self._own is None else self._own.get(index, self._common)

    def set(self, who: str, index: int, value: int) -> None:
        """Set one member's count. Changing a count after it reached zero is an error."""
        value = whole(who, "read_count", value, 0)
        before = self.get(index)
        if before == 0 and value != 0:
            remedy = "Set it before the encode that reads it last"
            raise MPSLifetimeError(who, "read_count", "cannot change after it reached 0", value, remedy)
        self._put(index, before, value)

    def take(self, who: Labelled | str, amount: int, members: Sequence[int] | None = None) -> None:
        """Take ``amount`` reads from each of ``members``, from all for None. Too few left is an error."""
        if members is None and self._own is None and 0 < amount <= self._common:
            self._common -= amount
            if not self._common:
                self._died(self.size)
            return
        fewest = self.fewest(members)
        if fewest < amount:
            rule = f"must be at least {amount} for this encode"
            remedy = "Raise it first: each source argument and each encode takes one read"
            raise MPSLifetimeError(who if isinstance(who, str) else who.name, "read_count", rule, fewest, remedy)
        self.add(-amount, members)

    def add(self, amount: int, members: Sequence[int] | None = None) -> None:
        """Add to each of ``members``, to all for None, that is not at zero yet; a count does not go below zero."""
        if members is None:
            self._add_to_all(amount)
            return
        for index in members:
            before = self.get(index)
            if before:
                self._put(index, before, max(0, before + amount))

    def fewest(self, members: Sequence[int] | None = None) -> int:
        """The smallest count among ``members``, among all for None."""
        if members is not None:
            return min((self.get(index) for index in members), default=0)
        if self._own is None:
            return self._common
        own = min(self._own.values(), default=self._common)
        return own if len(self._own) == self.size else min(own, self._common)

    @property
    def exhausted(self) -> bool:
        """Whether no member can be read any more."""
        return self._alive == 0

    def _put(self, index: int, before: int, value: int) -> None:
        if self._own is None:
            self._own = {}
        self._own[index] = value
        self._died(1 if before and not value else 0)

    def _add_to_all(self, amount: int) -> None:
        died = 0
        if self._common:
            self._common = max(0, self._common + amount)
            died = 0 if self._common else self.size - len(self._own or ())
        for index, count in (self._own or {}).items():
            if count:
                left = max(0, count + amount)
                self._put(index, 0, left)
                died += left == 0
        self._died(died)

    def _died(self, members: int) -> None:
        self._alive -= members
        if members and self._alive == 0:
            self._end()

    def _end(self) -> None:
        """The last member has reached zero."""
        if self._on_exhausted is not None:
            self._on_exhausted()
