"""Float32 weights of a convolution as the CPU's libraries take them fastest, and the convolutions by them.

=====================  ============================================  ==================================================
windows                weights                                       computed by
=====================  ============================================  ==================================================
one pixel each         a matrix ``[I, O]``                           a product of matrices by MKL: small ones anywhere,
                                                                     since no library call is cheaper, larger ones on
                                                                     Intel's processors, where it is faster, too; large
                                                     matrices in its own order
one pixel each, few    a matrix ``[I, 16]`` with zeros               a product, of which some columns are kept
outputs
one pixel each         an order ``[O]`` of channels, where each      copies
                       row of the matrix is one 1 among zeros
3 x 3, many channels   in tiles                                      `ops.convolution.winograd`, on Intel's processors
any                    packed for oneDNN                             oneDNN, with biases, an added image or a gate
=====================  ============================================  ==================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from openmps.cpu import CpuChoice
from openmps.ops.convolution.library_convolution import operand_of, placed, regular
from openmps.ops.convolution.winograd import Tiles, side_of_tiles
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode

_SMALL = 2**24
"""Multiplications and additions of a product that is not worth oneDNN's preparation, some 50 us at each call."""
_FEW_OUTPUTS = 8
_WIDTH = 16
"""Columns of a product that MKL makes faster than few: those of a register."""
_MANY_PIXELS = 1024
_FEW_RESULTS, _FEW_PIXELS = 2**19, 2**11
"""Numbers of a result, and pixels, that MKL makes faster than oneDNN on Intel's processors."""
_LARGE, _MANY_OUTPUTS = 2**17, 192
"""Numbers of a matrix that MKL brings into its own order once instead of at each call, and its outputs."""
_one_dnn: Any = torch.ops.mkldnn
_mkl: Any = torch.ops.mkl
_packs = hasattr(_mkl, "_mkl_linear")
_multiply: Any = _mkl._mkl_linear.default if _packs else None
_convolve, _convolve_and_add = _one_dnn._convolution_pointwise.default, _one_dnn._convolution_pointwise.binary


class PackedWeights:
    """Weights and biases of one convolution, ready to be used.

    Called with a float32 image, an image to add and an activation, each of which may be missing, they give
    ``activation(convolution(x) + biases + residual)``.
    """

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        """See the class."""
        raise NotImplementedError


def packed_weights(
    weights: Tensor, biases: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode, groups: int, images: int
) -> PackedWeights:
    """Float32 weights, OHWI, and biases for a convolution of so many images.

    Weights that are no normal numbers, below 1.2e-38, are taken for 0, as the framework's GPUs do: trained networks
    have some, and a processor takes a hundred times as long for each.
    """
    weights = torch.where(weights.abs() < torch.finfo(torch.float32).tiny, 0.0, weights)
    if groups == 1 and window.size == (1, 1) and not window.leaves_source:
        rows = weights.flatten(1)
        if biases is None and window.stride == (1, 1) and window.is_whole and (order := _order(rows)) is not None:
            return _Order(order)
        pixels = max(images, 1) * window.y.result * window.x.result
        if 1 < len(rows) <= _FEW_OUTPUTS and pixels >= _MANY_PIXELS:
            return _FewOutputs(rows, biases, window)
        if 2 * pixels * rows.numel() <= _SMALL:
            return _Product(rows, biases, window)
        if CpuChoice.PIXELS.takes_intel and pixels * len(rows) <= _FEW_RESULTS and pixels <= _FEW_PIXELS:
            is_packed = _packs and rows.numel() >= _LARGE and len(rows) >= _MANY_OUTPUTS
            return _PackedProduct(rows, biases, window, pixels) if is_packed else _Product(rows, biases, window)
    library = _Library(weights, biases, window, edge_mode, groups, images)
    if CpuChoice.TILES.takes_intel and (side := side_of_tiles(window, edge_mode, groups, images, weights)):
        tiles = Tiles(weights, library.biases, window, side)
        return _InTiles(tiles, library) if tiles.are_moderate else library
    return library


def behind(y: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
    """What stands behind a convolution, over its result, in its memory as far as it fits."""
    if residual is not None:
        y = y.add_(residual) if (residual.shape, residual.dtype) == (y.shape, y.dtype) else y + residual
    return y if activation is None else activation.of(y)


def _order(rows: Tensor) -> Tensor | None:
    """The channel that each row takes as it is; None if a row does anything else."""
    taken = rows != 0
    if not bool((taken.sum(1) == 1).all()):
        return None
    order = taken.to(torch.uint8).argmax(1)
    return order if bool((rows.gather(1, order[:, None]) == 1).all()) else None


def _pixels(x: Tensor) -> Tensor:
    """The pixels of an image as rows."""
    images, channels, height, width = x.shape
    if x.is_contiguous(memory_format=torch.channels_last):
        return x.as_strided((images * height * width, channels), (channels, 1))
    return x.permute(0, 2, 3, 1).reshape(-1, channels)


def _image(pixels: Tensor, like: Tensor) -> Tensor:
    """Rows as the pixels of an image of the size of another one."""
    images, _, height, width = like.shape
    channels = pixels.shape[1]
    shape = images, channels, height, width
    return pixels.as_strided(shape, (height * width * channels, 1, width * channels, channels))


class _Order(PackedWeights):
    """Channels in another order."""

    def __init__(self, order: Tensor) -> None:
        self._order = order

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        return behind(_image(_pixels(x).index_select(1, self._order), x), residual, activation)


class _OnePixel(PackedWeights):
    """Windows of one pixel."""

    def __init__(self, window: Window) -> None:
        self._slices = (
            None if window.is_whole and window.stride == (1, 1) else [*map(_pixels_read, (window.y, window.x))]
        )

    def _read(self, x: Tensor) -> Tensor:
        return x if self._slices is None else x[:, :, self._slices[0], self._slices[1]]


class _FewOutputs(_OnePixel):
    """A product of matrices with columns of zeros beside those of the weights, which are left out of the result."""

    def __init__(self, rows: Tensor, biases: Tensor | None, window: Window) -> None:
        super().__init__(window)
        more = _WIDTH - len(rows)
        self._matrix = functional.pad(rows, (0, 0, 0, more)).t().contiguous()
        self._biases = functional.pad(rows.new_zeros(len(rows)) if biases is None else biases, (0, more))
        self._outputs = len(rows)

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        x = self._read(x)
        made = torch.addmm(self._biases, _pixels(x), self._matrix)
        return behind(_image(made[:, : self._outputs].contiguous(), x), residual, activation)


class _PackedProduct(_OnePixel):
    """A product of matrices of so many pixels by MKL's own order of the weights."""

    def __init__(self, rows: Tensor, biases: Tensor | None, window: Window, pixels: int) -> None:
        super().__init__(window)
        self._rows = rows.clone(memory_format=torch.contiguous_format)
        self._packed = _mkl._mkl_reorder_linear_weight(self._rows, pixels)
        self._biases = None if biases is None else biases.clone()
        self._pixels = pixels

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        x = self._read(x)
        y = _multiply(_pixels(x), self._packed, self._rows, self._biases, self._pixels)
        return behind(_image(y, x), residual, activation)


class _Product(_OnePixel):
    """A product of matrices whose rows are pixels of the result."""

    def __init__(self, rows: Tensor, biases: Tensor | None, window: Window) -> None:
        super().__init__(window)
        self._matrix = rows.t().clone(memory_format=torch.contiguous_format)
        self._biases = None if biases is None else biases.clone()

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        x = self._read(x)
        pixels, biases = _pixels(x), self._biases
        if residual is not None and self._lies_like_results(residual, x):
            residual = _pixels(residual)
            if biases is None:
                y = torch.addmm(residual, pixels, self._matrix)
            else:
                y = torch.add(residual, biases).addmm_(pixels, self._matrix)
            residual = None
        elif biases is None:
            y = torch.mm(pixels, self._matrix)
        else:
            y = torch.addmm(biases, pixels, self._matrix)
        return behind(_image(y, x), residual, activation)

    def _lies_like_results(self, residual: Tensor, x: Tensor) -> bool:
        is_last = residual.is_contiguous(memory_format=torch.channels_last)
        shape = len(x), self._matrix.shape[1], *x.shape[2:]
        return is_last and residual.shape == shape and residual.dtype == x.dtype


def _pixels_read(axis: Axis) -> slice:
    """The pixels that windows of one pixel read."""
    return slice(axis.first, axis.first + (axis.result - 1) * axis.stride + 1, axis.stride)


class _Library(PackedWeights):
    """oneDNN."""

    def __init__(
        self,
        weights: Tensor,
        biases: Tensor | None,
        window: Window,
        edge_mode: MPSImageEdgeMode,
        groups: int,
        images: int,
    ) -> None:
        self._read, self._padding = placed(window, edge_mode)
        self._edge_mode = edge_mode
        window = self._read
        size = window.region if self._padding is None else window.source
        self._where = (self._padding or (0, 0), window.stride, window.dilation, groups)
        kernel = weights.permute(0, 3, 1, 2)
        shape = (max(images, 1), kernel.shape[1] * groups, *size)
        self._weights = _one_dnn._reorder_convolution_weight(kernel, *self._where, shape)
        self._result = (len(weights), *window.result)
        self.biases = None if biases is None else biases.clone()

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        image = regular(x) if self._padding is not None else self._region(x)
        if residual is None:
            gate = "none" if activation is None else activation.gate
            y = _convolve(image, self._weights, self.biases, *self._where, gate, [], "")
            if activation is None:
                return y
            return activation.of(y) if gate == "none" else activation.behind_gate(y)
        if self._lies_like_results(residual, x):
            more = "add", None, None, [], None
            y = _convolve_and_add(image, regular(residual), self._weights, self.biases, *self._where, *more)
            return behind(y, None, activation)
        y = _convolve(image, self._weights, self.biases, *self._where, "none", [], "")
        return behind(y, residual, activation)

    def _region(self, x: Tensor) -> Tensor:
        return operand_of(x, self._read, None, self._edge_mode).image

    def _lies_like_results(self, residual: Tensor, x: Tensor) -> bool:
        # One pixel or one channel lies both ways, and torch 2.11 then tells oneDNN neither.
        is_last = residual.is_contiguous(memory_format=torch.channels_last) and not residual.is_contiguous()
        return is_last and residual.shape == (len(x), *self._result) and residual.dtype == x.dtype


class _InTiles(PackedWeights):
    """In tiles, or by oneDNN where those would be wrong."""

    def __init__(self, tiles: Tiles, library: _Library) -> None:
        self._tiles = tiles
        self._library = library

    def __call__(self, x: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
        is_last = residual is None and activation is not None and activation.takes_rows
        y = self._tiles.convolve(x, activation if is_last else None)
        if y is None:
            return self._library(x, residual, activation)
        return y if is_last else behind(y, residual, activation)
