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


def integral(x: np.ndarray) -> np.ndarray:
    result = np.zeros(x.shape)
    for y, i in np.ndindex(x.shape[2:]):
        result[:, :, y, i] = x[:, :, : y + 1, : i + 1].sum(axis=(2, 3))
    return result


def distances(x: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    """To the nearest pixel that is not 0 of the source and of what the edge mode continues, 9 pixels on each side."""
    near = 9
    wide = gather(x, Axis(x.shape[2] + 2 * near, offset=-near), Axis(x.shape[3] + 2 * near, offset=-near), edge)
    result = np.full((*x.shape[:2], rows.result, columns.result), np.inf)
    for n, c, j, i in np.ndindex(wide.shape[:4]):
        if wide[n, c, j, i, 0, 0] != 0.0:
            down = np.arange(rows.result)[:, None] + rows.offset - (j - near)
            across = np.arange(columns.result) + columns.offset - (i - near)
            result[n, c] = np.minimum(result[n, c], np.sqrt(down**2 + across**2))
    return result


def canny(x: np.ndarray, sigma: float, low: float, high: float, edge: int) -> np.ndarray:
    """Of one channel of one picture at a time; the whole picture."""
    weights = bell(sigma)
    height, width = x.shape[2:]
    taps = gather(x, Axis(height, len(weights)), Axis(width, len(weights)), edge)
    blurred = correlate(taps, np.outer(weights, weights))
    taps = gather(blurred, Axis(height, 3), Axis(width, 3), edge)
    across = correlate(taps, np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]))
    down = correlate(taps, np.array([[-1.0, -2, -1], [0, 0, 0], [1, 2, 1]]))
    length = np.sqrt(across**2 + down**2)
    result = np.zeros(x.shape)
    for n, c in np.ndindex(x.shape[:2]):
        g = np.pad(length[n, c], 1)
        weak, edges = np.zeros((height, width), bool), np.zeros((height, width), bool)
        for y, i in np.ndindex(height, width):
            angle = np.degrees(np.arctan2(down[n, c, y, i], across[n, c, y, i])) % 180.0
            v, u = [(0, -1), (-1, -1), (-1, 0), (-1, 1), (0, -1)][int((angle + 22.5) // 45.0)]
            here = g[y + 1, i + 1]
            if here > g[y + 1 + v, i + 1 + u] and here >= g[y + 1 - v, i + 1 - u]:
                weak[y, i], edges[y, i] = here > low, here > high
        ahead = list(zip(*np.nonzero(edges), strict=True))
        while ahead:
            y, i = ahead.pop()
            for v, u in np.ndindex(3, 3):
                at = (y + v - 1, i + u - 1)
                if 0 <= at[0] < height and 0 <= at[1] < width and weak[at] and not edges[at]:
                    edges[at] = True
                    ahead.append(at)
        result[n, c] = edges
    return result


def _windowed_mean(x: np.ndarray, weights: np.ndarray, diameter: int) -> np.ndarray:
    """Of [rows, columns], over the pixels inside."""
    reach, result = diameter // 2, np.zeros(x.shape)
    for y, i in np.ndindex(x.shape):
        part = np.s_[max(0, y - reach) : y + reach + 1, max(0, i - reach) : i + reach + 1]
        total = weights[part].sum()
        result[y, i] = (x[part] * weights[part]).sum() / total if total > 0 else 0.0
    return result


def guided(p: np.ndarray, guide: np.ndarray, weights: np.ndarray, diameter: int, epsilon: float) -> np.ndarray:
    """Coefficients [colours + 1, rows, columns] of a picture [rows, columns] by a guidance [colours, rows, columns]."""
    reach, colours = diameter // 2, len(guide)
    found = np.zeros((colours + 1, *p.shape))
    for y, i in np.ndindex(p.shape):
        part = np.s_[max(0, y - reach) : y + reach + 1, max(0, i - reach) : i + reach + 1]
        w = weights[part].ravel()
        if w.sum() == 0:
            continue
        w = w / w.sum()
        values, target = guide[(slice(None), *part)].reshape(colours, -1), p[part].ravel()
        mean, mean_of_p = values @ w, target @ w
        spread = (values * w) @ values.T - np.outer(mean, mean) + epsilon * np.eye(colours)
        a = np.linalg.solve(spread, (values * w) @ target - mean * mean_of_p)
        found[:, y, i] = [*a, mean_of_p - a @ mean]
    return np.stack([_windowed_mean(each, np.ones(p.shape), diameter) for each in found])


def decimate(x: np.ndarray, weights: np.ndarray, size: tuple[int, ...], edge: int) -> np.ndarray:
    """Of [rows, columns]: the window around every second pixel."""
    (height, width), (rows, columns) = weights.shape, size
    taps = gather(x[None, None], Axis(rows, height, 2), Axis(columns, width, 2), edge)
    return correlate(taps, weights)[0, 0]


def expand(x: np.ndarray, weights: np.ndarray, size: tuple[int, ...], edge: int) -> np.ndarray:
    """Of [rows, columns]: pixels at even places of a picture of this size, zeros elsewhere, and the window's sums."""
    result, reach = np.zeros(size), (weights.shape[0] // 2, weights.shape[1] // 2)
    for y, i in np.ndindex(*size):
        for v, u in np.ndindex(weights.shape):
            at = y + v - reach[0], i + u - reach[1]
            if at[0] % 2 or at[1] % 2:
                continue
            inside = [0 <= place < length for place, length in zip(at, size, strict=True)]
            sample = [place // 2 for place in at]
            missing = [is_in and s >= n for is_in, s, n in zip(inside, sample, x.shape, strict=True)]
            if any(missing) or (edge == 0 and not all(inside)):
                continue
            near = [min(max(s, 0), n - 1) for s, n in zip(sample, x.shape, strict=True)]
            result[y, i] += weights[v, u] * x[near[0], near[1]]
    return result
