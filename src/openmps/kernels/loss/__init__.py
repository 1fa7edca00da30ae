"""Losses: value and first gradient in one encode, or apart (MPSCNNLoss.h, macOS 10.13.4, 10.14 and 10.15)."""

from openmps.kernels.loss.data_descriptor import MPSCNNLossDataDescriptor as MPSCNNLossDataDescriptor
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor as MPSCNNLossDescriptor
from openmps.kernels.loss.forward import MPSNNForwardLoss as MPSNNForwardLoss
from openmps.kernels.loss.gradient import MPSNNInitialGradient as MPSNNInitialGradient
from openmps.kernels.loss.gradient import MPSNNLossGradient as MPSNNLossGradient
from openmps.kernels.loss.labelled import MPSCNNLoss as MPSCNNLoss
from openmps.kernels.loss.labels import MPSCNNLossLabels as MPSCNNLossLabels
from openmps.kernels.loss.yolo import MPSCNNYOLOLoss as MPSCNNYOLOLoss
from openmps.kernels.loss.yolo_descriptor import MPSCNNYOLOLossDescriptor as MPSCNNYOLOLossDescriptor
