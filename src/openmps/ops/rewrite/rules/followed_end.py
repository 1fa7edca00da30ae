"""Ends of blocks with the convolution behind them; see `openmps.ops.rewrite.table`.

The slow equations of a `FollowedEnd` are a `FusedConvolution` that adds an image, or a `ProjectedConvolution`, and the
`FusedConvolution` that reads what it gives.
"""

from __future__ import annotations

from openmps.ops.convolution.followed_end import FollowedEnd
from openmps.ops.convolution.fused_convolution import FusedConvolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.op import Equation
from openmps.ops.rewrite.rule import Change, Site

_ALONE = 2
"""What a fused convolution reads at least: the image, and what is prepared."""


def followed(site: Site, end: Equation, equation: Equation) -> Change | None:
    """The end of a block with a convolution of its result, each of single pixels and of one group, and both results."""
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
