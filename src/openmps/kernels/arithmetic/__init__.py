"""Element-wise arithmetic and comparison of images, and gradients (MPSCNNMath.h, macOS 10.13.4 and 10.14.1)."""

from openmps.kernels.arithmetic.forward import MPSCNNAdd as MPSCNNAdd
from openmps.kernels.arithmetic.forward import MPSCNNArithmetic as MPSCNNArithmetic
from openmps.kernels.arithmetic.forward import MPSCNNArithmeticGradientState as MPSCNNArithmeticGradientState
from openmps.kernels.arithmetic.forward import MPSCNNDivide as MPSCNNDivide
from openmps.kernels.arithmetic.forward import MPSCNNMultiply as MPSCNNMultiply
from openmps.kernels.arithmetic.forward import MPSCNNSubtract as MPSCNNSubtract
from openmps.kernels.arithmetic.forward import MPSNNCompare as MPSNNCompare
from openmps.kernels.arithmetic.gradient import MPSCNNAddGradient as MPSCNNAddGradient
from openmps.kernels.arithmetic.gradient import MPSCNNArithmeticGradient as MPSCNNArithmeticGradient
from openmps.kernels.arithmetic.gradient import MPSCNNMultiplyGradient as MPSCNNMultiplyGradient
from openmps.kernels.arithmetic.gradient import MPSCNNSubtractGradient as MPSCNNSubtractGradient
