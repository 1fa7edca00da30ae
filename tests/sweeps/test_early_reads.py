"""What any kernel writes cannot be read before its command buffer is committed, and is waited for afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS
from encoding import Bench, encode, keep_results, numbers, shape_of
from in_one_test import in_one_test
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MTLCommandBufferError

NOT_YET = "cannot read what a command buffer that is not committed has yet to write"
NEVER = "cannot read what a command buffer that was dropped before its commit was to write"


def refused(label: str, rule: str = NOT_YET) -> Any:
    return pytest.raises(MTLCommandBufferError, match=f"{rule}, got {re.escape(repr(label))}")


class Step:
    """A sample's kernel and its gradient kernels, encoded to a command buffer that is not committed."""

    def __init__(self, sample: Any, device: torch.device) -> None:
        bench = Bench.on(device)
        kernel = sample.make(bench.device)
        keep_results(kernel)
        self.command_buffer = bench.command_buffer()
        self.images = [bench.batch(values) for values in sample.sources(2)]
        more = sample.more(bench, 2, 0, False)
        options = {"destination_state_is_temporary": False} if sample.gradients else {}
        found = encode(kernel, self.command_buffer, self.images, *more, **options)
        result, states = found if sample.gradients else (found, None)
        self.written = {kernel.name: [result]}
        """What holds results, by what is to write it."""
        if more and sample.labels is not None:
            labels = more[0] if isinstance(more[0], MPSStateBatch | list) else [more[0]]
            self.written[kernel.name] += [label.loss_image() for label in labels]
        for backward in sample.gradients:
            gradient = backward.make(bench.device)
            keep_results(gradient)
            secondary = result if backward.reads_result else self.images[backward.secondary]
            flow = bench.batch(sample.incoming(shape_of(result)))
            images = [flow, secondary]
            self.written.setdefault(gradient.name, []).append(encode(gradient, self.command_buffer, images, states))
        self._states, self._sample = states, sample

    def buffers(self) -> list[Any]:
        """The gradients of parameters, made when they are asked for."""
        return parameter_buffers(self._states, self._sample)

    def reads(self) -> list[tuple[str, Callable[[], object]]]:
        """What reads images, with what is to write them."""
        found = ((label, each) for label, results in self.written.items() for each in results)
        return [(label, read) for label, each in found for read in (each.numpy, each.tensor)]


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_results_gradients_losses_and_gradients_of_parameters(sample: Any, device: torch.device) -> None:
    step = Step(sample, device)
    for label, read in step.reads():
        with refused(label):
            read()
    for source, values in zip(step.images, sample.sources(2), strict=True):
        np.testing.assert_allclose(numbers(source), values, rtol=1e-6)
    buffers = step.buffers()
    for buffer in buffers:
        with pytest.raises(MTLCommandBufferError, match=NOT_YET):
            buffer.contents()
    step.command_buffer.commit()
    for each in (each for results in step.written.values() for each in results):
        early = each.numpy()
        step.command_buffer.wait_until_completed()
        np.testing.assert_array_equal(early, each.numpy())
    for buffer in buffers:
        buffer.contents()


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_command_buffer_that_is_dropped(sample: Any, asked: str, device: torch.device) -> None:
    """Nothing will ever write its results; buffers of states may be asked for before it goes, or after."""
    step = Step(sample, device)
    # Asking for an image's row in the sums of a batch makes them: they hold zeros, as their states say.
    buffers = [each for each in step.buffers() if not each.is_allocated] if asked == "before" else []
    del step.command_buffer
    for label, read in step.reads():
        with refused(label, NEVER):
            read()
    for buffer in step.buffers() if asked == "after" else buffers:
        with pytest.raises(MTLCommandBufferError, match=NEVER):
            buffer.contents()


def parameter_buffers(states: Any, sample: Any) -> list[Any]:
    """The gradients of parameters that the gradient kernels of a sample fill in."""
    if states is None or not sample.gradients:
        return []
    names = ("gradient_for_weights", "gradient_for_biases", "gradient_for_gamma", "gradient_for_beta")
    found = [getattr(state, name, None) for state in states.unique() for name in names]
    return [each for each in (part() if callable(part) else part for part in found) if each is not None]
