"""What explain_padding prints is what enumeration finds."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.geometry import axis_placement, reverse_placement, window_extent
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.padding.report import AxisExplanation, explain_padding
from openmps.errors import MPSArgumentError, MPSError, MPSTypeError
from openmps.types import MPSImageEdgeMode, MPSOffset
from openmps.types import MPSNNPaddingMethod as Method
from oracles import padding as oracle


def printed_taps(text: str) -> dict[int, list[str]]:
    """Rows of the (first) table: result pixel and its cells."""
    rows = re.findall(r"^ *(\d+) \|(.*)$", text, flags=re.MULTILINE)
    return {int(name): cells.split() for name, cells in rows}


def test_printed_taps_equal_enumeration() -> None:
    grid = itertools.product(range(1, 14), range(1, 6), range(1, 5), range(1, 4), (0, 2, 16, 28, 32, 44))
    for source, kernel, stride, dilation, method in grid:
        if not method & Method.SIZE_MASK and window_extent(kernel, dilation) > source:
            continue
        explained = explain_padding(source, kernel=kernel, stride=stride, dilation=dilation, policy=method)
        placed = axis_placement(source, kernel, stride, dilation, method)
        taps = oracle.taps(placed.result, placed.before, kernel, stride, dilation)
        (axis,) = explained.axes
        assert [list(axis.taps(i)) for i in range(axis.result)] == taps
        assert (axis.before, axis.after) == (placed.before, placed.missing - placed.before)
        read = {tap for window in taps for tap in window}
        assert axis.never_read == tuple(pixel for pixel in range(source) if pixel not in read)
        text = str(explained)
        cells = [[str(tap) if 0 <= tap < source else f"[{tap}]" for tap in window] for window in taps]
        shown = printed_taps(text)
        assert shown == {i: cells[i] for i in shown}
        assert len(shown) == min(placed.result, 16)
        assert f"result {placed.result}, offset {placed.offset}\n" in text
        assert ("[n] outside the source" in text) == any("[" in cell for row in cells for cell in row)


def test_reverse_filters_show_inserted_zeros() -> None:
    for source, kernel, stride, method in itertools.product((1, 3, 6), range(1, 6), range(1, 4), (16, 28, 32)):
        explained = explain_padding(source, kernel=kernel, stride=stride, policy=method, backwards=True)
        placed = reverse_placement(source, kernel, stride, 1, method)
        (axis,) = explained.axes
        assert (axis.result, axis.offset, axis.kernel_offset) == (placed.result, 0, placed.kernel_offset)
        assert (axis.before, axis.after) == (placed.before, placed.missing - placed.before)
        for result in range(axis.result):
            for tap, position in zip(
                axis.taps(result), range(result - placed.before, result - placed.before + kernel), strict=True
            ):
                assert tap == (position // stride if position % stride == 0 else None)
    assert printed_taps(str(explain_padding(2, kernel=3, stride=2, policy="full", backwards=True))) == {
        0: ["[-1]", ".", "0"],
        1: [".", "0", "."],
        2: ["0", ".", "1"],
        3: [".", "1", "."],
        4: ["1", ".", "[2]"],
    }


def test_the_table_of_one_axis() -> None:
    assert str(explain_padding(7, kernel=2, stride=2, policy="same")) == "\n".join(
        [
            "same, centered, remainder top left (method 0x10)",
            "",
            "x: source 7, kernel 2, stride 2, dilation 1 -> result 4, offset 0",
            "at the edges of the source: 1 read before, 0 read after",
            "result | source pixels read",
            "     0 | [-1]    0",
            "     1 |    1    2",
            "     2 |    3    4",
            "     3 |    5    6",
            "",
            "[n] outside the source",
        ]
    )


def test_cropped_pixels_are_named() -> None:
    text = str(explain_padding(11, kernel=3, stride=3, policy=Method.ADD_REMAINDER_TO_BOTTOM_RIGHT))
    assert "at the edges of the source: 1 skipped before, 1 skipped after\nnever read: 0, 10\n" in text
    assert "outside" not in text


def test_two_axes_take_pairs_or_one_number() -> None:
    explained = explain_padding((28, 7), kernel=(5, 2), stride=2, dilation=(1, 3), policy="tensorflow-same")
    x, y = axis_placement(28, 5, 2, 1, 28, "x"), axis_placement(7, 2, 2, 3, 28, "y")
    assert explained.result == (x.result, y.result)
    assert explained.offset == (x.offset, y.offset)
    assert explained.kernel_offset == (0, 0)
    assert [axis.axis for axis in explained.axes] == ["x", "y"]
    assert "\n\nx: source 28" in str(explained)
    assert "\n\ny: source 7" in str(explained)


def test_remainders_act_on_their_own_axis() -> None:
    assert explain_padding((13, 13), kernel=2, policy=SAME_TOP_RIGHT).offset == (1, 0)


SAME_TOP_RIGHT = Method.SIZE_SAME | Method.ADD_REMAINDER_TO_TOP_RIGHT


def test_long_tables_leave_out_the_middle() -> None:
    text = str(explain_padding(224, kernel=3, stride=2, policy="same"))
    assert list(printed_taps(text)) == [*range(8), *range(104, 112)]
    assert "   ... |\n" in text
    assert "..." not in str(explain_padding(16, kernel=3, policy="same"))


@pytest.mark.parametrize(
    ("policy", "result", "offset"),
    [
        ("same", 3, 0),
        ("pytorch:1", 3, 0),
        ("pytorch:0", 2, 1),
        ("pytorch-ceil:0", 3, 1),
        (MPSNNDefaultPadding(0), 2, 1),
    ],
)
def test_policies_of_every_kind(policy, result: int, offset: int) -> None:
    explained = explain_padding(6, kernel=3, stride=2, policy=policy)
    assert (explained.result, explained.offset) == ((result,), (offset,))


def test_what_a_policy_sets_on_the_kernel_is_said() -> None:
    explained = explain_padding((6, 7), kernel=3, stride=2, policy="caffe:1")
    assert explained.edge_mode == MPSImageEdgeMode.CLAMP
    assert explained.zero_pad == (1, 1)
    assert "sets edge mode CLAMP, zero-pad size 1 x 1" in str(explained)
    preset = explain_padding(6, kernel=3, policy=MPSNNDefaultPadding.padding_for_tensorflow_average_pooling())
    assert preset.edge_mode == MPSImageEdgeMode.CLAMP
    assert preset.zero_pad is None
    assert explain_padding(6, kernel=3, policy="same").edge_mode is None


class Shifting:
    """A user's policy: reads start at pixel 0, and one column is dropped."""

    def padding_method(self) -> Method:
        return Method.CUSTOM | Method.SIZE_SAME

    def label(self) -> str:
        return "shifting <policy>"

    def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
        for_kernel.offset = MPSOffset(for_kernel.kernel_width // 2, for_kernel.kernel_height // 2, 0)
        suggested_descriptor.width = source_images[0].width - 1
        return suggested_descriptor


def test_custom_policies_are_run() -> None:
    explained = explain_padding(5, kernel=3, policy=Shifting())
    assert explained.result == (4,)
    assert explained.axes[0].taps(3) == (3, 4, 5)
    assert str(explained).startswith("shifting <policy> (method 0x4010)")


def test_custom_policies_that_need_a_real_kernel_are_refused() -> None:
    class Curious(Shifting):
        def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
            return for_kernel.device

    with pytest.raises(MPSArgumentError, match=r"no more than the window and offsets.*device"):
        explain_padding(5, kernel=3, policy=Curious())


def test_html_shows_the_same_cells_and_escapes_labels() -> None:
    html = explain_padding((3, 3), kernel=3, policy=Shifting())._repr_html_()
    assert "shifting &lt;policy&gt;" in html
    assert html.count("<table>") == html.count("</table>") == 2
    assert '<tr><th>1</th><td>1</td><td>2</td><td style="color:#999">[3]</td></tr>' in html
    reverse = explain_padding(2, kernel=3, stride=2, policy="same", backwards=True)._repr_html_()
    assert '<td style="color:#999">.</td>' in reverse


@in_one_test
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": 2, "kernel": 3, "policy": "valid"}, MPSArgumentError, "source width leaves no result pixel"),
        ({"source": 0, "kernel": 3, "policy": "same"}, MPSArgumentError, "source width must be at least 1"),
        ({"source": 5, "kernel": (3, 3), "policy": "same"}, MPSArgumentError, "kernel must be one number"),
        ({"source": (5, 5, 5), "kernel": 3, "policy": "same"}, MPSArgumentError, "source must be one number"),
        ({"source": 5.0, "kernel": 3, "policy": "same"}, MPSTypeError, "source must be an integer"),
        ({"source": 5, "kernel": 3, "policy": "keras"}, MPSArgumentError, "must be a known name"),
        ({"source": 5, "kernel": 3, "policy": None}, MPSTypeError, "method must be an integer"),
        ({"source": 1, "kernel": 5, "policy": "pytorch:1"}, MPSArgumentError, "leaves no result pixel"),
    ],
)
def test_mistakes_are_explained(arguments: dict, error: type[MPSError], message: str) -> None:
    source = arguments.pop("source")
    with pytest.raises(error, match=message):
        explain_padding(source, **arguments)


def test_an_axis_can_be_explained_by_hand() -> None:
    """The fields alone decide: an offset that no policy would give is shown as it is."""
    axis = AxisExplanation("x", 4, 2, 1, 1, False, 2, -3, 0)
    assert axis.taps(0) == (-4, -3)
    assert (axis.before, axis.after) == (4, -5)
    assert axis.never_read == (0, 1, 2, 3)


def test_explicit_padding_object() -> None:
    explained = explain_padding((5, 5), kernel=3, policy=ExplicitPadding(left=0, top=1, right=2, bottom=1))
    assert [(axis.before, axis.after) for axis in explained.axes] == [(0, 2), (1, 1)]


def test_pixels_that_are_never_read(rng: np.random.Generator) -> None:
    """Windows that begin anywhere, of any stride and dilation, against all taps of all of them."""
    for _ in range(3000):
        source, kernel, stride, dilation, result = (int(rng.integers(1, most)) for most in (12, 7, 6, 14, 9))
        axis = AxisExplanation(
            "x",
            source,
            kernel,
            stride,
            dilation,
            backwards=bool(rng.integers(2)),
            result=result,
            offset=int(rng.integers(-9, 10)),
            kernel_offset=int(rng.integers(-9, 10)),
        )
        read = {tap for index in range(result) for tap in axis.taps(index)}
        assert axis.never_read == tuple(pixel for pixel in range(source) if pixel not in read), axis


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kernel", [3, 2**20])
def test_the_largest_sizes_are_explained_at_once(kernel: int, backwards: bool) -> None:
    explained = explain_padding(2**20, kernel=kernel, policy="same", backwards=backwards)
    assert explained.result == (2**20,)
    text = str(explained)
    assert len(printed_taps(text)) == 16
    assert len(text) < 20_000
    assert len(explained._repr_html_()) < 40_000


def test_runs_of_pixels_that_are_never_read() -> None:
    def facts(source: int, stride: int) -> str:
        """The text, its lines not broken."""
        return str(explain_padding(source, kernel=1, stride=stride, policy="valid")).replace("\n  ", " ")

    runs = ", ".join(f"{10 * first + 5} to {10 * first + 13}" for first in range(9))
    assert f"never read: 0 to 3, {runs}, 95 to 99 (90 pixels)\n" in facts(100, 10)
    assert "never read: 1, 3, 5, 7\n" in facts(9, 2)
    assert ", 31, ... (524288 pixels)\n" in facts(2**20, 2)


@pytest.mark.parametrize("name", ["source", "kernel", "stride", "dilation"])
def test_sizes_beyond_all_images(name: str) -> None:
    sizes = {"source": 10, "kernel": 1, "stride": 1, "dilation": 1, name: 100_000_000}
    with pytest.raises(MPSArgumentError, match=f"{name} must be at most 1048576, got 100000000"):
        explain_padding(sizes.pop("source"), **sizes, policy="same")
