"""Fusions of what stands behind the products of a layer that is trained.

`layer_end`: the biases of a convolution or fully connected layer, a max pooling behind them, a ReLU and a dropout, as
many of these as there are, become one equation, a `LayerEnd`, and their gradients with the sums for the biases another.

`with_end`: a convolution that a `LayerEnd` without ReLU and dropout alone reads becomes one equation with it.

`with_end_gradient`: so do their gradients, where the convolution's alone reads that of the end, and gives that of the
weights alone, as in a network's first layer.

`wide_products`: a fully connected layer whose source is float16, made float32, reads what is stored, and gives its sums
as they are.

A `LayerEnd` equals the equations of the chain, and the roundings between. It needs a max pooling whose windows share no
pixel and lie inside the source, or else a ReLU; each image between may be read by the next equation alone, and by its
own gradient. Images that come out, and images that others read, end the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient, FullyConnected
from openmps.ops.convolution.convolution_end import ConvolutionEnd, ConvolutionEndGradient
from openmps.ops.geometry import Window
from openmps.ops.op import Equation, Kind
from openmps.ops.pointwise.dropout import Dropout, DropoutMask
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient, can_pool
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient
from openmps.ops.pooling.pooling import MaxPooling, MaxPoolingGradient
from openmps.ops.pooling.relu_pooling import ReluPoolGradient
from openmps.ops.rewrite.data_flow import LOAD_HALF, STORE_HALF, DataFlow
from openmps.ops.rewrite.rule import Change, Site
from openmps.types import MPSCNNNeuronType

_RELU = MPSCNNNeuronType.RELU


def layer_end(site: Site, equation: Equation) -> Change | None:
    """The chain around a pooling, or around a ReLU without one, as one equation, and its gradients as another."""
    end = _match(site.flow, equation)
    if end is None:
        return None
    made = end.equations(site.flow, site.new_value(), site.new_value())
    return Change({id(each): [] for each in end.replaced()} | made)


def wide_products(site: Site, load: Equation, products: Equation) -> Change | None:
    """A fully connected layer that reads float16 as it is stored, where its sums are float32."""
    if products.reads[0] != load.writes[0]:
        return None
    reads = (site.flow.origin(load.reads[0]), *products.reads[1:])
    return Change({id(products): [Equation(FullyConnected(wide=True), reads, products.writes)]})


def with_end(site: Site, convolution: Equation, end: Equation) -> Change | None:
    """The convolution with its end."""
    made, (x, weights, biases) = convolution.writes[0], convolution.reads
    stored = site.flow.stored(made)
    if biases != -1 or site.flow.only_reader(stored) is not end or end.reads[0] != stored:
        return None
    assert isinstance(convolution.op, Convolution)
    assert isinstance(end.op, LayerEnd)
    if end.op.window is None:
        return None
    op = ConvolutionEnd(convolution.op, end.op, stored != made)
    return Change({id(convolution): [], id(end): [Equation(op, (x, weights, end.reads[1]), end.writes)]})


def with_end_gradient(site: Site, end: Equation, convolution: Equation) -> Change | None:
    """The gradient of the convolution with that of its end."""
    flow, (made, sums) = site.flow, end.writes
    stored = flow.stored(made)
    if any(map(flow.is_read, (convolution.writes[0], convolution.writes[2]))):
        return None
    is_inner = flow.is_inner(stored, (convolution,)) and (stored == made or made not in flow.outputs)
    if not is_inner or flow.origin(convolution.reads[0]) != stored:
        return None
    assert isinstance(convolution.op, ConvolutionGradient)
    assert isinstance(end.op, LayerEndGradient)
    op = ConvolutionEndGradient(end.op, convolution.op, stored != made)
    reads = (*end.reads, flow.origin(convolution.reads[1]), convolution.reads[2])
    equation = Equation(op, reads, (*convolution.writes, sums))
    return Change({id(end): [], id(convolution): [equation]})


@dataclass(slots=True)
class _End:
    """The equations of one chain, and what they become."""

    source: int
    is_half: bool
    """Whether the numbers are stored as float16 before the pooling or ReLU."""
    products: Equation | None = None
    """The equation that loses its biases."""
    window: Window | None = None
    rectifies: bool = False
    mask: Equation | None = None
    forward: list[Equation] = field(default_factory=list[Equation])
    backward: list[Equation] = field(default_factory=list[Equation])
    gradient: int = -1
    """Of the result."""
    flow: int = -1
    """The gradient of the products."""

    def replaced(self) -> list[Equation]:
        """Every equation that goes."""
        return [*([] if self.products is None else [self.products]), *self.forward, *self.backward]

    def equations(self, flow: DataFlow, spare: int, sums: int) -> dict[int, list[Equation]]:
        """What takes the place of equations, by their identity; ``spare`` and ``sums`` are unused values."""
        biases, made = -1, dict[int, list[Equation]]()
        if self.products is not None:
            biases = self.products.reads[2]
            made[id(self.products)] = [_without_biases(self.products)]
        op = None if self.mask is None else self.mask.op
        assert op is None or isinstance(op, DropoutMask)
        rounds = self.is_half and self.products is not None
        equation = () if self.mask is None else self.mask.reads[1:]
        new = LayerEnd(self.window, rounds, self.rectifies, op)
        result = self.forward[-1].writes[0]
        made[id(self.forward[-1])] = [Equation(new, (self.source, biases, *equation), (result, spare))]
        share = 1.0 if op is None else op.keep_probability
        reader = _summing(flow, self.flow)
        if reader is not None:
            made[id(reader)] = [reader._replace(writes=(*reader.writes[:2], sums))]
            sums = reader.writes[2]
        back = Equation(
            LayerEndGradient(self.window, share), (self.gradient, spare), (self.backward[-1].writes[0], sums)
        )
        return made | {id(self.backward[-1]): [back]}


def _without_biases(products: Equation) -> Equation:
    """Products whose biases are added later; those of a whole image before they are rounded, as with its own."""
    op = FullyConnected(wide=True) if isinstance(products.op, FullyConnected) else products.op
    return Equation(op, (*products.reads[:2], -1), products.writes)


def _match(flow: DataFlow, equation: Equation) -> _End | None:
    """The chain whose pooling, or ReLU if it has none, is ``equation``; None if it cannot be fused."""
    op = equation.op
    pools = isinstance(op, MaxPooling) and can_pool(op.window)
    if not pools and not _is_relu(equation):
        return None
    before = flow.makers.get(equation.reads[0])
    end = _End(equation.reads[0], before is not None and before.op == STORE_HALF)
    _take_biases(flow, end, equation)
    end.forward.append(equation)
    if isinstance(op, MaxPooling):
        end.window, relu = op.window, _relu_behind(flow, equation)
        end.rectifies = relu is not None
        end.forward += [] if relu is None else [relu]
    else:
        end.rectifies = True
    _take_dropout(flow, end)
    return end if _take_gradients(flow, end, equation) else None


def _stored(flow: DataFlow, value: int, chain: list[Equation]) -> int:
    """The value that numbers are stored in as float16, if that is all that becomes of them; the equation is noted."""
    reader = flow.only_reader(value)
    if reader is None or reader.op != STORE_HALF:
        return value
    chain.append(reader)
    return reader.writes[0]


def _is_relu(equation: Equation) -> bool:
    op = equation.op
    return isinstance(op, Neuron) and op.function is _RELU and op.a == 0.0


def _take_biases(flow: DataFlow, end: _End, equation: Equation) -> None:
    """Begin with products whose biases are added by nobody else, if the numbers are such."""
    store = flow.makers.get(end.source) if end.is_half else None
    value = end.source if store is None else store.reads[0]
    maker = flow.makers.get(value)
    if maker is None or type(maker.op) not in (Convolution, FullyConnected) or maker.reads[2] == -1:
        return
    if store is not None:
        if flow.only_reader(value) is not store or end.source in flow.outputs:
            return
        end.forward.append(store)
    end.source, end.products = value, maker


def _relu_behind(flow: DataFlow, pool: Equation) -> Equation | None:
    """The ReLU that alone reads a pooled image, besides its own gradient."""
    pooled = pool.writes[0]
    relus = [each for each in flow.uses(pooled) if _is_relu(each)]
    others = [each for each in flow.uses(pooled) if not _is_relu(each)]
    is_inner = pooled not in flow.outputs and all(isinstance(each.op, ReluPoolGradient) for each in others)
    return relus[0] if len(relus) == 1 and len(others) == 1 and is_inner else None


def _take_dropout(flow: DataFlow, end: _End) -> None:
    """Go on over a rounding that changes nothing and a dropout behind it, if these come next."""
    chain, value = list[Equation](), end.forward[-1].writes[0]
    value = _stored(flow, value, chain) if end.is_half else value
    masks = [each for each in flow.readers(value) if isinstance(each.op, DropoutMask) and each.op.strides == (1, 1, 1)]
    drops = [each for each in flow.readers(value) if isinstance(each.op, Dropout)]
    if len(masks) != 1 or len(drops) != 1 or drops[0].reads != (value, masks[0].writes[0]):
        return
    if not end.rectifies or not flow.is_inner(value, (masks[0], drops[0])):
        return
    end.mask = masks[0]
    end.forward += [*chain, masks[0], drops[0]]
    if end.is_half:
        _stored(flow, drops[0].writes[0], end.forward)


def _take_gradients(flow: DataFlow, end: _End, first: Equation) -> bool:
    """Note the gradients of the chain; whether there are such, and nobody else reads what is between."""
    seen = first.reads[0]
    back = [each for each in flow.uses(seen) if _is_gradient(flow, each, first, end)]
    if len(back) != 1:
        return False
    chain = [back[0]]
    if end.mask is not None:
        mask = end.mask.writes[0]
        drops = [each for each in flow.readers(mask) if each not in end.forward]
        if len(drops) != 1 or not isinstance(drops[0].op, Dropout) or drops[0].op != _dropout_of(end):
            return False
        between = list[Equation]()
        if _stored(flow, drops[0].writes[0], between) != back[0].reads[0] or not flow.is_inner(back[0].reads[0], back):
            return False
        chain = [drops[0], *between, back[0]]
    end.backward, end.gradient, end.flow = chain, chain[0].reads[0], back[0].writes[0]
    inner = {value for each in (*end.forward[:-1], first) for value in each.writes} - {end.forward[-1].writes[0]}
    inner |= {seen} if end.products is not None else set()
    return all(flow.is_inner(value, end.replaced()) for value in inner)


def _dropout_of(end: _End) -> Dropout:
    assert end.mask is not None
    assert isinstance(end.mask.op, DropoutMask)
    return Dropout(end.mask.op.keep_probability)


def _is_gradient(flow: DataFlow, equation: Equation, first: Equation, end: _End) -> bool:
    """Whether an equation is the gradient of the chain's pooling and ReLU."""
    op, forward, read = equation.op, first.op, tuple(map(flow.origin, equation.reads[1:]))
    if not isinstance(forward, MaxPooling):
        return isinstance(op, NeuronGradient) and vars(op) == vars(forward) and read == first.reads
    same = isinstance(op, ReluPoolGradient | MaxPoolingGradient) and op.window == forward.window
    if isinstance(op, ReluPoolGradient):
        reads = first.writes[0], first.reads[0], first.writes[1]
        return same and end.rectifies and op.slope == 0.0 and read == reads
    return same and not end.rectifies and read == (first.reads[0], first.writes[1])


def _summing(flow: DataFlow, value: int) -> Equation | None:
    """The gradient of products that sums their gradient, for biases."""
    for equation in flow.readers(value):
        if equation.op in (STORE_HALF, LOAD_HALF):
            found = _summing(flow, equation.writes[0])
        else:
            is_one = equation.op.kind is Kind.CONTRACTION_GRADIENT and equation.reads[0] == value
            is_read = is_one and bool(flow.readers(equation.writes[2]) or equation.writes[2] in flow.outputs)
            found = equation if is_read else None
        if found is not None:
            return found
    return None
