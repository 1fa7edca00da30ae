"""Losses in Triton."""
