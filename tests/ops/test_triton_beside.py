"""Launches side by side in a capture: the same numbers as one after the other, in graphs that are replayed."""

from __future__ import annotations

import pytest
import torch

from openmps.ops.triton.beside import beside


def test_elsewhere_they_come_one_after_the_other() -> None:
    order: list[str] = []
    found = beside(torch.device("cpu"), lambda: order.append("first"), lambda: order.append("second") or 5)
    assert order == ["first", "second"]
    assert found == (None, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_what_follows_a_branch_waits_for_it() -> None:
    """Branches longer than what stands between them, whose memory is given back and taken again."""
    device, sizes = torch.device("cuda", torch.cuda.current_device()), (1 << 20, 1 << 22)
    x = torch.ones(sizes[1], device=device)

    def branch(size: int) -> torch.Tensor:
        total = torch.zeros(size, device=device)
        for _ in range(20):
            total = total + x[:size]
        return total

    def run() -> torch.Tensor:
        found = torch.zeros((), device=device)
        for _ in range(3):
            small, large = beside(device, lambda: branch(sizes[0]), lambda: branch(sizes[1]))
            found = found + small.sum() - large.sum()
        return found

    expected = float(run())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for factor in (1.0, 2.0):
        x.fill_(factor)
        graph.replay()
        assert float(captured) == pytest.approx(expected * factor)
