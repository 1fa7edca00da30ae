"""Benchmarks beside the peers; run one with ``python -m bench.<name>``."""
