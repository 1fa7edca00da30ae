"""``openmps compare CAPTURE RUN``, ``openmps golden`` and ``export --capture``: the whole loop by commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import openmps as mps
import planted_networks as planted
from fake_device import FLOAT16, dump
from openmps.cli import main
from openmps.training import Network, Preprocessing

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine")


def device(name: str = "capture", *, epsilon: float | None = None, given: np.ndarray | None = None) -> None:
    """A device that runs the network of the run ``good`` in float16, and dumps what it computes."""
    graph = Network.from_arrays(planted.SHAPE, planted.arrays()).inference_graph(planted.CPU, FLOAT16)
    if epsilon is not None:
        for node, kernel in graph.kernels.items():
            if node.label == "first_norm":
                kernel.epsilon = epsilon
    image = (planted.photo()[np.newaxis] / np.float32(255)).astype(np.float16) if given is None else given
    trace = graph.trace([image])
    images = {each.label: each.array for each in trace.of(mps.debug.TracedKind.IMAGE)}
    dump(Path(name), {"image": image, **images}, about="a device")


def test_a_right_device_is_explained_by_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good")
    device()
    assert main(["compare", "capture", "good", "cat.png"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("explained by rounding: 11 images, in float16, float32\n"), said
    assert main(["compare", "capture", "good"]) == 0
    assert "note: the capture's own source images are taken" in capsys.readouterr().out


def test_a_wrong_device_is_found_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good")
    device(epsilon=1e-1)
    assert main(["compare", "capture", "good", "cat.png"]) == 1
    said = capsys.readouterr().out
    assert "the first true difference: first_norm: it is the other one times a constant; 1 of 11 depart" in said
    device("other", epsilon=1e-2)
    assert main(["compare", "other", "good", "cat.png"]) == 1
    said = capsys.readouterr().out
    assert "the first true difference: first_norm: its epsilon is 0.01, here 1e-05; 1 of 11 depart" in said


def test_the_preprocessing_of_a_run_is_held_against_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    run, wanted = planted.run("good"), Preprocessing("BGR", (0, 0, 0), (1 / 255,) * 3)
    run.amend(wanted.describe())
    device()
    assert main(["compare", "capture", "good", "cat.png"]) == 1
    said = capsys.readouterr().out
    assert "the first true difference: image: it is the image with its channels in reverse order" in said


def test_samples_and_archives_do_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    device()
    graph = Network.from_arrays(planted.SHAPE, planted.arrays()).inference_graph(planted.CPU, FLOAT16)
    mps.MPSKeyedArchiver.archive(graph, Path("net.mps"))
    np.savez("x.npz", image=planted.photo()[np.newaxis])
    assert main(["compare", "capture", "net.mps", "--samples", "x.npz"]) == 0
    np.savez("two.npz", image=np.zeros((2, 8, 8, 3), np.uint8))
    assert main(["compare", "capture", "net.mps", "--samples", "two.npz"]) == 1
    assert "1x8x8x3 there, 2x8x8x3 here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compare capture", "is needed behind a capture"),
        ("compare capture capture", "is needed behind a capture"),
        ("compare good capture cat.png", "capture is a capture: name it first"),
        ("compare capture good other", "other is a third one"),
        ("compare capture bad", "must be a folder, got nothing there"),
        ("compare broken good", "images.dat must hold 384 bytes, as capture.json says, got 4"),
        ("golden check capture good", "golden.json must be a file"),
        ("golden check kept broken", "images.dat must hold 384 bytes"),
        ("golden make good cat.png", "is needed: the folder to make"),
        ("golden make good cat.png --out kept", "must be a new folder"),
        ("export --swift good Cats --samples x.npz", "are for ONNX, MLX, Core ML, Core AI and --capture"),
        ("export --swift --capture --training good Cats", "is for networks that infer"),
        ("export --onnx --capture good cats.onnx", "is for --swift"),
        ("export --swift --capture net.mps Cats", "is needed: the file leaves the size of 'image' open"),
    ],
)
def test_what_cannot_be_is_refused(command: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good", with_options=True)
    device()
    dump(Path("broken"), {"image": np.zeros((1, 8, 8, 3), np.float16)})
    Path("broken/images.dat").write_bytes(b"four")
    graph = Network.from_arrays(planted.SHAPE, planted.arrays()).inference_graph(planted.CPU, FLOAT16)
    mps.MPSKeyedArchiver.archive(graph, Path("net.mps"))
    mps.debug.save_golden(mps.debug.make_golden(graph, [np.zeros((1, 8, 8, 3), np.float32)]), "kept")
    assert main(command.split()) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_goldens_are_made_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good")
    device()
    assert main(["golden", "make", "good", "cat.png", "cat.png", "--out", "kept"]) == 0
    assert "2 image(s), 1 result(s) in kept" in capsys.readouterr().out
    for form in ("float16", "float32"):
        assert main(["golden", "check", "kept", "good", "--format", form]) == 0
        assert "1 result within the limits" in capsys.readouterr().out
    planted.run("other", lambda arrays: arrays["fc.biases"].__iadd__(np.float32([0.1, 0, 0, 0])))
    assert main(["golden", "check", "kept", "other"]) == 1
    assert "beyond the limits: softmax" in capsys.readouterr().out
    assert main(["golden", "make", "good", "cat.png", "--out", "one"]) == 0
    assert main(["golden", "check", "one", "capture"]) == 0


def test_an_export_that_captures(capsys: pytest.CaptureFixture[str]) -> None:
    planted.run("good")
    assert main(["export", "--swift", "--capture", "good", "Cats"]) == 0
    assert "CatsCapture.swift and CatsTests.swift beside it, with Cats-golden.dat" in capsys.readouterr().out
    golden = Path("Cats/Cats-golden.dat").read_bytes()
    given = np.frombuffer(golden[: 2 * 8 * 8 * 3], np.float16).reshape(1, 8, 8, 3)
    wanted = np.frombuffer(golden[2 * 8 * 8 * 3 :], np.float32)
    graph = Network.from_arrays(planted.SHAPE, planted.arrays()).inference_graph(planted.CPU, planted.FLOAT32)
    np.testing.assert_allclose(wanted, graph.trace([given.astype(np.float32)])["softmax"].ravel(), rtol=1e-5)
    assert 0 <= given.min() < given.max() <= 1
    np.savez("x.npz", image=np.zeros((2, 8, 8, 3), np.uint8))
    assert main(["export", "--swift", "--capture", "good", "Dogs", "--samples", "x.npz"]) == 0
    assert "private static let images = 2" in Path("Dogs/DogsTests.swift").read_text()
    assert len(Path("Dogs/Dogs-golden.dat").read_bytes()) == 2 * (2 * 8 * 8 * 3 + 4 * 4)
