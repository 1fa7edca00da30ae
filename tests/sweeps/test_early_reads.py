"""What any kernel writes cannot be read before its command buffer is committed, and is waited for afterwards."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SWEPT
from encoding import Bench, encode, keep_results, numbers, shape_of
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MTLCommandBufferError

NOT_YET = "cannot read what a command buffer that is not committed has yet to write"


def refused(label: str) -> Any:
    return pytest.raises(MTLCommandBufferError, match=f"{NOT_YET}, got {re.escape(repr(label))}")


@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_results_gradients_losses_and_gradients_of_parameters(sample: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = sample.make(bench.device)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    images = [bench.batch(values) for values in sample.sources(2)]
    more = sample.more(bench, 2, 0, False)
    options = {"destination_state_is_temporary": False} if sample.gradients else {}
    found = encode(kernel, command_buffer, images, *more, **options)
    result, states = found if sample.gradients else (found, None)
    written = {kernel.name: [result]}
    if more and sample.labels is not None:
        labels = more[0] if isinstance(more[0], MPSStateBatch | list) else [more[0]]
        written[kernel.name] += [label.loss_image() for label in labels]
    for backward in sample.gradients:
        gradient = backward.make(bench.device)
        keep_results(gradient)
        secondary = result if backward.reads_result else images[backward.secondary]
        flow = bench.batch(sample.incoming(shape_of(result)))
        written.setdefault(gradient.name, []).append(encode(gradient, command_buffer, [flow, secondary], states))
    for label, results in written.items():
        for each in results:
            for read in (each.numpy, each.tensor):
                with refused(label):
                    read()
    for source, values in zip(images, sample.sources(2), strict=True):
        np.testing.assert_allclose(numbers(source), values, rtol=1e-6)
    buffers = parameter_buffers(states, sample)
    for buffer in buffers:
        with pytest.raises(MTLCommandBufferError, match=NOT_YET):
            buffer.contents()
    command_buffer.commit()
    for results in written.values():
        for each in results:
            early = each.numpy()
            command_buffer.wait_until_completed()
            np.testing.assert_array_equal(early, each.numpy())
    for buffer in buffers:
        buffer.contents()


def parameter_buffers(states: Any, sample: Any) -> list[Any]:
    """The gradients of parameters that the gradient kernels of a sample fill in."""
    if states is None or not sample.gradients:
        return []
    names = ("gradient_for_weights", "gradient_for_biases", "gradient_for_gamma", "gradient_for_beta")
    found = [getattr(state, name, None) for state in states.unique() for name in names]
    return [each for each in (part() if callable(part) else part for part in found) if each is not None]
