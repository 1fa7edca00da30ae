"""Pictures whose histograms become others (MPSImageHistogram.h, macOS 10.13)."""

from __future__ import annotations

from typing import ClassVar

from openmps.checks import store
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import single
from openmps.core.kernel.configuration import Fixed, Setting
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel
from openmps.core.kernel.plan import Plan
from openmps.core.state.batch import MPSStateBatch
from openmps.core.vector import MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.errors import MPSArgumentError
from openmps.kernels.image_filters.histogram_buffers import COUNT, channels_counted, check_info, counts_in
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.elements import COMPONENTS
from openmps.ops.image.histogram import EqualizingTable, Lookup, SpecifyingTable
from openmps.ops.op import Value
from openmps.runtime.binding import Numbers
from openmps.types import MPSDataType, MPSImageHistogramInfo

_TABLE = "transform"


class _Table(OperandKernel):
    """Makes the table of a filter from one histogram, or two."""

    _arguments = (
        Argument("histogram", MPSVector, (COUNT,)),
        Argument("desired_histogram", MPSVector, (COUNT,), is_optional=True),
        Argument(_TABLE, MPSVector, (MPSDataType.FLOAT32,), is_result=True),
    )
    _info = Setting[MPSImageHistogramInfo]()

    def make(
        self, command_buffer: CommandBuffer, histogram: MPSVector, desired: MPSVector | None, table: MPSVector
    ) -> None:
        """Record it."""
        self._encode(command_buffer, histogram, desired, table)

    @classmethod
    def of(cls, owner: MPSUnaryImageKernel, info: MPSImageHistogramInfo) -> _Table:
        """One that errors call by the name of its filter."""
        made = cls(owner.device).noting(owner.conventions)
        made._info = info
        store(made, "_name", owner.name)
        return made

    def _lower(self, at: OperandContext) -> None:
        info, count = self._info, at.sizes("histogram")[-1] // self._info.number_of_histogram_entries
        spans = (info.number_of_histogram_entries, info.min_pixel_value[:count], info.max_pixel_value[:count])
        histogram = at.elements("histogram")
        if at.has("desired_histogram"):
            is_nearest = self.conventions["specification_table"] == "nearest"
            made = SpecifyingTable(*spans, is_nearest)(histogram, at.elements("desired_histogram"))
        else:
            made = EqualizingTable(*spans, self.conventions["equalization_table"] == "exclusive")(histogram)
        at.store(_TABLE, made)


class _Transforming(MPSUnaryImageKernel):
    """What both filters share: a table for each channel that has a histogram; alpha without one stays."""

    _filters_bytes = True
    _is_by_rows = True
    _works_in_place = False
    _most_channels = COMPONENTS
    _table: ClassVar[MPSVector | None] = None

    histogram_info = Fixed[MPSImageHistogramInfo]("The bins of the histograms, and what they span.")

    def __init__(self, device: MTLDevice, histogram_info: MPSImageHistogramInfo) -> None:
        super().__init__(device)
        self._change(histogram_info=check_info(self.name, histogram_info))

    def _unshare(self) -> None:
        super()._unshare()
        vars(self).pop("_table", None)

    def _count(self, source_texture: MPSImage) -> int:
        """Numbers of a histogram of pictures like this one."""
        image, info = single(self.name, "source_texture", source_texture), self.histogram_info
        channels = channels_counted(self.name, "source_texture", info, image.feature_channels)
        return channels * info.number_of_histogram_entries

    def _make_table(self, command_buffer: CommandBuffer, histogram: MPSVector, desired: MPSVector | None) -> None:
        count = histogram.length
        table = self._table
        if table is None or table.length != count:
            table = MPSVector(device=self.device, descriptor=MPSVectorDescriptor(count, MPSDataType.FLOAT32))
        _Table.of(self, self.histogram_info).make(command_buffer, histogram, desired, table)
        store(self, "_table", table)

    def _made_table(self) -> MPSVector:
        if self._table is None:
            remedy = "Call encode_transform first: copies and archives have no transform"
            raise MPSArgumentError(self.name, "encode", "needs a transform", None, remedy)
        return self._table

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        table = self._made_table()
        return Numbers(table.data, 0, table.length)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        info, table = self.histogram_info, self._made_table()
        channels = channels_counted(self.name, "source_image", info, plan.sources[0].channels)
        made = table.length // info.number_of_histogram_entries
        if made != channels:
            rule = f"must have a histogram for {made} channel(s), as the picture of the transform"
            raise MPSArgumentError(self.name, "source_image", rule, f"{channels} channel(s)")

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        info, channels = self.histogram_info, at.sources[0].channels
        count = channels_counted(self.name, "source_image", info, channels)
        spans = info.min_pixel_value[:count], info.max_pixel_value[:count]
        find = Lookup(info.number_of_histogram_entries, *spans, self.conventions["histogram_bins"] == "rounded")
        return self._components(at, find(at.read(images[0]), at.buffer(_TABLE)), channels)


class MPSImageHistogramEqualization(_Transforming):
    """A picture with as many pixels in every range of values (MPSImageHistogram.h, macOS 10.13).

    `encode_transform` makes a table of a histogram H, `encode` looks numbers up in it by their bins, those of
    `MPSImageHistogram`::

        T[b] = min + (max - min) cdf[b] / cdf[n - 1]        cdf[b] = H[0] + … + H[b]

    An empty histogram leaves numbers in their bins. Channels without a histogram, alpha unless asked for, stay. A copy
    has no table.

    Raises:
        MPSArgumentError: In an encode, there is no transform, or one for another number of channels; the buffer is too
            small.
    """

    def encode_transform(
        self, command_buffer: CommandBuffer, source_texture: MPSImage, histogram: MTLBuffer, histogram_offset: int
    ) -> None:
        """Record the table. The texture only says how many channels there are; the buffer is read when this runs."""
        count = self._count(source_texture)
        self._make_table(command_buffer, counts_in(self.name, "histogram", histogram, histogram_offset, count), None)


class MPSImageHistogramSpecification(_Transforming):
    """A picture whose histogram is like another one (MPSImageHistogram.h, macOS 10.13).

    `encode_transform` makes a table of the picture's histogram S and the desired one D, `encode` looks numbers up::

        T[b] = min + (max - min) d / (n - 1)        d the first with  cdf_D[d] / cdf_D[n - 1] >= cdf_S[b] / cdf_S[n - 1]

    An empty histogram leaves numbers in their bins. Channels without a histogram, alpha unless asked for, stay. A copy
    has no table.

    Raises:
        MPSArgumentError: In an encode, there is no transform, or one for another number of channels; a buffer is too
            small.
    """

    def encode_transform(
        self,
        command_buffer: CommandBuffer,
        source_texture: MPSImage,
        source_histogram: MTLBuffer,
        source_histogram_offset: int,
        desired_histogram: MTLBuffer,
        desired_histogram_offset: int,
    ) -> None:
        """Record the table. The texture only says how many channels there are; buffers are read when this runs."""
        count, who = self._count(source_texture), self.name
        source = counts_in(who, "source_histogram", source_histogram, source_histogram_offset, count)
        desired = counts_in(who, "desired_histogram", desired_histogram, desired_histogram_offset, count)
        self._make_table(command_buffer, source, desired)
