"""The weights of a convolution on its device: one owner, converted once, updated in place."""

from __future__ import annotations

from collections.abc import Callable
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
from openmps.kernels.convolution.versions import Held, Lineage, fingerprint
from openmps.metal.memory import MTLBuffer
from openmps.types import MPSDataType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class ConvolutionWeights:
    """Float32 weights in OHWI and biases, in two buffers that stay the same objects for the kernel's life.

    The kernels of one graph that use one data source share one of these. With batch normalization folded in, the
    folded copies are recomputed when the weights change. Where the data source calls for float16, the numbers to
    multiply with are rounded to it once, after folding.
    """

    def __init__(self, device: MTLDevice, loaded: LoadedWeights, source: object = None) -> None:
        self.device = device
        self.held = Held(Lineage.of(source), fingerprint(loaded))
        """Which version of the data source's weights these are."""
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
        return cls(device, load_weights(who, source, kinds), source)

    def copy(self, device: MTLDevice, source: object) -> ConvolutionWeights:
        """The numbers as they are now, in buffers of their own on ``device``; queued work is not waited for.

        ``source`` is the data source of the copy.
        """
        biases = None if self._raw_biases is None else self._raw_biases.cpu().numpy()
        weights = self._raw_weights.cpu().numpy()
        twin = ConvolutionWeights(device, LoadedWeights(self.descriptor.copy(), weights, biases, self.precision))
        twin.held = self.held.copied(source)
        return twin

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
        self.held.read(fingerprint(loaded), lambda: not self.equal(loaded))
        self.precision = loaded.precision
        self._raw_weights.copy_(torch.from_numpy(loaded.weights))
        if self._raw_biases is not None and loaded.biases is not None:
            self._raw_biases.copy_(torch.from_numpy(loaded.biases))
        self._fold()

    def equal(self, loaded: LoadedWeights) -> bool:
        """Whether these are the numbers that a data source gave. Reads them; queued work is not waited for."""
        mine, given = (self._raw_weights, self._raw_biases), (loaded.weights, loaded.biases)
        return all(
            values is array is None
            or (values is not None and array is not None and torch.equal(values.cpu(), torch.from_numpy(array)))
            for values, array in zip(mine, given, strict=True)
        )

    def state(self) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state over the kernel's own buffers: no copy, so it changes with them."""
        return MPSCNNConvolutionWeightsAndBiasesState(weights=self.weights_buffer, biases=self.biases_buffer)

    def empty_state(self, command_buffer: CommandBuffer | None) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state over new buffers for as many numbers; it lives on ``command_buffer`` if one is given."""

        def like(buffer: MTLBuffer) -> MTLBuffer:
            if command_buffer is not None:
                return command_buffer.temporary_buffer(buffer.length)
            return self.device.new_buffer(length=buffer.length)

        biases = None if self.biases_buffer is None else like(self.biases_buffer)
        state = MPSCNNConvolutionWeightsAndBiasesState(weights=like(self.weights_buffer), biases=biases)
        if command_buffer is not None:
            state.make_temporary(command_buffer)
        return state

    def taker(self, who: str, state: MPSCNNConvolutionWeightsAndBiasesState) -> Callable[[], None]:
        """Work that copies the numbers of a state, unless they are these very buffers. Raises if it holds too few."""
        outputs = self.shape[0] if self._raw_biases is not None else 0
        state.check_holds(who, "state.", 4 * self._raw_weights.numel(), 4 * outputs)
        self.held.take(state.weights)
        parts = [(self._raw_weights.view(-1), self.weights_buffer, state.weights, state.weights_offset)]
        if self._raw_biases is not None and self.biases_buffer is not None and state.biases is not None:
            parts.append((self._raw_biases, self.biases_buffer, state.biases, state.biases_offset))

        def take() -> None:
            for values, own, given, offset in parts:
                if given is not own:
                    values.copy_(given.tensor(torch.float32, offset, values.numel()))
            self._fold()

        return take

    def giver(self, state: MPSCNNConvolutionWeightsAndBiasesState) -> Callable[[], None]:
        """Work that copies the numbers into a state made by `empty_state`."""
        parts = [(self._raw_weights.view(-1), state.weights)]
        if self._raw_biases is not None and state.biases is not None:
            parts.append((self._raw_biases, state.biases))

        def give() -> None:
            for values, buffer in parts:
                buffer.tensor(torch.float32).copy_(values)

        return give

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
