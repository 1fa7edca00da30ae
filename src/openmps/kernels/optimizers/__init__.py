"""Optimizers: updates of parameters from gradients (MPSNNOptimizers.h, macOS 10.14)."""

from openmps.kernels.optimizers.adam import MPSNNOptimizerAdam
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer
from openmps.kernels.optimizers.rmsprop import MPSNNOptimizerRMSProp
from openmps.kernels.optimizers.stochastic_gradient_descent import MPSNNOptimizerStochasticGradientDescent

__all__ = [
    "MPSNNOptimizer",
    "MPSNNOptimizerAdam",
    "MPSNNOptimizerDescriptor",
    "MPSNNOptimizerRMSProp",
    "MPSNNOptimizerStochasticGradientDescent",
]
