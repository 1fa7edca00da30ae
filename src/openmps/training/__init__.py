"""Training a network: data, networks by name, the loop, run folders, measurements, pictures and progress."""

from typing import TYPE_CHECKING

from openmps.lazy import lazily

if TYPE_CHECKING:
    from openmps.training.names import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
