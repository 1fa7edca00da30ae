"""Every option of a training has a picture in the documentation, drawn by code of numbers that its options gave."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import line_chart
import numpy as np
import pytest
import training_pictures as tool
from site_pages import pictures as drawn_by_examples

import every_option
from openmps.training import TrainingOptions
from openmps.training.augmentation import ITEMS, Flip
from openmps.training.network import OptimizerName

DOCS = Path(__file__).resolve().parents[1] / "docs"
OF_PROCESSES = {"synchronizes_statistics"}
"""What one process has no use for."""
BESIDES = {"decay", "callbacks", "second_moments"}
"""What another schedule, an argument of `train` and a property of graphs ask for."""
SHOWN_BY = {"schedule": "schedules", "keep": "patience"}
"""Where the picture of an option has another name."""


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_option_has_a_picture() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingOptions)}
    own = fields - every_option.OF_ITS_OWN - OF_PROCESSES - {"learning_rate", "augmentation"}
    assert {SHOWN_BY.get(name, name) for name in own | BESIDES} <= tool.TITLES.keys()
    compared = {options.get("optimizer", "adam") for options in tool.TRAININGS["optimizer"].runs.values()}
    assert compared == {*get_args(OptimizerName)}


def test_every_augmentation_has_a_picture() -> None:
    """One of an example, of those that change images."""
    text = _page("augmentation.md")
    assert drawn_by_examples.names(text) == ["augmentation.svg", "mixing.svg"]
    code = "".join(re.findall(r"```python\n(.*?)```", text[: text.rindex("<!-- picture: ")], re.DOTALL))
    items = {item for text in re.findall(r'"([a-z:\d./,]+)"', code) for item in text.split(",")}
    drawn = {item.partition(":")[0] for item in items} | {"smooth"}
    assert drawn >= ITEMS.keys()
    assert {"flip", "flip:alternate"} <= items
    assert len(get_args(Flip)) == 2
    assert any(said.get("augmentation", "").startswith("smooth:") for said in tool.TRAININGS["smooth"].runs.values())


def test_pages_show_the_pictures_and_say_what_they_show() -> None:
    shown = {
        name: title
        for page in ("training.md", "augmentation.md")
        for title, name in re.findall(r"!\[(.+?)\]\(assets/training/(\w+)\.svg\)", _page(page))
    }
    assert shown == tool.TITLES
    assert {path.name for path in tool.FOLDER.iterdir()} == {*tool.pictures(), tool.NUMBERS.name}


def test_pictures_are_of_the_numbers_and_numbers_of_the_options() -> None:
    for file, text in tool.pictures().items():
        assert (tool.FOLDER / file).read_text(encoding="utf-8") == text, "run: python tools/training_pictures.py"
        assert len(text) < 16_000
    known = tool.numbers()
    assert known.keys() == tool.TRAININGS.keys()
    for name, trainings in tool.TRAININGS.items():
        assert known[name]["options"] == json.loads(json.dumps(tool.described(trainings))), f"--train {name}"
        assert known[name]["curves"].keys() == trainings.runs.keys()


def test_a_curve_goes_through_its_points_and_axes_through_round_numbers() -> None:
    chart = line_chart.Chart("x", "y", {"one": [(0, 1), (5, 10), (10, 100)]}, is_logarithmic=True)
    tree = ElementTree.fromstring(chart.svg("what it shows"))
    (line,) = tree.iter("{http://www.w3.org/2000/svg}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in (line.get("points") or "").split()]
    np.testing.assert_allclose(np.diff(places, axis=0), [((430 - 64) / 2, -100)] * 2, atol=0.11)
    words = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["0", "2", "4", "6", "8", "10", "1", "10", "100", "x", "y", "one"]
    counted = line_chart.Chart("x", "y", {"one": [(0, 10), (2, 40)]}, is_scattered=True).svg("points and their sign")
    assert counted.count("<circle ") == 3
    assert [f">{at}</text>" in counted for at in (0, 0.5, 1, 1.5, 2)] == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("least", "most", "wanted"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.82, 0.9833, [0.85, 0.9, 0.95]),
        (1, 110, [20, 40, 60, 80, 100]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round_and_inside(least: float, most: float, wanted: list[float]) -> None:
    assert line_chart._Axis(least, most, 0, 1).ticks() == wanted
