"""Options of every command that looks at a network: those that nothing would be done with are refused."""

from __future__ import annotations

import re

import pytest

import planted_networks as planted
from openmps.cli import main

pytestmark = pytest.mark.usefixtures("unflushed", "in_an_empty_folder", "on_a_known_machine")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("summary reference.onnx --image 8x8x1", "--image"),
        ("lint ported.archive --samples images.npz --image 8x8x1", "--image"),
        ("trace good cat.png --count 2", "--count"),
        ("trace good cat.png --labels cat", "--labels"),
        ("trace ported.archive --samples images.npz --labels cat", "--labels"),
        ("trace good --samples images.npz --labels cat --training", "--labels"),
        ("compare good cat.png --count 2", "--count"),
        ("compare good cat.png --labels cat", "--labels"),
        ("compare traced traced cat.png", "IMAGE"),
        *((f"compare traced traced --{name}", f"--{name.split()[0]}") for name in (
            "samples images.npz", "count 2", "labels cat", "training", "format float16", "device cpu", "fusion on",
        )),
        ("profile good --classes 3", "--classes"),
        ("profile ported.archive --image 8x8x1 --classes 3", "--classes"),
        ("view good cat.png --count 2", "--count"),
        ("view ported.archive --samples images.npz --image 8x8x1", "--image"),
        ("view ported.archive --image 8x8x1 --count 2", "--count"),
        ("view ported.archive --image 8x8x1 --mistakes 2", "--mistakes"),
        ("view ported.archive --image 8x8x1 --repeats 2", "--repeats"),
    ],
)  # fmt: skip
def test_options_that_do_nothing_are_refused(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good", with_options=True)
    planted.padding_off_by_one()
    if "traced" in command:
        assert main(["trace", "ported.archive", "--samples", "images.npz", "--out", "traced"]) == 0
    capsys.readouterr()
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(rf"Invalid value for '?{re.escape(option)}'?: (must be left out|is for)", said.err)
