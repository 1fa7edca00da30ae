"""Ready-made data sources: fixed arrays, and weights that an optimizer trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.optimizers import (
    MPSNNOptimizer,
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.types import MPSDataType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class ArrayConvolutionDataSource:
    """A data source over arrays: OHWI weights, and biases or None.

    The arrays are copied, as float32.
    """

    def __init__(
        self,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: NDArray[Any] | Sequence[Any],
        biases: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
    ) -> None:
        descriptor.validate(type(self).__name__)
        shape = descriptor.weight_shape()
        array = np.asarray(weights, np.float32)
        if array.size != int(np.prod(shape)):
            raise MPSArgumentError(
                type(self).__name__,
                "weights",
                f"must hold [output channels, rows, columns, input channels] {shape}",
                array.shape,
            )
        row = None if biases is None else np.array(biases, np.float32).reshape(-1)
        if row is not None and row.size != shape[0]:
            raise MPSArgumentError(type(self).__name__, "biases", f"must hold {shape[0]} numbers", row.size)
        self._descriptor = descriptor.copy()
        self._weights = np.array(array.reshape(shape), dtype=np.float32, order="C")
        self._biases: NDArray[np.float32] | None = row
        self._label = label

    @classmethod
    def uniform(
        cls,
        descriptor: MPSCNNConvolutionDescriptor,
        *,
        limit: float,
        bias: float,
        seed: int,
        label: str | None = None,
        **options: Any,
    ) -> ArrayConvolutionDataSource:
        """Weights drawn uniformly from ``-limit`` to ``limit``, biases all ``bias``."""
        generator = np.random.Generator(np.random.Philox(seed))
        weights = generator.uniform(-limit, limit, descriptor.weight_shape()).astype(np.float32)
        biases = np.full(descriptor.output_feature_channels, bias, np.float32)
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

    def load(self) -> bool:
        """Arrays are always there."""
        return True

    def purge(self) -> None:
        """Arrays stay."""

    def label(self) -> str | None:
        """The layer's name."""
        return self._label


OptimizerFactory = Callable[["MTLDevice"], MPSNNOptimizer]
_ACCUMULATORS: dict[type[MPSNNOptimizer], tuple[str, ...]] = {
    MPSNNOptimizerAdam: ("input_momentum_vectors", "input_velocity_vectors"),
    MPSNNOptimizerRMSProp: ("input_sum_of_squares_vectors",),
    MPSNNOptimizerStochasticGradientDescent: ("input_momentum_vectors",),
}


class TrainableConvolutionDataSource(ArrayConvolutionDataSource):
    """A data source that trains its weights on the device with an optimizer of its own.

    ``optimizer`` makes the optimizer, ``lambda device: MPSNNOptimizerAdam(device, 1e-3)``. The weights live in the
    graph that trains them and are updated there in place; `weights` and `bias_terms` bring them back, waiting for
    nothing: call them when the command buffers are done. Other graphs see the new weights after
    ``reload_from_data_sources()``.
    """

    def __init__(
        self,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: NDArray[Any] | Sequence[Any],
        biases: NDArray[Any] | Sequence[float] | None = None,
        label: str | None = None,
        *,
        optimizer: OptimizerFactory,
    ) -> None:
        super().__init__(descriptor, weights, biases, label)
        self._make_optimizer = optimizer
        self._optimizer: MPSNNOptimizer | None = None
        self._learning_rate: float | None = None
        self._accumulators: dict[str, list[MPSVector]] = {}
        self._current: MPSCNNConvolutionWeightsAndBiasesState | None = None

    @property
    def optimizer(self) -> MPSNNOptimizer | None:
        """The optimizer, once the first update has made it."""
        return self._optimizer

    @property
    def accumulators(self) -> dict[str, list[MPSVector]]:
        """The optimizer's vectors by argument name: weights first, then biases."""
        return self._accumulators

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the step size of the updates that are encoded from now on."""
        self._learning_rate = learning_rate
        if self._optimizer is not None:
            self._optimizer.set_learning_rate(learning_rate)

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

    def update(
        self,
        command_buffer: CommandBuffer | None,
        gradient_state: MPSCNNConvolutionGradientState,
        source_state: MPSCNNConvolutionWeightsAndBiasesState,
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """Record one optimizer step and return the state of the new weights; called behind the gradient pass.

        It is taken in place, unless ``source_state`` is temporary.
        """
        if command_buffer is None:
            raise MPSTypeError(
                f"{type(self).__name__} {self._label!r}",
                "command_buffer",
                "is needed: this data source updates on the device",
                None,
                "Use the training style UPDATE_DEVICE_GPU",
            )
        # The keyword arguments depend on the class, as `_ACCUMULATORS` lists them.
        optimizer: Any = self._optimizer or self._start(command_buffer.device, gradient_state)
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
        self._current = result
        return result

    def _start(self, device: MTLDevice, gradient_state: MPSCNNConvolutionGradientState) -> MPSNNOptimizer:
        optimizer = self._make_optimizer(device)
        names = next((names for kind, names in _ACCUMULATORS.items() if isinstance(optimizer, kind)), None)
        if names is None:
            raise MPSTypeError(
                f"{type(self).__name__} {self._label!r}",
                "optimizer",
                "must make one of the framework's optimizers",
                type(optimizer).__name__,
            )
        lengths = [gradient_state.gradient_for_weights.length // 4, gradient_state.gradient_for_biases.length // 4]
        self._accumulators = {
            name: [MPSVector(descriptor=MPSVectorDescriptor(length), device=device) for length in lengths]
            for name in names
        }
        if self._learning_rate is not None:
            optimizer.set_learning_rate(self._learning_rate)
        self._optimizer = optimizer
        return optimizer
