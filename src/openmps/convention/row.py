"""What a row of the table of conventions says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NO_NUMBERS = "it concerns which objects are made, counted and asked, not what kernels compute"
NOT_DEFINED = "no other reading is known well enough to be computed"


class Convention(NamedTuple):
    """One open reading of the documentation."""

    name: str
    questions: tuple[str, ...]
    """K, R: numbers and objects that only a Mac can tell; P: asked in the same run; F: found by a fact; I: filters."""
    asks: str
    choices: Mapping[str, str]
    """What each name means; the first is the default."""
    concerns: tuple[str, ...]
    """The classes that it bears on."""
    evidence: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    """Machines that were seen to do as the default says."""
    why_not: str = ""
    """Why there is no other choice."""
    to_ask: str = ""
    """What to ask a Mac, and what it answers by each reading."""

    @property
    def default(self) -> str:
        """The choice that holds unless another is asked for."""
        return next(iter(self.choices))

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The other choices."""
        return tuple(self.choices)[1:]
