"""The end of a block with the convolution behind it, one launch against the convolutions one by one: on CUDA, or by
Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace
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


CASES = {
    "an image to add": Case(2, 16, 0, 64, 16),
    "a projection to add": Case(2, 16, 32, 64, 16),
    "more channels behind it": Case(1, 32, 0, 64, 32, ("LEAKY", "NONE")),
    "no biases": Case(1, 16, 0, 32, 16, ("NONE", "RELU_N"), (False, False)),
    "biases of the end": Case(1, 16, 16, 32, 16, ("RELU_N", "LEAKY"), (True, False)),
    "biases behind it": Case(1, 16, 0, 32, 16, ("RELU", "RELU"), (False, True)),
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
    y, z = followed_end(x, end, residual, projection, following, Tile(16, 4, 3, 2))
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
    def on(cls, place: torch.device, *, projects: bool = False, biases_of_residual: bool = False) -> Operands:
        biases = _numbers((32,), place).float()
        of_residual = Prepared(_weights(32, 16, place), biases if biases_of_residual else None, None)
        return cls(
            _image(2, 16, place),
            Prepared(_weights(32, 16, place), biases, biases.half()),
            _image(2, 16 if projects else 32, place),
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
def launches(monkeypatch: pytest.MonkeyPatch, place: torch.device) -> list[bool]:
    """Whether each followed end that was asked for became one launch, where small ones may."""
    made, form = list[bool](), half_forms.followed_end

    def watched(*given: object) -> object:
        made.append((found := form(*given)) is not None)  # pyright: ignore[reportArgumentType]
        return found

    monkeypatch.setattr(half_forms, "followed_end", watched)
    monkeypatch.setattr(half_forms, "_FOLLOWED_ENDS", {(16, 0, 32, 16), (16, 16, 32, 16)})
    monkeypatch.setattr(half_forms, "_MANY_PIXELS", 70)
    monkeypatch.setattr(half_forms, "_is_roomy", lambda device: True)
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    return made


@pytest.mark.parametrize("projects", [False, True])
def test_an_end_and_what_follows_are_one_launch(projects: bool, place: torch.device, launches: list[bool]) -> None:
    given, op = Operands.on(place, projects=projects), FollowedEnd(END, PROJECTION if projects else None, END, True)
    found = given.run(op)
    assert launches == [True]
    for each, expected in zip(found, given.one_by_one(op), strict=True):
        torch.testing.assert_close(each.float(), expected.float(), rtol=4e-3, atol=8e-3)


def test_what_has_no_such_launch(place: torch.device, launches: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the convolutions one by one, bit for bit."""
    plain, projected = FollowedEnd(END, None, END, False), FollowedEnd(END, PROJECTION, END, False)
    tanh = replace(END, activation=Activation(MPSCNNNeuronType.SIGMOID, 0.0, 0.0))
    given, both = Operands.on(place), Operands.on(place, projects=True)
    wide = given._replace(behind=Prepared(_weights(8, 32, place), None, None))
    cases = {
        "biases of the projection": (Operands.on(place, projects=True, biases_of_residual=True), projected, []),
        "a neuron that is no rectifier": (given, FollowedEnd(tanh, None, END, False), []),
        "other channels": (wide, plain, [False]),
        "weights that lie otherwise": (
            given._replace(behind=given.behind._replace(weights=_weights(16, 64, place)[..., ::2])), plain, [False],
        ),
        "few pixels": (given._replace(x=given.x[:1], residual=given.residual[:1]), plain, [False]),
        "one image to add to each": (given._replace(residual=given.residual[:1]), plain, [False]),
    }  # fmt: skip
    for name, (operands, op, asked) in cases.items():
        launches.clear()
        found = operands.run(op)
        assert launches == asked, name
        assert all(map(torch.equal, found, operands.one_by_one(op))), name
    monkeypatch.setattr(half_forms, "_is_roomy", lambda device: False)
    launches.clear()
    assert all(map(torch.equal, both.run(projected), both.one_by_one(projected)))
    assert launches == [False]


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
