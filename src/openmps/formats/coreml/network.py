"""Networks out of Core ML's packages and files: as nodes, as graphs, and ready to run on arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from openmps.checks import whole
from openmps.core.lifetime import check_is_device
from openmps.errors import MPSFileError
from openmps.formats.coreml.blobs import Blobs
from openmps.formats.coreml.features import features_of
from openmps.formats.coreml.neural_networks import read_neural_network
from openmps.formats.coreml.packages import READER, damaged, read_package
from openmps.formats.coreml.patterns import without_thresholds
from openmps.formats.coreml.pipelines import models_of, read_pipeline
from openmps.formats.coreml.programs import read_program
from openmps.formats.coreml.protos import Protos, require_protos
from openmps.formats.coreml.values import Values
from openmps.formats.onnx.build import Shapes, build
from openmps.formats.onnx.model import Model, contradiction
from openmps.formats.onnx.network import OnnxNetwork, checked_sources, network_of
from openmps.formats.onnx.problems import DEFAULT_FILL
from openmps.formats.onnx.sources import DataSources
from openmps.graph.graph import MPSNNGraph
from openmps.metal.device import MTLDevice
from openmps.types import MPSImageFeatureChannelFormat

_NEURAL_NETWORKS = ("neuralNetwork", "neuralNetworkClassifier", "neuralNetworkRegressor")
_NETWORKS = {"mlProgram", *_NEURAL_NETWORKS}


@dataclass(frozen=True)
class CoreMLNetwork(OnnxNetwork):
    """The nodes of a Core ML model, of which graphs are made, by Core ML's names of inputs and outputs.

    An input that is an image takes pixels of 0 to 255, ``[N, channels, height, width]``, in the order that
    ``image_inputs`` says; the model's scale and bias are part of the network. An output that has the probabilities of
    a classifier has a number for each of ``class_labels``.
    """

    class_labels: tuple[str, ...] = ()
    image_inputs: tuple[tuple[str, str], ...] = ()
    """Names of inputs that are images, and the order of their channels: ``RGB``, ``BGR`` or ``GRAYSCALE``."""
    has_half_weights: bool = False
    """Whether the model has numbers in float16."""


def network(
    path: str | os.PathLike[str],
    *,
    trainable: bool | DataSources = False,
    shapes: Shapes | None = None,
    outputs: Sequence[str] | None = None,
    fill_limit: int = DEFAULT_FILL,
) -> CoreMLNetwork:
    """The nodes of the model in a package (``.mlpackage``) or in a file (``.mlmodel``).

    ML programs and neural networks are read, and pipelines where they are chains of such, with weights of float32 and
    float16, of palettes and of whole numbers with scales, which become float32. The arguments are those of
    `openmps.formats.onnx.network`. Nothing in a package is ever run.

    Raises:
        MPSFileError: There is no package, it is damaged, or a model of another kind, or it would take too much memory.
        MPSOperatorError: Operations that the framework's nodes cannot express: all of them.
        MPSArgumentError: A shape or an output is none of the model's.
        MPSError: coremltools is not installed, whose descriptions of the messages are needed.
    """
    sources, is_trainable = checked_sources(trainable)
    whole(READER, "fill_limit", fill_limit, 0)
    what = os.fspath(path)
    model, more = read(path, what)
    given: Shapes = {} if shapes is None else shapes
    wrong = contradiction(model.inputs, model.outputs, model.nodes, {*model.constants})
    if wrong:
        raise damaged(what, wrong)
    found = network_of(
        build(
            without_thresholds(model), sources=sources, trainable=is_trainable, shapes=given, outputs=outputs,
            fill_limit=fill_limit, what=what, who=READER,
        )
    )  # fmt: skip
    more["has_half_weights"] = any(each.dtype == np.float16 for each in model.constants.values())
    return CoreMLNetwork(found.inputs, found.outputs, found.input_ports, found.output_ports, **more)


def load(
    path: str | os.PathLike[str],
    device: MTLDevice | None = None,
    *,
    trainable: bool | DataSources = False,
    shapes: Shapes | None = None,
    outputs: Sequence[str] | None = None,
    fill_limit: int = DEFAULT_FILL,
    channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT32,
) -> MPSNNGraph:
    """The model in a package or a file as a graph on a device, the system's default unless said.

    Arguments and errors are those of `network`. Its sources and results have handles with Core ML's names.
    """
    if device is not None:
        check_is_device(f"{READER}.load", "device", device)
    found = network(path, trainable=trainable, shapes=shapes, outputs=outputs, fill_limit=fill_limit)
    return found.graph(device, channel_format)


def read(path: str | os.PathLike[str], what: str) -> tuple[Model, dict[str, Any]]:
    """The model in ONNX's terms, and what a network of Core ML has besides."""
    protos = require_protos(READER)
    package = read_package(path, protos)
    features, values = features_of(protos, package.message, what), Values(protos, Blobs(package.folder), package.size)
    kind = package.message.WhichOneof("Type") or "neither"
    if kind.startswith("pipeline"):
        models = models_of(package.message, kind)
        kinds = [each.WhichOneof("Type") or "none" for each in models]
        if not kinds or not {*kinds} <= _NETWORKS:
            rule, found = "must be networks alone", f"a pipeline of {', '.join(kinds[:8]) or 'nothing'}"
            remedy = "Save the network of them by itself: model.pipeline.models has it"
            raise MPSFileError(READER, what, rule, found, remedy)
        model, labels = read_pipeline(models, features, partial(_read_one, protos, values, what), what)
    else:
        model, labels = _read_one(protos, values, what, package.message)
    orders = tuple((name, image.order) for name, image in features.images.items())
    return model, {"class_labels": labels, "image_inputs": orders}


def _read_one(protos: Protos, values: Values, what: str, message: Any) -> tuple[Model, tuple[str, ...]]:
    """The model of one network's message, and the labels of its classes."""
    features, kind = features_of(protos, message, what), message.WhichOneof("Type")
    if kind == "mlProgram":
        return read_program(message, values, features, what)
    if kind in _NEURAL_NETWORKS:
        return read_neural_network(message, kind, features, what)
    raise MPSFileError(READER, what, "must be an ML program or a neural network", kind or "neither")
