"""The weights' gradient in Triton against windows that are written out: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.convolution import convolution as ops
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode
from pairs import pairs

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
AXES = [
    # source, result, size, stride, dilation, offset
    (Axis(6, 6, 3), Axis(5, 5, 3)),
    (Axis(9, 5, 3, 2), Axis(8, 4, 3, 2, 1, 1)),
    (Axis(7, 4, 1, 2), Axis(8, 4, 1, 2)),
    (Axis(9, 6, 2, 1, 3, -1), Axis(4, 9, 5, 1, 1, -3)),
    (Axis(22, 11, 7, 2, 1, 0), Axis(17, 9, 7, 2)),  # more pixels than two programs sum
    (Axis(1, 1, 3), Axis(1, 1, 1)),
]
CHANNELS = [(5, 3), (16, 70), (130, 20), (1, 1)]
"""Of the result and of the source."""


def drawn(shape: tuple[int, ...], place: torch.device, seed: int, more: int) -> torch.Tensor:
    """Numbers that float16 holds, in a slice of more channels."""
    generator = torch.Generator().manual_seed(seed)
    images, channels, rows, columns = shape
    numbers = torch.randn((images, rows, columns, channels + more), generator=generator).half()
    return numbers.to(place).permute(0, 3, 1, 2)[:, :channels]


def assert_the_same_sums(
    axes: tuple[Axis, Axis], channels: tuple[int, int], more: int, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Triton, and without."""
    window = Window(x=axes[1], y=axes[0])
    x, gradient = (
        drawn((3, channels[1], *window.source), place, 1, more),
        drawn((3, channels[0], *window.result), place, 2, more),
    )
    for edge_mode in (ZERO, CLAMP):
        found = []
        for runs in (True, False):
            monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
            found.append(ops.weights_gradient(gradient, x, window, edge_mode))
        assert found[0].dtype is torch.float32
        assert found[0].shape == found[1].shape
        bound = 1e-6 * (3 * window.result[0] * window.result[1]) ** 0.5 * 4
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=bound)


@pytest.mark.parametrize(
    ("axes", "channels"),
    [(AXES[0], (50, 70)), (AXES[1], (130, 66)), (AXES[2], (260, 72)), (AXES[3], (66, 65)), (AXES[5], (260, 130))],
    ids=str,
)
def test_the_same_sums_of_tiles(axes, channels, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tap at a time, or three of a row, of more channels than a tile has."""
    assert_the_same_sums(axes, channels, 0, place, monkeypatch)


@pytest.mark.parametrize(("axes", "channels", "more"), pairs(AXES, CHANNELS, [0, 3]), ids=str)
def test_the_same_sums(axes, channels, more: int, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_the_same_sums(axes, channels, more, place, monkeypatch)


@pytest.mark.parametrize(
    ("axes", "channels", "more"),
    [
        (AXES[0], (5, 3), 0), (AXES[1], (70, 3), 3), (AXES[4], (64, 3), 0), (AXES[4], (16, 4), 0),
        ((Axis(9, 6, 2, 1, 3, -1), Axis(4, 9, 5, 1, 1, -3)), (33, 4), 2),
    ],
    ids=str,
)  # fmt: skip
def test_the_same_sums_of_few_channels(
    axes, channels, more: int, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's first convolution, whose images are stored with four channels."""
    from openmps.ops.triton.convolution import convolution_few_channels as form

    monkeypatch.setattr(form, "_LEAST_PIXELS", 1)
    monkeypatch.setattr(form, "_PROGRAMS", 3)
    assert_the_same_sums(axes, channels, more, place, monkeypatch)


@pytest.mark.parametrize(
    ("axes", "channels"),
    [(AXES[0], (50, 24)), (AXES[1], (70, 16)), ((Axis(7, 5, 1, 1, 1, 1), Axis(6, 6, 4, 1, 1, -1)), (5, 8))],
    ids=str,
)
def test_the_same_sums_by_rows_of_taps(axes, channels, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of numbers that are no power of two, of windows of one row and of three."""
    from openmps.ops.triton.convolution import convolution_tap_rows as form

    seen: list[torch.Tensor] = []
    made = form.weights_gradient
    monkeypatch.setattr(form, "_PROGRAMS", 3)
    monkeypatch.setattr(form, "weights_gradient", lambda *given: seen.append(made(*given)) or seen[-1])
    assert_the_same_sums(axes, channels, 0, place, monkeypatch)
    assert len(seen) == 1, "where edges are zeros"


@pytest.mark.parametrize(("axes", "channels", "multiplier"), pairs(AXES, [1, 3, 70], [1, 3]), ids=str)
def test_the_same_sums_of_a_group_a_channel(
    axes, channels: int, multiplier: int, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(x=axes[1], y=axes[0])
    x = drawn((2, channels, *window.source), place, 1, 0)
    gradient = drawn((2, channels * multiplier, *window.result), place, 2, 3)
    weights = torch.zeros((channels * multiplier, *window.size, 1), device=place).half()
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        made = ops._half_gradients(gradient, x, weights, window, channels, ZERO, (False, False))
        found.append(made.weights)
    bound = 1e-6 * (2 * window.result[0] * window.result[1]) ** 0.5 * 4
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=bound)


def test_many_pixels_are_summed_alike_each_time(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(x=Axis(60, 60, 3), y=Axis(40, 40, 3))
    x, gradient = drawn((1, 4, 40, 60), place, 1, 0), drawn((1, 8, 40, 60), place, 2, 0)
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    found = [ops.weights_gradient(gradient, x, window, ZERO) for _ in range(2)]
    assert torch.equal(*found)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    torch.testing.assert_close(found[0], ops.weights_gradient(gradient, x, window, ZERO), rtol=1e-5, atol=1e-3)
