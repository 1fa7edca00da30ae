"""Steps of Muon: weights move by matrices whose singular values are nearly equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops.update.optimizers import Rate, Update, descend


class Muon(Update):
    """Descent with momentum by matrices of equal singular values, nearly 1; its own vectors are the momenta.

    ``m = mu m + g; v -= rate sqrt(max(1, rows / columns)) orthogonal(g + mu m)``, see `orthogonal`. Of vectors
    the matrix has so many ``rows``; None where the operands are matrices.
    """

    is_elementwise = False

    momentum_scale: float
    rows: int | None

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """See `Update`."""
        for gradient, values, momentum, result in zip(*runs, strict=True):
            g = self.rule.apply(values, gradient)
            momentum.mul_(self.momentum_scale).add_(g)
            step = torch.add(g, momentum, alpha=self.momentum_scale)
            matrix = step.reshape(-1, step.shape[-1]) if self.rows is None else step.reshape(self.rows, -1)
            factor = math.sqrt(max(1.0, matrix.shape[0] / max(matrix.shape[1], 1)))
            descend(values, orthogonal(matrix).mul_(factor).reshape(values.shape), rate, result)


_LEAST_NORM = 1e-7
_QUINTIC = 3.4445, -4.7750, 2.0315
"""Of each iteration of `orthogonal`: ``X = a X + (b A + c A^2) X`` with ``A = X X^T``."""
_ITERATIONS = 5


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix of the same singular vectors, whose singular values are 0.7 to 1.2, but for those near 0.

    Five iterations of Newton and Schulz, with a quintic polynomial, from the matrix divided by its Frobenius norm.
    """
    a, b, c = _QUINTIC
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / torch.linalg.vector_norm(x).clamp(min=_LEAST_NORM)
    for _ in range(_ITERATIONS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T.contiguous() if is_tall else x
