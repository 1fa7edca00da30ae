"""Graphs by path: the network of a run folder, or the graph in an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from openmps.cli.archives import archived, labels
from openmps.cli.options import parse_image_size, unorm_notes, warned_once
from openmps.cli.reading import is_coreml, open_run
from openmps.errors import MPSArgumentError, lengths_text, size_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.formats.archive import Registry
    from openmps.formats.onnx import OnnxModel, OnnxPort
    from openmps.formats.swift import SwiftPreprocessing
    from openmps.graph.graph import MPSNNGraph
    from openmps.metal.device import MTLDevice
    from openmps.training.preprocessing import Preprocessing
    from openmps.training.run_folder import RunFolder
    from openmps.types import MPSImageFeatureChannelFormat

_USUAL = (224, 224, 3)
"""Width, height and channels of an example."""


class Source(NamedTuple):
    """A source image: its label, and its lengths where they are known."""

    label: str
    width: int | None
    height: int | None
    channels: int | None
    port: OnnxPort | None = None
    """What it is of an ONNX model."""


class Found(NamedTuple):
    """A graph, what is known of its source images, and lines that say where it comes from."""

    graph: MPSNNGraph
    sources: Sequence[Source]
    images: Sequence[MPSImageDescriptor] | None
    """None where a length is not known."""
    notes: Sequence[str]
    preprocessing: SwiftPreprocessing | None = None
    model: OnnxModel | None = None
    """The ONNX model that it is the graph of."""
    classes: Sequence[str] = ()
    """The classes of a run, in the order of the result's channels."""
    pixel_order: str = ""
    """Of the channels, where the one source image is of pixels from 0 to 255 that the graph itself prepares."""
    has_half_weights: bool = False
    """Whether the graph's numbers are those that float16 holds."""


Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="WIDTHxHEIGHTxCHANNELS",
        help="The size of each source image, for archives that leave it open.",
        show_default=False,
    ),
]


def open_graph(
    path: Path,
    *,
    training: bool = False,
    probabilities: bool = False,
    device: MTLDevice | None = None,
    channel_format: MPSImageFeatureChannelFormat | None = None,
    registry: Registry | None = None,
) -> Found:
    """The graph at a path, on the CPU unless said; of a run the one that infers, or the one that trains.

    The latter gives probabilities, not logits, where it is to. Without a format, images are stored as the run or the
    archive says. ``registry`` makes what an archive holds of classes that are not openmps'.
    """
    from openmps.formats.paths import is_file
    from openmps.runtime.devices import mtl_device

    device = mtl_device("cpu") if device is None else device
    if is_file(path, "openmps") or is_coreml(path):
        if training:
            raise typer.BadParameter("is for run folders: an archive holds one graph", param_hint="--training")
        return _archived(path, device, channel_format, registry)
    return _of_run(open_run(path), device, channel_format, training=training, probabilities=probabilities)


def _archived(
    path: Path, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat | None, registry: Registry | None
) -> Found:
    """The graph in an archive, and the sizes of its images where the archive says them."""
    graph, model = archived(path, device, registry=registry)
    notes = [f"The graph of {path.name}."]
    if channel_format is not None:
        graph.format = channel_format
    if model is None:
        sources = [Source(label, None, None, _channels_read(graph, place)) for place, label in enumerate(labels(graph))]
        return Found(graph, sources, None, notes)
    return _of_model(model, notes)


def open_model(
    path: Path, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat | None, *, apart: bool = True
) -> Found:
    """The graph of an ONNX or Core ML model, whose layers have nodes of their own; one to infer where not ``apart``."""
    from openmps.formats import coreml, onnx
    from openmps.types import MPSImageFeatureChannelFormat

    form = channel_format or MPSImageFeatureChannelFormat.FLOAT32
    with warned_once():
        network = (coreml if is_coreml(path) else onnx).network(path, trainable=apart)
        model = network.model(device, form)
    found = _of_model(model, [f"The graph of {path.name}."])
    if not isinstance(network, coreml.CoreMLNetwork):
        return found
    orders = [order for _, order in network.image_inputs]
    order = orders[0] if len(orders) == len(model.inputs) == 1 else ""
    return found._replace(pixel_order=order, has_half_weights=network.has_half_weights)


def _of_model(model: OnnxModel, notes: Sequence[str]) -> Found:
    """The graph of an ONNX model, and the sizes of its images as far as it says them."""
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.types import MPSImageFeatureChannelFormat

    ports = sorted(model.inputs, key=lambda port: port.image)
    sources = [
        Source(port.name, *map(port.length, (port.columns, port.rows, port.channels)), port=port) for port in ports
    ]
    known = [
        MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT16, each.width, each.height, each.channels)
        for each in sources
        if each.width is not None and each.height is not None and each.channels is not None
    ]
    images = known if len(known) == len(sources) else None
    return Found(model.graph, sources, images, [*notes, *_port_notes(sources, model)], model=model)


def as_taken(found: Found, arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Arrays by the labels of source images as the graph takes them, and what is to be said of them.

    That is what numbers stand for, and that a run was trained on images of another size. Of a model of whole numbers
    bytes are numbers; of all others they stand for 0 to 1. Images of other channels than the network's are refused.
    """
    import numpy as np

    labels = {source.label: source for source in found.sources}
    taken, notes = dict[str, Any](), list[str]()
    for name, array in arrays.items():
        source = found.sources[0] if len(found.sources) == len(arrays) == 1 else labels.get(name)
        _check_channels(name, array, source)
        is_number = source is not None and source.port is not None and not source.port.is_unorm(array.dtype)
        taken[name] = array.astype(np.float32) if is_number and array.dtype.kind in "iub" else array
        notes += unorm_notes(name or "the images", taken[name].dtype)
        if source is not None and source.port is None and source.width and source.height and array.ndim == 4:
            given, trained = lengths_text(array.shape[2:0:-1]), lengths_text((source.width, source.height))
            if given != trained:
                notes.append(f"{name or 'the images'}: {given} pixels, and the network was trained on {trained}")
    return taken, notes


def _check_channels(name: str, array: NDArray[Any], source: Source | None) -> None:
    """Raise where images have other channels than the network reads."""
    if source is None or source.channels is None or array.ndim != 4 or array.shape[-1] == source.channels:
        return
    argument = f"--samples {name!r}" if name else "images"
    rule = f"must be [images, height, width, channels], with {source.channels} channels"
    raise MPSArgumentError("openmps", argument, rule, lengths_text(array.shape))


def chosen_images(found: Found, given: Sequence[str] | None) -> Sequence[MPSImageDescriptor] | None:
    """The source images that ``--image`` gives, or those that are known; None where nobody says."""
    if not given:
        return found.images
    if len(given) != len(found.sources):
        names = ", ".join(repr(source.label) for source in found.sources)
        raise typer.BadParameter(f"must be given once for each source image: {names}", param_hint="--image")
    return [_descriptor(text, source) for text, source in zip(given, found.sources, strict=True)]


def required_images(
    found: Found, given: Sequence[str] | None, *, otherwise: str = "", once: bool = False
) -> Sequence[MPSImageDescriptor]:
    """The source images that ``--image`` gives, or those that are known; refused where nobody says, with an example.

    ``otherwise`` is what else would do. ``once`` says that one size is for all.
    """
    images = chosen_images(found, given)
    if images is not None:
        return images
    sources = found.sources[:1] if once else found.sources
    sizes = " ".join(f"--image {_example(source)}" for source in sources)
    names = ", ".join(repr(source.label) for source in found.sources)
    rule = f"is needed: the file leaves the size of {names} open. Add {sizes}, of the size that you use{otherwise}"
    raise typer.BadParameter(rule, param_hint="--image")


def _example(source: Source) -> str:
    """A size that a source could have, where its own is open."""
    return "x".join(str(other if own is None else own) for own, other in zip(source[1:4], _USUAL, strict=True))


def _descriptor(text: str, source: Source) -> MPSImageDescriptor:
    """``224x224x3``: width, height, channels."""
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.types import MPSImageFeatureChannelFormat

    lengths = parse_image_size(text)
    for own, length, word in zip(source[1:4], lengths, ("columns", "rows", "channels"), strict=True):
        if own is not None and own != length:
            raise typer.BadParameter(f"{text!r} must have {own} {word}, as {source.label!r} has", param_hint="--image")
    return MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT16, *lengths)


def _channels_read(graph: MPSNNGraph, place: int) -> int | None:
    """The channels that the convolutions which read a source image take."""
    from openmps.kernels.convolution import MPSCNNConvolution

    image = graph.interface.inputs[place]
    kernels = [kernel for node, kernel in graph.kernels.items() if image in node.sources[:1]]
    found = {kernel.input_feature_channels for kernel in kernels if isinstance(kernel, MPSCNNConvolution)}
    return found.pop() if len(found) == 1 and len(kernels) == 1 else None


def _port_notes(sources: Sequence[Source], model: OnnxModel) -> list[str]:
    """What an app has to know of the images of an ONNX model."""
    lines: list[str] = []
    for source, port in zip(sources, sorted(model.inputs, key=lambda port: port.image), strict=True):
        size = "x".join("?" if each is None else str(each) for each in source[1:4])
        lines.append(f"The image {source.label!r} is {size} (width, height, channels), of the model's {port.text}.")
    lines.append("Its numbers are those that the model takes: an app scales and takes means off as the training did.")
    for port in model.outputs:
        where = "The result" if not port.image else f"Intermediate image {port.image - 1}"
        lines.append(f"{where} is the output {port.name!r}, of the model's {port.text}.")
    return lines


def _of_run(
    run: RunFolder,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    *,
    training: bool,
    probabilities: bool,
) -> Found:
    from openmps.formats.swift import SwiftPreprocessing
    from openmps.training.inference import described_format, described_network, described_preprocessing
    from openmps.training.network import Network
    from openmps.training.run_description import run_options

    shape, names = described_network(run)
    arrays, form = run.load_weights(shape.arrays()), channel_format or described_format(run)
    size = size_text((shape.height, shape.width, shape.channels))
    seen = described_preprocessing(run)
    prepared = None if seen is None else SwiftPreprocessing(seen.order, seen.mean, seen.scale)
    notes = [
        f"The network {shape.network} of the run {run.path.name}.",
        f"Images are {size}{_seen(seen)}.",
        f"Classes in the order of the result's channels: {', '.join(names)}.",
    ]
    images = [shape.image_descriptor()]
    sources = [Source("image", shape.width, shape.height, shape.channels)]
    if not training:
        graph = Network.from_arrays(shape, arrays).inference_graph(device, form)
        return Found(graph, sources, images, notes, prepared, classes=names)
    options = run_options(run)
    batch = options.batch_size
    network = Network.from_arrays(shape, arrays, optimizer=options.optimizer_factory())
    graph = network.training_graph(
        device,
        form,
        loss_weight=1 / batch,
        dropout_seed=options.seed,
        label_smoothing=options.augments.label_smoothing,
        probabilities=probabilities,
    )
    weight = [f"The loss is that of batches of {batch} images: its weight is 1 / {batch}."]
    return Found(graph, sources, images, [*notes, *weight], prepared)


def _seen(preprocessing: Preprocessing | None) -> str:
    if preprocessing is None or preprocessing.is_plain:
        return ", unorm8: 0 to 255 stand for 0 to 1, no mean is taken off"
    return f", {preprocessing}, as float16 or float32"
