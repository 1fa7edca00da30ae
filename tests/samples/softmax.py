"""Softmax and log-softmax."""

from __future__ import annotations

from typing import Any

from openmps.kernels import softmax as kernels
from oracles import softmax
from samples.sample import Array, GradientSample, Reading, Sample, Shape


def _softmax(shape: Shape) -> Sample:
    return _channel_function(
        f"softmax {shape}",
        kernels.MPSCNNSoftMax,
        kernels.MPSCNNSoftMaxGradient,
        softmax.softmax,
        softmax.softmax_gradient,
        shape,
    )


def _log_softmax(shape: Shape) -> Sample:
    return _channel_function(
        f"log-softmax {shape}",
        kernels.MPSCNNLogSoftMax,
        kernels.MPSCNNLogSoftMaxGradient,
        softmax.log_softmax,
        softmax.log_softmax_gradient,
        shape,
    )


def _channel_function(name: str, kernel: Any, gradient: Any, function: Any, derivative: Any, shape: Shape) -> Sample:
    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        y = function(how[0].region(sources[0]))
        return how[0].back(derivative(g, y), sources[0].shape)

    return Sample(
        name,
        lambda device: kernel(device),
        (shape,),
        lambda sources, how: function(how[0].region(sources[0])),
        (GradientSample(lambda device: gradient(device), differentiate, reads_result=True),),
        traits=frozenset({"pointwise", "smooth", "across channels"}),
    )


SOFTMAXES = [_softmax(shape) for shape in ((1, 2, 2), (3, 1, 1), (5, 3, 2), (8, 2, 3))]
LOG_SOFTMAXES = [_log_softmax(shape) for shape in ((3, 2, 2), (4, 1, 1), (10, 2, 3))]
