"""MPSCNNBatchNormalization and the state that its stages share (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

from openmps.checks import Shown, of_kind, store
from openmps.core.data_source import FLT_MIN, copy_of
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.activation import activated
from openmps.core.kernel.arguments import are_images
from openmps.core.kernel.checks import Images, check_command_buffer
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.numbers import not_negative
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.resources import MPSStateResourceList
from openmps.core.state.rows import (
    ChannelStatePair,
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.state.state import MPSState
from openmps.core.weight_versions import Held, HoldsWeights
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.batch_normalization.data_source import (
    Loaded,
    MPSCNNBatchNormalizationDataSource,
    load_parameters,
)
from openmps.kernels.batch_normalization.pairs import GAMMA_AND_BETA, MEAN_AND_VARIANCE, HeldPair, Pair
from openmps.kernels.batch_normalization.stages import FusedNeuron, check_usable, normalized, refuse_arguments
from openmps.kernels.batch_normalization.state import ROWS, BatchState, Progress
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.version import Version
from openmps.ops.op import Value
from openmps.runtime.binding import Numbers
from openmps.runtime.derived import Dependents
from openmps.types import MPSCNNNeuronType

_STATES_FIRST = "Make a state with result_state and pass it as batch_normalization_state"


class MPSCNNBatchNormalizationState(BatchState):
    """Parameters, statistics and parameter gradients of one batch (MPSCNNBatchNormalization.h, macOS 10.13.4).

    Made by `MPSCNNBatchNormalization.result_state` or `temporary_result_state`; one object serves all images and all
    pieces of a batch. The order is statistics of all pieces, normalization of each, gradient statistics of all,
    gradient of each. A use of the statistics ends their batch: statistics that are encoded later start anew. Gradient
    statistics start anew after a gradient, or after new statistics. Until the first statistics, and after `reset`, mean
    and variance are those of the kernel, and gradients take them as constants.

    Buffers are float32, one number a channel. As resources the state holds gamma, beta, mean, variance, the gradients
    of gamma and beta, and what rounding took from the mean.

    After the example of `MPSCNNBatchNormalization`:

    >>> state.mean().contents().view(np.float32), state.variance().contents().view(np.float32)
    (array([3.], dtype=float32), array([4.], dtype=float32))
    >>> state.gradient_for_gamma() is None
    True
    """

    batch_normalization = Shown["MPSCNNBatchNormalization"]("_batch_normalization", "The kernel that made the state.")

    def __init__(self, device: MTLDevice, batch_normalization: MPSCNNBatchNormalization) -> None:
        if not isinstance(batch_normalization, MPSCNNBatchNormalization):
            of_kind(type(self).__name__, "batch_normalization", batch_normalization, MPSCNNBatchNormalization)
        size = 4 * batch_normalization.number_of_feature_channels
        super().__init__(device, resource_list=MPSStateResourceList(buffer_sizes=[size] * len(ROWS)))
        store(self, "_batch_normalization", batch_normalization)
        store(self, "_progress", Progress())
        store(self, "_own", {})

    @classmethod
    def temporary_state(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: the state is made by the kernel."""
        remedy = "Use temporary_result_state of MPSCNNBatchNormalization"
        raise MPSTypeError(cls.__name__, "temporary_state", "is not offered by this class", None, remedy)


# --- what the stages have in common -----------------------------------------------------------------------------------


def check_state(who: str, value: object) -> MPSCNNBatchNormalizationState:
    """The one state of a batch, given as itself or once for each image."""
    found = value
    if isinstance(value, MPSStateBatch):
        found = value.shared
    elif isinstance(value, Sequence) and not isinstance(value, str) and len({id(each) for each in value}) == 1:
        found = value[0]
    if not isinstance(found, MPSCNNBatchNormalizationState):
        rule = "must be the one MPSCNNBatchNormalizationState of the batch"
        got = None if value is None else type(value).__name__
        remedy = "Make it with result_state of the MPSCNNBatchNormalization"
        raise MPSTypeError(who, "batch_normalization_state", rule, got, remedy)
    return found


# --- the kernel -------------------------------------------------------------------------------------------------------


class MPSCNNBatchNormalization(
    FusedNeuron, MPSCNNKernel[MPSCNNBatchNormalizationState], HoldsWeights, leaves=MPSCNNBatchNormalizationState
):
    """Batch normalization (MPSCNNBatchNormalization.h, macOS 10.13.4; fused neuron macOS 10.14).

    ``Y = neuron(gamma (X - mean) / sqrt(variance + epsilon) + beta)``, one gamma, beta, mean and variance a feature
    channel. Encoded with a state, mean and variance are those that `MPSCNNBatchNormalizationStatistics` left in it;
    without one they are the stored ones, from the data source or the last reload. gamma and beta are the kernel's own
    either way. Reads exactly `number_of_feature_channels` channels from `source_feature_channel_offset` on.

    >>> import numpy as np
    >>> from openmps import MPSCNNBatchNormalization, MPSCNNBatchNormalizationStatistics, MPSImage, MPSImageBatch
    >>> from openmps import MTLCreateSystemDefaultDevice
    >>> class Source:  # of one channel, gamma 1 and beta 0; outside training mean 0 and variance 1
    ...     number_of_feature_channels = lambda self: 1
    ...     gamma = beta = mean = variance = label = lambda self: None
    ...     load = lambda self: True
    ...     purge = lambda self: None
    >>> device = MTLCreateSystemDefaultDevice()
    >>> normalization = MPSCNNBatchNormalization(device, Source())
    >>> normalization.destination_image_allocator = MPSImage.default_allocator()
    >>> images = MPSImageBatch.from_numpy(device, np.float32([1, 5]).reshape(2, 1, 1, 1))
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> state = normalization.result_state(images[0])
    >>> as_stored = normalization.encode_batch(command_buffer, images)
    >>> MPSCNNBatchNormalizationStatistics(device).encode_batch(command_buffer, images, state)
    >>> of_the_batch = normalization.encode_batch(command_buffer, images, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> as_stored.numpy().ravel(), of_the_batch.numpy().ravel()
    (array([1., 5.], dtype=float32), array([-1.,  1.], dtype=float32))

    Raises:
        MPSTypeError: The data source lacks a method, or returns no numbers.
        MPSArgumentError: It returns numbers for another count of channels.
    """

    epsilon = KernelProperty[float](
        FLT_MIN, not_negative, "Added to the variance. Initially the data source's, FLT_MIN if it has none."
    )

    _takes_all_channels = True
    number_of_feature_channels = Fixed[int]("Channels that are normalized.")
    data_source = Shown[MPSCNNBatchNormalizationDataSource](
        "_data_source", "The data source that the kernel was made with."
    )
    gamma_and_beta = Shown[Pair](
        "_gamma_and_beta.buffers", "The buffers of gamma and beta; for those who extend the framework."
    )
    mean_and_variance = Shown[Pair](
        "_mean_and_variance.buffers", "The buffers of the stored mean and variance; for those who extend the framework."
    )

    def __init__(
        self,
        device: MTLDevice,
        data_source: MPSCNNBatchNormalizationDataSource,
        fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None,
    ) -> None:
        super().__init__(device)
        self._fuse(fused_neuron_descriptor)
        found = load_parameters(self.name, data_source)
        self._data_source = data_source
        self._change(number_of_feature_channels=found.channels)
        self._gamma_and_beta = HeldPair.of(device, data_source, GAMMA_AND_BETA, found.gamma_and_beta)
        self._mean_and_variance = HeldPair.of(device, data_source, MEAN_AND_VARIANCE, found.mean_and_variance)
        self.epsilon = found.epsilon
        self.label = data_source.label()

    # --- properties -------------------------------------------------------------------------------------------------

    def is_result_state_reused_across_batch(self) -> bool:
        """True: statistics and parameter gradients are those of the batch."""
        return True

    # --- reloads ----------------------------------------------------------------------------------------------------

    def reload_data_source(self, data_source: MPSCNNBatchNormalizationDataSource) -> None:
        """Read gamma, beta, mean and variance of ``data_source`` at once (deprecated in macOS 10.14).

        `data_source` stays the one that the kernel was made with, `epsilon` stays as it is.
        """
        found = self._reloaded(data_source)
        self._gamma_and_beta.read(self.device, found.gamma_and_beta)
        self._mean_and_variance.read(self.device, found.mean_and_variance)

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """Read gamma and beta of the kernel's data source again, for encodes to come (macOS 10.14)."""
        self._gamma_and_beta.read(self.device, self._reloaded(self._data_source).gamma_and_beta)

    def reload_mean_and_variance_from_data_source(self) -> None:
        """Read mean and variance of the kernel's data source again, for encodes to come (macOS 10.14)."""
        self._mean_and_variance.read(self.device, self._reloaded(self._data_source).mean_and_variance)

    def _reloaded(self, source: MPSCNNBatchNormalizationDataSource) -> Loaded:
        found = load_parameters(self.name, source)
        if found.channels != self.number_of_feature_channels:
            rule = f"must keep the kernel's {self.number_of_feature_channels} feature channel(s)"
            raise MPSArgumentError(
                self.name, "data source", rule, found.channels, "Make a new kernel for another count"
            )
        return found

    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: MPSCNNNormalizationGammaAndBetaState
    ) -> None:
        """Take gamma and beta of a state when ``command_buffer`` runs; takes one read of a temporary state."""
        given, kind = gamma_and_beta_state, MPSCNNNormalizationGammaAndBetaState
        self._take(self._gamma_and_beta, command_buffer, "gamma_and_beta_state", given, kind)

    def reload_mean_and_variance(
        self, command_buffer: CommandBuffer, mean_and_variance_state: MPSCNNNormalizationMeanAndVarianceState
    ) -> None:
        """Take mean and variance of a state when ``command_buffer`` runs (macOS 10.14); as `reload_gamma_and_beta`."""
        given, kind = mean_and_variance_state, MPSCNNNormalizationMeanAndVarianceState
        self._take(self._mean_and_variance, command_buffer, "mean_and_variance_state", given, kind)

    def _take(
        self,
        pair: HeldPair,
        command_buffer: CommandBuffer,
        argument: str,
        state: object,
        kind: type[ChannelStatePair],
    ) -> None:
        who = self.name
        check_command_buffer(who, command_buffer, self._device)
        checked = of_kind(who, argument, state, kind)
        checked.check_usable(who, argument, command_buffer)
        checked.check_holds(who, argument, self.number_of_feature_channels)
        pair.take(command_buffer, who, checked)
        checked.count_read()

    # --- old numbers ------------------------------------------------------------------------------------------------

    @property
    def held_weights(self) -> Sequence[Held]:
        """The versions of both pairs; for those who schedule kernels."""
        return self._gamma_and_beta.held, self._mean_and_variance.held

    def parameter_versions(self) -> Sequence[Version]:
        """See `ImageKernel`: those of both pairs."""
        return self._gamma_and_beta.version, self._mean_and_variance.version

    def holds_stale_weights(self) -> bool:
        """Whether the numbers held are others than the data source gives now; as a convolution's. Our addition."""
        found = load_parameters(self.name, self._data_source)
        pairs = ((self._gamma_and_beta, found.gamma_and_beta), (self._mean_and_variance, found.mean_and_variance))
        return not all(pair.equal(rows) for pair, rows in pairs if pair.held in self.held_weights)

    def dependents(self, name: str) -> Dependents:
        """What follows from the stored rows ``name`` is one of; for those who schedule kernels."""
        return (self._gamma_and_beta if name in ROWS[:2] else self._mean_and_variance).dependents

    def _unshare(self) -> None:
        super()._unshare()
        self._data_source = copy_of(self._data_source, self.device)
        self._gamma_and_beta = self._gamma_and_beta.copied(self.device, self._data_source)
        self._mean_and_variance = self._mean_and_variance.copied(self.device, self._data_source)

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
        return self._single(command_buffer, (source_image,), given, source_states=self._states(state, 1))

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
        sources = self._as_batch("source_image", source_images)
        return self._batched(command_buffer, (sources,), given, source_states=self._states(state, len(sources)))

    def _states(self, state: object, images: int) -> MPSStateBatch | None:
        return None if state is None else MPSStateBatch([check_state(self.name, state)] * images)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self.number_of_feature_channels

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.number_of_feature_channels

    def make_state(self) -> MPSNNGradientState:
        """A new state for one batch."""
        return MPSCNNBatchNormalizationState(self.device, self)

    def _given(self, states: MPSStateBatch) -> bool:
        """Whether the state has statistics of a batch."""
        return check_state(self.name, states).has_statistics

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        has_statistics: bool | None = at.given
        # A rectifier gives numbers that it is given, or 0.
        is_last = self._neuron is None or self._neuron.is_identity or self._neuron[:2] == (MPSCNNNeuronType.RELU, 0.0)
        region = at.read(images[0])
        z = normalized(at, region, self.epsilon, has_statistics=bool(has_statistics), is_rounded=is_last)
        if has_statistics is not None:
            for name in ("gamma", "beta"):
                at.gives(name, at.buffer(name))
        return activated(at, self, z, self._neuron, self.number_of_feature_channels)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        used = self._gamma_and_beta.held, self._mean_and_variance.held
        if source_states is not None:
            state = check_state(self.name, source_states)
            state.check_channels(self.name, self.number_of_feature_channels)
            store(state, "record", plan.record)
            used = used[:1] if state.pixels else used
            state.use_for_normalization(self.epsilon)
        for held in used:
            if held.version < held.lineage.latest or held.has_warned:
                held.warn(self.name)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        if name in ("gamma", "beta"):
            return Numbers(self._gamma_and_beta.buffers[name == "beta"])
        if states is None:
            return Numbers(self._mean_and_variance.buffers[name == "variance"])
        return check_state(self.name, states).used(name)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Numbers:
        """Where the state keeps gamma and beta for the gradients."""
        return check_state(self.name, states).own(name)
