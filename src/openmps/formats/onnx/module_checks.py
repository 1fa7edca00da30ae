"""What a PyTorch module must be to be read: tensors with numbers, tensors as outputs, and the same at each call."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSOperatorError
from openmps.formats.onnx.problems import NodeError

WHO = "openmps.formats.onnx.from_torch"
_VIEWS = ("view", "reshape", "flatten", "permute", "contiguous")


def check_written(node: Any, own: Container[str]) -> None:
    """Refuse what writes into a tensor of the module's ``own``, or into one that others see in another shape."""
    if not node.target._schema.is_mutable:
        return
    source = node.args[0]
    if source.name in own:
        raise NodeError("it changes a tensor of the module at each call", "Let the module make a new tensor")
    if any(str(each.target).removeprefix("aten.").partition(".")[0] in _VIEWS for each in (source, *source.users)):
        raise NodeError("it writes into a tensor that has a view", "Let the module make a new tensor")


def check_readable(tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Raise `MPSOperatorError` where tensors of a module have no numbers, or others than arrays have."""
    remedy = "Give the module numbers of its own: dense ones, on the CPU or a GPU"
    _refuse("parameter", ((name, _unreadable(value)) for name, value in tensors), remedy)


def _unreadable(value: Tensor) -> str:
    if value.device.type == "meta":
        return "it is on the device meta, and has a shape without numbers"
    if value.is_quantized:
        return "its numbers are quantized"
    return "" if value.layout is torch.strided else f"it has the layout {value.layout}, and is no array"


def check_outputs(names: Sequence[str], given: Sequence[Any]) -> None:
    """Raise `MPSOperatorError` where outputs are no tensors."""
    kinds = (
        (name, "" if hasattr(each, "meta") else f"it is {each!r}, and no tensor")
        for name, each in zip(names, given, strict=True)
    )
    _refuse("output", kinds, "Let the module return tensors alone")


def _refuse(operator: str, reasons: Iterable[tuple[str, str]], remedy: str) -> None:
    problems = [{"node": name, "operator": operator, "why": why, "remedy": remedy} for name, why in reasons if why]
    if problems:
        raise MPSOperatorError(WHO, "module", problems)
