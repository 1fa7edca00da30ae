"""Products of matrices, by the library that is fastest on the processor at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from openmps.cpu import CpuChoice
from openmps.ops import triton

# torch multiplies float32 matrices on the CPU with MKL. This operator is oneDNN's product; torch does not promise that
# it stays, and does very well without it.
_onednn_product = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_onednn_order = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


_FEWEST_ROWS = 16
"""Of a matrix, and columns of the other: fewer would be padded."""
_MOST_PRODUCTS = 1 << 29
"""Multiplications; for more a library's matrix products are worth their start."""
_SMALL, _SMALL_ON_INTEL = 1 << 21, 1 << 22
"""Multiplications of a product on the CPU that MKL makes faster than oneDNN."""


_MANY_TIMES = 8
"""Products of one matrix, for which it pays on the CPU to change its order first."""
_LARGE, _SEVERAL_ROWS = 1 << 19, 4
"""Numbers of a matrix that MKL's own order is faster for, and rows of what is multiplied; smaller ones are transposed,
which takes longer than it saves for larger ones."""
_WORTH_TURNING = 1 << 12
"""Numbers of a matrix that is worth to be turned before."""
_WORTH_ORDER = 1 << 21
"""Multiplications of a product that oneDNN's own order is faster for than MKL on other makers' processors."""
_mkl: Any = torch.ops.mkl
_packs = hasattr(_mkl, "_mkl_linear")


def product_of_rows(rows: Tensor, columns: Tensor, biases: Tensor | None = None) -> Tensor:
    """Return ``rows @ columns.T + biases``, contiguous: [M, K] by [N, K] gives [M, N].

    oneDNN is at least as fast as MKL here on every processor that was measured, but for what it needs at each call.
    """
    if _onednn_product is not None and _takes_onednn(rows) and not _is_small(rows, columns):
        return _onednn_product(rows, columns, biases, "none", [], "")
    if _is_exact_on_gpu(rows, columns.t()):
        result = product(rows, columns.t())
        return result if biases is None else result.add_(biases)
    if biases is None:
        return torch.mm(rows, columns.t())
    if rows.dtype == torch.float16:
        # On a GPU, rounded once: biases are added to the sums while they are float32.
        sums = wide_product(rows, columns.t())
        return torch.add(sums, biases, out=torch.empty_like(sums, dtype=torch.float16))
    return torch.addmm(biases, rows, columns.t())


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right``, contiguous: [M, K] by [K, N] gives [M, N], either of them transposed in memory or not.

    oneDNN wants the rows of the left and the columns of the right factor in one piece and copies what is not. MKL takes
    half its time then on an Intel processor, and up to twice its time on an AMD one.
    """
    if _onednn_product is not None and _goes_to_onednn(left, right):
        return _onednn_product(left, right.t(), None, "none", [], "")
    if _is_exact_on_gpu(left, right):
        from openmps.ops.triton.matrix.products import product as exact

        return exact(left, right)
    return torch.mm(left, right)


def add_product(sums: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add `product` to ``sums``, in place."""
    return sums.add_(product(left, right)) if _is_exact_on_gpu(left, right) else sums.addmm_(left, right)


def put_product(result: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`product` in memory that is there."""
    return result.copy_(product(left, right)) if _is_exact_on_gpu(left, right) else torch.mm(left, right, out=result)


def product_into(result: Tensor, left: Tensor, right: Tensor) -> bool:
    """`product` in memory of its shape and type, at whatever strides; False where it cannot go there."""
    if result.dtype != left.dtype or result.shape != (left.shape[0], right.shape[1]) or _goes_to_onednn(left, right):
        return False
    if _is_exact_on_gpu(left, right):
        from openmps.ops.triton.matrix.products import product_into as exact

        return exact(result, left, right)
    torch.mm(left, right, out=result)
    return True


def put_products(result: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`product` of several pairs, [B, M, K] by [B, K, N], in memory without gaps, where no factor is."""
    if not len(left) or not _goes_to_onednn(left[0], right[0]):
        return torch.bmm(left, right, out=result)
    for room, *factors in zip(result.unbind(), left.unbind(), right.unbind(), strict=True):
        room.copy_(product(*factors))
    return result


def two_products(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """`product` of two pairs on a GPU, side by side in a capture where neither is a library's."""
    each = partial(product, *first), partial(product, *second)
    if not (_is_exact_on_gpu(*first) and _is_exact_on_gpu(*second)):
        return each[0](), each[1]()
    from openmps.ops.triton.beside import beside

    return beside(first[0].device, *each)


def repeated_product(weights: Tensor, rows: int, times: int) -> Callable[[Tensor, Tensor], object]:
    """What adds ``x @ weights.T`` to sums in place, for that many products of so many rows.

    MKL brings the weights into its own order at each call, which takes as long as a product of few rows.
    """
    multiply = _in_own_order(weights, rows, times)
    if multiply is not None:
        return lambda sums, x: sums.add_(multiply(x))
    factor = _factor(weights, times)
    return lambda sums, x: sums.addmm_(x, factor)


def repeated_new_product(weights: Tensor, rows: int, times: int) -> Callable[[Tensor], Tensor]:
    """What gives ``x @ weights.T``, for that many products of so many rows."""
    multiply = _in_own_order(weights, rows, times)
    if multiply is not None:
        return multiply
    factor = _factor(weights, times)
    return lambda x: x @ factor


def column_by_column(weights: Tensor) -> Tensor:
    """Weights that stay, as many products by them are fastest: `repeated_product` need not turn them first."""
    pays = weights.device.type == "cpu" and _WORTH_TURNING <= weights.numel() < _LARGE
    return weights.t().contiguous().t() if pays else weights


def _factor(weights: Tensor, times: int) -> Tensor:
    """The transpose, as products by it are fastest."""
    factor = weights.t()
    is_few = weights.device.type != "cpu" or times < _MANY_TIMES or weights.numel() >= _LARGE
    return factor if is_few or factor.stride(1) == 1 else factor.contiguous()


def _in_own_order(weights: Tensor, rows: int, times: int) -> Callable[[Tensor], Tensor] | None:
    """`repeated_new_product` by weights that a library has brought into an order of its own; None where none pays."""
    is_float = weights.device.type == "cpu" and weights.dtype == torch.float32
    if not is_float or times < _MANY_TIMES or rows < _SEVERAL_ROWS:
        return None
    if CpuChoice.ORDERED_PRODUCTS.takes_intel:
        # The transpose of what lies row by row is turned first, which gains nothing.
        if not _packs or weights.numel() < _LARGE or not weights.is_contiguous():
            return None
        packed = _mkl._mkl_reorder_linear_weight(weights, rows)
        multiply = _mkl._mkl_linear.default
        return lambda x: multiply(x, packed, weights, None, rows)
    if _onednn_order is None or _onednn_product is None or rows * weights.numel() < _WORTH_ORDER:
        return None
    ordered = _onednn_order(weights, rows)
    return partial(_onednn_by_order, _onednn_product, ordered)


def _onednn_by_order(multiply: Callable[..., Tensor], ordered: Tensor, x: Tensor) -> Tensor:
    return multiply(x, ordered, None, "none", [], "")


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right``; of float16 factors the sums as they are in float32."""
    if left.dtype != torch.float16:
        return torch.mm(left, right)
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left.float(), right.float())


def _is_exact_on_gpu(left: Tensor, right: Tensor) -> bool:
    """Whether float32 matrices are such as `openmps.ops.triton.matrix.products` is for: several rows, few products."""
    if not (left.dtype == right.dtype == torch.float32 and min(left.shape[0], right.shape[1]) >= _FEWEST_ROWS):
        return False
    products = left.shape[0] * left.shape[1] * right.shape[1]
    return 0 < products <= _MOST_PRODUCTS and triton.runs_on(left.device)


def _goes_to_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether `product` of two factors is oneDNN's, which makes memory for it."""
    by_onednn = _takes_onednn(left) and not CpuChoice.PRODUCTS.takes_intel
    return _onednn_product is not None and by_onednn and not _is_small(left, right.t())


def _is_small(rows: Tensor, columns: Tensor) -> bool:
    """Whether oneDNN's preparation of a call, some 30 to 100 us, takes longer than the product, or Intel's library."""
    is_intel = CpuChoice.SMALL_PRODUCTS.takes_intel
    return rows.numel() * len(columns) <= (_SMALL_ON_INTEL if is_intel else _SMALL) or (len(rows) == 1 and is_intel)


def _takes_onednn(left: Tensor) -> bool:
    is_float = left.device.type == "cpu" and left.dtype == torch.float32
    return is_float and left.numel() > 0
