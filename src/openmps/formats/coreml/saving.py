"""Core ML packages of graphs: an ML program that gives the same numbers, its weights, and what an app has to know."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmps.checks import flag
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.kinds import listed, mapped
from openmps.core.numbers import integer
from openmps.errors import MPSArgumentError, MPSOperatorError, shown
from openmps.formats.atomic import digest_of, write_atomic
from openmps.formats.coreml.blobs import BlobWriter
from openmps.formats.coreml.packages import DATA, MANIFEST
from openmps.formats.coreml.protos import Protos, require_protos
from openmps.formats.coreml.writing import VERSION, WEIGHTS, Program, Value
from openmps.formats.coreml.written_operations import OPERATIONS, Step
from openmps.formats.folders import require_new_folder, whole_folder
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.saving import operators
from openmps.formats.onnx.writing import Writer
from openmps.graph.graph import MPSNNGraph

WRITER = "openmps.formats.coreml.save"
_PLACE, _MODEL = "com.apple.CoreML", "model.mlmodel"
_MOST_IMAGES = 1 << 16
_LABEL = "classLabel"
_ORDERS = {"RGB": 3, "BGR": 3, "grey": 1}
_COLOURS = {"RGB": "RGB", "BGR": "BGR", "grey": "GRAYSCALE"}


class CoreMLPreprocessing(NamedTuple):
    """What is done to the pixels of an image of 0 to 255: ``(pixel - mean) scale``, a number for each channel.

    ``order`` is that of the channels: ``RGB``, ``BGR`` or ``grey``.
    """

    order: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]


def save(
    graph: MPSNNGraph,
    path: str | os.PathLike[str],
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor],
    *,
    half: bool = False,
    batch: int = 1,
    preprocessing: CoreMLPreprocessing | None = None,
    class_labels: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Write a graph for inference as a Core ML package (macOS 12, iOS 15), whole or not at all.

    Inputs and outputs are float32 arrays N, C, H, W with ``batch`` images of the size of ``image_descriptors``, under
    the labels of their handles. With ``half`` weights and all between are float16. With ``preprocessing`` the one
    input is an image, of a batch of one, and what is done to pixels is a part of the program. Where ``class_labels``
    are given and the result is a softmax, the package is a classifier. ``metadata`` is what the package says of itself
    besides the hash of its file of weights (``openmps.weights.sha256``). With ``replace`` it takes the place of a
    package that has no other files. The same graph gives the same bytes.

    Raises:
        MPSArgumentError: An argument does not fit the graph, or the graph follows another convention than the default.
        MPSOperatorError: Nodes that Core ML has no operations for: all of them. Nothing is written.
        MPSFileError: The package is there, or cannot be written.
        MPSError: coremltools is not installed.
    """
    protos = require_protos(WRITER)
    require_new_folder(path, WRITER, replace=replace)
    flag(WRITER, "half", half)
    integer(WRITER, "batch", batch, 1, _MOST_IMAGES, rule=f"must be an integer of 1 to {_MOST_IMAGES}")
    labels = listed(WRITER, "class_labels", class_labels, str, "text")
    if len({*labels}) < len(labels):
        twice = next(each for place, each in enumerate(labels) if each in labels[:place])
        raise MPSArgumentError(WRITER, "class_labels", "must differ: probabilities are kept by label", shown(twice))
    more = {} if metadata is None else dict(mapped(WRITER, "metadata", metadata, str, "text"))
    written, problems = operators(graph, image_descriptors, WRITER)
    package = _Package(protos, written, half=half, batch=batch, preprocessing=preprocessing, labels=labels)
    problems += package.write()
    if problems:
        raise MPSOperatorError(WRITER, "graph", problems)
    files = package.files(more)
    with whole_folder(path, WRITER, replace=replace) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, content)


class _Package:
    """A package on its way."""

    def __init__(
        self, protos: Protos, written: Writer, *, half: bool, batch: int, preprocessing: CoreMLPreprocessing | None,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        self._protos, self._written, self._batch, self._labels = protos, written, batch, labels
        self._preprocessing = preprocessing
        self._program = Program(protos, half=half)
        self._model = protos.model.Model(specificationVersion=VERSION)
        self._values: dict[str, Value] = {}

    # --- the program --------------------------------------------------------------------------------------------------

    def write(self) -> list[dict[str, str]]:
        """Write the program; what Core ML has no operations for."""
        shapes = self._written.lengths()
        for name in self._written.inputs:
            self._values[name] = self._input(name, (self._batch, *shapes[name]))
        problems: list[dict[str, str]] = []
        for node in self._written.nodes:
            if any(name and not self._is_known(name) for name in node.inputs):
                continue  # of one that is a problem
            try:
                step = Step(self._program, node, self._values, self._written.constants)
                self._values[node.outputs[0]] = OPERATIONS[node.operator](step)
            except NodeError as problem:
                operator, why = node.operator, problem.why
                problems.append({"node": node.outputs[0], "operator": operator, "why": why, "remedy": problem.remedy})
        if not problems and all(name in self._values for name in self._written.outputs()):
            self._outputs()
        return problems

    def _is_known(self, name: str) -> bool:
        return name in self._values or name in self._written.constants

    def _input(self, name: str, shape: tuple[int, ...]) -> Value:
        """An input as the program's numbers; of an image what is done to its pixels, in float32."""
        given = self._program.input(name, shape)
        feature = self._model.description.input.add(name=given.name)
        if self._preprocessing is None:
            self._array(feature.type.multiArrayType, shape)
            return self._in_half(given, given.name)
        of = checked(self._preprocessing, shape, len(self._written.inputs))
        image = feature.type.imageType
        image.height, image.width = shape[2:]
        image.colorSpace = self._protos.features.ImageFeatureType.ColorSpace.Value(_COLOURS[of.order])
        scale, mean = (np.array(each, np.float32).reshape(1, -1, 1, 1) for each in (of.scale, of.mean))
        found = self._program.add("mul", f"{given.name}_scaled", shape, {"x": given, "y": scale}, "FLOAT32")
        shift = {"x": found, "y": -mean * scale}
        return self._in_half(self._program.add("add", f"{given.name}_prepared", shape, shift, "FLOAT32"), given.name)

    def _in_half(self, value: Value, name: str) -> Value:
        return self._program.cast(value, f"{name}_half", "FLOAT16") if self._program.half else value

    def _outputs(self) -> None:
        """The outputs as float32, under the names of the graph; of a classifier label and probabilities."""
        outputs, names = self._written.outputs(), list[str]()
        is_classifier = bool(self._labels) and len(outputs) == 1 and self._written.nodes[-1].operator == "Softmax"
        for name in outputs:
            value = self._values[name]
            if self._program.half:
                value = self._program.cast(value, f"{name}_float", "FLOAT32")
            if is_classifier:
                names += self._classifier(value)
                continue
            names.append(value.name)
            self._array(self._model.description.output.add(name=value.name).type.multiArrayType, value.shape)
        self._program.finish(names)

    def _array(self, array: Any, shape: Sequence[int]) -> None:
        array.shape.extend(shape)
        array.dataType = self._protos.features.ArrayFeatureType.FLOAT32

    def _classifier(self, probabilities: Value) -> tuple[str, str]:
        count = int(np.prod(probabilities.shape))
        if count != len(self._labels):
            rule = f"must be {count}, one for each number of the result"
            raise MPSArgumentError(WRITER, "class_labels", rule, len(self._labels), "A classifier takes one image")
        label, by_label = self._program.classify(probabilities, self._labels, _LABEL)
        of = self._model.description
        of.output.add(name=label).type.stringType.SetInParent()
        of.output.add(name=by_label).type.dictionaryType.stringKeyType.SetInParent()
        of.predictedFeatureName, of.predictedProbabilitiesName = label, by_label
        return label, by_label

    # --- the files ----------------------------------------------------------------------------------------------------

    def files(self, metadata: Mapping[str, str]) -> dict[str, bytes | BlobWriter]:
        """The files of the package, by their names."""
        weights = self._program.blobs
        digest = digest_of(weights)
        said = self._model.description.metadata.userDefined
        for key, value in {**metadata, "openmps.weights.sha256": digest}.items():
            said[key] = value
        self._model.mlProgram.CopyFrom(self._program.message)
        model = self._model.SerializeToString(deterministic=True)
        parts = ((f"{_PLACE}/{_MODEL}", _MODEL, "CoreML Model Specification"),
                 (f"{_PLACE}/{WEIGHTS.partition('/')[0]}", "weights", "CoreML Model Weights"))  # fmt: skip
        names = [str(uuid.uuid5(uuid.NAMESPACE_URL, digest + path)) for path, _, _ in parts]
        entries = {
            name: {"author": _PLACE, "description": what, "name": title, "path": path}
            for name, (path, title, what) in zip(names, parts, strict=True)
        }
        manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": names[0]}
        place = f"{DATA}/{_PLACE}"
        return {
            MANIFEST: json.dumps(manifest, indent=4).encode(),
            f"{place}/{_MODEL}": model,
            f"{place}/{WEIGHTS}": weights,
        }


def checked(given: object, shape: Sequence[int], inputs: int) -> CoreMLPreprocessing:
    """A preprocessing that fits the input; of several inputs nobody knows which is the image."""
    who, argument = WRITER, "preprocessing"
    if not isinstance(given, CoreMLPreprocessing) or given.order not in _ORDERS:
        rule = "must be a CoreMLPreprocessing of the order RGB, BGR or grey"
        raise MPSArgumentError(who, argument, rule, getattr(given, "order", type(given).__name__))
    batch, channels = shape[:2]
    if inputs != 1 or batch != 1:
        raise MPSArgumentError(
            who, argument, "is for one image", f"{inputs} inputs, batches of {batch}", "Leave it out"
        )
    lengths = _ORDERS[given.order], len(given.mean), len(given.scale)
    if lengths != (channels,) * 3:
        raise MPSArgumentError(who, argument, f"must have a mean and a scale for {channels} channels", lengths)
    return given
