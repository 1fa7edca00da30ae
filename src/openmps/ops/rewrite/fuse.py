"""Fusions: rules over the kinds and fields of operations, each with the equations that it must equal.

`pools_before_relus`: max pooling behind a ReLU runs before it, since ``max(f(x)) = f(max(x))`` for a function that
never falls. The ReLU then works on the pooled image, and the image between the two never exists; in the gradient pass
the mask is applied to the pooled gradient. It needs a max pooling that is the only reader of the ReLU's result besides
its own gradient, which must be followed by the ReLU's alone; images that come out stand in its way.

`identities`, and on a GPU `normalized_neurons` and `normalized_poolings`: see `ops.rewrite.rules.normalization`;
`added_normalizations` and `spread_gradients`: see `ops.rewrite.rules.projection`; `layer_ends` and `wide_products`:
see `openmps.ops.rewrite.rules.layer_end`.

`fuse_convolutions`: where no gradients are computed, a convolution takes in the batch normalization with stored
statistics behind it, the addition of another image, and a neuron (`ACTIVATIONS`) or the product of a number and its
neuron (`GATES`), each if nothing else reads the image between. On the CPU one with nothing behind it is prepared, too.
Normalizations are folded into its weights and biases, which are prepared again only when they change. On a GPU
`pooled_convolutions`, see `ops.rewrite.rules.pooled_convolution`, brings the max pooling behind it to its products,
and prepares its weights for that.

`fuse_stored_normalizations`: there, on the CPU, the normalizations that are left have their factors prepared, and take
in a neuron; see `openmps.ops.rewrite.rules.stored_normalization`. `fuse_preactivations`, see
`openmps.ops.rewrite.rules.preactivation`, has the convolution behind such a normalization take it in.
`growing_concatenations`, see `ops.rewrite.rules.concatenation`, lets concatenations between them share memory.

`ends_by_moments`, on a GPU and if it is asked for: see `openmps.ops.rewrite.rules.second_moments`.

Every fusion is turned off with ``MPSNNGraph.allow_fusion``.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import NamedTuple

from openmps.ops.op import Equation, Function, Input
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient
from openmps.ops.pooling.pooling import MaxPooling, MaxPoolingGradient
from openmps.ops.pooling.relu_pooling import ReluPoolGradient
from openmps.ops.rewrite.data_flow import DataFlow, verify
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rules.concatenation import growing_concatenations
from openmps.ops.rewrite.rules.convolution import fuse_convolutions
from openmps.ops.rewrite.rules.layer_end import layer_ends, wide_products
from openmps.ops.rewrite.rules.normalization import identities, normalized_neurons, normalized_poolings
from openmps.ops.rewrite.rules.pooled_convolution import pooled_convolutions, pooled_recipes
from openmps.ops.rewrite.rules.preactivation import fuse_preactivations
from openmps.ops.rewrite.rules.projection import added_normalizations, spread_gradients
from openmps.ops.rewrite.rules.second_moments import ends_by_moments
from openmps.ops.rewrite.rules.stored_normalization import fuse_stored_normalizations
from openmps.types import MPSCNNNeuronType

_RELU = MPSCNNNeuronType.RELU


def fuse(
    function: Function,
    images: int,
    *,
    in_passes: bool = False,
    packs: bool = False,
    moments: Container[Input] = (),
) -> FusedFunction:
    """The function after every fusion, for so many images.

    ``in_passes`` says that fused operations run in one pass over memory each, as they do in Triton; ``packs`` that
    convolutions gain by prepared weights alone, as on the CPU.
    ``moments`` are weights of convolutions that may take part in `ends_by_moments`.
    """
    function, gone, recipes = fuse_convolutions(function, images, packs=packs)
    if packs:
        function, never, more = fuse_stored_normalizations(function)
        gone |= never
        function, never, recipes = fuse_preactivations(function, {**recipes, **more})
        gone |= never
        function, _ = growing_concatenations(function)
    for rule in (*_NORMALIZATIONS, partial(ends_by_moments, eligible=moments), *_OTHERS) if in_passes else _RULES:
        function, never = rule(function)
        gone |= never
    verify(function)
    return FusedFunction(function, gone, pooled_recipes(function, recipes) if in_passes else recipes)


def pools_before_relus(function: Function) -> tuple[Function, set[int]]:
    """The function with its poolings before its ReLUs, and the values that are never filled any more."""
    gone: set[int] = set()
    flow = DataFlow(function)
    for equation in function.equations:
        match = _match(flow, equation)
        if match is not None:
            function = _pool_before_relu(function, match)
            flow = DataFlow(function)
            gone |= {*match.relu.writes, match.stored, *match.between}
    return function, gone


_RULES = (identities, pools_before_relus)
_NORMALIZATIONS = (identities, normalized_neurons, normalized_poolings, added_normalizations, spread_gradients)
_OTHERS = (pools_before_relus, pooled_convolutions, layer_ends, wide_products)
"""What is done to a function, in order. Where a fused operation is no pass of its own, it costs a gradient the numbers
that
it computes again."""


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
    if not isinstance(op, Neuron) or op.function is not _RELU or op.a < 0:
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


def _pool_before_relu(function: Function, match: _Match) -> Function:
    """The pooling on the ReLU's source, the ReLU on what it gives."""
    assert isinstance(match.relu.op, Neuron)
    assert isinstance(match.pool.op, MaxPooling)
    result, choice = match.pool.writes
    pooled = function.value_count
    dropped = {id(match.relu), id(match.pool), id(match.pool_gradient)}
    passed = {match.relu.writes[0], match.stored, *match.between}
    equations: list[Equation] = []
    for equation in function.equations:
        if id(equation) == id(match.pool):
            equations.append(Equation(match.pool.op, match.relu.reads, (pooled, choice)))
            equations.append(Equation(match.relu.op, (pooled,), (result,)))
        elif match.pool_gradient is not None and id(equation) == id(match.relu_gradient):
            op = ReluPoolGradient(match.pool.op.window, match.pool.op.edge_mode, match.relu.op.a)
            reads = (match.pool_gradient.reads[0], pooled, match.relu.reads[0], choice)
            equations.append(Equation(op, reads, equation.writes))
        elif id(equation) not in dropped and passed.isdisjoint(equation.writes):
            equations.append(equation)
    return function.with_equations(equations, function.value_count + 1)
