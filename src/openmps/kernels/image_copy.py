"""Images copied to the rows of a matrix and back (MPSImageCopy.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openmps.core.image.batch import as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.pixels import Pixels
from openmps.core.image.storage import Stack, Target
from openmps.core.kernel.arguments import member, single
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.checks import Images, check_command_buffer, check_sources
from openmps.core.kernel.configuration import Fixed, KernelProperty, at_least
from openmps.core.vector import MPSMatrix
from openmps.core.vector_descriptor import MPSMatrixDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region
from openmps.ops.layout.image_copy import ImagesToRows, RowsToImages
from openmps.runtime.binding import MemoryBinding
from openmps.runtime.dispatch import record_op
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


def _origin(who: str, argument: str, value: MTLOrigin) -> MTLOrigin:
    if not isinstance(value, MTLOrigin):
        raise MPSTypeError(who, argument, "must be an MTLOrigin(row, column, 0)", type(value).__name__)
    if value.z != 0:
        raise MPSArgumentError(who, f"{argument}.z", "must be 0", value.z, "Choose a matrix by its index")
    return value


class _ImageCopy(MPSKernel):
    """What the two directions share: where in the matrix the images lie, and in which order."""

    _matrix_argument: ClassVar[str]

    data_layout = Fixed[MPSDataLayout]("The order of an image's elements in its row of the matrix.")

    @takes()
    def __init__(self, device: MTLDevice, data_layout: MPSDataLayout = _CHANNELS_FIRST) -> None:
        super().__init__(device)
        self._change(data_layout=member(self.name, "data_layout", MPSDataLayout, data_layout))

    def _checked(
        self, command_buffer: CommandBuffer, argument: str, images: Images, matrix: MPSMatrix
    ) -> tuple[Stack, _Rows]:
        """Images and their rows, if they can be copied; ``argument`` is what the images are passed as."""
        check_command_buffer(self.name, command_buffer, self.device)
        check_sources(self.name, (argument,), (images,), command_buffer)
        if not isinstance(matrix, MPSMatrix):
            raise MPSTypeError(self.name, self._matrix_argument, "must be an MPSMatrix", type(matrix).__name__)
        matrix.check_usable(self.name, self._matrix_argument, command_buffer)
        stack = images.whole()
        needed = _ELEMENTS[stack.channel_format]
        if matrix.data_type is not needed:
            rule = f"must hold {needed.name}, as {stack.channel_format.name} images do"
            raise MPSArgumentError(self.name, self._matrix_argument, rule, matrix.data_type.name)
        name = f"{self._matrix_argument}_batch_index"
        index: int = getattr(self, name)
        if index >= matrix.matrices:
            raise MPSArgumentError(self.name, name, f"must be below {matrix.matrices}, the matrices there are", index)
        extent = stack.extent
        origin: MTLOrigin = getattr(self, f"{self._matrix_argument}_origin")
        row, column = origin.x, origin.y
        length = extent.width * extent.height * extent.channels
        if row + extent.images > matrix.rows or column + length > matrix.columns:
            rule = f"must have {row + extent.images} rows of {column + length} elements: {extent}"
            rule += f" from row {row}, column {column} on"
            got = f"{matrix.rows} rows of {matrix.columns}"
            remedy = "One row an image, all of it in the row"
            raise MPSArgumentError(self.name, self._matrix_argument, rule, got, remedy)
        return stack, _Rows(matrix, index, slice(row, row + extent.images), slice(column, column + length))


@dataclass(slots=True, eq=False)
class _Rows(MemoryBinding):
    """The part of a matrix that some images take, one row each."""

    matrix: MPSMatrix
    number: int
    rows: slice
    columns: slice

    def rebind(self, memories: Sequence[MTLBuffer]) -> _Rows:
        """The same rows of a matrix like this one in another buffer."""
        of = self.matrix
        sizes = of.rows, of.columns, of.row_bytes, of.data_type, of.matrices, of.matrix_bytes
        matrix = MPSMatrix(memories[0], MPSMatrixDescriptor(*sizes), of.offset)
        return _Rows(matrix, self.number, self.rows, self.columns)

    def memories(self) -> tuple[MTLBuffer]:
        """The memory that it reads or writes."""
        return (self.matrix.data,)

    def view_key(self) -> Hashable:
        """Which part of it, and how it lies there."""
        whole = self.matrix
        shape = whole.offset, whole.matrices, whole.rows, whole.columns, whole.row_bytes, whole.matrix_bytes
        ends = self.rows.start, self.rows.stop, self.columns.start, self.columns.stop
        return shape, whole.data_type, self.number, ends

    def value(self) -> Tensor:
        """Its elements, sharing the matrix's memory."""
        whole = self.matrix.memory()
        return (whole[self.number] if self.matrix.matrices > 1 else whole)[self.rows, self.columns]

    def regions(self) -> tuple[Region]:
        """The bytes of the whole matrix."""
        return self.matrix.regions()


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

    destination_matrix_origin = KernelProperty(
        MTLOrigin(0, 0, 0),
        _origin,
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

    def _encode(self, command_buffer: CommandBuffer, images: Images, matrix: MPSMatrix) -> None:
        stack, rows = self._checked(command_buffer, "source_image", images, matrix)
        record_op(command_buffer, self.name, ImagesToRows(self.data_layout is _CHANNELS_FIRST), (rows, stack))
        images.count_read()


class MPSMatrixCopyToImage(_ImageCopy):
    """Copy rows of a matrix to images, one row an image (MPSImageCopy.h, macOS 10.14).

    The reverse of `MPSImageCopyToMatrix`: the same layouts, types and order. All pixels and channels are written.

    Raises:
        MPSArgumentError: ``data_layout`` is none; in an encode, the matrix has another type or too few rows or columns.
    """

    _matrix_argument = "source_matrix"

    source_matrix_origin = KernelProperty(
        MTLOrigin(0, 0, 0),
        _origin,
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

    def _encode(self, command_buffer: CommandBuffer, matrix: MPSMatrix, images: Images) -> None:
        stack, rows = self._checked(command_buffer, "destination_image", images, matrix)
        extent = stack.extent
        target = Target(0, 0, extent.width, extent.height, 0, extent.channels)
        op = RowsToImages(extent.shape[1:], self.data_layout is _CHANNELS_FIRST)
        record_op(command_buffer, self.name, op, (rows,), (Pixels(stack, target),))
        matrix.count_read()
