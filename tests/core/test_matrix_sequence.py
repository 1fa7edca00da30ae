"""The matrices of one object, each as one of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from openmps.errors import MPSTypeError


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_its_members_see_the_same_memory(bench: Bench, rng: np.random.Generator) -> None:
    """Each by its number, from the end, too, and those of a slice; each is one object."""
    numbers = rng.normal(size=(5, 2, 3)).astype(np.float32)
    found = mps.MatrixSequence(mps.MPSMatrix.from_numpy(bench.device, numbers, copy=True))
    assert len(found) == 5
    for mine, wanted in zip(found, numbers, strict=True):
        assert (mine.matrices, mine.rows, mine.columns) == (1, 2, 3)
        np.testing.assert_array_equal(mine.numpy(), wanted)
    assert found[-1] is found[4]
    part = found[1:4]
    assert isinstance(part, mps.MatrixSequence)
    part[2].memory().fill_(7)
    assert (found[3].numpy() == 7).all()
    np.testing.assert_array_equal(np.stack([each.numpy() for each in found[3::-2]])[1], numbers[1])
    assert len(found[2:2]) == 0
    with pytest.raises(IndexError):
        _ = found[5]


def test_matrices_with_gaps_between_them(bench: Bench) -> None:
    """Spacings are those of the whole; a slice of it has them, too."""
    descriptor = mps.MPSMatrixDescriptor(2, 3, row_bytes=16, matrices=4, matrix_bytes=48)
    whole = mps.MPSMatrix(device=bench.device, descriptor=descriptor)
    whole.memory().copy_(torch.arange(24.0).view(4, 2, 3))
    found = mps.MatrixSequence(whole)
    np.testing.assert_array_equal(found[2].numpy(), whole.numpy()[2])
    part = found[1:3]
    assert isinstance(part, mps.MatrixSequence)
    np.testing.assert_array_equal(part.matrix.numpy(), whole.numpy()[1:3])


def test_what_is_none(bench: Bench) -> None:
    """Lists, and matrices that live on a command buffer, whose reads are counted one by one."""
    temporary = mps.MPSTemporaryMatrix(bench.command_buffer(), mps.MPSMatrixDescriptor(2, 3))
    for given in ([], temporary):
        with pytest.raises(MPSTypeError, match="MatrixSequence: matrix must be an MPSMatrix that is not temporary"):
            mps.MatrixSequence(given)  # pyright: ignore[reportArgumentType]
