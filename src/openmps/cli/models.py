"""Graphs by path: the network of a run folder, or the graph in an archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from openmps.checks import size_text
from openmps.cli.archives import archived
from openmps.cli.options import open_run, parse_image_size

if TYPE_CHECKING:
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.formats.swift import SwiftPreprocessing
    from openmps.graph.graph import MPSNNGraph
    from openmps.metal.device import MTLDevice
    from openmps.training.preprocessing import Preprocessing
    from openmps.training.run_folder import RunFolder
    from openmps.types import MPSImageFeatureChannelFormat


class Found(NamedTuple):
    """A graph, what is known of its source image, and lines that say where it comes from."""

    graph: MPSNNGraph
    images: Sequence[MPSImageDescriptor] | None
    notes: Sequence[str]
    preprocessing: SwiftPreprocessing | None = None


def open_graph(
    path: Path,
    *,
    training: bool = False,
    device: MTLDevice | None = None,
    channel_format: MPSImageFeatureChannelFormat | None = None,
) -> Found:
    """The graph at a path, on the CPU unless said; of a run the one that infers, or the one that trains.

    Without a format, images are stored as the run or the archive says.
    """
    from openmps.metal.device import mtl_device

    device = mtl_device("cpu") if device is None else device
    if path.is_file():
        if training:
            raise typer.BadParameter("is for run folders: an archive holds one graph", param_hint="--training")
        return _archived(path, device, channel_format)
    return _of_run(open_run(path), device, channel_format, training=training)


def _archived(path: Path, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat | None) -> Found:
    graph, model = archived(path, device)
    notes = [f"The graph of {path.name}."]
    for word, ports in () if model is None else (("Input", model.inputs), ("Output", model.outputs)):
        notes += [f"{word} {port.name} of the ONNX model: {port.text}." for port in ports]
    if channel_format is not None:
        graph.format = channel_format
    return Found(graph, None, notes)


def _of_run(
    run: RunFolder, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat | None, *, training: bool
) -> Found:
    from openmps.formats.swift import SwiftPreprocessing
    from openmps.training.inference import described_format, described_network, described_preprocessing
    from openmps.training.network import Network, optimizer_factory
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
    if not training:
        return Found(Network.from_arrays(shape, arrays).inference_graph(device, form), images, notes, prepared)
    options = run_options(run)
    batch = options.batch_size
    optimizer = optimizer_factory(options.optimizer, options.learning_rate)
    network = Network.from_arrays(shape, arrays, optimizer=optimizer)
    graph = network.training_graph(device, form, loss_weight=1 / batch, dropout_seed=options.seed)
    weight = [f"The loss is that of batches of {batch} images: its weight is 1 / {batch}."]
    return Found(graph, images, [*notes, *weight], prepared)


def _seen(preprocessing: Preprocessing | None) -> str:
    if preprocessing is None or preprocessing.is_plain:
        return ", unorm8: 0 to 255 stand for 0 to 1, no mean is taken off"
    return f", {preprocessing}, as float16 or float32"


def image_descriptor(text: str) -> MPSImageDescriptor:
    """``224x224x3``: width, height, channels."""
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.types import MPSImageFeatureChannelFormat

    width, height, channels = parse_image_size(text)
    return MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT16, width, height, channels)
