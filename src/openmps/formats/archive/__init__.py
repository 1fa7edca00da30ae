"""Archives of kernels, descriptors, padding policies and graphs (MPSKeyedUnarchiver.h, macOS 10.13.4)."""

from openmps.formats.archive.archiver import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.formats.archive.values import REGISTRY, Registry

__all__ = ["REGISTRY", "MPSKeyedArchiver", "MPSKeyedUnarchiver", "Registry"]
