"""Labels or weights of one image as numbers in memory (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, described
from openmps.core.arrays import numbers
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.selectors import Factory
from openmps.types import MPSDataLayout, MTLSize

_HWC = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS


class MPSCNNLossDataDescriptor(NamedAttributes):
    """Labels or weights of one image in memory (MPSCNNLoss.h, macOS 10.13.4).

    ``data`` holds ``size.width * size.height * size.depth`` float32 numbers (depth counts feature channels), in the
    order of ``layout``; without a ``size`` it is one pixel with a channel for each number. `bytes_per_row` and
    `bytes_per_image` may space them: bytes from one row, and from one image or plane, to the next (0: dense).

    Raises:
        MPSArgumentError: There are too few numbers, or no such layout.
        MPSTypeError: ``data`` holds no numbers, or ``size`` is no MTLSize.
    """

    bytes_per_row: int
    """Bytes from one row to the next; 0 for dense data."""
    bytes_per_image: int
    """Bytes from one image, or plane of channels, to the next; 0 for dense data."""

    cnn_loss_data_descriptor = Factory("cnnLossDataDescriptorWithData:layout:size:")
    layout = Shown[MPSDataLayout]("_layout", "Order of the numbers.")
    size = Shown[MTLSize]("_size", "Width, height and, as depth, feature channels.")

    def __init__(
        self,
        data: NDArray[Any] | Sequence[float] | bytes,
        layout: MPSDataLayout = _HWC,
        size: MTLSize | None = None,
    ) -> None:
        self._numbers = _flat(data)
        if not isinstance(layout, int) or layout not in tuple(MPSDataLayout):
            raise MPSArgumentError(_DATA, "layout", "must be an MPSDataLayout", repr(layout))
        self._layout = MPSDataLayout(layout)
        self._size = checked_size(_DATA, "size", MTLSize(1, 1, self._numbers.size) if size is None else size)
        self.bytes_per_row = 0
        self.bytes_per_image = 0
        width, height, channels = self._size.width, self._size.height, self._size.depth
        needed = width * height * channels
        if min(width, height, channels) < 1 or self._numbers.size < needed:
            rule = f"must hold {width} x {height} x {channels} = {needed} numbers, at least one"
            raise MPSArgumentError(_DATA, "data", rule, f"{self._numbers.size} numbers")

    def __repr__(self) -> str:
        size = self._size
        return described(self, f"{size.width}x{size.height}x{size.depth}", self._layout.name)

    def values(self) -> NDArray[np.float32]:
        """A copy of the numbers, ``[channels, height, width]``."""
        width, height, channels = self._size.width, self._size.height, self._size.depth
        is_interleaved = self._layout is _HWC
        shape = (height, width, channels) if is_interleaved else (channels, height, width)
        dense_row = (width * channels if is_interleaved else width) * 4
        row = self.bytes_per_row or dense_row
        plane = self.bytes_per_image or row * height
        strides = (row, channels * 4, 4) if is_interleaved else (plane, row, 4)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 4
        if row < dense_row or plane < row * height or row % 4 or plane % 4 or last > self._numbers.nbytes:
            rule = f"must space rows and planes by whole numbers within the {self._numbers.nbytes} bytes of data"
            raise MPSArgumentError(_DATA, "bytes_per_row and bytes_per_image", rule, f"{row} and {plane}")
        view = np.lib.stride_tricks.as_strided(self._numbers, shape, strides)
        return np.array(view.transpose(2, 0, 1) if is_interleaved else view, dtype=np.float32)


_DATA = MPSCNNLossDataDescriptor.__name__


def _flat(data: Any) -> NDArray[np.float32]:
    """The numbers as one row; raw bytes are float32."""
    return np.ascontiguousarray(numbers(_DATA, "data", data)).reshape(-1)


def checked_size(who: str, argument: str, size: object) -> MTLSize:
    """``size`` if it is an MTLSize."""
    if not isinstance(size, MTLSize):
        raise MPSTypeError(who, argument, "must be an MTLSize(width, height, channels)", type(size).__name__)
    return size
