"""Two traces side by side: errors of every value, and the first one that departs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite
from openmps.core.kinds import optional_mapping
from openmps.debug.hints import hint
from openmps.debug.pairing import is_inner, pairs
from openmps.errors import MPSArgumentError, counted, lengths_text
from openmps.graph.run.trace import Trace, TracedKind, TracedValue, check_trace
from openmps.selectors import name_arguments
from openmps.tables import note_text, printed_html, short, table
from openmps.types import MPSImageFeatureChannelFormat

FLOAT16_LIMIT = 65504.0
"""The largest number of float16."""
_FLOAT32_TOLERANCE, _COARSE_TOLERANCE = 1e-4, 2e-2
_PERCENTILES = (50, 90, 99)
_ROOM = 10.0
"""How much more gradients may err, besides one number in a hundred: a ReLU near zero lets one through or not."""
_LEAST_ROOM = 1e-2
"""What they may err in deep networks between two float32 runs that are both right."""
_KINKED = (TracedKind.GRADIENT, TracedKind.STATE)
_WHO = "openmps.debug.compare"
_HEADINGS = ("label", "kind", "median", "90 %", "99 %", "largest", "range", "of float16", "")
_NUMBERS = (False, False, True, True, True, True, True, True, False)


@name_arguments
@dataclass(frozen=True)
class ComparedValue:
    """A value of both traces. Errors are ``|a - b|`` over the largest magnitude of either. Our addition.

    ``kind`` is that of the first one. ``percentiles`` are the errors that 50, 90 and 99 percent of the numbers stay
    below, ``error`` is the largest one; infinite where shapes differ, or where one of two numbers is not finite.
    ``magnitude`` is the largest one of both.
    """

    label: str
    other: str
    """The label in the second trace."""
    kind: TracedKind
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    percentiles: tuple[float, float, float]
    error: float
    magnitude: float
    tolerance: float

    hint: str = ""
    """What the first one looks like beside the second, where it departs as a usual mistake makes it."""

    @property
    def departs(self) -> bool:
        """Whether the largest error is beyond the tolerance, of gradients and states the 99th percentile."""
        counted = self.error if self.kind not in _KINKED or self.error == np.inf else self.percentiles[2]
        return not counted <= self.tolerance

    @property
    def share_of_float16(self) -> float:
        """The largest magnitude over float16's largest number."""
        return self.magnitude / FLOAT16_LIMIT

    def cells(self) -> tuple[str, ...]:
        """The value as a row of the table that `Comparison` prints."""
        name = self.label if self.other == self.label else f"{self.label} | {self.other}"
        errors = tuple(f"{each:.1e}" for each in (*self.percentiles, self.error))
        says = "departs" if self.departs else ""
        if self.shapes[0] != self.shapes[1]:
            errors = ("-",) * 4
            says = f"departs: {' against '.join(map(lengths_text, self.shapes))}"
        return (name, self.kind.value, *errors, short(self.magnitude), f"{100 * self.share_of_float16:.2g} %", says)


@name_arguments
@dataclass(frozen=True)
class Comparison:
    """Two traces side by side; printable as a table. Our addition.

    ``rows`` are the values of both, in the order of the first trace; ``only_first`` and ``only_second`` the labels that
    only one has, ``notes`` those of both traces. ``unpaired_ends`` are the last images of either that only one has:
    where there are any, what the networks come to was not compared.
    """

    rows: tuple[ComparedValue, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unpaired_ends: tuple[str, ...] = ()

    @property
    def first(self) -> ComparedValue | None:
        """The first value that departs; None where none does."""
        return next((row for row in self.rows if row.departs), None)

    @property
    def ok(self) -> bool:
        """Whether no value departs, and the last images are among those that were compared."""
        return self.first is None and not self.unpaired_ends

    def row(self, label: str) -> ComparedValue:
        """The row of a label of the first trace."""
        for row in self.rows:
            if row.label == label:
                return row
        raise MPSArgumentError("Comparison", "label", "must be a label that both traces have", repr(label))

    def __str__(self) -> str:
        lines = [table(_HEADINGS, [row.cells() for row in self.rows], _NUMBERS)]
        for which, labels in (("first", self.only_first), ("second", self.only_second)):
            if labels:
                lines.append(f"only in the {which}: {', '.join(labels)}")
        lines += map(note_text, self.notes)
        first = self.first
        count = sum(row.departs for row in self.rows)
        if first is None and self.unpaired_ends:
            ends = " and ".join(self.unpaired_ends)
            lines.append(f"{len(self.rows)} values agree, but what comes last was not compared: {ends} is of one alone")
        elif first is None:
            lines.append(f"{len(self.rows)} values agree")
        else:
            looks = f": {first.hint}" if first.hint else ""
            lines.append(f"the first that departs: {first.label}{looks}; {count} of {len(self.rows)} do")
        return "\n".join(lines)

    _repr_html_ = printed_html


def compare(
    first: Trace, second: Trace, *, tolerance: float | None = None, names: Mapping[str, str] | None = None
) -> Comparison:
    """Hold two traces against each other, value by value. Our addition.

    Values belong together by their labels; ``names`` says which label of the second one of the first is. Of those that
    are left, values of one kind and shape whose labels have the same letters and digits are partners, too (``0.conv``,
    ``_0_conv``). Images that have no partner are paired with those of the same shape, in order, so that a graph can be
    held against a network whose layers are called otherwise. Where a result departs, and agrees with that of one of the
    layers behind the other one that only one trace has, the two are partners: a convolution with its neuron or
    normalization in it, and these as layers of their own. An error is ``|a - b|`` over the largest magnitude of the
    two values; a value departs where one error is beyond ``tolerance``: 1e-4, or 2e-2 from the first float16 or unorm
    image on, unless given. Gradients and states may err ten times as much, 1e-2 at least unless a tolerance is given,
    and one number in a hundred of them more than that: where a ReLU is near zero, gradients differ between two runs
    that are both right. Of the first value that departs a hint says what it looks like, if that is one of the usual
    mistakes.

    Raises:
        MPSTypeError: One of them is no trace.
        MPSArgumentError: The tolerance is negative, or a name is no label.
    """
    check_trace(_WHO, "first", first)
    check_trace(_WHO, "second", second)
    if tolerance is not None and finite(_WHO, "tolerance", tolerance) < 0:
        raise MPSArgumentError(_WHO, "tolerance", "must be 0 or more", tolerance)
    for mine, theirs in optional_mapping(_WHO, "names", names).items():
        first.entry(mine)
        second.entry(theirs)
    partners = dict(pairs(first, second, names or {}))
    rows = _rows(first, second, partners, tolerance)
    joined = _join(first, second, partners, [row for row in rows if row.departs and row.label not in (names or {})])
    if joined:
        rows = _rows(first, second, partners, tolerance)
    notes = dict.fromkeys((*first.notes, *second.notes, *joined, *_not_finite(first, second, partners)))
    there = set(partners.values())
    ends = (*_unpaired_end(first, partners), *_unpaired_end(second, there))
    return Comparison(tuple(rows), _alone(first, partners), _alone(second, there), tuple(notes), ends)


def _unpaired_end(trace: Trace, there: Container[str]) -> list[str]:
    """The label of the last image, if it has no partner."""
    last = [each.label for each in trace.of(TracedKind.IMAGE)][-1:]
    return [label for label in last if label not in there]


def _rows(first: Trace, second: Trace, partners: Mapping[str, str], tolerance: float | None) -> list[ComparedValue]:
    rows: list[ComparedValue] = []
    is_coarse, has_hint = False, False
    for entry in first.entries:
        if entry.label in partners:
            other = second.entry(partners[entry.label])
            is_coarse = is_coarse or _is_coarse(entry) or _is_coarse(other)
            row = _compared(entry, other, _tolerance(tolerance, entry.kind, is_coarse=is_coarse))
            if row.departs and not has_hint:
                row, has_hint = replace(row, hint=hint(entry.array, other.array, row.tolerance)), True
            rows.append(row)
    return rows


def _not_finite(first: Trace, second: Trace, partners: Mapping[str, str]) -> list[str]:
    """What is to be said of values that agree in numbers which are not finite."""
    labels = [
        label
        for label, other in partners.items()
        if not (np.isfinite(first.entry(label).array).all() and np.isfinite(second.entry(other).array).all())
    ]
    return [f"{counted(len(labels), 'value')} hold NaN or infinities, the first is {labels[0]}"] if labels else []


def _tolerance(given: float | None, kind: TracedKind, *, is_coarse: bool) -> float:
    least = _LEAST_ROOM if given is None else 0.0
    chosen = given if given is not None else _COARSE_TOLERANCE if is_coarse else _FLOAT32_TOLERANCE
    return max(_ROOM * chosen, least) if kind in _KINKED else chosen


def _alone(trace: Trace, there: Container[str]) -> tuple[str, ...]:
    return tuple(each.label for each in trace.entries if each.label not in there and not is_inner(each))


def _is_coarse(entry: TracedValue) -> bool:
    """Whether numbers are rounded to fewer digits than float32 has; a source image is what it is."""
    form = entry.channel_format
    return form not in (None, MPSImageFeatureChannelFormat.FLOAT32) and entry.kind is not TracedKind.SOURCE


# --- layers that are parts of others ----------------------------------------------------------------------------------


def _join(first: Trace, second: Trace, partners: dict[str, str], departing: Sequence[ComparedValue]) -> list[str]:
    """Pair results anew where a layer does the work of several of the other network; returns what to say of it.

    A convolution with its normalization and neuron gives what the last of the three gives where each is a layer. Its
    weights are others than those of the convolution alone then: they lose their partners.
    """
    found, layers = list[str](), set[str]()
    for row in (each for each in departing if each.kind is TracedKind.IMAGE):
        mine, theirs = first.entry(row.label), second.entry(row.other)
        candidates = [
            *((mine, each) for each in _behind(theirs, second, set(partners.values()))),
            *((each, theirs) for each in _behind(mine, first, partners)),
        ]
        agreeing = [pair for pair in candidates if not _compared(*pair, row.tolerance).departs]
        if agreeing:
            one, other = agreeing[-1]
            del partners[mine.label]
            partners[one.label] = other.label
            layers.add(mine.layer)
            found.append(f"{one.label!r} gives what {other.label!r} gives")
    for row in departing:
        if row.kind is TracedKind.PARAMETER and first.entry(row.label).layer in layers:
            del partners[row.label]
    return [f"layers of one are parts of others in the other: {', '.join(found)}"] if found else []


def _behind(entry: TracedValue, trace: Trace, paired: Container[str]) -> Iterator[TracedValue]:
    """The results of a shape that follow and have no partner, up to the first that has one."""
    later = dropwhile(lambda each: each.label != entry.label, trace.of(TracedKind.IMAGE))
    alone = takewhile(lambda each: each is entry or each.label not in paired, later)
    return (each for each in alone if each is not entry and each.array.shape == entry.array.shape)


# --- errors -----------------------------------------------------------------------------------------------------------


def _compared(entry: TracedValue, other: TracedValue, tolerance: float) -> ComparedValue:
    a, b = entry.array, other.array
    percentiles, error = error_percentiles(a, b)
    return ComparedValue(
        entry.label, other.label, entry.kind, (a.shape, b.shape), percentiles, error,
        max(magnitude(a), magnitude(b)), tolerance,
    )  # fmt: skip


def error_percentiles(a: NDArray[Any], b: NDArray[Any]) -> tuple[tuple[float, float, float], float]:
    """The errors that 50, 90 and 99 percent of the numbers of two arrays stay below, and the largest.

    They are those of `relative_errors`; infinite where shapes differ.
    """
    if a.shape != b.shape:
        return (np.inf, np.inf, np.inf), np.inf
    errors = relative_errors(a, b)
    # Of numbers beyond all measure, percentiles would be NaN: the next one that is there.
    low, middle, high = (float(each) for each in np.percentile(errors, _PERCENTILES, method="higher"))
    return (low, middle, high), float(errors.max())


def relative_errors(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """``|a - b|`` over the largest magnitude; infinite where one is not finite and the other is something else."""
    left, right = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    scale = max(magnitude(left), magnitude(right)) or 1.0
    with np.errstate(invalid="ignore"):
        errors = np.abs(left - right) / scale
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    errors[~np.isfinite(errors)] = np.inf
    errors[same] = 0.0
    return errors if errors.size else np.zeros(1)


def magnitude(array: NDArray[Any]) -> float:
    """The largest magnitude of what is finite."""
    finite_ones = array[np.isfinite(array)].astype(np.float64)
    return float(np.abs(finite_ones).max()) if finite_ones.size else 0.0
