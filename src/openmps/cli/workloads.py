"""What ``openmps profile`` runs: a graph by path or by the name of a network, on images of its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from openmps.cli.models import required_images
from openmps.cli.options import parse_image_size
from openmps.cli.reading import open_run
from openmps.cli.subjects import found_at
from openmps.errors import MPSArgumentError
from openmps.formats.paths import is_file, is_there

if TYPE_CHECKING:
    from openmps.cli.models import Found
    from openmps.formats.archive import Registry
    from openmps.graph.graph import MPSNNGraph
    from openmps.metal.device import CommandBuffer, MTLDevice
    from openmps.types import MPSImageFeatureChannelFormat

Size = tuple[int, int, int]
"""Width, height and channels."""
_RATE = 1e-3


def is_by_name(path: Path) -> bool:
    """Whether it is the name of a network of openmps."""
    from openmps.training import NETWORKS

    return str(path) in NETWORKS and not is_there(path, "openmps")


def workload(
    path: Path,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    batch: int,
    image: str | None,
    classes: int,
    *,
    training: bool,
    registry: Registry | None = None,
) -> Callable[[CommandBuffer], Any]:
    """What encodes one step of the network."""
    if is_by_name(path):
        graph, size = _named(str(path), device, channel_format, batch, image, classes, training=training)
        sizes = [size] * len(graph.source_image_handles)
    else:
        found = found_at(path, device, channel_format, training=training, registry=registry)
        graph, sizes, classes = found.graph, _sizes(found, image), _classes(path)
    return _encoder(graph, sizes, classes, batch, training=training)


def _named(
    name: str,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    batch: int,
    image: str | None,
    classes: int,
    *,
    training: bool,
) -> tuple[MPSNNGraph, Size]:
    from openmps.training.network import Network, NetworkShape, optimizer_factory
    from openmps.types import MPSImageFeatureChannelFormat

    if image is None:
        raise typer.BadParameter("is needed for a network by name, such as 224x224x3", param_hint="--image")
    width, height, channels = size = parse_image_size(image)
    shape = NetworkShape(height, width, channels, classes, name)
    network = Network.create(shape, seed=0, optimizer=optimizer_factory("adam", _RATE))
    form = channel_format or MPSImageFeatureChannelFormat.FLOAT32
    if training:
        return network.training_graph(device, form, loss_weight=1 / batch, dropout_seed=0), size
    return network.inference_graph(device, form), size


def _sizes(found: Found, image: str | None) -> list[Size]:
    """The size of each source image: as the option says, or the graph's own."""
    given = None if image is None else [image] * len(found.sources)
    images = required_images(found, given, once=True)
    return [(each.width, each.height, each.feature_channels) for each in images]


def _classes(path: Path) -> int:
    """How many classes a run has, 0 for what is none."""
    from openmps.training.inference import described_network

    return 0 if is_file(path, "openmps") else len(described_network(open_run(path))[1])


def _encoder(
    graph: MPSNNGraph, sizes: Sequence[Size], classes: int, batch: int, *, training: bool
) -> Callable[[CommandBuffer], Any]:
    from openmps.core.image.batch import MPSImageBatch
    from openmps.kernels.loss.labels import MPSCNNLossLabels

    needed = 4 * batch * sum(width * height * channels for width, height, channels in sizes)
    if needed > graph.device.max_buffer_length:
        rule = f"must be of images that fit the {graph.device.max_buffer_length:,} bytes of memory"
        raise MPSArgumentError("openmps profile", "--batch and --image", rule, f"{needed:,} bytes as float32")
    rng, given = np.random.default_rng(0), list[MPSImageBatch]()
    for width, height, channels in sizes:
        pixels = rng.integers(0, 256, (batch, height, width, channels), np.uint8)
        given.append(MPSImageBatch.from_numpy(graph.device, pixels))
    states: list[Any] = []
    if training:
        one_hot = np.zeros((batch, classes), np.float32)
        one_hot[np.arange(batch), rng.integers(0, classes, batch)] = 1
        states.append(MPSCNNLossLabels.batch(graph.device, one_hot))
    return lambda command_buffer: graph.encode_batch(command_buffer, given, states)
