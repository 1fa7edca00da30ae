"""Ready-made data sources of instance and group normalization, whose scales and shifts an optimizer trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import described, whole
from openmps.core.data_source import ArraySource
from openmps.core.numbers import not_negative
from openmps.core.state.batch import as_state_batch
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.group_normalization.state import ImageNormalizationState, adder
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.elements import RowSums
from openmps.runtime.binding import Numbers
from openmps.runtime.dispatch import record_op
from openmps.runtime.step_trace import declared
from openmps.selectors import name_arguments
from openmps.training.normalization_sources import channel_row
from openmps.training.optimized import Optimized, OptimizerFactory

Row = Any
_PARTS: tuple[str, str] = ("gamma", "beta")


class _Sums(MPSState):
    """Gamma, beta and the sums of their gradients over a batch, as optimizers take them."""

    def __init__(self, device: MTLDevice, values: tuple[MTLBuffer, MTLBuffer]) -> None:
        size = values[0].length
        self._buffers = (*values, device.new_buffer(size), device.new_buffer(size))
        super().__init__(resources=[*self._buffers])

    def gamma(self) -> MTLBuffer:
        """The scales."""
        return self._buffers[0]

    def beta(self) -> MTLBuffer:
        """The shifts."""
        return self._buffers[1]

    def gradient_for_gamma(self) -> MTLBuffer:
        """Summed over the images."""
        return self._buffers[2]

    def gradient_for_beta(self) -> MTLBuffer:
        """Summed over the images."""
        return self._buffers[3]


@name_arguments
class TrainableInstanceNormalizationDataSource(ArraySource, Optimized):
    """A data source of an instance normalization that trains gamma and beta on the device.

    None is gamma 1 or beta 0. ``epsilon`` is added to the variances. ``optimizer`` makes the optimizer,
    ``lambda device: MPSNNOptimizerAdam(device, 1e-3)``; it takes the gradients summed over the images of a batch.
    `gamma` and `beta` bring the numbers back, waiting for nothing: call them when the command buffers are done. Other
    graphs see them after ``reload_from_data_sources()``. One data source belongs to one layer.

    ``amsgrad`` trains with Adam in its AMSGrad form, which keeps the maximum of the velocities, too.

    Raises:
        MPSArgumentError: A row is not one number a feature channel.
        MPSTypeError: It holds no real numbers, or ``optimizer`` is no function.
    """

    _parts = _PARTS

    def __init__(
        self,
        number_of_feature_channels: int,
        gamma: Row = None,
        beta: Row = None,
        label: str | None = None,
        *,
        epsilon: float = 1e-5,
        optimizer: OptimizerFactory,
        amsgrad: bool = False,
    ) -> None:
        name, rule = type(self).__name__, "must be a positive integer"
        self._channels = whole(name, "number_of_feature_channels", number_of_feature_channels, rule=rule)
        given = zip(_PARTS, (gamma, beta), strict=True)
        self._rows: dict[str, NDArray[np.float32]] = {
            part: channel_row(name, part, each, self._channels) for part, each in given
        }
        self._epsilon = not_negative(name, "epsilon", epsilon)
        self._label = label
        self._train_with(optimizer, amsgrad=amsgrad)
        self._sums: _Sums | None = None
        self._result: MPSCNNNormalizationGammaAndBetaState | None = None

    def __repr__(self) -> str:
        return described(self, f"{self._channels} channels", epsilon=self._epsilon, optimizer=self._optimizer)

    def number_of_feature_channels(self) -> int:
        """The channels of the images to be normalized."""
        return self._channels

    def epsilon(self) -> float:
        """What is added to the variances."""
        return self._epsilon

    def label(self) -> str | None:
        """The layer's name."""
        return self._label

    def gamma(self) -> NDArray[np.float32]:
        """The scales as they are now."""
        return self.arrays()["gamma"]

    def beta(self) -> NDArray[np.float32]:
        """The shifts as they are now."""
        return self.arrays()["beta"]

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """`gamma` and `beta` by these names."""
        if self._sums is not None:
            buffers = (self._sums.gamma(), self._sums.beta())
            read = (np.array(buffer.contents().view(np.float32)) for buffer in buffers)
            self._rows = dict(zip(_PARTS, read, strict=True))
        return dict(self._rows)

    def _take(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self._rows, self._sums = dict(arrays), None
        self._version.advance()

    def _on(self, device: MTLDevice) -> tuple[_Sums, MPSCNNNormalizationGammaAndBetaState]:
        """Where the numbers and the sums of their gradients are."""
        if self._sums is None or self._result is None or self._sums.gamma().device is not device:
            gamma, beta = (device.new_buffer(data=array) for array in self.arrays().values())
            self._sums = _Sums(device, (gamma, beta))
            self._result = MPSCNNNormalizationGammaAndBetaState(gamma, beta)
        return self._sums, self._result

    @declared
    def update_gamma_and_beta(
        self, command_buffer: CommandBuffer | None, gradient_states: Sequence[MPSState]
    ) -> MPSCNNNormalizationGammaAndBetaState:
        """Record one optimizer step by the gradients of all images, and return the state of the new scales and shifts.

        Raises:
            MPSTypeError: There is no command buffer: the training style is that of the CPU; or the states are not
                those of images that were normalized.
        """
        command_buffer = self._check_step(command_buffer)
        states = as_state_batch(self._name, "gradient_states", gradient_states)
        if not all(isinstance(state, ImageNormalizationState) for state in states.counted()):
            got = sorted({type(state).__name__ for state in states.counted()})
            raise MPSTypeError(self._name, "gradient_states", "must be those of an image normalization", got)
        sums, result = self._on(command_buffer.device)
        targets = (sums.gradient_for_gamma(), sums.gradient_for_beta())
        for part, target in zip(_PARTS, targets, strict=True):
            rows = adder(states, part, self._channels, command_buffer.device).parts
            operands = [Numbers(target, 0, self._channels), *rows]
            record_op(command_buffer, f"{self._name} {part} of a batch", RowSums(), operands)
        optimizer = self._optimizer_on(command_buffer, [self._channels] * 2)
        optimizer.encode(
            command_buffer,
            batch_normalization_gradient_state=sums,
            batch_normalization_source_state=sums,
            result_state=result,
            **self._accumulators,
        )
        places = [Numbers(each, 0, self._channels) for each in (result.gamma, result.beta)]
        if self._shards is not None:
            self._shards.note(places)
        self._record_average(command_buffer, _PARTS, places)
        return result


@name_arguments
class TrainableGroupNormalizationDataSource(TrainableInstanceNormalizationDataSource):
    """A data source of a group normalization that trains gamma and beta, one number a channel each, on the device.

    ``number_of_groups`` divides the channels; the rest is as `TrainableInstanceNormalizationDataSource` has it.
    """

    def __init__(
        self,
        number_of_feature_channels: int,
        number_of_groups: int,
        gamma: Row = None,
        beta: Row = None,
        label: str | None = None,
        *,
        epsilon: float = 1e-5,
        optimizer: OptimizerFactory,
        amsgrad: bool = False,
    ) -> None:
        more: dict[str, Any] = {"epsilon": epsilon, "optimizer": optimizer, "amsgrad": amsgrad}
        super().__init__(number_of_feature_channels, gamma, beta, label, **more)
        name = type(self).__name__
        self._groups = whole(name, "number_of_groups", number_of_groups, rule="must be a positive integer")
        if self._channels % self._groups:
            raise MPSArgumentError(name, "number_of_groups", f"must divide {self._channels} channels", number_of_groups)

    def number_of_groups(self) -> int:
        """Groups of consecutive channels that are normalized together."""
        return self._groups
