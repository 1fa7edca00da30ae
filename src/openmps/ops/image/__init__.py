"""Filters of pictures ``[N, C, H, W]``: components of textures, windows, measures, transforms of whole pictures."""
