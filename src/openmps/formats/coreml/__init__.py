"""Core ML's packages as networks of the framework's nodes. Needs coremltools, which the extra ``coreml`` installs."""

from openmps.formats.coreml.network import CoreMLNetwork, load, network
from openmps.formats.coreml.recurrent import recurrent_layers, sequence_layers
from openmps.formats.coreml.saving import CoreMLPreprocessing, save

__all__ = ["CoreMLNetwork", "CoreMLPreprocessing", "load", "network", "recurrent_layers", "save", "sequence_layers"]
