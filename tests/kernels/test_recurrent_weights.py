"""What encodes see of the matrices that a training layer made for its weights and their gradients."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from encoding import Bench
from recurrent_layers import Trained, lstm


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_weights_that_lie_together_are_read_in_place(bench: Bench) -> None:
    """What a step reads and writes of them is one piece of memory; each has a buffer of its own."""
    units = np.ones((16, 16)), np.ones((16, 16)), np.ones(16)
    trained = Trained(bench, lstm(dict.fromkeys(("input", "forget", "cell", "output"), units)))
    assert all(each.offset == 0 and each.data.length == 4 * each.rows * each.columns for each in trained.weights)
    command_buffer = bench.command_buffer()
    read = trained.layer._weights_listed(command_buffer, trained.weights).whole().value()
    assert read.data_ptr() == trained.weights[0].memory().data_ptr()
    for each, matrices_of in zip(trained.layer._sums_listed(command_buffer, trained.gradients), "WUb", strict=True):
        place = trained.gradients["WUb".index(matrices_of)].memory()
        assert each.whole().value().data_ptr() == place.data_ptr()


def test_what_encodes_see_of_weights_is_made_once(bench: Bench) -> None:
    """Of the very matrices that a layer made; until one of them gets other memory, and no longer than these live."""
    units = np.ones((16, 16)), np.ones((16, 16)), np.ones(16)
    trained = Trained(bench, lstm(dict.fromkeys(("input", "forget", "cell", "output"), units)))
    layer, weights, command_buffer = trained.layer, trained.weights, bench.command_buffer()
    seen, sums = layer._weights_listed(command_buffer, weights), layer._sums_listed(command_buffer, trained.gradients)
    assert layer._weights_listed(command_buffer, tuple(weights)) is seen
    assert layer._sums_listed(command_buffer, trained.gradients) is sums
    assert layer._sums_listed(command_buffer, weights) is not sums
    other = layer._weights_listed(command_buffer, [weights[3], *weights[1:3], weights[0], *weights[4:]])
    assert other is not seen
    view, last = seen.whole(), weights[-1]
    assert bool((view.value() == 1).all())
    last.data.bind(torch.full_like(last.data.tensor(torch.float32), 2.0))
    assert float(view.value()[-1]) == 2.0
    last.memory().fill_(3.0)
    assert float(view.value()[-1]) == 3.0
    buffer = weakref.ref(last.data)
    del seen, view, other, last, command_buffer
    trained.weights.clear()
    weights.clear()
    gc.collect()
    assert buffer() is None
