"""What the encodes of one batch normalization share: how far a batch has come, and the numbers that are its own.

This is the one place where it is decided which numbers an encode uses, where a batch starts and where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openmps.checks import Shown, store
from openmps.core.state.gradient import MPSNNGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLBuffer
from openmps.runtime.binding import Numbers

ROWS = ("gamma", "beta", "mean", "variance", "gradient_for_gamma", "gradient_for_beta", "correction")
"""What a state holds, in the order of its resources."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the encodes of a batch have come."""

    images: int = 0
    """Images whose statistics are in the state; 0 while it has the data source's."""
    pixels: int = 0
    share: float = 1.0
    """How much of the pixels the last statistics brought."""
    is_sample: bool = False
    """Whether variances were divided by one less than there are pixels."""
    statistics_are_open: bool = False
    """Whether further statistics join; a use of the statistics closes them."""
    gradient_images: int = 0
    """Images whose parameter gradients are in the state, for the present statistics."""
    gradients_are_open: bool = False
    has_gradients: bool = False
    is_shared: bool = False
    """Whether the statistics are those of several processes."""
    has_parameters: bool = False
    """Whether a forward encode copied its gamma and beta into the state."""
    epsilon: float | None = None


class BatchState(MPSNNGradientState):
    """The base of the state: what users read of a batch, and what encodes decide."""

    number_of_feature_channels = Shown[int](
        "_batch_normalization.number_of_feature_channels", "Channels that the state has numbers for."
    )
    share = Shown[float]("_progress.share", "How much of all pixels the last statistics brought.")
    gradient_images = Shown[int](
        "_progress.gradient_images", "Images whose parameter gradients the state holds, or will when it is filled in."
    )
    pixels = Shown[int]("_progress.pixels", "M, the pixels that the statistics were made of.")
    has_sample_variance = Shown[bool]("_progress.is_sample", "Whether variances were divided by M - 1, not by M.")

    @property
    def pixels_before(self) -> int:
        """Those of M that were there before the last statistics."""
        return self.pixels - round(self.share * self.pixels)

    _batch_normalization: Any
    """The kernel that made it."""
    _progress: Progress
    _own: dict[str, Numbers]
    """What its rows are bound to."""

    def reset(self) -> None:
        """Forget what was accumulated: mean, variance, gamma and beta are the kernel's again, gradients are gone.

        Encodes to come see it; work that was recorded before does not.
        """
        self._progress = Progress()

    def gamma(self) -> MTLBuffer:
        """The scales: those of the last normalization with this state, before the first one the kernel's."""
        return self._row("gamma", self._progress.has_parameters)

    def beta(self) -> MTLBuffer:
        """The shifts: those of the last normalization with this state, before the first one the kernel's."""
        return self._row("beta", self._progress.has_parameters)

    def mean(self) -> MTLBuffer:
        """The batch's means; before the first statistics the kernel's."""
        return self._row("mean", self.has_statistics)

    def variance(self) -> MTLBuffer:
        """The batch's variances, ``sum (x - mean)^2 / M``; before the first statistics the kernel's."""
        return self._row("variance", self.has_statistics)

    def gradient_for_gamma(self) -> MTLBuffer | None:
        """dL/dgamma, a sum over the batch; None until gradient statistics were encoded."""
        return self._row("gradient_for_gamma") if self._progress.has_gradients else None

    def gradient_for_beta(self) -> MTLBuffer | None:
        """dL/dbeta, a sum over the batch; None until gradient statistics were encoded."""
        return self._row("gradient_for_beta") if self._progress.has_gradients else None

    def _row(self, name: str, is_own: bool = True) -> MTLBuffer:
        if not is_own:
            return self.used(name).buffer
        buffer = self.resource_at_index(ROWS.index(name))
        assert isinstance(buffer, MTLBuffer)
        return buffer

    # --- what an encode decides: for the kernels ----------------------------------------------------------------------

    @property
    def has_statistics(self) -> bool:
        """Whether mean and variance are those of a batch; else they are the kernel's, and constants."""
        return bool(self._progress.images)

    has_shared_statistics = Shown[bool](
        "_progress.is_shared", "Whether mean and variance are those of the shares of several processes."
    )

    @property
    def awaits_gradient(self) -> bool:
        """Whether a gradient encode is yet to use the parameter gradients."""
        return self._progress.gradients_are_open and self.has_statistics

    @property
    def joins(self) -> tuple[bool, bool]:
        """Whether statistics, and gradient statistics, that are encoded now join those before."""
        return self._progress.statistics_are_open, self._progress.gradients_are_open

    @property
    def epsilon(self) -> float:
        """That of the last normalization; before the first one the kernel's."""
        epsilon = self._progress.epsilon
        return self._batch_normalization.epsilon if epsilon is None else epsilon

    def own(self, name: str) -> Numbers:
        """A row of the state, whose reads were checked already."""
        slot, known = self._slots[ROWS.index(name)], self._own.get(name)
        if known is None or known.buffer is not slot.resource:
            assert self._device is not None
            buffer = slot.get(self._device, self.lives_on)
            assert isinstance(buffer, MTLBuffer)
            known = self._own[name] = Numbers(buffer)
        return known

    def used(self, name: str) -> Numbers:
        """The row that a gradient encode normalizes with: parameters of the forward encode, batch statistics."""
        progress, kernel = self._progress, self._batch_normalization
        if name in ROWS[:2] and not progress.has_parameters:
            return Numbers(kernel.gamma_and_beta[ROWS.index(name)])
        if name in ROWS[2:4] and not progress.images:
            return Numbers(kernel.mean_and_variance[ROWS.index(name) - 2])
        return self.own(name)

    def update_operands(self) -> Sequence[Numbers]:
        """See `MPSState`: the gradients of gamma and beta, and gamma and beta; nothing until all of them are there."""
        names = ("gradient_for_gamma", "gradient_for_beta", "gamma", "beta")
        is_complete = self._progress.has_gradients and self._progress.has_parameters
        return [self.own(name) for name in names] if is_complete else []

    def add_statistics(self, images: int, pixels: int, *, joins_always: bool = False, is_sample: bool = False) -> None:
        """Statistics of ``pixels`` are encoded, which join those before, if there are any, always or while they can."""
        progress = self._progress
        joined = progress.statistics_are_open or (joins_always and self.has_statistics)
        total = pixels + (progress.pixels if joined else 0)
        self._go_on(
            pixels=total,
            images=images + (progress.images if joined else 0),
            share=pixels / total,
            is_sample=is_sample,
            statistics_are_open=True,
            is_shared=False,
            gradients_are_open=False,
            gradient_images=0,
        )

    def share_statistics(self, who: str, processes: int) -> None:
        """The statistics become those of as many pixels in each of some processes; nothing joins them any more."""
        progress = self._progress
        if not progress.statistics_are_open:
            rule = "must hold statistics that nothing has used yet"
            remedy = "Encode MPSCNNBatchNormalizationStatistics with it first"
            raise MPSArgumentError(who, "batch_normalization_state", rule, self.name, remedy)
        if progress.is_sample:
            rule, got = "must hold variances of the population", "those of a sample, by the convention variance"
            remedy = "Make the statistics kernel outside of the convention's block"
            raise MPSArgumentError(who, "batch_normalization_state", rule, got, remedy)
        self._go_on(pixels=processes * progress.pixels, is_shared=True, statistics_are_open=False)

    def use_for_normalization(self, epsilon: float) -> None:
        """A forward encode uses the statistics, and leaves its parameters for the gradients."""
        self._go_on(statistics_are_open=False, has_parameters=True, epsilon=epsilon)

    def add_gradients(self, images: int) -> None:
        """Gradient statistics are encoded."""
        progress = self._progress
        before = progress.gradient_images if progress.gradients_are_open else 0
        self._go_on(
            gradient_images=images + before, statistics_are_open=False, gradients_are_open=True, has_gradients=True
        )

    def use_for_gradient(self, who: str) -> None:
        """A gradient encode uses statistics and parameter gradients; raise unless these are complete."""
        progress = self._progress
        if progress.images and progress.gradient_images != progress.images:
            rule = f"must have seen the gradients of all {progress.images} image(s) of its statistics"
            got = f"those of {progress.gradient_images}"
            remedy = "Encode MPSCNNBatchNormalizationStatisticsGradient for the whole batch first"
            raise MPSArgumentError(who, "batch_normalization_state", rule, got, remedy)
        self._go_on(statistics_are_open=False, gradients_are_open=False)

    def _go_on(self, **changes: Any) -> None:
        store(self, "_progress", replace(self._progress, **changes))

    def check_channels(self, who: str, channels: int) -> None:
        """Raise unless the state has numbers for exactly as many channels."""
        if self.number_of_feature_channels != channels:
            rule = f"must be of a batch normalization of {channels} feature channel(s), as many as are read"
            got = f"one of {self.number_of_feature_channels}, made by {self._batch_normalization.name}"
            raise MPSArgumentError(who, "batch_normalization_state", rule, got)
