"""Names and orders of axes: each framework's by the index of every number, and what is said where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps import MPSArgumentError, MPSCNNConvolutionDescriptor, MPSTypeError, MPSWeightsError
from openmps.formats import WeightLayer, export_weights, import_weights, network_layers
from openmps.kernels.convolution import MPSCNNDepthWiseConvolutionDescriptor, MPSCNNSubPixelConvolutionDescriptor

H, W = 2, 3


def _sub_pixel() -> Any:
    descriptor = MPSCNNSubPixelConvolutionDescriptor(W, H, 5, 12)
    descriptor.sub_pixel_scale_factor = 2
    return descriptor


def _in_groups() -> Any:
    descriptor = MPSCNNConvolutionDescriptor(W, H, 6, 4)
    descriptor.groups = 2
    return descriptor


LAYERS = {
    "convolution": WeightLayer.convolution("x", MPSCNNConvolutionDescriptor(W, H, 5, 4), True),
    "depthwise": WeightLayer.convolution("x", MPSCNNDepthWiseConvolutionDescriptor(W, H, 3, 6), True),
    "transposed": WeightLayer.transposed("x", MPSCNNConvolutionDescriptor(W, H, 5, 4), True),
    "connected": WeightLayer.fully_connected("x", MPSCNNConvolutionDescriptor(W, H, 5, 4), True),
    "sub-pixel": WeightLayer.convolution("x", _sub_pixel(), True),
}
SHAPES = {
    "convolution": (4, H, W, 5),
    "depthwise": (6, H, W, 1),
    "transposed": (4, H, W, 5),
    "connected": (4, H, W, 5),
    "sub-pixel": (12, H, W, 5),
}
# Where the number W[o, y, x, i] of the framework lies in the array of another one, by the formula of its documentation.
RULES: dict[tuple[str, str], Any] = {
    # TensorFlow: conv2d [H, W, I, O]; depthwise_conv2d [H, W, C, m], result k m + q; conv2d_transpose [H, W, O, I],
    # which scatters; Dense [inputs, outputs] after Flatten of an NHWC image; depth_to_space as the framework's.
    ("keras", "convolution"): ((H, W, 5, 4), lambda o, y, x, i: (y, x, i, o)),
    ("keras", "depthwise"): ((H, W, 3, 2), lambda o, y, x, i: (y, x, o // 2, o % 2)),
    ("keras", "transposed"): ((H, W, 4, 5), lambda o, y, x, i: (H - 1 - y, W - 1 - x, o, i)),
    ("keras", "connected"): ((H * W * 5, 4), lambda o, y, x, i: ((y * W + x) * 5 + i, o)),
    ("keras", "sub-pixel"): ((H, W, 5, 12), lambda o, y, x, i: (y, x, i, o)),
    # MLX: conv2d [O, H, W, I / groups]; conv_transpose2d [O, H, W, I], which scatters; Linear [outputs, inputs].
    ("mlx", "convolution"): ((4, H, W, 5), lambda o, y, x, i: (o, y, x, i)),
    ("mlx", "depthwise"): ((6, H, W, 1), lambda o, y, x, i: (o, y, x, i)),
    ("mlx", "transposed"): ((4, H, W, 5), lambda o, y, x, i: (o, H - 1 - y, W - 1 - x, i)),
    ("mlx", "connected"): ((4, H * W * 5), lambda o, y, x, i: (o, (y * W + x) * 5 + i)),
    ("mlx", "sub-pixel"): ((12, H, W, 5), lambda o, y, x, i: (o, y, x, i)),
    ("openmps", "convolution"): ((4, H, W, 5), lambda o, y, x, i: (o, y, x, i)),
    # PyTorch: Conv2d [O, I / groups, H, W]; ConvTranspose2d [I, O, H, W]; Linear after flatten of NCHW; pixel_shuffle
    # has the channel outermost.
    ("pytorch", "convolution"): ((4, 5, H, W), lambda o, y, x, i: (o, i, y, x)),
    ("pytorch", "depthwise"): ((6, 1, H, W), lambda o, y, x, i: (o, i, y, x)),
    ("pytorch", "transposed"): ((5, 4, H, W), lambda o, y, x, i: (i, o, H - 1 - y, W - 1 - x)),
    ("pytorch", "connected"): ((4, 5 * H * W), lambda o, y, x, i: (o, (i * H + y) * W + x)),
    ("pytorch", "sub-pixel"): ((12, 5, H, W), lambda o, y, x, i: ((o % 3) * 4 + o // 3, i, y, x)),
}
NAMES = {
    "keras": ("x/kernel", "x/bias"),
    "mlx": ("x.weight", "x.bias"),
    "pytorch": ("x.weight", "x.bias"),
    "openmps": ("x.weights", "x.biases"),
}


def _own(kind: str, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    shape = SHAPES[kind]
    return {
        "x.weights": np.arange(np.prod(shape), dtype=dtype).reshape(shape),
        "x.biases": np.arange(shape[0], dtype=dtype),
    }


@in_one_test
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize(("layout", "kind"), RULES)
def test_every_number_is_where_the_framework_has_it(layout, kind, dtype):
    shape, where = RULES[layout, kind]
    own, layers = _own(kind, dtype), {"x": LAYERS[kind]}
    mapping = export_weights(own, layers, layout)
    assert tuple(mapping.arrays) == NAMES[layout]
    weights, biases = mapping.arrays.values()
    assert weights.shape == shape
    for index in np.ndindex(*SHAPES[kind]):
        assert weights[where(*index)] == own["x.weights"][index]
    order = [(o % 3) * 4 + o // 3 if (layout, kind) == ("pytorch", "sub-pixel") else o for o in range(len(biases))]
    assert [biases[place] for place in order] == list(own["x.biases"])
    back = import_weights(mapping.arrays, layers, layout)
    for name, array in own.items():
        assert back.arrays[name].dtype == array.dtype == mapping.arrays[NAMES[layout][name == "x.biases"]].dtype
        assert back.arrays[name].tobytes() == array.tobytes()


@pytest.mark.filterwarnings("ignore:.*Apple devices need multiples")
def test_groups_of_a_transposed_convolution():
    layers = {"x": WeightLayer.transposed("x", _in_groups(), False)}
    own = {"x.weights": np.arange(4 * H * W * 3, dtype=np.float32).reshape(4, H, W, 3)}
    weights = export_weights(own, layers, "pytorch").arrays["x.weight"]
    assert weights.shape == (6, 2, H, W)
    for o, y, x, i in np.ndindex(4, H, W, 3):
        assert weights[(o // 2) * 3 + i, o % 2, H - 1 - y, W - 1 - x] == own["x.weights"][o, y, x, i]
    with pytest.raises(MPSArgumentError, match="Keras has no transposed convolution in groups"):
        export_weights(own, layers, "keras")


NORMALIZED = {
    "keras": {"gamma": "n/gamma", "beta": "n/beta", "mean": "n/moving_mean", "variance": "n/moving_variance"},
    "pytorch": {"gamma": "n.weight", "beta": "n.bias", "mean": "n.running_mean", "variance": "n.running_var"},
    "mlx": {"gamma": "n.weight", "beta": "n.bias", "mean": "n.running_mean", "variance": "n.running_var"},
    "openmps": {"gamma": "n.gamma", "beta": "n.beta", "mean": "n.mean", "variance": "n.variance"},
}


@pytest.mark.parametrize("layout", NORMALIZED)
def test_batch_normalization(layout):
    own = {f"n.{part}": np.full(3, place, np.float32) for place, part in enumerate(NORMALIZED[layout])}
    layers = {"n": WeightLayer.batch_normalization("n", 3)}
    found = export_weights(own, layers, layout).arrays
    assert {name: array[0] for name, array in found.items()} == {
        name: place for place, name in enumerate(NORMALIZED[layout].values())
    }
    counted = {**found, "n.num_batches_tracked": np.array(7)}
    mapping = import_weights(counted, layers, layout)
    assert mapping.left == ("n.num_batches_tracked",)
    assert {name: array.tolist() for name, array in mapping.arrays.items()} == {
        name: array.tolist() for name, array in own.items()
    }


def test_slopes():
    layers = {"p": WeightLayer.prelu("p", 3)}
    own = {"p.slopes": np.arange(3, dtype=np.float32)}
    assert export_weights(own, layers, "keras").arrays["p/alpha"].shape == (1, 1, 3)
    for alpha in (np.arange(3.0).reshape(1, 1, 3), np.arange(3.0)):
        assert import_weights({"p/alpha": alpha}, layers, "keras").arrays["p.slopes"].tolist() == [0, 1, 2]
    one = import_weights({"p.weight": np.array([0.5])}, layers, "pytorch")
    assert one.arrays["p.slopes"].tolist() == [0.5] * 3
    assert "one number, the slope of all channels" in str(one)


# --- names ------------------------------------------------------------------------------------------------------------

CONVOLUTION = {"conv": MPSCNNConvolutionDescriptor(3, 3, 2, 4)}
WEIGHT, BIAS = np.zeros((4, 2, 3, 3), np.float32), np.ones(4, np.float32)


def test_names_in_files_do_nothing_to_a_terminal():
    tensors = {"conv.weight": WEIGHT, "a\x1b[31m\n": BIAS}
    with pytest.raises(MPSWeightsError, match=r"tensor a\\x1b\[31m\\n \(4\) is of no layer"):
        import_weights(tensors, CONVOLUTION, "pytorch")
    mapping = import_weights(tensors, CONVOLUTION, "pytorch", leave=["a*"])
    assert str(mapping).splitlines()[-1] == r"left out: a\x1b[31m\n"


def test_names_that_differ_are_given():
    tensors = {"features.0.weight": WEIGHT, "features.0.bias": BIAS}
    for names in ({"conv": "features.0"}, {"conv.weights": "features.0.weight", "conv.biases": "features.0.bias"}):
        assert list(import_weights(tensors, CONVOLUTION, "pytorch", names=names).arrays) == [
            "conv.weights",
            "conv.biases",
        ]
    back = export_weights(
        import_weights(tensors, CONVOLUTION, "pytorch", names=names).arrays, CONVOLUTION, "pytorch", names=names
    )
    assert set(back.arrays) == set(tensors)


def test_what_stands_before_all_names():
    tensors = {"module.conv.weight": WEIGHT, "module.conv.bias": BIAS, "epoch.weight": BIAS}
    arrays = import_weights(tensors, CONVOLUTION, "pytorch", prefix="module.", leave=["epoch.*"]).arrays
    assert list(arrays) == ["conv.weights", "conv.biases"]


def test_kerass_names_of_old():
    kernel = WEIGHT.transpose(2, 3, 1, 0)
    for name in ("conv/kernel:0", "conv.kernel", "conv/kernel"):
        assert import_weights({name: kernel}, CONVOLUTION, "keras").arrays["conv.weights"].shape == (4, 3, 3, 2)
    depthwise = {"d": MPSCNNDepthWiseConvolutionDescriptor(3, 3, 2, 2)}
    for name in ("d/depthwise_kernel:0", "d/kernel"):
        assert import_weights({name: np.zeros((3, 3, 2, 1))}, depthwise, "keras").arrays["d.weights"].shape == (
            2,
            3,
            3,
            1,
        )


def test_biases_of_zero_are_asked_for():
    layers = {"conv": WeightLayer.convolution("conv", CONVOLUTION["conv"], True)}
    with pytest.raises(MPSWeightsError, match=r"conv\.biases \(4 O\) finds no tensor conv\.bias"):
        import_weights({"conv.weight": WEIGHT}, layers, "pytorch")
    mapping = import_weights({"conv.weight": WEIGHT}, layers, "pytorch", names={"conv.biases": ""})
    assert mapping.arrays["conv.biases"].tolist() == [0] * 4
    assert "0, as asked for" in str(mapping)


def test_all_that_does_not_fit_is_listed_and_nothing_guessed():
    layers = {
        "conv": MPSCNNConvolutionDescriptor(3, 3, 2, 4),
        "norm": WeightLayer.batch_normalization("norm", 4),
        "fc": WeightLayer.fully_connected("fc", MPSCNNConvolutionDescriptor(2, 2, 4, 5), True),
    }
    tensors = {
        "conv.weight": WEIGHT.transpose(2, 3, 1, 0),
        "norm.gamma": BIAS,
        "norm.bias": BIAS,
        "norm.running_mean": BIAS[:3],
        "norm.running_var": np.ones(4, np.int32),
        "fc.weight": np.zeros((16, 5), np.float32),
        "linear.bias": np.zeros(5, np.float32),
    }
    with pytest.raises(MPSWeightsError) as caught:
        import_weights(tensors, layers, "pytorch")
    assert caught.value.problems == (
        "conv.weights takes conv.weight, 3x3x2x4, must be 4x2x3x3 OIHW; it would fit transposed, in the layout keras",
        "norm.gamma (4 C) finds no tensor norm.weight; norm.gamma is its name in the layout openmps",
        "norm.mean takes norm.running_mean, 3, must be 4 C",
        "norm.variance takes norm.running_var, of int32, must be of floating-point numbers",
        "fc.weights takes fc.weight, 16x5, must be 5x16 O(CHW) or 5x4x2x2 OCHW; "
        "it would fit transposed, in the layout keras",
        "fc.biases (5 O) finds no tensor fc.bias; of this shape: linear.bias",
        "tensor norm.gamma (4) is of no layer",
        "tensor linear.bias (5) is of no layer",
    )
    for problem in caught.value.problems:
        assert problem in str(caught.value)


def test_an_export_of_other_arrays():
    arrays = {"conv.weights": np.zeros((4, 3, 3, 3)), "other.weights": BIAS}
    with pytest.raises(MPSWeightsError) as caught:
        export_weights(arrays, {**CONVOLUTION, "norm": WeightLayer.prelu("norm", 2)}, "keras")
    assert caught.value.problems == (
        "conv.weights is 4x3x3x3, must be 4x3x3x2",
        "norm.slopes is missing, must be 2",
        "other.weights is of no layer",
    )
    both = {"a": CONVOLUTION["conv"], "b": CONVOLUTION["conv"]}
    own = {"a.weights": np.zeros((4, 3, 3, 2)), "b.weights": np.zeros((4, 3, 3, 2))}
    with pytest.raises(MPSWeightsError, match=r"b\.weights would have the name c\.weight, which is taken"):
        export_weights(own, both, "pytorch", names={"a": "c", "b": "c"})


@pytest.mark.parametrize("names", [{"cnov": "x"}, {"conv": ""}, {"conv.biases": ""}])
def test_an_export_under_names_that_are_none(names):
    with pytest.raises(MPSArgumentError, match="export_weights: names must name a"):
        export_weights({"conv.weights": np.zeros((4, 3, 3, 2))}, CONVOLUTION, "pytorch", names=names)


@in_one_test
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "caffe"}, "layout must be one of openmps, pytorch, keras, mlx, got 'caffe'"),
        ({"names": {"cnov": "x"}}, "names must name a layer of the network or one of its arrays: conv, got 'cnov'"),
        ({"names": {"conv": ""}}, "names must name a tensor: only biases may be left at 0, got 'conv'"),
        ({"names": {"conv.weights": "nope"}}, r"names must name tensors of the file, for conv\.weights, got 'nope'"),
        ({"leave": ["x*"]}, r"leave must match names of tensors that no layer takes, got 'x\*'"),
        ({"leave": ["conv*"]}, r"leave must match names of tensors that no layer takes, got 'conv\*'"),
        ({"prefix": "net."}, r"prefix must stand before names of tensors, got 'net\.'"),
        ({"flatten": {"conv": "CHW"}}, "flatten must name fully connected layers: the network has none, got 'conv'"),
        ({"epsilon": 1.0}, "epsilon must be left out without fold"),
        ({"fold": {"conv": "bn"}}, "epsilon must be given with fold"),
        ({"fold": {"nope": "bn"}, "epsilon": 1.0}, "fold must name convolutions with biases"),
        ({"fold": {"conv": "bn"}, "epsilon": -1.0}, "epsilon must be 0 or more, got -1"),
        ({"fold": {"conv": "bn"}, "epsilon": "1"}, "epsilon must be a number, got '1'"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises((MPSArgumentError, MPSTypeError), match=message):
        import_weights({"conv.weight": WEIGHT}, CONVOLUTION, **{"layout": "pytorch", **options})


def test_folding_that_is_no_number():
    norm = {"bn.weight": np.full(4, 3e38, np.float32), "bn.bias": BIAS, "bn.running_mean": BIAS, "bn.running_var": BIAS}
    options: dict[str, Any] = {"fold": {"conv": "bn"}, "epsilon": 0.0}
    with pytest.raises(MPSArgumentError, match="fold must fold into finite numbers"):
        import_weights({"conv.weight": WEIGHT + 100, **norm}, CONVOLUTION, "pytorch", **options)
    norm["bn.running_var"] = -BIAS
    with pytest.raises(MPSArgumentError, match="variance plus epsilon must be above 0, got -1"):
        import_weights({"conv.weight": WEIGHT, **norm}, CONVOLUTION, "pytorch", **options)


def test_networks_and_layers_are_checked():
    with pytest.raises(MPSTypeError, match="network must be an MPSNNGraph, or a mapping"):
        network_layers(["conv"])  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="descriptor must be an MPSCNNConvolutionDescriptor, got int"):
        network_layers({"conv": 3})  # type: ignore[dict-item]
    with pytest.raises(MPSArgumentError, match="kernel_width must be an integer of at least 1"):
        network_layers({"conv": MPSCNNConvolutionDescriptor(0, 1, 1, 1)})
    with pytest.raises(MPSArgumentError, match="channels must be a whole number of 1 or more, got True"):
        WeightLayer.prelu("p", True)
    with pytest.raises(MPSTypeError, match="label must be the name of the layer"):
        WeightLayer.prelu("", 1)
    with pytest.raises(MPSTypeError, match="tensors must be a mapping from names to arrays, got list"):
        import_weights([], CONVOLUTION, "pytorch")  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match=r"conv\.weight must be a NumPy array or a torch tensor"):
        import_weights({"conv.weight": [1]}, CONVOLUTION, "pytorch")  # type: ignore[dict-item]


def test_the_table_has_80_columns():
    label = "stage1_block1_projection_convolution_of_a_network_that_likes_long_names_a_lot"
    layers = {label: WeightLayer.convolution(label, MPSCNNConvolutionDescriptor(3, 3, 512, 1024), True)}
    arrays = {f"{label}.weights": np.zeros((1024, 3, 3, 512), np.float16), f"{label}.biases": torch.zeros(1024)}
    lines = str(export_weights(arrays, layers, "keras")).splitlines()
    assert max(map(len, lines)) <= 87
    assert [line.strip() for line in lines] == [
        f"{label}.weights", "1024x3x3x512  OHWI", f"{label}/kernel", "3x3x512x1024  HWIO",
        f"{label}.biases", "1024  O", f"{label}/bias", "1024  O",
    ]  # fmt: skip
    short = str(export_weights(_own("convolution"), {"x": LAYERS["convolution"]}, "pytorch")).splitlines()
    assert [line.split() for line in short] == [
        ["x.weights", "4x2x3x5", "OHWI"], ["x.weight", "4x5x2x3", "OIHW"], ["x.biases", "=", "x.bias", "4", "O"],
    ]  # fmt: skip
    assert {len(line) for line in short} == {80}
