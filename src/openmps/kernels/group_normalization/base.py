"""What instance and group normalization share: each image is normalized by itself, over groups of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from openmps.core.data_source import copy_of
from openmps.core.image.storage import Target
from openmps.core.kernel.checks import Images, check_command_buffer
from openmps.core.kernel.encode import Operation, Plan
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import not_negative
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.group_normalization.parameters import GammaAndBeta, load_parameters
from openmps.kernels.group_normalization.state import ImageNormalizationState, Settings, adder, clearer
from openmps.ops import group_normalization as ops

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class ImageNormalization(MPSCNNKernel):
    """The base of the forward kernels; subclasses say whether their data sources have groups."""

    _is_grouped: ClassVar[bool]

    def __init__(self, device: MTLDevice, data_source: Any) -> None:
        super().__init__(device)
        given = load_parameters(self.name, data_source, is_grouped=self._is_grouped)
        self._data_source = data_source
        self.label = data_source.label()
        self._numbers = GammaAndBeta(self.device, given.gamma, given.beta)
        self._groups = given.groups
        self._epsilon = given.epsilon

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """Added to the variance; the data source's to begin with, FLT_MIN if that has none."""
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = not_negative(self.name, "epsilon", value)

    @property
    def settings(self) -> Settings:
        """What a gradient kernel must know; for those who extend the framework."""
        return Settings(self._numbers, self._groups, self._epsilon)

    # --- gamma and beta ---------------------------------------------------------------------------------------------

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """Read the data source again, at once: gamma, beta and its groups. `epsilon` stays (macOS 10.14)."""
        self._reload(self._data_source)

    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: MPSCNNNormalizationGammaAndBetaState
    ) -> None:
        """Take the numbers of a state when ``command_buffer`` runs; takes one read of a temporary state."""
        state = gamma_and_beta_state
        if not isinstance(state, MPSCNNNormalizationGammaAndBetaState):
            rule = "must be an MPSCNNNormalizationGammaAndBetaState"
            raise MPSTypeError(self.name, "gamma_and_beta_state", rule, type(state).__name__)
        check_command_buffer(self.name, command_buffer, self.device)
        state.check_usable(self.name, "gamma_and_beta_state", command_buffer)
        state.check_holds(self.name, "gamma_and_beta_state", self._numbers.channels)
        numbers, gamma, beta = self._numbers, state.gamma, state.beta
        command_buffer.record(f"{self.name} reload", lambda: numbers.take(gamma, beta))
        state.count_read()

    def _reload(self, source: Any) -> None:
        given = load_parameters(self.name, source, is_grouped=self._is_grouped)
        self._numbers.reload(self.name, given)
        self._groups = given.groups

    def _unshare(self) -> None:
        super()._unshare()
        self._numbers = self._numbers.copy(self.device)
        self._data_source = copy_of(self._data_source, self.device)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _result_states(
        self,
        command_buffer: CommandBuffer | None,
        sources: tuple[Images, ...],
        source_states: MPSStateBatch | None,
        destination: Images | None,
    ) -> MPSStateBatch | None:
        states = super()._result_states(command_buffer, sources, source_states, destination)
        if states is not None and isinstance(states.shared, ImageNormalizationState):
            states.shared.stand_for(len(states))
        return states

    def _needed_channels(self, index: int, available: int) -> int:
        return self._numbers.channels

    def _parameters(self) -> Settings:
        return self.settings

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        numbers, groups, epsilon = self.settings

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, Tensor]:
            return ops.group_normalization(
                values[0],
                numbers.gamma,
                numbers.beta,
                source.window,
                source.edge_mode,
                groups=groups,
                epsilon=epsilon,
            )

        return operation

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        keep = super()._keeper(plan, source_states, destination_states)
        if keep is None or destination_states is None:
            return keep
        clear = clearer(destination_states, self._numbers.channels)

        def keep_statistics(statistics: Tensor) -> None:
            clear()
            keep(statistics)

        return keep_statistics


class ImageNormalizationGradient(MPSCNNGradientKernel):
    """The base of the gradient kernels: everything comes from the states of the forward encode."""

    _state_class: ClassVar[type[ImageNormalizationState]]

    @property
    def is_state_modified(self) -> bool:
        """True: the gradients of gamma and beta are added to the states."""
        return True

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        numbers, groups, epsilon = self._settings(states)
        source = sources[1]
        if source.channels != numbers.channels:
            rule = f"must have {numbers.channels} feature channels read, as the forward kernel's source"
            remedy = "Set the source feature channel offsets and maximum counts"
            raise MPSArgumentError(self.name, self._source_arguments[1], rule, source.channels, remedy)
        is_remembered = _reads_alike(states, source)

        def differentiate(gradient: Tensor, image: Tensor, saved: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            statistics = saved if is_remembered and saved is not None and len(saved) == len(gradient) else None
            if statistics is None:
                statistics = ops.group_statistics(image, groups=groups, epsilon=epsilon)
            found = ops.group_normalization_gradient(
                gradient, image, numbers.gamma, statistics, geometry.source, geometry.data, geometry.edge_mode
            )
            return found.source, (found.gamma, found.beta)

        return differentiate

    def _settings(self, states: MPSStateBatch | None) -> Settings:
        """What the forward kernel of all states worked with."""
        kind = self._state_class
        given = [] if states is None else states.counted()
        settings = {state.settings for state in given if isinstance(state, kind)}
        if not given or any(not isinstance(state, kind) for state in given):
            got = "no state" if not given else type(given[0]).__name__
            remedy = "Pass the states that the forward kernel's encode made: gamma, beta and epsilon are in them"
            raise MPSTypeError(self.name, "gradient_state", f"must be {kind.__name__}", got, remedy)
        if len(settings) > 1:
            rule = "must come from one kernel with the same epsilon and groups"
            remedy = "Encode their images one by one"
            raise MPSArgumentError(self.name, "gradient_states", rule, f"{len(settings)} different ones", remedy)
        return settings.pop()

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        if source_states is None:
            return None
        add = adder(source_states, self.device)
        return lambda gradients: add(*gradients)


def _reads_alike(states: MPSStateBatch | None, source: SourceRecord) -> bool:
    """Whether the states hold the statistics of just the images and channels that the gradient kernel reads."""
    if states is None or (len(states) > 1 and states.count_unique() != len(states)):
        return False
    for state in states.counted():
        record = state.record if isinstance(state, ImageNormalizationState) else None
        if record is None:
            return False
        read = record.sources[0]
        same = (read.extent.width, read.extent.height, read.first_image, read.channel, read.channels)
        if same != (source.extent.width, source.extent.height, source.first_image, source.channel, source.channels):
            return False
    return True
