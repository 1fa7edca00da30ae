"""Filters of pictures, as loops over windows: `Reading`s say where they lie, results are float64."""

from __future__ import annotations

import numpy as np

from oracles.geometry import Axis, gather

GRAY = (0.299, 0.587, 0.114)


def windows(x: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    """Every tap of every window: [N, C, rows, columns, taps down, taps across]."""
    return gather(x, rows, columns, edge)


def gray(x: np.ndarray, weights: tuple[float, float, float] = GRAY) -> np.ndarray:
    if x.shape[1] == 1:
        return x
    total = np.zeros_like(x[:, :1])
    for channel in range(min(3, x.shape[1])):
        total += weights[channel] * x[:, channel : channel + 1]
    return total


def spread(value: np.ndarray, channels: int) -> np.ndarray:
    """A gray value as a pixel of so many channels."""
    planes = [value] * min(channels, 3) + [np.ones_like(value)] * (channels == 4)
    return np.concatenate(planes, axis=1)


def threshold(kind: str, v: np.ndarray, limit: float, largest: float = 0.0) -> np.ndarray:
    result = np.zeros_like(v)
    for place in np.ndindex(v.shape):
        above, other = {
            "Binary": (largest, 0.0),
            "BinaryInverse": (0.0, largest),
            "Truncate": (limit, v[place]),
            "ToZero": (v[place], 0.0),
            "ToZeroInverse": (0.0, v[place]),
        }[kind]
        result[place] = above if v[place] > limit else other
    return result


def convert_alpha(x: np.ndarray, source: str, result: str, background: tuple[float, float, float]) -> np.ndarray:
    made = np.array(x)
    for n, y, c in np.ndindex(x.shape[0], x.shape[2], x.shape[3]):
        *colour, alpha = x[n, :, y, c]
        if source == "ALPHA_IS_ONE":
            alpha = 1.0
        straight = list(colour)
        if source == "PREMULTIPLIED":
            straight = [0.0 if alpha == 0.0 else each / alpha for each in colour]
        if result == "NON_PREMULTIPLIED":
            made[n, :, y, c] = [*straight, alpha]
        elif result == "PREMULTIPLIED":
            made[n, :, y, c] = [*(each if source == "PREMULTIPLIED" else each * alpha for each in colour), alpha]
        else:
            weighted = colour if source == "PREMULTIPLIED" else [each * alpha for each in colour]
            made[n, :, y, c] = [*(a + (1.0 - alpha) * b for a, b in zip(weighted, background, strict=True)), 1.0]
    return made


def arithmetic(kind: str, x: np.ndarray, y: np.ndarray, scales: tuple[float, float], bias: float) -> np.ndarray:
    p, q = scales[0] * x, scales[1] * y
    how = {"Add": np.add, "Subtract": np.subtract, "Multiply": np.multiply, "Divide": np.divide}
    return how[kind](p, q) + bias


def textured(x: np.ndarray, channels: int) -> np.ndarray:
    """The components of a texture: 0 where there is none, 1 in the place of a fourth one."""
    made = np.zeros((x.shape[0], channels, *x.shape[2:]))
    for channel in range(channels):
        made[:, channel] = x[:, channel] if channel < x.shape[1] else float(channel == 3)
    return made


def correlate(taps: np.ndarray, weights: np.ndarray, bias: float = 0.0) -> np.ndarray:
    """`taps` are those of `windows`; the weights lie on them unflipped."""
    result = np.full(taps.shape[:4], float(bias))
    for v, u in np.ndindex(weights.shape):
        result += weights[v, u] * taps[..., v, u]
    return result


def triangle(size: int) -> np.ndarray:
    m = (size - 1) // 2
    return np.array([(m + 1 - abs(i)) / (m + 1) ** 2 for i in range(-m, m + 1)])


def bell(sigma: float) -> np.ndarray:
    q = int(np.ceil(3.7 * sigma))
    weights = np.array([np.exp(-(i**2) / (2 * sigma**2)) for i in range(-q, q + 1)])
    return weights / weights.sum()


def sobel(taps: np.ndarray) -> np.ndarray:
    across = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    down = np.array([[1.0, 2, 1], [0, 0, 0], [-1, -2, -1]])
    return np.sqrt(correlate(taps, across) ** 2 + correlate(taps, down) ** 2)


def median(taps: np.ndarray) -> np.ndarray:
    result = np.zeros(taps.shape[:4])
    for place in np.ndindex(result.shape):
        ordered = sorted(taps[place].ravel())
        result[place] = ordered[len(ordered) // 2]
    return result


def morphology(taps: np.ndarray, values: np.ndarray, is_largest: bool) -> np.ndarray:
    result = np.zeros(taps.shape[:4])
    for place in np.ndindex(result.shape):
        shifted = taps[place] - values if is_largest else taps[place] + values
        result[place] = shifted.max() if is_largest else shifted.min()
    return result


def _bin(v: float, low: float, high: float, entries: int) -> int:
    share = (min(max(v, low), high) - low) / (high - low)
    return min(int(share * entries), entries - 1)


def histogram(x: np.ndarray, entries: int, low: tuple, high: tuple, least: tuple) -> np.ndarray:
    """Counts [channels, bins]."""
    result = np.zeros((x.shape[1], entries), dtype=np.int64)
    for n, c, y, i in np.ndindex(x.shape):
        v = float(x[n, c, y, i])
        if v >= least[c]:
            result[c, _bin(v, low[c], high[c], entries)] += 1
    return result


def equalize(x: np.ndarray, entries: int) -> np.ndarray:
    """Of numbers in 0 … 1."""
    channels = x.shape[1]
    counts = histogram(x, entries, (0.0,) * channels, (1.0,) * channels, (0.0,) * channels)
    result = np.zeros(x.shape)
    for n, c, y, i in np.ndindex(x.shape):
        place = _bin(float(x[n, c, y, i]), 0.0, 1.0, entries)
        result[n, c, y, i] = counts[c, : place + 1].sum() / counts[c].sum()
    return result


def specify(x: np.ndarray, have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Of one channel of numbers in 0 … 1."""
    entries, result = len(have), np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        b = _bin(float(x[place]), 0.0, 1.0, entries)
        share = int(have[: b + 1].sum()) * int(want.sum())
        d = next(d for d in range(entries) if int(want[: d + 1].sum()) * int(have.sum()) >= share)
        result[place] = d / (entries - 1)
    return result
