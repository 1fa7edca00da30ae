"""The end of a block and the convolution of single pixels behind it, in one operation with both results.

``y = neuron(W' x + b' + residual)``, where the residual may be a projection ``P r``, and ``z = neuron'(V y + c)``:
where a kernel takes both, ``y`` is not read again to make ``z``. It equals `fused_convolution` or
`projected_convolution`, then `fused_convolution` of what that gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.fused_convolution import Fused, Prepared, fused_convolution, is_rectifier, named
from openmps.ops.convolution.library_convolution import regular
from openmps.ops.convolution.projected_convolution import projected_convolution
from openmps.ops.op import Kind, Op


class FollowedEnd(Op, kind=Kind.CONTRACTION, results=2, half=True):
    """The end of a block, and what the convolution behind it makes of it.

    The operands are an image and what `PrepareConvolution` gives, the image that is added, with a projection followed
    by its own, and what is prepared for the convolution behind them. ``rounds`` says whether that reads float16.
    """

    end: Fused
    projection: Fused | None
    following: Fused
    rounds: bool

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See the class."""
        x, prepared, residual, *projecting, behind = operands
        of_residual: Prepared | None = projecting[0] if projecting else None
        if triton.runs_on(x.device) and x.numel():
            found = self._in_one_kernel(x, prepared, residual, of_residual, behind)
            if found is not None:
                return found
        if of_residual is None or self.projection is None:
            y = fused_convolution(x, prepared, residual, self.end)
        else:
            y = projected_convolution(x, prepared, residual, of_residual, self.end, self.projection)
        y = y.to(torch.float16) if self.rounds else y
        return y, fused_convolution(y, behind, None, self.following)

    def _in_one_kernel(
        self, x: Tensor, prepared: Prepared, residual: Tensor, of_residual: Prepared | None, behind: Prepared
    ) -> tuple[Tensor, Tensor] | None:
        """The residual is projected there, or before where only the rest has a kernel."""
        is_known = all(is_rectifier(how.activation) and how.window.is_pixelwise for how in (self.end, self.following))
        of_x, of_y = prepared.weights, behind.weights
        if not is_known or not isinstance(of_x, Tensor) or not isinstance(of_y, Tensor):
            return None
        from openmps.ops.convolution.half_forms import followed_tile
        from openmps.ops.triton.convolution import followed_end as fast

        x, projection = regular(x.contiguous(memory_format=torch.channels_last)), self._projection(of_residual)
        tile = None
        if of_residual is None or projection is not None:
            tile = followed_tile(x, of_x, projection, of_y)
        if tile is None and of_residual is not None and self.projection is not None:
            projection, tile = None, followed_tile(x, of_x, None, of_y)
            residual = residual if tile is None else fused_convolution(residual, of_residual, None, self.projection)
        residual = regular(residual.contiguous(memory_format=torch.channels_last))
        channels = len(of_x) if projection is None else projection.shape[3]
        if tile is None or not _is_like(x, channels, residual):
            return None
        end = fast.Layer(of_x, prepared.biases, named(self.end.activation))
        following = fast.Layer(of_y, behind.biases, named(self.following.activation))
        return fast.followed_end(x, end, residual, projection, following, tile)

    def _projection(self, of_residual: Prepared | None) -> Tensor | None:
        """The weights that a kernel may project by: those of pixels side by side, without biases."""
        if of_residual is None or self.projection is None or of_residual.biases is not None:
            return None
        is_known = self.projection.activation is None and self.projection.window.is_pixelwise
        return of_residual.weights if is_known and isinstance(of_residual.weights, Tensor) else None


def _is_like(x: Tensor, channels: int, image: Tensor) -> bool:
    """Whether an image of so many channels has the size and the numbers of another one."""
    is_large = image.shape == (len(x), channels, *x.shape[2:])
    return is_large and image.dtype == x.dtype and image.data_ptr() % _ALIGNMENT == 0


_ALIGNMENT = 16
"""Bytes that kernels read at once."""
