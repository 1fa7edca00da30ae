"""Facts about classes that openmps does not have: neither held nor tested. Who adds a class begins with these."""

from __future__ import annotations

ABSENT = {
    "MPSNDArrayMatrixMultiplication": ["fresh alpha and beta 1 (A, J)"],
}  # fmt: skip
"""What is known of each class, in words; the numbers are with the sources."""
