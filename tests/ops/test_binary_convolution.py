"""Binary convolution against float64 loops over bits, over the grid of placements, and against PyTorch."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

from helpers import TOLERANCE, array, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.convolution.binary_convolution import (
    NO_TERMS,
    BinaryTerms,
    binary_convolution,
    binary_weights,
    mean_magnitude,
)
from openmps.types import MPSCNNBinaryConvolutionType as Type
from oracles import binary_convolution as oracle
from oracles.geometry import Axis
from placements import SINGLE_AXES, Case, cases, window

KINDS = list(Type)
TERM_SETS = [
    (),
    ("input_bias", "input_scale", "output_scale", "output_bias"),
    ("input_bias",),
    ("input_scale", "output_bias"),
    ("output_scale",),
]


def _check(
    case: Case,
    kind: Type,
    outputs: int,
    names: tuple[str, ...],
    beta: bool,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> None:
    rng = np.random.default_rng(zlib.crc32(repr((case, kind)).encode()))
    x = np.round(rng.normal(size=case.shape), 2)  # some of them 0
    bits = rng.integers(0, 2, size=(outputs, case.rows.size, case.columns.size, case.channels))
    counts = dict.fromkeys(BinaryTerms._fields, case.channels) | dict.fromkeys(("output_scale", "output_bias"), outputs)
    terms = {name: rng.normal(size=counts[name]) for name in names}
    found = binary_convolution(
        tensor(x, dtype, device, case.layout),
        binary_weights(torch.from_numpy(bits), kind).to(device, dtype),
        case.window(),
        kind,
        terms=BinaryTerms(**{name: tensor(row, dtype, device) for name, row in terms.items()}),
        use_beta=beta,
        edge_mode=case.edge_mode,
    )
    rounded = {name: array(tensor(row, dtype)) for name, row in terms.items()}
    expected = oracle.forward(
        array(tensor(x, dtype)),
        oracle.pack(bits),
        int(kind),
        case.rows,
        case.columns,
        case.edge,
        beta=beta,
        **rounded,
    )
    assert_close(found, expected, TOLERANCE[dtype])


@in_one_test
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(60))
def test_placements(kind: Type, number: int) -> None:
    case = cases(49, seed=88)[number]
    _check(case, kind, (1, 3, 4)[number % 3], TERM_SETS[number % 5], bool(number // 5 % 2))


@in_one_test
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", SINGLE_AXES[::3], ids=str)
def test_every_size_stride_dilation_and_offset(kind: Type, axis: Axis) -> None:
    case = Case(1, 2, 1, 6, Axis(1), axis, 0, "contiguous")
    _check(case, kind, 2, TERM_SETS[axis.size % 5], axis.stride % 2 == 0)


@in_one_test
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("kind", KINDS)
def test_channels_beyond_a_word(kind: Type, channels: int, device: torch.device) -> None:
    case = Case(2, channels, 3, 4, Axis(3, 3), Axis(2, 2, 2), 0, "channels_last")
    for dtype in (torch.float64, torch.float32):
        _check(case, kind, 3, TERM_SETS[1], True, dtype, device)
        _check(case, kind, 3, (), False, dtype, device)


@pytest.mark.parametrize("kind", [Type.XNOR, Type.AND])
def test_sums_of_bits_are_exact(kind: Type, device: torch.device) -> None:
    """Whatever algorithm the engine chooses: 3x3 windows tempt it to fast ones that pass through fractions."""
    rng = np.random.default_rng(9)
    x = tensor(rng.normal(size=(2, 64, 24, 24)), torch.float32, device, "channels_last")
    bits = torch.from_numpy(rng.integers(0, 2, size=(32, 3, 3, 64)))
    axis = Axis(24, 3)
    found = binary_convolution(x, binary_weights(bits, kind).to(device), window(axis, axis, 24, 24), kind)
    low = -1.0 if kind is Type.XNOR else 0.0
    source = torch.where(x < 0, low, 1.0).double()
    padded = torch.nn.functional.pad(source, (1, 1, 1, 1), value=1.0)
    weights = torch.where(bits.to(device) == 1, 1.0, low).double().permute(0, 3, 1, 2)
    assert torch.equal(found.double(), torch.conv2d(padded, weights).round())


def test_zeros_and_not_a_number_count_as_positive() -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), -1e-45, float("-inf"), float("inf")]).view(1, 6, 1, 1)
    ones = torch.ones(1, 1, 1, 6, dtype=torch.int64)
    place = window(Axis(1), Axis(1), 1, 1)
    assert binary_convolution(x, binary_weights(ones, Type.XNOR), place, Type.XNOR).item() == 4 - 2
    assert binary_convolution(x, binary_weights(ones, Type.AND), place, Type.AND).item() == 4


def test_border_is_read_before_terms_and_bits() -> None:
    """A pixel outside gives `input_bias * input_scale`, and its bit; without terms the bit is 1."""
    x, ones = torch.full((1, 1, 1, 1), -1.0), torch.ones(1, 1, 3, 1, dtype=torch.int64)
    place = window(Axis(1), Axis(1, 3), 1, 1)
    weights = binary_weights(ones, Type.XNOR)
    assert binary_convolution(x, weights, place, Type.XNOR).item() == 1 - 1 + 1
    terms = BinaryTerms(torch.tensor([-2.0]), torch.tensor([3.0]))
    assert binary_convolution(x, weights, place, Type.XNOR, terms=terms).item() == -3
    assert binary_convolution(x, weights, place, Type.BINARY_WEIGHTS, terms=terms).item() == -6 - 9 - 6


def test_one_32_bit_word_counts_its_bits() -> None:
    """The word-wise identities: XNOR gives 32 - 2 popcount(x ^ w), AND gives popcount(x & w)."""
    rng = np.random.default_rng(5)
    place = window(Axis(1), Axis(1), 1, 1)
    for _ in range(20):
        signs, bits = rng.integers(0, 2, size=32), rng.integers(0, 2, size=32)
        source, weight = (sum(int(bit) << n for n, bit in enumerate(row)) for row in (signs, bits))
        x = torch.from_numpy(2.0 * signs - 1.0).view(1, 32, 1, 1)
        rows = torch.from_numpy(bits).view(1, 1, 1, 32)
        results = {
            kind: binary_convolution(x, binary_weights(rows, kind).double(), place, kind).item() for kind in KINDS
        }
        assert results[Type.XNOR] == 32 - 2 * (source ^ weight).bit_count()
        assert results[Type.AND] == (source & weight).bit_count()


def test_golden_numbers() -> None:
    x = torch.tensor([0.5, -1.0, 2.0]).view(1, 3, 1, 1)
    bits, place = torch.tensor([1, 0, 1]).view(1, 1, 1, 3), window(Axis(1), Axis(1), 1, 1)
    found = [binary_convolution(x, binary_weights(bits, kind), place, kind).item() for kind in KINDS]
    assert found == [3.5, 3.0, 2.0]
    assert_close(mean_magnitude(x, NO_TERMS), np.full((1, 1, 1, 1), 1.16667), 5e-6)


def test_the_source_is_left_alone(device: torch.device) -> None:
    x = tensor(np.random.default_rng(1).normal(size=(2, 4, 3, 3)), torch.float32, device, "channels_last")
    before = x.clone()
    whole, pixels = window(Axis(1, 3, offset=1), Axis(1, 3, offset=1), 3, 3), window(Axis(3), Axis(3), 3, 3)
    for kind in KINDS:
        for place in (whole, pixels):
            weights = binary_weights(torch.ones(2, *place.size, 4, device=device), kind)
            terms = BinaryTerms(output_scale=torch.full((2,), 3.0, device=device))
            binary_convolution(x, weights, place, kind, terms=terms, use_beta=True)
    assert torch.equal(x, before)
