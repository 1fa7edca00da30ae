"""Resampling in Triton."""
