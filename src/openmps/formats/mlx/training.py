"""How losses and optimizers are written for MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openmps.formats.mlx.pointwise import line
from openmps.formats.mlx.text import Text, number
from openmps.formats.onnx.problems import NodeError
from openmps.graph.nodes.trainable import data_source_of, offered_updates
from openmps.kernels.loss import MPSCNNLossDescriptor
from openmps.kernels.optimizers import (
    MPSNNOptimizer,
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.types import MPSCNNLossType, MPSNNRegularizationType

Kind = MPSCNNLossType
_SMOOTHED: Mapping[MPSCNNLossType, Callable[[int], float]] = {
    Kind.SOFT_MAX_CROSS_ENTROPY: lambda classes: 1 / classes,
    Kind.SIGMOID_CROSS_ENTROPY: lambda classes: 0.5,
}
"""What smoothed labels move to."""
_LOSSES: Mapping[MPSCNNLossType, Callable[[MPSCNNLossDescriptor], str]] = {
    Kind.MEAN_ABSOLUTE_ERROR: lambda of: "mx.abs(y - t)",
    Kind.MEAN_SQUARED_ERROR: lambda of: "mx.square(y - t)",
    Kind.SOFT_MAX_CROSS_ENTROPY: lambda of: "t * (mx.logsumexp(y, axis=-1, keepdims=True) - y)",
    Kind.SIGMOID_CROSS_ENTROPY: lambda of: "mx.logaddexp(y, 0) - y * t",
    Kind.CATEGORICAL_CROSS_ENTROPY: lambda of: "-t * mx.log(y)",
    Kind.HINGE: lambda of: "mx.maximum(0, 1 - (2 * t - 1) * y)",
    Kind.HUBER: lambda of: (
        f"mx.where(mx.abs(y - t) <= {number(of.delta)}, mx.square(y - t) / 2, "
        f"{number(of.delta)} * (mx.abs(y - t) - {number(of.delta / 2)}))"
    ),
    Kind.LOG: lambda of: f"-t * mx.log(y + {number(of.epsilon)}) - (1 - t) * mx.log(1 - y + {number(of.epsilon)})",
}
"""Losses of elements: ``y`` are predictions and ``t`` labels, N, H, W, C."""


def loss_lines(of: MPSCNNLossDescriptor) -> list[str]:
    """The body of ``loss``: the sum that gradients of the framework are of, whatever its reduction."""
    if of.loss_type not in _LOSSES:
        raise NodeError(f"the loss {of.loss_type.name} is not written")
    lines, smoothing = list[str](), of.label_smoothing
    if smoothing and of.loss_type in _SMOOTHED:
        lines.append(f"t = {line('t', 1 - smoothing, smoothing * _SMOOTHED[of.loss_type](of.number_of_classes))}")
    total = f"mx.sum({_LOSSES[of.loss_type](of)})"
    return [*lines, f"return {total if of.weight == 1 else f'{number(of.weight)} * {total}'}"]


def optimizer_of(text: Text, nodes: Mapping[Any, Any]) -> str | None:
    """The expression of the optimizer that trains all layers; None where data sources do not say theirs."""
    found = dict[str, str | None]()
    for node, kernel in nodes.items():
        source = data_source_of(node) if offered_updates(node) else None
        make = getattr(source, "optimizer_for", None)
        if callable(make):
            made = _written(make(kernel.device))
            if getattr(source, "amsgrad", False):
                raise NodeError("its optimizer is Adam in its AMSGrad form, which MLX has not")
            found.setdefault(made[0], made[1])
    if len(found) > 1:
        raise NodeError("its layers have optimizers of different kinds or numbers")
    for expression, part in found.items():
        if part is not None:
            text.use(part)
        return expression
    return None


def _written(optimizer: Any) -> tuple[str, str | None]:
    """The expression of an optimizer, and what of the templates it is of."""
    if not isinstance(optimizer, MPSNNOptimizer):
        raise NodeError(f"its optimizer {type(optimizer).__name__} is none of the framework's")
    is_plain = optimizer.regularization_type is MPSNNRegularizationType.NONE or optimizer.regularization_scale == 0
    if optimizer.apply_gradient_clipping or optimizer.gradient_rescale != 1 or not is_plain:
        raise NodeError("its optimizer clips, rescales or regularizes gradients")
    rate = number(optimizer.learning_rate)
    if isinstance(optimizer, MPSNNOptimizerAdam):
        betas = f"[{optimizer.beta1!r}, {optimizer.beta2!r}]"
        return f"Adam({rate}, {betas}, {number(optimizer.epsilon)})", "adam"
    if isinstance(optimizer, MPSNNOptimizerRMSProp):
        return f"optim.RMSprop({rate}, {optimizer.decay!r}, {number(optimizer.epsilon)})", None
    if isinstance(optimizer, MPSNNOptimizerStochasticGradientDescent):
        nesterov = ", nesterov=True" if optimizer.use_nesterov_momentum else ""
        return f"GradientDescent({rate}, {number(optimizer.momentum_scale)}{nesterov})", "gradient_descent"
    raise NodeError(f"its optimizer {type(optimizer).__name__} is none of the framework's")
