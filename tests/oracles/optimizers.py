"""One step of each optimizer on plain float64 vectors, element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Common:
    learning_rate: float = 1e-3
    gradient_rescale: float = 1.0
    clip: tuple[float, float] | None = None
    """(minimum, maximum), or None for no clipping."""
    regularization: int = 0
    """The framework's number: none, L1, L2."""
    regularization_scale: float = 0.0
    weight_decay: float = 0.0


def decayed(values: np.ndarray, p: Common) -> np.ndarray:
    """What is left of the values before the step, number by number."""
    result = np.array(values, dtype=np.float64)
    for i in np.ndindex(*result.shape):
        result[i] -= p.learning_rate * p.weight_decay * result[i]
    return result


def prepared(gradient: float, value: float, p: Common) -> float:
    """Clip, then rescale, then add the regularization of the current value."""
    if p.clip is not None:
        gradient = min(max(gradient, p.clip[0]), p.clip[1])
    gradient *= p.gradient_rescale
    if p.regularization == 1:
        gradient += p.regularization_scale * (float(value > 0) - float(value < 0))
    if p.regularization == 2:
        gradient += p.regularization_scale * value
    return gradient


def sgd(
    gradient: np.ndarray,
    values: np.ndarray,
    momentum: np.ndarray | None,
    p: Common,
    mu: float = 0.0,
    nesterov: bool = False,
) -> tuple[np.ndarray, np.ndarray | None]:
    """New values and new momentum."""
    result = decayed(values, p)
    velocity = None if momentum is None else np.array(momentum, dtype=np.float64)
    for i in np.ndindex(*result.shape):
        g = prepared(float(gradient[i]), float(result[i]), p)
        if velocity is None:
            result[i] -= p.learning_rate * g
        elif nesterov:
            velocity[i] = mu * velocity[i] + g
            result[i] -= p.learning_rate * (g + mu * velocity[i])
        else:
            velocity[i] = mu * velocity[i] + p.learning_rate * g
            result[i] -= velocity[i]
    return result, velocity


def rmsprop(
    gradient: np.ndarray, values: np.ndarray, squares: np.ndarray, p: Common, decay: float = 0.9, epsilon: float = 1e-8
) -> tuple[np.ndarray, np.ndarray]:
    result, s = decayed(values, p), np.array(squares, dtype=np.float64)
    for i in np.ndindex(*result.shape):
        g = prepared(float(gradient[i]), float(result[i]), p)
        s[i] = decay * s[i] + (1 - decay) * g * g
        result[i] -= p.learning_rate * g / (math.sqrt(s[i]) + epsilon)
    return result, s


def adam(
    gradient: np.ndarray,
    values: np.ndarray,
    momentum: np.ndarray,
    velocity: np.ndarray,
    maximum_velocity: np.ndarray | None,
    time_step: int,
    p: Common,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """`time_step` counts this step: 1 for the first."""
    result = decayed(values, p)
    m, u = (np.array(v, dtype=np.float64) for v in (momentum, velocity))
    x = None if maximum_velocity is None else np.array(maximum_velocity, dtype=np.float64)
    rate = p.learning_rate * math.sqrt(1 - beta2**time_step) / (1 - beta1**time_step)
    for i in np.ndindex(*result.shape):
        g = prepared(float(gradient[i]), float(result[i]), p)
        m[i] = beta1 * m[i] + (1 - beta1) * g
        u[i] = beta2 * u[i] + (1 - beta2) * g * g
        largest = u[i]
        if x is not None:
            x[i] = largest = max(x[i], u[i])
        result[i] -= rate * m[i] / (math.sqrt(largest) + epsilon)
    return result, m, u, x
