"""ONNX files as networks of the framework's nodes. Needs the onnx package, which ``openmps[onnx]`` installs."""

from openmps.formats.onnx.modules import from_torch
from openmps.formats.onnx.network import OnnxModel, OnnxNetwork, load, network
from openmps.formats.onnx.ports import OnnxPort
from openmps.formats.onnx.saving import save
from openmps.formats.onnx.sources import DataSources

__all__ = ["DataSources", "OnnxModel", "OnnxNetwork", "OnnxPort", "from_torch", "load", "network", "save"]
