"""The mathematics of the kernels: tensors in, tensors out. Knows no class of the framework."""
