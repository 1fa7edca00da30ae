"""What instance and group normalization share: each image is normalized by itself, over groups of channels."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from openmps.checks import Shown, of_kind
from openmps.convention import Conventions
from openmps.core.data_source import FLT_MIN, copy_of
from openmps.core.image.storage import Shape, Stack
from openmps.core.kernel.checks import Images, check_command_buffer
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import not_negative
from openmps.core.state.batch import MPSStateBatch, StateT
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.weight_versions import Held, HoldsWeights
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.group_normalization.parameters import GammaAndBeta, Settings, load_parameters
from openmps.kernels.group_normalization.state import Added, ImageNormalizationState, adder, filled_rows
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import Clear, Overwrite
from openmps.ops.normalization.group_normalization import GroupNormalization, GroupNormalizationGradient
from openmps.ops.normalization.sample_variance import ScaledRow, population_factor
from openmps.ops.op import Value
from openmps.runtime.binding import Numbers
from openmps.runtime.dispatch import record_op
from openmps.runtime.step_trace import at_each_step, check_reusable


class ScalesAndShifts(Protocol):
    """The methods that data sources of both have."""

    def gamma(self) -> Any:
        """C scales, one a feature channel, or None for ones."""
        ...

    def beta(self) -> Any:
        """C shifts, one a feature channel, or None for zeros."""
        ...

    def number_of_feature_channels(self) -> int:
        """C, the channels of the images to be normalized."""
        ...

    def label(self) -> str | None:
        """A name for the kernel, or None."""
        ...


class ImageNormalization(MPSCNNKernel[StateT], HoldsWeights):
    """The base of the forward kernels; subclasses say whether their data sources have groups."""

    _is_grouped: ClassVar[bool]

    epsilon = KernelProperty[float](
        FLT_MIN, not_negative, "Added to the variance; the data source's to begin with, FLT_MIN if that has none."
    )
    _groups = Setting[int]()
    _channels = Setting[int]()

    numbers = Shown[GammaAndBeta]("_numbers", "Where gamma and beta are; for those who extend the framework.")

    def __init__(self, device: MTLDevice, data_source: Any) -> None:
        super().__init__(device)
        given = load_parameters(self.name, data_source, is_grouped=self._is_grouped)
        self._data_source = data_source
        self.label = data_source.label()
        self._numbers = GammaAndBeta.of(self.device, data_source, given)
        self._groups, self._channels, self.epsilon = given.groups, given.channels, given.epsilon

    # --- properties -------------------------------------------------------------------------------------------------

    _takes_all_channels = True
    _shown = ("number_of_feature_channels",)
    number_of_feature_channels = Shown[int]("_channels", "Channels that are normalized: the data source's.")

    @property
    def settings(self) -> Settings:
        """What a gradient kernel must know; for those who extend the framework."""
        return Settings(self._groups, self.epsilon)

    # --- gamma and beta ---------------------------------------------------------------------------------------------

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """Read the data source again, at once: gamma, beta and its groups. `epsilon` stays (macOS 10.14)."""
        self._reload(self._data_source)

    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: MPSCNNNormalizationGammaAndBetaState
    ) -> None:
        """Take the numbers of a state when ``command_buffer`` runs; takes one read of a temporary state."""
        state = gamma_and_beta_state
        of_kind(self.name, "gamma_and_beta_state", state, MPSCNNNormalizationGammaAndBetaState)
        check_command_buffer(self.name, command_buffer, self.device)
        state.check_usable(self.name, "gamma_and_beta_state", command_buffer)
        state.check_holds(self.name, "gamma_and_beta_state", self._numbers.channels)
        check_reusable(command_buffer, self.name, "new numbers, which kernels take note of")
        numbers, gamma = self._numbers, state.gamma
        given = (Numbers(buffer, 0, numbers.channels) for buffer in (gamma, state.beta))
        record_op(command_buffer, f"{self.name} reload", Overwrite(), (numbers.gamma, numbers.beta, *given))
        at_each_step(command_buffer, numbers.held.take, gamma)
        state.count_read()

    def _reload(self, source: Any) -> None:
        given = load_parameters(self.name, source, is_grouped=self._is_grouped)
        self._numbers.reload(self.name, given)
        self._groups = given.groups

    @property
    def held_weights(self) -> tuple[Held]:
        """The version of gamma and beta; for those who schedule kernels."""
        return (self._numbers.held,)

    def holds_stale_weights(self) -> bool:
        """Whether gamma or beta held are others than the data source gives now. Our addition.

        Reads the data source, and the numbers as they are in memory: call it when the command buffers are done.
        """
        return not self._numbers.equal(load_parameters(self.name, self._data_source, is_grouped=self._is_grouped))

    def _unshare(self) -> None:
        super()._unshare()
        self._data_source = copy_of(self._data_source, self.device)
        self._numbers = self._numbers.copy(self.device, self._data_source)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _new_states(self, command_buffer: CommandBuffer | None, first: Images, shape: Shape) -> MPSStateBatch | None:
        states = super()._new_states(command_buffer, first, shape)
        if states is not None and isinstance(states.shared, ImageNormalizationState):
            states.shared.stand_for(len(states))
        return states

    def _needed_channels(self, index: int, available: int) -> int:
        return self._channels

    def _parameters(self) -> Settings:
        return self.settings

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        count = _numbers_of(at.sources[0], self._groups)
        how = _Spread.of(self.conventions, self.epsilon, count)
        normalization = GroupNormalization(self._groups, how.epsilon, at.window, at.edge_mode)
        result, statistics = normalization(images[0], how.scaled(at.buffer("gamma")), at.buffer("beta"))
        at.saves(statistics)
        return result

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return self._numbers.gamma if name == "gamma" else self._numbers.beta

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        held = self._numbers.held
        if held.version < held.lineage.latest or held.has_warned:
            held.warn(self.name)
        for state in () if destination_states is None else destination_states.counted():
            assert isinstance(state, ImageNormalizationState)
            state.use(self._numbers)

    def _record(
        self,
        command_buffer: CommandBuffer,
        plan: Plan,
        inputs: tuple[Stack, ...],
        output: Stack | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        super()._record(command_buffer, plan, inputs, output, source_states, destination_states)
        rows = [] if destination_states is None else filled_rows(destination_states, self._channels)
        if rows:
            record_op(command_buffer, f"{self.name} clear gradients", Clear(), rows)


class _Forward(NamedTuple):
    """What a plan depends on of the states besides their records."""

    settings: tuple[Settings, ...]
    channels: int
    is_apart: bool
    """Whether each image has a state of its own, which an encode has filled in."""


class ImageNormalizationGradient(MPSCNNGradientKernel):
    """The base of the gradient kernels: everything comes from the states of the forward encode."""

    _state_class: ClassVar[type[ImageNormalizationState]]

    @property
    def is_state_modified(self) -> bool:
        """True: the gradients of gamma and beta are added to the states."""
        return True

    def _own(self, states: MPSStateBatch | None) -> list[ImageNormalizationState]:
        """The states, if they are those of the forward kernel."""
        kind = self._state_class
        given = [] if states is None else states.counted()
        own = [state for state in given if isinstance(state, kind)]
        if not given or len(own) < len(given):
            got = "no state" if not given else type(given[0]).__name__
            remedy = "Pass the states that the forward kernel's encode made: gamma, beta and epsilon are in them"
            raise MPSTypeError(self.name, "gradient_state", f"must be {kind.__name__}", got, remedy)
        return own

    def _given(self, states: MPSStateBatch) -> Given:
        own = self._own(states)
        records = {id(state.record): state.record for state in own if state.record is not None}
        is_apart = len(states) == 1 or states.count_unique() == len(states)
        is_apart = is_apart and all(state.record is not None for state in own)
        settings = tuple(dict.fromkeys(state.settings for state in own))
        empty = next((repr(state) for state in own if state.record is None), None)
        forward = _Forward(settings, own[0].numbers.channels, is_apart)
        return Given(tuple(records.values()), len(states), empty, forward)

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        given: Given = at.given or self._given(MPSStateBatch())
        forward = cast("_Forward", given.more)
        settings, *others = forward.settings
        if others:
            raise self._of_several_kernels(len(forward.settings))
        if at.sources[1].channels != forward.channels:
            rule = f"must have {forward.channels} feature channels read, as the forward kernel's source"
            remedy = "Set the source feature channel offsets and maximum counts"
            raise MPSArgumentError(self.name, self._source_arguments[1], rule, at.sources[1].channels, remedy)
        where = (at.geometry.source, at.geometry.data, at.edge_mode)
        # The states hold the statistics of the images and channels that the forward kernel read.
        read = _place(at.sources[1])
        is_known = forward.is_apart and all(_place(record.sources[0]) == read for record in given.records)
        saved = at.saved if is_known else None
        how = _Spread.of(self.conventions, settings.epsilon, _numbers_of(at.sources[1], settings.groups))
        differentiate = GroupNormalizationGradient(settings.groups, how.epsilon, *where)
        result, for_gamma, for_beta = differentiate(gradient, source, how.scaled(at.buffer("gamma")), saved)
        at.gives("gamma", how.scaled(for_gamma))
        at.gives("beta", for_beta)
        return result

    def _of_several_kernels(self, count: int) -> MPSArgumentError:
        rule = "must come from one kernel with the same epsilon and groups"
        remedy = "Encode their images one by one"
        return MPSArgumentError(self.name, "gradient_states", rule, f"{count} different ones", remedy)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        kernels = {state.numbers for state in self._own(source_states)}
        if len(kernels) > 1:
            raise self._of_several_kernels(len(kernels))

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return self._own(states)[0].numbers.gamma

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Added:
        assert states is not None
        return adder(states, name, self._own(states)[0].numbers.channels, self.device)


class _Spread(NamedTuple):
    """How the population's variance is taken for that of a sample of M numbers: ``v M / (M - 1) + epsilon``.

    That is ``(v + epsilon (M - 1) / M) M / (M - 1)``: with another epsilon, only gamma has a factor.
    """

    epsilon: float
    factor: float = 1.0
    """Of gamma, and of its gradient."""

    @classmethod
    def of(cls, conventions: Conventions, epsilon: float, count: int) -> _Spread:
        """By the convention; one number has no variance."""
        if conventions["variance"] == "population":
            return cls(epsilon)
        share = population_factor(count) or math.nan
        # Not below the smallest normal number, so that a constant image gives beta on devices that flush others.
        return cls(max(epsilon * share, min(epsilon, FLT_MIN)), math.sqrt(share))

    def scaled(self, gamma: Value) -> Value:
        """Gamma, or its gradient, as the kernel's formula takes it."""
        return gamma if self.factor == 1.0 else ScaledRow(self.factor)(gamma)


def _numbers_of(read: SourceRecord, groups: int) -> int:
    """M: pixels of a whole image times the channels of a group."""
    return read.extent.height * read.extent.width * (read.channels // groups)


def _place(read: SourceRecord) -> tuple[int, ...]:
    return (read.extent.width, read.extent.height, read.first_image, read.channel, read.channels)
