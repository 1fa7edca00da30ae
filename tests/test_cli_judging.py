"""``openmps compare`` by what rounding explains: traces, archives and folders for MLX beside a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import planted_networks as planted
from openmps.cli import main
from openmps.formats import mlx
from openmps.training import Network

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
