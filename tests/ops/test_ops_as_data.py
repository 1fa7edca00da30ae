"""Operations as data: equal fields make equal operations, float16 operands cost one rounding, memory is as declared."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.geometry import Axis, Window
from openmps.ops.layout.image_copy import RowsToImages
from openmps.ops.layout.pad import Pad, PadGradient
from openmps.ops.layout.reshape import Reshape
from openmps.ops.op import Op
from openmps.ops.reduce.local_correlation import LocalCorrelation
from openmps.ops.reduce.reduce import CHANNELS, COLUMNS, ROWS, Reduce, ReduceWeighted, Reduction, Weighting
from openmps.ops.resample.grid_sample import GridSample
from openmps.ops.resample.image_scale import ScaleFilter, ScaleImage, Scaling
from openmps.ops.resample.resample import CropAndResize, Enlarge, EnlargeGradient, Interpolate, InterpolateGradient
from openmps.ops.resample.stretch import Stretch
from openmps.types import MPSImageEdgeMode as Edge

IMAGE, SMALL = (2, 6, 5, 4), (2, 6, 7, 9)
INSIDE, BEYOND = Window(Axis(4, 4), Axis(5, 5)), Window(Axis(4, 9, offset=-2), Axis(5, 7, offset=-1))
STAY, GROW = (Stretch(5, 5, 1, 1), Stretch(4, 4, 1, 1)), (Stretch(5, 7, 5, 7), Stretch(4, 9, 4, 9))
TWICE = Window(Axis(4, 8), Axis(5, 10))

CASES: list[tuple[Op, tuple[tuple[int, ...], ...]]] = [
    *((Reduce(reduction, axis), (IMAGE,)) for reduction in Reduction for axis in (CHANNELS, ROWS, COLUMNS)),
    (Reduce(Reduction.SUM, CHANNELS, -0.3), (IMAGE,)),
    *((ReduceWeighted(weighting), (IMAGE, IMAGE)) for weighting in Weighting),
    (LocalCorrelation((1, 2), (1, 1), Edge.CLAMP), (IMAGE, IMAGE)),
    (Enlarge(INSIDE, (1, 1), Edge.ZERO), (IMAGE,)),
    *((Enlarge(TWICE, (2, 2), edge), (IMAGE,)) for edge in (Edge.ZERO, Edge.CLAMP)),
    (EnlargeGradient(INSIDE, (1, 1), Edge.ZERO), (IMAGE,)),
    (EnlargeGradient(TWICE, (2, 2), Edge.CLAMP), ((2, 6, 10, 8),)),
    (Interpolate(*STAY, Edge.ZERO), (IMAGE,)),
    (Interpolate(*GROW, Edge.CLAMP), (IMAGE,)),
    (InterpolateGradient(*STAY, Edge.ZERO), (IMAGE,)),
    (InterpolateGradient(*GROW, Edge.CLAMP), (SMALL,)),
    (CropAndResize((5, 4), INSIDE), (IMAGE, (3, 4))),
    (GridSample(Edge.CLAMP, None), (IMAGE, (2, 2, 3, 3))),
    (
        ScaleImage(Scaling(Axis(5, 7), 1.4, 0.0), Scaling(Axis(4, 9), 2.25, 0.0), ScaleFilter.LANCZOS, Edge.CLAMP),
        (IMAGE,),
    ),
    *((Pad(window, (1, 2), edge, 0.7), (IMAGE,)) for window in (INSIDE, BEYOND) for edge in Edge),
    *((Pad(INSIDE, (0, 0), edge), (IMAGE,)) for edge in Edge),
    *((PadGradient(BEYOND, (0, 2), edge), ((2, 6, 7, 9),)) for edge in Edge),
    *((PadGradient(INSIDE, (0, 0), edge), (IMAGE,)) for edge in Edge),
    (Reshape((4, 10, 3)), (IMAGE,)),
    (RowsToImages((6, 5, 4), True), ((2, 120),)),
    (RowsToImages((6, 5, 4), False), ((2, 120),)),
]
each_case = pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])


def _operands(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    rng = np.random.default_rng(3)
    made = [torch.from_numpy(rng.normal(size=shape)).to(device, dtype) for shape in shapes]
    return [x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in made]


@in_one_test
@each_case
def test_equal_fields_make_equal_operations(op: Op, shapes: Any) -> None:
    """Each field counts, and none is a tensor or a list."""
    assert copy.deepcopy(op) == op
    assert hash(copy.deepcopy(op)) == hash(op)
    assert len({op, *(other for other, _ in CASES)}) == len(CASES)
    assert not any(isinstance(getattr(op, field.name), torch.Tensor | np.ndarray | list) for field in fields(op))


@in_one_test
@each_case
def test_results_share_memory_only_where_the_operation_says_so(op: Op, shapes: Any, device: torch.device) -> None:
    operands = _operands(shapes, torch.float32, device)
    kept = [operand.clone() for operand in operands]
    result: Any = op.run((True,), *operands)
    pointers = {operand.untyped_storage().data_ptr() for operand in operands}
    assert op.gives_view or result.untyped_storage().data_ptr() not in pointers
    assert all(torch.equal(operand, before) for operand, before in zip(operands, kept, strict=True))


@in_one_test
@each_case
def test_float16_operands_cost_one_rounding(op: Op, shapes: Any, device: torch.device) -> None:
    if not op.takes_half:
        pytest.skip("its operands are widened")
    operands = _operands(shapes, torch.float16, device)
    found: Any = op.run((True,), *operands)
    exact: Any = op.run((True,), *(operand.double() for operand in operands))
    assert found.dtype in (torch.float16, torch.float32)
    np.testing.assert_array_max_ulp(found.half().cpu().numpy(), exact.half().cpu().numpy(), 1)
