"""Products of matrices in Triton."""
