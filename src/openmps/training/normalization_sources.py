"""Ready-made data sources of batch normalization: fixed arrays, and numbers that an optimizer trains."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from openmps.checks import Shown, described, flag, number, optional_text, store, whole
from openmps.core.arrays import numbers, row, variances
from openmps.core.data_source import ArraySource
from openmps.core.numbers import not_negative
from openmps.core.state.rows import (
    ChannelStatePair,
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.errors import MPSArgumentError, MPSMemoryError
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization, MPSCNNBatchNormalizationState
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.normalization.batch_normalization import RunningAverages
from openmps.ops.normalization.sample_variance import sample_factor
from openmps.runtime.binding import Number, Numbers
from openmps.runtime.dispatch import record_op
from openmps.runtime.step_trace import check_each_step, declared, depends_on
from openmps.selectors import name_arguments
from openmps.training.optimized import Optimized, OptimizerFactory

_Pair = TypeVar("_Pair", bound=ChannelStatePair)
Row = NDArray[Any] | Sequence[float] | None
_DEFAULTS = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}
_CHECKS = {"variance": variances}


@name_arguments
class ArrayBatchNormalizationDataSource(ArraySource):
    """A data source over arrays of one number a feature channel; None is gamma 1, beta 0, mean 0 or variance 1.

    The arrays are copied, as float32. ``epsilon`` is added to the variance.
    """

    _parts = tuple(_DEFAULTS)

    def __init__(
        self,
        number_of_feature_channels: int,
        gamma: Row = None,
        beta: Row = None,
        mean: Row = None,
        variance: Row = None,
        label: str | None = None,
        *,
        epsilon: float = 1e-5,
    ) -> None:
        name, rule = type(self).__name__, "must be a positive integer"
        self._channels = whole(name, "number_of_feature_channels", number_of_feature_channels, rule=rule)
        given = dict(zip(_DEFAULTS, (gamma, beta, mean, variance), strict=True))
        self._rows = {part: channel_row(name, part, each, self._channels) for part, each in given.items()}
        self._epsilon = not_negative(name, "epsilon", epsilon)
        self._label = optional_text(type(self).__name__, "label", label)

    def __repr__(self) -> str:
        channels = f"{self._channels} channels"
        return described(self, channels, epsilon=self._epsilon, optimizer=getattr(self, "_optimizer", None))

    def number_of_feature_channels(self) -> int:
        """The channels of the images to be normalized."""
        return self._channels

    def gamma(self) -> NDArray[np.float32]:
        """The scales."""
        return self._rows["gamma"]

    def beta(self) -> NDArray[np.float32]:
        """The shifts."""
        return self._rows["beta"]

    def mean(self) -> NDArray[np.float32]:
        """The means to normalize with outside training."""
        return self._rows["mean"]

    def variance(self) -> NDArray[np.float32]:
        """The variances to normalize with outside training."""
        return self._rows["variance"]

    def epsilon(self) -> float:
        """What is added to the variance."""
        return self._epsilon

    def label(self) -> str | None:
        """The layer's name."""
        return self._label

    if TYPE_CHECKING:
        # A subclass may have them. This class has not: what fixed arrays offer must not be taken for an update.

        def update_gamma_and_beta(
            self, command_buffer: CommandBuffer | None, batch_normalization_state: MPSCNNBatchNormalizationState
        ) -> MPSCNNNormalizationGammaAndBetaState | bool | None:
            """New scales and shifts; see `MPSCNNBatchNormalizationDataSource`."""
            ...

        def update_mean_and_variance(
            self, command_buffer: CommandBuffer | None, batch_normalization_state: MPSCNNBatchNormalizationState
        ) -> MPSCNNNormalizationMeanAndVarianceState | bool | None:
            """New stored means and variances; see `MPSCNNBatchNormalizationDataSource`."""
            ...

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """`gamma`, `beta`, `mean` and `variance` by these names."""
        return {"gamma": self.gamma(), "beta": self.beta(), "mean": self.mean(), "variance": self.variance()}


def channel_row(who: str, part: str, given: Row, channels: int) -> NDArray[np.float32]:
    """One of the rows of a normalization as a copy; of None its default."""
    if given is None:
        try:
            return np.full(channels, _DEFAULTS[part], np.float32)
        except (MemoryError, ValueError) as error:  # more than an array can be asked for
            rule = "needs more memory than there is"
            raise MPSMemoryError(who, "number_of_feature_channels", rule, channels) from error
    values = row(who, part, numbers(who, part, given), channels, f"must hold {channels} numbers, one a feature channel")
    return _CHECKS[part](who, part, values) if part in _CHECKS else values


@name_arguments
class TrainableBatchNormalizationDataSource(ArrayBatchNormalizationDataSource, Optimized):
    """A data source that trains gamma and beta on the device, and keeps running means and variances there.

    ``optimizer`` makes the optimizer of gamma and beta, ``lambda device: MPSNNOptimizerAdam(device, 1e-3)``. With the
    mean and the population variance of a batch of M pixels, once a batch::

        mean     += momentum (mean of the batch - mean)
        variance += momentum (variance of the batch M / (M - 1) - variance)

    `gamma`, `beta`, `mean` and `variance` bring the numbers back, waiting for nothing: call them when the command
    buffers are done. Other graphs see them after ``reload_from_data_sources()``. One data source belongs to one layer.

    ``amsgrad`` trains with Adam in its AMSGrad form, which keeps the maximum of the velocities, too. Without
    ``trains_gamma`` beta alone is trained, and gamma stays.
    """

    momentum = Shown[float]("_momentum", "How far the running statistics move to those of a batch, 0 to 1.")
    trains_gamma = Shown[bool]("_trains_gamma", "Whether gamma is trained beside beta.")

    def __init__(
        self,
        number_of_feature_channels: int,
        gamma: Row = None,
        beta: Row = None,
        mean: Row = None,
        variance: Row = None,
        label: str | None = None,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        optimizer: OptimizerFactory,
        amsgrad: bool = False,
        trains_gamma: bool = True,
    ) -> None:
        super().__init__(number_of_feature_channels, gamma, beta, mean, variance, label, epsilon=epsilon)
        self._trains_gamma = flag(type(self).__name__, "trains_gamma", trains_gamma)
        self._momentum = number(type(self).__name__, "momentum", momentum)
        if not 0 <= self._momentum <= 1:
            raise MPSArgumentError(type(self).__name__, "momentum", "must be 0 to 1", momentum)
        self._train_with(optimizer, amsgrad=amsgrad)
        self._buffers: dict[str, MTLBuffer] = {}
        self._states: dict[Any, tuple[tuple[MTLBuffer, MTLBuffer], Any]] = {}
        self._updated: tuple[weakref.ref[Any], Any] | None = None

    def gamma(self) -> NDArray[np.float32]:
        """The scales as they are now."""
        return self._now("gamma")

    def beta(self) -> NDArray[np.float32]:
        """The shifts as they are now."""
        return self._now("beta")

    def mean(self) -> NDArray[np.float32]:
        """The running means as they are now."""
        return self._now("mean")

    def variance(self) -> NDArray[np.float32]:
        """The running variances as they are now."""
        return self._now("variance")

    def _now(self, part: str) -> NDArray[np.float32]:
        buffer = self._buffers.get(part)
        if buffer is not None:
            self._rows[part] = np.array(buffer.contents().view(np.float32))
        return self._rows[part]

    def _take(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self._rows = dict(arrays)
        self._buffers = {}
        self._version.advance()

    def _on(self, device: MTLDevice, first: str, second: str) -> tuple[MTLBuffer, MTLBuffer]:
        """Where two of the rows are updated."""
        for part in (first, second):
            buffer = self._buffers.get(part)
            if buffer is None or buffer.device is not device:
                self._buffers[part] = device.new_buffer(data=self._now(part))
        return self._buffers[first], self._buffers[second]

    # --- updates ------------------------------------------------------------------------------------------------------

    @declared
    def update_gamma_and_beta(
        self, command_buffer: CommandBuffer | None, batch_normalization_state: MPSCNNBatchNormalizationState
    ) -> MPSCNNNormalizationGammaAndBetaState:
        """Record one optimizer step and return the state of the new scales and shifts.

        Raises:
            MPSTypeError: There is no command buffer: the training style is that of the CPU.
            MPSArgumentError: Another layer with this data source was updated on the same command buffer: its step
                would be lost.
        """
        command_buffer = self._check_step(command_buffer)
        kernel = batch_normalization_state.batch_normalization
        check_each_step(command_buffer, lambda step: self._check_layer(step, kernel))
        result = self._state_of(MPSCNNNormalizationGammaAndBetaState, command_buffer.device, "gamma", "beta")
        trained = result if self._trains_gamma else self._beside_gamma(result)
        optimizer = self._optimizer_on(command_buffer, [self._channels] * 2)
        optimizer.encode(
            command_buffer,
            batch_normalization_state=batch_normalization_state,
            result_state=trained,
            **self._accumulators,
        )
        if self._shards is not None:
            self._shards.note([Numbers(each, 0, self._channels) for each in (trained.gamma, trained.beta)])
        places = [Numbers(each, 0, self._channels) for each in (result.gamma, result.beta)]
        self._record_average(command_buffer, ("gamma", "beta"), places)
        return result

    @declared
    def update_mean_and_variance(
        self, command_buffer: CommandBuffer | None, batch_normalization_state: MPSCNNBatchNormalizationState
    ) -> MPSCNNNormalizationMeanAndVarianceState:
        """Record one step of the running averages and return the state of the new means and variances.

        Raises:
            MPSTypeError: There is no command buffer: the training style is that of the CPU.
            MPSArgumentError: The batch has a single pixel, which has no variance.
        """
        command_buffer = self._check_update(command_buffer)
        state = batch_normalization_state
        if state.pixels == 1:
            rule = "must be of at least two pixels, for one has no variance"
            raise MPSArgumentError(self._name, "batch", rule, "1 image of 1x1", "Train with larger batches or images")
        result = self._state_of(MPSCNNNormalizationMeanAndVarianceState, command_buffer.device, "mean", "variance")
        if state.has_statistics:
            own = (Numbers(result.mean), Numbers(result.variance), state.used("mean"), state.used("variance"))
            factor = 1.0 if state.has_sample_variance else sample_factor(state.pixels)
            operands = (*own, Number(factor))
            record_op(command_buffer, f"{self._name} average", RunningAverages(self._momentum), operands)
            places = [Numbers(each, 0, self._channels) for each in (result.mean, result.variance)]
            self._record_average(command_buffer, ("mean", "variance"), places)
        depends_on(command_buffer, self._version)
        return result

    def _state_of(self, kind: Callable[[MTLBuffer, MTLBuffer], _Pair], device: MTLDevice, *parts: str) -> _Pair:
        """The state over two of the rows: the same one, as long as these are where they were."""
        buffers = self._on(device, *parts)
        known = self._states.get(kind)
        if known is None or known[0] != buffers:
            known = self._states[kind] = (buffers, kind(*buffers))
        return known[1]

    def _beside_gamma(self, state: MPSCNNNormalizationGammaAndBetaState) -> MPSCNNNormalizationGammaAndBetaState:
        """What takes the new beta where ``state`` has it, and the gamma that nobody wants somewhere else."""
        buffers = state.gamma, state.beta
        known = self._states.get(self._beside_gamma.__name__)
        if known is None or known[0] != buffers:
            unwanted = state.gamma.device.new_buffer(state.gamma.length)
            known = buffers, MPSCNNNormalizationGammaAndBetaState(unwanted, state.beta)
            self._states[self._beside_gamma.__name__] = known
        return known[1]

    def _check_layer(self, command_buffer: CommandBuffer, kernel: MPSCNNBatchNormalization) -> None:
        """Raise if the layer is not the one that was updated before on the same command buffer."""
        if self._updated is not None and self._updated[0]() is command_buffer and self._updated[1]() is not kernel:
            rule = "must be of one layer, for the step of another one would be lost"
            remedy = "Give each layer a data source of its own"
            raise MPSArgumentError(self._name, "batch_normalization_state", rule, "a second layer", remedy)
        store(self, "_updated", (weakref.ref(command_buffer), weakref.ref(kernel)))
