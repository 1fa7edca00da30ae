"""Recurrent layers out of Core ML's packages and files, as descriptors whose sources hold the weights."""

from __future__ import annotations

import os

from openmps.formats.coreml.draft import is_recurrent
from openmps.formats.coreml.network import read
from openmps.formats.coreml.packages import READER
from openmps.formats.onnx.dense import DenseLayer
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.recurrent import RecurrentLayer
from openmps.formats.onnx.recurrent_reading import ORDERS, recurrent_layers_in, sequence_layers_in


def recurrent_layers(path: str | os.PathLike[str]) -> list[RecurrentLayer]:
    """The recurrent layers of a package (``.mlpackage``) or a file (``.mlmodel``), in its order.

    They are ``lstm``, ``gru`` and ``rnn`` of ML programs, and LSTMs of one direction and of both, GRUs and simple
    recurrent layers of neural networks. What else the model has is not looked at. `MPSRNNMatrixInferenceLayer` takes
    their `RecurrentLayer.descriptors`. Neural networks limit what gates get to ±50, and the cell to a threshold:
    functions that do not end before, and thresholds below 50, are refused.

    Raises:
        MPSOperatorError: Layers that the framework cannot express: all of them.
        MPSFileError: There is no package, it is damaged, or it has no recurrent layer.
        MPSError: coremltools is not installed, whose descriptions of the messages are needed.
    """
    what = os.fspath(path)
    return recurrent_layers_in(read(path, what)[0], what, READER, _is_layer)


def sequence_layers(path: str | os.PathLike[str]) -> list[RecurrentLayer | DenseLayer]:
    """The recurrent and the fully connected layers of a package or a file of a sequence, in its order.

    As `openmps.formats.onnx.sequence_layers` of an ONNX file: operations between them that move numbers are not looked
    at, and others are refused. Errors are those of `recurrent_layers`.
    """
    what = os.fspath(path)
    return sequence_layers_in(read(path, what)[0], what, READER)


def _is_layer(node: Node) -> bool:
    return node.operator in ORDERS or (node.refusal is not None and is_recurrent(node.original))
