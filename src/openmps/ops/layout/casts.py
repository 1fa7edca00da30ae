"""Numbers of one type as numbers of another, and axes in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


def cast(values: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Numbers as those of another type.

    Floats are rounded to floats, and cut towards 0 to integers, to the nearest that the type has where they are too
    large; NaN is 0 there. Integers become floats rounded, and integers by their low bits.
    """
    if dtype.is_floating_point or not values.dtype.is_floating_point:
        return values.to(dtype)
    whole, limits = values.double().nan_to_num(nan=0.0).trunc_(), torch.iinfo(dtype)
    # As float64 the largest 64-bit integer is one more than it is: what reaches it is not converted.
    fits = (whole > limits.min) & (whole < float(limits.max))
    found = whole.where(fits, 0).to(torch.int64 if limits.max < 2**63 else dtype)
    if dtype == torch.uint64:
        return found.view(torch.int64).where(whole < float(limits.max), -1).view(dtype)
    least, most = torch.tensor(limits.min), torch.tensor(limits.max)
    found = found.where(whole > limits.min, least).where(whole < float(limits.max), most)
    return found.to(dtype)


class Cast(Op, of=cast, kind=Kind.STORAGE, gives_view=True):
    """`cast` of elements."""

    dtype: torch.dtype


class Reshaped(Op, kind=Kind.STORAGE, gives_view=True):
    """The elements of an operand, the last axis running fastest, with other lengths."""

    sizes: tuple[int, ...]

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        return operands[0].reshape(self.sizes)


class Permuted(Op, kind=Kind.STORAGE, gives_view=True):
    """The axes of an operand in another order."""

    order: tuple[int, ...]

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        return operands[0].permute(self.order)
