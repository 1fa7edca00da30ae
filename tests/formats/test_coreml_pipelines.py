"""Pipelines of Core ML that are chains of networks, against torch; and those that are not."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coreml_models import CPU, neural, op, packaged, pipeline, program, saved
from openmps.errors import MPSFileError
from openmps.formats import coreml

if find_spec("coremltools") is None:  # to import it takes seconds
    pytest.skip("needs coremltools", allow_module_level=True)

RANDOM = np.random.default_rng(5)
W, D = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 3, 3, 3), (4, 8)))
X = RANDOM.integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)


def features(name: str = "f") -> Any:
    """Pixels of an image to a row."""
    made = neural([
        ("convolution", "c", {"outputChannels": 8, "kernelChannels": 3, "kernelSize": [3, 3], "weights": W}),
        ("pooling", name, {"type": 1, "globalPooling": True}),
    ], (3, 6, 6))  # fmt: skip
    image = made.description.input[0].type.imageType
    image.width, image.height, image.colorSpace = 6, 6, 20  # RGB
    scaler = made.neuralNetwork.preprocessing.add(featureName="x").scaler
    scaler.channelScale, scaler.redBias = 1 / 127.5, -1.0
    return made


def classifier(source: str = "f") -> Any:
    """A row to probabilities, whose values are called as those of the network before it are."""
    made = neural([
        ("innerProduct", "c", {"inputChannels": 8, "outputChannels": 4, "weights": D, "input": [source]}),
        ("softmax", "p", {}),
    ], (8,))  # fmt: skip
    made.description.input[0].name = source
    layers = [*made.neuralNetwork.layers]
    made.neuralNetworkClassifier.layers.extend(layers)
    made.neuralNetworkClassifier.stringClassLabels.vector.extend("abcd")
    made.description.predictedFeatureName, made.description.predictedProbabilitiesName = "label", "p"
    made.description.output.add(name="label")
    return made


def test_features_and_a_classifier_are_one_network(tmp_path: Path) -> None:
    first, second = features(), classifier()
    path = saved(pipeline([first, second], first, ["label", "p", "f"], "pipelineClassifier"), tmp_path)
    network = coreml.network(path)
    assert network.class_labels == ("a", "b", "c", "d") and network.image_inputs == (("x", "RGB"),)
    assert list(network.outputs) == ["p", "f"]
    found = network.model(CPU).run({"x": X})
    shift = torch.tensor([-1.0, 0, 0]).reshape(3, 1, 1)
    row = F.conv2d(torch.from_numpy(X) / 127.5 + shift, torch.from_numpy(W)).mean((2, 3))
    wanted = torch.softmax(row @ torch.from_numpy(D).T, 1)
    np.testing.assert_allclose(found["p"].reshape(2, 4), wanted.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["f"].reshape(2, 8), row.numpy(), rtol=0, atol=1e-5)


def test_programs_and_networks_in_one_package(tmp_path: Path) -> None:
    """Values of one name in several of them are several."""
    shape = (1, 4, 6, 6)
    first = program([op("relu", "h", shape), op("square", "y", shape, x="%h")], ["y"])
    second = neural([("unary", "h", {"type": 6, "scale": -1.0, "shift": 0.5, "input": ["y"]})])
    second.description.input[0].name = "y"
    third = program([op("exp", "z", shape, x="%x")], ["z"])
    third.description.input[0].name = "h"
    third.mlProgram.functions["main"].inputs[0].name = "h"
    block = third.mlProgram.functions["main"].block_specializations["CoreML6"]
    block.operations[0].inputs["x"].arguments[0].name = "h"
    path = packaged(pipeline([first, second, third], first, ["z"]), tmp_path, b"")
    x = RANDOM.normal(size=shape).astype(np.float32)
    (found,) = coreml.network(path).model(CPU).run({"x": x}).values()
    np.testing.assert_allclose(found, np.exp(np.abs(0.5 - np.maximum(x, 0) ** 2)), rtol=1e-5)


def test_a_chain_that_is_none_says_where(tmp_path: Path) -> None:
    first, second = features(), classifier("g")
    with pytest.raises(MPSFileError, match="nothing before its network 2 gives 'g'"):
        coreml.network(saved(pipeline([first, second], first, ["p"]), tmp_path))
    image = features()
    image.description.input[0].name = image.neuralNetwork.layers[0].input[0] = "f"
    with pytest.raises(MPSFileError, match="its network 2 takes an image of another one, got 'f'"):
        coreml.network(saved(pipeline([first, image], first, ["p"]), tmp_path))
    for models, said in (([], "a pipeline of nothing"), ([pipeline([first], first, [])], "a pipeline of pipeline")):
        with pytest.raises(
            MPSFileError, match=f"must be networks alone, got {said}. Save the network of them by itself"
        ):
            coreml.network(saved(pipeline(models, first, []), tmp_path))
