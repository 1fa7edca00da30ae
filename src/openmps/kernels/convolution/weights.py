"""The weights of a convolution on its device: one owner, converted once, updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.data_source import LoadedWeights, MPSCNNConvolutionDataSource, load_weights
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import MPSCNNConvolutionWeightsAndBiasesState
from openmps.metal.memory import MTLBuffer

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class ConvolutionWeights:
    """Float32 weights in OHWI and biases, in two buffers that stay the same objects for the kernel's life.

    The kernels of one graph that use one data source share one of these. With batch normalization folded in, the
    folded copies are recomputed when the weights change.
    """

    def __init__(self, device: MTLDevice, loaded: LoadedWeights) -> None:
        self.device = device
        self.descriptor: MPSCNNConvolutionDescriptor = loaded.descriptor
        self.shape = loaded.descriptor.weight_shape()
        self.weights_buffer = device.new_buffer(data=loaded.weights)
        self.biases_buffer: MTLBuffer | None = None if loaded.biases is None else device.new_buffer(data=loaded.biases)
        self.weights: Tensor
        self.biases: Tensor | None
        self._raw_weights = self.weights_buffer.tensor(torch.float32).view(self.shape)
        self._raw_biases = None if self.biases_buffer is None else self.biases_buffer.tensor(torch.float32)
        self._fold()

    @classmethod
    def load(cls, who: str, device: MTLDevice, source: MPSCNNConvolutionDataSource) -> ConvolutionWeights:
        """Read a data source."""
        return cls(device, load_weights(who, source))

    def copy(self, device: MTLDevice) -> ConvolutionWeights:
        """The numbers as they are now, in buffers of their own on ``device``; queued work is not waited for."""
        biases = None if self._raw_biases is None else self._raw_biases.cpu().numpy()
        return ConvolutionWeights(
            device, LoadedWeights(self.descriptor.copy(), self._raw_weights.cpu().numpy(), biases)
        )

    def reload(self, who: str, source: MPSCNNConvolutionDataSource) -> None:
        """Read the data source again, at once and in place; its shapes must not have changed."""
        loaded = load_weights(who, source)
        if loaded.descriptor.weight_shape() != self.shape or (loaded.biases is None) != (self._raw_biases is None):
            raise MPSArgumentError(
                who,
                "data source",
                f"must keep the weights' shape {self.shape} and its biases",
                f"{loaded.descriptor.weight_shape()}",
                "Make a new kernel for new shapes",
            )
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

    def _fold(self) -> None:
        """The weights to multiply with: under batch normalization ``W' = W I``, ``b' = b I + J``."""
        fold = self.descriptor.batch_normalization
        self.weights, self.biases = self._raw_weights, self._raw_biases
        if fold is None:
            return
        scale = torch.from_numpy(fold.scale).to(self._raw_weights.device)
        shift = torch.from_numpy(fold.shift).to(self._raw_weights.device)
        self.weights = self._raw_weights * scale.view(-1, 1, 1, 1)
        self.biases = shift if self._raw_biases is None else self._raw_biases * scale + shift
