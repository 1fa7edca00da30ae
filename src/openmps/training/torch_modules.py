"""PyTorch modules as networks to train: each becomes the ONNX file that its run begins with."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from openmps.checks import whole
from openmps.core.image.image import MPSImageDescriptor
from openmps.errors import MPSArgumentError, MPSTrainingWarning
from openmps.formats.atomic import write_atomic
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
    layers that are frozen and layers that are used more than once, for every use of one is trained by itself.

    Raises:
        MPSTypeError: It is no module.
        MPSOperatorError: Operators that the framework's nodes cannot express: all of them; or it cannot be traced.
        MPSFileError: The file cannot be written.
        MPSError: The onnx package is not installed.
    """
    write_atomic(path, torch_module_bytes(module, height=height, width=width, channels=channels))


def _layers(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The layers that are trained, by name."""
    from torch.nn import GroupNorm, Linear
    from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
    from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

    kinds = (_ConvNd, Linear, _NormBase, GroupNorm)
    return {name or "module": each for name, each in module.named_modules() if isinstance(each, kinds)}


def _frozen(module: torch.nn.Module) -> list[str]:
    """The layers whose numbers PyTorch would not train."""
    found: list[str] = []
    for name, layer in _layers(module).items():
        if not all(own.requires_grad for own in layer.parameters()):
            found.append(name)
    return found


def _shared(module: torch.nn.Module, example: torch.Tensor) -> list[str]:
    """The layers that are called more than once, or have the weights of another."""
    import torch

    from openmps.formats.module_modes import evaluation_mode

    layers, calls = _layers(module), Counter[str]()
    own = {name: [id(each) for each in layer.parameters(recurse=False)] for name, layer in layers.items()}
    holders = Counter(each for found in own.values() for each in found)

    def counted(name: str, *_: object) -> None:
        calls[name] += 1

    hooks = [layer.register_forward_hook(partial(counted, name)) for name, layer in layers.items()]
    try:
        with evaluation_mode(module), torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name in layers if calls[name] > 1 or any(holders[each] > 1 for each in own[name])]


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
        warnings.warn(message, MPSTrainingWarning, stacklevel=3)
    example = torch.zeros(2, channels, height, width)
    for why, names in {"frozen": _frozen(module), "used more than once": _shared(module, example)}.items():
        if names:
            message = f"{type(module).__name__}: {', '.join(names)}: {why}, which an ONNX file does not say: "
            message += "every use is trained, by numbers of its own"
            warnings.warn(message, MPSTrainingWarning, stacklevel=3)
    graph = network.inference.graph(mtl_device("cpu"))
    return exported(graph, MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, width, height, channels))
