"""Options of every command that looks at a network: those that nothing would be done with are refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import openmps as mps
import planted_networks as planted
from fake_device import dump
from openmps.cli import main
from openmps.training import Network

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine")


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
        *((f"compare capture good --{name}", f"--{name.split()[0]}") for name in (
            "count 2", "labels cat", "training", "format float16", "fusion on", "tolerance 1",
        )),
        ("golden make good cat.png --out kept --count 2", "--count"),
        *((f"golden check kept capture --{name}", f"--{name.split()[0]}") for name in ("format float16", "device cpu")),
        ("profile good --classes 3", "--classes"),
        ("profile ported.archive --image 8x8x1 --classes 3", "--classes"),
        ("selftest --record a.json --goldens b.json", "--goldens"),
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
    if "capture" in command:
        image = np.zeros((1, 8, 8, 3), np.float32)
        dump(Path("capture"), {"image": image})
        graph = Network.from_arrays(planted.SHAPE, planted.arrays()).inference_graph(planted.CPU, planted.FLOAT32)
        mps.debug.save_golden(mps.debug.make_golden(graph, [image]), "kept")
    capsys.readouterr()
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(rf"Invalid value for '?{re.escape(option)}'?: (must be left out|is for)", said.err)


@pytest.mark.parametrize("command", [
    "weights convert good {}", "weights show {}", "predict good {}", "summary {}", "convert reference.onnx {}",
    "run ported.archive --input x=x.npy --output {}", "train --data {}", "train --data={}", "train --run {}",
    "train --resume {}", "train --network {}", "trace good --out {}", "view good --out {}", "profile good --chrome {}",
    "golden make good --out {}", "golden check {} good", "selftest --record {}", "selftest --goldens {}",
    "lint good --samples {}", "export --swift good {}", "compare good {}", "explain-padding 8 {}",
])  # fmt: skip
def test_a_path_that_is_empty_is_not_the_current_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good")
    planted.padding_off_by_one()
    there = sorted(os.listdir())
    assert main([part.format("") for part in command.split(" ")]) == 2
    assert "must not be empty" in capsys.readouterr().err
    assert sorted(os.listdir()) == there


@pytest.mark.parametrize(("command", "words"), [
    ("compare good cat.png --device cpu,", "'cpu,' has an empty part"),
    ("compare good cat.png --format ,float16", "',float16' has an empty part"),
    ("trace good --samples wide.npz", "--samples 'image' must be [images, height, width, channels], with 3 channels"),
    ("compare good --samples wide.npz", "with 3 channels, got 2x8x8x4"),
    ("lint good --samples wide.npz", "with 3 channels, got 2x8x8x4"),
    ("view good --samples wide.npz --out v.html", "with 3 channels, got 2x8x8x4"),
    ("trace good --samples two.npz", "must have one array for each source image: 'image', got 'image', 'more'"),
    ("explain-padding 28 pytorch:99999999999999999999", "must place windows within 8388608 pixels"),
    ("explain-padding 28 onnx:0,99999999999999999999,0,-99999999999999999999", "must place windows within"),
    ("weights convert w.npz runs/good --from openmps --force --scale 1e-46", "scale must not be 0 as float32"),
    ("weights convert w.npz runs/good --from openmps --force --scale 1e-320", "scale must not be 0 as float32"),
])  # fmt: skip
def test_numbers_and_arrays_that_do_not_fit(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")
    image = np.zeros((2, 8, 8, 3), np.float32)
    np.savez("wide.npz", image=np.zeros((2, 8, 8, 4), np.float32))
    np.savez("two.npz", image=image, more=image)
    assert main(["weights", "convert", "good", "w.npz"]) == 0
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err


def test_agreement_in_what_is_not_finite_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    run = planted.run("good")
    run.save_weights({name: np.full_like(array, np.nan) for name, array in run.load_weights().items()})
    assert main(["compare", "good", "cat.png"]) == 0
    assert re.search(r"note: \d+ values hold NaN or infinities, the first is first_conv/", capsys.readouterr().out)


def test_a_current_folder_that_was_removed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert main(["explain-padding", "8"]) == 2
    finally:
        os.chdir(tmp_path)
    assert "the current folder must be there, got No such file or directory" in capsys.readouterr().err
