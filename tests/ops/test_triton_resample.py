"""Interpolation and sampling in Triton against their slow twins: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.resample import resample as slow
from openmps.ops.resample.stretch import Stretch
from openmps.types import MPSImageEdgeMode

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
AXES = [
    (Stretch(5, 10, 1, 2), Stretch(7, 21, 1, 3)),
    (Stretch(5, 9, 1, 2), Stretch(4, 4, 1, 1)),
    (Stretch(6, 5, 6, 5), Stretch(9, 4, 9, 4)),
    (Stretch(6, 11, 5, 10), Stretch(3, 7, 2, 6)),
    (Stretch(1, 8, 1, 8), Stretch(2, 3, 2, 3)),
    (Stretch(9, 3, 1, 2, offset=4), Stretch(8, 5, 3, 4, offset=2)),
    (Stretch(8, 3, 3, 1), Stretch(12, 5, 5, 2)),
    (Stretch(1, 1, 1, 1), Stretch(1, 4, 1, 4)),
]


def _images(seed: int, *shape: int, place: torch.device) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(place).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("number", "channels"), [(number, each) for number in range(len(AXES)) for each in (3, (1, 70)[number % 2])]
)
def test_interpolation_and_its_gradient(number: int, channels: int, place: torch.device) -> None:
    from openmps.ops.triton.resample import resample as fast

    rows, columns = AXES[number]
    x = _images(number, 2, channels, rows.source, columns.source, place=place)
    assert fast.takes(x, rows, columns)
    wanted = slow.resample(x.double(), rows.taps(CLAMP, x.double()), columns.taps(CLAMP, x.double()))
    found = fast.interpolate(x, rows, columns)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=1e-6)
    g = _images(number + 50, 2, channels, rows.result, columns.result, place=place)
    back = fast.interpolate_gradient(g, rows, columns)
    assert fast.gathers(rows, columns)
    # The adjoint, number by number: each pixel's gradient is that of a sum over the result.
    leaf = x.double().requires_grad_()
    made = slow.resample(leaf, rows.taps(CLAMP, leaf), columns.taps(CLAMP, leaf))
    (expected,) = torch.autograd.grad(made, leaf, g.double())
    torch.testing.assert_close(back, expected.float(), rtol=1e-5, atol=1e-5)


def test_a_result_on_a_pixel_is_that_pixel(place: torch.device) -> None:
    from openmps.ops.triton.resample import resample as fast

    x = _images(1, 1, 4, 3, 3, place=place)
    x[0, :, 1, 1] = float("inf")
    found = fast.interpolate(x, Stretch(3, 6, 1, 2), Stretch(3, 6, 1, 2))
    assert torch.equal(found[0, :, ::2, ::2], x[0])


def test_what_is_not_taken(place: torch.device) -> None:
    from openmps.ops.triton.resample import resample as fast

    x, inside = _images(1, 1, 4, 3, 3, place=place), Stretch(3, 6, 1, 2)
    assert fast.takes(x, inside, inside)
    assert not fast.takes(x, inside, Stretch(3, 6, 1, 2, offset=1))
    assert not fast.takes(x, inside, Stretch(3, 6, 1, 2, offset=-1))
    assert not fast.takes(x, inside, Stretch(3, 6, 0, 1))
    assert not fast.takes(x.double(), inside, inside)
    assert not fast.takes(x.contiguous(), inside, inside)
    assert not fast.gathers(inside, Stretch(3, 60, 1, 20))
    # More pixels than 32 bits count; nothing so large is made.
    rows = torch.zeros(1, dtype=torch.float64, device=place)
    assert fast.samples(x, rows.expand(1, 1, 9, 9), rows)
    assert not fast.samples(x, rows.expand(1, 2**11, 2**10, 2**10), rows)


@pytest.mark.parametrize("edge", [ZERO, CLAMP], ids=str)
@pytest.mark.parametrize("size", [(6, 5), (1, 1), (1, 8)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 70])
def test_sampling(channels: int, size: tuple[int, int], edge: MPSImageEdgeMode, place: torch.device) -> None:
    from openmps.ops.triton.resample import resample as fast

    x = _images(5, 3, channels, *size, place=place)
    generator = torch.Generator().manual_seed(3)
    rows = (torch.rand((3, 2, 4, 1), generator=generator, dtype=torch.float64) * 12 - 3).to(place)
    columns = (torch.rand((1, 2, 1, 7), generator=generator, dtype=torch.float64) * 12 - 3).to(place)
    rows[0, 0, :3, 0] = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=torch.float64)
    rows[1, 1, 0, 0] = 5.0
    found = fast.sample(x, rows, columns, clamps=edge == CLAMP)
    wanted = slow._sample_by_taps(x, rows, columns, edge)
    assert found.shape == wanted.shape == (6, channels, 4, 7)
    assert found.isnan().any()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("edge", [ZERO, CLAMP], ids=str)
@pytest.mark.parametrize("factors", [(2, 2), (3, 1), (1, 4)], ids=str)
def test_gradient_of_repeated_pixels(
    factors: tuple[int, int], edge: MPSImageEdgeMode, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset, less in ((0, 0), (-1, 2), (2, 1)):
        axes = [Axis(size, size * factor - less, offset=offset) for size, factor in zip((4, 6), factors, strict=True)]
        window = Window(y=axes[0], x=axes[1])
        g = _images(3, 2, 5, *window.result, place=place)
        found = []
        for runs in (True, False):
            monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
            found.append(slow.enlarge_gradient(g, window, factors, edge))
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)
