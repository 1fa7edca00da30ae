"""Modules of PyTorch in float64 against graphs with their weights, both ways, through files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import openmps as mps
from helpers import assert_close
from in_one_test import in_one_test
from openmps.formats import (
    WeightLayer,
    export_weights,
    import_weights,
    load_tensors,
    network_arrays,
    network_layers,
    save_tensors,
)

DEVICE = mps.mtl_device("cpu")
VALID = mps.MPSNNDefaultPadding(mps.types.MPSNNPaddingMethod.SIZE_VALID_ONLY)
FULL = mps.MPSNNDefaultPadding(mps.types.MPSNNPaddingMethod.SIZE_FULL)
Descriptor = mps.MPSCNNConvolutionDescriptor


def _convolution(node: Any, padding: Any) -> Callable[..., Any]:
    def make(image: Any, label: str, descriptor: Any, arrays: Any) -> Any:
        source = mps.ArrayConvolutionDataSource(
            descriptor, arrays[f"{label}.weights"], arrays.get(f"{label}.biases"), label
        )
        made = node(image, weights=source)
        if padding is not None:
            made.padding_policy = padding
        return made

    return make


_plain = _convolution(mps.MPSCNNConvolutionNode, VALID)
_connected = _convolution(mps.MPSCNNFullyConnectedNode, None)
_transposed = _convolution(mps.MPSCNNConvolutionTransposeNode, FULL)


def _grouped() -> Any:
    descriptor = Descriptor(3, 2, 8, 12)
    descriptor.groups = 4
    return descriptor


def _transpose_descriptor(groups: int = 1) -> Any:
    descriptor = Descriptor(3, 2, 4, 6)
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = 2
    descriptor.groups = groups
    return descriptor


def _sub_pixel() -> Any:
    descriptor = mps.MPSCNNSubPixelConvolutionDescriptor(3, 3, 2, 12)
    descriptor.sub_pixel_scale_factor = 2
    return descriptor


def _batch(image: Any, label: str, channels: int, arrays: Any) -> Any:
    rows = [arrays[f"{label}.{part}"] for part in ("gamma", "beta", "mean", "variance")]
    source = mps.ArrayBatchNormalizationDataSource(channels, *rows, label=label, epsilon=1e-5)
    return mps.MPSCNNBatchNormalizationNode(image, source)


class _Affine:
    """Gamma and beta of an instance normalization."""

    def __init__(self, label: str, arrays: Any) -> None:
        self._label, self._arrays = label, arrays

    def number_of_feature_channels(self) -> int:
        return len(self.gamma())

    def gamma(self) -> Any:
        return self._arrays[f"{self._label}.gamma"]

    def beta(self) -> Any:
        return self._arrays[f"{self._label}.beta"]

    def epsilon(self) -> float:
        return 1e-5

    def label(self) -> str:
        return self._label

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass


def _instance(image: Any, label: str, channels: int, arrays: Any) -> Any:
    return mps.MPSCNNInstanceNormalizationNode(image, _Affine(label, arrays))


def _prelu(image: Any, label: str, channels: int, arrays: Any) -> Any:
    node = mps.MPSCNNNeuronPReLUNode(image, arrays[f"{label}.slopes"])
    node.label = label
    return node


@dataclass(frozen=True)
class Case:
    """A module, its place in a graph, the layer, and the shape of its source, CHW."""

    module: Callable[[], nn.Module]
    make: Callable[..., Any]
    argument: Callable[[], Any]
    layer: Callable[[str, Any], WeightLayer]
    source: tuple[int, int, int]
    after: Callable[[torch.Tensor], torch.Tensor] = lambda y: y
    before: Callable[[torch.Tensor], torch.Tensor] = lambda x: x


CASES = {
    "convolution": Case(
        lambda: nn.Conv2d(3, 5, (2, 3)), _plain, lambda: Descriptor(3, 2, 3, 5), WeightLayer.convolution, (3, 5, 6)
    ),
    "convolution without biases": Case(
        lambda: nn.Conv2d(3, 5, (2, 3), bias=False),
        _plain,
        lambda: Descriptor(3, 2, 3, 5),
        lambda label, descriptor: WeightLayer.convolution(label, descriptor, False),
        (3, 5, 6),
    ),
    "groups": Case(lambda: nn.Conv2d(8, 12, (2, 3), groups=4), _plain, _grouped, WeightLayer.convolution, (8, 5, 6)),
    "depthwise": Case(
        lambda: nn.Conv2d(3, 6, (2, 3), groups=3),
        _plain,
        lambda: mps.MPSCNNDepthWiseConvolutionDescriptor(3, 2, 3, 6),
        WeightLayer.convolution,
        (3, 5, 6),
    ),
    "transposed": Case(
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), 2),
        _transposed,
        _transpose_descriptor,
        WeightLayer.transposed,
        (4, 3, 5),
    ),
    "transposed in groups": Case(
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), 2, groups=2),
        _transposed,
        lambda: _transpose_descriptor(2),
        WeightLayer.transposed,
        (4, 3, 5),
    ),
    "sub-pixels": Case(
        lambda: nn.Conv2d(2, 12, 3),
        _plain,
        _sub_pixel,
        WeightLayer.convolution,
        (2, 6, 5),
        after=lambda y: torch.pixel_shuffle(y, 2),
    ),
    "fully connected": Case(
        lambda: nn.Linear(3 * 4 * 5, 7),
        _connected,
        lambda: Descriptor(5, 4, 3, 7),
        WeightLayer.fully_connected,
        (3, 4, 5),
        before=lambda x: x.flatten(1),
        after=lambda y: y[:, :, None, None],
    ),
    "batch normalization": Case(
        lambda: nn.BatchNorm2d(5), _batch, lambda: 5, WeightLayer.batch_normalization, (5, 3, 4)
    ),
    "instance normalization": Case(
        lambda: nn.InstanceNorm2d(5, affine=True), _instance, lambda: 5, WeightLayer.normalization, (5, 3, 4)
    ),
    "PReLU": Case(lambda: nn.PReLU(5), _prelu, lambda: 5, WeightLayer.prelu, (5, 3, 4)),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples")


def _random_module(case: Case, seed: int) -> nn.Module:
    """Random numbers everywhere, float32 ones, computed with in float64."""
    torch.manual_seed(seed)
    module = case.module()
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if each.is_floating_point():
            each.data = torch.rand_like(each) + 0.5 if name == "running_var" else torch.randn_like(each)
    return module.eval()


def _of_torch(case: Case, module: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return case.after(module.double()(case.before(torch.from_numpy(x)))).numpy()


def _graph(case: Case, arrays: Any) -> Any:
    node = case.make(mps.MPSNNImageNode(), "layer", case.argument(), arrays)
    graph = mps.MPSNNGraph(DEVICE, node.result_image)
    graph.format = mps.types.MPSImageFeatureChannelFormat.FLOAT32
    return graph


def _of_graph(graph: Any, x: np.ndarray) -> np.ndarray:
    command_buffer = DEVICE.new_command_queue().command_buffer()
    images = mps.MPSImageBatch.from_numpy(DEVICE, x.transpose(0, 2, 3, 1).astype(np.float32))
    result = graph.encode_batch(command_buffer, [images])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result.numpy().transpose(0, 3, 1, 2)


def _source(case: Case) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, *case.source)).astype(np.float32).astype(np.float64)


@in_one_test
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_computes_what_the_module_computes(name, legacy, tmp_path):
    case = CASES[name]
    module = _random_module(case, 1)
    path, x = tmp_path / "m.pt", _source(case)
    tensors = {f"layer.{key}": value for key, value in module.state_dict().items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
    layers = {"layer": case.layer("layer", case.argument())}
    arrays = import_weights(load_tensors(path), layers, "pytorch").arrays
    assert_close(_of_graph(_graph(case, arrays), x), _of_torch(case, module, x), 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_module_computes_what_the_graph_computes(name, tmp_path):
    case = CASES[name]
    layer = case.layer("layer", case.argument())
    random = np.random.default_rng(2)
    theirs = {f"layer.{key}": value for key, value in _random_module(case, 3).state_dict().items()}
    arrays = import_weights(theirs, {"layer": layer}, "pytorch").arrays
    arrays = {name: random.random(array.shape, np.float32) + 0.5 for name, array in arrays.items()}
    graph, x = _graph(case, arrays), _source(case)
    for found, array in network_arrays(graph).items():
        np.testing.assert_array_equal(array, arrays[found])
    assert {each.label: each.kind for each in network_layers(graph).values()} == {"layer": layer.kind}
    save_tensors(tmp_path / "m.pt", export_weights(network_arrays(graph), graph, "pytorch").arrays)
    module = case.module().eval()
    read = torch.load(tmp_path / "m.pt", weights_only=True)
    missing = module.load_state_dict({key.removeprefix("layer."): value for key, value in read.items()}, strict=False)
    assert (missing.unexpected_keys, [key for key in missing.missing_keys if key != "num_batches_tracked"]) == ([], [])
    assert_close(_of_torch(case, module, x), _of_graph(graph, x), 1e-5)


def test_batch_normalization_folded_into_the_convolution(tmp_path):
    torch.manual_seed(5)
    for convolution in (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, bias=False), nn.ConvTranspose2d(3, 4, 3, bias=False)):
        module = nn.Sequential(convolution, nn.BatchNorm2d(4, eps=0.125)).eval()
        for each in (*module[1].parameters(), module[1].running_mean, module[1].running_var):
            each.data = torch.rand_like(each) + 0.5
        is_transposed = isinstance(convolution, nn.ConvTranspose2d)
        make = WeightLayer.transposed if is_transposed else WeightLayer.convolution
        layers = {"layer": make("layer", Descriptor(3, 3, 3, 4), True)}
        options: dict[str, Any] = {"names": {"layer": "0"}, "fold": {"layer": "1"}, "epsilon": 0.125}
        mapping = import_weights(module.state_dict(), layers, "pytorch", **options)
        assert [row.array for row in mapping.rows][-4:] == ["layer, folded in"] * 4
        x = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32).astype(np.float64)
        node = (_transposed if is_transposed else _plain)(
            mps.MPSNNImageNode(), "layer", Descriptor(3, 3, 3, 4), mapping.arrays
        )
        graph = mps.MPSNNGraph(DEVICE, node.result_image)
        graph.format = mps.types.MPSImageFeatureChannelFormat.FLOAT32
        with torch.no_grad():
            expected = module.double()(torch.from_numpy(x)).numpy()
        assert_close(_of_graph(graph, x), expected, 1e-5)


def test_an_image_that_is_flattened_in_another_order():
    """``x.permute(0, 3, 2, 1)`` before the flattening: columns, rows, channels."""
    linear = nn.Linear(3 * 4 * 5, 7)
    layers = {"fc": WeightLayer.fully_connected("fc", Descriptor(5, 4, 3, 7))}
    tensors = {f"fc.{key}": value for key, value in linear.state_dict().items()}
    arrays = import_weights(tensors, layers, "pytorch", flatten={"fc": "WHC"}).arrays
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32).astype(np.float64)
    graph = mps.MPSNNGraph(DEVICE, _connected(mps.MPSNNImageNode(), "fc", Descriptor(5, 4, 3, 7), arrays).result_image)
    graph.format = mps.types.MPSImageFeatureChannelFormat.FLOAT32
    with torch.no_grad():
        expected = linear.double()(torch.from_numpy(x).permute(0, 3, 2, 1).flatten(1)).numpy()
    assert_close(_of_graph(graph, x)[:, :, 0, 0], expected, 1e-5)
    back = export_weights(arrays, layers, "pytorch", flatten="WHC").arrays
    np.testing.assert_array_equal(back["fc.weight"], tensors["fc.weight"].numpy())


def test_a_whole_network_of_shared_and_unlabelled_layers():
    shared = mps.ArrayConvolutionDataSource(Descriptor(1, 1, 4, 4), np.eye(4).reshape(4, 1, 1, 4), None, "shared")
    nameless = mps.ArrayConvolutionDataSource(Descriptor(1, 1, 4, 4), np.eye(4).reshape(4, 1, 1, 4))
    image: Any = mps.MPSNNImageNode()
    for source in (shared, nameless, shared):
        image = mps.MPSCNNConvolutionNode(image, source).result_image
    graph = mps.MPSNNGraph(DEVICE, mps.MPSCNNNeuronPReLUNode(image, [0.5] * 4).result_image)
    assert list(network_arrays(graph)) == ["shared.weights", "convolution1.weights", "PReLU1.slopes"]
    twin = mps.ArrayConvolutionDataSource(Descriptor(1, 1, 4, 4), np.eye(4).reshape(4, 1, 1, 4), None, "shared")
    twice = mps.MPSNNGraph(DEVICE, mps.MPSCNNConvolutionNode(image, twin).result_image)
    with pytest.raises(mps.MPSArgumentError, match="layer 'shared' must have a label of its own"):
        network_layers(twice)


def test_slopes_of_a_fused_prelu():
    descriptor = Descriptor(1, 1, 2, 3)
    descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(mps.types.MPSCNNNeuronType.PRELU, data=[1, 2, 3])
    source = mps.ArrayConvolutionDataSource(descriptor, np.ones((3, 1, 1, 2)), None, "conv")
    graph = mps.MPSNNGraph(DEVICE, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image)
    np.testing.assert_array_equal(network_arrays(graph)["conv.slopes"], [1, 2, 3])
    tensors = {"conv.weight": np.ones((3, 2, 1, 1)), "act.weight": np.array([0.25])}
    arrays = import_weights(tensors, graph, "pytorch", names={"conv.slopes": "act.weight"}).arrays
    np.testing.assert_array_equal(arrays["conv.slopes"], [0.25] * 3)
