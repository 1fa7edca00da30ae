"""Bytes on disk: weights, their layouts, and files that are written whole or not at all."""

from typing import TYPE_CHECKING

from openmps.lazy import lazily

if TYPE_CHECKING:
    from openmps.formats.names import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
