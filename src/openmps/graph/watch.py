"""The warning when a graph trains and a layer learns nothing, or learns in a way that the framework would not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSTrainingWarning
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode, MPSCNNConvolutionNode
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.nodes import MPSNNFilterNode, MPSNNGradientFilterNode
from openmps.kernels.convolution import MPSCNNConvolutionGradient
from openmps.metal.device import CommandBuffer
from openmps.types import MPSNNTrainingStyle

_ENCODES_BEFORE_JUDGEMENT = 2


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


class Watch:
    """Looks once whether the first encodes of a training graph move every layer's weights, and says so if not.

    ``filters`` are all that the graph's results depend on, whether they run or not; ``layers`` those that are updated.
    """

    def __init__(self, filters: Sequence[MPSNNFilterNode], layers: Sequence[Layer]) -> None:
        self._filters = filters
        self._layers = layers
        self._encodes = 0
        self._before: list[tuple[Layer, Tensor]] = []

    def before_encode(self) -> None:
        """At the first encode: name layers that nothing will update, and keep the weights of the others."""
        self._encodes += 1
        if self._encodes > 1:
            return
        _warn(never_asked(self._filters),
              "the data source has no update(), so these layers do not learn; set training_style to UPDATE_DEVICE_NONE "
              "on their nodes if that is meant")  # fmt: skip
        _warn(cut_off(self._filters),
              "no gradient node is in this graph, so these layers do not learn; give every node that training_graph() "
              "returns to MPSNNGraph(result_images=…), or set stop_gradient where training is to end")  # fmt: skip
        self._before = [(layer, layer.kernel.parameters.weights.clone()) for layer in self._layers]

    def after_encode(self, command_buffer: CommandBuffer) -> None:
        """Have the weights compared with those before the first encode, once the first updates have run."""
        if self._encodes == _ENCODES_BEFORE_JUDGEMENT and self._before:
            command_buffer.add_completed_handler(self._judge)

    def _judge(self, buffer: Any) -> None:
        before, self._before = self._before, []
        if buffer.error is not None:
            return
        moved = [layer for layer, old in before if not torch.equal(old, layer.kernel.parameters.weights)]
        _warn([layer.kernel.name for layer, _ in before if layer not in moved],
              f"the weights did not move in {_ENCODES_BEFORE_JUDGEMENT} encodes: check that update() returns the state "
              "of the new weights, that the learning rate is not 0 and that gradients reach these layers")  # fmt: skip
        _warn([layer.kernel.name for layer in moved if not layer.has_answered],
              "update() changed source_state in place and returned None or False, which says that nothing is new: the "
              "framework would drop these updates; return source_state (True on the CPU)")  # fmt: skip


def never_asked(filters: Sequence[MPSNNFilterNode]) -> list[str]:
    """Layers whose style asks for updates and whose data source has no update() to ask."""
    return [
        node.name
        for node in filters
        if isinstance(node, MPSCNNConvolutionGradientNode)
        and node.training_style is not MPSNNTrainingStyle.UPDATE_DEVICE_NONE
        and not _offers_update(node)
    ]


def cut_off(filters: Sequence[MPSNNFilterNode]) -> list[str]:
    """Trainable convolutions that a gradient ought to reach and that have no gradient node among ``filters``.

    The gradient flows back from the losses and from every filter that has gradient nodes, up to a ``stop_gradient``.
    """
    gradients: dict[MPSNNFilterNode, list[MPSNNGradientFilterNode]] = {}
    for node in filters:
        if isinstance(node, MPSNNGradientFilterNode):
            gradients.setdefault(node.forward, []).append(node)
    trained = {id(node.weights) for node in gradients if isinstance(node, MPSCNNConvolutionNode)}
    ahead = [node for node in filters if node in gradients or (gradients and isinstance(node, MPSCNNLossNode))]
    reached: set[MPSNNFilterNode] = set()
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            ahead.extend(_flows_to(node, gradients.get(node, [])))
    return [
        node.name
        for node in filters
        if isinstance(node, MPSCNNConvolutionNode)
        and node in reached
        and id(node.weights) not in trained
        and _offers_update(node)
    ]


def _offers_update(node: MPSCNNConvolutionNode | MPSCNNConvolutionGradientNode) -> bool:
    return callable(getattr(node.weights, "update", None))


def _flows_to(node: MPSNNFilterNode, gradients: Sequence[MPSNNGradientFilterNode]) -> list[MPSNNFilterNode]:
    """The producers that the gradient of ``node`` goes on to."""
    producers: list[MPSNNFilterNode] = []
    for image in node.sources:
        results = [gradient.result_image for gradient in gradients if gradient.sources[1] is image]
        stopped = image.stop_gradient or (bool(results) and all(result.stop_gradient for result in results))
        if image.producer is not None and not stopped:
            producers.append(image.producer)
    return producers


def _warn(names: Sequence[str], message: str) -> None:
    if names:
        warnings.warn(f"{', '.join(names)}: {message}", MPSTrainingWarning, stacklevel=2)
