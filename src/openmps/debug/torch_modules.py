"""Traces of PyTorch modules, to hold graphs against: what every layer of a module gives, by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.arrays import numbers
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.formats.layouts import conv_transpose_to_ohwi
from openmps.formats.module_modes import evaluation_mode
from openmps.graph.run.trace import Trace, TracedKind, TracedValue
from openmps.types import MPSImageFeatureChannelFormat

_WHO = "openmps.debug.trace_torch"
_FORMATS = {
    torch.float32: MPSImageFeatureChannelFormat.FLOAT32,
    torch.float64: MPSImageFeatureChannelFormat.FLOAT32,
    torch.float16: MPSImageFeatureChannelFormat.FLOAT16,
}
_PARAMETERS = {"weight": "weights", "bias": "biases"}
_SCALES = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
_NORMALIZATIONS = (
    torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm, torch.nn.InstanceNorm2d, torch.nn.GroupNorm
)  # fmt: skip


def trace_torch(module: torch.nn.Module, images: object) -> Trace:
    """What a PyTorch module computes of images ``[images, height, width, channels]``, by the names of its layers.

    ``images`` are numbers as a graph sees them, uint8 and uint16 ones standing for 0 to 1. The module gets them as
    N, C, H, W, in evaluation mode, and is left as it was. Results of layers become images again: ``[N, channels]`` is
    one pixel. Weights of convolutions are given as OHWI, those of transposed ones turned, as the framework
    has them, and the numbers of normalizations as gamma, beta, mean and variance. Our addition.

    Raises:
        MPSTypeError: It is no module, or the images are no array.
        MPSArgumentError: The images have other axes, or the module cannot compute them.
    """
    if not isinstance(module, torch.nn.Module):
        raise MPSTypeError(_WHO, "module", "must be a torch.nn.Module", type(module).__name__)
    given = _pixels(images)
    source = TracedValue("image", "image", TracedKind.SOURCE, "Tensor", MPSImageFeatureChannelFormat.FLOAT32, given)
    entries, counts = [source], dict[str, int]()
    parameter = next(module.parameters(), torch.zeros(()))

    def keep(layer: torch.nn.Module, _: Any, result: Any) -> None:
        name = names[layer]
        counts[name] = counts.get(name, 0) + 1
        label = name if counts[name] == 1 else f"{name} {counts[name]}"
        if counts[name] == 1:
            entries.extend(_parameters(layer, label))
        if isinstance(result, Tensor) and result.dim() in (2, 4) and result.dtype in _FORMATS:
            form = _FORMATS[result.dtype]
            entries.append(TracedValue(label, label, TracedKind.IMAGE, type(layer).__name__, form, _image(result)))

    names = {layer: name or type(layer).__name__ for name, layer in module.named_modules() if not [*layer.children()]}
    hooks = [layer.register_forward_hook(keep) for layer in names]
    try:
        with evaluation_mode(module), torch.inference_mode():
            pixels = torch.from_numpy(given).permute(0, 3, 1, 2).to(parameter.device, parameter.dtype)
            module(pixels)
    except (RuntimeError, TypeError, ValueError) as error:
        raise MPSArgumentError(_WHO, "images", "must be such as the module computes", error) from error
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(entries)


def _pixels(images: object) -> NDArray[np.float32]:
    kind = images.dtype if isinstance(images, np.ndarray) else None
    given = numbers(_WHO, "images", images).astype(np.float32)
    if given.ndim != 4 or not given.size:
        rule = "must be an array [images, height, width, channels]"
        raise MPSArgumentError(_WHO, "images", rule, f"shape {given.shape}")
    return given / np.float32(np.iinfo(kind).max) if kind in (np.uint8, np.uint16) else given


def _image(result: Tensor) -> NDArray[Any]:
    whole = result if result.dim() == 4 else result[:, :, None, None]
    array = np.array(whole.detach().permute(0, 2, 3, 1).cpu().numpy(), order="C")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _parameters(layer: torch.nn.Module, label: str) -> list[TracedValue]:
    found: list[TracedValue] = []
    is_normalization = isinstance(layer, _NORMALIZATIONS)
    names = _SCALES if is_normalization else _PARAMETERS
    statistics = [each for each in layer.named_buffers(recurse=False) if is_normalization and each[0] in _SCALES]
    for name, value in (*layer.named_parameters(recurse=False), *statistics):
        key = f"{label}/{names.get(name, name)}"
        array = value.detach().cpu().numpy()
        if isinstance(layer, torch.nn.Conv2d) and array.ndim == 4:
            array = array.transpose(0, 2, 3, 1)
        elif isinstance(layer, torch.nn.ConvTranspose2d) and array.ndim == 4:
            array = np.concatenate([conv_transpose_to_ohwi(each) for each in np.split(array, layer.groups)])
        elif isinstance(layer, torch.nn.Linear) and array.ndim == 2:
            array = array[:, None, None, :]
        copied = np.array(array, np.float32, order="C")
        found.append(TracedValue(key, label, TracedKind.PARAMETER, type(layer).__name__, None, copied))
    return found
