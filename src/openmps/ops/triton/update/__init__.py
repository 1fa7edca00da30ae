"""Updates of parameters in Triton."""
