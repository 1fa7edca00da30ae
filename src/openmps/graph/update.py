"""Updates of weights behind a gradient pass, by the device and by the CPU.

(MPSCNNConvolution.h and MPSNeuralNetworkTypes.h, ``MPSNNTrainingStyle``, macOS 10.13.4.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmps.core.kernel.encode import ImageKernel
from openmps.errors import MPSTypeError
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.executor import Binding
from openmps.graph.nodes import MPSNNFilterNode
from openmps.graph.plan import Program
from openmps.graph.watch import Watch
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.types import MPSNNTrainingStyle

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer


@dataclass(eq=False, slots=True)
class Layer:
    """A gradient node, and who is asked to update its weights."""

    node: MPSCNNConvolutionGradientNode
    kernel: MPSCNNConvolutionGradient
    style: MPSNNTrainingStyle
    has_answered: bool = False
    """Whether an update has ever said that there are new weights."""

    @property
    def update(self) -> Callable[..., Any] | None:
        """The data source's update; None if nobody is to call it."""
        found = getattr(self.kernel.data_source, "update", None)
        asked = self.style is not MPSNNTrainingStyle.UPDATE_DEVICE_NONE
        return found if asked and callable(found) else None


class Updates:
    """The trainable layers of one graph, in the order in which their gradients are computed: the last layer first."""

    def __init__(self, filters: Sequence[MPSNNFilterNode], kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        candidates = [
            Layer(node, kernel, node.training_style)
            for node, kernel in kernels.items()
            if isinstance(node, MPSCNNConvolutionGradientNode) and isinstance(kernel, MPSCNNConvolutionGradient)
        ]
        self._layers = [layer for layer in candidates if layer.update is not None]
        self._watch = Watch(filters, self._layers)

    def begin(self, program: Program, binding: Binding) -> UpdatePass:
        """A gradient state for each layer that is updated, filled in by the layer's step."""
        self._watch.before_encode()
        steps = {step.node: step for step in program.steps} if self._layers else {}
        states: list[tuple[Layer, MPSCNNConvolutionGradientState]] = []
        for layer in self._layers:
            step = steps[layer.node.forward]
            if not isinstance(step.kernel, MPSCNNConvolution):
                continue
            state = MPSCNNConvolutionGradientState(layer.kernel.device, step.kernel)
            state.record = step.record
            binding.keepers.setdefault(layer.node, []).append(state.absorb)
            states.append((layer, state))
        return UpdatePass(states, self._watch)


class UpdatePass:
    """The updates of one encode."""

    def __init__(self, states: Sequence[tuple[Layer, MPSCNNConvolutionGradientState]], watch: Watch) -> None:
        self._states = states
        self._watch = watch

    def encode(self, command_buffer: CommandBuffer) -> None:
        """Ask the data sources for updates; all gradients are recorded by now.

        So layers that share a data source have the gradients of the same weights; it is asked once for each of them.
        """
        for layer, state in self._states:
            _STYLES[layer.style](command_buffer, layer, state)
        if self._states:
            self._watch.after_encode(command_buffer)


def _update_on_device(command_buffer: CommandBuffer, layer: Layer, state: MPSCNNConvolutionGradientState) -> None:
    update, kernel = layer.update, layer.kernel
    if update is None:
        return
    # The source state is the kernel's own memory: an update in place needs no copy.
    new = update(command_buffer, state, kernel.parameters.state())
    if new is None:
        return
    if not isinstance(new, MPSCNNConvolutionWeightsAndBiasesState):
        raise MPSTypeError(
            kernel.name,
            "data source update()",
            "must return an MPSCNNConvolutionWeightsAndBiasesState or None when it updates on the device",
            type(new).__name__,
            "Return the state that holds the new weights; it may be source_state, changed in place",
        )
    layer.has_answered = True
    kernel.reload_weights_and_biases(command_buffer, new)


def _update_on_cpu(command_buffer: CommandBuffer, layer: Layer, state: MPSCNNConvolutionGradientState) -> None:
    def finished(buffer: Any) -> None:
        update = layer.update
        if buffer.error is None and update is not None and update(None, state, layer.kernel.parameters.state()):
            layer.has_answered = True
            layer.kernel.reload_weights_and_biases_from_data_source()

    command_buffer.add_completed_handler(finished)


_STYLES = {
    MPSNNTrainingStyle.UPDATE_DEVICE_CPU: _update_on_cpu,
    MPSNNTrainingStyle.UPDATE_DEVICE_GPU: _update_on_device,
}
