"""Kernels and graphs that are made and encoded while allocations and callbacks of a user fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from faults.job import Job
from faults.strike import reach
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionDescriptor
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import MPSNNOptimizerDescriptor, MPSNNOptimizerStochasticGradientDescent
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import MPSCNNLossType, MPSNNPaddingMethod, MTLSize

_CPU = mtl_device("cpu")
_PIXELS = np.random.default_rng(5).normal(size=(2, 8, 8, 3)).astype(np.float32)


def _still(device: Any) -> Any:
    """An optimizer that takes steps of length 0, so that every step has the same result."""
    return MPSNNOptimizerStochasticGradientDescent(device, optimizer_descriptor=MPSNNOptimizerDescriptor(0.0, 1.0))


class Source(TrainableConvolutionDataSource):
    """A data source of a user, which says when it is asked."""

    def __init__(self) -> None:
        weights = np.random.default_rng(6).normal(size=(4, 3, 3, 3)).astype(np.float32)
        descriptor = MPSCNNConvolutionDescriptor(3, 3, 3, 4)
        super().__init__(descriptor, weights, np.zeros(4, np.float32), "conv", optimizer=_still)
        self.is_loaded = 0

    def load(self) -> bool:
        reach("source load")
        self.is_loaded += 1
        return True

    def purge(self) -> None:
        self.is_loaded -= 1
        reach("source purge")

    def weights(self) -> Any:
        reach("source weights")
        return super().weights()

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        reach("source update")
        return super().update(command_buffer, gradient_state, source_state)


class Policy:
    """A padding policy of a user."""

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM | MPSNNPaddingMethod.SIZE_SAME

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        reach("padding policy")
        return suggested


class Allocator:
    """An image allocator of a user."""

    def image(self, command_buffer: Any, descriptor: Any, kernel: Any) -> Any:
        reach("allocator")
        return MPSImage.default_allocator().image(command_buffer, descriptor, kernel)

    def image_batch(self, command_buffer: Any, descriptor: Any, kernel: Any, count: int) -> Any:
        reach("allocator")
        return MPSImage.default_allocator().image_batch(command_buffer, descriptor, kernel, count)


class Bench:
    """What the jobs work with: a queue, and what is kept of one encode after the other."""

    def __init__(self, folder: Path) -> None:
        self.queue = _CPU.new_command_queue()
        self.source = Source()
        self.other = MPSImage.from_numpy(_CPU, _PIXELS[0])

    def finish(self, command_buffer: Any) -> None:
        command_buffer.add_scheduled_handler(lambda buffer: reach("scheduled handler"))
        command_buffer.add_completed_handler(lambda buffer: reach("completed handler"))
        command_buffer.commit()
        command_buffer.wait_until_completed()
        if command_buffer.error is not None:
            raise command_buffer.error

    def is_as_before(self) -> object:
        return self.source.is_loaded, self.other.numpy().tobytes()


def _convolution(bench: Bench) -> Any:
    kernel = MPSCNNConvolution(_CPU, weights=bench.source)
    kernel.padding, kernel.destination_image_allocator = Policy(), Allocator()
    return kernel


def _nodes(bench: Bench) -> Any:
    convolution = MPSCNNConvolutionNode(MPSNNImageNode(), bench.source)
    convolution.padding_policy = Policy()
    pool = MPSCNNPoolingMaxNode(MPSCNNNeuronReLUNode(convolution.result_image).result_image, 2, 2)
    pool.result_image.image_allocator = Allocator()
    return pool


def _inference(bench: Bench) -> MPSNNGraph:
    graph = MPSNNGraph(_CPU, _nodes(bench).result_image)
    graph.destination_image_allocator = Allocator()
    return graph


def _training(bench: Bench) -> MPSNNGraph:
    descriptor = MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR)
    loss = MPSCNNLossNode(_nodes(bench).result_image, descriptor)
    (end,) = loss.training_graph(None, None) or []
    return MPSNNGraph(_CPU, end.result_image)


class Encoded(Bench):
    """A kernel or a graph that was made before, encoded again and again."""

    make: Any

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made = type(self).make(self)


class Kernel(Encoded):
    make = staticmethod(_convolution)


class Inference(Encoded):
    make = staticmethod(_inference)


class Training(Encoded):
    make = staticmethod(_training)


def _encode_kernel(bench: Any, kernel: Any = None) -> bytes:
    command_buffer = bench.queue.command_buffer()
    result = (kernel or bench.made).encode_batch(command_buffer, MPSImageBatch.from_numpy(_CPU, _PIXELS))
    bench.finish(command_buffer)
    return result.numpy().tobytes()


def _encode_graph(bench: Any, graph: Any = None) -> bytes:
    command_buffer = bench.queue.command_buffer()
    result = (graph or bench.made).encode_batch(command_buffer, [MPSImageBatch.from_numpy(_CPU, _PIXELS)])
    bench.finish(command_buffer)
    return result.numpy().tobytes()


def _train(bench: Any, graph: Any = None) -> bytes:
    command_buffer = bench.queue.command_buffer()
    target = MPSImage.from_numpy(_CPU, np.ones((4, 4, 4), np.float32))
    labels = [MPSCNNLossLabels(_CPU, labels_image=target, loss_image_size=MTLSize(4, 4, 4)) for _ in _PIXELS]
    images = [MPSImageBatch.from_numpy(_CPU, _PIXELS)]
    result = (graph or bench.made).encode_batch(command_buffer, images, [labels])
    bench.finish(command_buffer)
    return result.numpy().tobytes() + bench.source.weights().tobytes()


def _execute(bench: Any) -> str:
    done, found = threading.Event(), []

    def finished(image: Any, error: Any) -> None:
        found.append(error)
        done.set()
        reach("completion handler")

    result = bench.made.execute_async([MPSImage.from_numpy(_CPU, _PIXELS[0])], finished)
    if not done.wait(10):
        raise TimeoutError("the completion handler was not called")
    if found[0] is not None:
        raise found[0]
    return repr(result.numpy().tolist())


def _reload(bench: Any) -> bytes:
    bench.made.reload_from_data_sources()
    return _encode_graph(bench)


def _job(name: str, prepare: Any, act: Any) -> Job:
    return Job(name, prepare, act, lambda bench: bench.is_as_before())


JOBS: tuple[Job, ...] = (
    _job("kernel encoded", Kernel, _encode_kernel),
    _job("kernel made and encoded", Bench, lambda bench: _encode_kernel(bench, _convolution(bench))),
    _job("graph encoded", Inference, _encode_graph),
    _job("graph made and encoded", Bench, lambda bench: _encode_graph(bench, _inference(bench))),
    _job("graph reloaded", Inference, _reload),
    _job("graph run", Inference, _execute),
    _job("graph trained", Training, _train),
    _job("graph made and trained", Bench, lambda bench: _train(bench, _training(bench))),
)
