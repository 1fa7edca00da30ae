"""Dropout and its gradient (MPSCNNDropout.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.core.training_state import TrainingState, check_names, whole_number
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.dropout import dropout, dropout_gradient, dropout_mask
from openmps.ops.geometry import read, read_adjoint
from openmps.types import MTLSize

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class _DropoutParameters:
    """The parameters that dropout and its gradient share."""

    _keep: float
    _seed: int
    _mask_strides: MTLSize

    @property
    def keep_probability(self) -> float:
        """Probability that a number is kept."""
        return self._keep

    @property
    def seed(self) -> int:
        """The key of the random numbers."""
        return self._seed

    @property
    def mask_stride_in_pixels(self) -> MTLSize:
        """Width: x, height: y, depth: channels. 1 draws a mask value each; 0 shares one along that axis."""
        return self._mask_strides

    def _set(self, who: str, keep_probability: float, seed: int, mask_stride_in_pixels: MTLSize) -> None:
        if not isinstance(keep_probability, int | float) or not 0 < keep_probability <= 1:
            raise MPSArgumentError(who, "keep_probability", "must lie in (0, 1]", repr(keep_probability))
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise MPSArgumentError(who, "seed", "must be an integer of 0 to 2**64 - 1", repr(seed))
        if not isinstance(mask_stride_in_pixels, MTLSize):
            raise MPSTypeError(who, "mask_stride_in_pixels", "must be an MTLSize", type(mask_stride_in_pixels).__name__)
        strides = (mask_stride_in_pixels.width, mask_stride_in_pixels.height, mask_stride_in_pixels.depth)
        if any(stride not in (0, 1) for stride in strides):
            raise MPSArgumentError(who, "mask_stride_in_pixels", "must be 0 or 1 on each axis", strides)
        self._keep, self._seed, self._mask_strides = float(keep_probability), seed, mask_stride_in_pixels


_EVERY_NUMBER = MTLSize(1, 1, 1)


class MPSCNNDropoutGradientState(MPSNNGradientState):
    """The mask of a dropout encode (MPSCNNDropout.h, macOS 10.13.4); one state for a batch holds every image's mask."""

    def mask_data(self) -> NDArray[np.uint8]:
        """The mask, 1 kept and 0 dropped, ``[images, height, width, channels]`` of the mask grid, for debugging.

        There once the command buffer of the forward encode has completed.
        """
        mask = self.saved.value
        if mask is None:
            raise MPSArgumentError(
                self.name,
                "mask_data",
                "is there once the forward encode has completed",
                "no mask yet",
                "Call wait_until_completed() on its command buffer first",
            )
        return mask.permute(0, 2, 3, 1).to("cpu").numpy().astype(np.uint8)


class MPSCNNDropout(_DropoutParameters, MPSCNNKernel):
    """Y = X mask / p, with a random mask of zeros and ones (MPSCNNDropout.h, macOS 10.13.4).

    Each mask value is 1 with probability p = ``keep_probability``. The mask is a pure function of ``seed``, of how many
    encodes this kernel has seen, of the image's place in the batch and of the pixel: the same on every device. A
    probability of 1 keeps everything. A copy goes on with the masks that the original would draw next.
    """

    _gradient_state_class = MPSCNNDropoutGradientState

    def __init__(
        self,
        device: MTLDevice,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: MTLSize = _EVERY_NUMBER,
    ) -> None:
        super().__init__(device)
        self._set(self.name, keep_probability, seed, mask_stride_in_pixels)
        self._step = 0

    def is_result_state_reused_across_batch(self) -> bool:
        """True: one state holds the masks of all images."""
        return True

    @property
    def step(self) -> int:
        """The number of the next encode, counted from 0, which its mask follows from.

        Copies and archives keep it, so that training goes on with the masks that it would have had. Our addition.
        """
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise MPSArgumentError(self.name, "step", "must be an integer of 0 to 2**63 - 1", repr(value))
        self._step = value

    def next_token(self) -> int:
        """The number of this encode."""
        step = self._step
        self._step += 1
        return step

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps: how many encodes this kernel has seen. Our addition."""
        return {"encodes": self._step}

    def restore_training_state(self, state: TrainingState) -> None:
        """Draw the masks of the encodes to come as the kernel would that gave ``state``. Our addition."""
        check_names(self.name, state, {"encodes"})
        self.step = whole_number(self.name, state, "encodes")

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        strides = (self._mask_strides.width, self._mask_strides.height, self._mask_strides.depth)
        keep, seed = self._keep, self._seed

        def operation(values: tuple[Tensor, ...], step: Any) -> tuple[Tensor, Tensor]:
            region = read(values[0], source.window, source.edge_mode)
            size = (region.shape[0], region.shape[1], region.shape[2], region.shape[3])
            mask = dropout_mask(size, keep, seed=seed, step=step, mask_strides=strides, device=region.device)
            return dropout(region, mask, keep), mask

        return operation


class MPSCNNDropoutGradient(_DropoutParameters, MPSCNNGradientKernel):
    """dX = G mask / p with the mask of the forward encode, from its state (MPSCNNDropout.h, macOS 10.13.4)."""

    _forward_kernels = (MPSCNNDropout,)

    def __init__(
        self,
        device: MTLDevice,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: MTLSize = _EVERY_NUMBER,
    ) -> None:
        super().__init__(device)
        self._set(self.name, keep_probability, seed, mask_stride_in_pixels)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        if states is None:
            raise MPSArgumentError(
                self.name, "gradient_state", "is needed: the mask lies in it", None, "Pass the forward kernel's state"
            )
        keep = self._keep

        def differentiate(gradient: Tensor, source: Tensor, mask: Any) -> tuple[Tensor, None]:
            result = dropout_gradient(gradient, mask, keep)
            return read_adjoint(result, geometry.data, geometry.edge_mode), None

        return differentiate

    def _needs_saved(self, states: MPSStateBatch) -> bool:
        return True
