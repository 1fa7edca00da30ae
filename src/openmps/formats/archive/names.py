"""Every public name of `openmps.formats.archive`; see `openmps.names`."""

from openmps.formats.archive.archiver import (
    MPSKeyedArchiver as MPSKeyedArchiver,
    MPSKeyedUnarchiver as MPSKeyedUnarchiver,
)
from openmps.formats.archive.values import REGISTRY as REGISTRY, Registry as Registry
