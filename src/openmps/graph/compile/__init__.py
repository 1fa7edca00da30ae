"""From nodes to a program: the training graph derived, kernels planned, one function fused."""
