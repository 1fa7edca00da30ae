"""When the end of a block takes in the convolution behind it, as the rule "followed end" says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import FLOAT16, Bench, finish, numbers
from openmps.debug.work import operations_of
from openmps.ops.convolution import half_forms
from openmps.ops.convolution.followed_end import FollowedEnd
from openmps.ops.convolution.fused_convolution import Activation, Fused, FusedConvolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Action, Equation, Function, Input, Role
from openmps.ops.rewrite.data_flow import STORE_HALF
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rule import Place, Situation
from openmps.ops.rewrite.table import RULES
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

RELU = Activation(MPSCNNNeuronType.RELU, 0.0, 0.0)
END = Fused(Window(Axis(4, 4, 1), Axis(4, 4, 1)), MPSImageEdgeMode.ZERO, 1, False, RELU)
LARGER = replace(END, window=Window(Axis(4, 4, 3), Axis(4, 4, 3)))
STEPPED = replace(END, window=Window(Axis(4, 2, 1, 2), Axis(4, 2, 1, 2)))
OF_LARGER = replace(END, window=Window(Axis(8, 4, 1, 2), Axis(8, 4, 1, 2)), activation=None)
GROUPED, PROJECTION = replace(END, groups=2), replace(END, activation=None)
X, W, R, OF_R, V, Y, STORED, Z = range(8)


def _applied(steps: list[Equation], outputs: tuple[int, ...]) -> list[Equation]:
    inputs = [Input(Role.SOURCE if value in (X, R) else Role.PREPARED, str(value)) for value in (X, W, R, OF_R, V)]
    (row,) = (each for each in RULES if each.name == "followed end")
    function = Function(tuple(inputs), steps, tuple(map(str, outputs)), outputs, 8)
    return list(row.apply(FusedFunction(function, {}, {}), Situation(Place.TRITON, 1)).function.equations)


def _steps(
    end: Any, reads: tuple[int, ...], following: Fused, more: tuple[int, ...], *, stores: bool
) -> list[Equation]:
    between = [Equation(STORE_HALF, (Y,), (STORED,))] if stores else []
    source = STORED if stores else Y
    return [Equation(end, reads, (Y,)), *between, Equation(FusedConvolution(following), (source, V, *more), (Z,))]


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("projection", [None, PROJECTION, OF_LARGER])
def test_an_end_takes_in_what_follows(projection: Fused | None, stores: bool) -> None:
    """And gives its own result, too, for whoever adds it later."""
    end = FusedConvolution(END) if projection is None else ProjectedConvolution(END, projection)
    reads = (X, W, R) if projection is None else (X, W, R, OF_R)
    steps = _steps(end, reads, PROJECTION, (), stores=stores)
    followed = Equation(FollowedEnd(END, projection, PROJECTION, stores), (*reads, V), (Y, Z))
    assert _applied(steps, (STORED if stores else Y, Z)) == [followed, *steps[1:-1]]


@pytest.mark.parametrize(
    ("end", "reads", "following", "more"),
    [
        (FusedConvolution(END), (X, W), END, ()),
        (FusedConvolution(LARGER), (X, W, R), END, ()),
        (FusedConvolution(GROUPED), (X, W, R), END, ()),
        (FusedConvolution(END), (X, W, -1, OF_R), END, ()),
        (ProjectedConvolution(LARGER, PROJECTION), (X, W, R, OF_R), END, ()),
        (FusedConvolution(END), (X, W, R), LARGER, ()),
        (FusedConvolution(END), (X, W, R), STEPPED, ()),
        (FusedConvolution(END), (X, W, R), GROUPED, ()),
        (FusedConvolution(END), (X, W, R), END, (R,)),
    ],
    ids=[
        "nothing to add", "larger windows", "groups", "a constant of a neuron", "larger windows beside a projection",
        "larger windows behind it", "pixels left out behind it", "groups behind it", "an image to add behind it",
    ],
)  # fmt: skip
def test_what_stays_two_operations(end: Any, reads: tuple[int, ...], following: Fused, more: tuple[int, ...]) -> None:
    steps = _steps(end, reads, following, more, stores=True)
    assert _applied(steps, (STORED, Z)) == steps


def test_a_convolution_that_adds_the_result_stays_apart() -> None:
    end = Equation(FusedConvolution(END), (X, W, R), (Y,))
    steps = [end, Equation(FusedConvolution(END), (X, V, Y), (Z,))]
    assert _applied(steps, (Z,)) == steps


def test_one_of_two_that_follow_is_taken() -> None:
    first, second = (Equation(FusedConvolution(END), (Y, V), (made,)) for made in (STORED, Z))
    steps = [Equation(FusedConvolution(END), (X, W, R), (Y,)), first, second]
    followed = Equation(FollowedEnd(END, None, END, False), (X, W, R, V), (Y, STORED))
    assert _applied(steps, (STORED, Z)) == [followed, second]


@pytest.mark.parametrize("projection", [None, PROJECTION])
def test_a_profile_counts_all(projection: Fused | None) -> None:
    x, residual, y, z = (torch.zeros(2, channels, 4, 4) for channels in (3, 6, 5, 7))
    others = [residual, None] if projection else [residual]
    action = Action(FollowedEnd(END, projection, END, True), (), (Y, Z), (True, True), ())
    products = 3 * 5 + 5 * 7 + (6 * 5 if projection else 0)
    assert operations_of(action, [x, None, *others, None], [y, z]) == 2 * 2 * 4 * 4 * products


# --- in a graph -------------------------------------------------------------------------------------------------------


class Blocks:
    """Two ends of blocks, the first of which adds a projection, each with a convolution behind it."""

    def __init__(self, rng: np.random.Generator, channels: int, after: int) -> None:
        self.rng, wide = rng, 4 * channels
        self.image = mps.MPSNNImageNode()
        first = self._relu(self._sum(self._of(self.image, channels, wide), self._of(self.image, channels, wide)))
        inner = self._relu(self._of(first, wide, channels))
        self.result = self._relu(self._of(self._relu(self._sum(self._of(inner, channels, wide), first)), wide, after))

    def graph(self, bench: Bench, *, fuses: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion = FLOAT16, fuses
        return graph

    def _of(self, x: Any, inputs: int, outputs: int) -> Any:
        descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, inputs, outputs)
        weights = self.rng.normal(0, inputs**-0.5, descriptor.weight_shape())
        source = mps.ArrayConvolutionDataSource(descriptor, weights, self.rng.normal(0, 0.3, outputs))
        return mps.MPSCNNConvolutionNode(x, source).result_image

    def _relu(self, x: Any) -> Any:
        return mps.MPSCNNNeuronReLUNode(x).result_image

    def _sum(self, x: Any, y: Any) -> Any:
        return mps.MPSNNAdditionNode(x, y).result_image


@pytest.mark.parametrize(("channels", "after"), [(64, 64), (64, 128), (128, 128), (128, 256)])
def test_blocks_equal_the_graph_without_fusions(
    channels: int, after: int, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By launches for both convolutions on a GPU, encode by encode, which repeat each other's bits when replayed."""
    launches, tiles = list[Any](), half_forms.followed_tile
    divided = {channels: (2 * 11 * 9 - 1, tile) for channels, (_, tile) in half_forms._FOLLOWED_ENDS.items()}
    monkeypatch.setattr(half_forms, "_FOLLOWED_ENDS", divided)
    monkeypatch.setattr(half_forms, "followed_tile", lambda *given: launches.append(tiles(*given)) or launches[-1])
    bench, blocks = Bench.on(device), Blocks(rng, channels, after)
    sources = [bench.batch(rng.normal(0, 1, (2, channels, 11, 9)), FLOAT16)]
    results = list[np.ndarray]()
    for graph, times in ((blocks.graph(bench, fuses=False), 1), (blocks.graph(bench, fuses=True), 4)):
        for _ in range(times):
            command_buffer = bench.command_buffer()
            made: Any = graph.encode_batch(command_buffer, sources)
            finish(command_buffer)
            results.append(numbers(made))
    expected, *found = results
    if device.type == "cuda":
        # One end has a launch for a projection, one for an image to add, if there is one of such channels.
        assert launches
        assert launches[-1] is not None
    for each in found:
        np.testing.assert_array_equal(each, found[0])
        np.testing.assert_allclose(each, expected, rtol=2**-8, atol=2**-7 * np.abs(expected).max())
