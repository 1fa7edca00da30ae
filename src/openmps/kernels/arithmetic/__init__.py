"""Element-wise arithmetic and comparison of images, and gradients (MPSCNNMath.h, macOS 10.13.4 and 10.14.1)."""

from openmps.kernels.arithmetic.forward import (
    FLT_MAX,
    MPSCNNAdd,
    MPSCNNArithmetic,
    MPSCNNArithmeticGradientState,
    MPSCNNDivide,
    MPSCNNMultiply,
    MPSCNNSubtract,
    MPSNNCompare,
)
from openmps.kernels.arithmetic.gradient import (
    MPSCNNAddGradient,
    MPSCNNArithmeticGradient,
    MPSCNNMultiplyGradient,
    MPSCNNSubtractGradient,
)

__all__ = [
    "FLT_MAX",
    "MPSCNNAdd",
    "MPSCNNAddGradient",
    "MPSCNNArithmetic",
    "MPSCNNArithmeticGradient",
    "MPSCNNArithmeticGradientState",
    "MPSCNNDivide",
    "MPSCNNMultiply",
    "MPSCNNMultiplyGradient",
    "MPSCNNSubtract",
    "MPSCNNSubtractGradient",
    "MPSNNCompare",
]
