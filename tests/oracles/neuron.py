"""The sixteen neuron functions and their derivatives, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

NAMES = (
    "none relu linear sigmoid hard_sigmoid tanh absolute softplus softsign elu prelu relun power exponential "
    "logarithm gelu"
).split()
DEFAULTS: dict[str, tuple[float, float, float]] = {
    name: {
        "relu": (0.0, 1.0, 1.0),
        "linear": (1.0, 0.0, 1.0),
        "hard_sigmoid": (0.2, 0.5, 1.0),
        "relun": (1.0, 6.0, 1.0),
        "power": (1.0, 0.0, 1.0),
        "exponential": (1.0, 0.0, -1.0),
        "logarithm": (1.0, 0.0, -1.0),
    }.get(name, (1.0, 1.0, 1.0))
    for name in NAMES
}
Function = Callable[[float, float, float, float], float]


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


def _power(base: float, exponent: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.power(np.float64(base), np.float64(exponent)))


def _log(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.log(np.float64(x)))


def _relu(x: float, slope: float) -> float:
    return x if x >= 0 else slope * x


FUNCTION: dict[str, Function] = {
    "none": lambda x, a, b, c: x,
    "relu": lambda x, a, b, c: _relu(x, a),
    "linear": lambda x, a, b, c: a * x + b,
    "sigmoid": lambda x, a, b, c: _sigmoid(x),
    "hard_sigmoid": lambda x, a, b, c: min(max(a * x + b, 0.0), 1.0),
    "tanh": lambda x, a, b, c: a * math.tanh(b * x),
    "absolute": lambda x, a, b, c: abs(x),
    "softplus": lambda x, a, b, c: a * (max(b * x, 0.0) + math.log1p(math.exp(-abs(b * x)))),
    "softsign": lambda x, a, b, c: x / (1.0 + abs(x)),
    "elu": lambda x, a, b, c: x if x >= 0 else a * math.expm1(x),
    "prelu": lambda x, a, b, c: _relu(x, a),
    "relun": lambda x, a, b, c: min(_relu(x, a), b),
    "power": lambda x, a, b, c: _power(a * x + b, c),
    "exponential": lambda x, a, b, c: math.exp(a * x + b) if c == -1 else _power(c, a * x + b),
    "logarithm": lambda x, a, b, c: _log(a * x + b) / (1.0 if c == -1 else math.log(c)),
    "gelu": lambda x, a, b, c: 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))),
}


def _relun_derivative(x: float, a: float, b: float, c: float) -> float:
    if _relu(x, a) >= b:
        return 0.0
    return 1.0 if x >= 0 else a


def _gelu_derivative(x: float, a: float, b: float, c: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) + x * math.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi)


DERIVATIVE: dict[str, Function] = {
    "none": lambda x, a, b, c: 1.0,
    "relu": lambda x, a, b, c: 1.0 if x >= 0 else a,
    "linear": lambda x, a, b, c: a,
    "sigmoid": lambda x, a, b, c: _sigmoid(x) * _sigmoid(-x),
    "hard_sigmoid": lambda x, a, b, c: a if 0.0 <= a * x + b <= 1.0 else 0.0,
    "tanh": lambda x, a, b, c: a * b * (1.0 - math.tanh(b * x) ** 2),
    "absolute": lambda x, a, b, c: float(x > 0) - float(x < 0),
    "softplus": lambda x, a, b, c: a * b * _sigmoid(b * x),
    "softsign": lambda x, a, b, c: 1.0 / (1.0 + abs(x)) ** 2,
    "elu": lambda x, a, b, c: 1.0 if x >= 0 else a * math.exp(x),
    "prelu": lambda x, a, b, c: 1.0 if x >= 0 else a,
    "relun": _relun_derivative,
    "power": lambda x, a, b, c: a * c * _power(a * x + b, c - 1.0),
    "exponential": lambda x, a, b, c: a * math.exp(a * x + b) if c == -1 else a * math.log(c) * _power(c, a * x + b),
    "logarithm": lambda x, a, b, c: a / ((1.0 if c == -1 else math.log(c)) * (a * x + b)),
    "gelu": _gelu_derivative,
}


def _pointwise(
    table: dict[str, Function], x: np.ndarray, kind: int, a: float, b: float, c: float, data: np.ndarray | None
):
    result = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        slope = a if data is None else float(data[index[1]])
        result[index] = table[NAMES[kind]](float(x[index]), slope, b, c)
    return result


def forward(x: np.ndarray, kind: int, a: float, b: float, c: float, data: np.ndarray | None = None) -> np.ndarray:
    """`f(x)`; PReLU takes its slope for channel k from `data[k]`."""
    return _pointwise(FUNCTION, x, kind, a, b, c, data)


def gradient(
    g: np.ndarray, x: np.ndarray, kind: int, a: float, b: float, c: float, data: np.ndarray | None = None
) -> np.ndarray:
    return g * _pointwise(DERIVATIVE, x, kind, a, b, c, data)
