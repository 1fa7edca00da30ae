"""The padding rule against the headers' worked examples, other frameworks' formulas, and enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from in_one_test import in_one_test
from openmps.core.padding.geometry import (
    Geometry,
    Lengths,
    axis_placement,
    exclude_edges_zero_pad,
    mirror_kernel_offset,
    reverse_placement,
    suggested_geometry,
    window_extent,
)
from openmps.errors import MPSArgumentError
from openmps.types import MPSNNPaddingMethod as Method
from oracles import padding as oracle

VALID, SAME, FULL = Method.SIZE_VALID_ONLY, Method.SIZE_SAME, Method.SIZE_FULL
TL, BR = Method.ADD_REMAINDER_TO_TOP_LEFT, Method.ADD_REMAINDER_TO_BOTTOM_RIGHT
STYLES = {VALID: oracle.VALID, SAME: oracle.SAME, FULL: oracle.FULL}
ALIGNS = {
    Method.ALIGN_CENTERED: "centered",
    Method.ALIGN_TOP_LEFT: "top left",
    Method.ALIGN_BOTTOM_RIGHT: "bottom right",
}
# Remainder value: whether the odd pixel goes to the low side of x, of y.
REMAINDERS = {0: (True, True), 4: (False, True), 8: (True, False), 12: (False, False)}
GRID = list(itertools.product(range(1, 14), range(1, 6), range(1, 5), range(1, 4)))  # source, kernel, stride, dilation

# number, L, (k, d, s), method, D, R, X, before, offset, first and last pixel read
EXAMPLES = [
    (1, 28, (5, 1, 1), SAME | TL, 28, 32, 4, 2, 0, -2, 29),
    (2, 28, (2, 1, 2), SAME | BR, 14, 28, 0, 0, 1, 0, 27),
    (3, 7, (2, 1, 2), SAME | BR, 4, 8, 1, 0, 1, 0, 7),
    (4, 7, (2, 1, 2), SAME | TL, 4, 8, 1, 1, 0, -1, 6),
    (5, 13, (2, 1, 1), SAME | TL, 13, 14, 1, 1, 0, -1, 12),
    (5, 13, (2, 1, 1), SAME | BR, 13, 14, 1, 0, 1, 0, 13),
    (6, 10, (4, 1, 1), SAME | TL, 10, 13, 3, 2, 0, -2, 10),
    (6, 10, (4, 1, 1), SAME | BR, 10, 13, 3, 1, 1, -1, 11),
    (7, 224, (3, 1, 2), SAME | TL, 112, 225, 1, 1, 0, -1, 223),
    (8, 224, (3, 1, 2), SAME | BR, 112, 225, 1, 0, 1, 0, 224),
    (9, 224, (7, 1, 2), SAME | TL, 112, 229, 5, 3, 0, -3, 225),
    (9, 224, (7, 1, 2), SAME | BR, 112, 229, 5, 2, 1, -2, 226),
    (10, 7, (7, 1, 1), VALID, 1, 7, 0, 0, 3, 0, 6),
    (11, 10, (3, 1, 1), VALID, 8, 10, 0, 0, 1, 0, 9),
    (12, 8, (3, 1, 2), VALID | TL, 3, 7, -1, 0, 1, 0, 6),
    (12, 8, (3, 1, 2), VALID | BR, 3, 7, -1, 0, 1, 0, 6),
    (13, 11, (3, 1, 3), VALID | BR, 3, 9, -2, -1, 2, 1, 9),
    (14, 11, (3, 1, 3), VALID | TL, 3, 9, -2, 0, 1, 0, 8),
    (15, 16, (3, 2, 1), SAME, 16, 20, 4, 2, 0, -2, 17),
    (16, 16, (3, 2, 1), VALID, 12, 16, 0, 0, 2, 0, 15),
    (17, 16, (2, 3, 1), SAME | TL, 16, 19, 3, 2, 0, -2, 16),
    (17, 16, (2, 3, 1), SAME | BR, 16, 19, 3, 1, 1, -1, 17),
    (18, 4, (1, 1, 2), SAME | TL, 2, 3, -1, 0, 0, 0, 2),
    (18, 4, (1, 1, 2), SAME | BR, 2, 3, -1, 0, 0, 0, 2),
    (19, 6, (1, 1, 3), SAME | BR, 2, 4, -2, -1, 1, 1, 4),
    (20, 4, (3, 1, 1), FULL, 6, 8, 4, 2, -1, -2, 5),
    (21, 4, (3, 1, 2), FULL | TL, 3, 7, 3, 2, -1, -2, 4),
    (21, 4, (3, 1, 2), FULL | BR, 3, 7, 3, 1, 0, -1, 5),
    (22, 11, (3, 1, 3), VALID | Method.ALIGN_BOTTOM_RIGHT, 3, 9, -2, 0, 1, 0, 8),
]

# number, L, (k, s), method, D, total offset
REVERSE_EXAMPLES = [
    ("R1", 7, (3, 2), SAME, 13, 0),
    ("R2", 7, (3, 2), FULL, 15, -1),
    ("R3", 7, (2, 2), FULL, 14, 0),
    ("R4", 7, (4, 2), FULL, 16, -1),
    ("R5", 7, (4, 2), SAME | TL, 13, 0),
    ("R5", 7, (4, 2), SAME | BR, 13, 1),
]

# (L, s, k), style, D, offset with the remainder to the top left, to the bottom right
SIZE_EXAMPLES = [
    ((5, 1, 3), SAME, 5, 0, 0),
    ((6, 2, 3), SAME, 3, 0, 1),
    ((6, 2, 2), SAME, 3, 1, 1),
    ((5, 1, 2), SAME, 5, 0, 1),
    ((8, 3, 3), VALID, 2, 1, 2),
    ((9, 3, 3), VALID, 3, 1, 1),
    ((5, 2, 3), FULL, 4, -1, -1),
    ((5, 1, 4), FULL, 8, -1, -1),
]


def methods() -> Iterator[tuple[int, int, int, int]]:
    for size, align, remainder in itertools.product(STYLES, ALIGNS, REMAINDERS):
        yield int(size | align | remainder), size, align, remainder


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda row: f"row{row[0]}-{int(row[3])}")
def test_worked_forward_example(example: tuple) -> None:
    _, source, (k, d, s), method, result, read, missing, before, offset, first, last = example
    placed = axis_placement(source, k, s, d, method)
    assert placed == (result, offset, read, missing, before, 0)
    positions = oracle.taps(placed.result, placed.before, k, s, d)
    assert (positions[0][0], positions[-1][-1]) == (first, last)
    assert placed.offset - window_extent(k, d) // 2 == first


def test_pointwise_strided_examples_read_single_pixels() -> None:
    assert oracle.taps(2, axis_placement(4, 1, 2, 1, SAME).before, 1, 2, 1) == [[0], [2]]
    assert oracle.taps(2, axis_placement(6, 1, 3, 1, SAME | BR).before, 1, 3, 1) == [[1], [4]]


@pytest.mark.parametrize("example", REVERSE_EXAMPLES, ids=lambda row: f"{row[0]}-{int(row[3])}")
def test_worked_reverse_example(example: tuple) -> None:
    _, source, (k, s), method, result, total = example
    placed = reverse_placement(source, k, s, 1, method)
    assert (placed.result, placed.offset, placed.kernel_offset) == (result, 0, total)
    assert placed.read - placed.missing == (source - 1) * s + 1


@pytest.mark.parametrize(
    ("number", "source", "kernel", "stride", "method", "result", "forward", "mirrored"),
    [("R6", 224, 3, 2, SAME | TL, 112, 0, 0), ("R7", 28, 2, 2, SAME | BR, 14, 1, 0)],
)
def test_worked_example_of_undoing_a_forward_filter(
    number: str, source: int, kernel: int, stride: int, method: int, result: int, forward: int, mirrored: int
) -> None:
    placed = axis_placement(source, kernel, stride, 1, method)
    assert (placed.result, placed.offset) == (result, forward)
    assert mirror_kernel_offset(placed.offset, kernel) == mirrored


@in_one_test
@pytest.mark.parametrize(("sizes", "style", "result", "top_left", "bottom_right"), SIZE_EXAMPLES)
def test_size_and_offset_table(sizes: tuple, style: int, result: int, top_left: int, bottom_right: int) -> None:
    source, stride, kernel = sizes
    for remainder, offset in ((TL, top_left), (BR, bottom_right)):
        placed = axis_placement(source, kernel, stride, 1, style | remainder)
        assert (placed.result, placed.offset) == (result, offset)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_every_method_places_as_enumeration(axis: str) -> None:
    for method, size, align, remainder in methods():
        low = REMAINDERS[remainder][axis == "y"]
        for source, kernel, stride, dilation in GRID:
            expected = oracle.framework(source, kernel, stride, dilation, STYLES[size], ALIGNS[align], low)
            if expected[0] == 0:
                with pytest.raises(MPSArgumentError):
                    axis_placement(source, kernel, stride, dilation, method, axis)
                continue
            placed = axis_placement(source, kernel, stride, dilation, method, axis)
            assert (placed.result, placed.before) == expected, (method, source, kernel, stride, dilation)
            assert placed.offset == window_extent(kernel, dilation) // 2 - placed.before


@given(
    source=st.integers(1, 300),
    kernel=st.integers(1, 12),
    stride=st.integers(1, 9),
    dilation=st.integers(1, 7),
    remainder=st.sampled_from(sorted(REMAINDERS)),
    align=st.sampled_from(sorted(ALIGNS)),
    axis=st.sampled_from(["x", "y"]),
)
def test_valid_only_reads_inside(
    source: int, kernel: int, stride: int, dilation: int, remainder: int, align: int, axis: str
) -> None:
    extent = window_extent(kernel, dilation)
    if extent > source:
        with pytest.raises(MPSArgumentError):
            axis_placement(source, kernel, stride, dilation, VALID | align | remainder, axis)
        return
    placed = axis_placement(source, kernel, stride, dilation, VALID | align | remainder, axis)
    positions = oracle.taps(placed.result, placed.before, kernel, stride, dilation)
    assert all(0 <= tap < source for window in positions for tap in window)
    # The largest such result: one window more would not fit.
    assert placed.read + stride > source


@given(
    source=st.integers(1, 300),
    kernel=st.integers(1, 12),
    stride=st.integers(1, 9),
    dilation=st.integers(1, 7),
    size=st.sampled_from(sorted(STYLES)),
    remainder=st.sampled_from(sorted(REMAINDERS)),
)
def test_centered_padding_is_even(
    source: int, kernel: int, stride: int, dilation: int, size: int, remainder: int
) -> None:
    if size == VALID and window_extent(kernel, dilation) > source:
        return
    placed = axis_placement(source, kernel, stride, dilation, size | remainder)
    after = placed.missing - placed.before
    # Truncation may move a cropped pair of sides apart by 2: 0 before and -2 after.
    assert abs(placed.before - after) <= (1 if placed.missing >= 0 else 2)
    if size == FULL:
        extent = window_extent(kernel, dilation)
        assert placed.before < extent
        assert after < extent


def test_same_bottom_right_is_tensorflow_same_where_pixels_are_missing() -> None:
    differing = 0
    for source, kernel, stride, dilation in GRID:
        placed = axis_placement(source, kernel, stride, dilation, SAME | BR)
        result, before = oracle.tensorflow(source, kernel, stride, dilation, same=True)
        assert placed.result == result
        assert (placed.before == before) == (placed.missing >= -1), (source, kernel, stride, dilation)
        differing += placed.before != before
        if placed.missing <= -2:
            assert stride >= window_extent(kernel, dilation) + 2
    assert differing > 0


def test_same_aligned_bottom_right_is_tensorflow_same_for_small_kernels() -> None:
    for source, kernel, stride, dilation in GRID:
        placed = axis_placement(source, kernel, stride, dilation, SAME | Method.ALIGN_BOTTOM_RIGHT)
        exact = (placed.result, placed.before) == oracle.tensorflow(source, kernel, stride, dilation, same=True)
        assert exact == (placed.missing <= 1)
        assert exact or window_extent(kernel, dilation) > 2


def test_valid_aligned_bottom_right_is_tensorflow_valid() -> None:
    for source, kernel, stride, dilation in GRID:
        result, before = oracle.tensorflow(source, kernel, stride, dilation, same=False)
        if result >= 1:
            placed = axis_placement(source, kernel, stride, dilation, VALID | Method.ALIGN_BOTTOM_RIGHT)
            assert (placed.result, placed.before) == (result, before)


@pytest.mark.parametrize(("upper", "remainder"), [(True, BR), (False, TL)])
def test_same_is_onnx_auto_pad_where_pixels_are_missing(upper: bool, remainder: int) -> None:
    for source, kernel, stride, dilation in GRID:
        placed = axis_placement(source, kernel, stride, dilation, SAME | remainder)
        expected = oracle.onnx_auto(source, kernel, stride, dilation, upper)
        assert placed.result == expected[0]
        if placed.missing >= 0:
            assert placed.before == expected[1]


def test_same_top_left_is_symmetric_padding_for_odd_extents_and_strides_up_to_two() -> None:
    differing = 0
    for source, kernel, stride, dilation in GRID:
        extent = window_extent(kernel, dilation)
        placed = axis_placement(source, kernel, stride, dilation, SAME | TL)
        pad = (extent - 1) // 2
        if extent % 2 and placed.missing >= 0:
            assert placed.result == oracle.pytorch_size(source, kernel, stride, dilation, pad, ceil_mode=False)
            assert (placed.before == pad) == ((source - 1) % stride <= 1)
            differing += placed.before != pad
            assert placed.before == pad or stride > 2
    assert differing > 0


@pytest.mark.parametrize(
    ("kind", "auto_pad", "method", "strides", "dilations"),
    [
        ("Conv", "SAME_UPPER", SAME | BR, (1, 2, 3), (1, 2)),
        ("Conv", "SAME_LOWER", SAME | TL, (1, 2, 3), (1, 2)),
        ("MaxPool", "SAME_UPPER", SAME | BR, (1, 2, 3), (1, 2)),
        # With a stride or dilation this evaluator's MaxPool pads SAME_LOWER like SAME_UPPER, unlike the standard.
        ("MaxPool", "SAME_LOWER", SAME | TL, (1,), (1,)),
        ("AveragePool", "SAME_UPPER", SAME | BR, (1, 2, 3), (1,)),
        ("AveragePool", "SAME_LOWER", SAME | TL, (1, 2, 3), (1,)),
    ],
)
def test_same_against_the_onnx_evaluator(
    kind: str, auto_pad: str, method: int, strides: tuple, dilations: tuple, rng: np.random.Generator
) -> None:
    pytest.importorskip("onnx")
    for source, kernel, stride, dilation in itertools.product((1, 4, 7, 10), range(1, 6), strides, dilations):
        placed = axis_placement(source, kernel, stride, dilation, method)
        if placed.missing < 0:
            continue
        values = rng.integers(-9, 9, source).astype(np.float32)
        weights = rng.integers(-9, 9, kernel).astype(np.float32)
        positions = oracle.taps(placed.result, placed.before, kernel, stride, dilation)
        if kind == "MaxPool" and not all(any(0 <= tap < source for tap in window) for window in positions):
            continue  # a dilated window may straddle a small image: no maximum
        got = _evaluate_onnx(kind, auto_pad, values, weights, stride, dilation)
        if kind == "AveragePool":
            weights[:] = 1 / kernel
        mine = oracle.maximum(values, positions) if kind == "MaxPool" else oracle.convolve(values, weights, positions)
        np.testing.assert_allclose(got, mine, atol=1e-5, err_msg=str((source, kernel, stride, dilation)))


def _evaluate_onnx(
    kind: str, auto_pad: str, values: np.ndarray, weights: np.ndarray, stride: int, dilation: int
) -> np.ndarray:
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    inputs = ["x", "w"] if kind == "Conv" else ["x"]
    extra = {"count_include_pad": 1} if kind == "AveragePool" else {"dilations": [1, dilation]}
    node = helper.make_node(
        kind,
        inputs,
        ["y"],
        kernel_shape=[1, len(weights)],
        strides=[1, stride],
        auto_pad=auto_pad,
        **extra,
    )
    shapes = {"x": [1, 1, 1, len(values)], "w": [1, 1, 1, len(weights)]}
    graph = helper.make_graph(
        [node],
        "padding",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    feeds = {"x": values.reshape(shapes["x"]), "w": weights.reshape(shapes["w"])}
    return ReferenceEvaluator(model).run(None, {name: feeds[name] for name in inputs})[0].ravel()


def test_mirror_rule_pairs_the_same_pixels() -> None:
    for method, _, _, _ in methods():
        for source, kernel, stride, dilation in itertools.product(
            (1, 2, 5, 8, 11), range(1, 6), range(1, 4), range(1, 4)
        ):
            extent = window_extent(kernel, dilation)
            if not method & Method.SIZE_MASK and extent > source:
                continue
            placed = axis_placement(source, kernel, stride, dilation, method)
            forward = {
                (i, tap, p)
                for i, window in enumerate(oracle.taps(placed.result, placed.before, kernel, stride, dilation))
                for p, tap in enumerate(window)
                if 0 <= tap < source
            }
            start = mirror_kernel_offset(placed.offset, extent) - extent // 2
            mirrored = {
                (position // stride, x, kernel - 1 - q)
                for x in range(source)
                for q in range(kernel)
                if not (position := x + start + dilation * q) % stride and 0 <= position < placed.result * stride
            }
            assert mirrored == forward, (method, source, kernel, stride, dilation)


def test_reverse_with_the_opposite_size_restores_the_length() -> None:
    """Exactly so where the forward stride leaves no rest; otherwise the rest is lost, as the header warns."""
    opposite = {VALID: FULL, FULL: VALID, SAME: SAME}
    for size, (source, kernel, stride, dilation) in itertools.product(STYLES, GRID):
        covered = source + STYLES[size] * (window_extent(kernel, dilation) - 1)
        if covered < 1:
            continue
        placed = axis_placement(source, kernel, stride, dilation, size)
        filled = (placed.result - 1) * stride + 1
        if filled - STYLES[size] * (window_extent(kernel, dilation) - 1) < 1:
            continue
        restored = reverse_placement(placed.result, kernel, stride, dilation, opposite[size])
        assert restored.result == source - (covered - 1) % stride


@pytest.mark.parametrize("method", [VALID | TL, SAME | TL, FULL | TL, VALID | BR, FULL | BR])
def test_reverse_placement_is_transposed_convolution(method: int, rng: np.random.Generator) -> None:
    """Against PyTorch, whose padding counts from the full result; even extents under Same have no PyTorch twin."""
    for source, kernel, stride, dilation in itertools.product((1, 2, 5, 9), range(1, 6), range(1, 5), range(1, 4)):
        extent = window_extent(kernel, dilation)
        pad = {VALID: extent - 1, SAME: (extent - 1) // 2, FULL: 0}[Method(method & Method.SIZE_MASK)]
        if (method & SAME and not extent % 2) or (source - 1) * stride + extent - 2 * pad < 1:
            continue
        values, weights = rng.standard_normal(source), rng.standard_normal(kernel)
        placed = reverse_placement(source, kernel, stride, dilation, method)
        filled = np.zeros((source - 1) * stride + 1)
        filled[::stride] = values
        positions = oracle.taps(placed.result, placed.before, kernel, 1, dilation)
        got = oracle.convolve(filled, weights[::-1], positions)
        wanted = torch.nn.functional.conv_transpose1d(
            torch.from_numpy(values)[None, None],
            torch.from_numpy(weights)[None, None],
            stride=stride,
            padding=pad,
            dilation=dilation,
        )
        np.testing.assert_allclose(got, wanted.numpy().ravel(), atol=1e-12)
        assert placed.kernel_offset == extent // 2 - placed.before


def test_remainder_bits_act_on_their_own_axis() -> None:
    axis = Lengths(13, 2)
    offsets = {0: (0, 0), 4: (1, 0), 8: (0, 1), 12: (1, 1)}
    for remainder, offset in offsets.items():
        assert suggested_geometry(SAME | remainder, axis, axis)[2:4] == offset


def test_remainder_bits_count_only_when_centered() -> None:
    for align, remainder in itertools.product((Method.ALIGN_TOP_LEFT, Method.ALIGN_BOTTOM_RIGHT), REMAINDERS):
        assert axis_placement(7, 2, 2, 1, SAME | align | remainder) == axis_placement(7, 2, 2, 1, SAME | align)


def test_geometry_joins_both_axes() -> None:
    sizes = Lengths(28, 5, 1, 2), Lengths(7, 2, 2, 3)
    x, y = axis_placement(28, 5, 1, 2, SAME, "x"), axis_placement(7, 2, 2, 3, SAME, "y")
    assert suggested_geometry(SAME, *sizes) == Geometry(x.result, y.result, x.offset, y.offset, 0, 0)
    x, y = reverse_placement(28, 5, 1, 2, SAME, "x"), reverse_placement(7, 2, 2, 3, SAME, "y")
    back = suggested_geometry(SAME, *sizes, is_backwards=True)
    assert back == Geometry(x.result, y.result, 0, 0, x.kernel_offset, y.kernel_offset)
    assert suggested_geometry(int(SAME), *sizes, is_backwards=True) is back


def test_bits_beside_size_and_place_do_not_change_the_geometry() -> None:
    extra = Method.CUSTOM | Method.EXCLUDE_EDGES | Method.CUSTOM_ALLOW_FOR_NODE_FUSION
    assert axis_placement(28, 3, 2, 1, SAME | BR | extra) == axis_placement(28, 3, 2, 1, SAME | BR)


def test_custom_alone_suggests_valid_only_even_below_one_pixel() -> None:
    """A shipping policy adds its padding to the suggestion, which may be 0 or less before that."""
    sizes = Lengths(1, 3), Lengths(4, 3)
    geometry = suggested_geometry(Method.CUSTOM, *sizes)
    assert (geometry.width, geometry.height) == (-1, 2)
    with pytest.raises(MPSArgumentError, match="MyKernel: source width leaves no result pixel for a kernel width of 3"):
        suggested_geometry(VALID, *sizes, who="MyKernel")


def test_no_room_for_a_window_says_what_to_do() -> None:
    with pytest.raises(
        MPSArgumentError, match=r"source height .* kernel height of 3 \(7 with its dilation\).*SIZE_SAME"
    ):
        axis_placement(6, 3, 1, 3, VALID, "y")
    with pytest.raises(MPSArgumentError, match="source width"):
        reverse_placement(1, 2, 2, 1, VALID)


@in_one_test
@pytest.mark.parametrize(
    ("sizes", "name"),
    [((0, 1, 1, 1), "source width"), ((1, 0, 1, 1), "kernel"), ((1, 1, 0, 1), "stride"), ((1, 1, 1, -1), "dilation")],
)
@pytest.mark.parametrize("place", [axis_placement, reverse_placement])
def test_sizes_below_one_are_refused(place, sizes: tuple, name: str) -> None:
    with pytest.raises(MPSArgumentError, match=f"{name} must be at least 1"):
        place(*sizes, method=SAME)


@in_one_test
@pytest.mark.parametrize("method", [3, 48, 64, 0x7F0, 1 << 11, 1 << 12, 1 << 16, -1])
def test_reserved_bits_are_refused(method: int) -> None:
    with pytest.raises(MPSArgumentError, match="must not hold reserved"):
        axis_placement(8, 3, 1, 1, method)


def test_exclude_edges_counts_the_padding_that_the_size_asks_for() -> None:
    edges = Method.EXCLUDE_EDGES
    assert [exclude_edges_zero_pad(edges | size, 5) for size in (VALID, SAME, FULL)] == [0, 2, 4]
    assert [exclude_edges_zero_pad(edges | size, 4) for size in (VALID, SAME, FULL)] == [0, 2, 3]
