"""Convolutions of inference with what stands behind them; see `openmps.ops.rewrite.table`.

The slow equations of a `FusedConvolution` are those of the chain that it replaces: a convolution, a batch normalization
with stored statistics, the addition of an image, a pointwise operation, each of which may be missing, and the roundings
between. Those of a `FollowedEnd` are the end of a block, a `FusedConvolution` that adds an image or a
`ProjectedConvolution`, and the `FusedConvolution` that reads what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from openmps.ops.convolution.convolution import Convolution
from openmps.ops.convolution.convolution_end import GeluConvolution
from openmps.ops.convolution.fused_convolution import (
    GATES,
    UNROUNDED,
    Activation,
    Fused,
    FusedConvolution,
    Pointwise,
    PrepareConvolution,
    Source,
    activation_of,
)
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.op import Equation, Input, Kind, Role
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.rewrite.data_flow import LOAD_HALF
from openmps.ops.rewrite.recipe import Recipe
from openmps.ops.rewrite.rule import Change, Site


@dataclass(slots=True)
class _Chain:
    """A convolution and the equations behind it that it takes in."""

    convolution: Equation
    end: int
    """The value of its result."""
    equations: list[Equation] = field(default_factory=list[Equation])
    """All that is replaced."""
    normalization: Equation | None = None
    residual: int | None = None
    activation: Activation | Pointwise | None = None
    constants: tuple[int, ...] = ()
    """What the activation reads besides."""
    is_half: bool = False
    """Whether a number between two equations is stored as float16; then the result must be, too."""


def with_what_is_behind(site: Site, convolution: Equation, *behind: Equation) -> Change | None:
    """The convolution with as much of the chain behind it as it can take in."""
    chain = _Chain(convolution, convolution.writes[0], [convolution])
    while chain.activation is None:
        source = site.flow.stored(chain.end)
        equation = site.flow.only_reader(source)
        if equation is None or not site.is_free((equation,)) or not _takes_in(site, chain, equation, source):
            _take_gate(site, chain)
            break
    return _fused(site, chain) if len(chain.equations) > 1 else None


def with_gelu(site: Site, convolution: Equation, gelu: Equation) -> Change | None:
    """The convolution with the GeLU that alone reads it: there is no gradient of either."""
    op, stored = convolution.op, site.flow.stored(convolution.writes[0])
    assert isinstance(op, Convolution)
    assert isinstance(gelu.op, Neuron)
    if site.flow.only_reader(stored) is not gelu:
        return None
    fused = GeluConvolution(**vars(op), neuron=gelu.op, rounds=stored != convolution.writes[0])
    equation = Equation(fused, convolution.reads, gelu.writes)
    return Change({id(convolution): [], id(gelu): [equation]})


def packed(site: Site, convolution: Equation) -> Change | None:
    """The convolution by weights as a library wants them."""
    return _fused(site, _Chain(convolution, convolution.writes[0], [convolution]))


def joined_biases(site: Site, maker: Equation, equation: Equation) -> Change | None:
    """Have a convolution add the biases of the one whose result it adds."""
    if not _adds(site, maker, equation):
        return None
    made, added = (site.inputs[each.reads[1]] for each in (equation, maker))
    its, other = site.recipes[made], site.recipes[added]
    assert isinstance(its.op, PrepareConvolution)
    assert isinstance(other.op, PrepareConvolution)
    its = Recipe(replace(its.op, addend=Source(other.op.epsilon)), (*its.reads, *other.reads))
    return Change(recipes={made: its, added: other._replace(op=replace(other.op, keeps_biases=False))})


def projected(site: Site, maker: Equation, equation: Equation) -> Change | None:
    """The convolution whose result is added, of single pixels inside its image, in the one that adds it."""
    op, other = equation.op, maker.op
    assert isinstance(op, FusedConvolution)
    assert isinstance(other, FusedConvolution)
    window = other.how.window
    is_pixelwise = window.size == (1, 1) and not window.leaves_source and op.how.groups == other.how.groups == 1
    if not is_pixelwise or not _adds(site, maker, equation) or len(equation.reads) != _ALONE + 1:
        return None
    stored = equation.reads[_ALONE]
    gone = [maker] if stored == maker.writes[0] else [maker, site.flow.makers[stored]]
    made = Equation(ProjectedConvolution(op.how, other.how), (*equation.reads[:_ALONE], *maker.reads), equation.writes)
    return Change({id(each): [] for each in gone} | {id(equation): [made]})


def followed(site: Site, end: Equation, equation: Equation) -> Change | None:
    """The end of a block with a convolution of its result, each of single pixels and of one group, and both results."""
    from openmps.ops.convolution.followed_end import FollowedEnd

    op, projection = end.op, None
    assert isinstance(equation.op, FusedConvolution)
    if isinstance(op, ProjectedConvolution):
        projection = op.projection
    elif not isinstance(op, FusedConvolution) or len(end.reads) != _ALONE + 1 or end.reads[_ALONE] < 0:
        return None
    stored, following = site.flow.stored(end.writes[0]), equation.op.how
    is_pixelwise = all(how.window.is_pixelwise and how.groups == 1 for how in (op.how, following))
    if not is_pixelwise or equation.reads[0] != stored or len(equation.reads) != _ALONE:
        return None
    made = FollowedEnd(op.how, projection, following, stored != end.writes[0])
    reads, writes = (*end.reads, equation.reads[1]), (*end.writes, *equation.writes)
    return Change({id(equation): [], id(end): [Equation(made, reads, writes)]})


def _adds(site: Site, maker: Equation, equation: Equation) -> bool:
    """Whether a fused convolution adds the result of another one, which nobody else reads and nothing is behind."""
    stored = site.flow.stored(maker.writes[0])
    assert isinstance(maker.op, FusedConvolution)
    is_alone = maker.op.how.activation is None and len(maker.reads) == _ALONE
    return is_alone and site.flow.only_reader(stored) is equation and equation.reads[_ALONE:][:1] == (stored,)


_ALONE = 2
"""What a fused convolution reads at least: the image, and what is prepared."""


def _takes_in(site: Site, chain: _Chain, equation: Equation, source: int) -> bool:
    """Whether the equation that reads ``source`` joins the chain; it has then."""
    flow, loads, rounds = site.flow, list[Equation](), source != chain.end
    if equation.op == LOAD_HALF and (behind := flow.only_reader(equation.writes[0])) is not None:
        loads, source, equation = [equation], equation.writes[0], behind
    is_half = chain.is_half or source != chain.end
    if is_half and flow.stored(equation.writes[0]) == equation.writes[0]:
        return False  # It would be given with more digits than the equations keep.
    op, more = equation.op, [value for value in equation.reads if value != source]
    if not loads and isinstance(op, Normalize) and _is_stored(site, chain, more):
        chain.normalization = equation
    elif not loads and op == Combination(Arithmetic.ADD):
        if chain.residual is not None or len(more) != 1 or flow.is_read(equation.writes[1]):
            return False
        chain.residual = more[0]
    elif op.kind is Kind.POINTWISE and op.results == 1 and site.is_free((equation,)):
        is_own = equation.reads[0] == source and equation.reads.count(source) == 1
        if not is_own or not all(flow.is_input(value, {Role.CONSTANT}) for value in more):
            return False
        chain.activation, chain.constants = activation_of(op, rounds=rounds), tuple(more)
    else:
        return False
    between = flow.only_reader(chain.end)
    if source != chain.end and between is not None and between not in loads:
        chain.equations.append(between)
    chain.equations += [*loads, equation]
    chain.end, chain.is_half = equation.writes[0], is_half
    return True


def _is_stored(site: Site, chain: _Chain, rows: list[int]) -> bool:
    """Whether a normalization by these rows can be folded into the weights."""
    is_stored = rows[1] == -1 and all(site.flow.is_input(each, {Role.BUFFER}) for each in rows)
    return is_stored and site.situation.prepares and chain.normalization is None and chain.residual is None


def _take_gate(site: Site, chain: _Chain) -> None:
    """Take in the neuron of a result and their product, if nothing else reads either."""
    flow = site.flow
    equations = sorted(flow.readers(chain.end), key=lambda equation: len(equation.reads))
    if len(equations) != 2 or chain.end in flow.outputs:
        return
    neuron, product = equations
    op, made, between = neuron.op, product.op, neuron.writes[0]
    if not isinstance(op, Neuron) or op.function not in GATES or not isinstance(made, Combination):
        return
    is_product = made == Combination(Arithmetic.MULTIPLY, made.primary_scale, made.secondary_scale, made.bias)
    is_own = {*product.reads} == {chain.end, between} and flow.only_reader(between) is product
    if is_product and is_own and not flow.is_read(product.writes[1]):
        scale = made.primary_scale * made.secondary_scale
        chain.activation = Activation(op.function, op.a, op.b, is_gate=True, scale=scale, bias=made.bias)
        chain.equations += equations
        chain.end = product.writes[0]


def _fused(site: Site, chain: _Chain) -> Change:
    """One equation in the place of the chain's last, and how its weights are prepared."""
    op, inputs = chain.convolution.op, site.inputs
    assert isinstance(op, Convolution)
    rows = () if chain.normalization is None else chain.normalization.reads[1:]
    source, weights, *more = (*chain.convolution.reads, *rows)
    normalization = None if chain.normalization is None else chain.normalization.op
    epsilon = normalization.epsilon if isinstance(normalization, Normalize) else None
    how = op.window, op.edge_mode, op.groups, site.situation.images, epsilon
    unrounded = inputs[weights]._replace(name=inputs[weights].name + UNROUNDED)
    prepared, value = Input(Role.PREPARED, inputs[weights].name), site.new_value()
    residual = () if chain.residual is None else (chain.residual,)
    residual = (-1,) if chain.constants and not residual else residual
    fused = FusedConvolution(Fused(op.window, op.edge_mode, op.groups, op.allow_tf32, chain.activation))
    equation = Equation(fused, (source, value, *residual, *chain.constants), (chain.end,))
    return Change(
        {id(each): [] for each in chain.equations} | {id(chain.equations[-1]): [equation]},
        recipes={
            prepared: Recipe(
                PrepareConvolution(*how, is_kept=site.situation.prepares), (unrounded, *map(inputs.get, more))
            )
        },
        prepared={prepared: value},
    )
