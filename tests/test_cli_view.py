"""``openmps view``: what it writes, what it says is missing, and what it refuses."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
import planted_networks as planted
from openmps.cli import main
from openmps.formats import onnx
from openmps.training import Network, NetworkShape, RunFolder, TrainingOptions, optimizer_factory
from openmps.training.inference import describe_network

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine")


def shown(path: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', Path(path).read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def digits_run(augmentation: str | None = None) -> None:
    """A run on the digits as training begins it, with measurements."""
    shape, names = NetworkShape(8, 8, 1, 10, "tiny"), tuple("0123456789")
    options = TrainingOptions(epochs=1, network="tiny", augmentation=augmentation)
    about = {"options": options.describe(), "data": {"path": None}}
    run = RunFolder.create("runs", {**describe_network(shape, names), **about}, name="digits")
    run.save_weights(Network.create(shape, seed=1, optimizer=optimizer_factory("adam", 1e-3)).arrays())
    for step in range(1, 5):
        run.log({"iteration": step, "loss": 3.0 / step, "accuracy": step / 5, "test_loss": 4.0 / step})


def test_a_trained_run_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    digits_run()
    assert main(["view", "digits", "--count", "2", "--repeats", "1", "--mistakes", "5"]) == 0
    assert re.search(r"digits\.html: 10 layers, [\d,]+ bytes", capsys.readouterr().out)
    data = shown("digits.html")
    assert [view["name"] for view in data["views"]] == ["Forward", "Training graph"]
    assert [panel["title"] for panel in data["curves"]] == ["Loss", "Accuracy"]
    assert [line["name"] for line in data["curves"][0]["lines"]] == ["training", "test"]
    assert data["curves"][0]["lines"][0]["points"] == [[1, 3.0], [2, 1.5], [3, 1.0], [4, 0.75]]
    assert len(data["mistakes"]["images"]) == 5 < data["mistakes"]["wrong"] < data["mistakes"]["tested"] == 359
    assert data["mistakes"]["images"][0]["true"] != data["mistakes"]["images"][0]["taken"]
    assert data["augmented"] is None
    forward = {node["label"]: node for node in data["views"][0]["nodes"]}
    assert forward["relu1"]["seconds"] > 0
    assert forward["relu1"]["values"][0]["shape"] == [2, 8, 8, 8]
    training = {node["label"]: node for node in data["views"][1]["nodes"]}
    assert "values" in training["first_conv gradient"]
    assert main(["view", "digits"]) == 2
    assert "must be new, got one that is there. --force replaces it" in capsys.readouterr().err


def test_an_augmented_run_shows_its_images() -> None:
    """As they are, and as its steps change them; those that are moved by whole pixels have no other numbers."""
    digits_run("crop:2,normalize:0.5/0.5")
    assert main(["view", "digits", "--count", "2", "--repeats", "0", "--mistakes", "0"]) == 0
    found = shown("digits.html")["augmented"]
    assert found["text"] == "crop:2,normalize:0.5/0.5"
    assert [len(row) for row in found["rows"]] == [10] * 4
    plain, *steps = (base64.b64decode(sheet["data"]) for sheet in found["rows"][0])
    assert len({plain, *steps}) > 5
    assert {value for step in steps for value in step} <= {0, *plain}


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good", with_options=True)
    assert main(["view", "good", "--out", "bare.html"]) == 0
    data = shown("bare.html")
    assert "openmps view good IMAGE" in data["views"][0]["missing"]
    assert "does not say which images" in data["no_mistakes"]
    assert data["curves"] is None
    assert all("values" not in node for view in data["views"] for node in view["nodes"])
    assert main(["view", "good", "cat.png", "--out", "cat.html", "--repeats", "0"]) == 0
    forward, training = shown("cat.html")["views"]
    assert "values" in forward["nodes"][1]
    assert "--labels" in training["missing"]
    assert main(["view", "good", "cat.png", "--labels", "cat", "--out", "cat.html", "--repeats", "0", "--force"]) == 0
    assert "values" in shown("cat.html")["views"][1]["nodes"][1]


def test_archives_and_models_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    planted.padding_off_by_one()
    assert main(["view", "ported.archive"]) == 2
    assert "--image" in capsys.readouterr().err
    assert main(["view", "ported.archive", "--image", "8x8x1"]) == 0
    data = shown("ported.html")
    assert [node["label"] for node in data["views"][0]["nodes"]][:2] == ["image", "conv1"]
    assert "--samples FILE.npz" in data["views"][0]["missing"]
    assert "openmps train" in data["no_metrics"]
    assert main(["view", "ported.archive", "--samples", "images.npz", "--out", "page.html", "--repeats", "0"]) == 0
    assert shown("page.html")["views"][0]["images"] == 2
    network = Network.from_arrays(planted.SHAPE, planted.arrays())
    onnx.save(network.inference_graph(planted.CPU, planted.FLOAT32), "m.onnx", planted.SHAPE.image_descriptor())
    assert main(["view", "m.onnx"]) == 0
    assert any(node["family"] == "weights" for node in shown("m.html")["views"][0]["nodes"])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["nowhere"], "must be a folder, got nothing there"),
        (["good", "--out", "none/page.html"], "must be in a folder that exists"),
        (["good", "--image", "8x8x3"], "a run knows its size"),
        (["good", "--labels", "cat"], "for runs that say how they were trained"),
        (["good", "--samples", "none.npz"], "none.npz"),
        (["good", "--format", "int8"], "neither float32 nor float16"),
        (["cat.png", "--labels", "cat"], "for run folders"),
        (["cat.png"], "cat.png"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    command: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planted.photo()
    planted.run("good")
    assert main(["view", *command]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.glob("**/*.html")) == []


def test_labels_go_through_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    image = mps.MPSNNImageNode(mps.Handle("</script>"))
    relu = mps.MPSCNNNeuronReLUNode(image)
    relu.label = "<b>&{{data}}"
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(planted.CPU, relu.result_image), Path("odd.mps"))
    np.savez("x.npz", **{"</script>": np.zeros((1, 4, 4, 2), np.float32)})
    assert main(["view", "odd.mps", "--samples", "x.npz", "--repeats", "0"]) == 0
    assert [node["label"] for node in shown("odd.html")["views"][0]["nodes"]] == ["</script>", "<b>&{{data}}"]
