"""Losses that write the first gradient (MPSCNNLoss.h, macOS 10.13.4)."""

from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.kernel import MPSCNNLoss
from openmps.kernels.loss.labels import MPSCNNLossDataDescriptor, MPSCNNLossLabels, labels_reader, loss_writer

__all__ = [
    "MPSCNNLoss",
    "MPSCNNLossDataDescriptor",
    "MPSCNNLossDescriptor",
    "MPSCNNLossLabels",
    "labels_reader",
    "loss_writer",
]
