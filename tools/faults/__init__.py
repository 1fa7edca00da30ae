"""The parts of tools/inject_faults.py."""
