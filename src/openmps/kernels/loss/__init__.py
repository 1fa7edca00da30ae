"""Losses: value and first gradient in one encode, or apart (MPSCNNLoss.h, macOS 10.13.4, 10.14 and 10.15)."""

from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.forward import MPSNNForwardLoss
from openmps.kernels.loss.gradient import MPSNNLossGradient
from openmps.kernels.loss.initial import MPSNNInitialGradient
from openmps.kernels.loss.kernel import MPSCNNLoss
from openmps.kernels.loss.labels import MPSCNNLossDataDescriptor, MPSCNNLossLabels, labels_reader, loss_writer
from openmps.kernels.loss.yolo import MPSCNNYOLOLoss
from openmps.kernels.loss.yolo_descriptor import MPSCNNYOLOLossDescriptor

__all__ = [
    "MPSCNNLoss",
    "MPSCNNLossDataDescriptor",
    "MPSCNNLossDescriptor",
    "MPSCNNLossLabels",
    "MPSCNNYOLOLoss",
    "MPSCNNYOLOLossDescriptor",
    "MPSNNForwardLoss",
    "MPSNNInitialGradient",
    "MPSNNLossGradient",
    "labels_reader",
    "loss_writer",
]
