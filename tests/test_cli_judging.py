"""``openmps compare`` by what rounding explains: traces, archives and folders for MLX beside a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import planted_networks as planted
from openmps.cli import main
from openmps.formats import coreml, mlx
from openmps.formats.coreml import predicting
from openmps.training import Network, Preprocessing

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder")
NEEDS_MLX = pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="it runs what is exported")


def test_what_float16_rounds_is_explained_and_other_weights_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["second_conv.weights"] = arrays["second_conv.weights"] * np.float32(1.01)

    planted.run("other", change)
    assert main(["compare", "good", "cat.png", "--format", "float32,float16", "--rounding"]) == 0
    assert "explained by rounding" in capsys.readouterr().out
    assert main(["trace", "good", "cat.png", "--out", "traced"]) == 0
    assert main(["compare", "other", "traced", "cat.png", "--rounding"]) == 1
    assert "the first true difference: second_conv" in capsys.readouterr().out
    assert main(["compare", "good", "traced", "cat.png", "--rounding", "--tolerance", "1"]) == 2
    assert "layers are judged by what rounding explains" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def converted(in_an_empty_folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, its ONNX model, and an archive of that, whose convolutions have normalizations and neurons in them."""
    planted.photo()
    planted.run("good")
    planted.run("other", lambda arrays: arrays["second_conv.weights"].__imul__(np.float32(1.01)))
    assert main(["export", "--onnx", "good", "net.onnx"]) == 0
    assert main(["convert", "net.onnx", "net.mps"]) == 0
    capsys.readouterr()


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize("how", [[], ["--rounding"]])
def test_equal_networks_of_joined_layers_and_of_layers_apart(
    how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for equal in (["net.mps", "net.onnx"], ["net.onnx", "net.mps"], ["good", "net.mps"], ["net.mps", "good"]):
        assert main(["compare", *equal, "cat.png", *how]) == 0, capsys.readouterr().out
    for wrong in (["net.mps", "other"], ["other", "net.mps"]):
        capsys.readouterr()
        assert main(["compare", *wrong, "cat.png", *how]) == 1
        assert "it is the other one times a constant" in capsys.readouterr().out.splitlines()[-1]


def _exported(name: str, factor: float = 1.0) -> None:
    arrays = planted.arrays()
    arrays["second_conv.weights"] *= np.float32(factor)
    graph = Network.from_arrays(planted.SHAPE, arrays).inference_graph(planted.CPU, planted.FLOAT32)
    mlx.export(graph, name, planted.SHAPE.image_descriptor())


@NEEDS_MLX
def test_a_folder_for_mlx_is_judged_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")
    _exported("same")
    _exported("wrong", 1.01)
    assert main(["compare", "good", "same", "cat.png", "--run-python"]) == 0
    assert "explained by rounding: 11 images, in float32" in capsys.readouterr().out
    assert main(["compare", "wrong", "good", "cat.png", "--run-python"]) == 1
    assert "the first true difference: second_conv" in capsys.readouterr().out
    assert main(["compare", "same", "wrong", "cat.png", "--run-python"]) == 1
    assert "the first that departs: second_conv" in capsys.readouterr().out
    np.savez("images.npz", image=np.random.default_rng(0).random((2, 8, 8, 3), np.float32))
    assert main(["compare", "same", "same", "--samples", "images.npz", "--run-python"]) == 0
    assert main(["compare", "same", "wrong", "--run-python"]) == 2
    assert "has no images of its own" in capsys.readouterr().err


def test_python_runs_when_it_is_asked_for_alone(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")
    _exported("out")
    Path("out/network.py").write_text("open('ran', 'w')\nraise SystemExit\n")
    assert main(["compare", "good", "out", "cat.png"]) == 2
    assert "add --run-python" in " ".join(capsys.readouterr().err.split())
    assert not Path("ran").exists()


@NEEDS_MLX
def test_what_a_module_raises_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    planted.photo()
    planted.run("good")
    _exported("out")
    for text in ("raise SystemExit\n", "1 / 0\n", "class Network:\n    pass\n", "(\n"):
        Path("out/network.py").write_text(text)
        assert main(["compare", "good", "out", "cat.png", "--run-python"]) == 2
        assert "as openmps export --mlx writes it" in " ".join(capsys.readouterr().err.split())


# --- Core ML ----------------------------------------------------------------------------------------------------------

NEEDS_COREML = pytest.mark.skipif(importlib.util.find_spec("coremltools") is None, reason="it reads Core ML's packages")


def _packages(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that sees BGR with a mean taken off, and one of other weights, and packages of the first."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["second_conv.weights"] = arrays["second_conv.weights"] * np.float32(1.01)

    planted.photo()
    seen = Preprocessing("BGR", (104.0, 117.0, 123.0), (0.017, 0.018, 0.019))
    for name, how in (("good", lambda arrays: None), ("other", change)):
        planted.run(name, how).amend(seen.describe())
    assert main(["export", "--coreml", "good", "net.mlpackage"]) == 0
    assert main(["export", "--coreml", "good", "half.mlpackage", "--half"]) == 0
    capsys.readouterr()


@NEEDS_COREML
@pytest.mark.parametrize(("given", "status", "says"), [
    (["good", "net.mlpackage"], 0, "22 values agree"),
    (["net.mlpackage", "good"], 0, "22 values agree"),
    (["net.mlpackage", "other"], 1, "the first that departs: second_conv/weights"),
    (["good", "half.mlpackage", "--rounding"], 0, "explained by rounding: 11 images, in float32"),
    (["half.mlpackage", "good", "--rounding"], 0, "explained by rounding: 11 images, in float32"),
    (["other", "net.mlpackage", "--rounding"], 1, "the first true difference: second_conv"),
    (["net.mlpackage", "--format", "float32,float16"], 0, "25 values agree"),
])  # fmt: skip
def test_a_core_ml_package_is_converted_in(
    given: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _packages(capsys)
    assert (main(["compare", *given, "cat.png"]), says in capsys.readouterr().out) == (status, True)


@NEEDS_COREML
def test_commands_that_take_a_package_and_one_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    _packages(capsys)
    assert main(["export", "--mlx", "net.mlpackage", "out"]) == 0
    assert main(["export", "--coreml", "net.mlpackage", "again.mlpackage"]) == 0
    assert main(["quantize", "net.mlpackage", "small.mps", "cat.png"]) == 2
    assert "Convert it first: openmps convert" in " ".join(capsys.readouterr().err.split())


class MadeUpCoreML:
    """What coremltools has on a Mac, as openmps itself computes it; given are pictures as apps give them, in RGB."""

    def __init__(self, path: str) -> None:
        network = coreml.network(path)
        self._order, self._labels = network.image_inputs[0][1], network.class_labels
        self._model = network.model(planted.CPU)

    def predict(self, feeds: dict[str, Image.Image]) -> dict[str, object]:
        pixels = np.asarray(feeds["image"])[..., :: -1 if self._order == "BGR" else 1]
        (found,) = self._model.run({"image": pixels.transpose(2, 0, 1)[None]}).values()
        by_label = dict(zip(self._labels, map(float, found.reshape(-1)), strict=True))
        return {"classLabel": max(by_label, key=lambda label: by_label[label]), "classLabel_probs": by_label}


@NEEDS_COREML
def test_on_a_mac_core_ml_itself_gives_the_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _packages(capsys)
    module = ModuleType("coremltools")
    module.__dict__["models"] = SimpleNamespace(MLModel=MadeUpCoreML)
    monkeypatch.setattr(predicting, "import_module", lambda name: module if name == "coremltools" else Image)
    monkeypatch.setattr(predicting.sys, "platform", "darwin")
    assert main(["compare", "good", "net.mlpackage", "cat.png"]) == 0
    assert "'classLabel_probs' is taken for 'softmax'" in capsys.readouterr().out
    assert main(["compare", "other", "net.mlpackage", "cat.png"]) == 1
    assert main(["compare", "net.mlpackage", "half.mlpackage", "cat.png", "cat.png"]) == 1
    assert "classLabel_probs" in capsys.readouterr().out
    monkeypatch.setattr(MadeUpCoreML, "predict", lambda self, feeds: 1 / 0)
    assert main(["compare", "good", "net.mlpackage", "cat.png"]) == 2
    assert "that Core ML runs" in " ".join(capsys.readouterr().err.split())
