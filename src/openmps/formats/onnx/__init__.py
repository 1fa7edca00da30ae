"""ONNX files as networks of the framework's nodes. Needs the onnx package, which the extra ``onnx`` installs."""

from openmps.formats.onnx.dense import DenseLayer
from openmps.formats.onnx.modules import from_torch
from openmps.formats.onnx.network import OnnxModel, OnnxNetwork, load, network
from openmps.formats.onnx.ports import OnnxPort
from openmps.formats.onnx.recurrent import RecurrentLayer
from openmps.formats.onnx.recurrent_reading import (
    recurrent_layers,
    recurrent_layers_of,
    sequence_layers,
    sequence_layers_of,
)
from openmps.formats.onnx.recurrent_writing import save_recurrent
from openmps.formats.onnx.saving import save
from openmps.formats.onnx.sources import DataSources, ImageNormalizationSources, MomentumSources
from openmps.formats.onnx.torch_network import TorchNetwork

__all__ = [
    "DataSources",
    "DenseLayer",
    "ImageNormalizationSources",
    "MomentumSources",
    "OnnxModel",
    "OnnxNetwork",
    "OnnxPort",
    "RecurrentLayer",
    "TorchNetwork",
    "from_torch",
    "load",
    "network",
    "recurrent_layers",
    "recurrent_layers_of",
    "save",
    "save_recurrent",
    "sequence_layers",
    "sequence_layers_of",
]
