"""Weights of 8 bits, in the two forms that data sources of the framework have: ranges a channel, or a table of 256."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedQuantizedWeights

Row = NDArray[np.float32]
_LEVELS = 256
_ROUNDS = 32
"""Of Lloyd's algorithm; one that changes nothing is the last."""
_SAMPLE = 1 << 20
"""Weights that a table is fitted to; of more, every so many in the order of their size."""


class QuantizedForm(StrEnum):
    """How bytes stand for weights. Our addition."""

    LINEAR = "linear"
    """``u / 255 (highest - lowest) + lowest``, of each output channel."""
    TABLE = "table"
    """``table[u]``, one table of 256 for all channels."""


def quantized(numbers: ArchivedConvolutionWeights, form: QuantizedForm) -> ArchivedQuantizedWeights:
    """A data source of 8-bit weights like those of a convolution, which are finite, in one of the forms."""
    codes, extra = _ENCODERS[form](np.asarray(numbers.weight_array, np.float32))
    ranges, table = (extra, None) if form is QuantizedForm.LINEAR else (None, extra)
    biases = None if numbers.bias_array is None else numbers.bias_array.copy()
    descriptor = numbers.convolution_descriptor
    return ArchivedQuantizedWeights(descriptor, codes, biases, ranges, table, numbers.name)


def is_smaller(numbers: ArchivedConvolutionWeights, form: QuantizedForm) -> bool:
    """Whether what a form keeps beside the bytes takes no more than these: at most half of float32's bytes then."""
    count, channels = numbers.weight_array.size, numbers.weight_array.shape[0]
    return {QuantizedForm.LINEAR: 8 * channels, QuantizedForm.TABLE: 4 * _LEVELS}[form] <= count


def quantized_bytes(source: ArchivedQuantizedWeights) -> int:
    """What weights take, with their ranges or their table."""
    extra = source.range_array if source.table_array is None else source.table_array
    return source.weight_array.nbytes + (0 if extra is None else extra.nbytes)


def _linear(weights: Row) -> tuple[NDArray[np.uint8], Row]:
    """Bytes, and the lowest and highest weight of each output channel."""
    rows = weights.reshape(len(weights), -1)
    ranges = np.stack((rows.min(1), rows.max(1)), 1)
    low, high = ranges.astype(np.float64).T[:, :, None]
    steps = np.divide(rows - low, high - low, out=np.zeros(rows.shape), where=high > low)
    return np.rint(steps * (_LEVELS - 1)).astype(np.uint8).reshape(weights.shape), ranges


def _table(weights: Row) -> tuple[NDArray[np.uint8], Row]:
    """Bytes, and the 256 numbers of least square error that Lloyd's algorithm finds."""
    ordered = np.sort(weights, axis=None)
    levels = np.unique(ordered)
    if levels.size > _LEVELS:
        levels = _fitted(ordered[:: -(-ordered.size // _SAMPLE)].astype(np.float64))
    levels = np.pad(levels, (0, _LEVELS - levels.size), mode="edge").astype(np.float32)
    borders = (levels[:-1].astype(np.float64) + levels[1:]) / 2
    return np.searchsorted(borders, weights).astype(np.uint8), levels


def _fitted(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Levels of numbers in rising order."""
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    # Levels are best as dense as the cube root of the numbers' density, which a gap between neighbours is one over.
    spread = np.concatenate(([0.0], np.cumsum(np.diff(ordered) ** (2 / 3))))
    levels = np.interp(np.linspace(0, spread[-1], _LEVELS), spread, ordered)
    for _ in range(_ROUNDS):
        ends = np.concatenate(([0], np.searchsorted(ordered, (levels[:-1] + levels[1:]) / 2), [ordered.size]))
        counts = np.diff(ends)
        found = np.where(counts > 0, np.diff(sums[ends]) / np.maximum(counts, 1), levels)
        if np.array_equal(found, levels):
            break
        levels = found
    return levels


_ENCODERS: Mapping[QuantizedForm, Callable[[Row], tuple[NDArray[np.uint8], Row]]] = {
    QuantizedForm.LINEAR: _linear,
    QuantizedForm.TABLE: _table,
}
