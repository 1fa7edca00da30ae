"""The weights' gradient of a first convolution straight from the pooled gradient, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from interpreter import triton_place
from openmps.ops.convolution.convolution import ConvolutionGradient
from openmps.ops.convolution.convolution_end import ConvolutionEndGradient
from openmps.ops.geometry import Axis, Window
from openmps.ops.pointwise.layer_end import LayerEndGradient
from openmps.types import MPSImageEdgeMode

HALF, FLOAT, ZERO = torch.float16, torch.float32, MPSImageEdgeMode.ZERO
PLAIN = Window(x=Axis(8, 8, 5), y=Axis(6, 6, 3)), Window(x=Axis(8, 4, 2, 2, 1, 1), y=Axis(6, 3, 2, 2, 1, 1))
GAPS = (
    Window(x=Axis(15, 7, 3, 2, 1, 1), y=Axis(14, 8, 2, 1, 3, -1)),
    Window(x=Axis(7, 2, 2, 3, 1, 2), y=Axis(8, 2, 3, 4, 1, 2)),
)
CASES = [
    # convolution and pooling, types of gradient and source, outputs and inputs, what a dropout keeps, gaps
    (PLAIN, FLOAT, FLOAT, (20, 1), 1.0, 0),
    (PLAIN, HALF, FLOAT, (32, 1), 0.5, 3),
    (GAPS, HALF, HALF, (3, 4), 0.75, 2),
    (GAPS, FLOAT, HALF, (17, 3), 1.0, 1),
]


def expected(gradient: Tensor, taps: Tensor, x: Tensor, shape, windows: tuple[Window, Window], keeps: float):
    """The two gradients, number by number."""
    (window, pool), weights, biases = windows, np.zeros(shape), np.zeros(shape[0])
    flows, chosen, source = (
        (each.double() if each is not taps else each).cpu().numpy() for each in (gradient, taps, x)
    )
    for (n, q, i, j), tap in np.ndenumerate(chosen):
        if tap < 0:
            continue
        flow = flows[n, q, i, j]
        if keeps != 1.0:
            flow = float((gradient[n, q, i, j].float() / keeps).to(gradient.dtype))
        row = pool.y.first + i * pool.y.stride + tap // pool.x.size
        column = pool.x.first + j * pool.x.stride + tap % pool.x.size
        biases[q] += flow
        for a, v in enumerate(window.y.taps(row)):
            for b, u in enumerate(window.x.taps(column)):
                if 0 <= v < window.y.source and 0 <= u < window.x.source:
                    weights[q, a, b] += flow * source[n, :, v, u]
    return weights, biases


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_float64(case, each_place: torch.device) -> None:
    windows, kind, kind_of_x, (outputs, inputs), keeps, gaps = case
    generator, (window, pool) = torch.Generator().manual_seed(outputs), windows

    def image(channels: int, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
        wide = torch.randn((2, *size, channels + gaps), generator=generator).to(each_place, dtype)
        return wide.permute(0, 3, 1, 2)[:, :channels]

    gradient, x = image(outputs, pool.result, kind), image(inputs, window.source, kind_of_x)
    taps = torch.randint(-1, pool.y.size * pool.x.size, (2, *pool.result, outputs + gaps), generator=generator)
    taps = taps.to(each_place, torch.int8).permute(0, 3, 1, 2)[:, :outputs]
    weights = torch.zeros((outputs, *window.size, inputs), device=each_place)
    operation = ConvolutionEndGradient(LayerEndGradient(pool, keeps), ConvolutionGradient(window, ZERO), rounds=False)
    _, found, _, sums = operation.run((False, True, False, True), gradient, taps, x, weights)
    for one, other in zip((found, sums), expected(gradient, taps, x, weights.shape, windows, keeps), strict=True):
        assert one is not None
        assert one.dtype is FLOAT
        assert one.shape == other.shape
        np.testing.assert_allclose(one.cpu().numpy(), other, rtol=0.0, atol=5e-7 * np.abs(other).max())


def test_sums_alone_are_those_beside_the_weights(each_place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient of weights is made for them."""
    window, pool = PLAIN
    generator = torch.Generator().manual_seed(3)
    size = (2, *pool.result, 4)
    gradient = torch.randn(size, generator=generator).to(each_place).permute(0, 3, 1, 2)
    taps = torch.randint(-1, 4, size, generator=generator).to(each_place, torch.int8).permute(0, 3, 1, 2)
    x = torch.randn((2, *window.source, 1), generator=generator).to(each_place).permute(0, 3, 1, 2)
    weights = torch.zeros((4, *window.size, 1), device=each_place)
    operation = ConvolutionEndGradient(LayerEndGradient(pool), ConvolutionGradient(window, ZERO), rounds=False)
    sums = operation.run((False, True, False, True), gradient, taps, x, weights)[3]
    for method in (ConvolutionGradient, "run"), (ConvolutionEndGradient, "_at_once"):
        monkeypatch.setattr(*method, lambda *_, **__: pytest.fail("makes the gradient of weights"))
    *others, alone = operation.run((False, False, False, True), gradient, taps, x, weights)
    assert others == [None] * 3
    torch.testing.assert_close(alone, sums, rtol=1e-6, atol=1e-5)


EDGE = MPSImageEdgeMode.CLAMP
INSIDE = Window(x=Axis(8, 8), y=Axis(6, 6))


@pytest.mark.parametrize(
    ("shape", "window", "edge_mode", "is_rounded", "runs"),
    [
        ((64, 3, 5, 4), PLAIN[0], ZERO, False, True),
        ((65, 3, 5, 1), PLAIN[0], ZERO, False, False),
        ((16, 3, 5, 5), PLAIN[0], ZERO, False, False),
        ((16, 3, 5, 1), PLAIN[0], EDGE, False, False),
        ((16, 1, 1, 1), INSIDE, EDGE, False, True),
        ((16, 3, 5, 1), PLAIN[0], ZERO, True, False),
    ],
)
def test_what_the_kernel_is_for(shape, window, edge_mode, is_rounded, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few outputs, few numbers of a window, zeros outside, and gradients that are rounded already."""
    place, called = triton_place(monkeypatch), []
    from openmps.ops.triton.pointwise import layer_end as kernels

    monkeypatch.setattr(kernels, "layer_end_weights_gradient", lambda *given: called.append(given) or (None, None))
    outputs, inputs, pool = shape[0], shape[3], PLAIN[1]
    x, gradient = (
        torch.zeros((1, *size, channels), device=place).permute(0, 3, 1, 2)
        for channels, size in ((inputs, window.source), (outputs, pool.result))
    )
    operation = ConvolutionEndGradient(LayerEndGradient(pool), ConvolutionGradient(window, edge_mode), is_rounded)
    taps = torch.zeros_like(gradient, dtype=torch.int8)
    operation.run((False, True, False, True), gradient, taps, x, torch.zeros(shape, device=place))
    assert bool(called) == runs
