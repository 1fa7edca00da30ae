"""What a replay brings from the host by a launch of its own, stage after stage: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import openmps as mps
from interpreter import triton_place
from openmps.runtime.replay import stages
from openmps.runtime.replay.upload import MOST_STAGED_BYTES, Upload
from replay_twin import outcomes, replaying_queue

COUNT = 2 * stages.STAGES + 3


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs; captures bring their stages there."""
    found = triton_place()
    monkeypatch.setattr(stages, "runs_on", lambda _: True)
    return found


def values(number: int) -> tuple[list[np.ndarray | torch.Tensor], list[float]]:
    """An array of bytes, a tensor with gaps, a number and a whole one; of each number other ones."""
    generator = np.random.default_rng(number)
    floats = torch.from_numpy(generator.normal(0, 1, (2, 6)).astype(np.float32))[:, :3]
    return [generator.integers(0, 255, (3, 5, 4, 1), np.uint8), floats], [number / 3, number]


def assert_there(upload: Upload, number: int) -> None:
    (array, tensor), numbers = values(number)
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(upload.values[0].cpu().numpy(), array.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(upload.values[1].cpu().numpy(), tensor)
    assert [each.item() for each in upload.numbers] == numbers


@pytest.mark.parametrize("is_launched", [True, False], ids=["launched", "never launched"])
@pytest.mark.parametrize("untold", [{}, {2, 7, 8, 15}], ids=["each told of", "of some nobody tells"])
def test_each_stage_comes_in_its_turn(untold: set[int], is_launched: bool, place: torch.device) -> None:
    upload = Upload(*values(0), place)
    for number in range(COUNT):
        upload.send(*values(number))
        if number not in untold or is_launched:
            upload.stages.receive()
            assert_there(upload, number)
        if number not in untold:
            upload.stages.leave()


def test_large_values_come_without_a_stage(place: torch.device) -> None:
    upload = Upload([torch.zeros(MOST_STAGED_BYTES)], [], place)
    for number in range(3):
        upload.send([torch.full((MOST_STAGED_BYTES,), float(number))], [])
        upload.stages.receive()
        upload.stages.leave()
        assert (upload.values[0] == number).all()


def test_replays_read_what_their_stages_hold(place: torch.device) -> None:
    device = mps.mtl_device(place)
    queue, kernel = replaying_queue(place), mps.MPSCNNNeuronLinear(device, 2.0, 1.0)
    descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 2, 1)
    became: list[str] = []
    for number in range(COUNT):
        array = np.full((1, 2, 3, 1), number, np.float32)
        made = mps.MPSImageBatch.allocate(device, descriptor, 1)
        command_buffer = mps.MPSCommandBuffer(queue)
        kernel.encode_batch(command_buffer, mps.MPSImageBatch.from_numpy(device, array), made)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        np.testing.assert_array_equal(made.numpy(), 2 * array + 1)
        became += outcomes(command_buffer)
    assert became[3:] == ["replayed"] * (COUNT - 3)
