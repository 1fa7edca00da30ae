"""Inputs that break kernels: numbers that are not finite, images and windows that hardly meet, sizes of nothing.

Every kernel gives what its formula gives, or says what is wrong with the input in an error of its own. An error of
torch, NumPy or Python, at the encode or while the work runs (`MTLExecutionError`), fails these tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import ABSTRACT, GRADIENTS, OTHERS, SAMPLES, SWEPT, class_of, having
from encoding import FLOAT16, UNORM8, Bench, Outcome, encode, finish, numbers, train
from helpers import array, assert_close
from in_one_test import in_one_test, in_one_test_of_each
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.binary_convolution import EXTREME_BINARY_CONVOLUTIONS
from samples.convolution import EXTREME_CONVOLUTIONS
from samples.gram_matrix import GRAM_MATRICES
from samples.grid_sample import GRIDS
from samples.loss import FORWARD_LOSSES, LOSS_GRADIENTS
from samples.neuron import NEURONS
from samples.normalization import (
    CONTRAST_NORMALIZATIONS,
    CROSS_CHANNEL_NORMALIZATIONS,
    EXTREME_NORMALIZATIONS,
    SPATIAL_NORMALIZATIONS,
)
from samples.pooling import (
    AVERAGE_POOLINGS,
    DILATED_MAX_POOLINGS,
    EXTREME_POOLINGS,
    L2_NORM_POOLINGS,
    MAX_POOLINGS,
)
from samples.sample import VALID, Sample, placed_like, readings
from samples.softmax import LOG_SOFTMAXES, SOFTMAXES

Array = np.ndarray
CPU = mtl_device("cpu")
TOLERANCE = 1e-5
UNTOUCHED = -7.0
EXTREME = [
    *EXTREME_CONVOLUTIONS,
    *EXTREME_POOLINGS,
    *EXTREME_NORMALIZATIONS,
    *EXTREME_BINARY_CONVOLUTIONS,
]
ANY_SIZE = [
    *MAX_POOLINGS,
    *AVERAGE_POOLINGS,
    *L2_NORM_POOLINGS,
    *DILATED_MAX_POOLINGS,
    *SPATIAL_NORMALIZATIONS,
    *CONTRAST_NORMALIZATIONS,
    *CROSS_CHANNEL_NORMALIZATIONS,
    *SOFTMAXES,
    *LOG_SOFTMAXES,
    *GRAM_MATRICES,
    *(sample for sample in NEURONS if "prelu" not in sample.name),
]
"""Kernels that take an image of any size, and oracles that do."""
FIRST = [samples[0] for samples in SAMPLES.values()]
"""One sample of each forward kernel class."""
NOT_PLACED = [*GRAM_MATRICES, *FORWARD_LOSSES, *LOSS_GRADIENTS]
"""Kernels that refuse an offset."""


# --- what is compared -------------------------------------------------------------------------------------------------


def _expected(sample: Sample, found: Outcome, sources: list[Array], flow: Array | None = None) -> list[Array]:
    """Result, gradients, gradients of parameters: what the oracles say, in the order of `_found`."""
    height, width = found.result.shape[2:]
    how = readings(found.kernel, width, height)
    incoming = sample.incoming(found.result.shape) if flow is None else flow
    with np.errstate(all="ignore"):
        wanted = [sample.forward(sources, how)]
        wanted += [gradient.oracle(incoming, sources, how) for gradient in sample.gradients]
        for gradient in sample.gradients:
            if gradient.parameters is not None:
                weights, biases = gradient.parameters(incoming, sources, how)
                wanted += [weights.ravel(), biases]
    return wanted


def _found(sample: Sample, found: Outcome) -> list[Array]:
    has_parameters = any(gradient.parameters is not None for gradient in sample.gradients)
    parameters = [found.weights, found.biases] if has_parameters else []
    return [found.result, *found.gradients, *parameters]  # type: ignore[list-item]


def _check(sample: Sample, found: Outcome, sources: list[Array]) -> None:
    for actual, wanted in zip(_found(sample, found), _expected(sample, found, sources), strict=True):
        assert_close(actual, wanted, TOLERANCE, sample.name)


POISONS = (np.nan, np.inf, -np.inf)


def _poisoned(values: Array) -> tuple[Array, Array]:
    """An array with one number of each of three images replaced: by one that is not finite, and by 0."""
    bad, zero = values.copy(), values.copy()
    for index, poison in enumerate(POISONS):
        place = (index, *np.unravel_index(values[0].size // 2, values[0].shape))
        bad[place], zero[place] = poison, 0.0
    return bad, zero


def _check_not_finite(actual: Array, wanted: Array, without: Array, what: str, liberties: str = "") -> None:
    """Numbers are those of the oracle, and nothing is finite where the oracle's is not.

    With liberties: ``sums`` that are taken apart may make NaN of an infinity and the other way round, and a product of
    0 and what is not finite may count as nothing, as it would ``without`` that number; ``weights`` of 0 may be
    multiplied, which gives NaN, or not.
    """
    finite = np.isfinite(wanted)
    with np.errstate(invalid="ignore"):
        is_number = np.abs(actual - wanted) <= TOLERANCE * max(1.0, float(np.abs(wanted[finite]).max(initial=0.0)))
        is_nothing = np.abs(actual - without) <= TOLERANCE * max(1.0, float(np.abs(without).max(initial=0.0)))
        is_same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    allowed = np.where(finite, is_number, is_same)
    if liberties in ("sums", "weights"):
        allowed |= ~finite & (~np.isfinite(actual) | is_nothing)
    if liberties == "weights":
        allowed |= np.isnan(actual)
    assert allowed.all(), f"{what}: {actual[~allowed][:4]}, expected {wanted[~allowed][:4]}"


# --- numbers that are not finite --------------------------------------------------------------------------------------


def _interpolates(sample: Sample) -> bool:
    return "resampled" in sample.traits or sample in GRIDS


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_sources_that_are_not_finite(sample: Sample, device: torch.device) -> None:
    """One such number in each image of every source shows where the formula has it, and nowhere else."""
    bench = Bench.on(device)
    pairs = [_poisoned(values) for values in sample.sources(images=3)]
    sources, zeros = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = train(bench, sample, sources, bench.batch)
    wanted, without = _expected(sample, found, sources), _expected(sample, found, zeros)
    result, *gradients = _found(sample, found)
    _check_not_finite(result, wanted[0], without[0], sample.name, "weights" if _interpolates(sample) else "")
    for index, (actual, want, plain) in enumerate(zip(gradients, wanted[1:], without[1:], strict=True)):
        # The derivative at a number that is none is not told.
        is_image = index < len(sample.gradients)
        told = np.isfinite(sources[sample.gradients[index].source]) if is_image else _told(actual, want)
        _check_not_finite(actual[told], want[told], plain[told], f"gradient {index} of {sample.name}", "sums")


def _told(actual: Array, wanted: Array) -> Array:
    """Gradients of parameters: what is not finite may reach taps that only zeros around the image meet."""
    return np.isfinite(actual) | ~np.isfinite(wanted)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(gradients=True), ids=str)
def test_incoming_gradients_that_are_not_finite(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources(images=3)
    plain = train(bench, dataclasses.replace(sample, gradients=()), sources, bench.batch)
    flow, zero = _poisoned(sample.incoming(plain.result.shape))
    found = train(bench, sample, sources, bench.batch, incoming=flow)
    wanted, without = (_expected(sample, found, sources, each) for each in (flow, zero))
    liberties = "weights" if _interpolates(sample) else "sums"
    parts = list(zip(_found(sample, found), wanted, without, strict=True))[1:]
    for index, (actual, want, rest) in enumerate(parts):
        told = np.ones(want.shape, bool) if index < len(sample.gradients) else _told(actual, want)
        _check_not_finite(actual[told], want[told], rest[told], f"gradient {index} of {sample.name}", liberties)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["random"]), ids=str)
def test_numbers_near_the_end_of_half_precision(sample: Sample, device: torch.device) -> None:
    """Sources up to 60000: results beyond 65504 are infinite, all others right."""
    bench = Bench.on(device)
    forward = dataclasses.replace(sample, gradients=(), forward=sample.half_forward or sample.forward)
    sources = [np.where(np.abs(x) > 0.3, np.sign(x) * 60000.0 / (1.0 + np.abs(x)), x) for x in sample.sources()]
    sources = [x.astype(np.float16).astype(np.float64) for x in sources]
    made = train(bench, forward, sources, lambda values: bench.batch(values, FLOAT16))
    found, (wanted,) = made.result, _expected(forward, made, sources)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = wanted.astype(np.float32).astype(np.float16).astype(np.float64)
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
        is_close = np.abs(found - stored) <= 2.0**-10 * np.abs(stored) + 2.0**-22 * scale + 2.0**-24
        is_border = np.abs(np.abs(wanted) - 65520.0) <= 2.0**-10 * 65520.0 + 2.0**-22 * scale
    same = is_close | is_border | (found == stored) | (np.isnan(found) & np.isnan(stored))
    assert same.all(), f"{sample.name}: {found[~same][:4]}, expected {stored[~same][:4]}"


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["random"]), ids=str)
def test_bytes_hold_no_negative_numbers(sample: Sample, device: torch.device) -> None:
    """Results below 0 are stored as 0, those above 1 as 1, NaN as 0."""
    bench = Bench.on(device)
    sources = [_poisoned(values)[0] for values in sample.sources(images=3)]
    expected = train(bench, dataclasses.replace(sample, gradients=()), sources, bench.batch)
    kernel = sample.make(bench.device)
    placed_like(kernel, expected.kernel)
    _edges_like(kernel, expected.kernel)
    destination = bench.batch(np.ones(expected.result.shape), UNORM8)
    command_buffer = bench.command_buffer()
    encode(kernel, command_buffer, [bench.batch(values) for values in sources], *sample.more(bench, 3), destination)
    finish(command_buffer)
    wanted = np.clip(np.nan_to_num(expected.result, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    assert np.abs(array(numbers(destination)) - wanted).max() <= 0.5 / 255 + 1e-6


def _edges_like(kernel: Any, other: Any) -> None:
    """Take over the edge modes that a padding policy may have set."""
    for name in ("edge_mode", "primary_edge_mode"):
        if hasattr(kernel, name):
            setattr(kernel, name, getattr(other, name))


# --- images and windows that hardly meet -----------------------------------------------------------------------------


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", EXTREME, ids=str)
def test_windows_larger_than_images(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    _check(sample, train(bench, sample, sources, bench.batch), sources)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", [*having(without=["ignores offset", "random"]), *EXTREME], ids=str)
def test_offsets_beyond_the_image(sample: Sample, device: torch.device) -> None:
    """Of a thousand pixels, too: the edge mode's numbers, and gradients that are lost there."""
    bench = Bench.on(device)
    sources = sample.sources()
    plain = train(bench, dataclasses.replace(sample, gradients=()), sources, bench.batch)

    def far(offset: MPSOffset) -> Outcome:
        def place(kernel: Any) -> None:
            _edges_like(kernel, plain.kernel)
            for name in ("offset", "primary_offset", "secondary_offset"):
                if hasattr(kernel, name):
                    setattr(kernel, name, offset)

        destination = bench.batch(np.full(plain.result.shape, UNTOUCHED))
        return train(bench, sample, sources, bench.batch, prepare=place, destination=lambda: destination)

    for offset in (MPSOffset(1000, -3, 0), MPSOffset(-1000, -1000, 0)):
        if sample in NOT_PLACED:
            with pytest.raises(MPSArgumentError, match=": offset .*must be "):
                far(offset)
        else:
            _check(sample, far(offset), sources)


NOWHERE = [
    MTLRegion(MTLOrigin(0, 0, 0), MTLSize(0, 0, 1)),
    MTLRegion(MTLOrigin(0, 0, 0), MTLSize(0, 2**64 - 1, 1)),
    MTLRegion(MTLOrigin(0, 0, 0), MTLSize(1, 0, 1)),
    MTLRegion(MTLOrigin(1000, 0, 0), MTLSize(5, 5, 1)),
    MTLRegion(MTLOrigin(0, 2**40, 0), MTLSize(2**64 - 1, 2**64 - 1, 1)),
]


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_clip_rectangles_of_nothing(sample: Sample) -> None:
    """Empty ones, and ones beside the destination: refused by forward and gradient kernels, by name."""
    bench = Bench(CPU)
    sources = [bench.batch(values) for values in sample.sources()]
    plain = train(bench, sample, sample.sources(), bench.batch)
    command_buffer = bench.command_buffer()
    for region in NOWHERE:
        kernel = sample.make(CPU)
        kernel.clip_rect = region
        more = sample.more(bench, 2)
        with pytest.raises(MPSArgumentError, match=f"^{type(kernel).__name__}.*: clip_rect must overlap the dest"):
            encode(kernel, command_buffer, sources, *more, bench.batch(np.zeros(plain.result.shape)))
        for backward, gradient in zip(sample.gradients, plain.gradient_kernels, strict=True):
            gradient.clip_rect = region
            flow, result = bench.batch(sample.incoming(plain.result.shape)), bench.batch(plain.result)
            secondary = result if backward.reads_result else sources[backward.secondary]
            target = bench.batch(np.zeros(sample.sources()[backward.source].shape))
            with pytest.raises(MPSArgumentError, match=f"^{type(gradient).__name__}.*: clip_rect must overlap"):
                encode(gradient, command_buffer, [flow, secondary], plain.states, target)


# --- few pixels, few channels, no images ------------------------------------------------------------------------------


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", ANY_SIZE, ids=str)
def test_one_pixel_and_one_row(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    for shape in ((1, 1, 1), (3, 1, 3), (4, 2, 1), (5, 1, 1)):
        small = dataclasses.replace(sample, shapes=(shape,))
        sources = small.sources()
        if VALID in (sample.make(bench.device).padding,) and min(shape[1:]) < 4:
            with pytest.raises(
                MPSArgumentError, match="leaves no result pixel for a kernel .* under valid-only padding"
            ):
                train(bench, small, sources, bench.batch)
        else:
            _check(small, train(bench, small, sources, bench.batch), sources)


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_sizes_that_a_kernel_was_not_made_for(sample: Sample) -> None:
    """A result, or a refusal that names the kernel: most have weights, labels, grids or regions of other sizes."""
    bench = Bench(CPU)
    for shape in ((1, 1, 1), (3, 2, 5), (4, 1, 1), (5, 2, 5)):
        small = dataclasses.replace(sample, shapes=(shape,) * len(sample.shapes))
        with contextlib.suppress(MPSArgumentError):
            train(bench, small, small.sources(), bench.batch)


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_channels_that_are_not_there(sample: Sample) -> None:
    """Offsets that are no multiples of 4 (but where any will do), beyond the source, and no room in a destination."""
    bench = Bench(CPU)
    sources = [bench.batch(values) for values in sample.sources()]
    plain = train(bench, dataclasses.replace(sample, gradients=()), sample.sources(), bench.batch)
    command_buffer = bench.command_buffer()
    for name in (each for each in dir(sample.make(CPU)) if each.endswith("feature_channel_offset")):
        kernel = sample.make(CPU)
        if "any channel" not in sample.traits or name.startswith("destination"):
            for value in (1, 2, 3, 5, -4):
                with pytest.raises(MPSArgumentError, match=f": {name} must be a multiple of 4, at least 0"):
                    setattr(kernel, name, value)
        setattr(kernel, name, 400)
        destination = bench.batch(np.zeros(plain.result.shape))
        with pytest.raises(MPSArgumentError, match="feature channel"):
            encode(kernel, command_buffer, sources, *sample.more(bench, 2), destination)


@in_one_test
@pytest.mark.parametrize("sample", FIRST, ids=str)
def test_no_images(sample: Sample) -> None:
    bench = Bench(CPU)
    plain = train(bench, sample, sample.sources(), bench.batch)
    command_buffer = bench.command_buffer()
    kernel = sample.make(CPU)
    empty: list[Any] = [[] for _ in sample.shapes]
    with pytest.raises((MPSArgumentError, MPSTypeError), match=f"^{type(kernel).__name__}"):
        encode(kernel, command_buffer, empty, *sample.more(bench, 2))
    for gradient in plain.gradient_kernels:
        with pytest.raises((MPSArgumentError, MPSTypeError), match=f"^{type(gradient).__name__}"):
            encode(gradient, command_buffer, [[], []], plain.states)


# --- numbers of kernels -----------------------------------------------------------------------------------------------

MADE = {
    **{kind: samples[0].make for kind, samples in SAMPLES.items()},
    **{
        kind: gradient.make
        for kind, forward in GRADIENTS.items()
        for sample in SAMPLES[forward]
        for gradient in sample.gradients
    },
    **OTHERS,
    **ABSTRACT,
}
NOT_HELD = [1e39, -1e300, 10**400, "1", None, True, [1.0]]


@in_one_test
@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_properties_hold_numbers_of_float32(kind: Any) -> None:
    """A number that float32 cannot hold is refused where it is set, not where the work runs."""
    try:
        kernel = MADE[kind](CPU)
    except MPSTypeError:
        pytest.skip("cannot be made without more")
    for name in dir(kernel):
        if name.startswith("_") or not isinstance(getattr(kernel, name), float):
            continue
        before = getattr(kernel, name)
        for value in NOT_HELD:
            with pytest.raises((MPSArgumentError, MPSTypeError, AttributeError), match=f"{name}"):
                setattr(kernel, name, value)
        assert getattr(kernel, name) == before


@in_one_test
@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_offsets_stay_within_32_bits(kind: Any) -> None:
    try:
        kernel = MADE[kind](CPU)
    except MPSTypeError:
        pytest.skip("cannot be made without more")
    for name in dir(kind):
        if name in ("offset", "primary_offset", "secondary_offset"):
            for value in (MPSOffset(2**31, 0, 0), MPSOffset(0, -(2**70), 0)):
                with pytest.raises(MPSArgumentError, match=f": {name} must be at most 2147483647 pixels in x and y"):
                    setattr(kernel, name, value)
            setattr(kernel, name, MPSOffset(2**31 - 1, -(2**31) + 1, 0))
        elif name in ("kernel_offset_x", "kernel_offset_y"):
            with pytest.raises(MPSArgumentError, match=f": {name} must be at most 2147483647 pixels, got"):
                setattr(kernel, name, 2**31)
