"""Recurrent layers (MPSRNNLayer.h, macOS 10.13; their gradients 10.14)."""
