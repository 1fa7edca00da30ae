"""Group normalization as exporters write it: one operator, or an instance normalization among reshapes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onnx_models import CPU, Array, asked, error, model, node, numbers, ours, saved
from openmps.errors import MPSOperatorError
from openmps.formats import onnx as reader

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
GROUPS, CHANNELS = 2, 8


def _module(*, affine: bool = True) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.GroupNorm(GROUPS, CHANNELS, 1e-3, affine)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3), norm, nn.ReLU()).eval()


def _exported(module: nn.Module, opset: int, folder: Path) -> Any:
    """What the exporter of TorchScript writes, whose decompositions the default one has, too."""
    path = folder / "exported.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(2, 3, 8, 8),), path, dynamo=False, opset_version=opset, input_names=["x"],
            output_names=["y"], dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    return onnx.load(path)


def _by_default(module: Any, *, affine: bool = True, shape: Any = None) -> Any:
    """What the default exporter writes for version 18; ``shape`` is a constant in the place of the source's."""
    nodes = [
        node("Conv", "x w b", "c"),
        node("Reshape", "c split", "s", allowzero=0),
        node("InstanceNormalization", "s ones zeros", "i", epsilon=module[1].eps),
        *([] if shape else [node("Shape", "c", "shape", start=0)]),
        node("Reshape", "i shape", "j", allowzero=0),
        *([node("Mul", "j g", "k"), node("Add", "k h", "l")] if affine else []),
        node("Relu", "l" if affine else "j", "y"),
    ]
    rows = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    constants = {"w": rows["0.weight"], "b": rows["0.bias"], "split": np.array([0, GROUPS, -1])}
    constants |= {"ones": np.ones(GROUPS, np.float32), "zeros": np.zeros(GROUPS, np.float32)}
    if affine:
        constants |= {"g": rows["1.weight"][:, None, None], "h": rows["1.bias"][:, None, None]}
    constants |= {"shape": np.array(shape)} if shape else {}
    return model(nodes, {"x": ["n", 3, 8, 8]}, opset=18, **constants)


def _wanted(module: nn.Module, x: Array) -> Array:
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("how", ["from_torch", 17, 18, 21, "default", "fixed shape"])
def test_group_normalization(how: Any, affine: bool, trainable: bool, tmp_path: Path) -> None:
    module, x = _module(affine=affine), numbers(3, 3, 8, 8)
    if how == "from_torch":
        network = reader.from_torch(module, torch.zeros(1, 3, 8, 8), trainable=trainable)
    else:
        shape = [-1, CHANNELS, 6, 6] if how == "fixed shape" else None
        made = (
            _exported(module, how, tmp_path)
            if isinstance(how, int)
            else _by_default(module, affine=affine, shape=shape)
        )
        network = reader.network(saved(made, tmp_path), trainable=trainable)
    found = network.model(CPU)
    got = found.run({port.name: x for port in found.inputs})
    assert error(next(iter(got.values())), _wanted(module, x)) < 1e-5
    kinds = [type(each).__name__ for each in found.graph.kernels]
    assert kinds[:2] == ["MPSCNNConvolutionNode", "MPSCNNGroupNormalizationNode"]


@pytest.mark.parametrize("how", [17, "default"])
def test_its_numbers_are_one_layer_to_train(how: Any, tmp_path: Path) -> None:
    module = _module()
    made = _exported(module, how, tmp_path) if how == 17 else _by_default(module)
    found = asked(made, tmp_path)
    rows = module.state_dict()
    assert [len(layer) for layer in found] == [2, 2]
    for array, name in zip(found[1], ("1.weight", "1.bias"), strict=True):
        np.testing.assert_array_equal(array, rows[name].numpy())


@pytest.mark.parametrize("change", ["another shape", "another factor", "read twice", "comes out"])
def test_what_is_no_group_normalization_is_refused(change: str, tmp_path: Path) -> None:
    module = _module()
    made = _by_default(module, shape=[-1, 2 * CHANNELS, 6, 3] if change == "another shape" else None)
    if change == "another factor":
        (ones,) = (each for each in made.graph.initializer if each.name == "ones")
        ones.CopyFrom(onnx.numpy_helper.from_array(np.float32([1, 2]), "ones"))
    if change == "read twice":
        made.graph.node.append(node("Relu", "i", "z"))
        made.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    if change == "comes out":
        made.graph.output.append(onnx.helper.make_tensor_value_info("s", 1, None))
    with pytest.raises(MPSOperatorError):
        ours(saved(made, tmp_path))


def test_version_18_has_numbers_of_each_group(tmp_path: Path) -> None:
    nodes = [node("GroupNormalization", "x g h", "y", num_groups=GROUPS)]
    rows = {"g": numbers(GROUPS), "h": numbers(GROUPS, seed=1)}
    made = model(nodes, {"x": ["n", CHANNELS, 5, 5]}, opset=18, **rows)
    x = numbers(2, CHANNELS, 5, 5)
    wide = model(
        nodes, {"x": ["n", CHANNELS, 5, 5]}, opset=21,
        **{name: np.repeat(row, CHANNELS // GROUPS) for name, row in rows.items()},
    )  # fmt: skip
    got = ours(saved(made, tmp_path)).run({"x": x})["y"]
    assert np.array_equal(got, ours(saved(wide, tmp_path)).run({"x": x})["y"])
    assert asked(made, tmp_path) == []  # a layer's numbers are those of channels
