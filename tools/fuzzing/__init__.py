"""The parts of tools/fuzz_files.py."""
