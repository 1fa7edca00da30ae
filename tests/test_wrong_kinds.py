"""Public functions and data sources given something else: a named error, or an answer, never an error of Python's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps import debug, formats, training
from openmps.errors import MPSError, shown
from openmps.formats import onnx, swift

pytestmark = pytest.mark.usefixtures("in_an_empty_folder", "on_a_known_machine")

CPU = mps.mtl_device("cpu")
WRONG = (None, "text", 3, -1.5, [], ["text", None], {}, {"text": None}, b"x", object(), 1 << 80, 10**5000)
"""What is given in the place of each argument."""


def _graph() -> mps.MPSNNGraph:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 2, 2)
    source = mps.ArrayConvolutionDataSource(descriptor, [1.0, 2, 3, 4], [1.0, 2], "conv")
    return mps.MPSNNGraph(CPU, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image)


def _arguments() -> dict[str, Any]:
    """What is right, by the name of the argument."""
    graph, images = _graph(), np.zeros((2, 4, 4, 2), np.float32)
    dataset = training.Dataset(np.zeros((4, 8, 8, 1), np.uint8), np.arange(4) % 2, ("a", "b"), "x")
    trace = graph.trace([images])
    return {
        **dict.fromkeys(("graph", "network"), graph), **dict.fromkeys(("first", "second", "trace"), trace),
        "arrays": formats.network_arrays(graph), "array": np.zeros(3), "batch_size": 2, "channels": 2,
        "class_names": ("a", "b"), "content": b"x", "count": 4, "data": training.DataSplit(dataset, dataset),
        "dataset": dataset, "descriptor": mps.MPSCNNConvolutionDescriptor(3, 4, 5, 2), "device": CPU,
        "encode": lambda _: None, "epoch": 0, "example": torch.zeros(1, 2, 4, 4), "folder": "new", "height": 3,
        "image_descriptors": mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 4, 4, 2),
        "images": images, "kernel": 3, "labels": np.zeros(2, int), "last_batch": "drop", "layout": "openmps",
        "learning_rate": 0.1, "metrics": [{"iteration": 1, "loss": 1.0}], "module": torch.nn.Identity(),
        "name": "conv.weights", "names": {}, "number_of_feature_channels": 2,
        "optimizer": training.optimizer_factory("adam", 1e-3), "options": training.TrainingOptions(epochs=1),
        "path": "file", "policy": "same", "predictions": np.zeros(2, int), "samples": {"image": images}, "seed": 0,
        "shape": (3,), "shapes": {"conv.weights": (2, 1, 1, 2), "conv.biases": (2,)}, "source": 8,
        "source_images": [images], "tensors": {"conv.weights": np.zeros((2, 1, 1, 2)), "conv.biases": np.zeros(2)},
        "weights": np.zeros((2, 3, 4, 5)), "which": "cpu", "width": 4,
    }  # fmt: skip


LONG = ("load_digits_dataset", "from_torch", "load_dataset", "machine_limits", "profile")
"""Those that take no argument or compute for seconds with right ones."""
CALLS: dict[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": found
    for module in (mps, training, formats, debug, onnx, swift)
    for name in module.__all__
    if inspect.isfunction(found := getattr(module, name)) and not name.startswith(("MTL", "MPS")) and name not in LONG
}
CALLS |= {
    kind.__name__: kind
    for kind in (
        training.ArrayConvolutionDataSource, training.TrainableConvolutionDataSource,
        training.ArrayBatchNormalizationDataSource, training.TrainableBatchNormalizationDataSource,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CALLS))
def test_wrong_kinds_are_named_errors(name: str) -> None:
    known, call = _arguments(), CALLS[name]
    parameters = [each for each in inspect.signature(call).parameters.values() if each.kind is not each.VAR_KEYWORD]
    right = {each.name: known.get(each.name) for each in parameters if each.default is each.empty}
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]
    found: list[str] = []
    for argument, wrong in ((each.name, wrong) for each in parameters for wrong in WRONG):
        given = {**right, argument: wrong}
        try:
            call(*(given.pop(each) for each in by_place), **given)
        except MPSError:
            pass
        except Exception as error:
            found.append(f"{argument}={shown(wrong)}: {type(error).__name__}: {error}"[:150])
    assert not found


def test_a_set_has_no_order() -> None:
    with pytest.raises(mps.MPSTypeError, match="image_descriptors must be a sequence of MPSImageDescriptor, got set"):
        mps.graph_summary(_graph(), {1})  # type: ignore[arg-type]


TAKERS: dict[str, Callable[[Any], object]] = {
    "an edge mode": lambda value: setattr(mps.MPSImageBox(CPU, 3, 3), "edge_mode", value),
    "a format": lambda value: setattr(mps.MPSNNImageNode(), "format", value),
    "a stride of arithmetic": lambda value: setattr(mps.MPSCNNAdd(CPU), "primary_stride_in_pixels_x", value),
    "a neuron": lambda value: mps.MPSMatrixNeuron(CPU).set_neuron_type(value),
    "images": mps.MPSImageBatch,
    "names": lambda value: formats.dat_file_names(value),
    "a step": lambda value: training.CheckpointFolder("none").load(value),
    "a checkpoint": lambda value: training.CheckpointFolder("none").save(value),
    "a read-only property": lambda value: setattr(mps.MPSImageBox(CPU, 3, 3), "conventions", value),
}


@in_one_test
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("value", [np.ones(3), torch.ones(3)], ids=["array", "tensor"])
def test_arrays_have_no_truth_value(taker: str, value: Any) -> None:
    with pytest.raises((mps.MPSTypeError, mps.MPSArgumentError, mps.MPSAttributeError)):
        TAKERS[taker](value)


@pytest.mark.parametrize("taker", ["images", "names"])
@pytest.mark.parametrize("value", [np.array(3), torch.tensor(3)], ids=["array", "tensor"])
def test_arrays_without_axes_are_no_sequences(taker: str, value: Any) -> None:
    with pytest.raises(mps.MPSTypeError, match="must be a sequence of"):
        TAKERS[taker](value)
