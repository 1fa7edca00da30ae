"""Ready-made data sources: fixed arrays, and weights that an optimizer trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import described, number, of_kind, optional_text, store
from openmps.core.arrays import in_shape, numbers, row
from openmps.core.data_source import ArraySource
from openmps.core.numbers import integer, not_negative
from openmps.kernels.convolution import (
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.metal.device import CommandBuffer
from openmps.runtime.binding import Numbers
from openmps.runtime.step_trace import at_each_step, declared
from openmps.selectors import name_arguments
from openmps.training.optimized import Optimized, OptimizerFactory
from openmps.types import MPSDataType


@name_arguments
class ArrayConvolutionDataSource(ArraySource):
    """A data source over arrays: OHWI weights, in this shape or flat, and biases or None.

    The arrays are copied, as float32.

    Raises:
        MPSArgumentError: The weights are of another shape, or a number does not fit float32.
        MPSTypeError: They are no real numbers, or have a mask.
    """

    def __init__(
        self,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: NDArray[Any] | Sequence[Any],
        biases: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
    ) -> None:
        of_kind(type(self).__name__, "descriptor", descriptor, MPSCNNConvolutionDescriptor)
        descriptor.validate(type(self).__name__)
        shape = descriptor.weight_shape()
        name, rule = type(self).__name__, f"must hold {shape[0]} numbers"
        array = in_shape(name, "weights", numbers(name, "weights", weights), shape)
        self._biases: NDArray[np.float32] | None = None
        if biases is not None:
            self._biases = row(name, "biases", numbers(name, "biases", biases), shape[0], rule)
        self._descriptor = descriptor.copy()
        self._weights = np.array(array, dtype=np.float32, order="C")
        self._label = optional_text(name, "label", label)

    @classmethod
    def uniform(
        cls,
        descriptor: MPSCNNConvolutionDescriptor,
        *,
        limit: float,
        bias: float | None,
        seed: int,
        label: str | None = None,
        **options: Any,
    ) -> Self:
        """Weights drawn uniformly from ``-limit`` to ``limit``, biases all ``bias``; None is no biases."""
        of_kind(cls.__name__, "descriptor", descriptor, MPSCNNConvolutionDescriptor)
        limit = not_negative(cls.__name__, "limit", limit)
        bias = None if bias is None else number(cls.__name__, "bias", bias)
        generator = np.random.Generator(np.random.Philox(integer(cls.__name__, "seed", seed, 0, 2**128 - 1)))
        weights = generator.uniform(-limit, limit, descriptor.weight_shape()).astype(np.float32)
        biases = None if bias is None else np.full(descriptor.output_feature_channels, bias, np.float32)
        return cls(descriptor, weights, biases, label=label, **options)

    def data_type(self) -> MPSDataType:
        """FLOAT32."""
        return MPSDataType.FLOAT32

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The convolution's descriptor."""
        return self._descriptor

    def weights(self) -> NDArray[np.float32]:
        """The weights, OHWI."""
        return self._weights

    def bias_terms(self) -> NDArray[np.float32] | None:
        """The biases, or None."""
        return self._biases

    def label(self) -> str | None:
        """The layer's name."""
        return self._label

    def __repr__(self) -> str:
        biases = "no biases" if self._biases is None else None
        return described(self, repr(self._descriptor), biases, optimizer=getattr(self, "_optimizer", None))

    if TYPE_CHECKING:
        # A subclass may have it. This class has not: what fixed arrays offer must not be taken for an update.

        def update(
            self,
            command_buffer: CommandBuffer | None,
            gradient_state: MPSCNNConvolutionGradientState,
            source_state: MPSCNNConvolutionWeightsAndBiasesState,
        ) -> MPSCNNConvolutionWeightsAndBiasesState | bool | None:
            """New weights; see `MPSCNNConvolutionDataSource`."""
            ...

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """`weights` and `bias_terms`, if there are any, by the names ``weights`` and ``biases``."""
        biases = self.bias_terms()
        return {"weights": self.weights()} | ({} if biases is None else {"biases": biases})


@name_arguments
class TrainableConvolutionDataSource(ArrayConvolutionDataSource, Optimized):
    """A data source that trains its weights on the device with an optimizer of its own.

    ``optimizer`` makes the optimizer, ``lambda device: MPSNNOptimizerAdam(device, 1e-3)``. The weights live in the
    graph that trains them and are updated there in place; `weights` and `bias_terms` bring them back, waiting for
    nothing: call them when the command buffers are done. Other graphs see the new weights after
    ``reload_from_data_sources()``.

    ``amsgrad`` trains with Adam in its AMSGrad form, which keeps the maximum of the velocities, too.
    """

    _parts = ("weights", "biases")

    def __init__(
        self,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: NDArray[Any] | Sequence[Any],
        biases: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
        *,
        optimizer: OptimizerFactory,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(descriptor, weights, biases, label)
        self._train_with(optimizer, amsgrad=amsgrad)
        self._current: MPSCNNConvolutionWeightsAndBiasesState | None = None

    def weights(self) -> NDArray[np.float32]:
        """The weights as they are now, OHWI."""
        if self._current is not None:
            state = self._current
            values = state.weights.tensor(torch.float32, state.weights_offset, self._weights.size)
            self._weights = values.cpu().numpy().reshape(self._weights.shape).copy()
        return self._weights

    def bias_terms(self) -> NDArray[np.float32] | None:
        """The biases as they are now, or None."""
        state = self._current
        if state is not None and state.biases is not None and self._biases is not None:
            values = state.biases.tensor(torch.float32, state.biases_offset, self._biases.size)
            self._biases = values.cpu().numpy().copy()
        return self._biases

    def _take(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self._weights, self._biases = arrays["weights"], arrays.get("biases")
        self._current = None
        self._version.advance()

    @declared
    def update(
        self,
        command_buffer: CommandBuffer | None,
        gradient_state: MPSCNNConvolutionGradientState,
        source_state: MPSCNNConvolutionWeightsAndBiasesState,
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """Record one optimizer step and return the state of the new weights; called behind the gradient pass.

        It is taken in place, unless ``source_state`` is temporary.
        """
        command_buffer = self._check_step(command_buffer)
        optimizer = self._optimizer_on(command_buffer, self._lengths or _lengths(gradient_state))
        result = source_state
        if source_state.lives_on is not None:
            result = MPSCNNConvolutionWeightsAndBiasesState(command_buffer.device, self._descriptor)
        optimizer.encode(
            command_buffer,
            convolution_gradient_state=gradient_state,
            convolution_source_state=source_state,
            result_state=result,
            **self._accumulators,
        )
        if self._shards is not None:
            is_whole = result.weights.length == 4 * self._lengths[0]
            self._shards.note(_numbers(result, self._lengths), result.rounded_weights if is_whole else None)
        self._record_average(command_buffer, self._parts, _numbers(result, self._lengths))
        at_each_step(command_buffer, store, self, "_current", result)
        return result


def _numbers(state: MPSCNNConvolutionWeightsAndBiasesState, lengths: Sequence[int]) -> list[Numbers]:
    """Where weights and biases are."""
    found = [Numbers(state.weights, state.weights_offset, lengths[0])]
    return found if state.biases is None else [*found, Numbers(state.biases, state.biases_offset, lengths[1])]


def _lengths(state: MPSCNNConvolutionGradientState) -> tuple[int, int]:
    return state.gradient_for_weights.length // 4, state.gradient_for_biases.length // 4
