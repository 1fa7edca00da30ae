"""Images copied to the rows of a matrix and back (MPSImageCopy.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from openmps.core.elements import Part
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import single
from openmps.core.kernel.configuration import Fixed, KernelProperty, at_least
from openmps.core.kernel.matrices import ORIGIN, matrix_origin
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel
from openmps.core.vector import MPSMatrix
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.layout.image_copy import ImagesToRows, RowsToImages
from openmps.selectors import takes
from openmps.types import MPSDataLayout, MPSDataType, MPSImageFeatureChannelFormat, MTLOrigin

_CHANNELS_FIRST = MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
_ELEMENTS: dict[MPSImageFeatureChannelFormat, MPSDataType] = {
    MPSImageFeatureChannelFormat.UNORM8: MPSDataType.UINT8,
    MPSImageFeatureChannelFormat.UNORM16: MPSDataType.UINT16,
    MPSImageFeatureChannelFormat.FLOAT16: MPSDataType.FLOAT16,
    MPSImageFeatureChannelFormat.FLOAT32: MPSDataType.FLOAT32,
}
"""The type of a matrix that holds the elements of an image as they are stored."""

_IMAGES = (MPSImage, MPSImageBatch)


class _ImageCopy(OperandKernel):
    """What the two directions share: where in the matrix the images lie, and in which order."""

    _matrix_argument: ClassVar[str]
    _image_argument: ClassVar[str]

    data_layout = Fixed[MPSDataLayout]("The order of an image's elements in its row of the matrix.")

    @takes()
    def __init__(self, device: MTLDevice, data_layout: MPSDataLayout = _CHANNELS_FIRST) -> None:
        super().__init__(device)
        self._change(data_layout=member(self.name, "data_layout", MPSDataLayout, data_layout))

    def _rows(self, at: OperandContext) -> Part:
        """The part of the matrix that the images take, one row each."""
        matrix, images = at.shape(self._matrix_argument), at.shape(self._image_argument)
        needed = _ELEMENTS[images.channel_format]
        if matrix.stored_as is not needed:
            rule = f"must hold {needed.name}, as {images.channel_format.name} images do"
            raise MPSArgumentError(self.name, self._matrix_argument, rule, matrix.stored_as.name)
        matrices, rows, columns = matrix.sizes
        name = f"{self._matrix_argument}_batch_index"
        index: int = getattr(self, name)
        if index >= matrices:
            raise MPSArgumentError(self.name, name, f"must be below {matrices}, the matrices there are", index)
        extent = images.extent
        origin: MTLOrigin = getattr(self, f"{self._matrix_argument}_origin")
        last_row, last_column = origin.x + extent.images, origin.y + extent.width * extent.height * extent.channels
        if last_row > rows or last_column > columns:
            rule = f"must have {last_row} rows of {last_column} elements: {extent}"
            rule += f" from row {origin.x}, column {origin.y} on"
            got, remedy = f"{rows} rows of {columns}", "One row an image, all of it in the row"
            raise MPSArgumentError(self.name, self._matrix_argument, rule, got, remedy)
        return index, slice(origin.x, last_row), slice(origin.y, last_column)


class MPSImageCopyToMatrix(_ImageCopy):
    """Copy images to rows of a matrix, one row an image (MPSImageCopy.h, macOS 10.13).

    With HEIGHT_X_WIDTH_X_FEATURE_CHANNELS element ``(y W + x) C + c`` of the row is channel c of pixel (x, y); with
    FEATURE_CHANNELS_X_HEIGHT_X_WIDTH, the default, element ``(c H + y) W + x`` is. Elements are copied as they are
    stored: a matrix of FLOAT32 or FLOAT16 for images of that format, of UINT8 or UINT16 for UNORM8 or UNORM16. The rest
    of the matrix stays as it is.

    Raises:
        MPSArgumentError: ``data_layout`` is none; in an encode, the matrix has another type or too few rows or columns.
    """

    _image_argument, _matrix_argument = "source_image", "destination_matrix"
    _arguments = (Argument(_image_argument, _IMAGES), Argument(_matrix_argument, MPSMatrix, is_result=True))

    destination_matrix_origin = KernelProperty(
        ORIGIN,
        matrix_origin,
        "Where the first image goes: x is its row, y its first column; z must be 0. Default (0, 0, 0).",
    )
    destination_matrix_batch_index = KernelProperty(0, at_least(0), "Which of several matrices is written. Default 0.")

    def encode(self, command_buffer: CommandBuffer, source_image: MPSImage, destination_matrix: MPSMatrix) -> None:
        """Record the copy of an image object; each of its images takes a row."""
        self._encode(command_buffer, single(self.name, "source_image", source_image), destination_matrix)

    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_matrix: MPSMatrix
    ) -> None:
        """Record the copy of a batch, each image to its own row, as one operation (macOS 10.14)."""
        self._encode(command_buffer, as_batch(self.name, "source_images", source_images), destination_matrix)

    def _lower(self, at: OperandContext) -> None:
        rows = at.elements(self._matrix_argument, *self._rows(at))
        ImagesToRows(self.data_layout is _CHANNELS_FIRST)(rows, at.elements(self._image_argument))


class MPSMatrixCopyToImage(_ImageCopy):
    """Copy rows of a matrix to images, one row an image (MPSImageCopy.h, macOS 10.14).

    The reverse of `MPSImageCopyToMatrix`: the same layouts, types and order. All pixels and channels are written.

    Raises:
        MPSArgumentError: ``data_layout`` is none; in an encode, the matrix has another type or too few rows or columns.
    """

    _matrix_argument, _image_argument = "source_matrix", "destination_image"
    _arguments = (Argument(_matrix_argument, MPSMatrix), Argument(_image_argument, _IMAGES, is_result=True))

    source_matrix_origin = KernelProperty(
        ORIGIN,
        matrix_origin,
        "Where the first image lies: x is its row, y its first column; z must be 0. Default (0, 0, 0).",
    )
    source_matrix_batch_index = KernelProperty(0, at_least(0), "Which of several matrices is read. Default 0.")

    def encode(self, command_buffer: CommandBuffer, source_matrix: MPSMatrix, destination_image: MPSImage) -> None:
        """Record the copy to an image object; each of its images is a row."""
        self._encode(command_buffer, source_matrix, single(self.name, "destination_image", destination_image))

    def encode_batch(
        self, command_buffer: CommandBuffer, source_matrix: MPSMatrix, destination_images: Sequence[MPSImage]
    ) -> None:
        """Record the copy to a batch, each image from its own row, as one operation."""
        self._encode(command_buffer, source_matrix, as_batch(self.name, "destination_images", destination_images))

    def _lower(self, at: OperandContext) -> None:
        rows, extent = at.elements(self._matrix_argument, *self._rows(at)), at.shape(self._image_argument).extent
        at.store_elements(
            self._image_argument, RowsToImages(extent.shape[1:], self.data_layout is _CHANNELS_FIRST)(rows)
        )
