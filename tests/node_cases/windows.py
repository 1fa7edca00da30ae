"""Convolution, transposed convolution and pooling nodes: where ONNX's window stands, said in the kernels' terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from encoding import Bench, finish, numbers
from node_cases.case import Array, Case, NotExpressible, planar
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionDescriptor, MPSCNNConvolutionTranspose
from openmps.kernels.pooling import (
    MPSCNNDilatedPoolingMax,
    MPSCNNPoolingAverage,
    MPSCNNPoolingL2Norm,
    MPSCNNPoolingMax,
)
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.types import MPSImageEdgeMode, MPSOffset


class Axis2:
    """The window of one node on two axes: the kernel's size, stride, dilation, and the pads before and behind."""

    def __init__(self, case: Case, size: tuple[int, ...], source: tuple[int, ...]) -> None:
        self.size, rank = _two(size, 1), len(size)
        self.stride = _two(case.get("strides", [1] * rank), 1)
        self.dilation = _two(case.get("dilations", [1] * rank), 1)
        self.source = source
        pads = case.get("pads", [0] * (2 * rank))
        self.before, self.behind = _two(pads[:rank], 0), _two(pads[rank:], 0)
        self.automatic = case.get("auto_pad", "NOTSET")
        if self.automatic.startswith("SAME"):
            self.before, self.behind = self._same_pads()
        self.is_ceiling = bool(case.get("ceil_mode", 0))

    @property
    def dilated(self) -> tuple[int, int]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))  # type: ignore[return-value]

    def _same_pads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        before, behind = [], []
        for n, k, s in zip(self.source, self.dilated, self.stride, strict=True):
            total = max((-(-n // s) - 1) * s + k - n, 0)
            less, more = total // 2, total - total // 2
            before.append(less if self.automatic == "SAME_UPPER" else more)
            behind.append(more if self.automatic == "SAME_UPPER" else less)
        return tuple(before), tuple(behind)  # type: ignore[return-value]

    def results(self) -> tuple[int, int]:
        """Result pixels, as ONNX counts them: a ceiling drops a window that would start in the far pad."""
        found = []
        for n, k, s, p, q in zip(self.source, self.dilated, self.stride, self.before, self.behind, strict=True):
            count = -(-(n + p + q - k) // s) + 1 if self.is_ceiling else (n + p + q - k) // s + 1
            if self.is_ceiling and (count - 1) * s >= n + p:
                count -= 1
            found.append(count)
        return tuple(found)  # type: ignore[return-value]

    def offset(self) -> MPSOffset:
        """The kernel's offset that puts the first window's first tap ``before`` pixels outside."""
        y, x = (k // 2 - p for k, p in zip(self.dilated, self.before, strict=True))
        return MPSOffset(x, y, 0)


def _two(values: Any, one: int) -> tuple[int, int]:
    given = [int(value) for value in values]
    if len(given) > 2:
        raise NotExpressible("three spatial axes: images have two")
    return tuple([one] * (2 - len(given)) + given)  # type: ignore[return-value]


def run(bench: Bench, kernel: Any, source: Array, height: int, width: int, channels: int) -> Array:
    """Encode into a destination of a given size."""
    destination = bench.empty((len(source), channels, height, width))
    buffer = bench.command_buffer()
    kernel.encode(buffer, bench.image(source), destination_image=destination)
    finish(buffer)
    return numbers(destination)


# --- convolution ---------------------------------------------------------------------------------------------------


def convolution(case: Case, bench: Bench) -> list[Array]:
    x, weights = planar(case.tensor(0)), case.tensor(1)
    if weights.ndim > 4:
        raise NotExpressible("three spatial axes: images have two")
    w = planar(weights)
    window = Axis2(case, weights.shape[2:], x.shape[2:])
    kernel = MPSCNNConvolution(bench.device, weights=_weights(w.transpose(0, 2, 3, 1), x.shape[1], case, window))
    kernel.offset = window.offset()
    y = run(bench, kernel, x, *window.results(), w.shape[0])
    return [y.reshape(case.outputs[0].shape)]


def _weights(ohwi: Array, inputs: int, case: Case, window: Axis2) -> ArrayConvolutionDataSource:
    bias = case.input(2)
    descriptor = MPSCNNConvolutionDescriptor(window.size[1], window.size[0], inputs, ohwi.shape[0])
    descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x = window.stride
    descriptor.dilation_rate_y, descriptor.dilation_rate_x = window.dilation
    descriptor.groups = int(case.get("group", 1))
    return ArrayConvolutionDataSource(descriptor, np.ascontiguousarray(ohwi), bias)


def convolution_transpose(case: Case, bench: Bench) -> list[Array]:
    """Weights ``[I, O/g, k, k]`` turned by half a turn; the kernel's offset is ``k // 2 - (k - 1) + pad``."""
    x, weights = planar(case.tensor(0)), case.tensor(1)
    if weights.ndim > 4:
        raise NotExpressible("three spatial axes: images have two")
    w, groups = planar(weights), int(case.get("group", 1))
    i, o, ky, kx = w.shape
    turned = w[:, :, ::-1, ::-1].reshape(groups, i // groups, o, ky, kx)
    ohwi = turned.transpose(0, 2, 3, 4, 1).reshape(groups * o, ky, kx, i // groups)
    window = Axis2(case, weights.shape[2:], x.shape[2:])
    height, width = planar(case.outputs[0]).shape[2:]
    before = _transposed_pads(case, window, (height, width))
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=_weights(ohwi, i, case, window))
    kernel.offset = MPSOffset(0, 0, 0)
    kernel.kernel_offset_y, kernel.kernel_offset_x = (
        pad - (k - 1) + k // 2 for pad, k in zip(before, window.dilated, strict=True)
    )
    y = run(bench, kernel, x, height, width, groups * o)
    return [y.reshape(case.outputs[0].shape)]


def _transposed_pads(case: Case, window: Axis2, result: tuple[int, int]) -> tuple[int, int]:
    """Pixels cut off before the result: given, or half of what an asked-for size leaves over."""
    if "output_shape" not in case.attributes and case.get("auto_pad", "NOTSET") == "NOTSET":
        return window.before
    extra = case.get("output_padding", [0, 0])
    total = [
        (n - 1) * s + e + k - r
        for n, s, e, k, r in zip(window.source, window.stride, extra, window.dilated, result, strict=True)
    ]
    upper = case.get("auto_pad", "NOTSET") == "SAME_UPPER"
    return tuple(t // 2 if upper else t - t // 2 for t in total)  # type: ignore[return-value]


# --- pooling -------------------------------------------------------------------------------------------------------


def max_pooling(case: Case, bench: Bench) -> list[Array]:
    if len(case.outputs) > 1:
        raise NotExpressible("the second output is the places of the maxima: pooling keeps them to itself")
    x = planar(case.tensor(0))
    window = Axis2(case, tuple(case.get("kernel_shape", [])), x.shape[2:])
    (ky, kx), (sy, sx), (dy, dx) = window.size, window.stride, window.dilation
    if (dy, dx) == (1, 1):
        kernel = MPSCNNPoolingMax(bench.device, kx, ky, sx, sy)
    else:
        kernel = MPSCNNDilatedPoolingMax(bench.device, kx, ky, dx, dy, sx, sy)
    return _pooled(case, bench, kernel, window, x)


def average_pooling(case: Case, bench: Bench) -> list[Array]:
    x = planar(case.tensor(0))
    window = Axis2(case, tuple(case.get("kernel_shape", [])), x.shape[2:])
    if window.dilation != (1, 1):
        raise NotExpressible("dilated average pooling: only maximum pooling has a dilation rate")
    (ky, kx), (sy, sx) = window.size, window.stride
    kernel = MPSCNNPoolingAverage(bench.device, kx, ky, sx, sy)
    if case.get("count_include_pad", 0):
        if window.before != window.behind:
            raise NotExpressible("counted pads that differ before and behind: zero_pad_size is one number an axis")
        kernel.zero_pad_size_y, kernel.zero_pad_size_x = window.before
    return _pooled(case, bench, kernel, window, x)


def lp_pooling(case: Case, bench: Bench) -> list[Array]:
    x = planar(case.tensor(0))
    if case.get("p", 2) != 2:
        raise NotExpressible(f"L{case.get('p', 2)} pooling: the framework pools by the L2 norm only")
    window = Axis2(case, tuple(case.get("kernel_shape", [])), x.shape[2:])
    if window.dilation != (1, 1):
        raise NotExpressible("dilated L2 pooling: only maximum pooling has a dilation rate")
    (ky, kx), (sy, sx) = window.size, window.stride
    return _pooled(
        case, bench, MPSCNNPoolingL2Norm(bench.device, kx, ky, sx, sy), window, x, edge_mode=MPSImageEdgeMode.ZERO
    )


def _pooled(
    case: Case,
    bench: Bench,
    kernel: Any,
    window: Axis2,
    x: Array,
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.CLAMP,
) -> list[Array]:
    kernel.edge_mode = edge_mode
    kernel.offset = window.offset()
    y = run(bench, kernel, x, *window.results(), x.shape[1])
    return [y.reshape(case.outputs[0].shape)]


def global_pooling(kind: type[MPSCNNPoolingMax] | type[MPSCNNPoolingAverage]) -> Any:
    """Pooling with one window, the image."""

    def adapter(case: Case, bench: Bench) -> list[Array]:
        x = planar(case.tensor(0))
        height, width = x.shape[2:]
        kernel = kind(bench.device, width, height)
        kernel.offset = MPSOffset(width // 2, height // 2, 0)
        return [run(bench, kernel, x, 1, 1, x.shape[1]).reshape(case.outputs[0].shape)]

    return adapter
