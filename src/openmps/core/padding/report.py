"""Says what a padding policy does: the result size, the offset, and the source pixels that each result pixel reads."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from openmps.checks import flag
from openmps.convention import current
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.padding.geometry import Lengths, suggested_geometry, window_extent
from openmps.core.padding.names import MPSGetPaddingPolicy
from openmps.core.padding.policy import MPSNNPadding, checked_integer, custom_descriptor, padding_label
from openmps.errors import MPSArgumentError
from openmps.selectors import name_arguments
from openmps.types import MPSImageEdgeMode, MPSImageFeatureChannelFormat, MPSOffset

# Tables longer than this show their first and last rows only.
_ROWS_SHOWN = 16
# Rows longer than this show their first and last taps only, lists of pixels their first runs.
_TAPS_SHOWN = 64
_RUNS_SHOWN = 16
_MOST = 2**20
_MOST_PLACED = 8 * _MOST
_WIDTH = 80
"""Columns of text that a line takes at most."""
_MARKS = "[."  # first characters of cells that hold no source pixel
_GREY = ' style="color:#999"'


@dataclass(frozen=True)
class AxisExplanation:
    """One axis of a `PaddingExplanation`: sizes in pixels, ``offset`` and ``kernel_offset`` as set on the kernel."""

    axis: str
    source: int
    kernel: int
    stride: int
    dilation: int
    backwards: bool
    result: int
    offset: int
    kernel_offset: int

    @property
    def extent(self) -> int:
        """Pixels from a window's first tap to its last."""
        return window_extent(self.kernel, self.dilation)

    @property
    def before(self) -> int:
        """Pixels read before the source (before the zero-filled source, for a reverse filter); negative: skipped."""
        return -self._start(0)

    @property
    def after(self) -> int:
        """Pixels read after the source (after the zero-filled source, for a reverse filter); negative: skipped."""
        last = self._start(self.result - 1) + self.extent - 1
        return last - ((self.source - 1) * self.stride if self.backwards else self.source - 1)

    @property
    def never_read(self) -> tuple[int, ...]:
        """Source pixels that no result pixel reads."""
        read = self._read_backwards() if self.backwards else self._read_forwards()
        return tuple(np.flatnonzero(~read).tolist())

    def _read_forwards(self) -> NDArray[np.bool_]:
        """Of each source pixel, whether it is read.

        The taps of a window are neighbours among the pixels of one remainder by the dilation: each window adds one to
        those from its first tap on and takes it back behind its last.
        """
        step = min(self.dilation, self.source)  # one tap of each window at most, where the dilation is larger
        starts = self._start(0) + self.stride * np.arange(self.result)
        ends = starts + self.kernel * self.dilation
        if self.dilation > step:
            return self._read_sparsely(starts)
        starts = np.where(starts < 0, starts % step, starts)
        rows = -(-self.source // step) + 1
        changes = np.zeros(rows * step, np.int64)
        inside = (starts < self.source) & (ends > starts)
        behind = np.minimum(ends, (rows - 1) * step + ends % step)
        np.add.at(changes, starts[inside], 1)
        np.subtract.at(changes, behind[inside], 1)
        return (changes.reshape(rows, step).cumsum(0) > 0).reshape(-1)[: self.source]

    def _read_sparsely(self, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same where taps lie further apart than the source is long: of each window one is inside, or none."""
        read = np.zeros(self.source, np.bool_)
        places = np.where(starts < 0, starts % self.dilation, starts)
        reached = (places - starts) // self.dilation < self.kernel
        read[places[(places < self.source) & reached]] = True
        return read

    def _read_backwards(self) -> NDArray[np.bool_]:
        """The same of a reverse filter, whose windows begin at every position from the first result's on."""
        places = self.stride * np.arange(self.source) - self._start(0)
        fewest = np.maximum(-((self.result - 1 - places) // self.dilation), 0)
        most = np.minimum(places // self.dilation, self.kernel - 1)
        return fewest <= most

    def taps(self, result: int) -> tuple[int | None, ...]:
        """The source pixel under each tap of result pixel ``result``; outside the source below 0 or from ``source`` on.

        A tap of a reverse filter that falls between two source pixels, on an inserted zero, is None.
        """
        return tuple(self._tap(result, tap) for tap in range(self.kernel))

    def shown(self, result: int) -> list[str]:
        """The cells of a row of a table; dots stand for the middle of a long one."""
        taps = range(self.kernel)
        if self.kernel <= _TAPS_SHOWN:
            return [_cell(self._tap(result, tap), self.source) for tap in taps]
        first, last = taps[: _TAPS_SHOWN // 2], taps[-_TAPS_SHOWN // 2 :]
        ends = ([_cell(self._tap(result, tap), self.source) for tap in part] for part in (first, last))
        return [*next(ends), "...", *next(ends)]

    def _tap(self, result: int, tap: int) -> int | None:
        position = self._start(result) + tap * self.dilation
        if not self.backwards:
            return position
        return None if position % self.stride else position // self.stride

    def _start(self, result: int) -> int:
        """Position of the first tap of a result pixel: in the source, or in the zero-filled source."""
        if self.backwards:
            return result + self.offset * self.stride + self.kernel_offset - self.extent // 2
        return result * self.stride + self.offset - self.extent // 2


@name_arguments
@dataclass(frozen=True)
class PaddingExplanation:
    """What `explain_padding` found: printable as a table, in notebooks too.

    ``edge_mode`` and ``zero_pad`` (``zero_pad_size_x/y``, one number an axis) are what the policy sets on the kernel,
    None where it leaves them alone.
    """

    policy: MPSNNPadding
    axes: tuple[AxisExplanation, ...]
    edge_mode: MPSImageEdgeMode | None = None
    zero_pad: tuple[int, ...] | None = None

    @property
    def result(self) -> tuple[int, ...]:
        """Result size, one number an axis: width, then height."""
        return tuple(axis.result for axis in self.axes)

    @property
    def offset(self) -> tuple[int, ...]:
        """The kernel's offset, one number an axis."""
        return tuple(axis.offset for axis in self.axes)

    @property
    def kernel_offset(self) -> tuple[int, ...]:
        """The kernel's ``kernel_offset_x/y``, one number an axis; 0 for forward filters."""
        return tuple(axis.kernel_offset for axis in self.axes)

    def _title(self) -> str:
        title = f"{padding_label(self.policy)} (method {int(self.policy.padding_method()):#x})"
        if self.edge_mode is not None:
            title += f", sets edge mode {self.edge_mode.name}"
        return title if self.zero_pad is None else f"{title}, zero-pad size {' x '.join(map(str, self.zero_pad))}"

    def _legend(self) -> list[str]:
        outside = any(axis.before > 0 or axis.after > 0 for axis in self.axes)
        backwards = any(axis.backwards for axis in self.axes)
        return [text for shown, text in ((outside, "[n] outside the source"), (backwards, ". inserted zero")) if shown]

    def __str__(self) -> str:
        return "\n\n".join([self._title(), *(_text(axis) for axis in self.axes), *self._legend()])

    def _repr_html_(self) -> str:
        legend = "".join(f"<p>{text}</p>" for text in self._legend())
        return f"<p><b>{escape(self._title())}</b></p>{''.join(_html(axis) for axis in self.axes)}{legend}"


def explain_padding(
    source: int | Sequence[int],
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    policy: str | int | MPSNNPadding,
    backwards: bool = False,
) -> PaddingExplanation:
    """The result size and offset that ``policy`` gives, and the source pixels that each result pixel reads.

    ``source`` is a length (one axis, taken as x) or (width, height); the other sizes are one number for all axes or
    one an axis. ``policy`` is a policy object, a method value or a name that `MPSGetPaddingPolicy` knows. ``backwards``
    stands for reverse filters, such as transposed convolution. A policy's custom step is run on stand-ins for kernel
    and images that have the window, the offsets, the edge mode and the sizes. Raises `MPSError` as an encode would.
    """
    backwards = flag("explain_padding", "backwards", backwards)
    axes = len(source) if isinstance(source, Sequence) else 1
    sizes = {"source": source, "kernel": kernel, "stride": stride, "dilation": dilation}
    lengths, windows, strides, dilations = (_per_axis(name, value, axes) for name, value in sizes.items())
    placed = [Lengths(*each) for each in zip(lengths, windows, strides, dilations, strict=True)]
    # One axis alone: the other is a single pixel, on which no policy has anything to place.
    return _explain(MPSGetPaddingPolicy(policy), placed[0], placed[1] if axes == 2 else Lengths(1, 1), axes, backwards)


def _explain(policy: MPSNNPadding, x: Lengths, y: Lengths, axes: int, backwards: bool) -> PaddingExplanation:
    """Goes the way of an encode: the method's geometry, then the custom step, then reads what the kernel was given."""
    geometry = suggested_geometry(policy.padding_method(), x, y, is_backwards=backwards, conventions=current())
    # The part of a kernel that a policy reads and sets.
    kernel = SimpleNamespace(
        label=None,
        kernel_width=x.kernel,
        kernel_height=y.kernel,
        stride_in_pixels_x=x.stride,
        stride_in_pixels_y=y.stride,
        dilation_rate_x=x.dilation,
        dilation_rate_y=y.dilation,
        is_backwards=backwards,
        offset=MPSOffset(geometry.offset_x, geometry.offset_y, 0),
        kernel_offset_x=geometry.kernel_offset_x,
        kernel_offset_y=geometry.kernel_offset_y,
        edge_mode=None,
        zero_pad_size_x=None,
        zero_pad_size_y=None,
    )
    image = SimpleNamespace(width=x.source, height=y.source, feature_channels=1, number_of_images=1)
    suggested = MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, geometry.width, geometry.height)
    try:
        descriptor = custom_descriptor(policy, [image], None, kernel, suggested)
    except AttributeError as error:
        rule = "must use no more than the window and offsets of its kernel and the sizes of its images"
        remedy = "Encode with the kernel itself and read its offset"
        raise MPSArgumentError("explain_padding", "policy", rule, str(error), remedy) from error
    _check_placed(policy, descriptor, kernel.offset)
    places = (
        (descriptor.width, kernel.offset.x, kernel.kernel_offset_x),
        (descriptor.height, kernel.offset.y, kernel.kernel_offset_y),
    )
    explained = [
        AxisExplanation(name, *axis, backwards, *place) for name, axis, place in zip("xy", (x, y), places, strict=True)
    ]
    counted = None if kernel.zero_pad_size_x is None else (kernel.zero_pad_size_x, kernel.zero_pad_size_y)[:axes]
    return PaddingExplanation(policy, tuple(explained[:axes]), kernel.edge_mode, counted)


def _check_placed(policy: MPSNNPadding, descriptor: MPSImageDescriptor, offset: MPSOffset) -> None:
    """Raise where a policy's own numbers make more than can be shown."""
    largest = max(descriptor.width, descriptor.height, abs(offset.x), abs(offset.y))
    if largest > _MOST_PLACED:
        rule = f"must place windows within {_MOST_PLACED} pixels"
        remedy = "Look at smaller pads: the edges are alike"
        raise MPSArgumentError("explain_padding", f"policy {padding_label(policy)}", rule, largest, remedy)


def _per_axis(name: str, value: int | Sequence[int], axes: int) -> list[int]:
    numbers = list(value) if isinstance(value, Sequence) else [value] * axes
    if len(numbers) != axes or axes not in (1, 2):
        rule = "must be one number, or one for width and one for height as in source"
        raise MPSArgumentError("explain_padding", name, rule, value, "For example source=(28, 28), kernel=(5, 3)")
    checked = [checked_integer("explain_padding", name, number) for number in numbers]
    if max(checked) > _MOST:
        rule = f"must be at most {_MOST}"
        raise MPSArgumentError(
            "explain_padding", name, rule, max(checked), "Look at a smaller size: the edges are alike"
        )
    return checked


def _facts(axis: AxisExplanation) -> list[str]:
    sizes = f"{axis.axis}: source {axis.source}, kernel {axis.kernel}, stride {axis.stride}, dilation {axis.dilation}"
    reverse = f", kernel offset {axis.kernel_offset}, reverse filter" if axis.backwards else ""
    where = "the zero-filled source" if axis.backwards else "the source"
    facts = [
        f"{sizes} -> result {axis.result}, offset {axis.offset}{reverse}",
        f"at the edges of {where}: {_side(axis.before)} before, {_side(axis.after)} after",
    ]
    skipped = axis.never_read
    return [*facts, f"never read: {_runs(skipped)}"] if skipped else facts


def _runs(pixels: Sequence[int]) -> str:
    """Pixels one by one, or as runs of neighbours where they are many; the first runs only, and how many there are."""
    if len(pixels) <= _RUNS_SHOWN:
        return ", ".join(map(str, pixels))
    gaps = [index for index in range(1, len(pixels)) if pixels[index] > pixels[index - 1] + 1]
    pairs = [(pixels[first], pixels[end - 1]) for first, end in zip([0, *gaps], [*gaps, len(pixels)], strict=True)]
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in pairs[:_RUNS_SHOWN]]
    return ", ".join([*shown, *(["..."] if len(pairs) > _RUNS_SHOWN else [])]) + f" ({len(pixels)} pixels)"


def _side(pixels: int) -> str:
    return f"{-pixels} skipped" if pixels < 0 else f"{pixels} read"


def _cell(tap: int | None, source: int) -> str:
    if tap is None:
        return "."
    return str(tap) if 0 <= tap < source else f"[{tap}]"


def _rows(axis: AxisExplanation) -> Iterator[tuple[str, list[str]]]:
    """Result pixel and the cells of its taps; in a long table one row of dots stands for the middle."""
    hidden = range(_ROWS_SHOWN // 2, axis.result - _ROWS_SHOWN // 2)
    for result in range(hidden.start if hidden else axis.result):
        yield str(result), axis.shown(result)
    if hidden:
        yield "...", []
        for result in range(hidden.stop, axis.result):
            yield str(result), axis.shown(result)


def _text(axis: AxisExplanation) -> str:
    rows = list(_rows(axis))
    width = max(len(cell) for _, cells in rows for cell in cells)
    most = (_WIDTH - len("result | ") + 1) // (width + 1)
    table = [
        f"{name:>6} | {' '.join(cell.rjust(width) for cell in _within(cells, most))}".rstrip() for name, cells in rows
    ]
    facts = (line for fact in _facts(axis) for line in textwrap.wrap(fact, _WIDTH, subsequent_indent="  "))
    return "\n".join([*facts, "result | source pixels read", *table])


def _within(cells: list[str], most: int) -> list[str]:
    """As many cells as fit on a line: of a wide window the first and the last."""
    if len(cells) <= most:
        return cells
    half = (most - 2) // 2  # "..." may be wider than a cell
    return [*cells[:half], "...", *cells[len(cells) - half :]]


def _html(axis: AxisExplanation) -> str:
    body = ""
    for name, cells in _rows(axis):
        row = "".join(f"<td{_GREY if cell[0] in _MARKS else ''}>{cell}</td>" for cell in cells)
        body += f"<tr><th>{name}</th>{row}</tr>"
    head = f'<tr><th>result</th><th colspan="{min(axis.kernel, _TAPS_SHOWN + 1)}">source pixels read</th></tr>'
    return f"<p>{'<br>'.join(escape(fact) for fact in _facts(axis))}</p><table>{head}{body}</table>"
