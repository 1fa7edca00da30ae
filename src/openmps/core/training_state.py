"""What a checkpoint keeps of an object: the protocol, and the checks of what comes back out of a file.

A state is a flat mapping of names to whole numbers, floats, text and NumPy arrays. Restoring it makes the object go on
as the one that gave it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError

TrainingState: TypeAlias = Mapping[str, Any]
"""Whole numbers, floats, text and NumPy arrays by name."""

_LARGEST = 2**63 - 1


@runtime_checkable
class Checkpointed(Protocol):
    """What a checkpoint keeps the state of: a data source, a kernel with random numbers, an optimizer, a loop.

    Checked structurally: any object with these two methods will do. Our addition to the framework.
    """

    def training_state(self) -> TrainingState:
        """Everything that later steps depend on, as it is now; called when no work is under way."""
        ...

    def restore_training_state(self, state: TrainingState) -> None:
        """Take over what `training_state` gave; a state that does not fit is an ``MPSArgumentError``."""
        ...


def whole_number(who: str, state: TrainingState, name: str, most: int = _LARGEST) -> int:
    """The whole number ``name`` of a state, 0 to ``most``."""
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise MPSArgumentError(who, f"state {name!r}", f"must be a whole number from 0 to {most}", _shown(value))
    return value


def finite_number(who: str, state: TrainingState, name: str) -> float:
    """The finite number ``name`` of a state."""
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MPSArgumentError(who, f"state {name!r}", "must be a finite number", _shown(value))
    return float(value)


def numbers(
    who: str, state: TrainingState, name: str, shape: tuple[int | None, ...], dtype: type[np.generic] = np.float32
) -> NDArray[Any]:
    """The array ``name`` of a state, which must have this type and shape; None stands for any length."""
    value = state.get(name)
    wanted = f"must be {np.dtype(dtype).name} of shape {tuple('any' if n is None else n for n in shape)}"
    if not isinstance(value, np.ndarray):
        raise MPSArgumentError(who, f"state {name!r}", wanted, _shown(value))
    found: NDArray[Any] = value
    fits = found.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, found.shape, strict=True))
    if found.dtype != dtype or not fits:
        raise MPSArgumentError(who, f"state {name!r}", wanted, f"{found.dtype} of shape {found.shape}")
    return found


def check_names(who: str, state: TrainingState, names: set[str]) -> None:
    """Raise unless a state holds exactly ``names``."""
    for kind, culprits in (("misses", names - set(state)), ("must not hold", set(state) - names)):
        if culprits:
            raise MPSArgumentError(who, "state", f"{kind} {', '.join(repr(name) for name in sorted(culprits)[:4])}")


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]
