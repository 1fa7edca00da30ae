"""``openmps weights convert --mean --scale --channels``: what a run's network wants done to pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.training.run_folder import RunFolder

_WHO = "openmps weights convert"
_ALL = "--mean, --scale and --channels"


def preprocessing_entry(
    run: RunFolder | None, mean: str | None, scale: str | None, channels: str | None
) -> Mapping[str, object]:
    """The entry of the run's description; what is not said stays as it is there. Nothing where nothing is said."""
    if mean is None and scale is None and channels is None:
        return {}
    if run is None:
        raise MPSArgumentError(_WHO, _ALL, "must be left out: a run alone says what is done to pixels")
    from openmps.training.inference import described_preprocessing
    from openmps.training.preprocessing import Preprocessing

    now = described_preprocessing(run)
    if now is None:
        raise MPSArgumentError(_WHO, _ALL, "must be left out: the network's images are neither grey nor coloured")
    count, order = len(now.mean), channels or now.order
    if order not in (("grey",) if count == 1 else ("RGB", "BGR")):
        rule = f"must be {'grey' if count == 1 else 'RGB or BGR'}: the network has {count} channel(s)"
        raise MPSArgumentError(_WHO, "--channels", rule, order)
    return Preprocessing(order, _row("--mean", mean, now.mean), _row("--scale", scale, now.scale)).describe()


def _row(option: str, text: str | None, now: tuple[float, ...]) -> tuple[float, ...]:
    """``104,117,123``, or one number for all channels; ``1/255`` is one, too."""
    if text is None:
        return now
    numbers = [_number(each) for each in text.split(",")]
    numbers = numbers * len(now) if len(numbers) == 1 else numbers
    is_scale = option == "--scale"
    if len(numbers) != len(now) or not all(map(math.isfinite, numbers)) or (is_scale and 0.0 in numbers):
        rule = f"must be a number, or {len(now)} with commas between, finite{', and not 0' * is_scale}"
        raise MPSArgumentError(_WHO, option, rule, repr(text))
    return tuple(numbers)


def _number(text: str) -> float:
    """NaN for what is none."""
    top, _, below = text.partition("/")
    try:
        return float(top) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return math.nan
