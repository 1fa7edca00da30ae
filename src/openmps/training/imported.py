"""Networks that come from ONNX files, trained as those of the table are: from the numbers of the file on."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, size_text
from openmps.formats.archive.sources import ArchivedNormalizationParameters
from openmps.formats.atomic import write_atomic
from openmps.formats.paths import path_of, require_file
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.training.image_normalization_sources import (
    TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource,
)
from openmps.training.normalization_sources import (
    ArrayBatchNormalizationDataSource,
    TrainableBatchNormalizationDataSource,
)
from openmps.training.optimized import OptimizerFactory
from openmps.training.topology import ConvolutionLayer, Layer, Source

if TYPE_CHECKING:
    from openmps.formats.onnx.model import Model, Node
    from openmps.formats.onnx.pictures import Picture

_WHO = "NetworkShape"
KEPT = "network.onnx"
"""What a run calls its copy of the file."""
_LARGEST_BESIDE = 1 << 62
_CHANNELS = (1, 3)
"""Those that files of images are read with."""
_SOFTMAX = ("Softmax", "LogSoftmax")
_BEHIND = frozenset(
    "Add AveragePool Cast Dropout Flatten GlobalAveragePool Identity ReduceMean Relu Reshape Squeeze Unsqueeze".split()
)
"""Operators between the layer of the classes and the logits that do as well for another number of classes."""
_CONTRACTIONS = frozenset(("Conv", "Gemm", "MatMul"))
Row = NDArray[np.float32]


def is_imported(network: object) -> bool:
    """Whether the name of a network is the path of an ONNX file."""
    return isinstance(network, str) and network.lower().endswith(".onnx")


# --- layers with numbers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Convolution:
    """Weights and biases of the file."""

    descriptor: MPSCNNConvolutionDescriptor
    weights: Row = field(repr=False)
    biases: Row | None = field(repr=False)

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Weights (OHWI) and biases."""
        biases = {} if self.biases is None else {"biases": (self.descriptor.output_feature_channels,)}
        return {"weights": self.descriptor.weight_shape(), **biases}

    def fixed(self, label: str, arrays: Mapping[str, Row]) -> Source:
        """A data source of these arrays."""
        return ArrayConvolutionDataSource(self.descriptor, arrays["weights"], arrays.get("biases"), label)

    @property
    def mixes(self) -> bool:
        """Whether a result depends on more than its own channel."""
        return not isinstance(self.descriptor, MPSCNNDepthWiseConvolutionDescriptor)

    def anew(self, classes: int) -> Layer:
        """The same layer for so many classes, with weights that know nothing yet."""
        descriptor = self.descriptor.copy()
        descriptor.output_feature_channels = classes
        return ConvolutionLayer(descriptor, (3 / self.weights[0].size) ** 0.5, None if self.biases is None else 0.0)

    def plain(self, channels: int) -> Layer:
        """The same layer of so many channels, each by itself, that changes no number yet."""
        descriptor = self.descriptor.copy()
        descriptor.input_feature_channels = descriptor.output_feature_channels = channels
        weights = np.ones(descriptor.weight_shape(), np.float32)
        return _Convolution(descriptor, weights, None if self.biases is None else np.zeros(channels, np.float32))

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source that an optimizer trains on from the numbers of the file."""
        return TrainableConvolutionDataSource(self.descriptor, self.weights, self.biases, label, optimizer=optimizer)


@dataclass(frozen=True)
class _Normalization:
    """Scales, shifts and running statistics of the file."""

    rows: tuple[Row, Row, Row, Row] = field(repr=False)
    epsilon: float
    momentum: float

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Gamma, beta, mean and variance."""
        return dict.fromkeys(("gamma", "beta", "mean", "variance"), (self.rows[0].size,))

    def fixed(self, label: str, arrays: Mapping[str, Row]) -> Source:
        """A data source of these arrays."""
        rows = (arrays[name] for name in self.arrays())
        return ArrayBatchNormalizationDataSource(self.rows[0].size, *rows, label=label, epsilon=self.epsilon)

    def plain(self, channels: int) -> Layer:
        """The same layer of so many channels with statistics that know nothing yet."""
        one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return _Normalization((one, zero, zero, one), self.epsilon, self.momentum)

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source that an optimizer trains on from the numbers of the file."""
        return TrainableBatchNormalizationDataSource(
            self.rows[0].size, *self.rows, label, epsilon=self.epsilon, momentum=self.momentum, optimizer=optimizer
        )


@dataclass(frozen=True)
class _ImageNormalization:
    """Scales and shifts of the file, of an instance normalization, or of a group normalization by so many groups."""

    rows: tuple[Row, Row] = field(repr=False)
    epsilon: float
    groups: int | None

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Gamma and beta."""
        return dict.fromkeys(("gamma", "beta"), (self.rows[0].size,))

    def fixed(self, label: str, arrays: Mapping[str, Row]) -> Source:
        """A data source of these arrays."""
        gamma, beta = arrays["gamma"], arrays["beta"]
        return ArchivedNormalizationParameters(
            gamma, beta, epsilon_value=self.epsilon, groups=self.groups or 1, name=label
        )

    def plain(self, channels: int) -> Layer:
        """The same layer of so many channels that changes no number behind its mean and variance yet."""
        one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return _ImageNormalization((one, zero), self.epsilon, self.groups)

    def trainable(self, label: str, seed: int, optimizer: OptimizerFactory) -> Source:
        """A data source that an optimizer trains on from the numbers of the file."""
        count = self.rows[0].size
        options: dict[str, Any] = {"epsilon": self.epsilon, "optimizer": optimizer}
        if self.groups is None:
            return TrainableInstanceNormalizationDataSource(count, *self.rows, label, **options)
        return TrainableGroupNormalizationDataSource(count, self.groups, *self.rows, label, **options)


_Found = _Convolution | _Normalization | _ImageNormalization


class _Collector:
    """Takes down the layers of a model in the order in which they are built."""

    def __init__(self) -> None:
        self.found: list[tuple[str, _Found]] = []
        self._momentum = 0.1

    def with_momentum(self, momentum: float) -> _Collector:
        """Of a layer whose running statistics move so far."""
        self._momentum = momentum
        return self

    def convolution(
        self, descriptor: MPSCNNConvolutionDescriptor, weights: Row, biases: Row | None, label: str
    ) -> ArrayConvolutionDataSource:
        """A convolution or a fully connected layer."""
        source = ArrayConvolutionDataSource(descriptor, weights, biases, label)
        self.found.append((label, _Convolution(source.descriptor(), source.weights(), source.bias_terms())))
        return source

    def batch_normalization(
        self, gamma: Row, beta: Row, mean: Row, variance: Row, epsilon: float, label: str
    ) -> ArrayBatchNormalizationDataSource:
        """A batch normalization."""
        source = ArrayBatchNormalizationDataSource(len(gamma), gamma, beta, mean, variance, label, epsilon=epsilon)
        rows = (source.gamma(), source.beta(), source.mean(), source.variance())
        self.found.append((label, _Normalization(rows, epsilon, self._momentum)))
        return source

    def instance_normalization(self, gamma: Row, beta: Row, epsilon: float, label: str) -> Source:
        """An instance normalization."""
        return self._image_normalization(_ImageNormalization((gamma, beta), epsilon, None), label)

    def group_normalization(self, gamma: Row, beta: Row, groups: int, epsilon: float, label: str) -> Source:
        """A group normalization."""
        return self._image_normalization(_ImageNormalization((gamma, beta), epsilon, groups), label)

    def _image_normalization(self, layer: _ImageNormalization, label: str) -> Source:
        self.found.append((label, layer))
        return layer.fixed(label, dict(zip(layer.arrays(), layer.rows, strict=True)))


class _Given:
    """Hands out the data sources of a network in the order in which they are asked for."""

    def __init__(self, sources: Iterator[Source]) -> None:
        self._sources = sources

    def convolution(self, *numbers: object) -> Source:
        """The next one, whatever the numbers of the file are."""
        return next(self._sources)

    batch_normalization = instance_normalization = group_normalization = convolution


# --- the network ------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """The layer that gives the classes: its label, how many the file's has, and whether its numbers are new."""

    label: str
    classes: int
    is_new: bool


class ImportedTopology:
    """The layers of an ONNX model for images of one size and so many classes, up to the logits.

    The model has one input of images, N x C x H x W, and one output of logits or of their softmax. Where its last layer
    has another number of outputs than there are classes, that layer gets new weights, uniform within
    ``sqrt(3 / inputs)``, and biases of 0.

    Raises:
        MPSFileError: There is no such file, it is no ONNX model, or numbers in other files are missing.
        MPSOperatorError: Operators that the framework's nodes cannot express: all of them.
        MPSArgumentError: The images are not like the model's, or it does not end in a layer of classes.
    """

    def __init__(self, file: str, height: int, width: int, channels: int, classes: int) -> None:
        self._file, self._model = file, _read(file)
        self._input = _input(self._model, file, (channels, height, width))
        self._logits = _logits(self._model, file)
        collector = _Collector()
        logits = self._build(collector)
        labels, found = _labels(label for label, _ in collector.found), [layer for _, layer in collector.found]
        self._layers: dict[str, Layer] = dict(zip(labels, found, strict=True))
        self.head = self._head(labels, found, classes)
        self._check_pixels(logits)

    def _check_pixels(self, logits: Picture) -> None:
        """Raise where an image has several rows of classes: its label is one number."""
        from openmps.formats.onnx.layout import size_of

        layout = logits.layout
        rows, columns = size_of(layout.rows), size_of(layout.columns)
        if {rows, columns} - {1, None}:
            rule = "must end in one pixel, whose channels are the classes"
            got = f"{self._logits!r} of {size_text((rows or 0, columns or 0))} pixels"
            remedy = "End the model in a GlobalAveragePool, or in a fully connected layer"
            raise MPSArgumentError(_WHO, f"network {self._file}", rule, got, remedy)

    def _head(self, labels: list[str], found: list[_Found], classes: int) -> Head:
        mixing = [place for place, layer in enumerate(found) if isinstance(layer, _Convolution) and layer.mixes]
        last = mixing[-1] if mixing else -1
        behind = [layer for layer in found[last + 1 :] if isinstance(layer, _Convolution)]
        if not mixing or any(layer.weights.shape[1:3] != (1, 1) for layer in behind):
            rule = "must give its classes by a layer that reads all channels"
            raise MPSArgumentError(_WHO, f"network {self._file}", rule, "a convolution of each channel by itself")
        layer, label = found[last], labels[last]
        assert isinstance(layer, _Convolution)
        count = layer.descriptor.output_feature_channels
        if count != classes:
            self._layers[label] = layer.anew(classes)
            # Biases and factors that the file adds behind it by themselves.
            self._layers.update({labels[place]: found[place].plain(classes) for place in range(last + 1, len(found))})
        return Head(label, count, count != classes)

    def layers(self) -> dict[str, Layer]:
        """The layers with numbers, by label, in order."""
        return dict(self._layers)

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array, by label and name."""
        return {
            f"{label}.{name}": shape for label, layer in self._layers.items() for name, shape in layer.arrays().items()
        }

    def logits(self, sources: Mapping[str, Source], dropout_seed: int | None) -> MPSNNImageNode:
        """New nodes up to the logits. A dropout of the file does nothing: it has no seed of its own."""
        return self._build(_Given(iter([sources[label] for label in self._layers]))).image

    def _build(self, sources: object) -> Picture:
        from openmps.formats.onnx.build import build
        from openmps.formats.onnx.problems import DEFAULT_FILL

        given: Any = sources
        name, shape = self._input
        built = build(
            self._model,
            sources=given,
            trainable=True,
            shapes={name: shape},
            outputs=[self._logits],
            fill_limit=DEFAULT_FILL,
            what=self._file,
        )
        return built.outputs[0][2]


_Stamp = tuple[int, int]
"""When a file was changed last, and how long it is."""


@lru_cache(maxsize=2)
def _topology(file: str, stamps: tuple[_Stamp, ...], sizes: tuple[int, int, int, int]) -> ImportedTopology:
    return ImportedTopology(file, *sizes)


def imported_topology(file: str, height: int, width: int, channels: int, classes: int) -> ImportedTopology:
    """The layers of the model in a file, which is read once as long as it stays the same; see `ImportedTopology`."""
    path = path_of(file, _WHO)
    where, own = os.fspath(path.absolute()), _stamp(path)
    stamps = (own, *map(_stamp, _beside(where, own)))
    return _topology(where, stamps, (height, width, channels, classes))


@lru_cache(maxsize=2)
def _beside(file: str, stamp: _Stamp) -> list[Path]:
    """The files of external data of the model in a file."""
    from openmps.formats.onnx.reading import external_files

    return external_files(file)


def _stamp(path: Path) -> _Stamp:
    require_file(path, _WHO, _LARGEST_BESIDE)
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def imported_size(file: str) -> tuple[int | None, int | None, int | None]:
    """Rows, columns and channels of the images that the model in a file wants; None for those that it leaves open."""
    model = _read(file)
    _, lengths = _declared(model, file)
    channels, rows, columns = (each if isinstance(each, int) else None for each in lengths[1:])
    if channels not in (None, *_CHANNELS):
        rule = f"must take images of {' or '.join(map(str, _CHANNELS))} channels, grey or red green blue"
        raise MPSArgumentError(_WHO, f"network {file}", rule, channels)
    return rows, columns, channels


def fingerprint(file: str) -> str:
    """The SHA-256 of a file's bytes, its external data taken in."""
    return hashlib.sha256(_whole(file)).hexdigest()


def _whole(file: str) -> bytes:
    from openmps.formats.onnx.reading import whole_bytes

    return whole_bytes(file)


def network_files(network: str) -> dict[str, bytes]:
    """What the folder of a run needs of its network, by name: a copy of the ONNX file, its external data taken in."""
    return {KEPT: _whole(network)} if is_imported(network) else {}


def keep_network(folder: Path, network: str) -> str:
    """Copy the file of a network, its external data taken in, into the folder of its run, and return its name there."""
    kept = folder / KEPT
    if not is_imported(network) or path_of(network, _WHO).absolute() == kept.absolute():
        return network
    write_atomic(kept, network_files(network)[KEPT])
    return os.fspath(kept)


# --- what the file says -----------------------------------------------------------------------------------------------


def _read(file: str) -> Model:
    from openmps.formats.onnx.reading import read_model

    return read_model(file)


def _declared(model: Model, file: str) -> tuple[str, tuple[int | str | None, ...]]:
    """The name and the lengths of the only input."""
    from openmps.formats.onnx.build import is_to_planes

    if len(model.inputs) != 1 or len(model.inputs[0].lengths or ()) != 4:
        rule = "must be a model of one input of images, N x C x H x W"
        got = ", ".join(f"{each.name!r} of {len(each.lengths or ())} axes" for each in model.inputs[:4])
        raise MPSArgumentError(_WHO, f"network {file}", rule, got or "none")
    name = model.inputs[0].name
    readers = [node for node in model.nodes if name in node.inputs]
    if readers and all(map(is_to_planes, readers)):
        rule, got = "must take images as N x C x H x W", f"{name!r} as N x H x W x C, which a Transpose changes"
        remedy = "Leave out that Transpose, and declare the input as N x C x H x W, or export the model so"
        raise MPSArgumentError(_WHO, f"network {file}", rule, got, remedy)
    return name, model.inputs[0].lengths or ()


def _input(model: Model, file: str, given: tuple[int, int, int]) -> tuple[str, tuple[int, ...]]:
    """The name of the input and its shape for such images."""
    name, (batch, *lengths) = _declared(model, file)
    for wanted, own in zip(lengths, given, strict=True):
        if isinstance(wanted, int) and wanted != own:
            rule = "must be the channels, rows and columns of its images, " + "x".join(
                "?" if not isinstance(each, int) else str(each) for each in lengths
            )
            remedy = f"Give images of that size; of class folders, {_options(*lengths)} makes them"
            raise MPSArgumentError(_WHO, f"images for {file}", rule, "x".join(map(str, given)), remedy)
    return name, (batch if isinstance(batch, int) else 1, *given)


def _options(channels: object, rows: object, columns: object) -> str:
    """The options of the command line that make images of this size, as far as the model says it."""
    size = f"--image-size {columns}x{rows}" if isinstance(rows, int) and isinstance(columns, int) else ""
    planes = f"--channels {channels}" if isinstance(channels, int) else ""
    return " ".join(filter(None, (size, planes))) or "--image-size"


def _logits(model: Model, file: str) -> str:
    """The name of the value before the softmax, if there is one, that a layer of classes makes."""
    if len(model.outputs) != 1:
        raise MPSArgumentError(_WHO, f"network {file}", "must have one output, of classes", len(model.outputs))
    makers = {name: node for node in model.nodes for name in node.outputs}
    name = model.outputs[0].name
    behind = list(_behind(makers, name))
    softmax = next((node for node in behind if node.operator in _SOFTMAX), None)
    last = behind[-1] if behind else None
    if last is None or last.operator not in _CONTRACTIONS:
        rule = "must end in a fully connected layer or a convolution of classes, with a softmax or not"
        raise MPSArgumentError(_WHO, f"network {file}", rule, f"{name!r} of {last.operator if last else 'no operator'}")
    return softmax.inputs[0] if softmax is not None else name


def _behind(makers: Mapping[str, Node], name: str) -> Iterator[Node]:
    """The operators from a value back to the layer of classes, or to the first that is none of those behind it."""
    node = makers.get(name)
    while node is not None:
        yield node
        if node.operator not in _BEHIND and node.operator not in _SOFTMAX:
            return
        before = [makers[each] for each in node.inputs if each in makers and makers[each].operator != "Constant"]
        node = before[0] if len(before) == 1 else None


def _labels(given: Iterator[str]) -> list[str]:
    """Names of layers that files can have, each once, whatever the file system makes of capitals."""
    found: dict[str, str] = {}
    for label in given:
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", label).strip("_")[:80] or "layer"
        name, count = plain, 1
        while name.lower() in found:
            count += 1
            name = f"{plain}_{count}"
        found[name.lower()] = name
    return list(found.values())
