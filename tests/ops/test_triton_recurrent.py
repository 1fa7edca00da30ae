"""Recurrent layers in Triton beside the loop: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.matrix.recurrent import Recurrence, RecurrenceGradient
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm
from openmps.types import MPSCNNNeuronType

SIGMOID, TANH = Activation(MPSCNNNeuronType.SIGMOID), Activation(MPSCNNNeuronType.TANH, 1.0, 1.0)
GATED = SIGMOID, SIGMOID, TANH
GRU, FLIPPED, LSTM = Gru(GATED), Gru(GATED, is_flipped=True), Lstm((*GATED, SIGMOID), TANH)
HAS = {Gru: (True, False, True, False), Lstm: (True,) * 4}
"""Whether there are h and c, and gradients with respect to them."""
COUNT = 3


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("cell", "size", "rows"),
    [(GRU, 5, 2), (FLIPPED, 16, 2), (FLIPPED, 130, 2), (GRU, 129, 1), (LSTM, 5, 1), (LSTM, 70, 2), (LSTM, 130, 2)],
    ids=["GRU 5", "flipped 16", "flipped 130", "GRU 129, a row", "LSTM 5", "LSTM 70", "LSTM 130"],
)  # fmt: skip
def test_equals_the_loop(
    cell: Gru | Lstm, size: int, rows: int, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, what is kept of gates, and gradients with respect to all states; of one launch, and of steps.

    Then the results alone, with the state behind the last step.
    """
    place = triton_place(monkeypatch)
    generator = torch.Generator().manual_seed(size)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs, high, counts, wide = 4, rows * COUNT, (rows,) * COUNT, cell.gates * size
    x, h, c, dh, dc = drawn(high, inputs), *(drawn(rows, size) if has else None for has in HAS[type(cell)])
    weights = drawn(wide, inputs) / 2, drawn(wide, size) / size**0.5, drawn(wide), None
    alone = Recurrence(cell, size, counts, backward)
    op, back = Recurrence(cell, size, counts, backward, True), RecurrenceGradient(cell, size, counts, True)

    def run(*given: torch.Tensor | None) -> list[torch.Tensor]:
        x, h, c, dh, dc, of_y, *parameters = given
        found = op.run((True,) * 7, x, h, c, *parameters)
        found += alone.run((True,) * 3 + (False,) * 4, x, h, c, *parameters)
        if not backward:
            found += back.run((True,) * 3, of_y, *found[3:7], dh, dc, *parameters)
        return [each for each in found if each is not None]

    given = [x, h, c, dh, dc, drawn(high, size), *weights]
    expected = run(*given)
    assert triton.runs_on(place)
    found = run(*(None if each is None else each.float().to(place) for each in given))
    for mine, theirs in zip(found, expected, strict=True):
        # What is kept of gates are sums before their activations, of which float32 rounds the larger ones more.
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=1e-6, atol=3e-6)
