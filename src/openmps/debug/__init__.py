"""Looking inside: what encodes compute, how two of them differ, and where their time goes. Our addition."""

from typing import TYPE_CHECKING

from openmps.lazy import lazily

if TYPE_CHECKING:
    from openmps.debug.names import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
