"""What was done to a picture before a device's network saw it, beside what should have been: mistakes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_PLACES: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "upside down": lambda x: x[:, ::-1],
    "mirrored from left to right": lambda x: x[:, :, ::-1],
    "turned by 180 degrees": lambda x: x[:, ::-1, ::-1],
    "with rows and columns exchanged": lambda x: x.transpose(0, 2, 1, 3),
}
_ORDERS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "with its channels in reverse order (BGR for RGB)": lambda x: x[..., ::-1],
}
_KNOWN = {255.0: "255", 1 / 255: "1/255", 2.0: "2", 0.5: "1/2", 1 / 127.5: "1/127.5", 127.5: "127.5"}
_ALIKE = 1e-2


def picture_mistake(found: Array, wanted: Array, tolerance: float) -> str:
    """What a device's source image looks like beside the one that it should be; empty where nothing usual does."""
    if wanted.ndim != 4 or not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return ""
    tries = sorted(product(_PLACES, _ORDERS), key=lambda names: sum(map(bool, names)))
    for how in (_same, _scaled, _offset, _scaled_and_offset):
        for place, order in tries:
            moved = _ORDERS[order](_PLACES[place](wanted)).astype(np.float64)
            if moved.shape != found.shape or (order and wanted.shape[3] == 1):
                continue
            for says, made in how(moved, found.astype(np.float64)):
                scale = max(float(np.abs(found).max()), float(np.abs(made).max()))
                if float(np.abs(found - made).max()) <= tolerance * scale and float(np.ptp(made)) > tolerance * scale:
                    return "it is the image " + ", ".join(each for each in (place, order, says) if each)
    return ""


def _same(x: Array, found: Array) -> Iterator[tuple[str, Array]]:
    yield "", x


def _scaled(x: Array, found: Array) -> Iterator[tuple[str, Array]]:
    factor = float((x * found).sum()) / (float((x * x).sum()) or 1.0)
    yield f"times {_number(factor)}", x * factor


def _offset(x: Array, found: Array) -> Iterator[tuple[str, Array]]:
    added = (found - x).mean((0, 1, 2))
    yield f"with {_numbers(added)} added: another mean", x + added


def _scaled_and_offset(x: Array, found: Array) -> Iterator[tuple[str, Array]]:
    means = x.mean((0, 1, 2)), found.mean((0, 1, 2))
    flat = x - means[0]
    factor = float((flat * (found - means[1])).sum()) / (float((flat * flat).sum()) or 1.0)
    added = means[1] - factor * means[0]
    yield f"times {_number(factor)}, with {_numbers(added)} added: another scale and mean", x * factor + added


def _number(value: float) -> str:
    for known, text in _KNOWN.items():
        if abs(value - known) <= _ALIKE * known:
            return text
    return f"{value:.4g}"


def _numbers(values: Array) -> str:
    shown = ", ".join(f"{each:.4g}" for each in values[:4])
    return f"{shown}{', …' if len(values) > 4 else ''}"
