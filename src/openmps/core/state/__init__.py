"""States: what kernels hand to one another besides images."""
