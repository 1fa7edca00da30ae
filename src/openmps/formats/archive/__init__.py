"""Archives of kernels, descriptors, padding policies and graphs (MPSKeyedUnarchiver.h, macOS 10.13.4)."""

from openmps.formats.archive.archiver import MPSKeyedArchiver, MPSKeyedUnarchiver

__all__ = ["MPSKeyedArchiver", "MPSKeyedUnarchiver"]
