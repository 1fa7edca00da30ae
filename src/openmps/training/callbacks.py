"""Functions of one's own that training calls at steps and epochs, and what they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, MethodType

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, described, public_names
from openmps.core.kinds import listed
from openmps.errors import MPSTypeError
from openmps.selectors import name_arguments
from openmps.spellings import closest
from openmps.training.metrics import TrainingStatus


@name_arguments
@dataclass(frozen=True)
class EpochReport:
    """The end of an epoch: its test is in ``status``, ``weights`` are the numbers that were tested, by name.

    They are copies that cannot be written. ``best_epoch`` is the one with the best test, None unless patience or
    keeping the best one asked for it.
    """

    status: TrainingStatus
    learning_rate: float
    """Of the epoch's last step."""
    weights: Mapping[str, NDArray[np.float32]]
    best_epoch: int | None


class TrainingCallback(NamedAttributes):
    """What `train` and `resume` call, of ``callbacks=[…]``, in their order: override what is wanted.

    An answer of True ends training before the next step, as Ctrl-C does: weights and a checkpoint are saved. So does an
    exception, which is raised again when they are; no callback is called after it. Of several processes each calls its
    own, and all end together where one asks for it, a few steps later.

    Methods that nothing calls are refused where they look as if: in another spelling, or called ``on_epoch_end``, as
    other frameworks have them. So is a callback that overrides neither of the two. Methods of your own may begin with
    an underscore.
    """

    def __repr__(self) -> str:
        return described(self)

    def finish_step(self, status: TrainingStatus) -> bool | None:
        """Called after each step, in order, with the figures of the epoch so far; up to two later ones may have begun.

        Work that is long holds training up.
        """
        return None

    def finish_epoch(self, report: EpochReport) -> bool | None:
        """Called after the test at the end of each epoch, when its weights are saved."""
        return None


_CALLED = ("finish_step", "finish_epoch")
_OF_OTHERS = ("on_", "before_", "after_")
"""How names of methods begin that other frameworks call."""
_WORDS = frozenset("batch epoch step train training begin start end finish finished".split())
"""Names of these words alone, ``epoch_end``, seem to be called as well; ``plot_epoch`` does not."""


def _check_is_called(who: str, callback: TrainingCallback) -> None:
    """Raise for a callback with a method that seems to be called and is not, or with none that is."""
    kind = type(callback)
    names = sorted(public_names(kind) - public_names(TrainingCallback))
    own = [name for name in names if callable(getattr(kind, name, None))]
    idle = [name for name in own if _seems_called(name)]
    inherited = (MethodType(getattr(TrainingCallback, name), callback) for name in _CALLED)
    if idle or all(getattr(callback, each.__name__) == each for each in inherited):
        rule = f"must override {' or '.join(_CALLED)}: no other method is called"
        remedy = "Give it one of these two names; a method for yourself may begin with an underscore"
        raise MPSTypeError(
            who, "callbacks", rule, f"{kind.__name__} with {', '.join(idle or own) or 'neither'}", remedy
        )


def _seems_called(name: str) -> bool:
    return name.startswith(_OF_OTHERS) or _WORDS.issuperset(name.split("_")) or closest(name, _CALLED) is not None


class Callbacks:
    """The callbacks of one training, and whether one has ended it."""

    def __init__(self, who: str, callbacks: Sequence[TrainingCallback]) -> None:
        self._each = listed(who, "callbacks", callbacks, TrainingCallback)
        for each in self._each:
            _check_is_called(who, each)
        self.fault: Exception | None = None
        """What one has raised."""
        self.is_to_stop = False

    def __repr__(self) -> str:
        return described(self)

    def finish_step(self, status: Callable[[], TrainingStatus]) -> None:
        """Tell of a step; an exception is kept as `fault`."""
        for each in self._left():
            self._ask(each, each.finish_step, status)

    def finish_epoch(self, report: Callable[[], EpochReport]) -> None:
        """Tell of an epoch; an exception is kept as `fault`."""
        for each in self._left():
            self._ask(each, each.finish_epoch, report)

    def _left(self) -> Sequence[TrainingCallback]:
        return [] if self.fault is not None else self._each

    def _ask(self, callback: TrainingCallback, method: Callable[..., object], shown: Callable[[], object]) -> None:
        if self.fault is not None:
            return
        try:
            answer = method(shown())
            if answer is not None and not isinstance(answer, bool):
                name = f"{type(callback).__name__}.{method.__name__}"
                raise MPSTypeError(
                    name, "answer", "must be True to end training, else False or None", repr(answer)[:60]
                )
        except Exception as error:
            self.fault, self.is_to_stop = error, True
        else:
            self.is_to_stop = self.is_to_stop or answer is True

    def raise_fault(self, iteration: int) -> None:
        """Raise what a callback has raised, now that weights and a checkpoint are saved."""
        if self.fault is not None:
            self.fault.add_note(
                f"A callback ended the training after {iteration} iterations; resume() goes on from there."
            )
            raise self.fault


def read_only(arrays: Mapping[str, NDArray[np.float32]]) -> Mapping[str, NDArray[np.float32]]:
    """Copies that cannot be written."""
    copies = {name: array.copy() for name, array in arrays.items()}
    for copy in copies.values():
        copy.setflags(write=False)
    return MappingProxyType(copies)
