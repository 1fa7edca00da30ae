"""The Gram matrix of an image's feature channels (MPSCNNConvolution.h, macOS 10.15)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


def gram_matrix(x: Tensor, alpha: float) -> Tensor:
    """``y[n, c, 0, f] = alpha * sum over the pixels of x[n, f] * x[n, c]``: [N, C, H, W] to [N, C, 1, C]."""
    pixels = x.flatten(2)
    # The matrices are symmetric, so that channels may be innermost in memory at no cost.
    return torch.bmm(pixels, pixels.transpose(1, 2)).mul_(alpha).unsqueeze(1).permute(0, 3, 1, 2)


def gram_matrix_gradient(gradient: Tensor, x: Tensor, alpha: float) -> Tensor:
    """``dx[n, a] = alpha * sum_c (g[n, c, 0, a] + g[n, a, 0, c]) * x[n, c]``; the gradient need not be symmetric.

    Args:
        gradient: [N, C, 1, C].
        x: The sources, [N, C, H, W].
        alpha: The factor of the forward pass.

    Returns:
        The gradient for the sources, [N, C, H, W], channels-last.
    """
    matrix = gradient[:, :, 0, :]
    both = (matrix + matrix.transpose(1, 2)).mul_(alpha)
    result = torch.bmm(x.flatten(2).transpose(1, 2), both)
    return result.unflatten(1, (x.shape[2], x.shape[3])).permute(0, 3, 1, 2)


class GramMatrix(Op, of=gram_matrix, kind=Kind.CONTRACTION):
    """`gram_matrix`."""

    alpha: float


class GramMatrixGradient(Op, of=gram_matrix_gradient, kind=Kind.CONTRACTION):
    """`gram_matrix_gradient` of a gradient and the forward source."""

    alpha: float
