"""Integers of the padding rule: from a padding method and sizes to the result size and the window's offset.

Pure functions of integers, one axis at a time. Letters used below: source length ``L``, result length ``D``, window
size ``k``, dilation ``d``, extent ``ke = (k - 1) * d + 1`` (the dilated size), stride ``s``, size ``style`` = -1 for
valid only, 0 for same, +1 for full. Source: MPSNeuralNetworkTypes.h, macOS 10.13.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from openmps.convention import DOCUMENTED, Conventions
from openmps.errors import MPSArgumentError
from openmps.types import MPSNNPaddingMethod as Method

Axis = Literal["x", "y"]

_ALIGN_MASK = int(Method.ALIGN_MASK)
_ALIGN_CENTERED = int(Method.ALIGN_CENTERED)
_ALIGN_TOP_LEFT = int(Method.ALIGN_TOP_LEFT)
_SIZE_MASK = int(Method.SIZE_MASK)
_CUSTOM = int(Method.CUSTOM)
_KNOWN_BITS = (
    _ALIGN_MASK
    | int(Method.ADD_REMAINDER_TO_MASK)
    | _SIZE_MASK
    | int(Method.CUSTOM_WHITELIST_FOR_NODE_FUSION)
    | _CUSTOM
    | int(Method.EXCLUDE_EDGES)
)
# The size bits, as the sign of (ke - 1) in the length of the region that windows may cover.
_STYLES = {int(Method.SIZE_VALID_ONLY): -1, int(Method.SIZE_SAME): 0, int(Method.SIZE_FULL): 1}
# The remainder bit that moves the odd pixel to the high side (right, bottom) of each axis.
_REMAINDER_HIGH = {"x": int(Method.ADD_REMAINDER_TO_TOP_RIGHT), "y": int(Method.ADD_REMAINDER_TO_BOTTOM_LEFT)}
_AXIS_NAMES = {"x": "width", "y": "height"}


class Placement(NamedTuple):
    """Where the windows of one axis lie.

    ``result`` is the result length, ``offset`` the position of the first window's centre in source pixels, ``read`` the
    length of the region that all windows cover, ``missing`` how much of it lies outside the source (negative: source
    pixels to spare), ``before`` how much of that lies on the low side. A reverse filter reads the zero-filled source of
    ``(L - 1) * s + 1`` pixels: there ``read``, ``missing``, ``before`` and ``kernel_offset`` count its pixels.
    """

    result: int
    offset: int
    read: int
    missing: int
    before: int
    kernel_offset: int = 0


class Lengths(NamedTuple):
    """What places the windows of one axis: lengths of source and kernel, and the stride and dilation of the windows."""

    source: int
    kernel: int
    stride: int = 1
    dilation: int = 1


class Geometry(NamedTuple):
    """Size of a result and the offsets that go with it, both axes: what a padding method suggests to a kernel."""

    width: int
    height: int
    offset_x: int
    offset_y: int
    kernel_offset_x: int
    kernel_offset_y: int


def window_extent(kernel: int, dilation: int) -> int:
    """Source pixels from the first to the last tap of a window: ``(k - 1) * d + 1``."""
    return (kernel - 1) * dilation + 1


def axis_placement(
    source: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    method: int = 0,
    axis: Axis = "x",
    *,
    floors: bool = False,
) -> Placement:
    """Places the windows of a forward filter on one axis.

    ::

        D = ceil((L + style * (ke - 1)) / s)      read = (D - 1) * s + ke      missing = read - L
        before = trunc((missing + low) / 2)  centred;  missing  AlignTopLeft;  0  AlignBottomRight
        offset = ke // 2 - before

    ``low`` is 1 where the remainder bits send an odd pixel to the low side of this axis (left, top), else 0; ``trunc``
    rounds toward zero, as C does, and down with ``floors``. ``missing`` is not clamped at 0: surplus pixels are cropped
    on both sides. Source: MPSNeuralNetworkTypes.h, macOS 10.13 (sample code of MPSNNPadding); that dilated windows
    count by their extent is our choice.

    Raises `MPSArgumentError` for sizes, strides or dilations below 1, reserved bits, and where no window fits, unless
    the custom bit leaves the last word to a policy object.
    """
    style = _checked_style(source, kernel, stride, dilation, method, axis)
    extent = window_extent(kernel, dilation)
    result = -((-source - style * (extent - 1)) // stride)
    _check_result(result, source, kernel, extent, method, axis)
    read = (result - 1) * stride + extent
    before = _before(read - source, method, axis, floors=floors)
    return Placement(result, extent // 2 - before, read, read - source, before)


def reverse_placement(
    source: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    method: int = 0,
    axis: Axis = "x",
    *,
    floors: bool = False,
) -> Placement:
    """Places the windows of a reverse filter (`is_backwards`, such as a transposed convolution) on one axis.

    ::

        E = (L - 1) * s + 1      D = E + style * (ke - 1)      missing = (style + 1) * (ke - 1)
        kernel_offset = ke // 2 - before                        offset = 0

    ``before`` comes from ``missing`` as in `axis_placement`. The length is the header's (MPSNeuralNetworkTypes.h, macOS
    10.13); its offset sample has no meaning for strides above 1, so the placement is that of a stride-1 window over the
    zero-filled source. Raises as `axis_placement`.
    """
    style = _checked_style(source, kernel, stride, dilation, method, axis)
    extent = window_extent(kernel, dilation)
    filled = (source - 1) * stride + 1
    result = filled + style * (extent - 1)
    _check_result(result, source, kernel, extent, method, axis)
    missing = (style + 1) * (extent - 1)
    before = _before(missing, method, axis, floors=floors)
    return Placement(result, 0, filled + missing, missing, before, extent // 2 - before)


def mirror_kernel_offset(forward_offset: int, extent: int) -> int:
    """``kernel_offset`` that undoes a forward filter: ``-forward_offset``, plus 1 where the extent is even.

    With it and ``primary_offset`` 0, a window of the rotated weights over the zero-filled gradient pairs each gradient
    pixel with the source pixels that the forward window read. Source: MPSCNNConvolution.h, macOS 10.15.
    """
    return -forward_offset + (1 - extent % 2)


def exclude_edges_zero_pad(method: int, extent: int) -> int:
    """Zero padding that counts in the divisor of an average pooling whose method has the ExcludeEdges bit.

    The window is cut to ``[-p, L + p)`` and divided by what is left. The header does not say how much padding the bit
    assumes; here ``p`` is what the size bits pad by: 0 for valid only, ``ke // 2`` for same, ``ke - 1`` for full.
    Source: MPSNeuralNetworkTypes.h, macOS 10.13.
    """
    return (0, extent // 2, extent - 1)[_STYLES[checked_method(method) & _SIZE_MASK] + 1]


def suggested_geometry(
    method: int,
    x: Lengths,
    y: Lengths,
    *,
    is_backwards: bool = False,
    who: str = "MPSNNPadding",
    conventions: Conventions = DOCUMENTED,
) -> Geometry:
    """Result size and offsets that ``method`` gives a kernel, before any custom step. Remembers earlier answers.

    The conventions ``alignment`` and ``negative_remainder`` choose where the header can be read in two ways.

    With the custom bit a size below 1 is returned rather than refused, since the policy object may still enlarge it.
    Raises as `axis_placement`, in the name of ``who``.
    """
    method = int(method)
    if method & _ALIGN_MASK and conventions["alignment"] == "reading":
        method ^= _ALIGN_MASK
    try:
        truncated, floored = (_geometry(method, is_backwards, x, y, floors) for floors in (False, True))
        is_floored = truncated != floored and conventions["negative_remainder"] == "floor"
        return floored if is_floored else truncated
    except MPSArgumentError as error:
        raise MPSArgumentError(who, error.argument, error.rule, error.got, error.remedy) from None


@lru_cache(maxsize=4096)
def _geometry(method: int, is_backwards: bool, x: Lengths, y: Lengths, floors: bool) -> Geometry:
    place = reverse_placement if is_backwards else axis_placement
    across = place(*x, method=method, axis="x", floors=floors)
    down = place(*y, method=method, axis="y", floors=floors)
    return Geometry(across.result, down.result, across.offset, down.offset, across.kernel_offset, down.kernel_offset)


@lru_cache(maxsize=256)
def checked_method(method: int) -> int:
    """``method`` itself; raises `MPSArgumentError` for reserved values and bits that MPSNNPaddingMethod lacks."""
    reserved = {
        "bits": method & ~_KNOWN_BITS,
        "alignment": int(method & _ALIGN_MASK == _ALIGN_MASK),
        "size": int(method & _SIZE_MASK not in _STYLES),
    }
    wrong = [name for name, value in reserved.items() if value]
    if wrong:
        raise MPSArgumentError(
            "MPSNNPaddingMethod",
            "method",
            f"must not hold reserved {' or '.join(wrong)}",
            f"{method:#x}",
            "Join one ALIGN_, one ADD_REMAINDER_TO_ and one SIZE_ value with |",
        )
    return method


def _before(missing: int, method: int, axis: Axis, *, floors: bool) -> int:
    """The part of the missing pixels that lies on the low side (left, top)."""
    align = method & _ALIGN_MASK
    if align != _ALIGN_CENTERED:
        return missing if align == _ALIGN_TOP_LEFT else 0
    total = missing + (0 if method & _REMAINDER_HIGH[axis] else 1)
    # Toward zero, as C divides: // would round a negative total down.
    return total // 2 if total >= 0 or floors else -(-total // 2)


def _checked_style(source: int, kernel: int, stride: int, dilation: int, method: int, axis: Axis) -> int:
    if min(source, kernel, stride, dilation) < 1:
        sizes = {f"source {_AXIS_NAMES[axis]}": source, "kernel": kernel, "stride": stride, "dilation": dilation}
        name, value = next((name, value) for name, value in sizes.items() if value < 1)
        raise MPSArgumentError("MPSNNPadding", name, "must be at least 1", value, f"This is the {axis} axis")
    return _STYLES[checked_method(method) & _SIZE_MASK]


def _check_result(result: int, source: int, kernel: int, extent: int, method: int, axis: Axis) -> None:
    if result >= 1 or method & _CUSTOM:
        return
    name = _AXIS_NAMES[axis]
    dilated = f" ({extent} with its dilation)" if extent != kernel else ""
    rule = f"leaves no result pixel for a kernel {name} of {kernel}{dilated} under valid-only padding"
    remedy = "Use SIZE_SAME or SIZE_FULL, pad the image, or use a smaller kernel or dilation"
    raise MPSArgumentError("MPSNNPadding", f"source {name}", rule, f"{source} pixels", remedy)
