"""The weights of a convolution on its device: one owner, converted once, updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.data_source import (
    WEIGHT_TYPES,
    LoadedWeights,
    MPSCNNConvolutionDataSource,
    load_weights,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import MPSCNNConvolutionWeightsAndBiasesState
from openmps.metal.memory import MTLBuffer
from openmps.types import MPSDataType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class ConvolutionWeights:
    """Float32 weights in OHWI and biases, in two buffers that stay the same objects for the kernel's life.

    The kernels of one graph that use one data source share one of these. With batch normalization folded in, the
    folded copies are recomputed when the weights change. Where the data source calls for float16, the numbers to
    multiply with are rounded to it once, after folding.
    """

    def __init__(self, device: MTLDevice, loaded: LoadedWeights) -> None:
        self.device = device
        self.descriptor: MPSCNNConvolutionDescriptor = loaded.descriptor
        self.shape = loaded.descriptor.weight_shape()
        self.precision = loaded.precision
        """FLOAT16 or FLOAT32 where the data source says what to multiply with, else None."""
        self.weights_buffer = device.new_buffer(data=loaded.weights)
        self.biases_buffer: MTLBuffer | None = None if loaded.biases is None else device.new_buffer(data=loaded.biases)
        self.weights: Tensor
        """What is multiplied with, OHWI, float32 in memory whatever the precision."""
        self.biases: Tensor | None
        self._rounded: Tensor | None = None
        self._raw_weights = self.weights_buffer.tensor(torch.float32).view(self.shape)
        self._raw_biases = None if self.biases_buffer is None else self.biases_buffer.tensor(torch.float32)
        self._fold()

    @classmethod
    def load(
        cls,
        who: str,
        device: MTLDevice,
        source: MPSCNNConvolutionDataSource,
        kinds: tuple[MPSDataType, ...] = WEIGHT_TYPES,
    ) -> ConvolutionWeights:
        """Read a data source, whose weights must be of one of some types."""
        return cls(device, load_weights(who, source, kinds))

    def copy(self, device: MTLDevice) -> ConvolutionWeights:
        """The numbers as they are now, in buffers of their own on ``device``; queued work is not waited for."""
        biases = None if self._raw_biases is None else self._raw_biases.cpu().numpy()
        weights = self._raw_weights.cpu().numpy()
        return ConvolutionWeights(device, LoadedWeights(self.descriptor.copy(), weights, biases, self.precision))

    def reload(
        self, who: str, source: MPSCNNConvolutionDataSource, kinds: tuple[MPSDataType, ...] = WEIGHT_TYPES
    ) -> None:
        """Read the data source again, at once and in place; its shapes must not have changed."""
        loaded = load_weights(who, source, kinds)
        if loaded.descriptor.weight_shape() != self.shape or (loaded.biases is None) != (self._raw_biases is None):
            raise MPSArgumentError(
                who,
                "data source",
                f"must keep the weights' shape {self.shape} and its biases",
                f"{loaded.descriptor.weight_shape()}",
                "Make a new kernel for new shapes",
            )
        self.precision = loaded.precision
        self._raw_weights.copy_(torch.from_numpy(loaded.weights))
        if self._raw_biases is not None and loaded.biases is not None:
            self._raw_biases.copy_(torch.from_numpy(loaded.biases))
        self._fold()

    def state(self) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state over the kernel's own buffers: no copy, so it changes with them."""
        return MPSCNNConvolutionWeightsAndBiasesState(weights=self.weights_buffer, biases=self.biases_buffer)

    def empty_state(self) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state over new buffers for as many numbers."""
        biases = None if self.biases_buffer is None else self.device.new_buffer(length=self.biases_buffer.length)
        weights = self.device.new_buffer(length=self.weights_buffer.length)
        return MPSCNNConvolutionWeightsAndBiasesState(weights=weights, biases=biases)

    def check_state(self, who: str, state: MPSCNNConvolutionWeightsAndBiasesState) -> None:
        """Raise unless ``state`` holds as many numbers as these weights."""
        needed = 4 * self._raw_weights.numel()
        if state.weights.length - state.weights_offset < needed:
            raise MPSArgumentError(
                who, "state.weights", f"must hold {needed} bytes", state.weights.length - state.weights_offset
            )
        if self._raw_biases is not None and state.biases is not None:
            needed = 4 * self._raw_biases.numel()
            if state.biases.length - state.biases_offset < needed:
                raise MPSArgumentError(
                    who, "state.biases", f"must hold {needed} bytes", state.biases.length - state.biases_offset
                )

    def take(self, state: MPSCNNConvolutionWeightsAndBiasesState) -> None:
        """Copy the numbers of a state, unless they are these very buffers; runs in the queue."""
        if state.weights is not self.weights_buffer:
            source = state.weights.tensor(torch.float32, state.weights_offset, self._raw_weights.numel())
            self._raw_weights.view(-1).copy_(source)
        if self._raw_biases is not None and state.biases is not None and state.biases is not self.biases_buffer:
            source = state.biases.tensor(torch.float32, state.biases_offset, self._raw_biases.numel())
            self._raw_biases.copy_(source)
        self._fold()

    def give(self, state: MPSCNNConvolutionWeightsAndBiasesState) -> None:
        """Copy the numbers into a state; runs in the queue."""
        target = state.weights.tensor(torch.float32, state.weights_offset, self._raw_weights.numel())
        target.copy_(self._raw_weights.view(-1))
        if state.biases is None:
            return
        biases = state.biases.tensor(torch.float32, state.biases_offset, self.shape[0])
        biases.zero_() if self._raw_biases is None else biases.copy_(self._raw_biases)

    def used(self, as_float16: bool) -> Tensor:
        """What is multiplied with; ``as_float16`` rounds to float16 also where the data source does not call for it."""
        if not as_float16 or self.precision is MPSDataType.FLOAT16:
            return self.weights
        if self._rounded is None:
            self._rounded = _to_float16(self.weights)
        return self._rounded

    def _fold(self) -> None:
        """The weights to multiply with: under batch normalization ``W' = W I``, ``b' = b I + J``."""
        fold = self.descriptor.batch_normalization
        weights, biases = self._raw_weights, self._raw_biases
        if fold is not None:
            scale = torch.from_numpy(fold.scale).to(weights.device)
            shift = torch.from_numpy(fold.shift).to(weights.device)
            weights = weights * scale.view(-1, 1, 1, 1)
            biases = shift if biases is None else biases * scale + shift
        self.weights = _to_float16(weights) if self.precision is MPSDataType.FLOAT16 else weights
        self.biases = biases
        self._rounded = None


def _to_float16(weights: Tensor) -> Tensor:
    return weights.to(torch.float16).to(torch.float32)
