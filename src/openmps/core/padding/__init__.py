"""Padding policies: how large results are, and where windows lie."""
