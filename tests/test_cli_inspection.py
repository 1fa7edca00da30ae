"""``openmps trace``, ``compare`` and ``profile``: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import openmps as mps
import planted_networks as planted
from openmps.cli import main
from openmps.formats import onnx
from openmps.training import Network, Preprocessing

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine")


def test_a_trace_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    pixels = planted.photo()
    planted.run("good")
    assert main(["trace", "good", "cat.png", "cat.png", "--out", "traced", "--format", "float16"]) == 0
    assert "relu1" in capsys.readouterr().out
    trace = mps.debug.load_trace("traced")
    assert trace["image"].shape == (2, 8, 8, 3)
    assert np.allclose(trace["image"][1], pixels / 255)
    assert trace["first_conv"].dtype == np.float16
    assert main(["trace", "good", "cat.png", "--out", "traced"]) == 2
    assert "must be a new folder" in capsys.readouterr().err
    assert main(["trace", "good", "cat.png", "--fused"]) == 0
    assert "\nfirst_conv " not in capsys.readouterr().out


def test_images_are_preprocessed_as_the_run_says(capsys: pytest.CaptureFixture[str]) -> None:
    pixels = planted.photo()
    run, wanted = planted.run("good"), Preprocessing("BGR", (1, 2, 3), (0.5,) * 3)
    run.amend(wanted.describe())
    assert main(["trace", "good", "cat.png", "--out", "traced"]) == 0
    assert np.array_equal(mps.debug.load_trace("traced")["image"][0], wanted.applied(pixels))


def test_a_training_step_is_traced_with_labels(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good", with_options=True)
    command = ["trace", "good", "cat.png", "cat.png", "--training", "--labels"]
    assert main([*command, "bee,dog", "--out", "traced"]) == 0
    trace = mps.debug.load_trace("traced")
    assert trace["loss/labels"].reshape(2, 4).argmax(1).tolist() == [1, 3]
    assert "first_conv gradient/weights_gradient" in trace
    assert main([*command, "bee"]) == 2
    assert main([*command, "bee,cow"]) == 2
    assert "'cow' is no class; there are ant, bee, cat, dog" in capsys.readouterr().err


def test_a_run_an_archive_and_a_model_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    planted.padding_off_by_one()
    samples = ["--samples", "images.npz"]
    assert main(["compare", "ported.archive", *samples]) == 0
    assert "values agree" in capsys.readouterr().out
    assert main(["compare", "ported.archive", "reference.onnx", *samples]) == 1
    assert "the first that departs: conv1" in capsys.readouterr().out
    assert main(["compare", "ported.archive", "reference.onnx", *samples, "--tolerance", "1000"]) == 0
    assert main(["trace", "reference.onnx", *samples, "--out", "traced"]) == 0
    assert main(["compare", "traced", "reference.onnx", *samples]) == 0
    assert main(["compare", "traced", "traced"]) == 0
    assert main(["compare", "ported.archive", "reference.onnx", "traced", *samples]) == 2
    assert "traced is a third one; images end in .png, .jpg, .jpeg, .bmp" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", "ported.archive"]) == 2
    assert "has no images of its own" in capsys.readouterr().err
    assert main(["compare", "ported.archive", *samples, "--fusion", "maybe"]) == 2
    assert main(["compare", "ported.archive", *samples, "--format", "float32,float16,float32"]) == 2


def test_formats_and_fusions_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")
    assert main(["compare", "good", "cat.png", "--fusion", "on,off"]) == 0
    assert "only in the second: first_conv" in capsys.readouterr().out
    assert main(["compare", "good", "cat.png", "--format", "float32,float16"]) == 0
    assert "of float16" in capsys.readouterr().out


def test_a_profile_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good", with_options=True)
    assert main(["profile", "good", "--batch", "2", "--repeats", "1", "--chrome", "events.json"]) == 0
    assert "first_conv + first_norm + relu1" in capsys.readouterr().out
    assert json.loads(Path("events.json").read_text())["traceEvents"]
    assert main(["profile", "good", "--batch", "2", "--repeats", "1", "--training"]) == 0
    assert "ConvolutionGradient" in capsys.readouterr().out
    assert main(["profile", "tiny", "--batch", "2", "--repeats", "1", "--image", "8x8x1"]) == 0
    assert main(["profile", "tiny"]) == 2
    assert "--image" in capsys.readouterr().err
    network = Network.from_arrays(planted.SHAPE, planted.arrays())
    onnx.save(network.inference_graph(planted.CPU, planted.FLOAT32), "m.onnx", planted.SHAPE.image_descriptor())
    assert main(["profile", "m.onnx", "--batch", "2", "--repeats", "1", "--image", "8x8x3"]) == 0
    assert main(["profile", "m.onnx", "--image", "8x8"]) == 2
    assert main(["profile", "m.onnx", "--image", "8x8x3", "--training"]) == 2


def test_images_of_other_sizes_than_the_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    network = Network.from_arrays(planted.SHAPE, planted.arrays())
    onnx.save(network.inference_graph(planted.CPU, planted.FLOAT32), "m.onnx", planted.SHAPE.image_descriptor())
    assert main(["convert", "m.onnx", "m.mps"]) == 0
    np.savez("large.npz", image=np.zeros((1, 9, 12, 3), np.float32))
    for file in ("m.onnx", "m.mps"):
        for command in ("trace", "view", "compare"):
            capsys.readouterr()
            assert main([command, file, "--samples", "large.npz"]) == 2
            assert "must be 8x8x3 (width, height, channels)" in capsys.readouterr().err
        assert main(["profile", file, "--image", "12x9x3"]) == 2
        assert "must have 8 columns" in " ".join(capsys.readouterr().err.split())
        assert main(["profile", file, "--batch", "2", "--repeats", "1"]) == 0


def test_a_size_that_is_needed_is_shown_by_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    planted.padding_off_by_one()
    for command in ("view", "profile"):
        assert main([command, "ported.archive"]) == 2
        says = " ".join(capsys.readouterr().err.split())
        assert "is needed: the file leaves the size of 'image' open. Add --image 224x224x" in says
