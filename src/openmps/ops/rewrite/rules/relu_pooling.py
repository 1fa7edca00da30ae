"""Max pooling before a ReLU instead of behind it, since ``max(f(x)) = f(max(x))`` for a function that never falls.

The ReLU then works on the pooled image, and the image between the two never exists; in the gradient pass the mask is
applied to the pooled gradient. It needs a max pooling that is the only reader of the ReLU's result besides its own
gradient, which must be followed by the ReLU's alone; images that come out stand in its way.
"""

from __future__ import annotations

from typing import NamedTuple

from openmps.ops.op import Equation
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient
from openmps.ops.pooling.pooling import MaxPooling, MaxPoolingGradient
from openmps.ops.pooling.relu_pooling import ReluPoolGradient
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.rule import Change, Site


def pooled_before_relu(site: Site, relu: Equation, pool: Equation) -> Change | None:
    """The pooling on the ReLU's source, the ReLU on what it gives."""
    match = _match(site.flow, relu)
    if match is None or match.pool is not pool:
        return None
    assert isinstance(relu.op, Neuron)
    assert isinstance(pool.op, MaxPooling)
    result, choice = pool.writes
    pooled, makers = site.new_value(), site.flow.makers
    gone = [relu, makers[match.stored], match.pool_gradient, *[makers[value] for value in match.between]]
    changes: dict[int, list[Equation]] = {id(each): [] for each in gone if each is not None}
    changes[id(pool)] = [Equation(pool.op, relu.reads, (pooled, choice)), Equation(relu.op, (pooled,), (result,))]
    if match.pool_gradient is not None and match.relu_gradient is not None:
        op = ReluPoolGradient(pool.op.window, pool.op.edge_mode, relu.op.a)
        reads = (match.pool_gradient.reads[0], pooled, relu.reads[0], choice)
        changes[id(match.relu_gradient)] = [Equation(op, reads, match.relu_gradient.writes)]
    return Change(changes)


class _Match(NamedTuple):
    """The four equations, or two where nothing is trained, that one fusion replaces."""

    relu: Equation
    stored: int
    """The ReLU's result as the pooling reads it."""
    pool: Equation
    pool_gradient: Equation | None
    relu_gradient: Equation | None
    between: tuple[int, ...]
    """The values between the two gradients."""


def _match(flow: DataFlow, relu: Equation) -> _Match | None:
    op = relu.op
    if not isinstance(op, Neuron) or op.a < 0:
        return None
    stored = flow.stored(relu.writes[0])
    pools = [equation for equation in flow.readers(stored) if isinstance(equation.op, MaxPooling)]
    others = [equation for equation in flow.uses(stored) if equation not in pools]
    if not flow.is_inner(stored, [*pools, *others]) or len(pools) != 1 or pools[0].writes[1] in flow.outputs:
        return None
    pool = pools[0]
    if stored != relu.writes[0] and flow.stored(pool.writes[0]) == pool.writes[0]:
        return None  # The pooled image is stored with more digits than the ReLU's was.
    relu_gradients = [equation for equation in flow.uses(relu.reads[0]) if isinstance(equation.op, NeuronGradient)]
    if not others and not relu_gradients:
        return _Match(relu, stored, pool, None, None, ())
    if len(others) != 1 or len(relu_gradients) != 1:
        return None
    if op.a not in (0.0, 1.0):
        return (
            None  # Rounding can make two results equal whose sources are not, and the first of them takes the gradient.
        )
    pool_gradient, relu_gradient = others[0], relu_gradients[0]
    read = tuple(map(flow.origin, pool_gradient.reads[1:]))
    if not isinstance(pool_gradient.op, MaxPoolingGradient) or read != (stored, pool.writes[1]):
        return None
    end = flow.stored(pool_gradient.writes[0])
    source = flow.origin(relu_gradient.reads[1])
    if flow.only_reader(end) is not relu_gradient or relu_gradient.reads[0] != end or source != relu.reads[0]:
        return None
    return _Match(relu, stored, pool, pool_gradient, relu_gradient, (pool_gradient.writes[0], end))
