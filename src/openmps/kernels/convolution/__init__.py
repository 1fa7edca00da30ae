"""Convolution, fully connected layers, transposed convolution, their gradients, and binary weights.

(MPSCNNConvolution.h, macOS 10.13, 10.13.4 and 10.15.)
"""

from openmps.kernels.convolution.binary import MPSCNNBinaryConvolution, MPSCNNBinaryFullyConnected
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.descriptor import (
    MPSCNNConvolutionDescriptor,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.kernels.convolution.forward import MPSCNNConvolution, MPSCNNFullyConnected
from openmps.kernels.convolution.gradient import MPSCNNConvolutionGradient, MPSCNNFullyConnectedGradient
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionTransposeGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.transpose import MPSCNNConvolutionTranspose
from openmps.kernels.convolution.transpose_gradient import MPSCNNConvolutionTransposeGradient

__all__ = [
    "MPSCNNBinaryConvolution",
    "MPSCNNBinaryFullyConnected",
    "MPSCNNConvolution",
    "MPSCNNConvolutionDataSource",
    "MPSCNNConvolutionDescriptor",
    "MPSCNNConvolutionGradient",
    "MPSCNNConvolutionGradientState",
    "MPSCNNConvolutionTranspose",
    "MPSCNNConvolutionTransposeGradient",
    "MPSCNNConvolutionTransposeGradientState",
    "MPSCNNConvolutionWeightsAndBiasesState",
    "MPSCNNDepthWiseConvolutionDescriptor",
    "MPSCNNFullyConnected",
    "MPSCNNFullyConnectedGradient",
    "MPSCNNSubPixelConvolutionDescriptor",
]
