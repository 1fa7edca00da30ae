"""Updates of weights behind a gradient pass, by the device and by the CPU.

(MPSCNNConvolution.h and MPSNeuralNetworkTypes.h, ``MPSNNTrainingStyle``, macOS 10.13.4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from openmps.core.kernel.encode import ImageKernel
from openmps.errors import MPSTypeError
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.encoding import StagesStates
from openmps.graph.nodes import MPSNNFilterNode
from openmps.graph.program import Program
from openmps.graph.watch import Layer, Watch
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.metal.device import CommandBuffer
from openmps.types import MPSNNTrainingStyle


class Updates:
    """The trainable layers of one graph, in the order in which their gradients are computed: the last layer first.

    Gradient nodes over one data source, with one training style, are one layer: it has one set of weights.
    """

    def __init__(self, filters: Sequence[MPSNNFilterNode], kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        candidates = [
            Layer(node, kernel, node.training_style)
            for node, kernel in kernels.items()
            if isinstance(node, MPSCNNConvolutionGradientNode) and isinstance(kernel, MPSCNNConvolutionGradient)
        ]
        self._layers: dict[Layer, list[Layer]] = {}
        first: dict[tuple[int, MPSNNTrainingStyle], Layer] = {}
        for layer in candidates:
            if layer.update is not None:
                asked = first.setdefault((id(layer.kernel.data_source), layer.style), layer)
                self._layers.setdefault(asked, []).append(layer)
        self._watch = Watch(filters, list(self._layers))

    def begin(self, program: Program, states: StagesStates) -> UpdatePass:
        """A gradient state for each data source that is asked, which the gradient kernels over it fill in together."""
        self._watch.before_encode()
        made: list[tuple[Layer, MPSCNNConvolutionGradientState]] = []
        for layer, sharing in self._layers.items():
            stage = program.stages[program.places[layer.node.forward]]
            if not isinstance(stage.kernel, MPSCNNConvolution):
                continue
            state = MPSCNNConvolutionGradientState(layer.kernel.device, stage.kernel)
            state.record = stage.plan.record
            for each in sharing:
                states.add_gradients(program.places[each.node], state)
            made.append((layer, state))
        return UpdatePass(made, self._watch)


class UpdatePass(NamedTuple):
    """The updates of one encode."""

    states: Sequence[tuple[Layer, MPSCNNConvolutionGradientState]]
    watch: Watch

    def encode(self, command_buffer: CommandBuffer) -> None:
        """Ask the data sources for updates, each once a batch; all gradients are recorded by now.

        A data source of several layers gets the sum of their gradients, which are all of the same weights.
        """
        for layer, state in self.states:
            _STYLES[layer.style](command_buffer, layer, state)
        if self.states:
            self.watch.after_encode(command_buffer)


def _update_on_device(command_buffer: CommandBuffer, layer: Layer, state: MPSCNNConvolutionGradientState) -> None:
    update, kernel = layer.update, layer.kernel
    if update is None:
        return
    # The source state is the kernel's own memory: an update in place needs no copy.
    source = kernel.parameters.state()
    new = update(command_buffer, state, source)
    if new is None:
        return
    if not isinstance(new, MPSCNNConvolutionWeightsAndBiasesState):
        rule = "must return an MPSCNNConvolutionWeightsAndBiasesState or None when it updates on the device"
        remedy = "Return the state that holds the new weights; it may be source_state, changed in place"
        raise MPSTypeError(kernel.name, "data source update()", rule, type(new).__name__, remedy)
    layer.has_answered = True
    if new is source:
        kernel.parameters.reload_from(kernel.name, command_buffer, new)
    else:
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
