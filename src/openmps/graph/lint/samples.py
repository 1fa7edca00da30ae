"""The largest magnitude of every image of a graph, over sample images, computed and stored in float32."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.compile.interface import Results
from openmps.graph.compile.passes import Network
from openmps.graph.graph import MPSNNGraph
from openmps.graph.lint.view import Peak
from openmps.graph.nodes.node import MPSNNImageNode, handle_label
from openmps.types import MPSImageFeatureChannelFormat

_FULL = MPSImageFeatureChannelFormat.FLOAT32
_AT_ONCE = 16
"""Images that are run together."""
Samples = Mapping[str, Any]
"""Arrays ``[images, height, width, channels]`` by the labels of the source images."""


def batches_of(graph: MPSNNGraph, samples: Samples) -> list[Any]:
    """The arrays in the order of the graph's source images; one image alone needs no label."""
    handles = [handle_label(handle) for handle in graph.source_image_handles]
    if not isinstance(samples, Mapping) or not samples or not all(isinstance(name, str) for name in samples):
        rule = "must be arrays by the labels of the source images"
        raise MPSTypeError("lint", "samples", rule, type(samples).__name__, "Pass {'image': array}")
    if graph.source_state_handles:
        rule = "are for graphs that infer: this one takes labels"
        raise MPSArgumentError("lint", "samples", rule, f"{len(graph.source_state_handles)} source states")
    if len(handles) == 1 and len(samples) == 1:
        return _checked([np.asarray(next(iter(samples.values())))])
    if set(handles) != set(samples) or len(set(handles)) != len(handles):
        rule = f"must be one array for each source image, {', '.join(map(repr, handles))}"
        raise MPSArgumentError("lint", "samples", rule, ", ".join(map(repr, samples)))
    return _checked([np.asarray(samples[label]) for label in handles if label is not None])


def _checked(arrays: list[Any]) -> list[Any]:
    counts = {len(array) if array.ndim == 4 else 0 for array in arrays}
    if len(counts) != 1 or 0 in counts:
        rule = "must be [images, height, width, channels], with as many images each"
        raise MPSArgumentError("lint", "samples", rule, ", ".join(str(array.shape) for array in arrays))
    return arrays


def peaks(graph: MPSNNGraph, arrays: Sequence[Any]) -> dict[MPSNNImageNode, Peak]:
    """The peak of each result image over all samples. Data sources are read again."""
    images = [node.result_image for node in graph.kernels]
    found: dict[MPSNNImageNode, Peak] = {}
    with _exported(images):
        probe = _probe(graph, images)
        queue = graph.device.new_command_queue()
        for start in range(0, len(arrays[0]), _AT_ONCE):
            batch = [MPSImageBatch.from_numpy(graph.device, array[start : start + _AT_ONCE]) for array in arrays]
            command_buffer, made = queue.command_buffer(), list[Any]()
            result = probe.encode_batch(command_buffer, batch, intermediate_images=made)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            by_image = dict(zip(probe.interface.intermediates, made, strict=True))
            if result is not None:
                by_image[probe.interface.result] = result
            for image, values in by_image.items():
                found[image] = _joined(found.get(image), values.numpy())
    return found


def _probe(graph: MPSNNGraph, images: Sequence[MPSNNImageNode]) -> MPSNNGraph:
    """A graph of the same filters that hands out every result."""
    filters = list(graph.kernels)
    network = Network(filters, list(graph.interface.inputs), list(graph.interface.input_states))
    results = Results("lint", None, True, [images[-1]], [True])
    probe = MPSNNGraph.assembled(graph.device, network, results)
    probe.format, probe.allow_fusion = _FULL, False
    return probe


@contextmanager
def _exported(images: Sequence[MPSNNImageNode]) -> Generator[None]:
    """Result images that are ordinary ones of float32 and handed out, for the time being."""
    names = ("export_from_graph", "image_allocator", "format")
    before = [{name: getattr(image, name) for name in names} for image in images]
    try:
        for image in images:
            image.export_from_graph, image.image_allocator, image.format = True, MPSImage.default_allocator(), _FULL
        yield
    finally:
        for image, values in zip(images, before, strict=True):
            for name, value in values.items():
                setattr(image, name, value)


def _joined(before: Peak | None, values: Any) -> Peak:
    tensor = torch.as_tensor(np.asarray(values))
    is_finite = bool(torch.isfinite(tensor).all())
    magnitude = float(torch.nan_to_num(tensor, 0.0, 0.0, 0.0).abs().max())
    if before is None:
        return Peak(magnitude, is_finite)
    return Peak(max(before.magnitude, magnitude), before.is_finite and is_finite)
