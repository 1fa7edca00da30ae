"""Convolutions of inference with what stands behind them; see `openmps.ops.rewrite.fuse`.

The slow equations of a `FusedConvolution` are those of the chain that it replaces: a convolution, a batch normalization
with stored statistics, the addition of an image, an activation, each of which may be missing, and the roundings
between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openmps.ops.convolution.convolution import ContractionGradient, Convolution
from openmps.ops.convolution.fused_convolution import (
    ACTIVATIONS,
    GATES,
    UNROUNDED,
    Activation,
    Fused,
    FusedConvolution,
    PrepareConvolution,
    Source,
)
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.op import Equation, Function, Input, Role
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.recipe import FusedFunction, Recipe


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
    activation: Activation | None = None
    addend: _Chain | None = None
    """The chain that makes the image which is added, if that has no other reader: its biases are added here."""
    keeps_biases: bool = True
    is_of_memory: bool = False
    """Whether weights and biases are memory that stays."""
    is_half: bool = False
    """Whether a number between two equations is stored as float16; then the result must be, too."""


def fuse_convolutions(function: Function, images: int, *, packs: bool = False) -> FusedFunction:
    """The function with its convolutions fused, for so many images; itself where gradients are computed.

    ``packs`` says that convolutions with nothing behind them gain, too: by weights as a library wants them.
    """
    if any(isinstance(equation.op, ContractionGradient) for equation in function.equations):
        return FusedFunction(function, set(), {})
    flow, inputs = DataFlow(function), dict(zip(function.input_values, function.inputs, strict=True))
    taken: set[int] = set()
    chains: list[_Chain] = []
    for equation in function.equations:
        if type(equation.op) is Convolution and id(equation) not in taken:
            chain = _chain(flow, equation, inputs, taken)
            if len(chain.equations) > 1 or (packs and chain.is_of_memory):
                chains.append(chain)
                taken |= {*map(id, chain.equations)}
    _join_biases(flow, chains)
    return _replaced(function, chains, inputs, images)


def _join_biases(flow: DataFlow, chains: Sequence[_Chain]) -> None:
    """Have a convolution add the biases of the one whose result it adds."""
    makers = {flow.stored(chain.end): chain for chain in chains}
    for chain in chains:
        maker = None if chain.residual is None else makers.get(chain.residual)
        if maker is None or flow.only_reader(flow.stored(maker.end)) not in chain.equations:
            continue
        if maker is not chain and maker.activation is None and maker.residual is None:
            chain.addend, maker.keeps_biases = maker, False


def _chain(flow: DataFlow, convolution: Equation, inputs: Mapping[int, Input], taken: set[int]) -> _Chain:
    chain = _Chain(convolution, convolution.writes[0], [convolution])
    if not all(is_memory(inputs, value) for value in convolution.reads[1:]):
        return chain
    chain.is_of_memory = True
    while chain.activation is None:
        source = flow.stored(chain.end)
        equation = flow.only_reader(source)
        if equation is None or id(equation) in taken or not _takes_in(chain, equation, source, flow, inputs):
            _take_gate(chain, flow)
            break
    return chain


def _takes_in(chain: _Chain, equation: Equation, source: int, flow: DataFlow, inputs: Mapping[int, Input]) -> bool:
    """Whether the equation that reads ``source`` joins the chain; it has then."""
    is_half = chain.is_half or source != chain.end
    if is_half and flow.stored(equation.writes[0]) == equation.writes[0]:
        return False  # It would be given with more digits than the equations keep.
    op, more = equation.op, [value for value in equation.reads if value != source]
    if isinstance(op, Normalize):
        is_stored = all(is_memory(inputs, value) for value in more) and more[1] == -1
        if not is_stored or chain.normalization is not None or chain.residual is not None:
            return False
        chain.normalization = equation
    elif op == Combination(Arithmetic.ADD):
        mask = equation.writes[1]
        if chain.residual is not None or len(more) != 1 or flow.is_read(mask):
            return False
        chain.residual = more[0]
    elif isinstance(op, Neuron) and op.function in ACTIVATIONS and not more:
        chain.activation = Activation(op.function, op.a, op.b)
    else:
        return False
    between = flow.only_reader(chain.end)
    if source != chain.end and between is not None:
        chain.equations.append(between)
    chain.equations.append(equation)
    chain.end, chain.is_half = equation.writes[0], is_half
    return True


def _take_gate(chain: _Chain, flow: DataFlow) -> None:
    """Take in the neuron of a result and their product, if nothing else reads either."""
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


def is_memory(inputs: Mapping[int, Input], value: int) -> bool:
    """Whether a value is memory that stays, or left out."""
    found = inputs.get(value)
    return value == -1 or (found is not None and found.role is Role.BUFFER)


def _replaced(function: Function, chains: Sequence[_Chain], inputs: Mapping[int, Input], images: int) -> FusedFunction:
    last = {id(chain.equations[-1]): chain for chain in chains}
    dropped = {id(equation) for chain in chains for equation in chain.equations}
    gone = {
        value for chain in chains for equation in chain.equations for value in equation.writes if value != chain.end
    }
    value_count, equations, recipes = function.value_count, list[Equation](), dict[Input, Recipe]()
    places: dict[Input, int] = {}
    for equation in function.equations:
        chain = last.get(id(equation))
        if chain is None:
            if id(equation) not in dropped:
                equations.append(equation)
            continue
        prepared = _prepared(chain, inputs)
        recipes[prepared], places[prepared] = _recipe(chain, inputs, images), value_count
        equations.append(_fused(chain, value_count))
        value_count += 1
    read = set(function.output_values).union(*(equation.reads for equation in equations))
    folded = {value for chain in chains for equation in chain.equations for value in equation.reads} - read
    kept = {each: value for value, each in inputs.items() if value not in folded}
    return FusedFunction(function.with_equations(equations, value_count, kept | places), gone, recipes)


def _prepared(chain: _Chain, inputs: Mapping[int, Input]) -> Input:
    return Input(Role.PREPARED, inputs[chain.convolution.reads[1]].name)


def _recipe(chain: _Chain, inputs: Mapping[int, Input], images: int) -> Recipe:
    op, addend = chain.convolution.op, chain.addend
    assert isinstance(op, Convolution)
    other = None if addend is None else Source(_epsilon(addend))
    how = op.window, op.edge_mode, op.groups, images
    prepare = PrepareConvolution(*how, _epsilon(chain), other, chain.keeps_biases)
    return Recipe(prepare, (*_memory(chain, inputs), *(() if addend is None else _memory(addend, inputs))))


def _epsilon(chain: _Chain) -> float | None:
    op = None if chain.normalization is None else chain.normalization.op
    return op.epsilon if isinstance(op, Normalize) else None


def _memory(chain: _Chain, inputs: Mapping[int, Input]) -> list[Input | None]:
    """Weights before they are rounded, biases, and the rows of the normalization."""
    rows = () if chain.normalization is None else chain.normalization.reads[1:]
    _, weights, *more = (*chain.convolution.reads, *rows)
    return [inputs[weights]._replace(name=inputs[weights].name + UNROUNDED), *map(inputs.get, more)]


def _fused(chain: _Chain, prepared: int) -> Equation:
    op = chain.convolution.op
    assert isinstance(op, Convolution)
    fused = FusedConvolution(Fused(op.window, op.edge_mode, op.groups, op.allow_tf32, chain.activation))
    residual = () if chain.residual is None else (chain.residual,)
    return Equation(fused, (chain.convolution.reads[0], prepared, *residual), (chain.end,))
