"""Captures of a device beside the network here: layer by layer, from the device's own images."""
