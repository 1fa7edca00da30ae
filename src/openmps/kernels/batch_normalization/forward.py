"""MPSCNNBatchNormalization (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from openmps.core.data_source import copy_of
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.arguments import single
from openmps.core.kernel.checks import Images, check_command_buffer
from openmps.core.kernel.encode import Operation, Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import not_negative
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.rows import (
    ChannelStatePair,
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.batch_normalization.arguments import (
    are_images,
    check_channels,
    check_state,
    check_usable,
    refuse_arguments,
)
from openmps.kernels.batch_normalization.data_source import (
    Loaded,
    MPSCNNBatchNormalizationDataSource,
    Pair,
    load_parameters,
)
from openmps.kernels.batch_normalization.fused_neuron import FusedNeuron, NeuronProperty, check_neuron
from openmps.kernels.batch_normalization.state import Captured, MPSCNNBatchNormalizationState
from openmps.ops.batch_normalization import normalize
from openmps.ops.geometry import read

if TYPE_CHECKING:
    from openmps.core.neuron import MPSNNNeuronDescriptor
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_Pair = TypeVar("_Pair", bound=ChannelStatePair)
_STATES_FIRST = "Make a state with result_state and pass it as batch_normalization_state"


class MPSCNNBatchNormalization(NeuronProperty, MPSCNNKernel):
    """Batch normalization (MPSCNNBatchNormalization.h, macOS 10.13.4; fused neuron macOS 10.14).

    ``Y = neuron(gamma (X - mean) / sqrt(variance + epsilon) + beta)``, one gamma, beta, mean and variance a feature
    channel. Encoded with a state, mean and variance are those that `MPSCNNBatchNormalizationStatistics` left in it;
    without one they are the stored ones, from the data source or the last reload. gamma and beta are the kernel's own
    either way. Reads exactly `number_of_feature_channels` channels from `source_feature_channel_offset` on.

    Raises:
        MPSTypeError: The data source lacks a method, or returns no numbers.
        MPSArgumentError: It returns numbers for another count of channels.
    """

    _gradient_state_class = MPSCNNBatchNormalizationState

    def __init__(
        self,
        device: MTLDevice,
        data_source: MPSCNNBatchNormalizationDataSource,
        fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None,
    ) -> None:
        super().__init__(device)
        self._neuron = check_neuron(self.name, fused_neuron_descriptor)
        found = load_parameters(self.name, data_source, device)
        self._data_source = data_source
        self._channels, self._gamma_and_beta, self._mean_and_variance, self._epsilon = found
        self.label = data_source.label()

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def number_of_feature_channels(self) -> int:
        """Channels that are normalized."""
        return self._channels

    @property
    def epsilon(self) -> float:
        """Added to the variance. Initially the data source's, FLT_MIN if it has none."""
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = not_negative(self.name, "epsilon", value)

    @property
    def data_source(self) -> MPSCNNBatchNormalizationDataSource:
        """The data source that the kernel was made with."""
        return self._data_source

    @property
    def gamma_and_beta(self) -> Pair:
        """The buffers of gamma and beta; for those who extend the framework."""
        return self._gamma_and_beta

    @property
    def mean_and_variance(self) -> Pair:
        """The buffers of the stored mean and variance; for those who extend the framework."""
        return self._mean_and_variance

    def is_result_state_reused_across_batch(self) -> bool:
        """True: statistics and parameter gradients are those of the batch."""
        return True

    # --- reloads ----------------------------------------------------------------------------------------------------

    def reload_data_source(self, data_source: MPSCNNBatchNormalizationDataSource) -> None:
        """Read gamma, beta, mean and variance of ``data_source`` at once (deprecated in macOS 10.14).

        `data_source` stays the one that the kernel was made with, `epsilon` stays as it is.
        """
        found = self._reloaded(data_source)
        self._gamma_and_beta, self._mean_and_variance = found.gamma_and_beta, found.mean_and_variance

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """Read gamma and beta of the kernel's data source again, for encodes to come (macOS 10.14)."""
        self._gamma_and_beta = self._reloaded(self._data_source).gamma_and_beta

    def reload_mean_and_variance_from_data_source(self) -> None:
        """Read mean and variance of the kernel's data source again, for encodes to come (macOS 10.14)."""
        self._mean_and_variance = self._reloaded(self._data_source).mean_and_variance

    def _reloaded(self, source: MPSCNNBatchNormalizationDataSource) -> Loaded:
        # New buffers: work that is recorded already keeps the numbers that it was encoded with.
        found = load_parameters(self.name, source, self.device)
        if found.channels != self._channels:
            rule = f"must keep the kernel's {self._channels} feature channel(s)"
            remedy = "Make a new kernel for another count"
            raise MPSArgumentError(self.name, "data source", rule, f"{found.channels}", remedy)
        return found

    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: MPSCNNNormalizationGammaAndBetaState
    ) -> None:
        """Take gamma and beta of a state when ``command_buffer`` runs; takes one read of a temporary state."""
        kind = MPSCNNNormalizationGammaAndBetaState
        state = self._checked_pair(command_buffer, "gamma_and_beta_state", gamma_and_beta_state, kind)
        self._record_reload(command_buffer, self._gamma_and_beta, Pair(state.gamma, state.beta))
        state.count_read()

    def reload_mean_and_variance(
        self, command_buffer: CommandBuffer, mean_and_variance_state: MPSCNNNormalizationMeanAndVarianceState
    ) -> None:
        """Take mean and variance of a state when ``command_buffer`` runs (macOS 10.14); as `reload_gamma_and_beta`."""
        kind = MPSCNNNormalizationMeanAndVarianceState
        state = self._checked_pair(command_buffer, "mean_and_variance_state", mean_and_variance_state, kind)
        self._record_reload(command_buffer, self._mean_and_variance, Pair(state.mean, state.variance))
        state.count_read()

    def _checked_pair(self, command_buffer: CommandBuffer, argument: str, state: object, kind: type[_Pair]) -> _Pair:
        check_command_buffer(self.name, command_buffer, self.device)
        if not isinstance(state, kind):
            raise MPSTypeError(self.name, argument, f"must be an {kind.__name__}", type(state).__name__)
        state.check_usable(self.name, argument, command_buffer)
        state.check_holds(self.name, argument, self._channels)
        return state

    def _record_reload(self, command_buffer: CommandBuffer, own: Pair, given: Pair) -> None:
        channels = self._channels

        def work() -> None:
            for mine, theirs in zip(own, given, strict=True):
                if mine is not theirs:
                    mine.tensor(torch.float32).copy_(theirs.tensor(torch.float32, 0, channels))

        command_buffer.record(f"{self.name} reload", work)

    def _unshare(self) -> None:
        super()._unshare()
        pairs = (self._gamma_and_beta, self._mean_and_variance)
        rows = [[each.tensor(torch.float32).cpu().numpy() for each in pair] for pair in pairs]
        self._gamma_and_beta, self._mean_and_variance = (Pair.of(self.device, *pair) for pair in rows)
        self._data_source = copy_of(self._data_source, self.device)

    # --- encode -----------------------------------------------------------------------------------------------------

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        batch_normalization_state: MPSCNNBatchNormalizationState | MPSImage | None = None,
        destination_image: MPSImage | None = None,
        **unavailable: object,
    ) -> MPSImage:
        """Record the kernel for one image object, with the statistics of a state or the stored ones.

        Without ``destination_image`` the padding policy sizes the result, the allocator makes it, and it is returned.
        Without a state the destination may be the third argument. Takes one read of a temporary state.

        Raises:
            MPSTypeError: Destination states are asked for: the state is made by `result_state` beforehand.
        """
        refuse_arguments(self.name, unavailable, _STATES_FIRST)
        state, given = batch_normalization_state, destination_image
        if given is None and are_images(state):
            state, given = None, cast("MPSImage", state)
        source = single(self.name, "source_image", source_image)
        if given is not None:
            single(self.name, "destination_image", given)
        destination, _ = self._run(command_buffer, (source,), given, source_states=self._states(state, 1))
        assert isinstance(destination, MPSImage)
        return destination

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        batch_normalization_state: MPSCNNBatchNormalizationState
        | Sequence[MPSState]
        | Sequence[MPSImage]
        | None = None,
        destination_images: Sequence[MPSImage] | None = None,
        **unavailable: object,
    ) -> MPSImageBatch:
        """Record the kernel for a batch of images, or a piece of one, as one operation; otherwise as `encode`."""
        refuse_arguments(self.name, unavailable, _STATES_FIRST)
        state, given = batch_normalization_state, destination_images
        if given is None and are_images(state):
            state, given = None, cast("Sequence[MPSImage]", state)
        sources = as_batch(self.name, "source_images", source_images)
        targets = None if given is None else as_batch(self.name, "destination_images", given)
        destination, _ = self._run(command_buffer, (sources,), targets, source_states=self._states(state, len(sources)))
        assert isinstance(destination, MPSImageBatch)
        return destination

    def _states(self, state: object, images: int) -> MPSStateBatch | None:
        return None if state is None else MPSStateBatch([check_state(self.name, state)] * images)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self._channels

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self._channels

    def make_state(self) -> MPSNNGradientState:
        """A new state for one batch."""
        return MPSCNNBatchNormalizationState(self.device, self)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        fused = FusedNeuron.of(self.name, self._neuron, self._channels, self.device)
        captured = self._captured(states)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            region = read(values[0], source.window, source.edge_mode)
            return fused.value(normalize(region, captured.numbers())), None

        return operation

    def _captured(self, states: MPSStateBatch | None) -> Captured:
        if states is None:
            return Captured(self._gamma_and_beta, self._mean_and_variance, None, self._epsilon)
        state = check_state(self.name, states)
        check_channels(self.name, state, self._channels)
        return state.captured_with(self._gamma_and_beta, self._epsilon)

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        if source_states is None:
            return None
        state = check_state(self.name, source_states)
        state.record = plan.record
        return state.use_for_normalization(self._gamma_and_beta, self._epsilon)
