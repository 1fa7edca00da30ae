"""Archives of kernels, descriptors and padding policies (MPSKeyedUnarchiver.h, macOS 10.13)."""

from openmps.formats.archive.archiver import MPSKeyedArchiver, MPSKeyedUnarchiver

__all__ = ["MPSKeyedArchiver", "MPSKeyedUnarchiver"]
