"""Networks of ONNX files that are trained: layers have the file's numbers, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from onnx_models import CPU, asked, conv, error, model, node, numbers, ours, reference, saved
from openmps import (
    MPSCNNBatchNormalizationNode,
    MPSImageDescriptor,
    MPSImageFeatureChannelFormat,
    MPSNNGraph,
    MPSNNImageNode,
    MPSNNOptimizerAdam,
)
from openmps.errors import MPSArgumentError, MPSOperatorError
from openmps.formats import onnx as reader
from openmps.training import TrainableBatchNormalizationDataSource, TrainableDataSources

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")


X = {"x": ["n", 4, 6, 6]}
ROWS = {
    "w": numbers(4, 4, 3, 3), "b": numbers(4), "s": numbers(4, 1, 1), "t": numbers(1, 4, 1, 1),
    "m": numbers(144, 5), "r": numbers(5), "half": np.float32(0.5),
    "zero": np.float32(0), "double": np.float64(1.5),
}  # fmt: skip

LAYERS: dict[str, tuple[list[Any], list[list[str]]]] = {
    "biases behind a convolution": ([conv("x", "c"), node("Add", "c t", "y")], [["w", "t"]]),
    "biases before a convolution": ([conv("x", "c"), node("Add", "t c", "y")], [["w", "t"]]),
    "biases behind a product": (
        [node("Flatten", "x", "f"), node("MatMul", "f m", "p"), node("Add", "r p", "y")], [["m", "r"]]
    ),
    "biases behind biases": ([conv("x", "c", "w b"), node("Add", "c t", "y")], [["w", "b"]]),
    "a result that is read twice": (
        [conv("x", "c"), node("Add", "c t", "d"), node("Add", "c d", "y")], [["w"]]
    ),
    "factors": ([node("Mul", "x s", "y")], [["s"]]),
    "factors and shifts": ([node("Mul", "x t2", "p"), node("Add", "p t", "y")], [["t2", "t"]]),
    "shifts": ([node("Relu", "x", "a"), node("Add", "a t", "y")], []),
    "divisors": ([node("Sub", "x s", "a"), node("Div", "a t", "y")], []),
    "one number": ([node("Mul", "x half", "a"), node("Add", "a half", "y")], []),
    "blocks": ([node("DepthToSpace", "x", "d", blocksize=2), node("SpaceToDepth", "d", "y", blocksize=2)], []),
    "an order of channels": (
        [node("Split", "x", "a b2 c d", axis=1, num_outputs=4), node("Concat", "c a d", "y", axis=1)], []
    ),
    "weights that are used twice": ([conv("x", "c", "w b", pads=[1] * 4), conv("c", "y", "w b")], [["w", "b"]]),
    "no biases, as an exporter writes them": ([
        node("Shape", "w", "count", start=0, end=1), node("Constant", "", "one", value_ints=[1]),
        node("Expand", "count one", "row"), node("CastLike", "zero x", "none"), node("Expand", "none row", "zeros"),
        conv("x", "y", "w zeros"),
    ], [["w"]]),
    "numbers of another type": (
        [node("CastLike", "double x", "d"), node("CastLike", "x d", "e"), node("Mul", "e d", "y")], []
    ),
    "instance normalization": ([node("InstanceNormalization", "x b b2", "y")], [["b", "b2"]]),
    "group normalization": ([node("GroupNormalization", "x b b2", "y", num_groups=2)], [["b", "b2"]]),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_what_the_file_has(name: str, tmp_path: Path) -> None:
    nodes, wanted = LAYERS[name]
    rows = {**ROWS, "t2": numbers(1, 4, 1, 1, seed=2), **({} if "an order" in name else {"b2": numbers(4, seed=2)})}
    made = model(nodes, X, opset=21, **rows)
    found = asked(made, tmp_path)
    assert [[np.sort(each, None).tolist() for each in layer] for layer in found] == [
        [np.sort(rows[key], None).tolist() for key in layer] for layer in wanted
    ]
    x = numbers(2, 4, 6, 6)
    got = ours(tmp_path / "model.onnx", trainable=True).run({"x": x})["y"]
    assert error(got, reference(made, {"x": x})["y"]) < 1e-5


def test_weights_that_two_layers_use_otherwise_are_refused_where_they_are_trained(tmp_path: Path) -> None:
    made = model([conv("x", "c", "w b"), conv("c", "y", strides=[2, 2])], X, **ROWS)
    with pytest.raises(MPSOperatorError, match=r"weights in common\s+with another layer"):
        asked(made, tmp_path)
    ours(tmp_path / "model.onnx", trainable=True)


@pytest.mark.parametrize(("attributes", "why"), [({"beta": 0.5}, "matrix C has a factor"), ({"alpha": 0.5}, "")])
def test_factors_of_a_product_are_not_trained(attributes: dict[str, float], why: str, tmp_path: Path) -> None:
    made = model([node("Flatten", "x", "f"), node("Gemm", "f k r", "y", **attributes)], X, k=numbers(144, 5), **ROWS)
    if why:
        with pytest.raises(MPSOperatorError, match=why):
            asked(made, tmp_path)
        return
    ((weights, biases),) = asked(made, tmp_path)
    assert np.array_equal(np.sort(weights, None), np.sort(numbers(144, 5), None)) and len(biases) == 5
    x = numbers(2, 4, 6, 6)
    got = ours(tmp_path / "model.onnx", trainable=True).run({"x": x})["y"]
    assert error(got, reference(made, {"x": x})["y"]) < 1e-5


class Kept(TrainableDataSources):
    """Keeps the data sources of batch normalizations."""

    def batch_normalization(self, *numbers: Any) -> Any:
        found = super().batch_normalization(*numbers)
        KEPT.append(found)
        return found


KEPT: list[Any] = []


@pytest.mark.parametrize(("said", "given", "moves"), [
    ({}, None, 0.1), ({"momentum": 0.7}, None, 0.3), ({"momentum": 1.0}, None, 0.0), ({"momentum": 0.7}, 0.1, 0.1),
])  # fmt: skip
def test_running_statistics_move_as_the_file_says(
    said: dict[str, float], given: float | None, moves: float, tmp_path: Path
) -> None:
    rows = {"w": numbers(4, 4, 3, 3), "g": numbers(4), "h": numbers(4), "m": numbers(4), "v": np.ones(4, np.float32)}
    made = model([conv("x", "c"), node("BatchNormalization", "c g h m v", "y", **said)], X, **rows)
    KEPT.clear()
    reader.network(saved(made, tmp_path), trainable=Kept(lambda device: MPSNNOptimizerAdam(device), momentum=given))
    assert [source.momentum for source in KEPT] == [moves]


def test_a_momentum_is_written_and_read_again(tmp_path: Path) -> None:
    def optimizer(device: Any) -> MPSNNOptimizerAdam:
        return MPSNNOptimizerAdam(device)

    source = TrainableBatchNormalizationDataSource(4, momentum=0.3, optimizer=optimizer)
    normalization = MPSCNNBatchNormalizationNode(MPSNNImageNode(), source)
    pixels = MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 6, 6, 4)
    reader.save(MPSNNGraph(CPU, normalization.result_image), tmp_path / "model.onnx", pixels)
    KEPT.clear()
    reader.network(tmp_path / "model.onnx", trainable=Kept(optimizer))
    assert [each.momentum for each in KEPT] == [0.3]


def test_a_momentum_that_is_no_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MPSArgumentError, match="momentum must be 0 to 1"):
        TrainableDataSources(lambda device: MPSNNOptimizerAdam(device), momentum=1.5)
    rows = {"g": numbers(4), "h": numbers(4), "m": numbers(4), "v": np.ones(4, np.float32)}
    made = model([node("BatchNormalization", "x g h m v", "y", momentum=1.5)], X, **rows)
    with pytest.raises(MPSOperatorError, match=r"its momentum is 1.5, no share of 0\s+to 1"):
        reader.network(saved(made, tmp_path), trainable=TrainableDataSources(lambda device: MPSNNOptimizerAdam(device)))
    reader.network(tmp_path / "model.onnx")
