"""Networks that ONNX files describe: as nodes, as graphs, and ready to run on arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from openmps.checks import flag, whole
from openmps.core.image.batch import MPSImageBatch
from openmps.core.lifetime import check_is_device
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver, Registry
from openmps.formats.onnx.build import Built, Shapes, build, dtype_name
from openmps.formats.onnx.ports import OnnxPort, shape_text
from openmps.formats.onnx.problems import DEFAULT_FILL, READER
from openmps.formats.onnx.reading import read_model
from openmps.formats.onnx.sizes import checked
from openmps.formats.onnx.sources import DataSources, FixedSources
from openmps.formats.paths import path_of
from openmps.graph.description import table
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNImageNode, checked_format
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import MTLCreateSystemDefaultDevice
from openmps.tables import html_table
from openmps.types import MPSImageFeatureChannelFormat

_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_FORMAT = "openmps.onnx 1"


@dataclass(frozen=True)
class OnnxNetwork:
    """The nodes of a model, of which graphs are made: for inference, or with a loss and a training graph behind.

    ``inputs`` and ``outputs`` are image nodes by ONNX's names; outputs that hold the same numbers share an image.
    ``input_ports`` and ``output_ports`` say which axis is where.
    """

    inputs: dict[str, MPSNNImageNode]
    outputs: dict[str, MPSNNImageNode]
    input_ports: dict[str, OnnxPort]
    output_ports: dict[str, OnnxPort]

    def results(self) -> list[MPSNNImageNode]:
        """The images of the outputs, each once."""
        return list(dict.fromkeys(self.outputs.values()))

    def graph(
        self, device: MTLDevice | None = None, channel_format: MPSImageFeatureChannelFormat = _FLOAT32
    ) -> MPSNNGraph:
        """A graph that computes the outputs on a device, the system's default unless said.

        It stores images in a format: float32 unless said.
        """
        checked_format("OnnxNetwork.graph", "format", channel_format)
        graph = MPSNNGraph(MTLCreateSystemDefaultDevice() if device is None else device, result_images=self.results())
        graph.format = channel_format
        return checked(graph, self._inputs_of(graph))

    def model(
        self, device: MTLDevice | None = None, channel_format: MPSImageFeatureChannelFormat = _FLOAT32
    ) -> OnnxModel:
        """The network on a device, the system's default unless said, ready to run on arrays."""
        graph = self.graph(device, channel_format)
        results = self.results()
        outputs = [_at(port, results.index(self.outputs[name])) for name, port in self.output_ports.items()]
        return OnnxModel(graph, self._inputs_of(graph), tuple(outputs))

    def _inputs_of(self, graph: MPSNNGraph) -> tuple[OnnxPort, ...]:
        """The inputs at their places among a graph's sources."""
        nodes = graph.interface.inputs
        return tuple(_at(port, nodes.index(self.inputs[name])) for name, port in self.input_ports.items())


def _at(port: OnnxPort, image: int) -> OnnxPort:
    return replace(port, image=image)


class OnnxModel:
    """A graph with the names, axes and order of a model's inputs and outputs.

    `run` takes and gives arrays as ONNX Runtime does; `save` writes an archive, which `open` reads.
    """

    def __init__(self, graph: MPSNNGraph, inputs: tuple[OnnxPort, ...], outputs: tuple[OnnxPort, ...]) -> None:
        self.graph, self.inputs, self.outputs = checked(graph, inputs), inputs, outputs
        self._queue = graph.device.new_command_queue()

    def __repr__(self) -> str:
        ports = (", ".join(port.name for port in each) for each in (self.inputs, self.outputs))
        return f"<OnnxModel: {next(ports)} → {next(ports)}, {len(self.graph.kernels)} kernels>"

    def _repr_html_(self) -> str:
        ports = (("input", self.inputs), ("output", self.outputs))
        rows = [(which, port.name, port.dtype, shape_text(port.shape)) for which, each in ports for port in each]
        return html_table([("", "name", "type", "shape"), *rows]) + table(self.graph.kernels, self.graph.interface)

    def check(self, arrays: Mapping[str, NDArray[Any]], who: str = "OnnxModel.run", word: str = "input ") -> None:
        """Raise what `run` raises of some arrays, in the name of ``who``; ``word`` stands before their names."""
        self._pixels(arrays, who, word)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs for some inputs, by name, with ONNX's axes and in its order.

        Uint8 and uint16 numbers stand for 0 to 1, as in `MPSImage.from_numpy`, but where the model takes whole numbers.

        Raises:
            MPSArgumentError: An input is missing or of another shape, or a name is none of an input.
            MPSTypeError: An input is no array of real numbers.
        """
        sources = [MPSImageBatch.from_numpy(self.graph.device, each) for each in self._pixels(arrays)]
        command_buffer = self._queue.command_buffer()
        others: list[MPSImageBatch] = []
        result = self.graph.encode_batch(command_buffer, sources, intermediate_images=others)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found = [result, *others]
        return {port.name: port.array(found[port.image].numpy()) for port in self.outputs}

    def _pixels(
        self, arrays: Mapping[str, NDArray[Any]], who: str = "OnnxModel.run", word: str = "input "
    ) -> list[NDArray[Any]]:
        """The arrays as images, in the order of the graph's sources."""
        if not isinstance(arrays, Mapping):
            raise MPSTypeError(who, "arrays", "must be a mapping from names to arrays", type(arrays).__name__)
        names = [port.name for port in self.inputs]
        for name in arrays:
            if name not in names:
                rule = f"is none of the inputs: {', '.join(map(repr, names))}"
                raise MPSArgumentError(who, f"{word}{name}", rule)
        for port in self.inputs:
            if port.name not in arrays:
                rule = f"is missing: an array of {port.dtype}, {port.text}"
                raise MPSArgumentError(who, f"{word}{port.name}", rule)
        pixels = {port.image: port.pixels(arrays[port.name], who, f"{word}{port.name}") for port in self.inputs}
        counts = {len(each) for each in pixels.values()}
        if len(counts) > 1:
            raise MPSArgumentError(who, "inputs", "must be batches of one length", sorted(counts))
        self._check_names(arrays, who, word)
        return [pixels[place] for place in sorted(pixels)]

    def _check_names(self, arrays: Mapping[str, NDArray[Any]], who: str, word: str) -> None:
        """Lengths of one name are one length."""
        known: dict[str, int] = {}
        for port in self.inputs:
            for name, length in zip(port.shape, arrays[port.name].shape, strict=True):
                if isinstance(name, str) and known.setdefault(name, length) != length:
                    rule = f"must have {known[name]} as its length {name!r}, as another axis has"
                    raise MPSArgumentError(who, f"{word}{port.name}", rule, length)

    # --- files --------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> list[Any]:
        """What an archive of it holds: a list, the graph first."""
        ports = [[port.described() for port in each] for each in (self.inputs, self.outputs)]
        return [self.graph, _FORMAT, *ports]

    def archived_data(self) -> bytes:
        """The model as bytes: an archive of its `root`."""
        return MPSKeyedArchiver.archived_data(self.root)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an archive, whole or not at all."""
        MPSKeyedArchiver.archive(self.root, path)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], device: MTLDevice | None = None, *, registry: Registry | None = None
    ) -> OnnxModel:
        """The model in an archive that `save` wrote, on a device: the system's default unless said.

        ``registry`` makes what it holds of classes that are not openmps', as that of `MPSKeyedUnarchiver` does.

        Raises:
            MPSFileError: There is no file, it is damaged, or an archive of something else.
        """
        where = path_of(path, "OnnxModel.open")
        chosen = MTLCreateSystemDefaultDevice() if device is None else device
        found = MPSKeyedUnarchiver(where, chosen, registry=registry).decode_root_object()
        return cls.restored(found, os.fspath(where))

    @classmethod
    def restored(cls, root: object, what: str) -> OnnxModel:
        """The model of what an archive holds; errors call the archive ``what``."""
        who = "OnnxModel.open"
        if not isinstance(root, list) or len(root) != 4 or not isinstance(root[0], MPSNNGraph) or root[1] != _FORMAT:
            remedy = "Make one with openmps convert MODEL.onnx OUT"
            raise MPSFileError(
                who, what, "must be the archive of an ONNX model", "an archive of something else", remedy
            )
        graph, _, inputs, outputs = root
        interface = graph.interface
        images = len(interface.inputs), 1 + len(interface.intermediates)
        if not (isinstance(inputs, list) and isinstance(outputs, list) and interface.result_is_needed):
            raise MPSFileError(who, what, "must name inputs and outputs", None)
        ports = [
            tuple(OnnxPort.restored(each, count, who, what) for each in given)
            for given, count in zip((inputs, outputs), images, strict=True)
        ]
        if sorted(port.image for port in ports[0]) != list(range(images[0])):
            raise MPSFileError(who, what, "must have an input for each source of its graph", len(ports[0]))
        return cls(graph, *ports)


# --- reading ----------------------------------------------------------------------------------------------------------


def network(
    path: str | os.PathLike[str],
    *,
    trainable: bool | DataSources = False,
    shapes: Shapes | None = None,
    outputs: Sequence[str] | None = None,
    fill_limit: int = DEFAULT_FILL,
) -> OnnxNetwork:
    """The nodes of the model in an ONNX file.

    Batch normalization and constant factors become part of the convolutions before them, and so do activations, unless
    the network is ``trainable``: then each layer has nodes of its own, as `MPSNNFilterNode.training_graph` needs, and
    data sources of fixed numbers, or those that ``trainable`` makes (see `DataSources`).

    ``shapes`` gives lengths that the model leaves open, ``{"x": (1, 3, 224, 224)}``; what it leaves open still stays
    open where the operators allow. ``outputs`` ends the model at other values than its own. ``fill_limit`` is how many
    bytes operators may make that repeat numbers (ConstantOfShape, Expand, Tile) or choose channels.

    Raises:
        MPSFileError: There is no file, it is no ONNX model or a damaged one, external data is missing or outside the
            model's folder, or it would take too much memory.
        MPSOperatorError: Operators that the framework's nodes cannot express: all of them.
        MPSArgumentError: A shape or an output is none of the model's.
        MPSError: The onnx package is not installed.
    """
    sources, is_trainable = checked_sources(trainable)
    whole(READER, "fill_limit", fill_limit, 0)
    return network_of(
        build(
            read_model(path),
            sources=sources,
            trainable=is_trainable,
            shapes={} if shapes is None else shapes,
            outputs=outputs,
            fill_limit=fill_limit,
            what=os.fspath(path_of(path, READER)),
        )
    )


def checked_sources(trainable: bool | DataSources) -> tuple[DataSources, bool]:
    """Who makes data sources, and whether the network is trained."""
    if isinstance(trainable, bool | int):
        return FixedSources(), flag(READER, "trainable", trainable)
    if not isinstance(trainable, DataSources):
        rule = "must be a flag, or have convolution() and batch_normalization()"
        raise MPSTypeError(READER, "trainable", rule, type(trainable).__name__)
    return trainable, True


def network_of(built: Built) -> OnnxNetwork:
    """The network of what was built."""
    inputs = {
        tensor.name: OnnxPort.of(
            tensor.name, dtype_name(tensor.kind), _merged(tensor.lengths, picture), 0, picture.layout
        )
        for tensor, picture in built.inputs
    }
    outputs = {
        name: OnnxPort.of(name, dtype_name(kind), picture.layout.shape, 0, picture.layout)
        for name, kind, picture in built.outputs
    }
    return OnnxNetwork(
        {tensor.name: picture.image for tensor, picture in built.inputs},
        {name: picture.image for name, _, picture in built.outputs},
        inputs,
        outputs,
    )


def _merged(declared: Any, picture: Any) -> tuple[int | str | None, ...]:
    return tuple(own if mine is None else mine for mine, own in zip(picture.layout.shape, declared, strict=True))


def load(
    path: str | os.PathLike[str],
    device: MTLDevice | None = None,
    *,
    trainable: bool | DataSources = False,
    shapes: Shapes | None = None,
    outputs: Sequence[str] | None = None,
    fill_limit: int = DEFAULT_FILL,
    channel_format: MPSImageFeatureChannelFormat = _FLOAT32,
) -> MPSNNGraph:
    """The model in an ONNX file as a graph on a device, the system's default unless said.

    Arguments and errors are those of `network`.

    Its sources and results have handles with ONNX's names. An input N, C, H, W is an image of C feature channels, H
    rows and W columns.
    """
    if device is not None:
        check_is_device("openmps.formats.onnx.load", "device", device)
    found = network(path, trainable=trainable, shapes=shapes, outputs=outputs, fill_limit=fill_limit)
    return found.graph(device, channel_format)
