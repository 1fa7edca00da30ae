"""MPSCNNBatchNormalizationState: what one batch leaves from kernel to kernel.

Each encode decides on the calling thread, in encode order, whether its sums start anew or join those before; the queue
carries that out. So command buffers in flight never disagree about where a batch ends.
(MPSCNNBatchNormalization.h, macOS 10.13.4.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.resources import MPSStateResourceList
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.batch_normalization.data_source import Pair
from openmps.metal.memory import MTLBuffer
from openmps.ops.batch_normalization import Moments, Normalization, ParameterGradients, merged_moments

if TYPE_CHECKING:
    from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalization
    from openmps.metal.device import MTLDevice

_GAMMA, _BETA, _MEAN, _VARIANCE, _GAMMA_GRADIENT, _BETA_GRADIENT, _CORRECTION = range(7)


@dataclass(frozen=True, slots=True)
class Captured:
    """The buffers that one encode normalizes with; their numbers are those of its place in the queue."""

    gamma_and_beta: Pair
    mean_and_variance: Pair
    correction: MTLBuffer | None
    epsilon: float

    def numbers(self) -> Normalization:
        """What is in the buffers now."""
        (gamma, beta), (mean, variance) = (map(_row, pair) for pair in (self.gamma_and_beta, self.mean_and_variance))
        correction = torch.zeros_like(mean) if self.correction is None else _row(self.correction)
        return Normalization(Moments(mean, correction, variance), gamma, beta, self.epsilon)


@dataclass(slots=True)
class _Progress:
    """How far the encodes of a batch have come."""

    images: int = 0
    """Images whose statistics are in the state; 0 while it has the data source's."""
    pixels: int = 0
    statistics_are_open: bool = False
    """Whether further statistics join; a use of the statistics closes them."""
    gradient_images: int = 0
    """Images whose parameter gradients are in the state, for the present statistics."""
    gradients_are_open: bool = False
    has_gradients: bool = False
    has_parameters: bool = False
    """Whether a forward encode copied its gamma and beta into the state."""
    epsilon: float | None = None


class MPSCNNBatchNormalizationState(MPSNNGradientState):
    """Parameters, statistics and parameter gradients of one batch (MPSCNNBatchNormalization.h, macOS 10.13.4).

    Made by `MPSCNNBatchNormalization.result_state` or `temporary_result_state`; one object serves all images and all
    pieces of a batch. The order is statistics of all pieces, normalization of each, gradient statistics of all,
    gradient of each. A use of the statistics ends their batch: statistics that are encoded later start anew. Gradient
    statistics start anew after a gradient, or after new statistics. Until the first statistics, and after `reset`, mean
    and variance are those of the kernel, and gradients take them as constants.

    Buffers are float32, one number a channel. As resources the state holds gamma, beta, mean, variance, the gradients
    of gamma and beta, and what rounding took from the mean.
    """

    def __init__(self, device: MTLDevice, batch_normalization: MPSCNNBatchNormalization) -> None:
        size = 4 * batch_normalization.number_of_feature_channels
        super().__init__(device, resource_list=MPSStateResourceList(buffer_sizes=[size] * 7))
        self._batch_normalization = batch_normalization
        self._progress = _Progress()

    @classmethod
    def temporary_state(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: the state is made by the kernel."""
        remedy = "Use temporary_result_state of MPSCNNBatchNormalization"
        raise MPSTypeError(cls.__name__, "temporary_state", "is not offered by this class", None, remedy)

    @property
    def batch_normalization(self) -> MPSCNNBatchNormalization:
        """The kernel that made the state."""
        return self._batch_normalization

    @property
    def number_of_feature_channels(self) -> int:
        """Channels that the state has numbers for."""
        return self._batch_normalization.number_of_feature_channels

    def reset(self) -> None:
        """Forget what was accumulated: mean, variance, gamma and beta are the kernel's again, gradients are gone.

        Encodes to come see it; work that was recorded before does not.
        """
        self._progress = _Progress()

    def gamma(self) -> MTLBuffer:
        """The scales: those of the last normalization with this state, before the first one the kernel's."""
        return self._parameter(_GAMMA)

    def beta(self) -> MTLBuffer:
        """The shifts: those of the last normalization with this state, before the first one the kernel's."""
        return self._parameter(_BETA)

    def mean(self) -> MTLBuffer:
        """The batch's means; before the first statistics the kernel's."""
        return self._statistic(_MEAN)

    def variance(self) -> MTLBuffer:
        """The batch's variances, ``sum (x - mean)^2 / M``; before the first statistics the kernel's."""
        return self._statistic(_VARIANCE)

    def gradient_for_gamma(self) -> MTLBuffer | None:
        """dL/dgamma, a sum over the batch; None until gradient statistics were encoded."""
        return self._checked(_GAMMA_GRADIENT) if self._progress.has_gradients else None

    def gradient_for_beta(self) -> MTLBuffer | None:
        """dL/dbeta, a sum over the batch; None until gradient statistics were encoded."""
        return self._checked(_BETA_GRADIENT) if self._progress.has_gradients else None

    def _parameter(self, index: int) -> MTLBuffer:
        own = self._progress.has_parameters
        return self._checked(index) if own else self._batch_normalization.gamma_and_beta[index - _GAMMA]

    def _statistic(self, index: int) -> MTLBuffer:
        own = bool(self._progress.images)
        return self._checked(index) if own else self._batch_normalization.mean_and_variance[index - _MEAN]

    def _checked(self, index: int) -> MTLBuffer:
        buffer = self.resource_at_index(index)
        assert isinstance(buffer, MTLBuffer)
        return buffer

    # --- what an encode decides: for the kernels ----------------------------------------------------------------------

    def captured(self) -> Captured:
        """What a gradient encode normalizes with: parameters and epsilon of the forward encode, batch statistics."""
        progress, kernel = self._progress, self._batch_normalization
        own = self._pair(_GAMMA, _BETA) if progress.has_parameters else kernel.gamma_and_beta
        epsilon = kernel.epsilon if progress.epsilon is None else progress.epsilon
        return self.captured_with(own, epsilon)

    def captured_with(self, gamma_and_beta: Pair, epsilon: float) -> Captured:
        """What a forward encode with these parameters normalizes with."""
        if not self._progress.images:
            return Captured(gamma_and_beta, self._batch_normalization.mean_and_variance, None, epsilon)
        return Captured(gamma_and_beta, self._pair(_MEAN, _VARIANCE), self._own(_CORRECTION), epsilon)

    def add_statistics(self, images: int, pixels: int) -> Callable[[Moments], None]:
        """Statistics of ``pixels`` were encoded; returns how the work puts them in."""
        progress = self._progress
        joined = progress.statistics_are_open
        total = pixels + (progress.pixels if joined else 0)
        progress.images = images + (progress.images if joined else 0)
        progress.pixels = total
        progress.statistics_are_open = True
        progress.gradients_are_open = False
        progress.gradient_images = 0
        buffers = [self._own(index) for index in (_MEAN, _CORRECTION, _VARIANCE)]

        def keep(found: Moments) -> None:
            rows = [_row(buffer) for buffer in buffers]
            together = merged_moments(Moments(*rows), found, pixels / total) if joined else found
            for row, numbers in zip(rows, together, strict=True):
                row.copy_(numbers)

        return keep

    def use_for_normalization(self, gamma_and_beta: Pair, epsilon: float) -> Callable[[Any], None]:
        """A forward encode used the statistics; returns the work that leaves its parameters for the gradients."""
        self._progress.statistics_are_open = False
        self._progress.has_parameters = True
        self._progress.epsilon = epsilon
        own = self._pair(_GAMMA, _BETA)

        def keep(produced: Any) -> None:
            for mine, theirs in zip(own, gamma_and_beta, strict=True):
                _row(mine).copy_(_row(theirs))

        return keep

    def add_gradients(self, images: int) -> Callable[[ParameterGradients], None]:
        """Gradient statistics were encoded; returns how the work puts them in."""
        progress = self._progress
        joined = progress.gradients_are_open
        progress.gradient_images = images + (progress.gradient_images if joined else 0)
        progress.statistics_are_open = False
        progress.gradients_are_open = progress.has_gradients = True
        buffers = self._pair(_GAMMA_GRADIENT, _BETA_GRADIENT)

        def keep(found: ParameterGradients) -> None:
            for buffer, numbers in zip(buffers, found, strict=True):
                row = _row(buffer)
                row.add_(numbers) if joined else row.copy_(numbers)

        return keep

    def gradients(self, who: str) -> tuple[Pair, int] | None:
        """The complete parameter gradients and M, the pixels of the batch; None if the statistics are constants."""
        progress = self._progress
        if not progress.images:
            return None
        if progress.gradient_images != progress.images:
            raise MPSArgumentError(
                who,
                "batch_normalization_state",
                f"must have seen the gradients of all {progress.images} image(s) of its statistics",
                f"those of {progress.gradient_images}",
                "Encode MPSCNNBatchNormalizationStatisticsGradient for the whole batch first",
            )
        return self._pair(_GAMMA_GRADIENT, _BETA_GRADIENT), progress.pixels

    def use_for_gradient(self) -> None:
        """A gradient encode used statistics and parameter gradients."""
        self._progress.statistics_are_open = self._progress.gradients_are_open = False

    def _pair(self, first: int, second: int) -> Pair:
        return Pair(self._own(first), self._own(second))

    def _own(self, index: int) -> MTLBuffer:
        """A buffer of the state, whose reads were checked already."""
        assert self._device is not None
        buffer = self._slots[index].get(self._device, self.lives_on)
        assert isinstance(buffer, MTLBuffer)
        return buffer


def _row(buffer: MTLBuffer) -> Tensor:
    return buffer.tensor(torch.float32)
