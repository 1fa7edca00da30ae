"""Pictures of the documentation are those that their tools make."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from helpers import tool

ROOT = Path(__file__).resolve().parents[1]


def test_the_picture_of_padding_has_the_numbers_of_explain_padding() -> None:
    padding = tool("padding_picture")
    assert padding.PICTURE.read_text(encoding="utf-8") == padding.picture(), "run: python tools/padding_picture.py"
    tree = ElementTree.fromstring(padding.picture())
    fills = [each.get("fill") for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    # Three results of three pixels each in both panels, and the key; the default reads one before the source,
    # TensorFlow's SAME one behind it.
    assert fills.count(padding.FILLS["padding"]) == 1 + 1 + 1
    assert fills.count(padding.FILLS["read"]) == 8 + 8 + 1


def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 2
    assert [path for path in pictures if not (ROOT / path).is_file()] == []
