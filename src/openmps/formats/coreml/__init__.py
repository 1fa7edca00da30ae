"""Core ML's packages as networks of the framework's nodes. Needs coremltools, which ``openmps[coreml]`` installs."""

from openmps.formats.coreml.network import CoreMLNetwork, load, network

__all__ = ["CoreMLNetwork", "load", "network"]
