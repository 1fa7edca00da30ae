"""Arrays and numbers in the place of mappings of names, and of names: an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps import formats, training
from openmps.errors import MPSError
from openmps.formats import onnx

pytestmark = pytest.mark.usefixtures("unflushed", "in_an_empty_folder")
CPU = mps.mtl_device("cpu")
ARRAY = np.ones((1, 1, 1, 4), np.float32)


def graph() -> Any:
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 1), ARRAY, None, "conv")
    return mps.MPSNNGraph(CPU, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("x")), source).result_image)


def tensors() -> dict[str, Any]:
    return {"conv.weight": ARRAY.reshape(1, 4, 1, 1)}


def taken(**more: Any) -> Any:
    return formats.import_weights(tensors(), graph(), "pytorch", **more)


def given(**more: Any) -> Any:
    return formats.export_weights({"conv.weights": ARRAY}, graph(), "pytorch", **more)


def traced() -> Any:
    return graph().trace([np.ones((1, 1, 1, 4), np.float32)])


def model() -> Any:
    module = torch.nn.Conv2d(4, 4, 1)
    return onnx.from_torch(module, torch.zeros(1, 4, 2, 2)).model(CPU)


def run() -> Any:
    return training.RunFolder.create(".", {})


MAPPINGS: dict[str, tuple[Callable[[Any], object], str]] = {
    "import_weights tensors": (lambda value: formats.import_weights(value, graph(), "pytorch"), "tensors"),
    "import_weights names": (lambda value: taken(names=value), "names"),
    "import_weights fold": (lambda value: taken(fold=value, epsilon=0.0), "fold"),
    "import_weights flatten": (lambda value: taken(flatten=value), "flatten"),
    "export_weights arrays": (lambda value: formats.export_weights(value, graph(), "pytorch"), "arrays"),
    "export_weights names": (lambda value: given(names=value), "names"),
    "export_weights flatten": (lambda value: given(flatten=value), "flatten"),
    "load_raw names": (lambda value: formats.load_raw(".", graph(), names=value), "names"),
    "load_raw network": (lambda value: formats.load_raw(".", value), "network"),
    "load_safetensors": (lambda value: formats.load_safetensors("x.safetensors", value), "shapes"),
    "load_dat_files": (lambda value: formats.load_dat_files(".", value), "shapes"),
    "save_safetensors": (lambda value: formats.save_safetensors("y.safetensors", value), "arrays"),
    "save_dat_files": (lambda value: formats.save_dat_files(".", value), "arrays"),
    "save_raw": (lambda value: formats.save_raw(".", value), "arrays"),
    "save_tensors": (lambda value: formats.save_tensors("y.npz", value), "tensors"),
    "compare": (lambda value: mps.debug.compare(traced(), traced(), names=value), "names"),
    "lint": (lambda value: mps.lint(graph(), samples=value), "samples"),
    "OnnxModel.run": (lambda value: model().run(value), "arrays"),
    "network shapes": (lambda value: onnx.network("x.onnx", shapes=value), "shapes"),
    "registry": (lambda value: mps.MPSKeyedUnarchiver(mps.MPSKeyedArchiver.archived_data(1), CPU, registry=value),
                 "registry"),
    "config": (lambda value: training.RunFolder.create(".", value), "config"),
    "files": (lambda value: training.RunFolder.create(".", {}, files=value), "files"),
    "amend": (lambda value: run().amend(value), "changes"),
    "log": (lambda value: run().log(value), "record"),
    "save_weights": (lambda value: run().save_weights(value), "arrays"),
    "load_weights": (lambda value: run().load_weights(value), "shapes"),
    "checkpoint": (lambda value: training.Checkpoint.of(1, value), "parts"),
    "checkpoint about": (lambda value: training.Checkpoint.of(1, {}, value), "about"),
    "restore": (lambda value: training.Checkpoint.of(1, {}).restore(value), "parts"),
    "from_arrays": (lambda value: training.Network.from_arrays(training.NetworkShape(8, 8, 1, 2), value), "arrays"),
    "network": (lambda value: training.Network(training.NetworkShape(8, 8, 1, 2), value), "sources"),
}  # fmt: skip
NO_MAPPINGS: dict[str, Any] = {
    "array": np.zeros(2, np.float32), "number": 3, "NumPy's number": np.float32(1.5), "list": [1, 2],
    "tensor": torch.zeros(2), "text array": np.array(["a", "b"]),
}  # fmt: skip
TEXTS = ("import_weights names", "import_weights fold", "import_weights flatten", "export_weights names",
         "export_weights flatten", "load_raw names", "compare")  # fmt: skip
WRONG_MEMBERS: dict[str, Any] = {
    "array for a name": {"conv": np.array(["a", "b"])}, "number for a name": {"conv": 3}, "number as name": {3: "conv"},
    "NumPy's number as name": {np.float32(1): "conv"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _files(in_an_empty_folder: None) -> None:
    formats.save_safetensors("x.safetensors", {"conv.weights": ARRAY})
    onnx.save(graph(), "x.onnx", mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 4))


@in_one_test
@pytest.mark.parametrize("value", NO_MAPPINGS)
@pytest.mark.parametrize("where", MAPPINGS)
def test_what_is_no_mapping(where: str, value: str) -> None:
    call, argument = MAPPINGS[where]
    with pytest.raises(mps.MPSTypeError, match=argument):
        call(NO_MAPPINGS[value])


@in_one_test
@pytest.mark.parametrize("value", WRONG_MEMBERS)
@pytest.mark.parametrize("where", TEXTS)
def test_what_is_no_name(where: str, value: str) -> None:
    call, argument = MAPPINGS[where]
    with pytest.raises(mps.MPSTypeError, match=argument):
        call(WRONG_MEMBERS[value])


@in_one_test
@pytest.mark.parametrize("value", [{3: ARRAY}, {np.float32(1): ARRAY}, {None: ARRAY}], ids=["3", "float32", "None"])
@pytest.mark.parametrize(
    "where", [each for each in MAPPINGS if each not in TEXTS and each not in ("registry", "files")]
)
def test_names_that_are_no_text(where: str, value: Any) -> None:
    with pytest.raises(MPSError):
        MAPPINGS[where][0](value)


NAMES: dict[str, tuple[Callable[[Any], object], str]] = {
    "layout": (lambda value: formats.import_weights(tensors(), graph(), value), "layout"),
    "prefix": (lambda value: taken(prefix=value), "prefix"),
    "leave": (lambda value: taken(leave=[value]), "leave"),
    "network": (lambda value: training.NetworkShape(8, 8, 1, 2, value), "network"),
    "optimizer": (lambda value: training.optimizer_factory(value, 0.1), "name"),
    "run": (lambda value: training.RunFolder.create(".", {}, name=value), "name"),
    "target": (lambda value: mps.lint(graph(), target=value), "target"),
    "outputs": (lambda value: onnx.network("x.onnx", outputs=[value]), "outputs"),
    "dat_file_names": (lambda value: formats.dat_file_names([value]), "name"),
    "split_name": (lambda value: formats.split_name(value), "name"),
    "device": (lambda value: mps.mtl_device(value), "which"),
    "classes": (lambda value: training.ConfusionCounts([value]), "class_names"),
}


@in_one_test
@pytest.mark.parametrize("value", [np.zeros(2), np.array(["a", "b"]), 3, np.float32(1), None, b"x"], ids=repr)
@pytest.mark.parametrize("where", NAMES)
def test_what_is_no_text(where: str, value: Any) -> None:
    if value is None and where in ("run", "target", "device"):
        pytest.skip("None is left out")
    call, argument = NAMES[where]
    with pytest.raises(MPSError, match=argument):
        call(value)


def test_folders_stay_empty() -> None:
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["x.onnx", "x.safetensors"]
