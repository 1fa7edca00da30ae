"""Data sources that train their weights: on the CPU, on the device, and as the framework's training sample does."""

from __future__ import annotations

from typing import Any

import numpy as np

from encoding import finish
from networks import Weights
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNConvolutionWeightsAndBiasesState
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerStochasticGradientDescent
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import MPSDataType

RATE = 0.125
"""The step of gradient descent."""
Array = np.ndarray


def values(state: Any, name: str) -> Array:
    """The float32 numbers of a state's buffer, which share its memory on the CPU."""
    return getattr(state, name).contents().view(np.float32)


def asked(source: Any) -> Any:
    """A data source whose updates are its own, so that it is asked in each step; they do what the package's do."""
    kind = type(source)
    methods = [name for name in ("update", "update_gamma_and_beta", "update_mean_and_variance") if hasattr(kind, name)]
    own = {name: lambda self, *given, name=name: getattr(kind, name)(self, *given) for name in methods}
    source.__class__ = type(kind.__name__, (kind,), own)
    return source


class HostSgd(Weights):
    """Steps on its own arrays when the CPU style asks it to."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> bool:
        assert command_buffer is None
        self.array = self.array - RATE * values(gradient_state, "gradient_for_weights").reshape(self.array.shape)
        assert self.bias is not None
        self.bias = self.bias - RATE * values(gradient_state, "gradient_for_biases")
        return True


class DeviceSgd(Weights):
    """Steps in place, in the graph's memory; counts its calls."""

    rate = RATE
    calls = 0

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.calls += 1
        step = MPSNNOptimizerStochasticGradientDescent(command_buffer.device, self.rate)
        step.encode(
            command_buffer,
            convolution_gradient_state=gradient_state,
            convolution_source_state=source_state,
            result_state=source_state,
        )
        self.state = source_state
        return source_state


class SampleSource:
    """The data source of the framework's training sample: buffers, momenta and a permanent state of its own."""

    def __init__(self, weights: Array, biases: Array, label: str, device: Any) -> None:
        outputs, rows, columns, inputs = weights.shape
        self.made = MPSCNNConvolutionDescriptor(columns, rows, inputs, outputs)
        self.name = label
        self.optimizer = MPSNNOptimizerAdam(device, 1e-2)
        self.steps = 0
        lengths = (weights.size, biases.size)
        self.vectors = [MPSVector(descriptor=MPSVectorDescriptor(length), device=device) for length in lengths * 2]
        for vector in self.vectors:
            vector.data.contents()[:] = 0
            vector.data.did_modify_range(range(vector.data.length))
        buffers = [device.new_buffer(data=np.ascontiguousarray(each, np.float32)) for each in (weights, biases)]
        self.state = MPSCNNConvolutionWeightsAndBiasesState(weights=buffers[0], biases=buffers[1])
        self.queue = device.new_command_queue()
        self.shape = weights.shape

    def load(self) -> bool:
        command_buffer = self.queue.command_buffer()
        self.state.synchronize(command_buffer)
        finish(command_buffer)
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str:
        return self.name

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        return self.made

    def data_type(self) -> MPSDataType:
        return MPSDataType.FLOAT32

    def weights(self) -> Any:
        return self.state.weights.contents()

    def bias_terms(self) -> Any:
        return values(self.state, "biases")

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.steps += 1
        self.optimizer.set_learning_rate(1e-2)
        self.optimizer.encode(
            command_buffer,
            convolution_gradient_state=gradient_state,
            convolution_source_state=source_state,
            input_momentum_vectors=self.vectors[:2],
            input_velocity_vectors=self.vectors[2:],
            result_state=self.state,
        )
        if self.steps != self.optimizer.time_step:
            raise RuntimeError("the optimizer counts encodes")
        return self.state


class Drawn(TrainableConvolutionDataSource):
    """The library's own data source, which keeps the numbers that it began with."""

    array: Any = None
    bias: Any = None


def trainable(optimizer: Any) -> Any:
    """Makes the library's own data source for a network, over the numbers that `Weights.of` would draw."""

    def make(rng: np.random.Generator, shape: Any, label: str) -> Any:
        drawn = Weights.of(rng, shape, label)
        source = Drawn(drawn.made, drawn.array, drawn.bias, label, optimizer=optimizer)
        source.array, source.bias = drawn.array, drawn.bias
        return source

    return make


def sample(device: Any) -> Any:
    def make(rng: np.random.Generator, shape: Any, label: str) -> SampleSource:
        drawn = Weights.of(rng, shape, label)
        assert drawn.bias is not None
        source = SampleSource(drawn.array, drawn.bias, label, device)
        source.array, source.bias = drawn.array, drawn.bias
        return source

    return make
