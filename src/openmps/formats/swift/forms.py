"""How each node class is made in Swift: what the table of nodes says, and the arguments of our constructors.

`literals.camel` makes Swift's labels of the arguments' names (MPSNNGraphNodes.h, iOS 12 and 16).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

from openmps.graph.nodes import neuron
from openmps.graph.nodes.catalog import rows
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.rows import Form


def _whole(kind: type[MPSNNFilterNode], form: Form) -> Form:
    if form.arguments:
        return form
    parameters = inspect.signature(kind).parameters.values()
    return replace(form, arguments=tuple(each.name for each in parameters if each.kind is not each.VAR_POSITIONAL))


FORMS: Mapping[type[MPSNNFilterNode], Form] = {
    **{row.node: _whole(row.node, row.swift) for row in rows()},
    **{kind: _whole(kind, Form()) for kind in neuron.CLASSES.values()},
}
"""The form of each class of the framework; of a class that is derived from one that one's holds."""


def form_of(node: MPSNNFilterNode) -> tuple[type[MPSNNFilterNode], Form] | str:
    """The class that Swift makes for a node and how, or why it cannot."""
    for kind in type(node).__mro__:
        if kind in FORMS:
            return kind, FORMS[kind]
    return f"is of class {type(node).__name__}, which is no class of the framework"
