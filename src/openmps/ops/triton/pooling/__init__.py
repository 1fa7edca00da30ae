"""Pooling in Triton."""
