"""The speedrun: CIFAR's files, patches that are white, a step that is replayed whole, and a network that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cifar_speedrun as program
import openmps as mps
from openmps.training import Dataset
from replay_twin import outcomes, replaying_queue

CPU = mps.mtl_device("cpu")
NAMES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def test_files_of_cifar(tmp_path: Path) -> None:
    """A byte for the class, then three planes of rows."""
    for place, name in enumerate(NAMES):
        record = np.zeros((2, program.RECORD), np.uint8)
        record[:, 0] = place
        record[1, 1 + 1024 + 32 * 5 + 7] = 200  # green, row 5, column 7
        record.tofile(tmp_path / name)
    data = program.cifar(tmp_path)
    assert data.training.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert np.argwhere(data.training.images[1]).tolist() == [[5, 7, 1]]
    assert data.test.images[1, 5, 7].tolist() == [0, 200, 0]
    (tmp_path / NAMES[-1]).write_bytes(b"1" * 100)
    with pytest.raises(SystemExit, match="test_batch.bin must have records of 3073 bytes, .* got 100"):
        program.cifar(tmp_path)


def test_whitened_patches_have_no_correlation() -> None:
    images = program.synthetic(200).training.images
    weights = program.whitening(images, 0.4, 0.2)
    assert weights.shape == (24, 2, 2, 3)
    x = (images / 255 - 0.4) / 0.2
    patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (1, 2)).transpose(0, 1, 2, 4, 5, 3)
    found = patches.reshape(-1, 12) @ weights[:12].reshape(12, 12).T
    np.testing.assert_allclose(found.T @ found / len(found), np.eye(12), atol=2e-3)
    np.testing.assert_array_equal(weights[12:], -weights[:12])


def test_a_step_is_replayed_whole() -> None:
    """Its batch as well, with other images in each step; and it is what runs step by step."""
    losses, became = [], list[str]()
    for queue in (CPU.new_command_queue(), replaying_queue(CPU)):
        network, batches = _small()
        graph = network.training_graph(program.FLOAT16)
        found = []
        for step in range(5):
            if step in (0, 3):
                batches.begin_epoch(step)
            command_buffer = program.start_step(queue, graph, batches, 4 * (step % 3))
            command_buffer.wait_until_completed()
            found.append([each.loss_image().numpy().item() for each in batches.labels])
            became = outcomes(command_buffer)
        losses.append(found)
    assert {*became} == {"replayed"}
    assert losses[0] == losses[1]
    assert len({*map(tuple, losses[0])}) == 5
    for _, normalization in network.sources:
        assert (normalization.gamma() == 1).all()
        assert (normalization.beta() != 0).any()


def _small() -> tuple[program.Speedrun, program.Batches]:
    random = np.random.default_rng(1)
    data = Dataset(random.integers(0, 256, (12, 32, 32, 3), np.uint8), np.arange(12) % 3, ("a", "b", "c"), "small")
    network = program.Speedrun(CPU, data, (4, 8, 8), 0.5, 0.3)
    network.set_rate(0.1)
    return network, program.Batches(CPU, data, 4, 0.5, 0.3, program.FLOAT16)


def test_it_learns_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Some seconds: fewer steps of a smaller network learn nothing."""
    _, accuracy = program.main(["--device", "cpu", "--widths", "12,32,32", "--batch", "32", "--steps", "24"])
    assert accuracy > 0.5
    assert "24 steps of 32 images in" in capsys.readouterr().out
