"""What is done to the pixels of an image before a network sees them, as data of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.selectors import name_arguments

_ORDERS = {"grey": 1, "RGB": 3, "BGR": 3}
_KEY = "preprocessing"
_UNIT = 1 / 255


@name_arguments
@dataclass(frozen=True)
class Preprocessing:
    """``x = (pixel - mean) scale``, channel by channel, of pixels from 0 to 255 in the channels' order.

    ``order`` is grey, RGB or BGR; ``mean`` and ``scale`` have a number for each channel, in that order. Networks that
    openmps trains see RGB or grey from 0 to 1: mean 0, scale 1 / 255. That is what a run has whose description says
    nothing. ``run.amend(preprocessing.describe())`` says otherwise, for weights from elsewhere::

        Preprocessing("BGR", mean=(104, 117, 123), scale=(1, 1, 1))

    Raises:
        MPSArgumentError: The order is none of these, there are not as many numbers as channels, or one is not finite.
    """

    order: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        who = type(self).__name__
        if not isinstance(self.order, str) or self.order not in _ORDERS:
            raise MPSArgumentError(who, "order", f"must be one of {', '.join(_ORDERS)}", repr(self.order))
        for name in ("mean", "scale"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise MPSTypeError(who, name, "must be a number for each channel", repr(given))
            numbers = tuple(finite(who, name, each) for each in cast("list[object]", given))
            if len(numbers) != _ORDERS[self.order]:
                rule = f"must have a number for each channel, {_ORDERS[self.order]}"
                raise MPSArgumentError(who, name, rule, len(numbers))
            object.__setattr__(self, name, numbers)
        if min(map(abs, self.scale)) < np.finfo(np.float32).tiny:
            raise MPSArgumentError(who, "scale", "must not be 0 as float32, which images have", self.scale)

    @classmethod
    def plain(cls, channels: int) -> Preprocessing | None:
        """Pixels from 0 to 1, grey or RGB; None for images of another number of channels, which have no order."""
        order = {1: "grey", 3: "RGB"}.get(channels)
        return None if order is None else cls(order, (0.0,) * channels, (_UNIT,) * channels)

    @classmethod
    def described(cls, config: Mapping[str, object], channels: int, file: str) -> Preprocessing | None:
        """What a run's description says, or `plain` where it says nothing.

        Raises ``MPSFileError`` where it says what is none, or is of another number of channels than the network.
        """
        if _KEY not in config:
            return cls.plain(channels)
        given = config[_KEY]
        entries: Any = given if isinstance(given, Mapping) else {}
        try:
            if set(entries) != {"order", "mean", "scale"}:
                rule = "must have the entries order, mean and scale"
                raise MPSArgumentError("Preprocessing", _KEY, rule, repr(given)[:80])
            found = cls(entries["order"], entries["mean"], entries["scale"])
        except (MPSArgumentError, MPSTypeError) as error:
            raise MPSFileError("Preprocessing", file, "must describe its preprocessing", error) from error
        if len(found.mean) != channels:
            rule = f"must describe preprocessing of the network's {channels} channels"
            raise MPSFileError("Preprocessing", file, rule, f"{found.order}, of {len(found.mean)}")
        return found

    def describe(self) -> dict[str, object]:
        """The entry of a run's description."""
        return {_KEY: {"order": self.order, "mean": list(self.mean), "scale": list(self.scale)}}

    @property
    def is_plain(self) -> bool:
        """Whether pixels are left from 0 to 1, in their order."""
        return self == type(self).plain(len(self.mean))

    def applied(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Float32 images ``[N, H, W, C]`` of uint8 ones, whose channels are grey or RGB."""
        ordered = images[..., ::-1] if self.order == "BGR" else images
        mean, scale = (np.array(each, np.float64) for each in (self.mean, self.scale))
        return ((ordered - mean) * scale).astype(np.float32)

    def __str__(self) -> str:
        """``RGB, pixels / 255``, or with means, ``BGR, (pixels - (104, 117, 123)) * 1``."""
        mean = "pixels" if not any(self.mean) else f"(pixels - {_row(self.mean)})"
        inverse = 1 / self.scale[0]
        is_divided = len(set(self.scale)) == 1 and math.isclose(inverse, round(inverse))
        return f"{self.order}, {mean} " + (f"/ {round(inverse)}" if is_divided else f"* {_row(self.scale)}")


def _row(numbers: tuple[float, ...]) -> str:
    texts = [f"{each:g}" for each in numbers]
    return texts[0] if len(set(texts)) == 1 else f"({', '.join(texts)})"
