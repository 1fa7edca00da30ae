"""MPSCNNBatchNormalizationStatistics (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from openmps.core.image.batch import as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Shape, Target
from openmps.core.kernel.arguments import are_images
from openmps.core.kernel.checks import Images
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalizationState, check_state
from openmps.kernels.batch_normalization.stages import OfBatches, check_usable, refuse, refuse_arguments
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import Channels
from openmps.ops.normalization.batch_normalization import BatchMoments, MergedMoments
from openmps.ops.normalization.sample_variance import ScaledRow, population_factor, sample_factor
from openmps.ops.op import Value
from openmps.runtime.binding import Numbers
from openmps.types import MPSOffset, MPSRectNoClip

_ROWS = ("mean", "correction", "variance")


class _Given(NamedTuple):
    """What a plan depends on of the state."""

    channels: int
    joins: bool
    """Whether the statistics join those before."""


_USE = "Use encode_batch(command_buffer, source_images, batch_normalization_state)"


class MPSCNNBatchNormalizationStatistics(OfBatches, MPSCNNKernel):
    """Mean and variance of a batch, into its state (MPSCNNBatchNormalization.h, macOS 10.13.4).

    ``mean = sum X / M``, ``variance = sum (X - mean)^2 / M`` over all M pixels of all images, for each feature channel;
    by the convention ``variance`` divided by M - 1.
    A batch may come in pieces of any size: encode each before the state is used. All pixels count, whatever `offset`
    and `clip_rect` say; the channels are those from `source_feature_channel_offset` on, as many as the state's.

    A batch in two pieces, after the example of `MPSCNNBatchNormalization`:

    >>> statistics = MPSCNNBatchNormalizationStatistics(device)
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> for piece in (images[:1], images[1:]):
    ...     statistics.encode_batch(command_buffer, piece, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.variance().contents().view(np.float32)
    array([4.], dtype=float32)
    """

    _use = _USE
    _joins_always: bool
    """Whether only a reset lets statistics begin again: by the convention, looked up once."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._joins_always = self.conventions["statistics_restart"] == "reset"
        self._is_sample = self.conventions["variance"] == "sample"

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        batch_normalization_state: MPSCNNBatchNormalizationState | Sequence[MPSState] | None = None,
        **unavailable: object,
    ) -> None:
        """Record that the statistics of a batch, or of a piece of one, go into a state.

        They join those before, unless the state was used since: then a new batch starts, by the convention
        ``statistics_restart`` only with a `reset` of the state. A temporary state keeps its read count.
        """
        refuse_arguments(self.name, unavailable, _USE)
        if batch_normalization_state is None or are_images(batch_normalization_state):
            refuse(self.name, "encode_batch without batch_normalization_state", _USE)
        images = as_batch(self.name, "source_images", source_images)
        states = MPSStateBatch([check_state(self.name, batch_normalization_state)] * len(images))
        self._check_operands(command_buffer, (images,), None, states, None)
        stack = images.whole()
        plan = self.plan((stack.shape,), None, self._given(states), is_batch=True)
        self._record(command_buffer, plan, (stack,), None, states, None)
        images.count_read()

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)

    def _given(self, states: MPSStateBatch) -> _Given:
        state = check_state(self.name, states)
        joins = state.joins[0] or (self._joins_always and state.has_statistics)
        return _Given(state.number_of_feature_channels, joins)

    def _planned(self, sources: tuple[Shape, ...], destination: Shape | None, given: Any, *, is_batch: bool) -> Plan:
        self._change_source(0, offset=MPSOffset(0, 0, 0))
        self.clip_rect, self.destination_feature_channel_offset = MPSRectNoClip, 0
        return super()._planned(sources, destination, given, is_batch=is_batch)

    def _check_plan(self, records: tuple[SourceRecord, ...], target: Target, given: _Given, images: int) -> None:
        if records[0].channels < given.channels:
            first = self.source_feature_channel_offset
            rule = f"must have the state's {given.channels} feature channel(s) from channel {first} on"
            raise MPSArgumentError(self.name, "source_images", rule, f"{records[0].channels} to be read")

    def _lower(self, at: LoweringContext, *images: Value) -> None:
        given: _Given = at.given
        is_sample = self.conventions["variance"] == "sample"  # Asked of those that note what a plan depends on.
        is_all = at.sources[0].channels == given.channels
        mean, correction, variance = BatchMoments()(images[0] if is_all else Channels(0, given.channels)(images[0]))
        if given.joins:
            before = [at.buffer(name) for name in _ROWS]
            if is_sample:
                before[-1] = ScaledRow()(before[-1], at.number("before"))
            mean, correction, variance = MergedMoments()(*before, mean, correction, variance, at.number("share"))
        if is_sample:
            variance = ScaledRow()(variance, at.number("sample"))
        found = mean, correction, variance
        for name, row in zip(_ROWS, found, strict=True):
            at.gives(name, row)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        extent = plan.sources[0].extent
        state = check_state(self.name, source_states)
        pixels = plan.images * extent.height * extent.width
        state.add_statistics(plan.images, pixels, joins_always=self._joins_always, is_sample=self._is_sample)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return check_state(self.name, states).own(name)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return check_state(self.name, states).own(name)

    def _number(self, name: str, states: MPSStateBatch | None) -> float:
        """The part of all pixels that this encode brings; those of a sample's variance, of all and of those before."""
        state = check_state(self.name, states)
        if name == "share":
            return state.share
        return sample_factor(state.pixels) if name == "sample" else population_factor(state.pixels_before)
