"""Element-wise arithmetic and comparison of two images, and gradients (MPSCNNMath.h, macOS 10.13.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.types import MPSNNComparisonType

_FLT_MAX = 3.4028234663852886e38


class Arithmetic(Enum):
    """The operation of ``MPSCNNAdd``, ``MPSCNNSubtract``, ``MPSCNNMultiply`` and ``MPSCNNDivide``."""

    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    DIVIDE = auto()


def arithmetic(
    operation: Arithmetic,
    x: Tensor,
    y: Tensor,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> tuple[Tensor, Tensor | None]:
    """``clamp(v, minimum, maximum)`` and the mask ``minimum < v < maximum``.

    With ``p`` and ``q`` the scales of the two operands:

    ==========  =========================
    operation   v
    ==========  =========================
    ADD         ``p*x + q*y + bias``
    SUBTRACT    ``p*x - q*y + bias``
    MULTIPLY    ``(p*x) * (q*y) + bias``
    DIVIDE      ``(p*x) / (q*y) + bias``
    ==========  =========================

    ``x`` and ``y`` are ``[N, C, H, W]``; an axis of size 1 is broadcast. A limit at or beyond ±FLT_MAX, the framework's
    default, is none: infinities pass, and without limits the mask is ``None``. NaN passes and is outside the mask.
    """
    value = _FORWARD[operation](x, y, primary_scale, secondary_scale)
    if bias != 0.0:
        value.add_(bias)
    lower = minimum if minimum > -_FLT_MAX else -math.inf
    upper = maximum if maximum < _FLT_MAX else math.inf
    if math.isinf(lower) and math.isinf(upper):
        return value, None
    mask = (value > lower).logical_and_(value < upper)
    return value.clamp_(lower, upper), mask


def compare(comparison: MPSNNComparisonType, x: Tensor, y: Tensor, threshold: float = 0.0) -> Tensor:
    """1 where ``x`` compares so with ``y``, 0 elsewhere, in the type of ``x`` (macOS 10.14.1).

    ================  =====================================
    comparison        true where
    ================  =====================================
    EQUAL             ``x = y`` or ``|x - y| <= threshold``
    NOT_EQUAL         ``|x - y| > threshold``
    LESS              ``x < y``
    LESS_OR_EQUAL     ``x <= y`` or ``|x - y| <= threshold``
    GREATER           ``x > y``
    GREATER_OR_EQUAL  ``x >= y`` or ``|x - y| <= threshold``
    ================  =====================================

    ``x`` and ``y`` are ``[N, C, H, W]``; an axis of size 1 is broadcast. No comparison with NaN is true; infinities of
    one sign are equal.
    """
    return _COMPARISONS[comparison](x, y, threshold).to(x.dtype)


def arithmetic_gradient(
    operation: Arithmetic,
    gradient: Tensor,
    other: Tensor | None,
    *,
    primary_scale: float,
    secondary_scale: float,
    mask: Tensor | None = None,
    shape: tuple[int, int, int, int],
) -> Tensor:
    """The gradient of one operand of an arithmetic kernel (macOS 10.13.4).

    With ``g = gradient * mask`` it is ``primary_scale * g`` for ADD and SUBTRACT, and
    ``primary_scale * g * secondary_scale * other`` for MULTIPLY. The framework has none for DIVIDE: an error.

    As in the framework the scales are those of the gradient kernel: the second operand of a subtraction takes the minus
    sign from ``primary_scale``. ``other`` is the forward image that the gradient is not for; only MULTIPLY reads it.
    The result has the size ``shape`` of the forward operand: axes that it broadcast are summed.
    """
    reads_other = _reads_other(operation)
    result = gradient if mask is None else gradient * mask.view(torch.uint8)
    factor = primary_scale
    if reads_other:
        if other is None:
            raise MPSArgumentError(
                "MPSCNNMultiplyGradient", "secondary image", "must be the other forward source", "None"
            )
        result = result * other
        factor *= secondary_scale
    broadcast = [axis for axis in range(4) if shape[axis] == 1 and result.shape[axis] != 1]
    if broadcast:
        result = result.sum(broadcast, keepdim=True)
    return result * factor if result is gradient else result.mul_(factor)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale


_FORWARD: dict[Arithmetic, Callable[[Tensor, Tensor, float, float], Tensor]] = {
    Arithmetic.ADD: lambda x, y, p, q: torch.add(_scaled(x, p), y, alpha=q),
    Arithmetic.SUBTRACT: lambda x, y, p, q: torch.sub(_scaled(x, p), y, alpha=q),
    Arithmetic.MULTIPLY: lambda x, y, p, q: torch.mul(_scaled(x, p), _scaled(y, q)),
    Arithmetic.DIVIDE: lambda x, y, p, q: torch.div(_scaled(x, p), _scaled(y, q)),
}


def _near(x: Tensor, y: Tensor, threshold: float) -> Tensor:
    return torch.sub(x, y).abs_() <= threshold


_COMPARISONS: dict[MPSNNComparisonType, Callable[[Tensor, Tensor, float], Tensor]] = {
    MPSNNComparisonType.EQUAL: lambda x, y, threshold: (x == y).logical_or_(_near(x, y, threshold)),
    MPSNNComparisonType.NOT_EQUAL: lambda x, y, threshold: torch.sub(x, y).abs_() > threshold,
    MPSNNComparisonType.LESS: lambda x, y, threshold: x < y,
    MPSNNComparisonType.LESS_OR_EQUAL: lambda x, y, threshold: (x <= y).logical_or_(_near(x, y, threshold)),
    MPSNNComparisonType.GREATER: lambda x, y, threshold: x > y,
    MPSNNComparisonType.GREATER_OR_EQUAL: lambda x, y, threshold: (x >= y).logical_or_(_near(x, y, threshold)),
}

_READS_OTHER: dict[Arithmetic, bool] = {
    Arithmetic.ADD: False,
    Arithmetic.SUBTRACT: False,
    Arithmetic.MULTIPLY: True,
}


def _reads_other(operation: Arithmetic) -> bool:
    if operation not in _READS_OTHER:
        raise MPSArgumentError(
            "MPSCNNArithmeticGradient", "operation", "must be add, subtract or multiply", operation.name.lower()
        )
    return _READS_OTHER[operation]
