"""Fast forms of `openmps.ops.image`."""
