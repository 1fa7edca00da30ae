"""Work that is encoded once and done again gives what encodes give that are made for each command buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SWEPT, class_of
from encoding import Bench, train
from in_one_test import in_one_test_of_each
from openmps.errors import MPSTrainingWarning, MTLCommandBufferError
from openmps.metal.device import MTLCommandBuffer
from openmps.metal.reusable_commands import ReusableCommands
from samples.sample import Sample

OF_ONE_ENCODE = {
    "ImageAugmentation", "MPSCNNDropout", "MPSCNNLoss", "MPSCNNYOLOLoss", "MPSNNForwardLoss", "MPSNNLossGradient",
    "MixUp",
}  # fmt: skip
"""Kernels that have numbers of their own, or states, in each encode."""


class Repeated(ReusableCommands):
    """What is encoded to it runs three times when it is committed."""

    last: MTLCommandBuffer

    def commit(self) -> Any:
        for _ in range(3):
            command_buffer = self.command_queue.command_buffer()
            self.encode(command_buffer)
            command_buffer.commit()
            vars(self)["last"] = command_buffer

    def wait_until_completed(self) -> Any:
        self.last.wait_until_completed()


class RepeatingBench(Bench):
    """Its encodes are made once."""

    def command_buffer(self) -> MTLCommandBuffer:
        return Repeated(self.queue)


@in_one_test_of_each(class_of)
@pytest.mark.filterwarnings(f"ignore::{MPSTrainingWarning.__module__}.{MPSTrainingWarning.__name__}")
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_what_is_done_again_is_the_same(sample: Sample, device: torch.device) -> None:
    plain, repeating, kind = Bench.on(device), RepeatingBench.on(device), class_of(sample)
    if kind in OF_ONE_ENCODE or sample.gradients:
        with pytest.raises(MTLCommandBufferError, match="must do the same each time"):
            train(repeating, sample, sample.sources(), repeating.batch)
        if kind in OF_ONE_ENCODE:
            return
        sample = replace(sample, gradients=())
    expected = train(plain, sample, sample.sources(), plain.batch)
    found = train(repeating, sample, sample.sources(), repeating.batch)
    np.testing.assert_array_equal(found.result, expected.result)
    for mine, theirs in zip(found.gradients, expected.gradients, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("weights", "biases", "losses"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_array_equal(mine, theirs)
