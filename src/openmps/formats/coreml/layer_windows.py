"""Layers of a neural network of Core ML that slide a window, or change how large an image is, in ONNX's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openmps.formats.coreml.windows import pads_of
from openmps.formats.onnx.problems import NodeError

Write = Callable[[Any], None]
"""Writes one `Layer`."""
_FAR = 1 << 62
"""An end beyond every axis."""


def _sides(amounts: Any) -> list[int]:
    """Starts and ends of rows and columns; none where nothing is said."""
    found = [int(side) for each in amounts.borderAmounts for side in (each.startEdgeSize, each.endEdgeSize)]
    return found or [0] * 4


def _pair(values: Any) -> list[int]:
    return [int(each) for each in values] or [1, 1]


def _padding(params: Any, word: str) -> dict[str, Any]:
    if word == "same":
        return {"auto_pad": "SAME_LOWER" if params.same.asymmetryMode else "SAME_UPPER"}
    if word == "includeLastPixel":
        amounts = [int(each) for each in params.includeLastPixel.paddingAmounts] or [0, 0]
        return {"pads": amounts * 2, "ceil_mode": 1}
    return {"pads": pads_of(_sides(params.valid.paddingAmounts))}


def _convolution(layer: Any) -> None:
    of = layer.params
    groups, kernel = int(of.nGroups) or 1, [int(each) for each in of.kernelSize] or [3, 3]
    outputs, inputs = int(of.outputChannels), int(of.kernelChannels)
    shape = (inputs, outputs // groups, *kernel) if of.isDeconvolution else (outputs, inputs, *kernel)
    weights = layer.weights(of.weights, shape, axis=1 if of.isDeconvolution else 0)
    biases = layer.weights(of.bias, (outputs,)) if of.hasBias else None
    more = _padding(of, of.WhichOneof("ConvolutionPaddingType") or "valid")
    if of.isDeconvolution and of.outputShape:
        more["output_shape"] = [int(each) for each in of.outputShape][-2:]
        if any(more.get("pads", ())):
            raise NodeError("it has pads and a shape of its result", "Export it with one of them")
    layer.becomes(
        "ConvTranspose" if of.isDeconvolution else "Conv", [layer.inputs[0], weights, biases], group=groups,
        strides=_pair(of.stride), dilations=_pair(of.dilationFactor), kernel_shape=kernel, **more,
    )  # fmt: skip


_POOLS = ("MaxPool", "AveragePool", "LpPool")
_WHOLE = ("GlobalMaxPool", "GlobalAveragePool")


def _pooling(layer: Any) -> None:
    of = layer.params
    if of.globalPooling:
        if of.type >= len(_WHOLE):
            raise NodeError("it pools a whole image by the L2 norm")
        layer.becomes(_WHOLE[of.type], layer.inputs)
        return
    more = _padding(of, of.WhichOneof("PoolingPaddingType") or "valid")
    if _POOLS[of.type] == "AveragePool":
        more["count_include_pad"] = int(not of.avgPoolExcludePadding)
    kernel = [int(each) for each in of.kernelSize] or [3, 3]
    layer.becomes(_POOLS[of.type], layer.inputs, kernel_shape=kernel, strides=_pair(of.stride), **more)


_LINEAR = ("asymmetric", "align_corners", "half_pixel")


def _upsample(layer: Any) -> None:
    of = layer.params
    factors = [float(each) for each in of.fractionalScalingFactor or of.scalingFactor] or [1.0, 1.0]
    scales = np.array([1.0, 1.0, *factors], np.float32)
    mode = "linear" if of.mode else "nearest"
    where = _LINEAR[of.linearUpsampleMode] if of.mode else "asymmetric"
    layer.becomes(
        "Resize", [layer.inputs[0], None, scales], mode=mode, coordinate_transformation_mode=where, nearest_mode="floor"
    )


_METHODS = ("align_corners", "align_corners", "asymmetric")


def _resize(layer: Any) -> None:
    of = layer.params
    method, sizes = int(of.mode.samplingMethod), np.array([int(each) for each in of.targetSize] or [1, 1])
    if method >= len(_METHODS) or (method == 1 and 1 in sizes):
        raise NodeError("it samples where no node of the framework does")
    where = _METHODS[method]
    layer.becomes(
        "Resize", [layer.inputs[0], None, None, sizes], mode="linear", axes=[2, 3], coordinate_transformation_mode=where
    )


_FILLS = {"constant": "constant", "reflection": "reflect", "replication": "edge"}


def _pad(layer: Any) -> None:
    of = layer.params
    word = of.WhichOneof("PaddingType") or "constant"
    top, bottom, left, right = _sides(of.paddingAmounts)
    pads = np.array([0, 0, top, left, 0, 0, bottom, right])
    layer.becomes("Pad", [layer.inputs[0], pads, float(of.constant.value)], mode=_FILLS[word])


def _constant_pad(layer: Any) -> None:
    of = layer.params
    amounts = [int(each) for each in of.padAmounts]
    if of.padToGivenOutputSizeMode or len(amounts) % 2 or len(amounts) // 2 > layer.rank:
        raise NodeError("it pads to a size, or axes that its input has not")
    others = [0] * (layer.rank - len(amounts) // 2)
    pads = np.array([*others, *amounts[::2], *others, *amounts[1::2]])
    layer.becomes("Pad", [layer.inputs[0], pads, float(of.value)], mode="constant")


def _crop(layer: Any) -> None:
    if len(layer.inputs) != 1:
        raise NodeError("it crops to the size of another image")
    top, bottom, left, right = _sides(layer.params.cropAmounts)
    limits = [[top, left], [-bottom or _FAR, -right or _FAR], [2, 3]]
    layer.becomes("Slice", [layer.inputs[0], *map(np.array, limits)])


WINDOWS: Mapping[str, Write] = {
    "convolution": _convolution,
    "pooling": _pooling,
    "upsample": _upsample,
    "resizeBilinear": _resize,
    "padding": _pad,
    "constantPad": _constant_pad,
    "crop": _crop,
}
"""How each is written, by its kind."""
