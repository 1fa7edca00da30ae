"""The learning rate as a function of the step: schedules by name, and functions of one's own.

With ``p = step / steps``, the part of the training that is behind, the factors of the learning rate are

=========  ===========================================================================================
linear     1, and over the last ``decay`` of the training ``(1 - p) / decay``
constant   1
step       1, from a third on 0.1, from two thirds on 0.01
cosine     ``(1 + cos(pi p)) / 2``
one-cycle  half a cosine from 1/25 up to 1 at ``p = 0.3``, another one from there down to 1/250000
=========  ===========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from openmps.checks import finite, of_kind
from openmps.errors import MPSArgumentError, shown

ScheduleName: TypeAlias = Literal["linear", "constant", "step", "cosine", "one-cycle"]
"""See the module's table."""
Schedule: TypeAlias = Callable[[int, int], float]
"""The factor of the learning rate in step ``step``, counted from 0, of ``steps``."""

DEFAULT_DECAY = 0.3
_CYCLE_START, _CYCLE_PEAK, _CYCLE_END = 1 / 25, 0.3, 1 / 25e4


def _linear(step: int, steps: int, decay: float) -> float:
    left = 1 - step / steps
    return 1.0 if left >= decay else left / decay


def _constant(step: int, steps: int, decay: float) -> float:
    del step, steps, decay
    return 1.0


def _step(step: int, steps: int, decay: float) -> float:
    del decay
    return 10.0 ** -(3 * step // steps)


def _cosine(step: int, steps: int, decay: float) -> float:
    del decay
    return _half_cosine(1.0, 0.0, step / steps)


def _one_cycle(step: int, steps: int, decay: float) -> float:
    del decay
    behind = step / steps
    if behind < _CYCLE_PEAK:
        return _half_cosine(_CYCLE_START, 1.0, behind / _CYCLE_PEAK)
    return _half_cosine(1.0, _CYCLE_END, (behind - _CYCLE_PEAK) / (1 - _CYCLE_PEAK))


def _half_cosine(first: float, last: float, part: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * part)) / 2


SCHEDULES: Mapping[str, Callable[[int, int, float], float]] = {
    "linear": _linear,
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
    "one-cycle": _one_cycle,
}


@dataclass(frozen=True)
class AbsentSchedule:
    """A function that a run's description names; a file cannot bring it along."""

    function: str

    def __call__(self, step: int, steps: int) -> float:
        """Raises: without the function there is no rate."""
        rule = f"must be given again: the run was trained by the function {self.function}"
        raise MPSArgumentError("resume", "schedule", rule, None, "Go on in Python, by resume(…, schedule=function)")


def check_schedule(who: str, schedule: object) -> None:
    """Raise unless it is a name of the table or can be called."""
    if not callable(schedule) and (not isinstance(schedule, str) or schedule not in SCHEDULES):
        rule = f"must be one of {', '.join(SCHEDULES)}, or a function of step and number of steps"
        raise MPSArgumentError(who, "schedule", rule, shown(schedule))


def factor_at(who: str, schedule: ScheduleName | Schedule, decay: float, step: int, steps: int, warmup: int) -> float:
    """The factor of the learning rate in ``step`` of ``steps``.

    Over the first ``warmup`` steps it rises in a straight line, ``(step + 1) / (warmup + 1)``, to where the schedule
    begins, which has the steps that are left to itself.

    Raises:
        MPSArgumentError: A function gives what is no finite number of 0 or more.
    """
    place, length = max(step - warmup, 0), steps - warmup
    if isinstance(schedule, str):
        factor = SCHEDULES[schedule](place, length, decay)
    else:
        factor = finite(who, "schedule's factor", schedule(place, length))
        if factor < 0:
            got = f"{factor} in step {place} of {length}"
            raise MPSArgumentError(who, "schedule's factor", "must be 0 or more", got)
    return factor if step >= warmup else factor * (step + 1) / (warmup + 1)


def described_schedule(schedule: ScheduleName | Schedule) -> object:
    """A schedule as JSON holds it: a name of the table, or where the function is from."""
    if isinstance(schedule, str):
        return schedule
    if isinstance(schedule, AbsentSchedule):
        return {"function": schedule.function}
    named = schedule if hasattr(schedule, "__qualname__") else type(schedule)
    return {"function": f"{named.__module__}.{named.__qualname__}"}


def schedule_of(description: object) -> ScheduleName | Schedule:
    """What `described_schedule` described; a function comes back as an `AbsentSchedule`."""
    if isinstance(description, Mapping):
        function = cast("Mapping[str, object]", description).get("function")
        return AbsentSchedule(of_kind("TrainingOptions", "schedule's function", function, str))
    return cast("ScheduleName", description)  # TrainingOptions refuses other names
