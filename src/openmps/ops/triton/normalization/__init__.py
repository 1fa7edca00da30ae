"""Normalizations in Triton."""
