"""The graph: nodes that describe a network, the training graph derived from them, and the compiler that runs them."""

from openmps.graph.compile.derive import training_graph
from openmps.graph.nodes import catalog as catalog
from openmps.graph.nodes.node import derive_by

derive_by(training_graph)
