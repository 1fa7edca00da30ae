"""Instance normalization and its gradient (MPSCNNInstanceNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from openmps.checks import Shown
from openmps.kernels.group_normalization.base import ImageNormalization, ImageNormalizationGradient, ScalesAndShifts
from openmps.kernels.group_normalization.state import ImageNormalizationState
from openmps.metal.device import MTLDevice


@runtime_checkable
class MPSCNNInstanceNormalizationDataSource(ScalesAndShifts, Protocol):
    """Scales and shifts of an instance normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    Checked structurally: any object with these methods will do. Optional methods: ``epsilon()``, FLT_MIN if it is
    missing; ``load()``, which must return True, and ``purge()``, around each reading (macOS 10.15);
    ``update_gamma_and_beta(command_buffer, instance_normalization_state_batch)``, which gets the state of each image,
    sums their gradients and returns an `MPSCNNNormalizationGammaAndBetaState` or None (on the device; on the CPU the
    command buffer is None and the result a bool); ``copy(device=None)``.
    """


class MPSCNNInstanceNormalizationGradientState(ImageNormalizationState):
    """What the normalization of one image leaves for its gradient (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    Made by the kernel's ``result_state…`` methods. The gradients are those of one image; whoever updates sums them
    over the batch.

    >>> import numpy as np
    >>> from openmps import MPSCNNInstanceNormalization, MPSCNNInstanceNormalizationGradient, MPSImage
    >>> from openmps import MTLCreateSystemDefaultDevice
    >>> class Source:  # gamma 1 and beta 0
    ...     number_of_feature_channels = lambda self: 1
    ...     gamma = beta = label = lambda self: None
    >>> device = MTLCreateSystemDefaultDevice()
    >>> image = MPSImage.from_numpy(device, np.float32([1, 5]).reshape(1, 2, 1))
    >>> flow = MPSImage.from_numpy(device, np.float32([1, 0]).reshape(1, 2, 1))
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> kernel = MPSCNNInstanceNormalization(device, Source())
    >>> result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    >>> found = MPSCNNInstanceNormalizationGradient(device).encode(command_buffer, flow, image, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.gradient_for_gamma.contents().view(np.float32), state.gradient_for_beta.contents().view(np.float32)
    (array([-1.], dtype=float32), array([1.], dtype=float32))
    """

    @property
    def instance_normalization(self) -> MPSCNNInstanceNormalization:
        """The kernel that made the state."""
        assert isinstance(self._kernel, MPSCNNInstanceNormalization)
        return self._kernel


class MPSCNNInstanceNormalization(
    ImageNormalization[MPSCNNInstanceNormalizationGradientState], leaves=MPSCNNInstanceNormalizationGradientState
):
    """Y = gamma (X - mean) / sqrt(variance + epsilon) + beta, for each image and channel.

    (MPSCNNInstanceNormalization.h, macOS 10.13.4.) Mean and population variance are those of all pixels of the source
    image, whatever `offset` and clip rectangle choose of the result; pixels read outside do not count in them. Reads
    the data source's number of channels, from `source_feature_channel_offset` on; more may be there. The same in
    training and in inference. With the default epsilon, FLT_MIN, a constant image gives beta.

    Raises:
        MPSTypeError: ``data_source`` lacks methods, or gives something else than numbers.
        MPSArgumentError: Its load() fails, or its numbers are not one a channel.
    """

    _is_grouped = False

    data_source = Shown[MPSCNNInstanceNormalizationDataSource](
        "_data_source", "The data source that the kernel was made with."
    )

    def __init__(self, device: MTLDevice, data_source: MPSCNNInstanceNormalizationDataSource) -> None:
        super().__init__(device, data_source)

    def make_state(self) -> MPSCNNInstanceNormalizationGradientState:
        """A new state for one image, or with its ``stand_for`` for those of a batch."""
        return MPSCNNInstanceNormalizationGradientState(self.device, self, self.numbers, self.settings)

    def reload_data_source(self, data_source: MPSCNNInstanceNormalizationDataSource) -> None:
        """Read gamma and beta from any data source, at once (deprecated in macOS 10.14). `data_source` stays."""
        self._reload(data_source)


class MPSCNNInstanceNormalizationGradient(ImageNormalizationGradient, of=MPSCNNInstanceNormalization):
    """The derivative of instance normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4).

    With Z the normalized source before gamma and beta, s its deviation, A = gamma G, means over the source's pixels::

        dX = (A - mean(A) - Z mean(A Z)) / s        dgamma = sum G Z        dbeta = sum G

    dX is the result; dgamma and dbeta of each image are added to its `MPSCNNInstanceNormalizationGradientState`, which
    also gives gamma and epsilon: no encode goes without. The secondary image is the forward source.
    """

    _state_class = MPSCNNInstanceNormalizationGradientState
