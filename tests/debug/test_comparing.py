"""Comparisons: errors against NumPy's, what departs, which values belong together, what a difference looks like."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps.debug.hints import MISTAKES, hint
from openmps.graph.run.trace import Trace

FLOAT32, FLOAT16 = mps.MPSImageFeatureChannelFormat.FLOAT32, mps.MPSImageFeatureChannelFormat.FLOAT16
Kind = mps.TracedKind


def _trace(*values: tuple[str, Kind, np.ndarray], form: mps.MPSImageFeatureChannelFormat = FLOAT32) -> mps.Trace:
    return mps.Trace(
        [
            mps.TracedValue(
                label, label.partition("/")[0], kind, "Kernel", None if "/" in label else form, np.asarray(array)
            )
            for label, kind, array in values
        ]
    )


def _image(array: np.ndarray, form: mps.MPSImageFeatureChannelFormat = FLOAT32) -> mps.Trace:
    return _trace(("conv1", Kind.IMAGE, array), form=form)


def test_errors_are_shares_of_the_largest_magnitude(rng: np.random.Generator) -> None:
    a = rng.normal(size=(2, 5, 5, 4)).astype(np.float32)
    b = a + rng.normal(size=a.shape).astype(np.float32) * np.float32(1e-3)
    row = mps.debug.compare(_image(a), _image(b)).row("conv1")
    errors = np.abs(a.astype(np.float64) - b) / max(np.abs(a).max(), np.abs(b).max())
    assert row.error == pytest.approx(errors.max())
    assert row.percentiles == pytest.approx(np.percentile(errors, (50, 90, 99)), rel=0.05)
    assert row.magnitude == pytest.approx(max(np.abs(a).max(), np.abs(b).max()))
    assert row.share_of_float16 == pytest.approx(row.magnitude / 65504)
    assert row.departs
    assert mps.debug.compare(_image(a), _image(b), tolerance=1e-2).ok
    assert mps.debug.compare(_image(a, FLOAT16), _image(b)).ok, "float16 is stored with three digits"


def test_the_first_that_departs_is_named() -> None:
    ones = np.ones((1, 2, 2, 1))
    first = _trace(("a", Kind.IMAGE, ones), ("b", Kind.IMAGE, ones), ("c", Kind.IMAGE, ones))
    second = _trace(("a", Kind.IMAGE, ones), ("b", Kind.IMAGE, 2 * ones), ("c", Kind.IMAGE, 3 * ones))
    found = mps.debug.compare(first, second)
    assert found.first is not None
    assert found.first.label == "b"
    assert "the first that departs: b; 2 of 3 do" in str(found)
    assert "3 values agree" in str(mps.debug.compare(first, first))


def test_networks_that_end_apart_do_not_agree() -> None:
    """What all but the last layer of one gives may be equal: what the networks come to is not."""
    ones = np.ones((1, 2, 2, 1))
    whole = _trace(("x", Kind.SOURCE, ones), ("a", Kind.IMAGE, ones), ("b", Kind.IMAGE, 2 * ones))
    short = _trace(("x", Kind.SOURCE, ones), ("a", Kind.IMAGE, ones))
    found = mps.debug.compare(whole, short)
    assert (found.first, found.unpaired_ends, found.ok) == (None, ("b",), False)
    assert "2 values agree, but what comes last was not compared: b is of one alone" in str(found)
    assert mps.debug.compare(short, whole).unpaired_ends == ("b",)
    other = _trace(("y", Kind.IMAGE, np.ones((1, 3, 3, 2))))
    assert not mps.debug.compare(short, other).ok
    assert mps.debug.compare(whole, whole).ok


@pytest.mark.parametrize(
    ("left", "right", "departs"),
    [
        (np.nan, np.nan, False),
        (np.inf, np.inf, False),
        (np.nan, 1.0, True),
        (np.inf, -np.inf, True),
        (np.inf, 1.0, True),
    ],
)
def test_what_is_not_finite(left: float, right: float, departs: bool) -> None:
    a, b = np.ones((1, 2, 2, 1)), np.ones((1, 2, 2, 1))
    a[0, 0, 0, 0], b[0, 0, 0, 0] = left, right
    row = mps.debug.compare(_image(a), _image(b), tolerance=100).row("conv1")
    assert row.departs is departs
    assert row.error == (np.inf if departs else 0.0)
    assert row.magnitude == 1.0


def test_images_of_other_sizes_depart_and_say_so() -> None:
    found = mps.debug.compare(_image(np.ones((1, 4, 4, 1))), _image(np.ones((1, 3, 3, 1))))
    assert not found.ok
    assert "departs: 1x4x4x1 against 1x3x3x1" in str(found)


def test_a_gradient_may_err_where_a_relu_is_near_zero(rng: np.random.Generator) -> None:
    a = rng.normal(size=(1, 20, 20, 4))
    one, many = a.copy(), a.copy()
    one[0, 0, 0, 0] += 1
    many[0, :2] += 1
    for other, kind, departs in (
        (one, Kind.GRADIENT, False),
        (many, Kind.GRADIENT, True),
        (one, Kind.IMAGE, True),
        (one, Kind.STATE, False),
        (a * 1.005, Kind.GRADIENT, False),
        (a * 1.005, Kind.IMAGE, True),
        (a * 1.05, Kind.GRADIENT, True),
    ):
        row = mps.debug.compare(_trace(("x", kind, a)), _trace(("x", kind, other))).row("x")
        assert row.departs is departs
    assert mps.debug.compare(
        _trace(("x", Kind.GRADIENT, a)), _trace(("x", Kind.GRADIENT, a * 1.005)), tolerance=1e-4
    ).first


def test_layers_of_other_names_are_paired_by_shape_and_order(rng: np.random.Generator) -> None:
    large, small = rng.normal(size=(1, 4, 4, 2)), rng.normal(size=(1, 2, 2, 2))
    weights = rng.normal(size=(2, 3, 3, 2))
    first = _trace(
        ("conv1/weights", Kind.PARAMETER, weights), ("conv1", Kind.IMAGE, large), ("relu1", Kind.IMAGE, large + 1),
        ("pool1", Kind.IMAGE, small), ("pool1/saved", Kind.STATE, small), ("extra", Kind.STATE, small),
    )  # fmt: skip
    second = _trace(
        ("0/weights", Kind.PARAMETER, weights), ("0", Kind.IMAGE, large), ("1", Kind.IMAGE, large + 1),
        ("2", Kind.IMAGE, small), ("2/saved", Kind.STATE, small + 1),
    )  # fmt: skip
    found = mps.debug.compare(first, second)
    assert {row.label: row.other for row in found.rows} == {
        "conv1/weights": "0/weights",
        "conv1": "0",
        "relu1": "1",
        "pool1": "2",
    }
    assert found.ok
    assert found.only_first == ("extra",)
    named = mps.debug.compare(first, second, names={"relu1": "0"})
    assert named.row("relu1").other == "0"
    assert named.row("relu1").departs


def test_labels_that_a_format_spells_otherwise_are_partners_before_the_order_counts(rng: np.random.Generator) -> None:
    """Core ML's names are identifiers, and a convolution's neuron is a layer of its own there."""
    rectified, other = rng.random(size=(2, 1, 4, 4, 2))
    convolved = rectified[:, ::-1]  # of one range, so that shape and order alone would take it
    first = _trace(("0.c1", Kind.IMAGE, rectified), ("a.b", Kind.IMAGE, other), ("a-b", Kind.IMAGE, other + 1))
    second = _trace(
        ("conv", Kind.IMAGE, convolved), ("_0_c1", Kind.IMAGE, rectified),
        ("a_b", Kind.IMAGE, other), ("A", Kind.IMAGE, other + 1),
    )  # fmt: skip
    found = mps.debug.compare(first, second)
    assert found.ok
    # Two labels are spelled a_b: neither is meant, and their order counts.
    assert {row.label: row.other for row in found.rows} == {"0.c1": "_0_c1", "a.b": "a_b", "a-b": "A"}
    assert found.only_second == ("conv",)


A = np.random.default_rng(0).normal(size=(3, 6, 6, 3))
OBLONG = A[:, :, :4, [0, 1, 2, 0, 1]] + np.arange(5)
"""Of other lengths: where inputs are as many as outputs, IHWO is what exchanges the two."""
ORDERS = ("HWIO", "OIHW (an image's NCHW)", "IHWO")


def _read_as_ours(a: np.ndarray, order: str, *, is_turned: bool = False) -> np.ndarray:
    """What OHWI numbers are that somebody wrote in another order, and that are read as OHWI."""
    turned = a[:, ::-1, ::-1] if is_turned else a
    return turned.transpose(["OHWI".index(letter) for letter in order]).reshape(a.shape)


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "in reverse order": lambda a: a[..., ::-1],
    "its rows are the columns": lambda a: a.transpose(0, 2, 1, 3),
    "its inputs are the outputs": lambda a: a.transpose(3, 1, 2, 0),
    "turned by 180 degrees": lambda a: a[:, ::-1, ::-1],
    **{f"in the order {order}: ": partial(_read_as_ours, order=order[:4]) for order in ORDERS},
    **{f"in the order {order}, turned": partial(_read_as_ours, order=order[:4], is_turned=True) for order in ORDERS},
    "moved by a pixel": lambda a: np.roll(a, (1, -1), (1, 2)),
    "moved on by one": lambda a: np.roll(a, 1, 3),
    "with a constant added to each channel": lambda a: a + np.array([3, 4, 5]),
    "it is the other one times a constant": lambda a: a * -7,
    "times a constant, with a constant": lambda a: a * 255 - np.array([104, 117, 123]),
}


@in_one_test
@pytest.mark.parametrize("says", WRONG)
def test_a_usual_mistake_is_named(says: str) -> None:
    right = OBLONG if "in the order" in says else A
    found = mps.debug.compare(_image(WRONG[says](right)), _image(right))
    assert found.first is not None
    assert says in found.first.hint
    assert found.first.hint in str(found)
    assert len(WRONG) == len(MISTAKES)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_the_hint_of_another_order_sets_it_right(order: str, is_turned: bool) -> None:
    right = np.random.default_rng(1).normal(size=(5, 3, 2, 4))
    wrong = _read_as_ours(right, order[:4], is_turned=is_turned)
    say = mps.debug.compare(_image(wrong), _image(right)).first.hint
    sizes = dict(zip("ohwi", right.shape, strict=True))
    np.testing.assert_array_equal(eval(say.partition(": ")[2], {"numpy": np, "numbers": wrong, **sizes}), right)


def test_what_is_no_usual_mistake_is_not_named(rng: np.random.Generator) -> None:
    other = rng.normal(size=A.shape)
    assert hint(A, other, 1e-4) == ""
    assert hint(A, A[:, :3], 1e-4) == ""
    assert hint(np.ones_like(A), np.zeros_like(A), 1e-4) == ""
    assert hint(np.where(A > 2, np.nan, A), A, 1e-4) == ""


def test_what_is_refused() -> None:
    trace = _image(np.ones((1, 2, 2, 1)))
    with pytest.raises(mps.MPSTypeError, match="second must be a Trace"):
        mps.debug.compare(trace, {"conv1": 1})  # pyright: ignore[reportArgumentType]
    with pytest.raises(mps.MPSArgumentError, match="tolerance must be 0 or more"):
        mps.debug.compare(trace, trace, tolerance=-1)
    with pytest.raises(mps.MPSArgumentError, match="label must be a label of the trace"):
        mps.debug.compare(trace, trace, names={"conv1": "conv2"})
    with pytest.raises(mps.MPSTypeError, match="names must be a mapping"):
        mps.debug.compare(trace, trace, names=["conv1"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(mps.MPSArgumentError, match="label must be a label that both traces have"):
        mps.debug.compare(trace, trace).row("conv2")


def test_long_notes_are_shortened_where_they_are_printed() -> None:
    note = f"117 filters not fused here: {', '.join(f'layer {place}' for place in range(117))}"
    trace = Trace([], [note, "a short one"])
    assert trace.notes == (note, "a short one")
    for found in (trace, mps.debug.compare(trace, trace)):
        lines = [line for line in str(found).splitlines() if line.startswith("note: ")]
        assert lines[1] == "note: a short one"
        assert lines[0].startswith("note: 117 filters not fused here: layer 0, layer 1, ")
        assert lines[0].endswith(", … (the trace's notes have all)")
        assert len(lines[0]) < 250
