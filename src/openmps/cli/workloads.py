"""What ``openmps profile`` runs: a graph by path or by the name of a network, on images of its size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from openmps.cli.options import open_run, parse_image_size
from openmps.cli.subjects import graph_at

if TYPE_CHECKING:
    from openmps.graph.graph import MPSNNGraph
    from openmps.metal.device import CommandBuffer, MTLDevice
    from openmps.types import MPSImageFeatureChannelFormat

_RATE = 1e-3


def workload(
    path: Path,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    batch: int,
    image: str | None,
    classes: int,
    *,
    training: bool,
) -> Callable[[CommandBuffer], Any]:
    """What encodes one step of the network."""
    from openmps.training import NETWORKS

    if str(path) in NETWORKS and not path.exists():
        graph, size, classes = _named(str(path), device, channel_format, batch, image, classes, training=training)
    else:
        graph = graph_at(path, device, channel_format, training=training)
        size, classes = _described(path, image)
    return _encoder(graph, size, classes, batch, training=training)


def _named(
    name: str,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    batch: int,
    image: str | None,
    classes: int,
    *,
    training: bool,
) -> tuple[MPSNNGraph, tuple[int, int, int], int]:
    from openmps.training.network import Network, NetworkShape, optimizer_factory
    from openmps.types import MPSImageFeatureChannelFormat

    if image is None:
        raise typer.BadParameter("is needed for a network by name, such as 224x224x3", param_hint="--image")
    width, height, channels = size = parse_image_size(image)
    shape = NetworkShape(height, width, channels, classes, name)
    network = Network.create(shape, seed=0, optimizer=optimizer_factory("adam", _RATE))
    form = channel_format or MPSImageFeatureChannelFormat.FLOAT32
    if training:
        return network.training_graph(device, form, loss_weight=1 / batch, dropout_seed=0), size, classes
    return network.inference_graph(device, form), size, classes


def _described(path: Path, image: str | None) -> tuple[tuple[int, int, int], int]:
    """Size of images and classes: of a run its own, else as the option says."""
    if not path.is_file():
        from openmps.training.inference import described_network

        shape, names = described_network(open_run(path))
        return (shape.width, shape.height, shape.channels), len(names)
    if image is None:
        raise typer.BadParameter("is needed for archives and models, such as 224x224x3", param_hint="--image")
    return parse_image_size(image), 0


def _encoder(
    graph: MPSNNGraph, size: tuple[int, int, int], classes: int, batch: int, *, training: bool
) -> Callable[[CommandBuffer], Any]:
    from openmps.core.image.batch import MPSImageBatch
    from openmps.kernels.loss.labels import MPSCNNLossLabels

    rng, (width, height, channels) = np.random.default_rng(0), size
    pixels = rng.integers(0, 256, (batch, height, width, channels)).astype(np.uint8)
    given = [MPSImageBatch.from_numpy(graph.device, pixels) for _ in graph.source_image_handles]
    states: list[Any] = []
    if training:
        one_hot = np.eye(classes, dtype=np.float32)[rng.integers(0, classes, batch)]
        states.append(MPSCNNLossLabels.batch(graph.device, one_hot))
    return lambda command_buffer: graph.encode_batch(command_buffer, given, states)
