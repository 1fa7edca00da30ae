"""Batch normalization folded into the convolution before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError


def folded(
    own: Mapping[str, NDArray[Any]], normalization: Mapping[str, NDArray[Any]], epsilon: float
) -> dict[str, NDArray[np.float32]]:
    """Weights (OHWI) and biases of a convolution that normalizes its result; float32, computed in float64.

    With biases of 0 where there are none::

        W' = W gamma / sqrt(variance + epsilon)     b' = (b - mean) gamma / sqrt(variance + epsilon) + beta
    """
    gamma, beta, mean, variance = (
        normalization[part].astype(np.float64) for part in ("gamma", "beta", "mean", "variance")
    )
    if not np.all(variance + epsilon > 0):
        rule = "plus epsilon must be above 0"
        raise MPSArgumentError("import_weights", "variance", rule, float(np.min(variance)))
    scale = gamma / np.sqrt(variance + epsilon)
    biases = own["biases"].astype(np.float64) if "biases" in own else np.zeros_like(scale)
    with np.errstate(over="ignore"):
        weights = (own["weights"].astype(np.float64) * scale[:, None, None, None]).astype(np.float32)
        shifted = ((biases - mean) * scale + beta).astype(np.float32)
    if not (np.isfinite(weights).all() and np.isfinite(shifted).all()):
        rule = "must fold into finite numbers of float32"
        raise MPSArgumentError("import_weights", "fold", rule, "NaN or infinity", "Look at them: openmps weights show")
    return {"weights": weights, "biases": shifted}
