"""What is done to a gradient before any update rule (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, overload

from openmps.checks import FLT_MAX, NamedAttributes, finite
from openmps.errors import MPSArgumentError
from openmps.selectors import Factory, takes
from openmps.types import MPSNNRegularizationType

_Descriptor = TypeVar("_Descriptor")


def _in_order(kind: type[_Descriptor]) -> type[_Descriptor]:
    """The class, whose constructor takes the order without clipping too."""
    order = {
        "learning_rate": Real,
        "gradient_rescale": Real,
        "regularization_type": MPSNNRegularizationType,
        "regularization_scale": Real,
    }
    setattr(kind, "__init__", takes({**order}, {name: order[name] for name in list(order)[:3]})(kind.__init__))  # noqa: B010
    return kind


@_in_order
@dataclass(eq=False, repr=False)
class MPSNNOptimizerDescriptor(NamedAttributes):
    """What is done to a gradient before any update rule (MPSNNOptimizers.h, macOS 10.14).

    In this order: clip to ``gradient_clip_min`` .. ``gradient_clip_max`` if `apply_gradient_clipping`; multiply by
    `gradient_rescale`; add ``regularization_scale * sign(v)`` (L1) or ``regularization_scale * v`` (L2) of the value v.

    Raises:
        MPSArgumentError: A number is NaN, or infinite and no limit; the limits are the wrong way round; or there is no
            such regularization.
        MPSTypeError: A number is none.
    """

    _attribute_checks = dict.fromkeys(("learning_rate", "gradient_rescale", "regularization_scale"), finite)

    learning_rate: float = 1e-3
    """The step size."""
    gradient_rescale: float = 1.0
    """Factor of the clipped gradient."""
    apply_gradient_clipping: bool = False
    """Whether gradients are clipped."""
    gradient_clip_max: float = FLT_MAX
    """Upper limit of clipped gradients."""
    gradient_clip_min: float = -FLT_MAX
    """Lower limit of clipped gradients."""
    regularization_type: MPSNNRegularizationType = MPSNNRegularizationType.NONE
    """NONE, L1 or L2."""
    regularization_scale: float = 0.0
    """Factor of the gradient of the regularization."""

    optimizer_descriptor = Factory(
        "optimizerDescriptorWithLearningRate:gradientRescale:regularizationType:regularizationScale:",
        "optimizerDescriptorWithLearningRate:gradientRescale:applyGradientClipping:gradientClipMax:gradientClipMin:"
        "regularizationType:regularizationScale:",
    )

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            learning_rate: float,
            gradient_rescale: float,
            regularization_type: MPSNNRegularizationType,
            regularization_scale: float = 0.0,
            /,
        ) -> None: ...
        @overload
        def __init__(
            self,
            learning_rate: float = 1e-3,
            gradient_rescale: float = 1.0,
            apply_gradient_clipping: bool = False,
            gradient_clip_max: float = FLT_MAX,
            gradient_clip_min: float = -FLT_MAX,
            regularization_type: MPSNNRegularizationType = MPSNNRegularizationType.NONE,
            regularization_scale: float = 0.0,
        ) -> None: ...
        def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.gradient_clip_min > self.gradient_clip_max:
            rule = f"must not exceed gradient_clip_max {self.gradient_clip_max}"
            raise MPSArgumentError(name, "gradient_clip_min", rule, self.gradient_clip_min)

    def __repr__(self) -> str:
        return (
            f"MPSNNOptimizerDescriptor(learning_rate={self.learning_rate}, gradient_rescale={self.gradient_rescale}, "
            f"regularization_type={self.regularization_type.name}, regularization_scale={self.regularization_scale})"
        )


def described(learning_rate: float | None, descriptor: MPSNNOptimizerDescriptor | None) -> MPSNNOptimizerDescriptor:
    """The descriptor given, or the defaults with a learning rate."""
    if descriptor is not None:
        return descriptor
    return MPSNNOptimizerDescriptor() if learning_rate is None else MPSNNOptimizerDescriptor(learning_rate)
