"""Filters on CUDA from pictures to pictures in one launch of Triton's, or two, by their operations.

Where a function loads, places, computes and stores by an operation each, these read the elements of the sources, beyond
their edges too, and write those of the result. Sums are float32, made in another order; whole numbers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.elements import DTYPES
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.integral import MOST_COLUMNS, Integral
from openmps.ops.image.order import Extreme
from openmps.ops.image.separable import (
    FEW,
    MOST_TAPS,
    MeanBytes,
    Profile,
    Separable,
    SeparableBytes,
    Shape,
    numbers_of,
    sums_exactly,
)
from openmps.ops.image.site import BYTES, FLOATS, LARGEST, Site
from openmps.ops.image.threshold import Limited, Threshold, ThresholdBytes, becomes
from openmps.ops.image.windows import Correlate, GradientMagnitude
from openmps.ops.op import Function, Op, Role
from openmps.ops.pointwise.arithmetic import Combination
from openmps.ops.resample.image_scale import ScaleImage
from openmps.ops.resample.stretch import Taps
from openmps.ops.triton.ahead import ALIGNMENT, Again, Launches, Placed
from openmps.types import MPSImageEdgeMode

Run = Callable[[list[Tensor], Tensor], Launches | None]
"""Gets the sources' elements and constants behind them, and where those of the result go.

Gives the launches, which are yet to be made, of these very tensors; None where it has launched what it takes.
"""
_MOST_PIXELS = 49
"""Of a window whose pixels are read one by one."""
_MOST_ROWS = 15
"""Of a window along either axis for which a program keeps what it made of as many rows."""
_MOST_TAPS = 64
"""Pixels that are weighed for one of a scaled picture."""
_MOST_KEPT = 64
"""Ways in which pictures lie whose launches are kept: parts of heaps may lie anyhow."""
_FARTHEST = 1 << 30
"""Place where windows may begin, which is counted in 32 bits."""


class OnePass:
    """A planned filter, for all pictures of a batch."""

    def __init__(self, run: Run, site: Site, function: Function) -> None:
        self._run, self._site = run, site
        roles = [each.role for each in function.inputs]
        self._sources = [index for index, role in enumerate(roles) if role is Role.SOURCE]
        self._others = [index for index, role in enumerate(roles) if role is not Role.SOURCE]
        self._kept: dict[tuple[int, ...], Again] = {}
        """What launches it again, by the device and the remainders of all addresses."""
        self._placed: dict[tuple[int, ...], Placed] = {}
        """What launches it at the very addresses: of the result, which no source meets, then of the inputs."""

    def run(self, values: list[Any], room: Tensor | None) -> list[Any] | None:
        """See `openmps.ops.op.Form`."""
        placed = self.placed(values, room)
        if placed is not None:
            placed()
            return [None]
        sources = [values[index] for index in self._sources]
        first = sources[0]
        if not triton.runs_on(first.device) or not all(map(_is_dense, sources)):
            return None
        is_room = (
            room is not None
            and room.device == first.device
            and _is_dense(room)
            and not any(_overlap(room, each) for each in sources)
        )
        made = room if is_room and room is not None else self._new(first)
        given = [*sources, *(values[index] for index in self._others)]
        addresses = [*map(Tensor.data_ptr, given), made.data_ptr()]
        key = first.get_device(), *[address % ALIGNMENT for address in addresses]
        again = self._kept.get(key)
        if again is None:
            self._launch(key, given, made)
        elif not is_room or (placed := again.placed(addresses)) is None:
            again(addresses)
        else:
            if len(self._placed) >= _MOST_KEPT:
                self._placed.clear()
            self._placed[made.data_ptr(), *map(_address, values)] = placed
            placed()
        return [None if is_room else made]

    def placed(self, values: list[Any], room: Tensor | None) -> Placed | None:
        """See `openmps.ops.op.Placement`."""
        if room is None:
            return None
        placed = self._placed.get((room.data_ptr(), *map(_address, values)))
        if placed is None or not room.is_contiguous(memory_format=_LAST):
            return None
        for index in self._sources:
            if not values[index].is_contiguous(memory_format=_LAST):
                return None
        return placed

    def _launch(self, key: tuple[int, ...], given: list[Tensor], made: Tensor) -> None:
        tensors = [each.detach() for each in (*given, made)]  # one that comes twice is told apart
        launches = self._run(tensors[:-1], tensors[-1])
        again = None if launches is None else launches.first(tensors)
        if again is not None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = again

    def _new(self, like: Tensor) -> Tensor:
        channel_format, channels = self._site.result
        shape = like.shape[0], *self._site.size, channels
        return like.new_empty(shape, dtype=DTYPES[channel_format]).permute(0, 3, 1, 2)


_address = Tensor.data_ptr
_LAST = torch.channels_last


def _is_dense(x: Tensor) -> bool:
    """Whether images have pixels, whose channels lie side by side, without gaps; they have some (`Site`)."""
    return x.is_contiguous(memory_format=_LAST)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether images that lie so have memory in common."""
    begin, begins = one.data_ptr(), other.data_ptr()
    return begin < begins + other.nbytes and begins < begin + one.nbytes


def one_pass(site: Site, function: Function) -> OnePass | None:
    """The form of a planned encode; None where there is none, or no Triton."""
    make = FORMS.get(tuple(map(type, site.ops)))
    if make is None or find_spec("triton") is None or not {*site.formats} <= {BYTES, FLOATS}:
        return None
    if max(abs(axis.first) for each in site.windows for axis in (each.x, each.y)) > _FARTHEST:
        return None
    run = make(site)
    return None if run is None else OnePass(run, site, function)


@cache
def _kernels(subject: str) -> Any:
    """A module of kernels: Triton is loaded where they run, and a statement for it takes as long as a small launch."""
    return import_module(f"openmps.ops.triton.image.{subject}")


def _largest(site: Site) -> int:
    """The byte that stands for 1; 0 where numbers are stored as they are."""
    return int(LARGEST) if site.result.channel_format is BYTES else 0


def _unit(site: Site) -> float:
    """What an element of the first source stands for."""
    return 1.0 / LARGEST if site.formats[0] is BYTES else 1.0


def _corner(site: Site) -> tuple[int, int]:
    return site.window.y.first, site.window.x.first


def _clamps(site: Site) -> bool:
    return site.edges[0] == MPSImageEdgeMode.CLAMP


def _is_pointwise(site: Site) -> bool:
    """Whether each pixel is made of the same one of the sources."""
    return all(each.is_whole and each.size == (1, 1) and each.region == site.size for each in site.windows)


def _are_plain(site: Site) -> bool:
    """Whether windows are neither strided nor dilated, and channels are those of the source."""
    axes = [axis for each in site.windows for axis in (each.x, each.y)]
    is_alike = all(each.channels == site.result.channels for each in site.sources)
    return is_alike and all((axis.stride, axis.dilation) == (1, 1) for axis in axes)


# --- windows ----------------------------------------------------------------------------------------------------------


def _correlate(site: Site) -> Run | None:
    op, size, corner = site.ops[0], site.window.size, _corner(site)
    assert isinstance(op, Correlate)
    if not _are_plain(site) or math.prod(size) > _MOST_PIXELS:
        return None
    bias, clamps, largest, is_strip = float(op.bias), _clamps(site), _largest(site), max(size) <= _MOST_ROWS

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        x, weights = given
        if is_strip:
            kernels = _kernels("strips")
            return kernels.weighed(x, made, size, corner, weights, bias=bias, clamps=clamps, largest=largest)
        kernels = _kernels("taps")
        return kernels.windows(
            x, made, size, corner, makes=kernels.Makes.SUM, weights=weights, bias=bias, clamps=clamps, largest=largest
        )

    return run


def _sobel(site: Site) -> Run | None:
    corner, clamps, unit, largest = _corner(site), _clamps(site), _unit(site), _largest(site)
    if not _are_plain(site):
        return None

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        kernels = _kernels("taps")
        return kernels.windows(
            given[0], made, (3, 3), corner, makes=kernels.Makes.SOBEL, factor=unit, clamps=clamps, largest=largest
        )

    return run


def _extreme(site: Site) -> Run | None:
    op, size, corner = site.ops[0], site.window.size, _corner(site)
    assert isinstance(op, Extreme)
    is_alike = site.formats[0] is site.formats[1]
    is_strip = max(size) <= _MOST_ROWS
    if not _are_plain(site) or not is_alike or not (is_strip or math.prod(size) <= _MOST_PIXELS):
        return None
    weights = (1.0,) * size[0], (1.0,) * size[1]

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        kernels = _kernels("taps")
        makes = kernels.Makes.LARGEST if op.is_largest else kernels.Makes.SMALLEST
        if is_strip:
            return _kernels("strips").both(given[0], made, size, corner, weights, makes=makes)
        return kernels.windows(given[0], made, size, corner, makes=makes)

    return run


def _separable(site: Site) -> Run | None:
    op, size, corner = site.ops[0], site.window.size, _corner(site)
    assert isinstance(op, Separable | SeparableBytes | MeanBytes)
    from_bytes, profile = site.formats[0] is BYTES, op.profile
    if not _are_plain(site) or not _has_few_taps(profile, size, from_bytes=from_bytes):
        return None
    weights, total = _weights(profile, size)
    clamps, largest, factor = _clamps(site), _largest(site), 1.0 / (total * (LARGEST if from_bytes else 1.0))
    is_strip = max(size) <= _MOST_ROWS

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        if is_strip:
            kernels = _kernels("strips")
            return kernels.both(given[0], made, size, corner, weights, factor=factor, clamps=clamps, largest=largest)
        kernels = _kernels("taps")
        return kernels.both_along(given[0], made, weights, corner, factor=factor, clamps=clamps, largest=largest)

    return run


def _has_few_taps(profile: Profile, size: tuple[int, int], *, from_bytes: bool) -> bool:
    """Whether neighbours are added up one by one; those of bytes as whole numbers where weights are such."""
    if profile.shape is Shape.BELL:
        return max(size) <= MOST_TAPS
    return max(size) <= FEW and (not from_bytes or sums_exactly(profile, size))


def _weights(profile: Profile, size: tuple[int, int]) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], float]:
    """Down and across, and what sums are divided by."""
    rows, columns = size
    if profile.shape is Shape.BELL:
        return (numbers_of(profile, rows, 1), numbers_of(profile, columns, 1)), 1.0
    down, across = profile.counts(rows), profile.counts(columns)
    return (down, across), sum(down) * sum(across)


# --- pixels -----------------------------------------------------------------------------------------------------------


def _combination(site: Site) -> Run | None:
    op, *limits = site.ops
    assert isinstance(op, Combination)
    least, most = -math.inf, math.inf
    for each in limits:
        assert isinstance(each, Limited)
        least, most = each.minimum, each.maximum
    if not _is_pointwise(site) or not _are_plain(site):
        return None
    scales, bias, largest = (op.primary_scale, op.secondary_scale), op.bias, _largest(site)

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        return _kernels("pixels").combined(op.operation, given[0], given[1], made, scales, bias, (least, most), largest)

    return run


def _threshold_bytes(site: Site) -> Run | None:
    (op,) = site.ops
    assert isinstance(op, ThresholdBytes)
    limit, ends = op.least - 0.5, becomes(op.how, op.limit, op.largest)
    if not _is_pointwise(site):
        return None

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        return _kernels("pixels").thresholded(given[0], made, limit, *ends)

    return run


def _gray_threshold(site: Site) -> Run | None:
    gray, op, spread = site.ops
    assert isinstance(gray, Gray)
    assert isinstance(op, Threshold)
    assert isinstance(spread, Spread)
    if not _is_pointwise(site) or spread.count != 1:
        return None
    ends, largest = becomes(op.how, op.limit, op.largest), _largest(site)
    unit = LARGEST if site.formats[0] is BYTES else 1.0

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        return _kernels("pixels").thresholded(
            given[0], made, op.limit, *ends, unit=unit, weights=gray.weights, largest=largest
        )

    return run


def _premultiplied(site: Site) -> Run | None:
    op, unit, largest = site.ops[0], _unit(site), _largest(site)
    assert isinstance(op, ConvertAlpha)
    if not op.premultiplies or not _is_pointwise(site) or not _are_plain(site):
        return None

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        return _kernels("pixels").premultiplied(given[0], made, unit, largest)

    return run


def _converted(site: Site) -> Run | None:
    if not _is_pointwise(site) or not _are_plain(site) or site.formats[0] is site.formats[1]:
        return None
    is_decoded = site.formats[0] is BYTES

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        _kernels("pixels").converted(given[0], made, int(LARGEST), is_decoded=is_decoded)
        return None

    return run


def _integral(site: Site) -> Run | None:
    (op,) = site.ops
    assert isinstance(op, Integral)
    is_whole = _is_pointwise(site) and _are_plain(site) and site.size[1] <= MOST_COLUMNS
    if not is_whole or op.leaves_out or {*site.formats} != {FLOATS}:
        return None

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        return _kernels("integral").integral(given[0], made, is_squared=op.is_squared)

    return run


# --- scaling ----------------------------------------------------------------------------------------------------------


def _scaled(site: Site) -> Run | None:
    (op,) = site.ops
    assert isinstance(op, ScaleImage)
    reaches = [math.ceil(2.0 * each.reach(op.filter)) for each in (op.rows, op.columns)]
    if math.prod(reaches) > _MOST_TAPS or site.sources[0].channels != site.result.channels:
        return None
    factor, largest = _unit(site), _largest(site)
    kept: dict[torch.device, _Places] = {}

    def run(given: list[Tensor], made: Tensor) -> Launches | None:
        device = given[0].device
        places = kept.get(device)
        if places is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                places = _places(op, device, device)  # what a capture makes is its own
                _kernels("scale").scaled(given[0], made, *places, factor, largest).now()
                return None
            places = kept[device] = _places(op, torch.device("cpu"), device)
        return _kernels("scale").scaled(given[0], made, *places, factor, largest)

    return run


_Places = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of rows and of columns those that are read, and their weights: ``[taps, result]``."""


def _places(op: ScaleImage, made_on: torch.device, device: torch.device) -> _Places:
    rows, columns = (
        each.taps(op.filter, op.edge_mode, torch.empty(0, device=made_on)) for each in (op.rows, op.columns)
    )
    return _tensors(rows, device), _tensors(columns, device)


def _tensors(taps: Taps, device: torch.device) -> tuple[Tensor, Tensor]:
    assert taps.weight is not None
    return taps.index.to(torch.int32).contiguous().to(device), taps.weight.contiguous().to(device)


FORMS: dict[tuple[type[Op], ...], Callable[[Site], Run | None]] = {
    (Correlate,): _correlate,
    (GradientMagnitude,): _sobel,
    (Extreme,): _extreme,
    (Separable,): _separable,
    (SeparableBytes,): _separable,
    (MeanBytes,): _separable,
    (Combination,): _combination,
    (Combination, Limited): _combination,
    (ThresholdBytes,): _threshold_bytes,
    (Gray, Threshold, Spread): _gray_threshold,
    (ConvertAlpha,): _premultiplied,
    (): _converted,
    (Integral,): _integral,
    (ScaleImage,): _scaled,
}
