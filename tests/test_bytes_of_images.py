"""What bytes stand for, wherever images come in: 0 to 1, unless an ONNX model takes whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
import planted_networks as planted
from onnx_models import model, node, ours, saved
from openmps.cli import main
from openmps.formats.onnx import OnnxModel

pytestmark = pytest.mark.usefixtures("unflushed", "in_an_empty_folder")

CPU = mps.mtl_device("cpu")
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
Numbers = np.ndarray[Any, Any]


def _graph() -> mps.MPSNNGraph:
    line = mps.MPSCNNNeuronLinearNode(mps.MPSNNImageNode(mps.Handle("image")), a=1.0, b=0.0)
    line.label = "line"
    graph = mps.MPSNNGraph(CPU, line.result_image)
    graph.format = FLOAT32
    return graph


def _model(kind: int) -> OnnxModel:
    """An identity of images, of one of ONNX's types."""
    nodes = [node("Cast", "x", "z", to=1), node("Identity", "z", "y")]
    made = model(nodes, {"x": ["n", 2, 4, 3]})
    made.graph.input[0].type.tensor_type.elem_type = kind
    return ours(saved(made, Path()))


def _module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Identity())


def _run(array: Numbers, name: str = "image", result: str = "result") -> Any:
    if not Path("net.mps").exists():
        mps.MPSKeyedArchiver.archive(_graph(), "net.mps")
    np.save("x.npy", array)
    assert main(["run", "net.mps", "--input", f"{name}=x.npy", "--device", "cpu"]) == 0
    return np.load(f"{result}.npy")


def _trace(array: Numbers) -> Any:
    if not Path("net.mps").exists():
        mps.MPSKeyedArchiver.archive(_graph(), "net.mps")
    np.savez("x.npz", image=array)
    assert main(["trace", "net.mps", "--samples", "x.npz", "--out", "traced", "--device", "cpu"]) == 0
    trace = mps.debug.load_trace("traced")
    return trace.of(mps.debug.TracedKind.SOURCE)[0].array


def _images(array: Numbers) -> Any:
    found = [mps.MPSImage.from_numpy(CPU, each).numpy() for each in array]
    return np.reshape(found, array.shape)


ENTRANCES: dict[str, Callable[[Numbers], Any]] = {
    "MPSImage.from_numpy": _images,
    "MPSImageBatch.from_numpy": lambda array: mps.MPSImageBatch.from_numpy(CPU, array).numpy(),
    "MPSImageBatch.from_tensor": lambda array: mps.MPSImageBatch.from_tensor(
        CPU, torch.from_numpy(array).permute(0, 3, 1, 2)
    ).numpy(),
    "graph.trace": lambda array: _graph().trace([array])["line"],
    "trace_torch": lambda array: mps.debug.trace_torch(_module(), array)["0"],
    "lint": lambda array: np.full_like(
        array, mps.lint(_graph(), samples={"image": array}).magnitudes[0].magnitude, np.float32
    ),
    "OnnxModel.run": lambda array: _model(1).run({"x": array})["y"],
    "openmps run": _run,
    "openmps trace": _trace,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_whole_numbers_stand_for_0_to_1(entrance: str, dtype: type[Any]) -> None:
    array = np.full((2, 2, 4, 3), 7, dtype)
    np.testing.assert_allclose(ENTRANCES[entrance](array), array / np.float32(np.iinfo(dtype).max), rtol=1e-6)


def test_a_model_of_whole_numbers_takes_them_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    array = np.arange(0, 240, 5, np.uint8).reshape(2, 2, 4, 3)
    made = _model(2)
    made.save("net.mps")
    for found in (made.run({"x": array})["y"], _run(array, "x", "y"), _trace(array.transpose(0, 2, 3, 1))):
        np.testing.assert_array_equal(found, array if found.shape == array.shape else array.transpose(0, 2, 3, 1))
    said = capsys.readouterr()
    assert "stand for" not in said.out + said.err


def test_what_bytes_stand_for_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    array, says = np.zeros((1, 4, 4, 3), np.uint8), "image: 0 to 255 stand for 0 to 1, as in an image of unorm8"
    _run(array)
    assert capsys.readouterr().err == f"note: --input {says}\n"
    _trace(array)
    assert says in capsys.readouterr().out
    for command in ("lint", "view"):
        assert main([command, "net.mps", "--samples", "x.npz"]) == 0
        assert capsys.readouterr().err == f"note: {says}\n"
    assert main(["compare", "net.mps", "--samples", "x.npz"]) == 0
    assert capsys.readouterr().out.count(says) == 1


@pytest.mark.parametrize("command", ["lint", "trace", "compare", "view"])
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (12, 16)])
def test_images_of_another_size_than_the_run_s_are_named_once(
    command: str, size: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A network that ends in a mean takes them all."""
    planted.run("good")
    np.savez("x.npz", image=np.zeros((1, *size, 3), np.float32))
    assert main([command, "good", "--samples", "x.npz"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    name = f"{size[1]}x{size[0]} pixels, and the network was trained on 8x8"
    assert said.count(name) == (size != (8, 8))
