"""Nodes with a data source whose parameters may be updated (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from openmps.checks import Checked
from openmps.enumerated import member_of
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, row_of
from openmps.graph.nodes.rows import Row
from openmps.graph.nodes.training import Callback, Training
from openmps.types import MPSNNTrainingStyle


@runtime_checkable
class MPSNNTrainableNode(Protocol):
    """A node whose parameters are updated in a training graph (MPSNNGraphNodes.h, macOS 10.13)."""

    @property
    def training_style(self) -> MPSNNTrainingStyle:
        """Who updates the parameters."""
        ...

    @training_style.setter
    def training_style(self, value: MPSNNTrainingStyle) -> None: ...


class TrainableNode(MPSNNFilterNode):
    """The base of nodes with a data source, and of their gradient nodes."""

    training_style = Checked[MPSNNTrainingStyle](
        MPSNNTrainingStyle.UPDATE_DEVICE_GPU,
        member_of(MPSNNTrainingStyle, f"must be {', '.join(style.name for style in MPSNNTrainingStyle)}"),
        """Who updates the parameters: the device (default), the CPU, or nobody.

        Gradient nodes take over the style of the forward node that they are made from (macOS 10.15).
        """,
    )


def training_of(node: MPSNNFilterNode) -> Training | None:
    """How the parameters of a forward node, or of a gradient node's forward node, are updated; None without any."""
    row = row_of(node.forward if isinstance(node, MPSNNGradientFilterNode) else node)
    return row.training if isinstance(row, Row) else None


def data_source_of(node: MPSNNFilterNode) -> Any:
    """The data source that a trainable node, or the forward node of a gradient node, was made with."""
    training = training_of(node)
    if training is None:
        return None
    forward = node.forward if isinstance(node, MPSNNGradientFilterNode) else node
    return getattr(node, training.source, None) or getattr(forward, training.source)


def offered_updates(node: MPSNNFilterNode) -> list[Callback]:
    """The updates that a node's data source offers."""
    training = training_of(node)
    return [] if training is None else training.offered_by(data_source_of(node))


def asked_updates(node: MPSNNFilterNode) -> list[Callback]:
    """The updates that a gradient node's data source is asked for."""
    if not isinstance(node, MPSNNGradientFilterNode) or not isinstance(node, TrainableNode):
        return []
    return offered_updates(node) if node.training_style is not MPSNNTrainingStyle.UPDATE_DEVICE_NONE else []


def wants_parameter_gradients(node: MPSNNFilterNode) -> bool:
    """Whether somebody looks at a node's gradients of parameters: an update, or the user, by an exported state."""
    if not isinstance(node, MPSNNGradientFilterNode) or training_of(node) is None:
        return False
    return bool(asked_updates(node)) or exports_parameter_gradients(node)


def exports_parameter_gradients(node: MPSNNFilterNode) -> bool:
    """Whether a gradient node's gradients of parameters come out of the graph, in its layer's state."""
    state = node.forward.result_state if isinstance(node, MPSNNGradientFilterNode) else None
    return state is not None and state.export_from_graph
