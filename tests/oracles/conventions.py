"""Both readings of each open question, written out in float64: pixels `[height, width, channels]`, or numbers in a row.

A `reading` is the name of a choice in the table of conventions.
"""

from __future__ import annotations

import math

import numpy as np

Pixels = np.ndarray


def soft_max(y: Pixels) -> Pixels:
    """Of the channels of each pixel."""
    grown = np.exp(y)
    return grown / grown.sum(axis=-1, keepdims=True)


# --- losses -----------------------------------------------------------------------------------------------------------


def squares_gradient(y: Pixels, t: Pixels, incoming: float, reading: str) -> Pixels:
    """Of squares: of their sum, or of their mean."""
    return incoming * 2.0 * (y - t) / (y.size if reading == "divided" else 1)


def hinge(y: Pixels, t: Pixels, reading: str) -> tuple[float, Pixels]:
    """Sum of max(0, 1 - y s) and its gradient, s being 2 t - 1 or t itself."""
    signs = 2 * t - 1 if reading == "signs" else t
    left = 1 - y * signs
    return float(np.maximum(left, 0).sum()), np.where(left > 0, -signs, 0.0)


def soft_max_gradient(y: Pixels, t: Pixels, reading: str) -> Pixels:
    """Of -sum(t log softmax(y)), by central differences, or the short form that holds for labels that sum to 1."""
    if reading == "difference":
        return soft_max(y) - t
    step, found = 1e-6, np.zeros(y.shape)
    for place in np.ndindex(*y.shape):
        sides: list[float] = []
        for side in (step, -step):
            moved = y.astype(float)
            moved[place] += side
            sides.append(-float((t * np.log(soft_max(moved))).sum()))
        found[place] = (sides[0] - sides[1]) / (2 * step)
    return found


def cosine_distance(y: Pixels, t: Pixels, reading: str) -> tuple[float, Pixels]:
    """1 - sum(y t), the 1 counted once or in each pixel."""
    ones = 1 if reading == "image" else y.shape[0] * y.shape[1]
    return ones - float((y * t).sum()), -t


def weighted_absolute(y: Pixels, t: Pixels, weights: Pixels, weight: float, reading: str) -> tuple[float, Pixels]:
    """Sum of w |y - t|, with a number for all besides the weights of each or not."""
    each = weights * (weight if reading == "product" else 1.0)
    return float((each * np.abs(y - t)).sum()), each * np.sign(y - t)


def entropy_of_batch(y: Pixels, t: Pixels, reading: str) -> float:
    """Mean soft-max cross entropy of images `[image, height, width, channels]`."""
    count = y[..., 0].size if reading == "pixels" else y.size
    return -float((t * np.log(soft_max(y))).sum()) / count


# --- channels and places ----------------------------------------------------------------------------------------------


def reshaped(x: Pixels, shape: tuple[int, int, int], reading: str) -> Pixels:
    """Numbers in order of rows, columns, channels, or of channels, rows, columns."""
    if reading == "pixels":
        return x.reshape(shape)
    height, width, channels = shape
    return x.transpose(2, 0, 1).reshape(channels, height, width).transpose(1, 2, 0)


def argument(x: Pixels, reading: str, *, largest: bool) -> Pixels:
    """The channel of the extreme number of each pixel."""
    best = (x.max if largest else x.min)(axis=-1, keepdims=True)
    found = np.zeros(best.shape)
    for v, u in np.ndindex(*x.shape[:2]):
        found[v, u, 0] = np.flatnonzero(x[v, u] == best[v, u])[0 if reading == "first" else -1]
    return found


def weighted_mean(x: Pixels, weights: Pixels, reading: str) -> Pixels:
    """Sum of x w over channels, divided by their number or by the weights' sum."""
    divisor = x.shape[-1] if reading == "channels" else weights.sum(axis=-1)
    return ((x * weights).sum(axis=-1) / divisor)[..., None]


def joined(parts: list[list[float]], reading: str) -> list[float]:
    """Channels of one pixel, each part filled to fours."""
    found: list[float] = []
    for part in parts:
        filled = [*part, *[0.0] * (-len(part) % 4)]
        if reading == "texture" and len(part) < 3:
            filled[3] = 1.0
        found += filled
    return found


def region(x: list[float], begin: float, length: float, count: int, reading: str) -> list[float]:
    """Linear samples of a row between fractions of it; nothing outside."""
    found: list[float] = []
    for i in range(count):
        if reading == "steps":
            place = (len(x) - 1) * begin + i * length * len(x) / count
        else:
            share = begin + length * (i / (count - 1))
            place = share * (len(x) - 1 if reading == "corners" else len(x))
        found.append(between(x, place))
    return found


def grid(x: list[float], places: list[float], reading: str) -> list[float]:
    """Linear samples of a row; -1 and 1 are centres or edges of the outer pixels, or numbers count pixels."""
    length = len(x)
    scaled = {
        "corners": [(g + 1) / 2 * (length - 1) for g in places],
        "edges": [(g + 1) / 2 * length - 0.5 for g in places],
        "pixels": places,
    }[reading]
    return [between(x, place) for place in scaled]


def between(x: list[float], place: float) -> float:
    """Linear between two pixels, with zeros around them."""
    low = math.floor(place)
    near = [x[k] if 0 <= k < len(x) else 0.0 for k in (low, low + 1)]
    return near[0] * (1 - (place - low)) + near[1] * (place - low)


def enlarged(x: list[float], factor: int, reading: str) -> list[float]:
    """Linear samples of a row with its edges repeated, at shares of pixels or between pixels that are squares."""
    low = 0.0 if reading == "asymmetric" else (1 - factor) / (2 * factor)
    padded = [x[0], *x, x[-1]]
    return [between(padded, 1 + low + i / factor) for i in range(factor * len(x))]


def enlarged_gradient(gradient: list[float], length: int, factor: int, reading: str) -> list[float]:
    """Of `enlarged`, which is linear: column by column."""
    columns = [enlarged([float(i == j) for j in range(length)], factor, reading) for i in range(length)]
    return [sum(g * each for g, each in zip(gradient, column, strict=True)) for column in columns]


# --- windows on a row -------------------------------------------------------------------------------------------------


def tap(x: list[float], place: int, edge: str) -> float:
    """What a tap reads: zeros or the edge's pixel outside."""
    if edge == "clamp":
        return x[min(max(place, 0), len(x) - 1)]
    return x[place] if 0 <= place < len(x) else 0.0


def norms(x: list[float], size: int, reading: str) -> list[float]:
    """Roots of sums of squares over centred windows, the edges repeated or left out."""
    edge = "clamp" if reading == "repeated" else "zero"
    return [math.sqrt(sum(tap(x, i - size // 2 + p, edge) ** 2 for p in range(size))) for i in range(len(x))]


def norms_gradient(x: list[float], size: int, reading: str) -> list[float]:
    """Of the sum of `norms`, by central differences."""
    found: list[float] = []
    for i in range(len(x)):
        moved = [[*x[:i], x[i] + side, *x[i + 1 :]] for side in (1e-5, -1e-5)]
        up, down = (sum(norms(each, size, reading)) for each in moved)
        found.append((up - down) / 2e-5)
    return found


def correlated(x: list[float], weights: list[float], first: int, stride: int, count: int) -> list[float]:
    """Windows of which the first begins at a pixel."""
    return [sum(w * tap(x, first + i * stride + p, "zero") for p, w in enumerate(weights)) for i in range(count)]


def clamped_gradients(
    x: list[float], weights: list[float], gradient: list[float], reading: str
) -> tuple[list[float], list[float]]:
    """Of data and weights of a centred convolution that repeats edges."""
    data, sums = [0.0] * len(x), [0.0] * len(weights)
    for i, g in enumerate(gradient):
        for p, w in enumerate(weights):
            place = i - len(weights) // 2 + p
            inside = 0 <= place < len(x)
            if inside or reading == "adjoint":
                data[min(max(place, 0), len(x) - 1)] += g * w
            if inside or reading != "zeros":
                sums[p] += g * tap(x, place, "clamp")
    return data, sums


def averages(x: list[float], size: int, reading: str) -> list[float]:
    """Centred windows, divided by their places within the image and half a window around it, or within the image."""
    around = size // 2 if reading == "window" else 0
    found: list[float] = []
    for i in range(len(x)):
        places = [i - size // 2 + p for p in range(size)]
        count = sum(-around <= place < len(x) + around for place in places)
        found.append(sum(tap(x, place, "zero") for place in places) / count)
    return found


def averages_inside(x: list[float], size: int, stride: int, first: int, count: int) -> list[float]:
    """Windows from a pixel on, divided by their places within the image."""
    found: list[float] = []
    for i in range(count):
        inside = [x[k] for k in range(first + i * stride, first + i * stride + size) if 0 <= k < len(x)]
        found.append(sum(inside) / len(inside))
    return found


def maxima(x: list[float], size: int, stride: int, first: int, count: int) -> list[float]:
    """Windows from a pixel on."""
    return [max(tap(x, first + i * stride + p, "zero") for p in range(size)) for i in range(count)]


def binary_pixel(kind: str, size: int, reading: str) -> float:
    """One positive pixel under a square window of weights 1: agreeing less differing bits, or bits that are both 1."""
    outside = size * size - 1
    if kind == "xnor":
        return 1.0 + {"zeros": outside, "zero_bits": -outside, "nothing": 0}[reading]
    return 1.0 + {"zeros": outside, "zero_bits": 0, "nothing": 0}[reading]


def transposed_sum(summands: list[list[list[float]]], bias: list[float], reading: str) -> list[list[float]]:
    """The transpose of a sum of matrices, with a bias for its columns, or for those that the sum had before."""
    rows, columns = len(summands[0]), len(summands[0][0])
    result = [[sum(each[i][j] for each in summands) for i in range(rows)] for j in range(columns)]
    for j in range(columns):
        for i in range(rows):
            result[j][i] += bias[i if reading == "transposed" else j]
    return result


# --- image filters ----------------------------------------------------------------------------------------------------


def expanded(smaller: Pixels | list[list[float]], size: int, reading: str) -> Pixels:
    """A square picture of twice the size: pixels at even places among zeros, and [1 4 6 4 1] / 16 down and across."""
    weights = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16 * (2 if reading == "fourfold" else 1)
    sparse = np.zeros((size + 4, size + 4))
    sparse[2 : 2 + size : 2, 2 : 2 + size : 2] = smaller
    found = np.zeros((size, size))
    for y, x, v, u in np.ndindex(size, size, 5, 5):
        found[y, x] += weights[v] * weights[u] * sparse[y + v, x + u]
    return found


def guided(source: list[float], guidance: list[float], size: int, epsilon: float, reading: str) -> list[list[float]]:
    """Slopes and constants of a row, fitted in windows that end with it; their means over windows, or their own."""

    def inside(x: list[float], place: int) -> np.ndarray:
        return np.array(x[max(0, place - size // 2) : place + size // 2 + 1])

    slopes: list[float] = []
    constants: list[float] = []
    for place in range(len(source)):
        p, guide = inside(source, place), inside(guidance, place)
        slope = ((p * guide).mean() - p.mean() * guide.mean()) / (guide.var() + epsilon)
        slopes.append(float(slope))
        constants.append(float(p.mean() - slope * guide.mean()))
    if reading == "own":
        return [slopes, constants]
    return [[float(inside(x, place).mean()) for place in range(len(x))] for x in (slopes, constants)]


def shrunk(x: list[float], count: int, reading: str) -> list[float]:
    """Lanczos of three lobes over a row whose edge is repeated; windows widen by the factor, or not."""
    factor = len(x) / count
    wide = factor if reading == "widened" else 1.0
    found: list[float] = []
    for place in range(count):
        centre, total, weight = (place + 0.5) * factor - 0.5, 0.0, 0.0
        for pixel in range(math.floor(centre - 3 * wide), math.ceil(centre + 3 * wide) + 1):
            d = (pixel - centre) / wide
            each = float(np.sinc(d) * np.sinc(d / 3)) if abs(d) < 3 else 0.0
            weight += each
            total += each * x[min(max(pixel, 0), len(x) - 1)]
        found.append(total / weight)
    return found
