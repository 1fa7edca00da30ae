"""Archives of kernels, descriptors, padding policies and graphs (MPSKeyedUnarchiver.h, macOS 10.13.4)."""

from typing import TYPE_CHECKING

from openmps.lazy import lazily

if TYPE_CHECKING:
    from openmps.formats.archive.names import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
