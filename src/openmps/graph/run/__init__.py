"""Encodes of a compiled graph: bindings, updates, warnings, traces."""
