"""Normalizations of inference before a convolution, with the neuron behind them; see `ops.rewrite.table`.

The slow equations are a batch normalization with stored statistics and a pointwise operation that alone reads its
result. What follows from the statistics is prepared, and made again only when they change.
"""

from __future__ import annotations

from openmps.ops.convolution.fused_convolution import activation_of
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Equation, Input, Kind, Role
from openmps.ops.rewrite.recipe import Recipe
from openmps.ops.rewrite.rule import Change, Site


def stored(site: Site, normalization: Equation, *_: Equation) -> Change | None:
    """The normalization with prepared factors, and the pointwise operation behind it."""
    op, (source, *rows) = normalization.op, normalization.reads
    assert isinstance(op, Normalize)
    prepared, value = Input(Role.PREPARED, site.inputs[rows[0]].name), site.new_value()
    recipe = Recipe(PrepareNormalization(op.epsilon), tuple(map(site.inputs.get, rows)))
    last, activation = normalization, None
    behind = site.flow.only_reader(normalization.writes[0])
    if behind is not None and behind.op.kind is Kind.POINTWISE and len(behind.reads) == len(behind.writes) == 1:
        last, activation = behind, activation_of(behind.op)
    made = Equation(StoredNormalization(activation, op.is_rounded), (source, value), last.writes)
    return Change({id(normalization): []} | {id(last): [made]}, recipes={prepared: recipe}, prepared={prepared: value})
