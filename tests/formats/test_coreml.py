"""Core ML's packages and files as networks, against torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import coreml_packages
from coreml_models import borders, neural, op, ours, program, results

if find_spec("coremltools") is None:  # to import it takes seconds
    pytest.skip("needs coremltools", allow_module_level=True)

CLOSE = 1e-5
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1, 4, 6, 6)).astype(np.float32)
ROW, POSITIVE = (RANDOM.normal(size=4).astype(np.float32), RANDOM.uniform(0.5, 2, 4).astype(np.float32))


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", coreml_packages.PACKAGES)
def test_packages_that_coremltools_made_give_what_torch_does(name: str, tmp_path: Path) -> None:
    known = np.load(coreml_packages.RESULTS)
    (found,) = ours(coreml_packages.packed(name, tmp_path)).run({"x": known[f"{name}_x"]}).values()
    wanted = known[f"{name}_y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE * np.abs(wanted).max())


SHAPE = (1, 4, 6, 6)
POINTWISE: list[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = [
    (op("relu", "relu", SHAPE), torch.relu),
    (op("relu6", "relu6", SHAPE), F.relu6),
    (op("leaky_relu", "leaky", SHAPE, alpha=0.2), lambda x: F.leaky_relu(x, 0.2)),
    (op("clamped_relu", "clamped", SHAPE, alpha=0.3, beta=0.7), lambda x: F.leaky_relu(x, 0.3).clamp(max=0.7)),
    (op("prelu", "prelu", SHAPE, alpha=ROW), lambda x: F.prelu(x, torch.from_numpy(ROW))),
    (op("elu", "elu", SHAPE, alpha=0.5), lambda x: F.elu(x, 0.5)),
    (op("sigmoid", "sigmoid", SHAPE), torch.sigmoid),
    (op("sigmoid_hard", "hard", SHAPE, alpha=0.3, beta=0.4), lambda x: (0.3 * x + 0.4).clamp(0, 1)),
    (op("scaled_tanh", "tanh", SHAPE, alpha=2.0, beta=0.5), lambda x: 2 * torch.tanh(0.5 * x)),
    (op("softplus", "plus", SHAPE), F.softplus),
    (op("softsign", "sign", SHAPE), F.softsign),
    (op("silu", "silu", SHAPE), F.silu),
    (op("gelu", "gelu", SHAPE, mode="EXACT"), F.gelu),
    (op("gelu", "tanh gelu", SHAPE, mode="TANH_APPROXIMATION"), lambda x: F.gelu(x, approximate="tanh")),
    (op("gelu", "sigmoid gelu", SHAPE, mode="SIGMOID_APPROXIMATION"), lambda x: x * torch.sigmoid(1.702 * x)),
    (op("linear_activation", "line", SHAPE, alpha=3.0, beta=-1.0), lambda x: 3 * x - 1),
    (op("clip", "clip", SHAPE, alpha=-0.5, beta=0.25), lambda x: x.clamp(-0.5, 0.25)),
    (op("threshold", "threshold", SHAPE, alpha=0.1), lambda x: x.clamp(min=0.1)),
    (op("square", "square", SHAPE), torch.square),
    (op("abs", "abs", SHAPE), torch.abs),
    (op("exp", "exp", SHAPE), torch.exp),
    (op("log", "log", SHAPE, x="%exp", epsilon=0.5), lambda x: torch.log(x.exp() + 0.5)),
    (op("rsqrt", "rsqrt", SHAPE, x="%exp", epsilon=0.5), lambda x: torch.rsqrt(x.exp() + 0.5)),
    (op("inverse", "inverse", SHAPE, x="%exp", epsilon=0.5), lambda x: 1 / (x.exp() + 0.5)),
    (op("real_div", "quotient", SHAPE, y="%exp"), lambda x: x / x.exp()),
    (op("sub", "difference", SHAPE, x=1.0, y="%x"), lambda x: 1 - x),
    (op("softmax", "softmax", SHAPE, axis=1), lambda x: torch.softmax(x, 1)),
    (op("batch_norm", "norm", SHAPE, mean=ROW, variance=POSITIVE, epsilon=0.01), lambda x: (x - _planes(ROW)) / (
        _planes(POSITIVE) + 0.01).sqrt()),
    (op("instance_norm", "instance", SHAPE, gamma=ROW, beta=POSITIVE, epsilon=0.01), lambda x: F.instance_norm(
        x, weight=torch.from_numpy(ROW), bias=torch.from_numpy(POSITIVE), eps=0.01)),
    (op("layer_norm", "layer", SHAPE, axes=[1], gamma=ROW, beta=POSITIVE, epsilon=0.01), lambda x: F.layer_norm(
        x.movedim(1, 3), [4], torch.from_numpy(ROW), torch.from_numpy(POSITIVE), 0.01).movedim(3, 1)),
    (op("layer_norm", "layer of images", SHAPE, axes=[-3, -2, -1]), lambda x: F.layer_norm(x, [4, 6, 6])),
    (op("local_response_norm", "response", SHAPE, size=3, alpha=0.2, beta=0.6, k=2.0), lambda x: F.local_response_norm(
        x, 3, 0.2, 0.6, 2.0)),
]  # fmt: skip


def _planes(row: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(row).reshape(1, -1, 1, 1)


def test_functions_of_a_number_and_normalizations(tmp_path: Path) -> None:
    _compare(POINTWISE, tmp_path)


def _compare(cases: list[tuple[Any, Any]], folder: Path, x: np.ndarray = X) -> None:
    """Operations of one program, each an output of it, beside what torch does."""
    found = results(program([each for each, _ in cases], [each.output for each, _ in cases], x.shape), x, folder)
    for operation, function in cases:
        wanted = function(torch.from_numpy(x)).numpy()
        atol = CLOSE * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found[operation.output], wanted, rtol=0, atol=atol, err_msg=operation.output)


W, D, T, B = numbers(5, 4, 3, 3), numbers(8, 1, 2, 3), numbers(4, 3, 3, 2), numbers(5)
_W, _D, _T, _B = map(torch.from_numpy, (W, D, T, B))
WINDOWS: list[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = [
    (op("conv", "plain", (1, 5, 4, 4), weight=W, bias=B), lambda x: F.conv2d(x, _W, _B)),
    (op("conv", "uneven", (1, 5, 3, 4), weight=W, strides=[3, 2], pad_type="custom", pad=[2, 1, 0, 3]),
     lambda x: F.conv2d(F.pad(x, (0, 3, 2, 1)), _W, stride=(3, 2))),
    (op("conv", "same", (1, 5, 3, 3), weight=W, strides=[2, 2], pad_type="same"),
     lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), _W, stride=2)),
    (op("conv", "lower", (1, 5, 3, 3), weight=W, strides=[2, 2], pad_type="same_lower"),
     lambda x: F.conv2d(F.pad(x, (1, 0, 1, 0)), _W, stride=2)),
    (op("conv", "depthwise", (1, 8, 5, 2), weight=D, groups=4, dilations=[1, 2]),
     lambda x: F.conv2d(x, _D, groups=4, dilation=(1, 2))),
    (op("conv_transpose", "back", (1, 3, 11, 12), weight=T, strides=[2, 2], pad_type="custom", pad=[1, 1, 0, 0],
        output_shape=[1, 3, 11, 12]), lambda x: F.conv_transpose2d(x, _T, stride=2, padding=(1, 0))),
    (op("conv_transpose", "beyond", (1, 3, 14, 12), weight=T, strides=[2, 2], pad_type="custom", pad=[0, 0, 0, 0],
        output_shape=[1, 3, 14, 12]), lambda x: F.conv_transpose2d(x, _T, stride=2, output_padding=(1, 0))),
    (op("max_pool", "max", (1, 4, 4, 3), kernel_sizes=[3, 2], strides=[2, 2], pad_type="custom", pad=[1, 1, 0, 0],
        ceil_mode=True), lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True)),
    (op("avg_pool", "mean", (1, 4, 3, 3), kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1]),
     lambda x: F.avg_pool2d(x, 3, 2, 1)),
    (op("avg_pool", "inner mean", (1, 4, 3, 3), kernel_sizes=[3, 3], strides=[2, 2], pad_type="same",
        exclude_padding_from_average=True),
     lambda x: F.avg_pool2d(F.pad(x, (0, 1, 0, 1)), 3, 2) / F.avg_pool2d(F.pad(x * 0 + 1, (0, 1, 0, 1)), 3, 2)),
    (op("l2_pool", "norm", (1, 4, 3, 3), kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid"),
     lambda x: F.lp_pool2d(x, 2, 2)),
    (op("upsample_nearest_neighbor", "repeat", (1, 4, 12, 18), scale_factor_height=2, scale_factor_width=3),
     lambda x: F.interpolate(x, scale_factor=(2, 3))),
    (op("upsample_bilinear", "corners", (1, 4, 12, 18), scale_factor_height=2.0, scale_factor_width=3.0),
     lambda x: F.interpolate(x, scale_factor=(2, 3), mode="bilinear", align_corners=True)),
    (op("resize_bilinear", "sampled", (1, 4, 9, 4), target_size_height=9, target_size_width=4,
        sampling_mode="UNALIGN_CORNERS"), lambda x: F.interpolate(x, (9, 4), mode="bilinear")),
    (op("resize", "resized", (1, 4, 12, 6), shape=[1, 12, 0], resized_dims=2, interpolation_mode="NEAREST_NEIGHBOR"),
     lambda x: F.interpolate(x, (12, 6))),
    (op("pixel_shuffle", "shuffled", (1, 1, 12, 12), upscale_factor=2), lambda x: F.pixel_shuffle(x, 2)),
    (op("pixel_unshuffle", "unshuffled", (1, 16, 3, 3), downscale_factor=2), lambda x: F.pixel_unshuffle(x, 2)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
def test_windows_and_sizes(tmp_path: Path) -> None:
    _compare(WINDOWS, tmp_path)


M, N, MB = numbers(7, 144), numbers(4, 5), numbers(7)
SHAPES: list[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = [
    (op("reshape", "flat", (1, 144), shape=[1, -1]), lambda x: x.reshape(1, -1)),
    (op("linear", "dense", (1, 7), x="%flat", weight=M, bias=MB), lambda x: F.linear(
        x.flatten(1), torch.from_numpy(M), torch.from_numpy(MB))),
    (op("transpose", "turned", (1, 6, 6, 4), perm=[0, 2, 3, 1]), lambda x: x.permute(0, 2, 3, 1)),
    (op("matmul", "tokens", (1, 6, 6, 5), x="%turned", y=N), lambda x: x.permute(0, 2, 3, 1) @ torch.from_numpy(N)),
    (op("reduce_mean", "mean", (1, 4), axes=[2, 3], keep_dims=False), lambda x: x.mean((2, 3))),
    (op("expand_dims", "expanded", (1, 4, 1), x="%mean", axes=[2]), lambda x: x.mean((2, 3))[:, :, None]),
    (op("reduce_max", "max", (1, 1, 6, 6), axes=[1], keep_dims=True), lambda x: x.amax(1, keepdim=True)),
    (op("reduce_l2_norm", "length", (1, 4, 6), axes=[3], keep_dims=False), lambda x: x.norm(dim=3)),
    (op("abs", "positive", SHAPE), torch.abs),
    (op("reduce_l1_norm", "sum", (1, 4), axes=[2, 3], keep_dims=False), lambda x: x.abs().sum((2, 3))),
    (op("reduce_log_sum", "logarithm", (1, 4, 6), x="%positive", axes=[3], keep_dims=False), lambda x: x.abs().sum(
        3).log()),
    (op("reduce_log_sum_exp", "soft", (1, 6), axes=[1, 3], keep_dims=False), lambda x: x.logsumexp((1, 3))),
    (op("reduce_argmax", "place", (1, 6, 6), axis=1, keep_dims=False), lambda x: x.argmax(1)),
    (op("concat", "joined", (1, 5, 6, 6), values=("%x", "%max"), axis=1), lambda x: torch.cat(
        [x, x.amax(1, keepdim=True)], 1)),
    (op("slice_by_index", "part", (1, 2, 6, 3), begin=[0, 1, 0, -5], end=[0, 3, 0, 6], stride=[1, 1, 1, 2],
        begin_mask=[True, False, True, False], end_mask=[True, False, True, False]), lambda x: x[:, 1:3, :, 1:6:2]),
    (op("slice_by_index", "row", (1, 4, 6), begin=[0, 0, 5, 0], end=[1, 4, 6, 6],
        squeeze_mask=[False, False, True, False]), lambda x: x[:, :, 5]),
    (op("slice_by_size", "block", (1, 4, 2, 5), begin=[0, 0, 3, 1], size=[1, 4, 2, -1]), lambda x: x[:, :, 3:5, 1:]),
    (op("crop", "cropped", (1, 4, 3, 5), crop_height=[1, 2], crop_width=[0, 1]), lambda x: x[:, :, 1:4, :5]),
    (op("pad", "padded", (1, 4, 9, 7), pad=[2, 1, 1, 0], mode="constant", constant_val=0.5), lambda x: F.pad(
        x, (1, 0, 2, 1), value=0.5)),
    (op("gather", "chosen", (1, 3, 6, 6), indices=[3, 0, 0], axis=1), lambda x: x[:, [3, 0, 0]]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
def test_shapes_reductions_and_matrices(tmp_path: Path) -> None:
    _compare(SHAPES, tmp_path)


# --- neural networks --------------------------------------------------------------------------------------------------

K, G, R = numbers(8, 4, 3, 3), numbers(4, 2, 3, 3), numbers(10, 8 * 3 * 3)
LAYERS: dict[str, tuple[list[tuple[str, str, dict[str, Any]]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "a classifier": ([
        ("convolution", "c", {"outputChannels": 8, "kernelChannels": 4, "kernelSize": [3, 3], "stride": [2, 2],
                              "weights": K, "valid__paddingAmounts": borders((1, 1), (2, 0)), "hasBias": True,
                              "bias": np.repeat(ROW, 2)}),
        ("batchnorm", "n", {"channels": 8, "gamma": np.repeat(ROW, 2), "beta": np.repeat(ROW, 2), "mean": np.repeat(
            ROW, 2), "variance": np.repeat(POSITIVE, 2), "epsilon": 0.1}),
        ("activation", "a", {"PReLU__alpha": np.repeat(ROW, 2)}),
        ("flatten", "f", {"mode": 0}),
        ("innerProduct", "i", {"inputChannels": 72, "outputChannels": 10, "weights": R}),
        ("softmax", "s", {}),
    ], lambda x: torch.softmax(F.prelu(F.batch_norm(
        F.conv2d(F.pad(x, (2, 0, 1, 1)), torch.from_numpy(K), torch.from_numpy(np.repeat(ROW, 2)), 2),
        *(torch.from_numpy(np.repeat(each, 2)) for each in (ROW, POSITIVE, ROW, ROW)), eps=0.1,
    ), torch.from_numpy(np.repeat(ROW, 2))).flatten(1) @ torch.from_numpy(R).T, 1)[..., None, None]),
    "transposed in groups": ([
        ("convolution", "t", {"outputChannels": 4, "kernelChannels": 4, "nGroups": 2, "kernelSize": [3, 3],
                              "weights": G, "stride": [2, 2], "valid__paddingAmounts": borders((1, 0), (0, 1)),
                              "isDeconvolution": True}),
        ("unary", "u", {"type": 6, "scale": 2.0, "shift": -0.5}),
        ("pooling", "p", {"type": 1, "kernelSize": [3, 3], "stride": [2, 2], "avgPoolExcludePadding": True,
                          "valid__paddingAmounts": borders((1, 1), (1, 1))}),
    ], lambda x: F.avg_pool2d((2 * F.conv_transpose2d(x, torch.from_numpy(G), stride=2, groups=2)[
        :, :, 1:, :-1] - 0.5).abs(), 3, 2, 1, count_include_pad=False)),
    "arithmetic and a reshape by pixels": ([
        ("scale", "s", {"shapeScale": [4, 1, 1], "scale": ROW, "hasBias": True, "shapeBias": [1], "bias": ROW[:1]}),
        ("add", "d", {"input": ["s", "x"]}),
        ("multiply", "m", {"alpha": 0.5}),
        ("padding", "q", {"replication": None, "paddingAmounts": borders((0, 1), (2, 0))}),
        ("crop", "o", {"cropAmounts": borders((1, 0), (0, 2))}),
        ("upsample", "v", {"scalingFactor": [2, 2], "mode": 1, "linearUpsampleMode": 2}),
        ("slice", "l", {"startIndex": 1, "endIndex": -1, "stride": 1, "axis": 0}),
        ("reshape", "r", {"targetShape": [4, 6, 12], "mode": 1}),
    ], lambda x: F.interpolate(F.pad(0.5 * (x * _planes(ROW) + float(ROW[0]) + x), (2, 0, 0, 1), mode="replicate")[
        :, :, 1:, :-2], scale_factor=2, mode="bilinear")[:, 1:3].permute(0, 2, 3, 1).reshape(1, 6, 12, 4).permute(
        0, 3, 1, 2)),
    "layer normalization": ([
        ("permute", "p", {"axis": [0, 2, 3, 1]}),
        ("layerNormalization", "w", {"normalizedShape": [4], "gamma": ROW, "beta": POSITIVE, "eps": 0.01}),
        ("permute", "q", {"axis": [0, 3, 1, 2]}),
        ("layerNormalization", "i", {"normalizedShape": [4, 6, 6], "eps": 0.5}),
    ], lambda x: F.layer_norm(F.layer_norm(x.movedim(1, 3), [4], torch.from_numpy(ROW), torch.from_numpy(
        POSITIVE), 0.01).movedim(3, 1), [4, 6, 6], eps=0.5)),
    "a whole image": ([
        ("split", "h", {"output": ["h0", "h1"]}),
        ("concat", "k", {"input": ["h1", "h0"]}),
        ("reorganizeData", "g", {"mode": 2, "blockSize": 2}),
        ("resizeBilinear", "z", {"targetSize": [6, 6], "mode__samplingMethod": 0, "input": ["k"]}),
        ("reduce", "e", {"mode": 6, "axis": 1}),
    ], lambda x: torch.cat([x[:, 2:], x[:, :2]], 1).square().sum((2, 3), keepdim=True).sqrt()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
@pytest.mark.parametrize("name", LAYERS)
def test_neural_networks_give_what_torch_does(name: str, tmp_path: Path) -> None:
    layers, function = LAYERS[name]
    pair = np.concatenate([X, X[:, ::-1]])
    (found,) = results(neural(layers), pair, tmp_path).values()
    wanted = function(torch.from_numpy(pair[:1])).numpy()
    np.testing.assert_allclose(found[:1], wanted, rtol=0, atol=CLOSE * np.abs(wanted).max())
    assert len(found) == 2  # of C, H, W the batch varies


def _packed_layer(numbers_of: Callable[[Any], None]) -> list[tuple[str, str, dict[str, Any]]]:
    more = {"outputChannels": 2, "kernelChannels": 4, "kernelSize": [1, 1], "weights": numbers_of}
    return [("convolution", "c", more)]


@pytest.mark.parametrize("packing", ["float16", "linear", "table"])
def test_weights_of_neural_networks_are_unpacked(packing: str, tmp_path: Path) -> None:
    places = np.array([[5, 0, 7, 1], [2, 3, 6, 4]])
    bits = "".join(f"{place:03b}" for place in places.reshape(-1))  # the highest bit first

    def put(weights: Any) -> None:
        if packing == "float16":
            weights.float16Value = places.astype("<f2").tobytes()
            return
        weights.rawValue, weights.quantization.numberOfBits = int(bits, 2).to_bytes(3, "big"), 3
        if packing == "table":
            weights.quantization.lookupTableQuantization.floatValue.extend(table.tolist())
        else:
            weights.quantization.linearQuantization.scale.extend([0.5, 2.0])
            weights.quantization.linearQuantization.bias.extend([-1.0, 3.0])

    table = np.linspace(-1, 3, 8).astype(np.float32)
    wanted = {"float16": places, "table": table[places], "linear": places * [[0.5], [2.0]] + [[-1.0], [3.0]]}[packing]
    (found,) = results(neural(_packed_layer(put)), X, tmp_path).values()
    np.testing.assert_allclose(found, np.einsum("oc,nchw->nohw", wanted, X), rtol=0, atol=1e-4)
