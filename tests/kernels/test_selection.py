"""Batches by number: which images they have, which of them are mirrored in which epoch, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8, Bench, finish, numbers
from exercises import drawn, whole_numbers
from helpers import assert_close
from in_one_test import in_one_test
from measured import note_error
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError, MTLExecutionError
from openmps.kernels.selection import AlternatingFlip, ImageSelection
from openmps.runtime.devices import mtl_device
from openmps.runtime.replay import replayer
from openmps.types import MPSDataType
from oracles import selection as oracle
from replay_twin import outcomes, replaying_queue

CPU = mtl_device("cpu")
SEED = 2**41 + 9
NUMBERS = [3, 0, 4294967295, 17, 3]


@pytest.mark.parametrize("channel_format", [FLOAT32, UNORM8], ids=str)
def test_selection(channel_format: Any, device: torch.device) -> None:
    """A number may come again, and what is stored is copied as it is."""
    bench = Bench.on(device)
    data = bench.image(np.abs(drawn("data", (6, 3, 2, 4))), channel_format)
    batch = bench.batch(np.ones((4, 3, 2, 4)), channel_format)
    command_buffer = bench.command_buffer()
    chosen = [5, 1, 5, 0]
    ImageSelection(bench.device).encode_batch(command_buffer, data, whole_numbers(bench, chosen), batch)
    finish(command_buffer)
    expected = oracle.selected(numbers(data), chosen)
    note_error(ImageSelection, "forward", device, numbers(batch), expected)
    np.testing.assert_array_equal(numbers(batch), expected)


def test_replays_read_the_data_set_in_place(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is, and what is written to it meanwhile; another one is another data set."""
    monkeypatch.setattr(replayer, "MOST_COPIED", 64)
    bench, selection = Bench.on(device), ImageSelection(Bench.on(device).device)
    bench.queue = replaying_queue(device)
    first, second = (bench.image(drawn(name, (6, 3, 2, 4))) for name in ("first", "second"))
    order = [5, 0, 3, 3, 1]
    vector = whole_numbers(bench, order)

    def taken(data: Any, place: int) -> str:
        selection.first, batch, command_buffer = place, bench.batch(np.ones((2, 3, 2, 4))), bench.command_buffer()
        selection.encode_batch(command_buffer, data, vector, batch)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(batch), oracle.selected(numbers(data), order[place : place + 2]))
        (became,) = outcomes(command_buffer)
        return became

    assert [taken(first, place) for place in (0, 1, 2, 0, 3)][-2:] == ["replayed"] * 2
    first.write_bytes(np.full((2, 4, 3), 9.0, np.float32), image_index=3)
    assert taken(first, 1) == "replayed"
    found = [taken(data, place) for data, place in ((second, 1), (first, 2), (second, 0), (second, 3), (second, 1))]
    assert found[1] == found[-1] == "replayed" != found[0]


def test_a_number_that_no_image_has(device: torch.device) -> None:
    bench = Bench.on(device)
    data, batch = bench.image(np.ones((3, 1, 2, 2))), bench.batch(np.full((2, 1, 2, 2), 7.0))
    command_buffer = bench.command_buffer()
    ImageSelection(bench.device).encode_batch(command_buffer, data, whole_numbers(bench, [2, 3]), batch)
    if device.type == "cuda":
        finish(command_buffer)
        assert numbers(batch)[:, 0, 0, 0].tolist() == [1, 0]
        return
    with pytest.raises(MTLExecutionError) as caught:
        finish(command_buffer)
    expected = "ImageSelection: numbers must be below 3, the images there are, got 3 for image 1"
    assert str(caught.value.__cause__) == expected


def test_alternating_flip(device: torch.device) -> None:
    """Over two epochs each image is seen both ways; which way first is drawn by its number."""
    bench, x = Bench.on(device), drawn("images", (5, 2, 3, 4))
    flip, source = AlternatingFlip(bench.device, SEED), bench.batch(x)
    found = []
    for epoch in (0, 1, 2):
        flip.epoch, flip.first = epoch, 2 * epoch
        batch, command_buffer = bench.batch(np.zeros(x.shape)), bench.command_buffer()
        flip.encode_batch(command_buffer, source, whole_numbers(bench, [*range(2 * epoch), *NUMBERS, 7]), batch)
        finish(command_buffer)
        found.append(numbers(batch))
        expected = oracle.alternately_mirrored(x, NUMBERS, epoch, SEED)
        assert_close(found[-1], expected, 0.0)
        note_error(AlternatingFlip, "forward", device, found[-1], expected)
    np.testing.assert_array_equal(found[1], found[0][..., ::-1])
    np.testing.assert_array_equal(found[2], found[0])
    drawn_bits = [
        oracle.alternately_mirrored(np.arange(2.0).reshape(1, 1, 1, 2), [i], 0, 1)[0, 0, 0, 0] for i in range(400)
    ]
    assert 150 < sum(drawn_bits) < 250


@pytest.mark.parametrize(
    ("count", "kind", "destination", "message"),
    [
        (4, np.uint32, (3, 1, 2, 2), "numbers must have a number for each of 3 images from 2 on, got 4 numbers"),
        (2, np.float32, (2, 1, 2, 2), "numbers must hold UINT32, got FLOAT32"),
        (2, np.uint32, (2, 2, 2, 2), "destination_images must be .* of FLOAT32, as source_image is stored"),
    ],
)
def test_refusals(count: int, kind: Any, destination: tuple[int, ...], message: str) -> None:
    bench = Bench(CPU)
    chosen = MPSVector.from_numpy(CPU, np.zeros(count, kind))
    selection = ImageSelection(CPU)
    selection.first = 2
    with pytest.raises(MPSArgumentError, match=f"^ImageSelection: {message}"):
        selection.encode_batch(
            bench.command_buffer(), bench.image(np.ones((3, 1, 2, 2))), chosen, bench.batch(np.ones(destination))
        )


def test_images_are_copied_as_they_are_stored() -> None:
    bench = Bench(CPU)
    source, batch = bench.batch(np.ones((2, 1, 2, 2))), bench.batch(np.ones((2, 1, 2, 2)), FLOAT16)
    with pytest.raises(MPSArgumentError, match="^AlternatingFlip: destination_images must be .* of FLOAT32, as source"):
        AlternatingFlip(CPU).encode_batch(bench.command_buffer(), source, whole_numbers(bench, [0, 1]), batch)
    several = MPSVector(device=CPU, descriptor=MPSVectorDescriptor(2, vectors=2, data_type=MPSDataType.UINT32))
    with pytest.raises(MPSArgumentError, match="^AlternatingFlip: numbers must be one vector, got 2"):
        AlternatingFlip(CPU).encode_batch(bench.command_buffer(), source, several, bench.batch(np.ones((2, 1, 2, 2))))


@in_one_test
@pytest.mark.parametrize("name", ["seed", "epoch", "first"])
@pytest.mark.parametrize("value", [-1, 1.5, 2**64])
def test_bad_numbers(name: str, value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^AlternatingFlip: {name} must be an integer of 0 to"):
        setattr(AlternatingFlip(CPU), name, value) if name != "seed" else AlternatingFlip(CPU, value)


def test_what_is_no_image() -> None:
    bench = Bench(CPU)
    batch: Any = bench.batch(np.ones((2, 1, 2, 2)))
    with pytest.raises(MPSTypeError, match="^ImageSelection: source_image"):
        ImageSelection(CPU).encode_batch(bench.command_buffer(), batch, whole_numbers(bench, [0, 1]), batch)
