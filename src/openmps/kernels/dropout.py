"""Dropout and its gradient (MPSCNNDropout.h, macOS 10.13.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openmps.checks import of_kind
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.counted import SEED, STEP, CountedKernel
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.metal.pending import wait_until_written
from openmps.ops.op import Value
from openmps.ops.pointwise.dropout import Dropout, DropoutMask
from openmps.selectors import takes
from openmps.types import MTLSize

_EVERY_NUMBER = MTLSize(1, 1, 1)


class _DropoutParameters(MPSKernel):
    """The parameters that dropout and its gradient share."""

    keep_probability = Fixed[float]("Probability that a number is kept.")
    seed = Fixed[int]("The key of the random numbers.")
    mask_stride_in_pixels = Fixed[MTLSize](
        "Width: x, height: y, depth: channels. 1 draws a mask value each; 0 shares one along that axis."
    )

    @takes()
    def __init__(
        self,
        device: MTLDevice,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: MTLSize = _EVERY_NUMBER,
    ) -> None:
        super().__init__(device)
        who = self.name
        if not isinstance(keep_probability, int | float) or not 0 < keep_probability <= 1:
            raise MPSArgumentError(who, "keep_probability", "must lie in (0, 1]", repr(keep_probability))
        SEED(who, "seed", seed)
        of_kind(who, "mask_stride_in_pixels", mask_stride_in_pixels, MTLSize)
        strides = (mask_stride_in_pixels.width, mask_stride_in_pixels.height, mask_stride_in_pixels.depth)
        if any(stride not in (0, 1) for stride in strides):
            raise MPSArgumentError(who, "mask_stride_in_pixels", "must be 0 or 1 on each axis", strides)
        self._change(keep_probability=float(keep_probability), seed=seed, mask_stride_in_pixels=mask_stride_in_pixels)


class MPSCNNDropoutGradientState(MPSNNGradientState):
    """The mask of a dropout encode (MPSCNNDropout.h, macOS 10.13.4); one state for a batch holds every image's mask.

    >>> dropout = mps.MPSCNNDropout(device, keep_probability=0.5, seed=1)
    >>> result, state = dropout.encode(command_buffer, x, destination_state_is_temporary=False)
    >>> dropped = mps.MPSCNNDropoutGradient(device, keep_probability=0.5, seed=1).encode(command_buffer, x, x, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.is_temporary, state.read_count
    (False, 0)
    """

    def mask_data(self) -> NDArray[np.uint8]:
        """The mask, 1 kept and 0 dropped, ``[images, height, width, channels]`` of the mask grid, for debugging.

        There once the command buffer of the forward encode is committed; it is waited for.
        """
        wait_until_written(self.name, "mask_data", self.saved.regions())
        mask = self.saved.value()
        if mask is None:
            rule = "is there once the forward encode has completed"
            remedy = "Call wait_until_completed() on its command buffer first"
            raise MPSArgumentError(self.name, "mask_data", rule, "no mask yet", remedy)
        return mask.permute(0, 2, 3, 1).to("cpu").numpy().astype(np.uint8)


_FIRST = "first step"
"""The number that a kernel does not count, where all its encodes have the same mask."""


class MPSCNNDropout(_DropoutParameters, CountedKernel[MPSCNNDropoutGradientState], leaves=MPSCNNDropoutGradientState):
    """Y = X mask / p, with a random mask of zeros and ones (MPSCNNDropout.h, macOS 10.13.4).

    Each mask value is 1 with probability p = ``keep_probability``. The mask is a pure function of ``seed``, of how many
    encodes this kernel has seen, unless the convention ``dropout_encodes`` has them equal, of the image's place in the
    batch and of the pixel: the same on every device. A probability of 1 keeps everything. A copy goes on with the masks
    that the original would draw next.
    """

    def is_result_state_reused_across_batch(self) -> bool:
        """True: one state holds the masks of all images."""
        return True

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        region, stride = at.read(images[0]), self.mask_stride_in_pixels
        strides = (stride.width, stride.height, stride.depth)
        step = at.number(STEP if self.conventions["dropout_encodes"] == "differ" else _FIRST)
        mask = DropoutMask(self.keep_probability, self.seed, strides, self.batch_share)(region, step)
        at.saves(mask)
        return Dropout(self.keep_probability)(region, mask)


class MPSCNNDropoutGradient(_DropoutParameters, MPSCNNGradientKernel, of=MPSCNNDropout):
    """dX = G mask / p with the mask of the forward encode, from its state (MPSCNNDropout.h, macOS 10.13.4)."""

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        if at.given is None:
            rule = "is needed: the mask lies in it"
            raise MPSArgumentError(self.name, "gradient_state", rule, None, "Pass the forward kernel's state")
        return at.back(Dropout(self.keep_probability)(gradient, at.saved))

    def _needs_saved(self, record: ForwardRecord) -> bool:
        return True
