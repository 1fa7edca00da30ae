"""Warmups: they leave nothing behind, and compile each kernel once. No GPU is asked: a kernel says what it is asked.

That real kernels are compiled ahead, and none at the launch, is shown by the tests of replays on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.ops.triton.ahead import Compiling, Launched
from openmps.ops.update.collectives import Processes, alone
from openmps.runtime.replay import warmup
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from replay_twin import outcomes, replaying_queue

CPU, STEPS = torch.device("cpu"), 4
Format = mps.MPSImageFeatureChannelFormat


def _trained(channel_format: Format) -> tuple[list[float], list[np.ndarray], list[list[str]]]:
    """Losses, weights and outcomes of some steps of the sample network."""
    queue, generator = replaying_queue(), np.random.default_rng(3)
    shape = NetworkShape(12, 12, 1, 3)
    network = SampleNetwork.create(shape, seed=1, optimizer=optimizer_factory("adam", 1e-2))
    graph = network.training_graph(queue.device, channel_format, loss_weight=1.0, dropout_seed=1)
    graph.stop_on_non_finite = False
    losses, found = [], []
    for _ in range(STEPS):
        images = generator.integers(0, 256, (4, 12, 12, 1), np.uint8)
        batch = mps.MPSImageBatch.from_numpy(queue.device, images, Format.UNORM8)
        labels = mps.MPSCNNLossLabels.batch(queue.device, np.eye(3, dtype=np.float32)[[0, 1, 2, 0]])
        command_buffer = mps.MPSCommandBuffer(command_queue=queue)
        graph.encode_batch(command_buffer, [batch], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        losses.append(float(sum(each.loss_image().numpy().sum() for each in labels)))
        found.append(outcomes(command_buffer))
    return losses, [*network.arrays().values()], found


@pytest.mark.parametrize("channel_format", [Format.FLOAT16, Format.FLOAT32])
def test_rehearsals_change_nothing(channel_format: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, weights, found = _trained(channel_format)
    warmed_up: list[int] = []
    warm_up = warmup.warm_up

    def noted(works: Any, device: torch.device) -> None:
        warm_up(works, device)
        warmed_up.append(len(works))

    monkeypatch.setattr(warmup, "warm_up", noted)
    monkeypatch.setattr(warmup, "triton", SimpleNamespace(runs_on=lambda device: True))
    again = _trained(channel_format)
    assert warmed_up, "no warmup ran to its end"
    assert again[0] == losses
    assert again[2] == found
    for mine, theirs in zip(again[1], weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class _Kernel:
    """Takes a tensor, integers of which the second is compiled for as it is, and a number; notes what it is asked."""

    def __init__(self) -> None:
        kinds = [(False, False), (False, False), (True, False), (False, True)]
        self.params = [SimpleNamespace(is_constexpr=fixed, do_not_specialize=free) for fixed, free in kinds]
        self.launches: list[tuple[Any, ...]] = []
        self.compiled: list[tuple[Any, ...]] = []
        self.run = None

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self.launches.append((grid, *arguments))

    def warmup(self, *arguments: Any, grid: Any, **options: Any) -> _Kernel:
        tensor, *others = arguments
        self.compiled.append((tensor.dtype, tensor.data_ptr() % 16, *others, grid, options))
        return self


def test_what_is_launched_meanwhile_is_compiled_once_for_all_that_it_serves() -> None:
    kernel, x = _Kernel(), torch.zeros(8)
    launched = Launched(kernel)
    with Compiling(CPU) as compiling:
        for argument, count, fixed, step in (
            (x, 32, 7, 1), (x, 48, 7, 5), (x, 33, 7, 1), (x, 1, 7, 1), (x, 32, 8, 1), (x[1:], 32, 7, 1),
            (x.half(), 32, 7, 1),
        ):  # fmt: skip
            launched[(3,)](argument, count, fixed, step, num_warps=4)
        launched[(3,)](x, 32, 7, 1, num_warps=8)
    assert not kernel.launches
    assert compiling.asked == len(kernel.compiled) == 7
    assert sorted((each[2], each[3]) for each in kernel.compiled) == [
        (1, 7),
        (32, 7),
        (32, 7),
        (32, 7),
        (32, 7),
        (32, 8),
        (33, 7),
    ]
    with Compiling(CPU) as compiling:
        launched[(3,)](x, 64, 7, 9, num_warps=4)
    assert not compiling.asked
    launched[(5,)](x, 32, 7, 1)
    assert kernel.launches == [((5,), x, 32, 7, 1)]


def test_described_tensors_are_compiled_for_their_blocks() -> None:
    """Those of one type and one shape of blocks share a kernel, which holds no memory."""
    kernel, x = _Kernel(), torch.zeros(8)
    kernel.params, asked = kernel.params[:1], list[Any]()
    kernel.warmup = lambda described, **_: asked.append(described) or kernel  # pyright: ignore[reportAttributeAccessIssue]
    with Compiling(CPU) as compiling:
        for base, block in ((x, [4, 8]), (torch.ones(16), [4, 8]), (x, [8, 8]), (x.half(), [4, 8])):
            Launched(kernel)[(1,)](SimpleNamespace(base=base, block_shape=block))
    assert compiling.asked == len(asked) == 3
    assert {(each.base.dtype, *each.block_shape) for each in asked} == {
        (torch.float32, 4, 8), (torch.float32, 8, 8), (torch.float16, 4, 8),
    }  # fmt: skip
    assert not any(isinstance(each.base, torch.Tensor) for each in asked)


def test_what_cannot_be_compiled_says_so_when_it_is_launched() -> None:
    kernel = _Kernel()
    kernel.params = kernel.params[:1]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    kernel.warmup = fail  # pyright: ignore[reportAttributeAccessIssue]
    with Compiling(CPU) as compiling:
        Launched(kernel)[(1,)](torch.zeros(2))
    assert compiling.asked == 1


@pytest.mark.parametrize("in_order", [False, True])
def test_rehearsals_send_nothing(in_order: bool) -> None:
    """Others may warm_up at another time: a sum would wait for them, or be taken for one of theirs."""
    processes = Processes(None, 0, 2, in_order=in_order, explain=lambda error: error)
    row, flag = torch.tensor([1.0, 2.0]), torch.tensor(True)
    seen: list[tuple[int, ...]] = []
    with alone():
        for part in processes.finish_sum(processes.start_sum([row, row[:1]])):
            seen.append(tuple(part.shape))
        seen.append(tuple(processes.gathered(row).shape))
        assert bool(processes.all_agree(flag))
    assert seen == [(2,), (1,), (2, 2)]
    with pytest.raises((RuntimeError, ValueError)):  # no process group was made
        processes.gathered(row)
