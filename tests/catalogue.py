"""Every kernel class, with sample configurations, images that suit them, their gradient kernels and their oracles.

A property that all kernels share is tested once, over these samples (tests/sweeps). A kernel class that is missing here
fails tests/kernels/test_catalogue.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openmps.core.base_kernel import MPSKernel
from openmps.kernels import arithmetic as arithmetic_kernels
from openmps.kernels import convolution as convolution_kernels
from openmps.kernels import dropout as dropout_kernels
from openmps.kernels import loss as loss_kernels
from openmps.kernels import neuron as neuron_kernels
from openmps.kernels import optimizers as optimizer_kernels
from openmps.kernels import pooling as pooling_kernels
from openmps.kernels import softmax as softmax_kernels
from openmps.metal.device import MTLDevice
from samples.arithmetic import ADDITIONS
from samples.convolution import CONVOLUTIONS, FULLY_CONNECTED
from samples.dropout import DROPOUTS
from samples.loss import LOSSES
from samples.neuron import NEURON_CLASSES, NEURONS
from samples.pooling import AVERAGE_POOLINGS, MAX_POOLINGS
from samples.sample import Sample
from samples.softmax import LOG_SOFTMAXES, SOFTMAXES

SAMPLES: dict[type[MPSKernel], list[Sample]] = {
    convolution_kernels.MPSCNNConvolution: CONVOLUTIONS,
    convolution_kernels.MPSCNNFullyConnected: FULLY_CONNECTED,
    pooling_kernels.MPSCNNPoolingMax: MAX_POOLINGS,
    pooling_kernels.MPSCNNPoolingAverage: AVERAGE_POOLINGS,
    neuron_kernels.MPSCNNNeuron: NEURONS,
    **{
        getattr(neuron_kernels, sample.name.split()[-1]): [sample]
        for sample in NEURON_CLASSES
    },
    softmax_kernels.MPSCNNSoftMax: SOFTMAXES,
    softmax_kernels.MPSCNNLogSoftMax: LOG_SOFTMAXES,
    dropout_kernels.MPSCNNDropout: DROPOUTS,
    arithmetic_kernels.MPSCNNAdd: ADDITIONS,
    loss_kernels.MPSCNNLoss: LOSSES,
}  # fmt: skip
"""Every kernel that makes images from images, forward."""

GRADIENTS: dict[type[MPSKernel], type[MPSKernel]] = {
    convolution_kernels.MPSCNNConvolutionGradient: convolution_kernels.MPSCNNConvolution,
    convolution_kernels.MPSCNNFullyConnectedGradient: convolution_kernels.MPSCNNFullyConnected,
    pooling_kernels.MPSCNNPoolingMaxGradient: pooling_kernels.MPSCNNPoolingMax,
    pooling_kernels.MPSCNNPoolingAverageGradient: pooling_kernels.MPSCNNPoolingAverage,
    neuron_kernels.MPSCNNNeuronGradient: neuron_kernels.MPSCNNNeuron,
    softmax_kernels.MPSCNNSoftMaxGradient: softmax_kernels.MPSCNNSoftMax,
    softmax_kernels.MPSCNNLogSoftMaxGradient: softmax_kernels.MPSCNNLogSoftMax,
    dropout_kernels.MPSCNNDropoutGradient: dropout_kernels.MPSCNNDropout,
    arithmetic_kernels.MPSCNNAddGradient: arithmetic_kernels.MPSCNNAdd,
}
"""Every gradient kernel, and the forward kernel in whose samples it stands."""

OPTIMIZERS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    optimizer_kernels.MPSNNOptimizerStochasticGradientDescent: lambda device: (
        optimizer_kernels.MPSNNOptimizerStochasticGradientDescent(device, 0.1, momentum_scale=0.9)
    ),
    optimizer_kernels.MPSNNOptimizerRMSProp: lambda device: optimizer_kernels.MPSNNOptimizerRMSProp(device, 0.1),
    optimizer_kernels.MPSNNOptimizerAdam: lambda device: optimizer_kernels.MPSNNOptimizerAdam(device, 0.1),
}
"""Every kernel that updates parameters; tests/kernels/test_optimizers.py holds their numbers."""

ABSTRACT: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    pooling_kernels.MPSCNNPooling: lambda device: pooling_kernels.MPSCNNPooling(device, 1, 1),
    pooling_kernels.MPSCNNPoolingGradient: lambda device: pooling_kernels.MPSCNNPoolingGradient(device, 1, 1),
    arithmetic_kernels.MPSCNNArithmetic: arithmetic_kernels.MPSCNNArithmetic,
    arithmetic_kernels.MPSCNNArithmeticGradient: arithmetic_kernels.MPSCNNArithmeticGradient,
    optimizer_kernels.MPSNNOptimizer: lambda device: optimizer_kernels.MPSNNOptimizer(
        device, optimizer_kernels.MPSNNOptimizerDescriptor()
    ),
}
"""Bases that the framework names but that compute nothing themselves."""

ALL = [sample for samples in SAMPLES.values() for sample in samples]
"""Every sample."""

SWEPT = [sample for sample in ALL if sample not in NEURON_CLASSES]
"""The samples for properties of all kernels: the neuron classes are one kernel under many names."""


def having(*traits: str, without: Sequence[str] = (), gradients: bool = False) -> list[Sample]:
    """The swept samples with all of some traits and none of others."""
    return [
        sample
        for sample in SWEPT
        if sample.traits.issuperset(traits)
        and not sample.traits.intersection(without)
        and (sample.gradients or not gradients)
    ]
