"""Optimizers: updates of parameters from gradients (MPSNNOptimizers.h, macOS 10.14)."""

from openmps.kernels.optimizers.adam import MPSNNOptimizerAdam as MPSNNOptimizerAdam
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor as MPSNNOptimizerDescriptor
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer as MPSNNOptimizer
from openmps.kernels.optimizers.rmsprop import MPSNNOptimizerRMSProp as MPSNNOptimizerRMSProp
from openmps.kernels.optimizers.stochastic_gradient_descent import (
    MPSNNOptimizerStochasticGradientDescent as MPSNNOptimizerStochasticGradientDescent,
)
