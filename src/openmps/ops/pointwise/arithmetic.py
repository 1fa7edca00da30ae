"""Element-wise arithmetic and comparison of two images, and gradients (MPSCNNMath.h, macOS 10.13.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.ops.op import Kind, Op
from openmps.types import MPSNNComparisonType

_LARGEST = torch.finfo(torch.float32).max


class Arithmetic(Enum):
    """The operation of ``MPSCNNAdd``, ``MPSCNNSubtract``, ``MPSCNNMultiply`` and ``MPSCNNDivide``."""

    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    DIVIDE = auto()


def open_limits(minimum: float, maximum: float) -> tuple[float, float]:
    """Limits at or beyond plus and minus the largest float32, the framework's defaults, are none: infinite."""
    return minimum if minimum > -_LARGEST else -math.inf, maximum if maximum < _LARGEST else math.inf


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
    with_mask: bool = True,
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
    default, is none: infinities pass, and without limits the mask is ``None``, as it is without ``with_mask``. NaN
    passes and is outside the mask.
    """
    value = _FORWARD[operation](x, y, primary_scale, secondary_scale)
    if bias != 0.0:
        value.add_(bias)
    lower, upper = open_limits(minimum, maximum)
    if math.isinf(lower) and math.isinf(upper):
        return value, None
    mask = (value > lower).logical_and_(value < upper) if with_mask else None
    return value.clamp_(lower, upper), mask


def cut_infinities(x: Tensor) -> Tensor:
    """The largest float32 of its sign where ``x`` is infinite; NaN stays."""
    return x.clamp(-_LARGEST, _LARGEST)


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
    exact = _EXACT.get(comparison) if threshold == 0.0 and x.dtype == y.dtype else None
    if exact is not None:
        # Written as numbers at once: a conversion from bool takes the CPU longer than the comparison.
        return exact(x, y, out=x.new_empty(0))
    return _COMPARISONS[comparison](x, y, threshold).view(torch.uint8).to(x.dtype)


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
    The result has the size ``shape`` of the forward operand: axes that it broadcast are summed. It may be ``gradient``
    itself.
    """
    if operation is Arithmetic.DIVIDE:
        raise MPSArgumentError("MPSCNNArithmeticGradient", "operation", "must be add, subtract or multiply", "divide")
    result = gradient if mask is None else gradient * mask.view(torch.uint8)
    factor = primary_scale
    if operation is Arithmetic.MULTIPLY:
        if other is None:
            rule = "must be the other forward source"
            raise MPSArgumentError("MPSCNNMultiplyGradient", "secondary image", rule, "None")
        result = result * other
        factor *= secondary_scale
    broadcast = [axis for axis in range(4) if shape[axis] == 1 and result.shape[axis] != 1]
    if broadcast:
        result = result.sum(broadcast, keepdim=True)
    if factor == 1.0:
        return result
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


_EXACT: dict[MPSNNComparisonType, Callable[..., Tensor]] = {
    MPSNNComparisonType.EQUAL: torch.eq,
    MPSNNComparisonType.LESS: torch.lt,
    MPSNNComparisonType.LESS_OR_EQUAL: torch.le,
    MPSNNComparisonType.GREATER: torch.gt,
    MPSNNComparisonType.GREATER_OR_EQUAL: torch.ge,
}
"""The comparisons with the threshold 0, which takes in what is equal and nothing else."""


class Combination(Op, results=2):
    """`arithmetic` of two images: the result, and the mask of the numbers that were not clamped."""

    operation: Arithmetic
    primary_scale: float = 1.0
    secondary_scale: float = 1.0
    bias: float = 0.0
    minimum: float = -math.inf
    maximum: float = math.inf

    @property
    def takes_half(self) -> bool:
        """Where the engine has the whole of it in one operation."""
        return self == Combination(self.operation)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None]:
        """See `arithmetic`."""
        x, y = operands
        return arithmetic(x=x, y=y, with_mask=wanted[1], **vars(self))


class CombinationGradient(Op, kind=Kind.REDUCTION, gives_view=True):
    """`arithmetic_gradient` of a gradient, the other forward image and the mask, if there are any."""

    operation: Arithmetic
    primary_scale: float
    secondary_scale: float
    axes: tuple[int, ...]
    """The axes that the forward operand was broadcast along: they are summed."""

    @property
    def takes_half(self) -> bool:
        """Where one multiplication rounds: a mask takes or leaves numbers as they are."""
        is_scaled = self.primary_scale * self.secondary_scale != 1.0
        return not self.axes and (self.operation is not Arithmetic.MULTIPLY or not is_scaled)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `arithmetic_gradient`."""
        gradient, other, mask = operands
        sizes = [1 if axis in self.axes else size for axis, size in enumerate(gradient.shape)]
        return arithmetic_gradient(
            self.operation,
            gradient,
            other,
            primary_scale=self.primary_scale,
            secondary_scale=self.secondary_scale,
            mask=mask,
            shape=(sizes[0], sizes[1], sizes[2], sizes[3]),
        )


class ProductGradient(CombinationGradient, gives_view=False):
    """`CombinationGradient` of a product, which is new memory always."""


class Comparison(Op):
    """`compare` of two images."""

    comparison: MPSNNComparisonType
    threshold: float

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `compare`."""
        x, y = operands
        return compare(self.comparison, x, y, self.threshold)


class Stretch(Op, kind=Kind.STORAGE, half=True):
    """One pixel, row or column of numbers, repeated: both operands were broadcast along that axis."""

    height: int
    width: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """An image of ``height`` rows and ``width`` columns."""
        whole = operands[0].expand(-1, -1, self.height, self.width)
        return whole.clone(memory_format=torch.channels_last)


class CutInfinities(Op, of=cut_infinities):
    """`cut_infinities` of an image."""
