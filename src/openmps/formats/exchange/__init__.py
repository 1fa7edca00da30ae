"""Weights of other frameworks: files of named arrays, and the order and names that each framework gives its layers'."""
