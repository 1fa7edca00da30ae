"""Convolution, fully connected layers, transposed convolution, their gradients, and binary weights.

(MPSCNNConvolution.h, macOS 10.13, 10.13.4 and 10.15.)
"""

from openmps.kernels.convolution.binary import MPSCNNBinaryConvolution as MPSCNNBinaryConvolution
from openmps.kernels.convolution.binary import MPSCNNBinaryFullyConnected as MPSCNNBinaryFullyConnected
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource as MPSCNNConvolutionDataSource
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor as MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.descriptor import (
    MPSCNNDepthWiseConvolutionDescriptor as MPSCNNDepthWiseConvolutionDescriptor,
)
from openmps.kernels.convolution.descriptor import (
    MPSCNNSubPixelConvolutionDescriptor as MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.kernels.convolution.forward import MPSCNNConvolution as MPSCNNConvolution
from openmps.kernels.convolution.forward import MPSCNNConvolutionGradientState as MPSCNNConvolutionGradientState
from openmps.kernels.convolution.forward import MPSCNNFullyConnected as MPSCNNFullyConnected
from openmps.kernels.convolution.gradient import MPSCNNConvolutionGradient as MPSCNNConvolutionGradient
from openmps.kernels.convolution.gradient import (
    MPSCNNConvolutionTransposeGradient as MPSCNNConvolutionTransposeGradient,
)
from openmps.kernels.convolution.gradient import MPSCNNFullyConnectedGradient as MPSCNNFullyConnectedGradient
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionWeightsAndBiasesState as MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.transpose import MPSCNNConvolutionTranspose as MPSCNNConvolutionTranspose
from openmps.kernels.convolution.transpose import (
    MPSCNNConvolutionTransposeGradientState as MPSCNNConvolutionTransposeGradientState,
)
