"""Windows of a module's operators in ONNX's terms: convolutions, poolings, pads and slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from openmps.formats.onnx.model import Array, Attribute
from openmps.formats.onnx.problems import NodeError

_FAR = 1 << 62
"""An end beyond every axis."""
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""ONNX's words of the ways to pad."""


class Traced(Protocol):
    """A traced program on its way to a model."""

    def add(self, kind: str, inputs: Sequence[Any], output: str, **attributes: Attribute) -> None:
        """An operator; its inputs are nodes, names, numbers or None."""
        ...

    def constant(self, value: Array) -> str:
        """A new constant, by its name."""
        ...


Call = Callable[[Any, str, dict[str, Any]], None]


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [int(each) for each in (values * 2 if len(values) == 1 else values)]


def _convolution(traced: Traced, output: str, given: dict[str, Any]) -> None:
    padding, dilations = given["padding"], _pair(given["dilation"])
    before = _spread(given, dilations) if isinstance(padding, str) else [_pair(padding)] * 2
    transposed = {"output_padding": _pair(given["output_padding"])} if "output_padding" in given else {}
    traced.add(
        "ConvTranspose" if transposed else "Conv", [given["input"], given["weight"], given["bias"]], output,
        pads=before[0] + before[1], strides=_pair(given["stride"]), dilations=dilations, group=given["groups"],
        **transposed,
    )  # fmt: skip


def _spread(given: dict[str, Any], dilations: list[int]) -> list[list[int]]:
    """The pads before and behind of a convolution whose padding is a word: the odd one is behind."""
    sizes = given["weight"].meta["val"].shape[2:] if given["padding"] == "same" else (1, 1)
    whole = [dilation * (int(size) - 1) for dilation, size in zip(dilations, sizes, strict=True)]
    return [[each // 2 for each in whole], [each - each // 2 for each in whole]]


def _pooling(kind: str) -> Call:
    def call(traced: Traced, output: str, given: dict[str, Any]) -> None:
        if given.get("divisor_override"):
            raise NodeError("its divisor is given")
        size, pads = _pair(given["kernel_size"]), _pair(given["padding"])
        more: dict[str, Attribute] = (
            {"count_include_pad": int(given["count_include_pad"])}
            if kind == "AveragePool"
            else {"dilations": _pair(given["dilation"])}
        )
        traced.add(
            kind, [given["self"]], output, kernel_shape=size, pads=pads + pads, strides=_pair(given["stride"] or size),
            ceil_mode=int(given["ceil_mode"]), **more,
        )  # fmt: skip

    return call


def _whole_pooling(traced: Traced, output: str, given: dict[str, Any]) -> None:
    if _pair(given["output_size"]) != [1, 1]:
        raise NodeError("adaptive pooling to more than one pixel", "Give the window in pixels")
    traced.add("GlobalAveragePool", [given["self"]], output)


def _whole(value: Any, absent: int) -> int:
    """A place along an axis."""
    if value is not None and not isinstance(value, int):
        raise NodeError("its limits are computed of the module's inputs", "Give them as numbers")
    return absent if value is None else value


def _pad(traced: Traced, output: str, given: dict[str, Any]) -> None:
    """Pads of the last axis first, before and behind."""
    sides, mode, rank = given["pad"], given.get("mode", "constant"), len(given["self"].meta["val"].shape)
    if mode not in _MODES:
        raise NodeError(f"its mode is {mode}")
    pads = [[_whole(each, 0) for each in sides[place::2]][::-1] for place in (0, 1)]
    zeros = [0] * (rank - len(pads[0]))
    if not any(pads[0] + pads[1]):
        traced.add("Identity", [given["self"]], output)
        return
    limits = traced.constant(np.array([*zeros, *pads[0], *zeros, *pads[1]], np.int64))
    fill = given.get("value") or 0.0
    traced.add(
        "Pad", [given["self"], limits, *([float(fill)] if mode == "constant" else [])], output, mode=_MODES[mode]
    )


def _slice(traced: Traced, output: str, given: dict[str, Any]) -> None:
    """A part of one axis."""
    limits = _whole(given["start"], 0), _whole(given["end"], _FAR), given["dim"], given["step"]
    if limits[0] == 0 and limits[1] >= _FAR and limits[3] == 1:
        traced.add("Identity", [given["self"]], output)
        return
    traced.add("Slice", [given["self"], *(traced.constant(np.array([each], np.int64)) for each in limits)], output)


CALLS: dict[str, Call] = {
    "aten.conv2d.default": _convolution,
    "aten.conv2d.padding": _convolution,
    "aten.conv_transpose2d.input": _convolution,
    "aten.max_pool2d.default": _pooling("MaxPool"),
    "aten.avg_pool2d.default": _pooling("AveragePool"),
    "aten.adaptive_avg_pool2d.default": _whole_pooling,
    "aten.pad.default": _pad,
    "aten.constant_pad_nd.default": _pad,
    "aten.slice.Tensor": _slice,
}
"""How each operator with a window that ``torch.export`` leaves is said in ONNX's terms."""
