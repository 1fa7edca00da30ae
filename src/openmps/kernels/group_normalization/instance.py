"""Instance normalization and its gradient (MPSCNNInstanceNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from openmps.kernels.group_normalization.base import ImageNormalization, ImageNormalizationGradient
from openmps.kernels.group_normalization.state import ImageNormalizationState

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


@runtime_checkable
class MPSCNNInstanceNormalizationDataSource(Protocol):
    """Scales and shifts of an instance normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    Checked structurally: any object with these methods will do. Optional methods: ``epsilon()``, FLT_MIN if it is
    missing; ``load()``, which must return True, and ``purge()``, around each reading (macOS 10.15);
    ``update_gamma_and_beta(command_buffer, instance_normalization_state_batch)``, which gets the state of each image,
    sums their gradients and returns an `MPSCNNNormalizationGammaAndBetaState` or None (on the device; on the CPU the
    command buffer is None and the result a bool); ``copy(device=None)``.
    """

    def gamma(self) -> Any:
        """C scales, or None for ones."""
        ...

    def beta(self) -> Any:
        """C shifts, or None for zeros."""
        ...

    def number_of_feature_channels(self) -> int:
        """C, the channels of the images to be normalized."""
        ...

    def label(self) -> str | None:
        """A name for the kernel, or None."""
        ...


class MPSCNNInstanceNormalizationGradientState(ImageNormalizationState):
    """What the normalization of one image leaves for its gradient (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    Made by the kernel's ``result_state…`` methods. The gradients are those of one image; whoever updates sums them
    over the batch.
    """

    @property
    def instance_normalization(self) -> MPSCNNInstanceNormalization:
        """The kernel that made the state."""
        assert isinstance(self._kernel, MPSCNNInstanceNormalization)
        return self._kernel


class MPSCNNInstanceNormalization(ImageNormalization):
    """Y = gamma (X - mean) / sqrt(variance + epsilon) + beta, for each image and channel.

    (MPSCNNInstanceNormalization.h, macOS 10.13.4.) Mean and population variance are those of all pixels of the source
    image, whatever `offset` and clip rectangle choose of the result; pixels read outside do not count in them. Reads
    the data source's number of channels, from `source_feature_channel_offset` on; more may be there. The same in
    training and in inference. With the default epsilon, FLT_MIN, a constant image gives beta.

    Raises:
        MPSTypeError: ``data_source`` lacks methods, or gives something else than numbers.
        MPSArgumentError: Its load() fails, or its numbers are not one a channel.
    """

    _gradient_state_class = MPSCNNInstanceNormalizationGradientState
    _is_grouped = False

    def __init__(self, device: MTLDevice, data_source: MPSCNNInstanceNormalizationDataSource) -> None:
        super().__init__(device, data_source)

    @property
    def data_source(self) -> MPSCNNInstanceNormalizationDataSource:
        """The data source that the kernel was made with."""
        return self._data_source

    def make_state(self) -> MPSCNNInstanceNormalizationGradientState:
        """A new state for one image, or with its ``stand_for`` for those of a batch."""
        return MPSCNNInstanceNormalizationGradientState(self.device, self)

    def reload_data_source(self, data_source: MPSCNNInstanceNormalizationDataSource) -> None:
        """Read gamma and beta from any data source, at once (deprecated in macOS 10.14). `data_source` stays."""
        self._reload(data_source)


class MPSCNNInstanceNormalizationGradient(ImageNormalizationGradient):
    """The derivative of instance normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    With Z the normalized source before gamma and beta, s its deviation, A = gamma G, means over the source's pixels::

        dX = (A - mean(A) - Z mean(A Z)) / s        dgamma = sum G Z        dbeta = sum G

    dX is the result; dgamma and dbeta of each image are added to its `MPSCNNInstanceNormalizationGradientState`, which
    also gives gamma and epsilon: no encode goes without. The secondary image is the forward source.
    """

    _forward_kernels = (MPSCNNInstanceNormalization,)
    _state_class = MPSCNNInstanceNormalizationGradientState
