"""Sums, means and extremes over axes, and products of an image with itself or another one."""
