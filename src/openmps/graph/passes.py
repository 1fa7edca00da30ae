"""What the compiler does to the nodes before they become a plan, each step a named pass.

====================  ===========================================  ===================================================
pass                  needs                                        ensures
====================  ===========================================  ===================================================
`reachable`           result image nodes                           filters before readers, inputs in reading order
`required`            reachable filters, which results are needed  only filters that make a needed result, export
                                                                   something or update parameters, and what these read
`lifetimes`           steps in order                               each register is freed behind its last reader
====================  ===========================================  ===================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from openmps.errors import MPSArgumentError
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.nodes import MPSNNFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.plan import Step
from openmps.types import MPSNNTrainingStyle


@dataclass(slots=True)
class Network:
    """The filters that results depend on, producers first, and the inputs in the order in which they are reached."""

    filters: list[MPSNNFilterNode] = field(default_factory=list[MPSNNFilterNode])
    images: list[MPSNNImageNode] = field(default_factory=list[MPSNNImageNode])
    states: list[MPSNNStateNode] = field(default_factory=list[MPSNNStateNode])


def producers(node: MPSNNFilterNode) -> list[MPSNNFilterNode]:
    """The filters whose images or states ``node`` reads, in argument order."""
    read: list[MPSNNImageNode | MPSNNStateNode] = [*node.sources, *node.source_states]
    return [source.producer for source in read if source.producer is not None]


def reachable(results: Sequence[MPSNNImageNode]) -> Network:
    """Everything that the results depend on, depth first, sources in argument order."""
    network = Network()
    done: set[object] = set()
    for result in results:
        if result.producer is None:
            raise MPSArgumentError(
                "MPSNNGraph",
                "result_image",
                "must be made by a filter node",
                "an input image node",
                "Pass the result_image of a filter node",
            )
        _visit(result.producer, network, done)
    return network


def _visit(last: MPSNNFilterNode, network: Network, done: set[object]) -> None:
    stack: list[MPSNNFilterNode] = [last]
    open_nodes: set[MPSNNFilterNode] = {last}
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = _next_source(node, network, done)
        if waiting is None:
            stack.pop()
            done.add(node)
            network.filters.append(node)
        elif waiting in open_nodes:
            raise MPSArgumentError("MPSNNGraph", "nodes", "must not form a cycle", repr(waiting))
        else:
            open_nodes.add(waiting)
            stack.append(waiting)


def _next_source(node: MPSNNFilterNode, network: Network, done: set[object]) -> MPSNNFilterNode | None:
    """The first producer that is not done yet; inputs met on the way are noted."""
    for image in node.sources:
        if image.producer is None:
            if image not in done:
                done.add(image)
                network.images.append(image)
        elif image.producer not in done:
            return image.producer
    for state in node.source_states:
        if state.producer is None:
            if state not in done:
                done.add(state)
                network.states.append(state)
        elif state.producer not in done:
            return state.producer
    return None


def wants_parameter_gradients(node: MPSNNFilterNode) -> bool:
    """Whether somebody looks at the node's gradients of parameters: an update, or the user, by an exported state."""
    if not isinstance(node, MPSCNNConvolutionGradientNode):
        return False
    state = node.forward.result_state
    is_updated = node.training_style is not MPSNNTrainingStyle.UPDATE_DEVICE_NONE and callable(
        getattr(node.weights, "update", None)
    )
    return is_updated or (state is not None and state.export_from_graph)


def required(
    filters: Sequence[MPSNNFilterNode], needed: Iterable[MPSNNImageNode]
) -> tuple[list[MPSNNFilterNode], set[MPSNNImageNode]]:
    """The filters to run, in order, and the images that somebody reads or asked for."""
    wanted = {image.producer for image in needed}
    images = set(needed)
    for node in filters:
        exported = node.result_image.export_from_graph or any(
            state.export_from_graph for state in node.result_states or ()
        )
        if exported or wants_parameter_gradients(node):
            wanted.add(node)
        if node.result_image.export_from_graph:
            images.add(node.result_image)
    keep: set[MPSNNFilterNode] = set()
    stack = [node for node in wanted if node is not None]
    while stack:
        node = stack.pop()
        if node not in keep:
            keep.add(node)
            images.update(node.sources)
            stack.extend(producers(node))
    return [node for node in filters if node in keep], images


def lifetimes(steps: Sequence[Step], keep: set[int]) -> None:
    """Note on each step the registers and states that nothing behind it reads; ``keep`` are read from outside."""
    last: dict[int, int] = {}
    last_state: dict[int, int] = {}
    for position, step in enumerate(steps):
        for register in (*step.inputs, step.output):
            last[register] = position
        for state in (step.state_in, step.state_out):
            if state is not None:
                last_state[state] = position
    for position, step in enumerate(steps):
        step.frees = tuple(register for register, end in last.items() if end == position and register not in keep)
        step.frees_states = tuple(state for state, end in last_state.items() if end == position)
    verify_order(steps)


def verify_order(steps: Sequence[Step]) -> None:
    """Raise unless every register and state is filled before it is read and not read after it is freed."""
    filled: set[int] = set()
    freed: set[int] = set()
    made = {step.output for step in steps}
    for step in steps:
        for register in step.inputs:
            if (register in made and register not in filled) or register in freed:
                raise MPSArgumentError(
                    step.kernel.name, f"register {register}", "must be filled before it is read", None,
                    "This is a defect of the graph compiler",
                )  # fmt: skip
        filled.add(step.output)
        freed.update(step.frees)
