"""The graph: nodes that describe a network, the training graph derived from them, and the compiler that runs them."""
