"""Runs a program on a command buffer: registers are filled in order and freed behind their last reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from openmps.core.image.storage import Stack, Target, decode, encode
from openmps.graph.nodes import MPSNNFilterNode
from openmps.graph.plan import Program, Step
from openmps.types import MPSImageFeatureChannelFormat


@dataclass(slots=True)
class Binding:
    """What one encode adds to a program: its images, states and tokens."""

    inputs: list[Stack]
    outputs: dict[int, list[Stack]] = field(default_factory=dict[int, list[Stack]])
    tokens: dict[MPSNNFilterNode, Any] = field(default_factory=dict[MPSNNFilterNode, Any])
    labels: dict[MPSNNFilterNode, Callable[[], Any]] = field(default_factory=dict[MPSNNFilterNode, Callable[[], Any]])
    keepers: dict[MPSNNFilterNode, list[Callable[[Any], None]]] = field(
        default_factory=dict[MPSNNFilterNode, list[Callable[[Any], None]]]
    )


def execute(program: Program, binding: Binding) -> None:
    """Run every step. Runs on the queue."""
    registers: list[Tensor | None] = [None] * program.registers
    states: list[Any] = [None] * program.states
    # What the user's images hold already: a result that shares memory with one of them is copied.
    taken = tuple(stack.stored() for stack in binding.inputs)
    registers[: len(taken)] = taken
    for step in program.steps:
        result, produced = run_step(step, binding, registers, states)
        if step.state_out is not None:
            states[step.state_out] = produced
        for keep in binding.keepers.get(step.node, ()):
            keep(produced)
        registers[step.output] = result
        if result is not None:
            for stack in binding.outputs.get(step.output, ()):
                stack.write_stored(result, _whole(step), taken)
                taken = (*taken, result)
        for register in step.frees:
            registers[register] = None
        for state in step.frees_states:
            states[state] = None


def run_step(
    step: Step, binding: Binding, registers: list[Tensor | None], states: list[Any]
) -> tuple[Tensor | None, Any]:
    """One step: its result as it is stored, and what it left for its state."""
    values = tuple(
        _read(registers[register], channel_format, record.channel, record.channels)
        for register, channel_format, record in zip(step.inputs, step.input_formats, step.plan.sources, strict=True)
    )
    result, produced = step.plan.operation(values, _saved(step, binding, states))
    if result is None:
        return None, produced
    stored = encode(result, step.shape.channel_format)
    return (stored if step.covers else _pasted(stored, step)), produced


def _read(stored: Tensor | None, channel_format: MPSImageFeatureChannelFormat, first: int, count: int) -> Tensor:
    assert stored is not None
    if stored.shape[1] != count:
        stored = stored[:, first : first + count]
    return decode(stored, channel_format)


def _saved(step: Step, binding: Binding, states: list[Any]) -> Any:
    if step.state_in is not None:
        return states[step.state_in]
    labels = binding.labels.get(step.node)
    return labels() if labels is not None else binding.tokens.get(step.node)


def _pasted(stored: Tensor, step: Step) -> Tensor:
    """A result that fills a part of its image only; the rest is zero."""
    target: Target = step.plan.target
    whole = torch.zeros(step.shape.extent.shape, dtype=stored.dtype, device=stored.device).contiguous(
        memory_format=torch.channels_last
    )
    whole[
        :,
        target.channel : target.channel + target.channels,
        target.y : target.y + target.height,
        target.x : target.x + target.width,
    ].copy_(stored)
    return whole


def _whole(step: Step) -> Target:
    extent = step.shape.extent
    return Target(0, 0, extent.width, extent.height, 0, extent.channels)
