"""The end of a block with the convolution behind it, one launch against the convolutions one by one: on CUDA, or by
Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution import half_forms
from openmps.ops.convolution.convolution import convolution, with_biases
from openmps.ops.convolution.followed_end import FollowedEnd
from openmps.ops.convolution.fused_convolution import Activation, Fused, Prepared, fused_convolution
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

RELU = Activation(MPSCNNNeuronType.RELU, 0.0, 0.0)
SIDES = 7, 5
WINDOW = Window(y=Axis(SIDES[0], SIDES[0], 1), x=Axis(SIDES[1], SIDES[1], 1))
END = Fused(WINDOW, MPSImageEdgeMode.ZERO, 1, False, RELU)
PROJECTION = replace(END, activation=None)
STEPPED = replace(PROJECTION, window=Window(y=Axis(2 * SIDES[0], SIDES[0], 1, 2), x=Axis(2 * SIDES[1], SIDES[1], 1, 2)))


def _numbers(shape: tuple[int, ...], place: torch.device, scale: float = 1.0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return numbers.to(place, torch.float16)


def _image(images: int, channels: int, place: torch.device) -> Tensor:
    return _numbers((images, *SIDES, channels), place).permute(0, 3, 1, 2)


def _weights(outputs: int, inputs: int, place: torch.device) -> Tensor:
    return _numbers((outputs, 1, 1, inputs), place, 0.2)


class Case(NamedTuple):
    """Channels and what stands behind each convolution; 0 where nothing is projected."""

    images: int
    inputs: int
    inputs_of_residual: int
    outputs: int
    following: int
    rectifiers: tuple[str, str] = ("RELU", "RELU")
    has_biases: tuple[bool, bool] = (True, True)
    channels: int = 0
    """Of the end at a time, where programs read weights as they need them; else they keep them."""


CASES = {
    "an image to add": Case(2, 16, 0, 64, 16),
    "a projection to add": Case(2, 16, 32, 64, 16),
    "more channels behind it": Case(1, 32, 0, 64, 32, ("LEAKY", "NONE")),
    "no biases": Case(1, 16, 0, 32, 16, ("NONE", "RELU_N"), (False, False)),
    "biases of the end": Case(1, 16, 16, 32, 16, ("RELU_N", "LEAKY"), (True, False)),
    "biases behind it": Case(1, 16, 0, 32, 16, ("RELU", "RELU"), (False, True)),
    "weights as they are needed": Case(2, 16, 0, 64, 16, channels=16),
    "a neuron of those": Case(1, 32, 0, 64, 32, ("LEAKY", "NONE"), channels=32),
    "none of their biases": Case(1, 16, 0, 32, 16, ("NONE", "RELU_N"), (False, False), channels=16),
}


def _rectified(y: Tensor, name: str, slope: float, limit: float) -> Tensor:
    if name == "LEAKY":
        return torch.where(y < 0, y * slope, y)
    return y if name == "NONE" else y.clamp(0.0, limit if name == "RELU_N" else torch.inf)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_launch_equals_the_convolutions(case: Case, place: torch.device) -> None:
    """Programs take several tiles of pixels, of which the last is not full."""
    from openmps.ops.triton.convolution.followed_end import Layer, Tile, followed_end

    x, residual = (_image(case.images, each, place) for each in (case.inputs, case.inputs_of_residual or case.outputs))
    x[0, 1, 1, 1], residual[-1, 0, 2, 2], residual[0, 3, 4, 4] = torch.inf, torch.nan, -torch.inf
    weights, after = (_weights(*each, place) for each in ((case.outputs, case.inputs), (case.following, case.outputs)))
    projection = _weights(case.outputs, case.inputs_of_residual, place) if case.inputs_of_residual else None
    biases = [
        _numbers((count,), place).float() if has else None
        for count, has in zip((case.outputs, case.following), case.has_biases, strict=True)
    ]
    end, following = (
        Layer(w, b, (name, 0.25 if name == "LEAKY" else 0.0, 1.5))
        for w, b, name in zip((weights, after), biases, case.rectifiers, strict=True)
    )
    tile = Tile(16, case.channels or case.outputs, 4, 3, 0 if case.channels else 2)
    y, z = followed_end(x, end, residual, projection, following, tile)
    added = (
        residual.double() if projection is None else convolution(residual.double(), projection.double(), None, WINDOW)
    )
    for found, source, layer, more in ((y, x, end, added), (z, y, following, 0.0)):
        expected = convolution(source.double(), layer.weights.double(), None, WINDOW)
        expected = with_biases(expected, None if layer.biases is None else layer.biases.double()) + more
        assert found.dtype == torch.float16
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(
            found.double(), _rectified(expected, *layer.rectifier), rtol=2e-3, atol=4e-3, equal_nan=True
        )


class Operands(NamedTuple):
    """Of an end of 16 to 32 channels and a convolution to 16."""

    x: Tensor
    prepared: Prepared
    residual: Tensor
    of_residual: Prepared | None
    behind: Prepared

    @classmethod
    def on(
        cls, place: torch.device, *, inputs_of_residual: int = 0, biases_of_residual: bool = False, step: int = 1
    ) -> Operands:
        biases = _numbers((32,), place).float()
        projects, sides = inputs_of_residual > 0, [side * step for side in SIDES]
        of_residual = Prepared(_weights(32, inputs_of_residual, place), biases if biases_of_residual else None, None)
        return cls(
            _image(2, 16, place),
            Prepared(_weights(32, 16, place), biases, biases.half()),
            _numbers((2, *sides, inputs_of_residual or 32), place).permute(0, 3, 1, 2),
            of_residual if projects else None,
            Prepared(_weights(16, 32, place), biases[:16], biases[:16].half()),
        )

    def run(self, op: FollowedEnd) -> tuple[Tensor, Tensor]:
        return op.run((True, True), *(each for each in self if each is not None))

    def one_by_one(self, op: FollowedEnd) -> tuple[Tensor, Tensor]:
        added = self.residual
        if self.of_residual is not None:
            assert op.projection is not None
            added = fused_convolution(added, self.of_residual, None, op.projection)
        y = fused_convolution(self.x, self.prepared, added, op.end)
        return y, fused_convolution(y, self.behind, None, op.following)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, place: torch.device) -> list[tuple[bool, bool]]:
    """Of each time that a launch was asked for: whether with a projection, and whether there is one; small ones may."""
    made, tiles = list[tuple[bool, bool]](), half_forms.followed_tile

    def watched(x: Tensor, weights: Tensor, projection: Tensor | None, after: Tensor) -> object:
        made.append((projection is not None, (found := tiles(x, weights, projection, after)) is not None))
        return found

    divided = {(16, 0, 32, 16): (69, (16, 16, 4, 2)), (16, 16, 32, 16): (69, (16, 32, 4, 3, 2))}
    monkeypatch.setattr(half_forms, "followed_tile", watched)
    monkeypatch.setattr(half_forms, "_FOLLOWED_ENDS", divided)
    monkeypatch.setattr(half_forms, "_is_roomy", lambda device: True)
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    return made


ENDS = {
    "an image to add": (Operands.on, FollowedEnd(END, None, END, True), [(False, True)]),
    "a projection": (
        partial(Operands.on, inputs_of_residual=16), FollowedEnd(END, PROJECTION, END, True), [(True, True)],
    ),
    "a projection with biases": (
        partial(Operands.on, inputs_of_residual=16, biases_of_residual=True), FollowedEnd(END, PROJECTION, END, True),
        [(False, True)],
    ),
    "a projection of other channels": (
        partial(Operands.on, inputs_of_residual=24), FollowedEnd(END, PROJECTION, END, True),
        [(True, False), (False, True)],
    ),
    "a projection of a larger image": (
        partial(Operands.on, inputs_of_residual=16, step=2), FollowedEnd(END, STEPPED, END, True), [(False, True)],
    ),
}  # fmt: skip
"""Operands and operations that are one launch, and which were asked for."""


@pytest.mark.parametrize("name", ENDS)
def test_an_end_and_what_follows_are_one_launch(
    name: str, place: torch.device, launches: list[tuple[bool, bool]]
) -> None:
    make, op, asked = ENDS[name]
    given = make(place)
    found = given.run(op)
    assert launches == asked
    for each, expected in zip(found, given.one_by_one(op), strict=True):
        torch.testing.assert_close(each.float(), expected.float(), rtol=4e-3, atol=8e-3)


def test_what_has_no_such_launch(
    place: torch.device, launches: list[tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is the convolutions one by one, bit for bit."""
    plain, none = FollowedEnd(END, None, END, False), [(False, False)]
    sigmoid = replace(END, activation=Activation(MPSCNNNeuronType.SIGMOID, 0.0, 0.0))
    given = Operands.on(place)
    cases = {
        "a neuron that is no rectifier": (given, FollowedEnd(sigmoid, None, END, False), []),
        "other channels": (given._replace(behind=Prepared(_weights(8, 32, place), None, None)), plain, none),
        "weights that lie otherwise": (
            given._replace(behind=given.behind._replace(weights=_weights(16, 64, place)[..., ::2])), plain, none,
        ),
        "few pixels": (given._replace(x=given.x[:1], residual=given.residual[:1]), plain, none),
        "one image to add to each": (given._replace(residual=given.residual[:1]), plain, [(False, True)]),
    }  # fmt: skip
    for name, (operands, op, asked) in cases.items():
        launches.clear()
        found = operands.run(op)
        assert launches == asked, name
        assert all(map(torch.equal, found, operands.one_by_one(op))), name
    monkeypatch.setattr(half_forms, "_is_roomy", lambda device: False)
    launches.clear()
    assert all(map(torch.equal, given.run(plain), given.one_by_one(plain)))
    assert launches == none


@pytest.mark.parametrize("channels", half_forms._FOLLOWED_ENDS, ids=str)
def test_ends_of_many_pixels_have_one_launch(channels: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose programs have all channels of the end, or some that it is a multiple of."""
    monkeypatch.setattr(half_forms, "_is_roomy", lambda device: True)
    inputs, projected, outputs, after = channels
    sizes = (outputs, 1, 1, inputs), (outputs, 1, 1, projected), (after, 1, 1, outputs)
    weights, projection, following = (torch.empty(each, dtype=torch.float16, device="meta") for each in sizes)
    for images, is_one in ((128, True), (1, False), (1 << 15, False)):
        x = torch.empty((images, inputs, 28, 28), dtype=torch.float16, device="meta")
        tile = half_forms.followed_tile(x, weights, projection if projected else None, following)
        assert (tile is not None) == is_one, images
        if tile is not None:
            assert tile.channels == outputs if tile.programs else outputs % tile.channels == 0 and not projected


def test_what_is_stored_between_is_what_follows_reads(place: torch.device) -> None:
    """Of float32 numbers the result is rounded, if it is stored so, before the next convolution."""
    halves = Operands.on(place)
    prepared, behind = (Prepared(each.weights.float(), each.biases, None) for each in (halves.prepared, halves.behind))
    given = Operands(halves.x.float() / 3, prepared, halves.residual.float(), None, behind)
    for rounds in (False, True):
        op = FollowedEnd(END, None, END, rounds)
        y, z = given.run(op)
        expected = fused_convolution(given.x, prepared, given.residual, END)
        expected = expected.half() if rounds else expected
        assert torch.equal(y, expected)
        torch.testing.assert_close(
            z.float(), fused_convolution(expected.float(), behind, None, END), rtol=2e-3, atol=2e-3
        )
