"""The parts of `make release`: where the version stands, artifacts, environments that they are installed in."""
