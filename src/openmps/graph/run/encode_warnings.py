"""What a graph warns of when it is encoded.

`StaleWeights`: it runs with weights that other kernels of its data sources have left behind. `Watch`: it trains and a
layer learns nothing, or learns in a way that the framework would not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openmps.checks import memory_for
from openmps.core.weight_versions import Held, HoldsWeights
from openmps.errors import MPSTrainingWarning, warn_user
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, row_of
from openmps.graph.nodes.rows import Row
from openmps.graph.nodes.trainable import TrainableNode, data_source_of, offered_updates, training_of
from openmps.graph.nodes.training import Callback, Training
from openmps.metal.device import CommandBuffer
from openmps.types import MPSNNTrainingStyle

_ENCODES_BEFORE_JUDGEMENT = 2
_PART = 2**15 - 1
"""Numbers that one thread compares: the engine's threads of a handler would stay there beside those of the launches."""


class StaleWeights:
    """What the kernels of one graph hold; convolutions of one data source hold it together."""

    def __init__(self, kernels: Iterable[Any]) -> None:
        owners: dict[Held, Any] = {}
        for kernel in kernels:
            if isinstance(kernel, HoldsWeights):
                for held in kernel.held_weights:
                    owners.setdefault(held, kernel)
        self._owners = owners
        self._has_warned = False

    def warn(self) -> None:
        """Name the kernels whose data source has newer numbers, at the first encode that uses the old ones.

        Where their versions are older, once the numbers are compared.
        """
        for held in self._owners:
            if held.version < held.lineage.latest:
                break
        else:
            self._has_warned = False
            return
        if self._has_warned:
            return
        names = dict.fromkeys(kernel.name for held, kernel in self._owners.items() if not held.holds_newest())
        if not names:
            return
        self._has_warned = True
        message = (
            f"{', '.join(names)}: another graph or kernel of the same data source was given newer weights: call "
            "reload_from_data_sources() before the encode, with a data source that brings the new weights; where the "
            "old ones are meant, give this graph a data source of its own"
        )
        warn_user(message, MPSTrainingWarning)

    def names(self) -> list[str]:
        """The kernels that hold other numbers than their data sources give now, or older ones than another kernel."""
        kernels = {id(kernel): kernel for kernel in self._owners.values()}
        behind = {id(kernel) for held, kernel in self._owners.items() if not held.holds_newest()}
        return [each.name for key, each in kernels.items() if key in behind or each.holds_stale_weights()]


@dataclass(eq=False, slots=True)
class Layer:
    """A gradient node, and who is asked to update its parameters."""

    node: MPSNNGradientFilterNode
    kernel: Any
    """The kernel that holds the parameters."""
    source: Any
    """Its data source."""
    style: MPSNNTrainingStyle
    holders: Sequence[Any]
    """That kernel, and those of the same data source in the graph that hold parameters of their own."""
    training: Training
    callbacks: Sequence[Callback]
    """What the data source is asked for."""
    is_whole: bool
    """Whether one state serves the whole batch."""
    has_answered: bool = False
    """Whether an update has ever said that there are new parameters."""

    def numbers(self) -> list[Tensor]:
        """The parameters that are trained by gradients, as they are in memory."""
        if hasattr(self.kernel, "parameters"):
            return [self.kernel.parameters.weights]
        if hasattr(self.kernel, "gamma_and_beta"):
            return [buffer.memory(torch.float32) for buffer in self.kernel.gamma_and_beta]
        return [row.value() for row in (self.kernel.numbers.gamma, self.kernel.numbers.beta)]

    def versions(self) -> list[int]:
        """The versions of the parameters: each reload that brings new numbers makes another, a write in place none."""
        kernels = (each for each in self.holders if isinstance(each, HoldsWeights))
        return [held.version for each in kernels for held in each.held_weights]


class Watch:
    """Looks once whether the first encodes of a training graph move every layer's weights, and says so if not.

    ``filters`` are all that the graph's results depend on, whether they run or not; ``layers`` those that are updated.
    """

    def __init__(self, filters: Sequence[MPSNNFilterNode], layers: Sequence[Layer]) -> None:
        self._filters = filters
        self._layers = layers
        self._encodes = 0
        self._before: list[tuple[Layer, list[Tensor], list[int]]] = []
        self.has_judged = False
        """Whether there is nothing more to look at."""

    def before_encode(self) -> None:
        """At the first encode: name layers that nothing will update, and keep the weights of the others."""
        self._encodes += 1
        self.has_judged = self._encodes >= _ENCODES_BEFORE_JUDGEMENT
        if self._encodes > 1:
            return
        _warn(never_asked(self._filters),
              "the data source has no update(), a normalization's no update_gamma_and_beta(), so these layers do not "
              "learn; set training_style to UPDATE_DEVICE_NONE on their nodes if that is meant")  # fmt: skip
        _warn(cut_off(self._filters),
              "no gradient node is in this graph, so these layers do not learn; give every node that training_graph() "
              "returns to MPSNNGraph(result_images=…), or set stop_gradient where training is to end")  # fmt: skip
        with memory_for("MPSNNGraph", "weights before the first update"):
            self._before = [
                (layer, [row.clone() for row in layer.numbers()], layer.versions()) for layer in self._layers
            ]

    def after_encode(self, command_buffer: CommandBuffer) -> None:
        """Have the weights compared with those before the first encode, once the first updates have run."""
        if self._encodes == _ENCODES_BEFORE_JUDGEMENT and self._before:
            command_buffer.add_completed_handler(self._judge)

    def _judge(self, buffer: Any) -> None:
        before, self._before = self._before, []
        if buffer.error is not None:
            return
        still = [layer for layer, old, _ in before if all(map(_are_same, old, layer.numbers()))]
        _warn([layer.kernel.name for layer in still],
              f"the weights did not move in {_ENCODES_BEFORE_JUDGEMENT} encodes: check that update() returns the state "
              "of the new weights, that the learning rate is not 0 and that gradients reach these layers")  # fmt: skip
        in_place = [layer for layer, _, old in before if layer not in still and layer.versions() == old]
        _warn([layer.kernel.name for layer in in_place if not layer.has_answered],
              "update() changed source_state in place and returned None or False, which says that nothing is new: the "
              "framework would drop these updates; return source_state (True on the CPU)")  # fmt: skip


def _are_same(old: Tensor, new: Tensor) -> bool:
    return all(map(torch.equal, *(each.flatten().split(_PART) for each in (old, new))))


def never_asked(filters: Sequence[MPSNNFilterNode]) -> list[str]:
    """Layers whose style asks for updates and whose data source has no update() to ask."""
    return [
        node.name
        for node in filters
        if isinstance(node, MPSNNGradientFilterNode)
        and isinstance(node, TrainableNode)
        and node.training_style is not MPSNNTrainingStyle.UPDATE_DEVICE_NONE
        and not offered_updates(node)
    ]


def cut_off(filters: Sequence[MPSNNFilterNode]) -> list[str]:
    """Trainable layers that a gradient ought to reach and that have no gradient node among ``filters``.

    The gradient flows back from the losses and from every filter that has gradient nodes, up to a ``stop_gradient``.
    """
    gradients: dict[MPSNNFilterNode, list[MPSNNGradientFilterNode]] = {}
    for node in filters:
        if isinstance(node, MPSNNGradientFilterNode):
            gradients.setdefault(node.forward, []).append(node)
    trained = {id(data_source_of(node)) for node in gradients if training_of(node) is not None}
    ahead = [node for node in filters if node in gradients or (gradients and _is_gradient(node))]
    reached: set[MPSNNFilterNode] = set()
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            ahead.extend(_flows_to(node, gradients.get(node, [])))
    return [
        node.name
        for node in filters
        if not isinstance(node, MPSNNGradientFilterNode)
        and node in reached
        and offered_updates(node)
        and id(data_source_of(node)) not in trained
    ]


def _is_gradient(node: MPSNNFilterNode) -> bool:
    row = row_of(node)
    return isinstance(row, Row) and row.is_gradient


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
        warn_user(f"{', '.join(names)}: {message}", MPSTrainingWarning)
