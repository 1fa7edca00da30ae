"""PyTorch modules as networks to train: each becomes the ONNX file that its run begins with."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from openmps.checks import whole
from openmps.core.image.image import MPSImageDescriptor
from openmps.errors import MPSArgumentError, MPSTrainingWarning, warn_user
from openmps.formats.atomic import write_for
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.trainable import data_source_of, offered_updates
from openmps.types import MPSImageFeatureChannelFormat

if TYPE_CHECKING:
    import torch

_WHO = "save_torch_module"


def save_torch_module(
    module: torch.nn.Module, path: str | os.PathLike[str], *, height: int, width: int, channels: int
) -> None:
    """Write a classifier of images of this size as an ONNX file, to be trained: ``TrainingOptions(network=path)``.

    The module takes images ``[N, C, H, W]`` and gives logits, or their softmax; training goes on from its numbers. Its
    batch normalizations keep their momentum. Dropouts are left out, with an ``MPSTrainingWarning``; so are warned of
    layers that PyTorch does not train, and of those used more than once, by calls of functions as well: every use is
    trained by itself.

    Raises:
        MPSTypeError: It is no module.
        MPSOperatorError: Operators that the framework's nodes cannot express: all of them; or it cannot be traced.
        MPSFileError: The file cannot be written.
        MPSError: The onnx package is not installed.
    """
    write_for(_WHO, path, torch_module_bytes(module, height=height, width=width, channels=channels))


def _unsaid(graph: MPSNNGraph) -> dict[str, list[str]]:
    """The layers, by name, that an ONNX file has trained otherwise than PyTorch, under the reasons."""
    nodes = [node for node in graph.kernels if data_source_of(node) is not None]
    uses = Counter(id(data_source_of(node)) for node in nodes)
    fixed = [data_source_of(node).label() for node in nodes if not offered_updates(node)]
    shared = [data_source_of(node).label() for node in nodes if uses[id(data_source_of(node))] > 1]
    return {"frozen, or without parameters": fixed, "used more than once": [*dict.fromkeys(shared)]}


def torch_module_bytes(module: torch.nn.Module, *, height: int, width: int, channels: int) -> bytes:
    """What `save_torch_module` writes."""
    import torch

    from openmps.formats.onnx import from_torch
    from openmps.formats.onnx.saving import exported
    from openmps.runtime.devices import mtl_device
    from openmps.training.network import optimizer_factory
    from openmps.training.source_makers import TrainableDataSources

    given = {"height": height, "width": width, "channels": channels}
    height, width, channels = (whole(_WHO, name, value) for name, value in given.items())
    if (numbers := height * width * channels) >= 2**31:
        raise MPSArgumentError(_WHO, "height", "times width and channels must be below 2**31", numbers)
    # With data sources that train normalizations stay layers of their own; the optimizer is never made.
    sources = TrainableDataSources(optimizer_factory("sgd", 1.0))
    network = from_torch(module, torch.zeros(2, channels, height, width), trainable=sources)
    if network.inference is not network:
        message = f"{type(module).__name__}: its dropouts are left out, as training leaves out those of ONNX files"
        warn_user(message, MPSTrainingWarning)
    graph = network.inference.graph(mtl_device("cpu"))
    for why, names in _unsaid(graph).items():
        if names:
            message = f"{type(module).__name__}: {', '.join(names)}: {why}, which an ONNX file does not say: "
            message += "every use is trained, by numbers of its own"
            warn_user(message, MPSTrainingWarning)
    return exported(graph, MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, width, height, channels))
