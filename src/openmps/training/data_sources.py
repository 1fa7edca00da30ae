"""Ready-made data sources: fixed arrays, and weights that an optimizer trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import Shown
from openmps.core.data_source import ArraySource
from openmps.core.training_state import TrainingState, check_names, finite_number, numbers
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
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.types import MPSDataType


class ArrayConvolutionDataSource(ArraySource):
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
            rule = f"must hold [output channels, rows, columns, input channels] {shape}"
            raise MPSArgumentError(type(self).__name__, "weights", rule, array.shape)
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

    ``amsgrad`` trains with Adam in its AMSGrad form, which keeps the maximum of the velocities, too.
    """

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
        self._amsgrad = amsgrad
        self._make_optimizer = optimizer
        self._optimizer: MPSNNOptimizer | None = None
        self._learning_rate: float | None = None
        self._accumulators: dict[str, list[MPSVector]] = {}
        self._current: MPSCNNConvolutionWeightsAndBiasesState | None = None
        self._restored: dict[str, Any] = {}  # what a checkpoint says of an optimizer that is not made yet

    optimizer = Shown[MPSNNOptimizer | None]("_optimizer", "The optimizer, once the first update has made it.")
    accumulators = Shown[dict[str, list[MPSVector]]](
        "_accumulators", "The optimizer's vectors by argument name: weights first, then biases."
    )

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
            rule = "is needed: this data source updates on the device"
            remedy = "Use the training style UPDATE_DEVICE_GPU"
            raise MPSTypeError(f"{type(self).__name__} {self._label!r}", "command_buffer", rule, None, remedy)
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

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def training_state(self) -> TrainingState:
        """Weights, biases, the optimizer's kind and numbers, and its vectors, as they are now.

        Call it when the command buffers are done.
        """
        state: dict[str, Any] = {"weights": self.weights()}
        biases = self.bias_terms()
        if biases is not None:
            state["biases"] = biases
        if self._learning_rate is not None:
            state["learning_rate"] = self._learning_rate
        return state | (self._restored if self._optimizer is None else self._optimizer_state(self._optimizer))

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the data source would that gave ``state``.

        Graphs see the weights that are made afterwards, or told to ``reload_from_data_sources()``. Where there is no
        optimizer yet, the first update makes one and checks that ``state`` is of its kind.
        """
        own = {name: state[name] for name in state if name in ("weights", "biases", "learning_rate")}
        rest = {name: value for name, value in state.items() if name not in own}
        check_names(
            self._name, own, {"weights", *(() if self._biases is None else ("biases",))} | set(own) - {"biases"}
        )
        weights = numbers(self._name, own, "weights", self._weights.shape)
        biases = None if self._biases is None else numbers(self._name, own, "biases", self._biases.shape)
        rate = finite_number(self._name, own, "learning_rate") if "learning_rate" in own else None
        if self._optimizer is None:
            self._restored = rest
        else:
            self._restore_optimizer(self._optimizer, rest)
        self._learning_rate = rate
        self._weights = np.array(weights)
        self._biases = None if biases is None else np.array(biases)
        self._current = None

    def _optimizer_state(self, optimizer: MPSNNOptimizer) -> dict[str, Any]:
        """Its class ``optimizer``, numbers (``optimizer.time_step``) and vectors (``input_momentum_vectors.0``)."""
        return {
            "optimizer": type(optimizer).__name__,
            **{f"optimizer.{name}": value for name, value in optimizer.training_state().items()},
            **{
                f"{name}.{index}": row.numpy()
                for name, rows in self._accumulators.items()
                for index, row in enumerate(rows)
            },
        }

    def _restore_optimizer(self, optimizer: MPSNNOptimizer, state: TrainingState) -> None:
        kind = type(optimizer).__name__
        if state.get("optimizer") != kind:
            got = state.get("optimizer", "a state from before the first step")
            raise MPSArgumentError(self._name, "state 'optimizer'", f"must be {kind}", got, "Train with that optimizer")
        rows = {f"{name}.{index}": row for name, each in self._accumulators.items() for index, row in enumerate(each)}
        own = {f"optimizer.{name}" for name in optimizer.training_state()}
        check_names(self._name, state, {"optimizer", *own, *rows})
        values = {name: numbers(self._name, state, name, (row.length,)) for name, row in rows.items()}
        optimizer.restore_training_state({name.partition(".")[2]: state[name] for name in own})
        for name, row in rows.items():
            row.tensor().copy_(torch.from_numpy(values[name]))

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} {self._label!r}"

    def _vector_names(self, optimizer: MPSNNOptimizer) -> tuple[str, ...]:
        """The optimizer's arguments that take vectors."""
        names = next((names for kind, names in _ACCUMULATORS.items() if isinstance(optimizer, kind)), None)
        got = type(optimizer).__name__
        if names is None:
            raise MPSTypeError(self._name, "optimizer", "must make one of the framework's optimizers", got)
        if not self._amsgrad:
            return names
        if not isinstance(optimizer, MPSNNOptimizerAdam):
            raise MPSTypeError(self._name, "optimizer", "must make an MPSNNOptimizerAdam for amsgrad", got)
        return (*names, "maximum_velocity_vectors")

    def _start(self, device: MTLDevice, gradient_state: MPSCNNConvolutionGradientState) -> MPSNNOptimizer:
        optimizer = self._make_optimizer(device)
        names = self._vector_names(optimizer)
        lengths = [gradient_state.gradient_for_weights.length // 4, gradient_state.gradient_for_biases.length // 4]
        self._accumulators = {
            name: [MPSVector(descriptor=MPSVectorDescriptor(length), device=device) for length in lengths]
            for name in names
        }
        if self._restored:
            self._restore_optimizer(optimizer, self._restored)
        if self._learning_rate is not None:
            optimizer.set_learning_rate(self._learning_rate)
        self._optimizer, self._restored = optimizer, {}
        return optimizer
