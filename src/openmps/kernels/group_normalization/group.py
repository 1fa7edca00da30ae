"""Group normalization and its gradient (MPSCNNGroupNormalization.h, macOS 10.15)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from openmps.checks import Shown
from openmps.kernels.group_normalization.base import ImageNormalization, ImageNormalizationGradient, ScalesAndShifts
from openmps.kernels.group_normalization.state import ImageNormalizationState
from openmps.metal.device import MTLDevice


@runtime_checkable
class MPSCNNGroupNormalizationDataSource(ScalesAndShifts, Protocol):
    """Scales, shifts and groups of a group normalization (MPSCNNGroupNormalization.h, macOS 10.15).

    Checked structurally: any object with these methods will do. Optional methods: ``epsilon()``, FLT_MIN if it is
    missing; ``load()``, which must return True, and ``purge()``, around each reading;
    ``update_gamma_and_beta(command_buffer, group_normalization_state_batch)``, which gets the state of each image,
    sums their gradients and returns an `MPSCNNNormalizationGammaAndBetaState` or None (on the device; on the CPU the
    command buffer is None and the result a bool); ``copy(device=None)``.
    """

    def number_of_groups(self) -> int:
        """Groups of consecutive channels that are normalized together; C must be a multiple of it."""
        ...


class MPSCNNGroupNormalizationGradientState(ImageNormalizationState):
    """What the normalization of one image leaves for its gradient (MPSCNNGroupNormalization.h, macOS 10.15).

    Made by the kernel's ``result_state…`` methods. The gradients are those of one image; whoever updates sums them
    over the batch.

    >>> import numpy as np
    >>> from openmps import MPSCNNGroupNormalization, MPSCNNGroupNormalizationGradient, MPSImage
    >>> from openmps import MTLCreateSystemDefaultDevice
    >>> class Source:  # gamma 1 and beta 0
    ...     number_of_feature_channels = lambda self: 2
    ...     number_of_groups = lambda self: 1
    ...     gamma = beta = label = lambda self: None
    >>> device = MTLCreateSystemDefaultDevice()
    >>> image = MPSImage.from_numpy(device, np.float32([1, 5]).reshape(1, 1, 2))
    >>> flow = MPSImage.from_numpy(device, np.float32([1, 0]).reshape(1, 1, 2))
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> kernel = MPSCNNGroupNormalization(device, Source())
    >>> result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    >>> found = MPSCNNGroupNormalizationGradient(device).encode(command_buffer, flow, image, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.gradient_for_gamma.contents().view(np.float32), state.gradient_for_beta.contents().view(np.float32)
    (array([-1.,  0.], dtype=float32), array([1., 0.], dtype=float32))
    """

    @property
    def group_normalization(self) -> MPSCNNGroupNormalization:
        """The kernel that made the state."""
        assert isinstance(self._kernel, MPSCNNGroupNormalization)
        return self._kernel


class MPSCNNGroupNormalization(
    ImageNormalization[MPSCNNGroupNormalizationGradientState], leaves=MPSCNNGroupNormalizationGradientState
):
    """Y = gamma (X - mean) / sqrt(variance + epsilon) + beta, for each image and group of consecutive channels.

    (MPSCNNGroupNormalization.h, macOS 10.15.) Mean and population variance are those of all pixels of a group's
    channels in the source image, whatever `offset` and clip rectangle choose of the result; pixels read outside do not
    count in them. Gamma and beta are one a channel. Reads the data source's number of channels, from
    `source_feature_channel_offset` on; more may be there. The same in training and in inference. With the default
    epsilon, FLT_MIN, a constant image gives beta.

    Raises:
        MPSTypeError: ``data_source`` lacks methods, or gives something else than numbers.
        MPSArgumentError: Its load() fails, its numbers are not one a channel, or its groups do not divide the channels.
    """

    _is_grouped = True

    data_source = Shown[MPSCNNGroupNormalizationDataSource](
        "_data_source", "The data source that the kernel was made with."
    )

    number_of_groups = Shown[int]("_groups", "Groups of channels, as the data source said when it was read last.")

    def __init__(self, device: MTLDevice, data_source: MPSCNNGroupNormalizationDataSource) -> None:
        super().__init__(device, data_source)

    def make_state(self) -> MPSCNNGroupNormalizationGradientState:
        """A new state for one image, or with its ``stand_for`` for those of a batch."""
        return MPSCNNGroupNormalizationGradientState(self.device, self, self.numbers, self.settings)


class MPSCNNGroupNormalizationGradient(ImageNormalizationGradient, of=MPSCNNGroupNormalization):
    """The derivative of group normalization (MPSCNNGroupNormalization.h, macOS 10.15).

    With Z the normalized source before gamma and beta, s its group's deviation, A = gamma G, means over the pixels of
    the group's channels::

        dX = (A - mean(A) - Z mean(A Z)) / s        dgamma = sum G Z        dbeta = sum G

    dX is the result; dgamma and dbeta, one a channel, of each image are added to its
    `MPSCNNGroupNormalizationGradientState`, which also gives gamma, epsilon and groups: no encode goes without. The
    secondary image is the forward source.
    """

    _state_class = MPSCNNGroupNormalizationGradientState
