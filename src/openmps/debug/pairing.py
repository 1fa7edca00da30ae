"""Which values of two traces belong together: those of one name, however it is spelled, then images in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from openmps.graph.run.trace import Trace, TracedKind, TracedValue

_INNER = ("saved", "correction")
"""What is kept for gradients, choices and rounding errors: they mean nothing side by side."""
_OF_ONE_LAYOUT = (TracedKind.PARAMETER, TracedKind.STATE)
_FAMILIES = (
    *(r"transpose", r"depthwise", r"conv", r"fullyconnected|linear|gemm|matmul", r"relu|neuron|sigmoid|tanh|elu|clip"),
    *(r"pool.*max|max.*pool", r"pool.*average|avg.*pool|average.*pool", r"batchnorm", r"norm", r"softmax", r"add"),
    *(r"concat", r"dropout", r"upsampl|resize"),
)
"""Classes of the framework, of PyTorch and operators of ONNX that compute the same."""
_ALIKE = 1e-2


def pairs(first: Trace, second: Trace, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Labels of both traces that belong together; ``names`` says so of some."""
    found = dict(names)
    taken = set(found.values())
    found |= {label: label for label in first if label in second and label not in found and label not in taken}
    found |= _respelt(first, second, found)
    for kind in (TracedKind.SOURCE, TracedKind.IMAGE, TracedKind.GRADIENT):
        taken = set(found.values())
        left = [each for each in first.of(kind) if each.label not in found]
        found |= _aligned(left, [each for each in second.of(kind) if each.label not in taken])
    found |= _parts(first, second, found)
    for mine, other in found.items():
        entry = first.entry(mine)
        # Parameters of other layouts, and what a state holds, mean nothing side by side.
        is_comparable = entry.kind not in _OF_ONE_LAYOUT or entry.array.shape == second[other].shape
        if not is_inner(entry) and (is_comparable or mine in names):
            yield mine, other


def _respelt(first: Trace, second: Trace, found: Mapping[str, str]) -> dict[str, str]:
    """Values without a partner whose labels differ in what formats replace: ``0.conv`` is ``_0_conv`` in Core ML."""
    taken = set(found.values())
    mine = _by_spelling(each for each in first.entries if each.label not in found)
    theirs = _by_spelling(each for each in second.entries if each.label not in taken)
    return {each.label: theirs[key].label for key, each in mine.items() if key in theirs}


def _by_spelling(entries: Iterable[TracedValue]) -> dict[tuple[str, TracedKind, tuple[int, ...]], TracedValue]:
    """Values by the letters and digits of labels, kinds and shapes, without those that are alike in all three."""
    found: dict[tuple[str, TracedKind, tuple[int, ...]], list[TracedValue]] = {}
    for entry in entries:
        spelling = re.sub(r"[\W_]+", "_", entry.label).strip("_")
        found.setdefault((spelling, entry.kind, entry.array.shape), []).append(entry)
    return {key: same[0] for key, same in found.items() if len(same) == 1}


def is_inner(entry: TracedValue) -> bool:
    """Whether a value means nothing beside that of another run."""
    return _part(entry) in _INNER


def _part(entry: TracedValue) -> str:
    """``weights`` of ``conv1/weights``; nothing of a result."""
    return entry.label[len(entry.layer) + 1 :]


def _parts(first: Trace, second: Trace, found: Mapping[str, str]) -> dict[str, str]:
    """What belongs to layers whose results are partners, by its name."""
    more: dict[str, str] = {}
    taken = set(found.values())
    for entry in first.entries:
        other = f"{found.get(entry.layer, '')}/{_part(entry)}"
        if entry.label not in found and _part(entry) and other in second and other not in taken:
            more[entry.label] = other
    return more


# --- images in order --------------------------------------------------------------------------------------------------


def _aligned(left: Sequence[TracedValue], right: Sequence[TracedValue]) -> dict[str, str]:
    """Pairs of images of one shape, in the order of both, as many and as much alike as there can be."""
    rows, columns = len(left), len(right)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    weights = [[_weight(mine, other) for other in right] for mine in left]
    for row in reversed(range(rows)):
        for column in reversed(range(columns)):
            apart = max(best[row + 1][column], best[row][column + 1])
            together = weights[row][column] and weights[row][column] + best[row + 1][column + 1]
            best[row][column] = max(apart, together)
    found: dict[str, str] = {}
    row = column = 0
    while row < rows and column < columns:
        weight = weights[row][column]
        if weight and best[row][column] == weight + best[row + 1][column + 1]:
            found[left[row].label] = right[column].label
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1
    return found


def _weight(mine: TracedValue, other: TracedValue) -> int:
    """How much speaks for two images being those of one layer; 0 if their shapes differ."""
    if mine.array.shape != other.array.shape:
        return 0
    families = _family(mine), _family(other)
    return 1 + 2 * (families[0] is not None and families[0] == families[1]) + 2 * _have_one_range(mine, other)


def _family(entry: TracedValue) -> int | None:
    """What a layer computes, by its class, or its operator, which stands before the name of an ONNX layer."""
    text = entry.class_name.lower()
    return next((place for place, family in enumerate(_FAMILIES) if re.search(family, text)), None)


def _have_one_range(mine: TracedValue, other: TracedValue) -> bool:
    a, b = mine.statistics, other.statistics
    scale = max(abs(a.least), abs(a.largest), abs(b.least), abs(b.largest))
    figures = ((a.least, b.least), (a.largest, b.largest), (a.mean, b.mean))
    return all(bool(np.isclose(x, y, rtol=0, atol=_ALIKE * scale, equal_nan=True)) for x, y in figures)
