"""Facts about classes that openmps does not have: neither held nor tested. Who adds a class begins with these."""

from __future__ import annotations

ABSENT = {
    "MPSNDArrayMatrixMultiplication": ["fresh alpha and beta 1 (A, J)"],
    "MPSImageAdd": ["11 22 33 44; primaryScale 2: 12 24 36 48 (A)"],
    "MPSImageLaplacian": ["1..16, fresh; bias 1 (A)"],
    "MPSImageConversion": ["info NULL, alpha is one (A)"],
    "MPSImageGaussianPyramid": ["5x5 by default (A)"],
}  # fmt: skip
"""What is known of each class, in words; the numbers are with the sources."""
