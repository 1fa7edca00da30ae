"""Convolutions of few channels with max pooling behind in Triton, and their weights' gradient, against the operations.

On CUDA, or by Triton's interpreter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient
from openmps.ops.convolution.convolution_end import ConvolutionEnd, ConvolutionEndGradient
from openmps.ops.geometry import Axis, Window
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient
from openmps.types import MPSImageEdgeMode

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP


class Case(NamedTuple):
    """Channels, outputs, and the axes of a convolution and of the pooling behind it: rows, columns."""

    channels: int
    outputs: int
    axes: tuple[Axis, Axis]
    pools: tuple[Axis, Axis]

    @property
    def windows(self) -> tuple[Window, Window]:
        (rows, columns), (down, across) = self.axes, self.pools
        return Window(x=columns, y=rows), Window(x=across, y=down)


CASES = [
    Case(24, 20, (Axis(7, 7, 3), Axis(9, 9, 3)), (Axis(7, 3, 2, 2, 1, 1), Axis(9, 4, 2, 2, 1, 1))),
    Case(16, 64, (Axis(8, 6, 3, 1, 1, 1), Axis(5, 4, 2, 1, 1, 1)), (Axis(6, 3, 2, 2, 1, 1), Axis(4, 2, 2, 2, 1, 1))),
    Case(32, 5, (Axis(6, 6, 1), Axis(6, 4, 3, 1, 1, 1)), (Axis(6, 3, 2, 2, 1, 1), Axis(4, 2, 2, 2, 1, 1))),
]


def halves(shape: tuple[int, ...], place: torch.device, seed: int) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 2
    return drawn.to(place, torch.float16)


def image(channels: int, size: tuple[int, int], place: torch.device, seed: int) -> Tensor:
    return halves((3, *size, channels), place, seed).permute(0, 3, 1, 2)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an operation without Triton."""

    def run(op: Any, wanted: tuple[bool, ...], *operands: Any) -> Any:
        with monkeypatch.context() as taken:
            taken.setattr(triton, "runs_on", lambda device: False)
            return op.run(wanted, *operands)

    return run


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pooled(case: Case, place: torch.device, slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmps.ops.triton.convolution import convolution_pooled as form

    monkeypatch.setattr(form, "_LEAST_PIXELS", 1)
    window, pooling = case.windows
    x, weights = (
        image(case.channels, window.source, place, 1),
        halves((case.outputs, *window.size, case.channels), place, 2),
    )
    weights[0] = 0.0  # All numbers of a window alike: the first one is the largest.
    biases = halves((case.outputs,), place, 3).float()
    assert form.takes(x, weights, window, pooling)
    assert not form.takes(x.float(), weights.float(), window, pooling)
    for added in (biases, None):
        op = ConvolutionEnd(Convolution(window, ZERO), LayerEnd(pooling, added is not None, False), True)
        expected, its_taps = slow(op, (True, True), x, weights, added)
        found, taps = form.pooled(x, weights, added, window, pooling, form.Tile(16))
        assert (found.dtype, taps.dtype, found.shape) == (torch.float16, torch.int8, expected.shape)
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-3, atol=2e-3)
        assert int((taps != its_taps).sum()) <= taps.numel() // 200, "but for sums that are rounded to the same number"
        assert not taps[:, 0].any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_of_pooled_pixels(
    case: Case, place: torch.device, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openmps.ops.triton.convolution import convolution_tap_rows as form

    monkeypatch.setattr(form, "_PROGRAMS", 3)
    window, pooling = case.windows
    x, gradient = image(case.channels, window.source, place, 1), image(case.outputs, pooling.result, place, 2)
    taps = (
        (torch.arange(gradient.numel(), device=place) % 5 - 1).to(torch.int8).view(gradient.permute(0, 2, 3, 1).shape)
    )
    spread = form.Spread(gradient, taps.permute(0, 3, 1, 2), pooling)
    weights = halves((case.outputs, *window.size, case.channels), place, 3)
    op = ConvolutionEndGradient(LayerEndGradient(pooling), ConvolutionGradient(window, ZERO), rounds=True)
    _, expected, _, _ = slow(op, (False, True, False, False), gradient, spread.taps, x, weights)
    assert form.takes_spread(spread, x, window)
    torch.testing.assert_close(form.weights_gradient(spread, x, window), expected, rtol=1e-5, atol=1e-5)
    gaps = Window(x=pooling.x, y=Axis(pooling.y.source, 1, 2, 3, 1, 1))
    assert not form.takes_spread(form.Spread(gradient[:, :, :1], spread.taps[:, :, :1], gaps), x, window)


def test_everything_that_may_be_wanted(place: torch.device, slow: Any) -> None:
    """Source, biases and their sums come from the operations one by one, also where windows are clamped."""
    window, pooling = CASES[0].windows
    x, gradient = (image(each, size, place, 1) for each, size in ((24, window.source), (20, pooling.result)))
    taps = torch.zeros_like(gradient, dtype=torch.int8)
    weights = halves((20, *window.size, 24), place, 3)
    for edge_mode in (ZERO, CLAMP):
        op = ConvolutionEndGradient(LayerEndGradient(pooling), ConvolutionGradient(window, edge_mode), rounds=True)
        found = op.run((True,) * 4, gradient, taps, x, weights)
        flow, sums = slow(op.end, (True, True), gradient, taps)
        expected = slow(op.convolution, (True,) * 3, flow, x, weights)
        for one, other in zip(found, (*expected, sums), strict=True):
            torch.testing.assert_close(one.float(), other.float(), rtol=2e-3, atol=2e-3)
