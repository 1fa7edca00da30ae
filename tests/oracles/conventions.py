"""Both readings of each open question, written out in float64: pixels `[height, width, channels]`, or numbers in a row.

A `reading` is the name of a choice in the table of conventions.
"""

from __future__ import annotations

import math

import numpy as np

from oracles import yolo_loss

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


def yolo_cell(y: Pixels, t: Pixels, anchor: tuple[float, float], name: str, reading: str) -> tuple[float, Pixels]:
    """The loss of one cell with one box, and its gradient; ``name`` is the convention that is read."""
    how = yolo_loss.Parameters(
        (anchor,),
        raw_labels=(name, reading) == ("yolo_sizes", "as_given"),
        rescore=(name, reading) != ("yolo_confidence", "one"),
    )
    value, slopes = yolo_loss.loss(y.reshape(1, -1, 1, 1), t.reshape(1, -1, 1, 1), None, how)
    slopes = slopes.reshape(-1)
    if (name, reading) == ("yolo_slope", "position"):
        places = 1 / (1 + np.exp(-y.reshape(-1)[:2]))
        slopes[:2] /= places * (1 - places)
    return float(value.sum()), slopes


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


# --- normalization ----------------------------------------------------------------------------------------------------


def normalized(x: list[float], epsilon: float, reading: str) -> list[float]:
    """Less the mean, divided by the deviation of a population or of a sample."""
    deviation = math.sqrt(np.var(x, ddof=int(reading == "sample")) + epsilon)
    return [(each - float(np.mean(x))) / deviation for each in x]


def normalized_gradient(x: list[float], flow: list[float], epsilon: float, reading: str) -> list[float]:
    """Of the sum of ``flow`` times `normalized`, by central differences."""
    found: list[float] = []
    for i in range(len(x)):
        moved = [[*x[:i], x[i] + side, *x[i + 1 :]] for side in (1e-5, -1e-5)]
        up, down = (float(np.dot(flow, normalized(each, epsilon, reading))) for each in moved)
        found.append((up - down) / 2e-5)
    return found


def slopes_of_channels(x: Pixels, flow: Pixels, size: int, reading: str) -> Pixels:
    """Of one pixel, divided by 1 + the mean of squares of the channels around each to the fifth, for ``flow``.

    The derivative has a share of the sum over the channels whose windows hold each; as printed it has all of it.
    """
    count = len(x)
    around = [range(max(0, k - size // 2), min(count, k + (size - 1) // 2 + 1)) for k in range(count)]
    base = np.array([1 + sum(x[q] ** 2 for q in around[k]) / size for k in range(count)])
    sums = np.array([sum(flow[r] * x[r] * base[r] ** -6 for r in range(count) if k in around[r]) for k in range(count)])
    return flow * base**-5 - 10 / (size if reading == "derivative" else 1) * x * sums


def slopes_of_windows(x: list[float], flow: list[float], alpha: float, reading: str, kind: str) -> list[float]:
    """Of a row with zeros around it and windows of 3 by 3, for ``flow``: of squares to the fifth, or of contrast.

    The derivative by central differences; as printed with numbers of the pixel that a slope is for.
    """
    if reading == "derivative":
        found: list[float] = []
        for i in range(len(x)):
            moved = [[*x[:i], x[i] + side, *x[i + 1 :]] for side in (1e-5, -1e-5)]
            up, down = (float(np.dot(flow, around_three(each, alpha, kind)[0])) for each in moved)
            found.append((up - down) / 2e-5)
        return found
    _, base, mean = around_three(x, alpha, kind)
    found = []
    for i in range(len(x)):
        inside = range(max(0, i - 1), min(len(x), i + 2))
        if kind == "squares":
            total = flow[i] - 10 * alpha * x[i] / base[i] * sum(flow[p] * x[p] for p in inside)
            found.append(total * base[i] ** -5)
        else:
            share = [1 / 9 + alpha / 9 * (x[p] - 1) * (x[i] - mean[i]) / base[i] for p in inside]
            found.append((flow[i] - sum(flow[p] * s for p, s in zip(inside, share, strict=True))) * base[i] ** -0.5)
    return found


def around_three(x: list[float], alpha: float, kind: str) -> tuple[list[float], list[float], list[float]]:
    """A row normalized by the nine numbers around each, six of them 0; what divides it before its power; means."""
    nines = [[tap(x, i + d, "zero") for d in (-1, 0, 1)] + [0.0] * 6 for i in range(len(x))]
    means = [float(np.mean(each)) for each in nines]
    if kind == "squares":
        base = [1 + alpha * float(np.mean(np.square(each))) for each in nines]
        return [v / b**5 for v, b in zip(x, base, strict=True)], base, means
    base = [2.0**-10 + alpha * float(np.var(each)) for each in nines]
    return [(v - m) / math.sqrt(b) for v, m, b in zip(x, means, base, strict=True)], base, means


def gelu_slopes(x: list[float], reading: str) -> list[float]:
    """The derivative of x times the normal distribution's, or with twice its second term."""
    times = 1.0 if reading == "derivative" else 2.0
    normal = [math.exp(-v * v / 2) / math.sqrt(2 * math.pi) for v in x]
    return [(1 + math.erf(v / math.sqrt(2))) / 2 + times * v * n for v, n in zip(x, normal, strict=True)]


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


def box_means(x: list[float], size: int, reading: str) -> list[float]:
    """Sums over centred windows of a row, divided by their size or by the pixels of the row in them."""
    found: list[float] = []
    for i in range(len(x)):
        inside = x[max(0, i - size // 2) : i + size // 2 + 1]
        found.append(sum(inside) / (size if reading == "counted" else len(inside)))
    return found


def tent(x: list[float], size: int, reading: str) -> list[float]:
    """A triangle of this size over a row with zeros around it, or a box of it twice."""
    if reading == "twice":
        return box_means(box_means([*[0.0] * size, *x, *[0.0] * size], size, "counted"), size, "counted")[size:-size]
    half = (size + 1) // 2
    weights = [half - abs(p - size // 2) for p in range(size)]
    return [sum(w * tap(x, i - size // 2 + p, "zero") for p, w in enumerate(weights)) / half**2 for i in range(len(x))]


def binned(x: list[float], count: int, reading: str) -> list[int]:
    """How many numbers of 0 to 1 are in each bin."""
    found = [0] * count
    for v in x:
        place = v * count if reading == "floor" else v * (count - 1) + 0.5
        found[min(math.floor(place), count - 1)] += 1
    return found


def equalized(counts: list[int], reading: str) -> list[float]:
    """What becomes of each bin: the share of the numbers up to it, or before it."""
    return [sum(counts[: b + (reading == "inclusive")]) / sum(counts) for b in range(len(counts))]


def specified(have: list[int], want: list[int], reading: str) -> list[float]:
    """The bin for each, of 0 to 1: the first whose share is as large, or the first whose share is nearest."""
    shares = [[sum(each[: b + 1]) / sum(each) for b in range(len(each))] for each in (have, want)]
    found: list[float] = []
    for share in shares[0]:
        apart = [abs(each - share) for each in shares[1]]
        first = next(b for b, each in enumerate(shares[1]) if each >= share)
        found.append((first if reading == "smallest" else apart.index(min(apart))) / (len(want) - 1))
    return found
