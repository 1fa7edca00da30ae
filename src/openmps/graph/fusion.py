"""Fusions: steps that become one without changing a number, each turned off with ``MPSNNGraph.allow_fusion``.

`pool_before_relu`: max pooling behind a ReLU runs before it, since ``max(f(x)) = f(max(x))`` for a function that never
falls. The ReLU then works on the pooled image, and the image between the two never exists; in the gradient pass the
mask is applied to the pooled gradient. It needs a max pooling that is the only reader of the ReLU's result besides the
two gradient steps, which must be neighbours too; exported images and states stand in its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from openmps.graph.plan import Step
from openmps.kernels.neuron import MPSCNNNeuron, MPSCNNNeuronGradient
from openmps.kernels.pooling import MPSCNNPoolingMax, MPSCNNPoolingMaxGradient
from openmps.ops.geometry import Window
from openmps.ops.neuron import neuron, neuron_gradient
from openmps.ops.pooling import max_pooling, max_pooling_gradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RELU = MPSCNNNeuronType.RELU


@dataclass(frozen=True, slots=True)
class _Match:
    """The four steps, or two where nothing is trained, that one fusion replaces."""

    relu: Step
    pool: Step
    pool_gradient: Step | None
    relu_gradient: Step | None


def fuse(steps: Sequence[Step], kept: set[int], kept_states: set[int]) -> list[Step]:
    """The steps after every fusion; ``kept`` registers and states are read from outside."""
    fused = list(steps)
    for step in steps:
        match = _match(fused, step, kept, kept_states)
        if match is not None:
            fused = _pool_before_relu(fused, match)
    return fused


def _match(steps: Sequence[Step], relu: Step, kept: set[int], kept_states: set[int]) -> _Match | None:
    if not _is_plain_relu(relu) or relu.output in kept or relu.state_out in kept_states:
        return None
    readers = [step for step in steps if relu.output in step.inputs]
    pools = [step for step in readers if isinstance(step.kernel, MPSCNNPoolingMax)]
    if len(pools) != 1 or pools[0].state_out in kept_states or not _reads_all_channels(pools[0], 0):
        return None
    pool = pools[0]
    gradients = [step for step in readers if step is not pool]
    relu_gradients = [step for step in steps if _takes_state(step, relu.state_out)]
    if not gradients and not relu_gradients:
        return _Match(relu, pool, None, None)
    if len(gradients) != 1 or len(relu_gradients) != 1:
        return None
    pool_gradient, relu_gradient = gradients[0], relu_gradients[0]
    neighbours = (
        isinstance(pool_gradient.kernel, MPSCNNPoolingMaxGradient)
        and _takes_state(pool_gradient, pool.state_out)
        and isinstance(relu_gradient.kernel, MPSCNNNeuronGradient)
        and relu_gradient.inputs == (pool_gradient.output, relu.inputs[0])
        and [step for step in steps if pool_gradient.output in step.inputs] == [relu_gradient]
        and pool_gradient.output not in kept
        and pool_gradient.shape.channel_format == relu_gradient.shape.channel_format
        and pool_gradient.covers
        and relu_gradient.covers
        and _reads_all_channels(pool_gradient, 1)
    )
    return _Match(relu, pool, pool_gradient, relu_gradient) if neighbours else None


def _is_plain_relu(step: Step) -> bool:
    """A ReLU that never falls, over the whole of an image whose format its result shares."""
    kernel = step.kernel
    if not isinstance(kernel, MPSCNNNeuron) or kernel.neuron_type is not _RELU or kernel.a < 0:
        return False
    window = step.plan.sources[0].window
    whole = window.source == window.result and (window.x.offset, window.y.offset) == (0, 0)
    return whole and step.covers and _reads_all_channels(step, 0) and step.input_formats[0] == step.shape.channel_format


def _reads_all_channels(step: Step, source: int) -> bool:
    record = step.plan.sources[source]
    return record.channels == record.extent.channels


def _takes_state(step: Step, state: int | None) -> bool:
    return state is not None and step.state_in == state


def _pool_before_relu(steps: Sequence[Step], match: _Match) -> list[Step]:
    record = match.pool.plan.sources[0]
    kernel = match.relu.kernel
    assert isinstance(kernel, MPSCNNNeuron)
    pair = _ReluPool(record.window, record.edge_mode, kernel.a, is_trained=match.pool_gradient is not None)
    forward = replace(
        match.pool,
        inputs=match.relu.inputs,
        input_formats=match.relu.input_formats,
        plan=match.pool.plan._replace(operation=pair.forward),
    )
    replaced = {id(match.pool): forward}
    dropped = {id(match.relu)}
    if match.pool_gradient is not None and match.relu_gradient is not None:
        gradient, last = match.pool_gradient, match.relu_gradient
        replaced[id(last)] = replace(
            gradient,
            inputs=(gradient.inputs[0], last.inputs[1]),
            input_formats=(gradient.input_formats[0], last.input_formats[1]),
            output=last.output,
            shape=last.shape,
            node=last.node,
            plan=gradient.plan._replace(operation=pair.gradient),
        )
        dropped.add(id(gradient))
    return [replaced.get(id(step), step) for step in steps if id(step) not in dropped]


@dataclass(frozen=True, slots=True)
class _ReluPool:
    """ReLU and max pooling as one operation, and its gradient."""

    window: Window
    edge_mode: MPSImageEdgeMode
    slope: float
    is_trained: bool

    def forward(self, values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, Any]:
        pooled, choice = max_pooling(values[0], self.window, self.edge_mode, with_choice=self.is_trained)
        return neuron(pooled, _RELU, self.slope, 0.0, 0.0), (pooled, choice)

    def gradient(self, values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
        gradient, source = values
        pooled, choice = saved
        if self.slope == 0.0 and bool((pooled == 0).any()):
            return self._unfused(gradient, source), None
        masked = neuron_gradient(gradient, pooled, _RELU, self.slope, 0.0, 0.0)
        return max_pooling_gradient(masked, source, choice, self.window, self.edge_mode), None

    def _unfused(self, gradient: Tensor, source: Tensor) -> Tensor:
        """The two gradients one after the other.

        Where a window's maximum is exactly 0, the ReLU has made it equal to the negative numbers before it in the
        window, and the first of them takes the gradient.
        """
        between = neuron(source, _RELU, self.slope, 0.0, 0.0)
        scattered = max_pooling_gradient(gradient, between, None, self.window, self.edge_mode)
        return neuron_gradient(scattered, source, _RELU, self.slope, 0.0, 0.0)
