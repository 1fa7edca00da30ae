"""Filters of pictures beside PyTorch's operations, the peers that the benchmark has on a GPU, and its chain."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.filter_cases import CASES, Case
from bench.filter_torch import CHAIN, PEERS, Peer
from bench.image_filters import Chain, TorchPair, far_apart

import openmps as mps
from in_one_test import in_one_test

CPU = mps.mtl_device("cpu")


@in_one_test
@pytest.mark.parametrize("case", [case for case in CASES if case.name in PEERS], ids=lambda case: case.name)
def test_pytorch_makes_the_same_picture(case: Case) -> None:
    found, expected = TorchPair(case, CPU, None, 56, 72).results()
    assert far_apart(case, found, expected) <= case.few


def test_a_chain_is_its_filters_one_by_one() -> None:
    chain = Chain(CPU, 28, 20)
    chain.ours()
    expected = chain._from
    for name in CHAIN:
        peer: Peer = PEERS[name]
        expected = peer(expected)
    apart = np.abs(chain._images[-1].tensor().numpy().astype(int) - expected.numpy())
    assert apart.max() <= len(CHAIN)  # each rounds once
    assert set(PEERS) <= {case.name for case in CASES}
