"""Images copied to the rows of a matrix and back (MPSImageCopy.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Stack, Target
from openmps.core.kernel.arguments import single
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.checks import Images, check_command_buffer, check_sources
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSDataLayout, MPSDataType, MPSImageFeatureChannelFormat, MTLOrigin

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_CHANNELS_FIRST = MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
_ELEMENTS: dict[MPSImageFeatureChannelFormat, MPSDataType] = {
    MPSImageFeatureChannelFormat.UNORM8: MPSDataType.UINT8,
    MPSImageFeatureChannelFormat.UNORM16: MPSDataType.UINT16,
    MPSImageFeatureChannelFormat.FLOAT16: MPSDataType.FLOAT16,
    MPSImageFeatureChannelFormat.FLOAT32: MPSDataType.FLOAT32,
}
"""The type of a matrix that holds the elements of an image as they are stored."""


class _ImageCopy(MPSKernel):
    """What the two directions share: where in the matrix the images lie, and in which order."""

    _matrix_argument: str

    def __init__(self, device: MTLDevice, data_layout: MPSDataLayout) -> None:
        super().__init__(device)
        try:
            self._layout = MPSDataLayout(data_layout)
        except ValueError as fault:
            rule = f"must be one of {', '.join(layout.name for layout in MPSDataLayout)}"
            raise MPSArgumentError(self.name, "data_layout", rule, repr(data_layout)) from fault
        self._origin = MTLOrigin(0, 0, 0)
        self._batch_index = 0

    @property
    def data_layout(self) -> MPSDataLayout:
        """The order of an image's elements in its row of the matrix."""
        return self._layout

    def _set_origin(self, value: MTLOrigin) -> None:
        argument = f"{self._matrix_argument}_origin"
        if not isinstance(value, MTLOrigin):
            raise MPSTypeError(self.name, argument, "must be an MTLOrigin(row, column, 0)", type(value).__name__)
        if value.z != 0:
            raise MPSArgumentError(self.name, f"{argument}.z", "must be 0", value.z, "Choose a matrix by its index")
        self._origin = value

    def _set_batch_index(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            argument = f"{self._matrix_argument}_batch_index"
            raise MPSArgumentError(self.name, argument, "must be an integer of at least 0", repr(value))
        self._batch_index = value

    def _checked(
        self, command_buffer: CommandBuffer, argument: str, images: Images, matrix: MPSMatrix
    ) -> tuple[Stack, _Rows]:
        """Images and their rows, if they can be copied; ``argument`` is what the images are passed as."""
        check_command_buffer(self.name, command_buffer, self.device)
        check_sources(self.name, (argument,), (images,), command_buffer)
        if not isinstance(matrix, MPSMatrix):
            raise MPSTypeError(self.name, self._matrix_argument, "must be an MPSMatrix", type(matrix).__name__)
        matrix.check_usable(self.name, self._matrix_argument, command_buffer)
        stack = images.stack() if isinstance(images, MPSImageBatch) else images.stack(0, images.number_of_images)
        needed = _ELEMENTS[stack.channel_format]
        if matrix.data_type is not needed:
            rule = f"must hold {needed.name}, as {stack.channel_format.name} images do"
            raise MPSArgumentError(self.name, self._matrix_argument, rule, matrix.data_type.name)
        if self._batch_index >= matrix.matrices:
            name, rule = (
                f"{self._matrix_argument}_batch_index",
                f"must be below {matrix.matrices}, the matrices there are",
            )
            raise MPSArgumentError(self.name, name, rule, self._batch_index)
        return stack, self._rows(stack.extent, matrix)

    def _rows(self, extent: Extent, matrix: MPSMatrix) -> _Rows:
        row, column = self._origin.x, self._origin.y
        length = extent.width * extent.height * extent.channels
        if row + extent.images > matrix.rows or column + length > matrix.columns:
            rule = f"must have {row + extent.images} rows of {column + length} elements: {extent}"
            rule += f" from row {row}, column {column} on"
            got = f"{matrix.rows} rows of {matrix.columns}"
            raise MPSArgumentError(
                self.name, self._matrix_argument, rule, got, "One row an image, all of it in the row"
            )
        return _Rows(matrix, self._batch_index, row, column, extent, self._layout)


class _Rows:
    """The elements of a matrix that belong to some images."""

    def __init__(
        self, matrix: MPSMatrix, index: int, row: int, column: int, extent: Extent, layout: MPSDataLayout
    ) -> None:
        self._matrix = matrix
        self._place = (index, row, column)
        self._extent = extent
        self._layout = layout

    def pixels(self) -> Tensor:
        """Those elements ``[N, C, H, W]``, sharing the matrix's memory."""
        extent, (index, row, column) = self._extent, self._place
        whole = self._matrix.tensor()
        rows = (whole[index] if self._matrix.matrices > 1 else whole)[row : row + extent.images]
        length = extent.width * extent.height * extent.channels
        flat = rows[:, column : column + length]
        if self._layout is _CHANNELS_FIRST:
            return flat.unflatten(1, (extent.channels, extent.height, extent.width))
        return flat.unflatten(1, (extent.height, extent.width, extent.channels)).permute(0, 3, 1, 2)


class MPSImageCopyToMatrix(_ImageCopy):
    """Copy images to rows of a matrix, one row an image (MPSImageCopy.h, macOS 10.13).

    With HEIGHT_X_WIDTH_X_FEATURE_CHANNELS element ``(y W + x) C + c`` of the row is channel c of pixel (x, y); with
    FEATURE_CHANNELS_X_HEIGHT_X_WIDTH, the default, element ``(c H + y) W + x`` is. Elements are copied as they are
    stored: a matrix of FLOAT32 or FLOAT16 for images of that format, of UINT8 or UINT16 for UNORM8 or UNORM16. The rest
    of the matrix stays as it is.

    Raises:
        MPSArgumentError: ``data_layout`` is none; in an encode, the matrix has another type or too few rows or columns.
    """

    _matrix_argument = "destination_matrix"

    def __init__(self, device: MTLDevice, data_layout: MPSDataLayout = _CHANNELS_FIRST) -> None:
        super().__init__(device, data_layout)

    @property
    def destination_matrix_origin(self) -> MTLOrigin:
        """Where the first image goes: x is its row, y its first column; z must be 0. Default (0, 0, 0)."""
        return self._origin

    @destination_matrix_origin.setter
    def destination_matrix_origin(self, value: MTLOrigin) -> None:
        self._set_origin(value)

    @property
    def destination_matrix_batch_index(self) -> int:
        """Which of several matrices is written. Default 0."""
        return self._batch_index

    @destination_matrix_batch_index.setter
    def destination_matrix_batch_index(self, value: int) -> None:
        self._set_batch_index(value)

    def encode(self, command_buffer: CommandBuffer, source_image: MPSImage, destination_matrix: MPSMatrix) -> None:
        """Record the copy of an image object; each of its images takes a row."""
        self._encode(command_buffer, single(self.name, "source_image", source_image), destination_matrix)

    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_matrix: MPSMatrix
    ) -> None:
        """Record the copy of a batch, each image to its own row, as one operation (macOS 10.14)."""
        self._encode(command_buffer, as_batch(self.name, "source_images", source_images), destination_matrix)

    def _encode(self, command_buffer: CommandBuffer, images: Images, matrix: MPSMatrix) -> None:
        stack, rows = self._checked(command_buffer, "source_image", images, matrix)

        def work() -> None:
            rows.pixels().copy_(stack.stored())

        command_buffer.record(self.name, work)
        images.count_read()


class MPSMatrixCopyToImage(_ImageCopy):
    """Copy rows of a matrix to images, one row an image (MPSImageCopy.h, macOS 10.14).

    The reverse of `MPSImageCopyToMatrix`: the same layouts, types and order. All pixels and channels are written.

    Raises:
        MPSArgumentError: ``data_layout`` is none; in an encode, the matrix has another type or too few rows or columns.
    """

    _matrix_argument = "source_matrix"

    def __init__(self, device: MTLDevice, data_layout: MPSDataLayout = _CHANNELS_FIRST) -> None:
        super().__init__(device, data_layout)

    @property
    def source_matrix_origin(self) -> MTLOrigin:
        """Where the first image lies: x is its row, y its first column; z must be 0. Default (0, 0, 0)."""
        return self._origin

    @source_matrix_origin.setter
    def source_matrix_origin(self, value: MTLOrigin) -> None:
        self._set_origin(value)

    @property
    def source_matrix_batch_index(self) -> int:
        """Which of several matrices is read. Default 0."""
        return self._batch_index

    @source_matrix_batch_index.setter
    def source_matrix_batch_index(self, value: int) -> None:
        self._set_batch_index(value)

    def encode(self, command_buffer: CommandBuffer, source_matrix: MPSMatrix, destination_image: MPSImage) -> None:
        """Record the copy to an image object; each of its images is a row."""
        self._encode(command_buffer, source_matrix, single(self.name, "destination_image", destination_image))

    def encode_batch(
        self, command_buffer: CommandBuffer, source_matrix: MPSMatrix, destination_images: Sequence[MPSImage]
    ) -> None:
        """Record the copy to a batch, each image from its own row, as one operation."""
        self._encode(command_buffer, source_matrix, as_batch(self.name, "destination_images", destination_images))

    def _encode(self, command_buffer: CommandBuffer, matrix: MPSMatrix, images: Images) -> None:
        stack, rows = self._checked(command_buffer, "destination_image", images, matrix)
        extent = stack.extent
        target = Target(0, 0, extent.width, extent.height, 0, extent.channels)

        def work() -> None:
            pixels = rows.pixels()
            stack.write_stored(pixels, target, (pixels,))

        command_buffer.record(self.name, work)
        matrix.count_read()
