"""Weights in the order of one framework, rearranged into the order of another.

Every function takes a NumPy array or a torch tensor of any dtype and gives a new contiguous NumPy array; the values
never change, only their order. O is output feature channels, I input feature channels (per group), H and W the kernel's
height and width, C the channels of a depthwise or fully connected source, m the channel multiplier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import whole
from openmps.errors import MPSArgumentError
from openmps.formats.arrays import Array, to_numpy


def ohwi_to_oihw(weights: Array) -> NDArray[Any]:
    """``[O, H, W, I]`` (MPSCNNConvolution.h, macOS 10.13) to ``[O, I, H, W]`` (torch ``Conv2d``, ONNX ``Conv``)."""
    return _permuted(weights, "OHWI", (0, 3, 1, 2), "ohwi_to_oihw")


def oihw_to_ohwi(weights: Array) -> NDArray[Any]:
    """``[O, I, H, W]`` (torch ``Conv2d``, ONNX ``Conv``) to ``[O, H, W, I]``."""
    return _permuted(weights, "OIHW", (0, 2, 3, 1), "oihw_to_ohwi")


def ohwi_to_hwio(weights: Array) -> NDArray[Any]:
    """``[O, H, W, I]`` to ``[H, W, I, O]`` (TensorFlow and Keras ``Conv2D``)."""
    return _permuted(weights, "OHWI", (1, 2, 3, 0), "ohwi_to_hwio")


def hwio_to_ohwi(weights: Array) -> NDArray[Any]:
    """``[H, W, I, O]`` (TensorFlow and Keras ``Conv2D``) to ``[O, H, W, I]``."""
    return _permuted(weights, "HWIO", (3, 0, 1, 2), "hwio_to_ohwi")


def ohwi_to_conv_transpose(weights: Array) -> NDArray[Any]:
    """Weights of an ``MPSCNNConvolutionTranspose`` to ``[I, O, H, W]`` of torch and ONNX transposed convolutions.

    ``V[i][o][y][x] = W[o][H-1-y][W-1-x][i]``: the framework correlates the weights as given with the zero-stuffed
    source (MPSCNNConvolution.h, macOS 10.13), torch scatters them, so the kernel turns by 180 degrees.
    """
    turned = _checked(weights, "OHWI", "ohwi_to_conv_transpose")[:, ::-1, ::-1, :]
    return np.array(turned.transpose(3, 0, 1, 2), order="C")


def conv_transpose_to_ohwi(weights: Array) -> NDArray[Any]:
    """``[I, O, H, W]`` of torch ``ConvTranspose2d`` to the weights of an ``MPSCNNConvolutionTranspose``.

    ``W[o][y][x][i] = V[i][o][H-1-y][W-1-x]``; the inverse of :func:`ohwi_to_conv_transpose`.
    """
    turned = _checked(weights, "IOHW", "conv_transpose_to_ohwi")[:, :, ::-1, ::-1]
    return np.array(turned.transpose(1, 2, 3, 0), order="C")


def fully_connected_to_linear(weights: Array) -> NDArray[Any]:
    """``[O, H, W, C]`` of an ``MPSCNNFullyConnected`` to ``[O, C * H * W]`` of a torch ``Linear`` after ``flatten``.

    ``L[o][(c * H + y) * W + x] = W[o][y][x][c]``: torch flattens an image with the columns fastest, the framework
    with the channels fastest.
    """
    values = _permuted(weights, "OHWC", (0, 3, 1, 2), "fully_connected_to_linear")
    return values.reshape(values.shape[0], -1)


def linear_to_fully_connected(weights: Array, height: int, width: int) -> NDArray[Any]:
    """``[O, C * H * W]`` of a torch ``Linear`` after ``flatten`` to ``[O, H, W, C]`` of an ``MPSCNNFullyConnected``.

    ``height`` and ``width`` are those of the image that was flattened. The inverse of
    :func:`fully_connected_to_linear`.
    """
    who = "linear_to_fully_connected"
    values = _checked(weights, "OI", who)
    area = _positive(height, who, "height") * _positive(width, who, "width")
    outputs, inputs = values.shape
    if inputs % area:
        rule = f"must have a multiple of height x width = {height} x {width} = {area} input features"
        raise MPSArgumentError(who, "weights", rule, inputs, "Give the size of the image that is flattened.")
    image = values.reshape(outputs, inputs // area, height, width)
    return np.array(image.transpose(0, 2, 3, 1), order="C")


def depthwise_to_oihw(weights: Array) -> NDArray[Any]:
    """``[C, m, H, W]`` of a depthwise convolution to ``[C * m, 1, H, W]`` (torch ``Conv2d`` with ``groups=C``).

    Result channel ``c * m + q`` is source channel ``c`` with kernel ``[c][q]`` in both
    (MPSCNNDepthWiseConvolutionDescriptor, MPSCNNConvolution.h, macOS 10.13).
    """
    values = _checked(weights, "CmHW", "depthwise_to_oihw")
    channels, multiplier, height, width = values.shape
    return np.array(values, order="C").reshape(channels * multiplier, 1, height, width)


def oihw_to_depthwise(weights: Array, channels: int) -> NDArray[Any]:
    """``[C * m, 1, H, W]`` (torch with ``groups=C``) to ``[C, m, H, W]``; ``channels`` is C, the source's channels."""
    who = "oihw_to_depthwise"
    values = _checked(weights, "OIHW", who)
    outputs, inputs, height, width = values.shape
    if inputs != 1:
        raise MPSArgumentError(who, "weights", "must be [C * m, 1, H, W]: one source channel a kernel", values.shape)
    if outputs % _positive(channels, who, "channels"):
        raise MPSArgumentError(who, "channels", f"must divide the {outputs} kernels of weights", channels)
    return np.array(values, order="C").reshape(channels, outputs // channels, height, width)


def depthwise_to_hwcm(weights: Array) -> NDArray[Any]:
    """``[C, m, H, W]`` to ``[H, W, C, m]`` (TensorFlow and Keras ``DepthwiseConv2D``)."""
    return _permuted(weights, "CmHW", (2, 3, 0, 1), "depthwise_to_hwcm")


def hwcm_to_depthwise(weights: Array) -> NDArray[Any]:
    """``[H, W, C, m]`` (TensorFlow and Keras ``DepthwiseConv2D``) to ``[C, m, H, W]``."""
    return _permuted(weights, "HWCm", (2, 3, 0, 1), "hwcm_to_depthwise")


def _permuted(weights: Array, axes: str, order: tuple[int, ...], who: str) -> NDArray[Any]:
    return np.array(_checked(weights, axes, who).transpose(order), order="C")


def _checked(weights: Array, axes: str, who: str) -> NDArray[Any]:
    values = to_numpy(weights, who, "weights")
    if values.ndim != len(axes):
        rule = f"must have {len(axes)} axes, [{', '.join(axes)}]"
        raise MPSArgumentError(who, "weights", rule, f"shape {values.shape}")
    return values


def _positive(value: int, who: str, argument: str) -> int:
    return whole(who, argument, value, rule="must be 1 or more")
