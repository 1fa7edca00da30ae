"""Replayed encodes give what encodes give that run step by step: every kernel of the catalogue, and its gradients.

Each kernel is encoded five times, over other images each time. On the CPU the twin of the CUDA graphs replays, and the
numbers are equal bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, SWEPT, class_of
from encoding import FLOAT16, FLOAT32, Bench, Outcome, train
from in_one_test import in_one_test_of_each
from openmps.errors import MPSTrainingWarning
from replay_twin import assert_same, replayer_of, replaying_queue
from samples.sample import Sample

ROUNDS = 5


def _once(sample: Sample, bench: Bench) -> Sample:
    """The sample with kernels that are made once."""
    kernel = sample.make(bench.device)
    gradients = tuple(replace(each, make=_giving(each.make(bench.device))) for each in sample.gradients)
    return replace(sample, make=_giving(kernel), gradients=gradients)


def _giving(kernel: Any) -> Any:
    return lambda device: kernel


def _rounds(sample: Sample, bench: Bench, channel_format: Any) -> list[Outcome]:
    once, found = _once(sample, bench), []
    for number in range(ROUNDS):
        sources = [values[::-1] if number % 2 else values for values in sample.sources()]
        found.append(train(bench, once, sources, lambda values: bench.batch(values, channel_format)))
    return found


@in_one_test_of_each(class_of)
@pytest.mark.filterwarnings(f"ignore::{MPSTrainingWarning.__module__}.{MPSTrainingWarning.__name__}")
@pytest.mark.parametrize(
    ("sample", "channel_format"),
    [*((each, FLOAT32) for each in SWEPT), *((each, FLOAT16) for each in SOME_OF_CLASS)],
    ids=lambda each: each.name,
)
def test_replays_equal_what_runs_step_by_step(sample: Sample, channel_format: Any, device: torch.device) -> None:
    plain, replaying = Bench.on(device), Bench.on(device)
    plain.queue.max_capture_count = 0
    replaying.queue = replaying_queue(device)
    expected, found = _rounds(sample, plain, channel_format), _rounds(sample, replaying, channel_format)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same(one.result, other.result, device, f"result {number}")
        for which, (mine, theirs) in enumerate(zip(one.gradients, other.gradients, strict=True)):
            assert_same(mine, theirs, device, f"gradient {which} of {number}")
        for name in ("weights", "biases", "losses"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert_same(np.asarray(mine), np.asarray(theirs), device, f"{name} {number}")
    replayer = replayer_of(replaying.queue)
    assert replayer.captures
    assert not replayer.refusals
