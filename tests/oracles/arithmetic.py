"""Add, subtract, multiply, divide and compare two images, with scales, a bias and limits; gradients with their sums."""

from __future__ import annotations

import numpy as np

FLT_MAX = float(np.finfo(np.float32).max)


def _at(array: np.ndarray, index: tuple[int, ...]) -> np.float64:
    """The element that a result position reads: an axis of length 1 is read at 0."""
    place = tuple(0 if length == 1 else i for i, length in zip(index, array.shape, strict=True))
    return np.float64(array[place])


def _value(operation: str, x: np.float64, y: np.float64, p: float, q: float, bias: float) -> np.float64:
    if operation == "add":
        return p * x + q * y + bias
    if operation == "subtract":
        return p * x - q * y + bias
    if operation == "multiply":
        return (p * x) * (q * y) + bias
    if operation == "divide":
        return (p * x) / (q * y) + bias
    raise ValueError(operation)


def _shape(x: np.ndarray, y: np.ndarray) -> tuple[int, ...]:
    return tuple(b if a == 1 else a for a, b in zip(x.shape, y.shape, strict=True))


def forward(
    operation: str,
    x: np.ndarray,
    y: np.ndarray,
    p: float = 1.0,
    q: float = 1.0,
    bias: float = 0.0,
    minimum: float = -FLT_MAX,
    maximum: float = FLT_MAX,
) -> tuple[np.ndarray, np.ndarray]:
    """The result and `minimum < unclamped < maximum`. A limit at its default is off, for both."""
    result = np.zeros(_shape(x, y))
    inside = np.zeros(result.shape, dtype=bool)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*result.shape):
            value = _value(operation, _at(x, index), _at(y, index), p, q, bias)
            inside[index] = (minimum == -FLT_MAX or minimum < value) and (maximum == FLT_MAX or value < maximum)
            if minimum != -FLT_MAX and value < minimum:
                value = np.float64(minimum)
            if maximum != FLT_MAX and value > maximum:
                value = np.float64(maximum)
            result[index] = value
    return result, inside


def gradients(
    operation: str,
    g: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    p: float = 1.0,
    q: float = 1.0,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What flows to the primary and to the secondary source: summed where a source was broadcast."""
    primary, secondary = np.zeros(x.shape), np.zeros(y.shape)
    for index in np.ndindex(*g.shape):
        incoming = float(g[index]) * (1.0 if mask is None else float(mask[index]))
        to_x, to_y = {
            "add": (p, q),
            "subtract": (p, -q),
            "multiply": (p * q * _at(y, index), p * q * _at(x, index)),
        }[operation]
        for gradient, factor in ((primary, to_x), (secondary, to_y)):
            place = tuple(0 if length == 1 else i for i, length in zip(index, gradient.shape, strict=True))
            gradient[place] += incoming * factor
    return primary, secondary


def _holds(comparison: str, x: np.float64, y: np.float64, threshold: float) -> bool:
    near = bool(x == y or abs(x - y) <= threshold)
    return {
        "equal": near,
        "not equal": bool(abs(x - y) > threshold),
        "less": bool(x < y),
        "less or equal": bool(x < y) or near,
        "greater": bool(x > y),
        "greater or equal": bool(x > y) or near,
    }[comparison]


def compare(comparison: str, x: np.ndarray, y: np.ndarray, threshold: float = 0.0) -> np.ndarray:
    """1 where the primary number compares so with the secondary one, else 0."""
    result = np.zeros(_shape(x, y))
    with np.errstate(invalid="ignore"):
        for index in np.ndindex(*result.shape):
            result[index] = float(_holds(comparison, _at(x, index), _at(y, index), threshold))
    return result
