"""Convolutions of normalized and rectified images, as in DenseNet; see `openmps.ops.rewrite.table`.

The slow equations are a `StoredNormalization` with ReLU and the `FusedConvolution` by windows of one pixel that alone
reads its result.
"""

from __future__ import annotations

from openmps.ops.convolution.fused_convolution import Activation, FusedConvolution, PrepareConvolution
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution, PreparePreactivated
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Equation
from openmps.ops.rewrite.recipe import Recipe
from openmps.ops.rewrite.rule import Change, Site
from openmps.types import MPSCNNNeuronType

_RELU = MPSCNNNeuronType.RELU, 0.0


def preactivated(site: Site, normalization: Equation, convolution: Equation) -> Change | None:
    """The convolution with the normalization before it; not where numbers are rounded to float16 between."""
    image, op, conv = normalization.writes[0], normalization.op, convolution.op
    assert isinstance(op, StoredNormalization)
    assert isinstance(conv, FusedConvolution)
    is_rectified = isinstance(op.activation, Activation) and (op.activation.function, op.activation.a) == _RELU
    if not is_rectified or site.has_conversions() or site.flow.only_reader(image) is not convolution:
        return None
    window, behind = conv.how.window, convolution.reads[3:]
    if window.size != (1, 1) or conv.how.groups != 1 or window.leaves_source or behind:
        return None
    if convolution.reads[0] != image or image in convolution.reads[1:]:
        return None
    before, prepared = (site.inputs[each.reads[1]] for each in (normalization, convolution))
    rows, memory = site.recipes[before], site.recipes[prepared]
    assert isinstance(rows.op, PrepareNormalization)
    assert isinstance(memory.op, PrepareConvolution)
    recipe = Recipe(PreparePreactivated(rows.op, memory.op), (*rows.reads, *memory.reads))
    made = Equation(
        PreactivatedConvolution(op, conv.how), (normalization.reads[0], *convolution.reads[1:]), convolution.writes
    )
    return Change({id(normalization): [], id(convolution): [made]}, recipes={prepared: recipe})
