"""What a model says that a graph cannot, and how much may be made of a model's file."""

from __future__ import annotations

from typing import NamedTuple

from openmps.errors import MPSFileError

READER = "openmps.formats.onnx"
"""Who refuses a model."""
DEFAULT_FILL = 16 << 20
"""Bytes that operators which repeat numbers may make, unless a caller allows more."""
_SHARE = 4  # bytes that may be made of each byte of the file: int8 numbers become float32


class NodeError(Exception):
    """Why no node of the framework computes an operator, and what to do about it."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


class Problem(NamedTuple):
    """One node of a model that no node of the framework computes."""

    node: str
    """Its name, or that of its first output."""
    operator: str
    """Its type, with the domain if that is not ONNX's own."""
    why: str
    """What is in the way."""
    remedy: str
    """What to do."""


class Budget:
    """The bytes that may be made of a model: a few for each byte of its file, and what repeated numbers may fill."""

    def __init__(self, file: int, fill: int) -> None:
        self._fill = fill
        self._left = _SHARE * file + fill

    def take(self, size: int, what: str) -> None:
        """Raise `MPSFileError` where ``size`` more bytes are too many."""
        self._left -= size
        if self._left < 0:
            rule = f"must not need more than {self._fill:,} bytes beyond what its file holds"
            raise MPSFileError(READER, what, rule, f"{size:,} bytes more", "Raise fill_limit if you trust the file")
