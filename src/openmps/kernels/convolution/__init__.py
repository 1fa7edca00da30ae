"""Convolution, fully connected layers and their gradients (MPSCNNConvolution.h, macOS 10.13 and 10.13.4)."""

from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.kernels.convolution.forward import MPSCNNConvolution, MPSCNNFullyConnected
from openmps.kernels.convolution.gradient import MPSCNNConvolutionGradient, MPSCNNFullyConnectedGradient
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)

__all__ = [
    "MPSCNNConvolution",
    "MPSCNNConvolutionDataSource",
    "MPSCNNConvolutionDescriptor",
    "MPSCNNConvolutionGradient",
    "MPSCNNConvolutionGradientState",
    "MPSCNNConvolutionWeightsAndBiasesState",
    "MPSCNNDepthWiseConvolutionDescriptor",
    "MPSCNNFullyConnected",
    "MPSCNNFullyConnectedGradient",
]
