"""Operations of an ML program that slide a window, in ONNX's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openmps.formats.onnx.problems import NodeError

Write = Callable[[Any], None]
"""Writes one `Operation`."""
_AUTOMATIC = {"same": "SAME_UPPER", "same_lower": "SAME_LOWER", "valid": "VALID", "custom": "NOTSET"}


def pads_of(sides: list[int]) -> list[int]:
    """Pads before and behind each axis, one axis after the other, as ONNX's: all before, all behind."""
    return [*sides[::2], *sides[1::2]]


def _window(operation: Any, rank: int) -> dict[str, Any]:
    """Strides and padding."""
    word = operation.text("pad_type", "valid")
    if word not in _AUTOMATIC:
        raise NodeError(f"its pad_type is {word[:40]!r}")
    found: dict[str, Any] = {"strides": operation.integers("strides", [1] * rank)}
    if word == "custom":
        return {**found, "pads": pads_of(operation.integers("pad", [0] * (2 * rank)))}
    return {**found, "auto_pad": _AUTOMATIC[word]}


def _convolution(operation: Any) -> None:
    rank = operation.rank - 2
    operation.becomes(
        "Conv", [operation.name(), operation.name("weight"), operation.optional("bias")],
        dilations=operation.integers("dilations", [1] * rank), group=operation.integer("groups", 1),
        **_window(operation, rank),
    )  # fmt: skip


def _transposed(operation: Any) -> None:
    """What is padded lies outside of the result; a shape that is given says how much lies there behind it."""
    rank = operation.rank - 2
    window, dilations = _window(operation, rank), operation.integers("dilations", [1] * rank)
    more: dict[str, Any] = {}
    if operation.given("output_shape") and "pads" in window:
        sizes = operation.lengths(count=rank)
        kernel = operation.shape("weight")[2:]
        wanted = operation.integers("output_shape")[-rank:]
        before = window["pads"][:rank]
        behind = [
            (n - 1) * s + (k - 1) * d + 1 - p - r
            for n, s, k, d, p, r in zip(sizes, window["strides"], kernel, dilations, before, wanted, strict=True)
        ]
        window["pads"] = [*before, *(max(0, each) for each in behind)]
        more["output_padding"] = [max(0, -each) for each in behind]
    elif operation.given("output_shape"):
        more["output_shape"] = operation.integers("output_shape")[-rank:]
    operation.becomes(
        "ConvTranspose", [operation.name(), operation.name("weight"), operation.optional("bias")],
        dilations=dilations, group=operation.integer("groups", 1), **window, **more,
    )  # fmt: skip


def _pooling(operator: str, **attributes: Any) -> Write:
    def write(operation: Any) -> None:
        rank = operation.rank - 2
        more = dict(attributes)
        if operator == "AveragePool":
            more["count_include_pad"] = int(not operation.flag("exclude_padding_from_average", default=False))
        operation.becomes(
            operator, [operation.name()], kernel_shape=operation.integers("kernel_sizes"),
            ceil_mode=int(operation.flag("ceil_mode", default=False)), **_window(operation, rank), **more,
        )  # fmt: skip

    return write


# --- sizes ------------------------------------------------------------------------------------------------------------


def resized(operation: Any, factors: list[float], mode: str, where: str) -> None:
    """A resize of the last two axes by factors."""
    scales = np.array([*[1.0] * (operation.rank - 2), *factors], np.float32)
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    operation.becomes(
        "Resize", [operation.name(), None, scales], mode=mode, coordinate_transformation_mode=where, **more
    )


def _factors(operation: Any) -> list[float]:
    return [operation.decimal(f"scale_factor_{side}", 1.0) for side in ("height", "width")]


def _upsample(operation: Any) -> None:
    """Linear, with corners that stay or with half-pixel centres."""
    is_aligned = operation.flag("align_corners", default=True)
    has_centres = operation.flag("half_pixel_centers", default=not is_aligned)
    if is_aligned and has_centres:
        raise NodeError("its corners are aligned, and its pixels have centres", "Choose one of them")
    where = "align_corners" if is_aligned else "half_pixel" if has_centres else "asymmetric"
    resized(operation, _factors(operation), "linear", where)


_SAMPLING = {
    "DEFAULT": "asymmetric", "STRICT_ALIGN_CORNERS": "align_corners", "ALIGN_CORNERS": "align_corners",
    "UNALIGN_CORNERS": "half_pixel",
}  # fmt: skip
"""``DEFAULT`` steps by the ratio of the sizes from the first pixel on."""
_MODES = {"LINEAR": "linear", "NEAREST_NEIGHBOR": "nearest"}


def _sampled(operation: Any, sizes: list[int], mode: str) -> None:
    """A resize of the last two axes to sizes."""
    word = operation.text("sampling_mode", "DEFAULT")
    if word not in _SAMPLING or (word == "ALIGN_CORNERS" and 1 in sizes):
        raise NodeError(f"its sampling_mode {word[:40]!r} samples where no node of the framework does")
    factors = [new / old for new, old in zip(sizes, operation.lengths(), strict=True)]
    resized(operation, factors, mode, _SAMPLING[word] if mode == "linear" else "asymmetric")


def _to_size(mode: str) -> Write:
    def write(operation: Any) -> None:
        _sampled(operation, [operation.integer(f"target_size_{side}", 1) for side in ("height", "width")], mode)

    return write


def _resize(operation: Any) -> None:
    """The last two axes to the last two lengths of a shape, where 0 keeps a length."""
    word, wanted = operation.text("interpolation_mode", "LINEAR"), operation.integers("shape")
    if word not in _MODES or operation.integer("resized_dims", 2) != 2 or len(wanted) < 2:
        raise NodeError(f"it resizes other axes than the last two, or by {word[:40]!r}")
    sizes = [new or old for new, old in zip(wanted[-2:], operation.lengths(), strict=True)]
    _sampled(operation, sizes, _MODES[word])


OPERATIONS: Mapping[str, Write] = {
    "conv": _convolution,
    "conv_transpose": _transposed,
    "max_pool": _pooling("MaxPool"),
    "avg_pool": _pooling("AveragePool"),
    "l2_pool": _pooling("LpPool", p=2),
    "upsample_nearest_neighbor": lambda operation: resized(operation, _factors(operation), "nearest", "asymmetric"),
    "upsample_bilinear": _upsample,
    "resize_bilinear": _to_size("linear"),
    "resize_nearest_neighbor": _to_size("nearest"),
    "resize": _resize,
}
"""How each is written."""
