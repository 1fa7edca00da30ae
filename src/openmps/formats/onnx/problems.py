"""What a model says that a graph cannot, and how much may be made of a model's file."""

from __future__ import annotations

from typing import NamedTuple

from openmps.errors import MPSFileError

READER = "openmps.formats.onnx"
"""Who refuses a model."""
DEFAULT_FILL = 16 << 20
"""Bytes that operators which repeat numbers may make, unless a caller allows more."""
_MEBIBYTE = 1 << 20
_SHARE = 4  # bytes that may be made of each byte of the file: int8 numbers become float32


class NodeError(Exception):
    """Why no node of the framework computes an operator, and what to do about it."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


NO_OPERATOR = "ONNX has no operator for it", "Save a graph without it"
"""Why a node of the framework cannot be written, and what to do."""


def unknown(operator: str, remedy: str, where: str = "", reader: str = READER) -> NodeError:
    """That no node computes an operator, of ONNX or of PyTorch; recurrent ones are layers by themselves."""
    why, call = f"no node of the framework computes it{where}", RECURRENT.get(operator)
    return NodeError(why, remedy if call is None else f"It is a layer by itself: {reader}.{call} makes it")


RECURRENT = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "recurrent_layers(path)"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "recurrent_layers_of(module)"),
}
"""What makes a layer of a recurrent operator."""


class ShapeError(NodeError):
    """Shapes of a model that do not fit one another, whatever computes it."""


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
        self._share, self._fill = _SHARE * file, fill
        self._taken = self._refused = 0

    def take(self, size: int, what: str) -> None:
        """Raise `NodeError` where ``size`` more bytes are too many."""
        if self._taken + size > self._share + self._fill:
            self._refused += size
            raise NodeError(f"{what} needs {size:,} bytes more than may be made")
        self._taken += size

    def check(self, model: str, who: str = READER) -> None:
        """Raise `MPSFileError` by ``who`` where something was refused: it says how much all of it needs."""
        if not self._refused:
            return
        needed = self._taken + self._refused - self._share
        limit = -(-needed // _MEBIBYTE)
        rule = f"must not need more than {self._fill:,} bytes beyond what its file holds"
        remedy = (
            f"If you trust the file, allow {limit} MiB with --fill-limit {limit}, fill_limit={limit} << 20 in Python"
        )
        raise MPSFileError(who, model, rule, f"{needed:,} bytes", remedy)
