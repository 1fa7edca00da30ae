"""The first NaN: fails a run before anything is updated, and names the kernel, image and channel where it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSNonFiniteError
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.executor import Binding, execute, run_step
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.plan import Program, Step
from openmps.types import MPSImageFeatureChannelFormat

_FLOAT16 = MPSImageFeatureChannelFormat.FLOAT16


def execute_checked(program: Program, binding: Binding) -> None:
    """`execute`, and raise `MPSNonFiniteError` if a loss, a gradient of weights or a result is NaN or infinite.

    The numbers are checked once, at the end. Only if one of them is not finite the steps are run again, with every
    image kept, to find out where it began.
    """
    watched: list[Tensor] = []
    for step in program.steps:
        if isinstance(step.node, MPSCNNLossNode | MPSCNNConvolutionGradientNode):
            binding.keepers.setdefault(step.node, []).append(lambda produced: watched.extend(_tensors(produced)))
    execute(program, binding)
    for stacks in binding.outputs.values():
        watched.extend(_tensors([stack.stored() for stack in stacks]))
    if not _all_finite(watched):
        _locate(program, binding)


def _tensors(produced: Any) -> list[Tensor]:
    items: Sequence[Any] = produced if isinstance(produced, Sequence) else [produced]
    return [item for item in items if isinstance(item, Tensor) and item.is_floating_point()]


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no number is NaN or infinite, with one look at the device. A sum may overflow, so only a yes is final."""
    if not tensors:
        return True
    sums = torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors])
    return bool(torch.isfinite(sums).all()) or all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _locate(program: Program, binding: Binding) -> None:
    """Run every step again, with all images kept, and raise at the first number that is not finite."""
    registers: list[Tensor | None] = [None] * program.registers
    states: list[Any] = [None] * program.states
    for register, stack in enumerate(binding.inputs):
        registers[register] = stack.stored()
        _check_image(f"source image {register} of the graph", stack.stored(), "The image was passed like this")
    for step in program.steps:
        _check_labels(step, binding)
        result, produced = run_step(step, binding, registers, states)
        if step.state_out is not None:
            states[step.state_out] = produced
        registers[step.output] = result
        if result is not None:
            _check_image(step.kernel.name, result, _remedy(step, result))
        _check_gradients(step, produced)


def _check_image(who: str, stored: Tensor, remedy: str) -> None:
    if not stored.is_floating_point() or bool(torch.isfinite(stored).all()):
        return
    image, channel, y, x = (~torch.isfinite(stored)).nonzero()[0].tolist()
    value = stored[image, channel, y, x].item()
    where = f"{value} in image {image}, channel {channel}, pixel ({x}, {y})"
    raise MPSNonFiniteError(who, "result", "must be finite", where, remedy)


def _check_labels(step: Step, binding: Binding) -> None:
    read = binding.labels.get(step.node)
    if read is None:
        return
    for name, values in zip(("labels", "weights of the labels"), read(), strict=True):
        if values is not None and not bool(torch.isfinite(values).all()):
            image, channel = (~torch.isfinite(values)).nonzero()[0].tolist()[:2]
            where = f"{values[image, channel].flatten()[0].item()} in image {image}, channel {channel}"
            raise MPSNonFiniteError(step.kernel.name, name, "must be finite", where, "The labels were passed like this")


def _check_gradients(step: Step, produced: Any) -> None:
    if not isinstance(step.node, MPSCNNConvolutionGradientNode) or produced is None:
        return
    for name, values in zip(("gradient of the weights", "gradient of the biases"), produced, strict=True):
        if not bool(torch.isfinite(values).all()):
            output = int((~torch.isfinite(values)).nonzero()[0][0])
            where = f"{values[output].flatten()[0].item()} for output channel {output}"
            remedy = "The images that it is summed from are finite: lower the loss's weight or the learning rate"
            raise MPSNonFiniteError(step.kernel.name, name, "must be finite", where, remedy)


def _remedy(step: Step, result: Tensor) -> str:
    weights = getattr(getattr(step.kernel, "parameters", None), "weights", None)
    if isinstance(weights, Tensor) and not bool(torch.isfinite(weights).all()):
        return "Its weights are not finite: an update before this encode, or the data source, made them so"
    if step.shape.channel_format is _FLOAT16 and not bool(torch.isnan(result).any()):
        return "FLOAT16 holds numbers up to 65504: store its result image in FLOAT32, or lower the weight of the loss"
    return "Its sources are finite: lower the learning rate, or store images in FLOAT32"
