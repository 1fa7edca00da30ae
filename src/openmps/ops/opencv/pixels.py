"""Filters of single pixels, by OpenCV; see `openmps.ops.opencv.table`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from openmps.ops.elements import COMPONENTS, decode
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.histogram import Lookup, table_of_bytes
from openmps.ops.image.library_form import Array, Run, bands, in_parts
from openmps.ops.image.site import BYTES, FLOATS, Site
from openmps.ops.image.threshold import Limited, Threshold, ThresholdBytes, Thresholding
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination
from openmps.types import MPSImageEdgeMode

_GRAY = 0.299, 0.587, 0.114
"""The library's weights of red, green and blue."""
_THRESHOLDS = {
    Thresholding.BINARY: "THRESH_BINARY",
    Thresholding.BINARY_INVERSE: "THRESH_BINARY_INV",
    Thresholding.TRUNCATE: "THRESH_TRUNC",
    Thresholding.TO_ZERO: "THRESH_TOZERO",
    Thresholding.TO_ZERO_INVERSE: "THRESH_TOZERO_INV",
}
_LARGEST = float(np.finfo(np.float32).max)
_TURNED = 1 << 20
"""Numbers that are turned which are worth a thread."""
_PAIRS = 1 << 19
"""Bytes of a picture from which on it is faster to make a table of two bytes than to look them up one by one."""


def threshold(site: Site) -> Run | None:
    """`ThresholdBytes`."""
    op = site.ops[0]
    assert isinstance(op, ThresholdBytes)
    truncates = op.how is Thresholding.TRUNCATE
    if truncates and not op.least:
        return None
    limit = op.limit if truncates else op.least - 1

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.threshold(given[0], limit, op.largest, getattr(cv2, _THRESHOLDS[op.how]), dst=made)

    return run


def gray_threshold(site: Site) -> Run | None:
    """`Threshold` of the `Gray` value of bytes, by the usual weights, into one channel: floats that lie in a cache."""
    gray, op, spread = site.ops
    assert isinstance(gray, Gray)
    assert isinstance(op, Threshold)
    assert isinstance(spread, Spread)
    is_usual = gray.weights == _GRAY and site.sources[0].channels in (3, 4) and spread.count == 1
    if not is_usual or site.formats != (BYTES, BYTES) or min(op.limit, op.largest) < 0.0:
        return None
    limit, largest = op.limit / site.unit, op.largest / site.unit
    channels = site.sources[0].channels

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, code = given[0], cv2.COLOR_RGBA2GRAY if channels == COMPONENTS else cv2.COLOR_RGB2GRAY
        # Few of them: behind each call a thread may have to wait for the interpreter.
        parts = [rows for rows, _, _ in bands(len(x), max(1, x[0].size // 2), 0)]
        numbers = np.zeros(x[parts[0]].shape, np.float32)
        for rows in parts:
            part = numbers[: rows.stop - rows.start]
            cv2.accumulateWeighted(x[rows], part, 1.0)  # 1 x + 0 of what was there: a conversion, sooner than NumPy's
            value = cv2.cvtColor(part, code)
            cv2.threshold(value, limit, largest, getattr(cv2, _THRESHOLDS[op.how]), dst=value)
            cv2.convertScaleAbs(value, dst=made[rows])  # no number is negative

    return run


def combination(site: Site) -> Run | None:
    """`Combination` of pictures of the same size and format, and `Limited` behind it."""
    op, limits = site.ops[0], site.ops[1:]
    assert isinstance(op, Combination)
    kind, first, second = op.operation, op.primary_scale * site.unit, op.secondary_scale * site.unit
    is_product = kind in (Arithmetic.MULTIPLY, Arithmetic.DIVIDE)
    are_alike = site.formats in ((FLOATS,) * 3, (BYTES,) * 3) and all(each.region == site.size for each in site.windows)
    if not are_alike or (is_product and op.bias) or (kind is Arithmetic.DIVIDE and site.formats[0] is BYTES):
        return None
    bias = op.bias * site.scale

    def combine(cv2: Any, x: Array, y: Array, made: Array) -> None:
        if kind is Arithmetic.MULTIPLY:
            cv2.multiply(x, y, dst=made, scale=first * second * site.scale)
        elif kind is Arithmetic.DIVIDE:
            cv2.divide(x, y, dst=made, scale=first / second)
        else:
            sign = 1.0 if kind is Arithmetic.ADD else -1.0
            cv2.addWeighted(x, first * site.scale, y, sign * second * site.scale, bias, dst=made)

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, y = given
        if not limits:
            combine(cv2, x, y, made)
            return
        (op,) = limits
        assert isinstance(op, Limited)
        # Quotients of zeros are no numbers.
        is_open = (op.minimum, op.maximum) == (-_LARGEST, _LARGEST) and kind is not Arithmetic.DIVIDE
        for rows, _, _ in bands(len(made), max(1, made[0].size // 2), 0):  # few: the calls take time, too
            part = made[rows]
            combine(cv2, x[rows], y[rows], part)
            # Sums are float64: they are finite where all numbers are.
            if not (is_open and math.isfinite(cv2.sumElems(part.reshape(len(part), -1))[0])):
                np.clip(part, op.minimum, op.maximum, out=part)

    return run if not limits or site.formats[0] is FLOATS else None


def convert_alpha(site: Site) -> Run | None:
    """`ConvertAlpha` of bytes whose colours are multiplied by alpha."""
    op = site.ops[0]
    assert isinstance(op, ConvertAlpha)
    if site.formats != (BYTES, BYTES) or not op.premultiplies:
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.cvtColor(given[0], cv2.COLOR_RGBA2mRGBA, dst=made)

    return run


def decoded(site: Site) -> Run | None:
    """Bytes as the numbers that they stand for."""
    if site.formats != (BYTES, FLOATS):
        return None
    numbers = decode(torch.arange(256, dtype=torch.uint8), BYTES).numpy()

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.LUT(given[0], numbers, dst=made)

    return run


def looked_up(site: Site) -> Run | None:
    """`Lookup` of bytes; channels that have no table stay."""
    op = site.ops[0]
    assert isinstance(op, Lookup)
    channels = site.result.channels
    if site.formats != (BYTES, BYTES):
        return None
    same = np.broadcast_to(np.arange(256, dtype=np.uint8), (channels - len(op.low), 256))

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x = given[0]
        table = table_of_bytes(torch.from_numpy(given[1]), op.entries, op.low, op.high, op.rounds).numpy()
        if channels > 1:
            table = np.concatenate([table, same])
            cv2.LUT(x, table.T[:, None].copy(), dst=made)
        elif x.size < _PAIRS or x.shape[1] % 2:
            cv2.LUT(x, table[0], dst=made)
        else:
            cv2.LUT(x.view(np.uint16), _of_pairs(table[0]), dst=made.view(np.uint16))

    return run


def _of_pairs(table: Array) -> Array:
    """The table of two bytes that follow one another, from that of one."""
    wide = table.astype(np.uint16)
    return (wide[:, None] << 8 | wide).ravel()


def transposed(site: Site) -> Run | None:
    """`Transposed` pictures."""
    if site.formats not in ((BYTES, BYTES), (FLOATS, FLOATS)) or site.result.channels > 4:
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x = given[0]
        in_parts(lambda rows: cv2.transpose(x[:, rows], dst=made[rows]), made, _TURNED)

    return run
