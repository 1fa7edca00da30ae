"""The update rules of the optimizers (MPSNNOptimizers.h, macOS 10.14; AMSGrad 10.15).

Every function takes float vectors of one shape, updates the optimizer's own vectors (momentum, velocity, sum of
squares) in place and writes the new values into ``result``, which may be ``values`` itself; ``gradient`` stays as it
is. With ``g`` the gradient that ``rule`` makes, ``v`` the values and ``t`` the number of the step:

=============  ======================================================================================
sgd            v - lr*g without momentum; m = mu*m + lr*g, v - m; Nesterov: m = mu*m + g, v - lr*(g + mu*m)
rmsprop        s = decay*s + (1 - decay)*g^2, v - lr*g / (sqrt(s) + eps)
adam           m = b1*m + (1 - b1)*g, u = b2*u + (1 - b2)*g^2, x = u or, as AMSGrad, max(x, u),
               v - lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(x) + eps)
=============  ======================================================================================

An `Update` may take a part of the values off first, apart from the gradient: v - lr*decay*v (with Adam: AdamW).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.ops import triton
from openmps.ops.op import Kind, Op
from openmps.ops.update.shards import Shard
from openmps.types import MPSNNRegularizationType

Rate = float | Tensor
"""A factor of steps: a number, or a tensor without axes on the device, so that recorded work can be run with another
one."""


@dataclass(frozen=True, slots=True)
class GradientRule:
    """What ``MPSNNOptimizerDescriptor`` does to a gradient before the update, in this order.

    ``clip`` is ``(maximum, minimum)`` or ``None``; then the gradient is multiplied by ``rescale``; then
    ``regularization_scale`` times ``sign(v)`` (L1, with ``sign(0) = 0``) or times ``v`` (L2) is added.
    """

    rescale: float = 1.0
    clip: tuple[float, float] | None = None
    regularization: MPSNNRegularizationType = MPSNNRegularizationType.NONE
    regularization_scale: float = 0.0

    @property
    def weight_decay(self) -> float:
        """The factor of ``v`` that L2 regularization adds to the gradient."""
        return self.regularization_scale if self.regularization == MPSNNRegularizationType.L2 else 0.0

    @property
    def changes_gradients(self) -> bool:
        """Whether `apply_without_decay` gives anything but the gradient."""
        is_l1 = self.regularization == MPSNNRegularizationType.L1 and self.regularization_scale != 0.0
        return self.clip is not None or self.rescale != 1.0 or is_l1

    def apply(self, values: Tensor, gradient: Tensor) -> Tensor:
        """The gradient that the update uses; ``gradient`` itself where nothing is to be done."""
        gradient = self.apply_without_decay(values, gradient)
        return gradient if self.weight_decay == 0.0 else torch.add(gradient, values, alpha=self.weight_decay)

    def apply_without_decay(self, values: Tensor, gradient: Tensor) -> Tensor:
        """As ``apply``, without what ``weight_decay`` adds."""
        if self.clip is not None:
            maximum, minimum = self.clip
            gradient = gradient.clamp(minimum, maximum)
        if self.rescale != 1.0:
            gradient = gradient * self.rescale
        if self.regularization == MPSNNRegularizationType.L1 and self.regularization_scale != 0.0:
            gradient = torch.add(gradient, values.sign(), alpha=self.regularization_scale)
        return gradient


def sgd(
    values: Tensor,
    gradient: Tensor,
    momentum: Tensor | None,
    result: Tensor,
    *,
    learning_rate: Rate,
    momentum_scale: float,
    nesterov: bool,
    rule: GradientRule,
) -> None:
    """Stochastic gradient descent; the momentum holds the learning rate, except with Nesterov's form."""
    g = rule.apply(values, gradient)
    if momentum is None:
        descend(values, g, learning_rate, result)
    elif nesterov:
        momentum.mul_(momentum_scale).add_(g)
        descend(values, torch.add(g, momentum, alpha=momentum_scale), learning_rate, result)
    else:
        momentum.mul_(momentum_scale)
        if isinstance(learning_rate, Tensor):
            momentum.addcmul_(g, learning_rate)
        else:
            momentum.add_(g, alpha=learning_rate)
        torch.sub(values, momentum, out=result)


def _sgd_at_once(
    runs: Sequence[Sequence[Tensor]], rate: float, momentum_scale: float, nesterov: bool, rule: GradientRule
) -> Sequence[Sequence[Tensor]]:
    """`sgd` with momentum for several vectors in one pass over memory, bit for bit; returns what is left to be done.

    That is everything where the engine has no such step, else the ends of vectors, which it rounds in another way.
    The engine updates ``m = mu*m + (1 - dampening)*g`` and ``v - lr*m``, which is the framework's form for lr = 1.
    """
    dampening, step = (0.0, rate) if nesterov else (1.0 - rate, 1.0)
    # The rate is to be told to float32, and the engine leaves a momentum alone that is multiplied by 0.
    is_told = nesterov or abs((1.0 - dampening) - rate) <= _TELLING * abs(rate)
    fits = momentum_scale != 0.0 and is_told and runs[0][0].dtype == torch.float32 and _HAS_FUSED_SGD
    lengths = [each.numel() for each in runs[0]]
    if not (fits and max(lengths) >= _REGISTER and _can_fuse([vector for run in runs for vector in run])):
        return runs
    ends = [length % _REGISTER for length in lengths]
    gradients, values, momenta, results = (
        [each[:-end] if end else each for each, length, end in zip(run, lengths, ends, strict=True) if length > end]
        for run in runs
    )
    more: Any = {"maximize": False, "is_first_step": False, "grad_scale": None, "found_inf": None}
    torch.ops.aten._fused_sgd_.default(
        results,
        _brought(rule, values, gradients, results),
        momenta,
        weight_decay=rule.weight_decay,
        momentum=momentum_scale,
        lr=step,
        dampening=dampening,
        nesterov=nesterov,
        **more,
    )
    return [[each[-end:] for each, end in zip(run, ends, strict=True) if end] for run in runs]


def descend(values: Tensor, step: Tensor, rate: Rate, result: Tensor) -> None:
    """``result = values - rate step``."""
    if isinstance(rate, Tensor):
        torch.addcmul(values, step, rate, value=-1.0, out=result)
    else:
        torch.sub(values, step, alpha=rate, out=result)


def rmsprop(
    values: Tensor,
    gradient: Tensor,
    sum_of_squares: Tensor,
    result: Tensor,
    *,
    learning_rate: Rate,
    decay: float,
    epsilon: float,
    rule: GradientRule,
) -> None:
    """RMSProp: the step is divided by the root of the running mean of squares."""
    g = rule.apply(values, gradient)
    sum_of_squares.mul_(decay).addcmul_(g, g, value=1.0 - decay)
    root = sum_of_squares.sqrt().add_(epsilon)
    if isinstance(learning_rate, Tensor):
        torch.addcdiv(values, g * learning_rate, root, value=-1.0, out=result)
    else:
        torch.addcdiv(values, g, root, value=-learning_rate, out=result)


@lru_cache(maxsize=64)  # the layers of a network are updated one after the other, with the same numbers
def adam_rate(learning_rate: float, beta1: float, beta2: float, time_step: int) -> float:
    """``lr * sqrt(1 - b2^t) / (1 - b1^t)``: the factor of Adam's step ``t``, which counts from 1."""
    if time_step < 1:
        raise MPSArgumentError("MPSNNOptimizerAdam", "time_step", "must be at least 1 when it is used", time_step)
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0.0 <= beta < 1.0:
            raise MPSArgumentError("MPSNNOptimizerAdam", name, "must lie in [0, 1)", beta)
    return learning_rate * math.sqrt(1.0 - beta2**time_step) / (1.0 - beta1**time_step)


def adam_step(
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    velocities: Sequence[Tensor],
    results: Sequence[Tensor],
    *,
    rate: Rate,
    beta1: float,
    beta2: float,
    epsilon: float,
    rule: GradientRule,
    maximum_velocities: Sequence[Tensor] | None = None,
) -> None:
    """One step of Adam for several vectors at once, each of its own size.

    ``rate`` is ``adam_rate``'s.
    """
    maxima = [] if maximum_velocities is None else [maximum_velocities]
    runs = (values, gradients, momenta, velocities, results, *maxima)
    if _HAS_FUSED_ADAM and _can_fuse([vector for run in runs for vector in run]):
        _fused_adam(runs, rate, beta1, beta2, epsilon, rule)
        return
    for value, gradient, momentum, velocity, result, *maximum in zip(*runs, strict=True):
        g = rule.apply(value, gradient)
        momentum.mul_(beta1).add_(g, alpha=1.0 - beta1)
        velocity.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        if maximum:
            velocity = torch.maximum(maximum[0], velocity, out=maximum[0])
        torch.sub(value, torch.div(momentum, velocity.sqrt().add_(epsilon)).mul_(rate), out=result)


# torch's fused updates pass over memory once. They are not part of torch's stable interface, so their absence is no
# error. On CUDA Adam rounds the betas to float32, which changes a step by less than 1e-5 of itself (1 - 0.999 has few
# digits).
_HAS_FUSED_ADAM, _HAS_FUSED_SGD = (hasattr(torch.ops.aten, name) for name in ("_fused_adam_", "_fused_sgd_"))
_FUSED_DEVICES = frozenset({"cpu", "cuda"})
_FUSED_TYPES = frozenset({torch.float32, torch.float64})
_REGISTER = 16
"""Numbers that a processor takes at a time, at most."""
_TELLING = 2.0**-28
"""By how much of itself a rate may be wrong that is told to the engine as 1 minus another number."""


def _can_fuse(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    return (
        first.device.type in _FUSED_DEVICES
        and first.dtype in _FUSED_TYPES
        # CUDA refuses to launch over vectors without elements.
        and all(
            t.numel() > 0 and t.is_contiguous() and t.dtype == first.dtype and t.device == first.device for t in tensors
        )
    )


def _brought(
    rule: GradientRule, values: Sequence[Tensor], gradients: Sequence[Tensor], results: Sequence[Tensor]
) -> Sequence[Tensor]:
    """The gradients for a step in the place of the results, to which the values are brought."""
    if rule.changes_gradients:
        gradients = [rule.apply_without_decay(v, g) for v, g in zip(values, gradients, strict=True)]
    for value, result in zip(values, results, strict=True):
        if result.data_ptr() != value.data_ptr():
            result.copy_(value)
    return gradients


def _fused_adam(
    runs: Sequence[Sequence[Tensor]], rate: Rate, beta1: float, beta2: float, epsilon: float, rule: GradientRule
) -> None:
    values, gradients, momenta, velocities, results, *maxima = runs
    gradients = _brought(rule, values, gradients, results)
    # At the step "infinity" torch's corrections of the bias are exactly 1, which leaves the correction, and epsilon, to
    # us: `rate` holds the framework's.
    endless = torch.full((), math.inf, device=values[0].device)
    if isinstance(rate, Tensor) and rate.is_cuda:
        rate = rate.float()  # the only type that the kernel reads
    fused = torch.ops.aten._fused_adam_
    (fused.tensor_lr if isinstance(rate, Tensor) else fused.default)(
        results,
        gradients,
        momenta,
        velocities,
        maxima[0] if maxima else [],
        [endless] * len(values),
        lr=rate,
        beta1=beta1,
        beta2=beta2,
        weight_decay=rule.weight_decay,
        eps=epsilon,
        amsgrad=bool(maxima),
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )


# --- updates as operations -------------------------------------------------------------------------------------------


_OF_ALL = frozenset({"vectors", "shard", "decays", "is_scaled"})
"""The fields of an `Update` that no step looks at."""


class Factors(NamedTuple):
    """The numbers of one step."""

    rate: Rate
    decay: Rate | None = None
    """The part of the values that is taken off first; None for nothing."""
    scale: Tensor | None = None
    """A factor of the gradients, one number in the tensor; None for 1."""

    def told(self) -> list[Rate]:
        """Those that the host tells."""
        return [self.rate] if self.decay is None else [self.rate, self.decay]


class Update(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """One step of an optimizer for several vectors at once, each of its own size.

    Operands: the rate, the decay if it ``decays``, and the scale if it ``is_scaled``; then, a run of ``vectors`` each,
    the gradients, the values, the optimizer's own vectors one kind after the other, and the results; last None, or
    tensors of float16 or float32 that take the first result rounded to float16. Where Triton runs, memory is passed
    over once.

    With a ``shard`` the optimizer's own vectors are those of a part of each parameter, which alone is updated; nothing
    is rounded then.
    """

    takes_device_numbers = True
    takes_gradients: ClassVar[bool] = True
    """Whether its gradients are those of a loss."""
    is_elementwise: ClassVar[bool] = True
    """Whether each number follows from those at its place, so that Triton may pass over them once."""

    vectors: int
    rule: GradientRule
    shard: Shard | None = field(default=None, kw_only=True)
    decays: bool = field(default=False, kw_only=True)
    """Whether the step begins with ``v -= decay v``."""
    is_scaled: bool = field(default=False, kw_only=True)
    """Whether gradients are multiplied by a number of the step, before the rule."""

    @property
    def numbers(self) -> int:
        """How many of the operands are `Factors`."""
        return 1 + self.decays + self.is_scaled

    def factors_of(self, operands: Sequence[Any]) -> Factors:
        """The first operands."""
        given = iter(operands)
        return Factors(next(given), next(given) if self.decays else None, next(given) if self.is_scaled else None)

    def overwritten(self, operands: int) -> Iterable[int]:
        """All but the numbers, the gradients and the values."""
        return range(self.numbers + 2 * self.vectors, operands)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """One step."""
        factors, (*vectors, rounded) = self.factors_of(operands), operands[self.numbers :]
        runs = self.runs_of(vectors)
        if not runs[0]:
            return
        if self.is_elementwise and fits_one_pass(factors, runs, rounded or ()):
            self.pass_once([factors] * len(runs[0]), runs, [(0, each) for each in rounded or ()])
            return
        self.advance(factors, runs)
        self.round_into(rounded or (), runs[-1][0])

    def advance(self, factors: Factors, runs: Sequence[Sequence[Tensor]]) -> None:
        """One step by the functions above, with what comes before it."""
        gradients, values, *own, results = runs
        if factors.scale is not None:
            gradients = [each * factors.scale for each in gradients]
        if factors.decay is not None:
            for value, result in zip(values, results, strict=True):
                descend(value, value, factors.decay, result)
            values = results
        self.step(factors.rate, [gradients, values, *own, results])

    @staticmethod
    def round_into(rounded: Sequence[Tensor], new: Tensor) -> None:
        """Put new numbers, rounded to float16, in the place of others."""
        for each in rounded:
            each.view(-1).copy_(new if each.dtype == torch.float16 else new.to(torch.float16))

    def runs_of(self, vectors: Sequence[Tensor]) -> Sequence[Sequence[Tensor]]:
        """The vectors among the operands, kind by kind: what of them one step updates."""
        runs = [vectors[first : first + self.vectors] for first in range(0, len(vectors), self.vectors)]
        return runs if self.shard is None else self.shard.narrowed(runs)

    def pass_once(
        self,
        factors: Sequence[Factors],
        runs: Sequence[Sequence[Tensor]],
        rounded: Sequence[tuple[int, Tensor]],
        *,
        is_many: bool = False,
    ) -> None:
        """One step in Triton: numbers for each vector, and what takes which result rounded. See `fits_one_pass`."""
        from openmps.ops.triton.update.optimizers import update, update_many

        rule, scale = self.rule, self.rule.regularization_scale
        regularization = rule.regularization.name if scale != 0.0 else "NONE"
        said = rule.clip, (rule.rescale, scale), regularization
        step: Any = update_many if is_many else update
        rates, decays, gains = ([each for each in kind if each is not None] for kind in zip(*factors, strict=True))
        step(self._formula(len(runs) - 3), rates, runs, rounded, *said, decays, gains)

    @property
    def settings(self) -> dict[str, Any]:
        """The keywords of a step."""
        return {name: value for name, value in vars(self).items() if name not in _OF_ALL}

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """One step by the functions above."""
        raise NotImplementedError

    def _formula(self, own: int) -> tuple[Any, ...]:
        """The step in Triton, with so many kinds of vectors of its own: name and numbers."""
        raise NotImplementedError


def fits_one_pass(factors: Factors, runs: Sequence[Sequence[Tensor]], rounded: Sequence[Tensor]) -> bool:
    """Whether one step can run in Triton."""
    device = runs[0][0].device
    if not triton.runs_on(device):
        return False
    vectors = [vector for run in runs for vector in run]
    held = [*vectors, *rounded, *(each for each in factors if isinstance(each, Tensor))]
    fits = all(vector.dtype == torch.float32 for vector in vectors)
    return fits and all(each.device == device and each.is_contiguous() for each in held)


class StochasticGradientDescent(Update):
    """See `sgd`; its own vectors are the momenta, or none."""

    momentum_scale: float
    nesterov: bool

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """See `Update`."""
        if len(runs[2:]) > 1 and runs[0][0].device.type == "cpu":
            runs = _sgd_at_once(runs, float(rate), **self.settings)
        for gradient, values, *momenta, result in zip(*runs, strict=True):
            sgd(values, gradient, momenta[0] if momenta else None, result, learning_rate=rate, **self.settings)

    def _formula(self, own: int) -> tuple[Any, ...]:
        return ("nesterov" if self.nesterov else "momentum", self.momentum_scale) if own else ("descent",)


class RmsProp(Update):
    """See `rmsprop`; its own vectors are the sums of squares."""

    decay: float
    epsilon: float

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """See `Update`."""
        for gradient, values, squares, result in zip(*runs, strict=True):
            rmsprop(values, gradient, squares, result, learning_rate=rate, **self.settings)

    def _formula(self, own: int) -> tuple[Any, ...]:
        return "rmsprop", self.decay, 1.0 - self.decay, self.epsilon


class Adam(Update):
    """See `adam_step`; the rate is `adam_rate`'s, its own vectors are momenta, velocities and perhaps maxima."""

    beta1: float
    beta2: float
    epsilon: float

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """See `Update`."""
        gradients, values, momenta, velocities, *maxima, results = runs
        maximum = maxima[0] if maxima else None
        vectors = values, gradients, momenta, velocities, results
        adam_step(*vectors, rate=rate, maximum_velocities=maximum, **self.settings)

    def _formula(self, own: int) -> tuple[Any, ...]:
        return "adam", self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.epsilon


class MovingAverage(Update):
    """Averages that move to numbers: ``a += share (w - a)``.

    An `Update` whose gradients are the numbers w, whose values and results are the averages a, and whose rate is minus
    the share: a descent from w, whose regularization takes a off.
    """

    takes_gradients = False

    rule: GradientRule = field(
        default=GradientRule(regularization=MPSNNRegularizationType.L2, regularization_scale=-1.0), init=False
    )

    def step(self, rate: Rate, runs: Sequence[Sequence[Tensor]]) -> None:
        """See `Update`."""
        for found, averages, result in zip(*runs, strict=True):
            sgd(averages, found, None, result, learning_rate=rate, momentum_scale=0.0, nesterov=False, rule=self.rule)

    def _formula(self, own: int) -> tuple[Any, ...]:
        return ("descent",)


class HandOn(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """A parameter that is not updated goes on as it is: operands values and result."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The result."""
        return (1,)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """``result = values``."""
        operands[1].copy_(operands[0])
