"""Gated recurrent units in Triton beside the loop: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.matrix.recurrent import Recurrence, RecurrenceGradient
from openmps.ops.matrix.recurrent_cells import Activation, Gru
from openmps.types import MPSCNNNeuronType

SIGMOID, TANH = Activation(MPSCNNNeuronType.SIGMOID), Activation(MPSCNNNeuronType.TANH, 1.0, 1.0)
ROWS, COUNT = 2, 3


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("size", "is_flipped"), [(5, False), (16, True), (130, True), (129, False)])
def test_equals_the_loop(size: int, is_flipped: bool, backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, what is kept of gates, and gradients with respect to all states; of one launch, and of steps."""
    place = triton_place(monkeypatch)
    generator = torch.Generator().manual_seed(size)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs, rows = 4, (ROWS,) * COUNT
    x, h = drawn(ROWS * COUNT, inputs), drawn(ROWS, size)
    weights = drawn(3 * size, inputs) / 2, drawn(3 * size, size) / size**0.5, drawn(3 * size), None
    cell = Gru((SIGMOID, SIGMOID, TANH), 1.0, is_flipped)
    op, back = Recurrence(cell, size, rows, backward, True), RecurrenceGradient(cell, size, rows, True)

    def run(*given: torch.Tensor | None) -> list[torch.Tensor]:
        x, h, of_y, *parameters = given
        y, states, _, gates, before, *_ = op.run((True,) * 7, x, h, None, *parameters)
        found = [y, states, gates, before]
        if not backward:
            a, left, _ = back.run((True,) * 3, of_y, gates, before, None, None, h, None, *parameters)
            found += [a, left]
        return found

    given = [x, h, drawn(ROWS * COUNT, size), *weights]
    expected = run(*given)
    assert triton.runs_on(place)
    found = run(*(None if each is None else each.float().to(place) for each in given))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=0.0, atol=3e-6)
