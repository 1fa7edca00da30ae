"""What Triton's interpreter needs of NumPy."""

from __future__ import annotations

import numpy as np


def counts_loops() -> bool:
    """Whether NumPy makes a number of an array of one, as Triton's interpreter does for the bounds of a loop."""
    try:
        return int(np.array([1])) == 1
    except TypeError:
        return False
