"""Every public initializer and class factory takes its arguments in the selector's order (MetalPerformanceShaders).

`selectors.txt` lists the selectors of the headers, ``-`` for initializers and ``+`` for class methods that make an
object. Those of node classes are in `graph/test_node_initializers.py`; here are the others, and all factories' names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from channel_sources import BatchChannels
from in_one_test import in_one_test
from openmps.core.state.resources import MPSStateResourceList
from openmps.training import TrainingOptions
from samples.convolution import ArraySource

CPU = mps.mtl_device("cpu")
SELECTORS = [line.split(" ") for line in Path(__file__).with_name("selectors.txt").read_text().splitlines()]
TYPE, SUM = mps.MPSCNNLossType, mps.MPSCNNReductionType.SUM
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
NOT_HERE = {
    "MPSPredicate": "is about Metal's own predicates",
    "MPSKeyedUnarchiver": "takes bytes of an archive: formats/test_archive.py",
    "MPSCommandBuffer": "shows its queue by that name, and takes command_buffer=… by name",
    "MPSNNCropAndResizeBilinear": "has an array of regions of its own: kernels/test_resize.py",
}
"""Classes that are tried elsewhere."""


def _source(data_type: mps.MPSDataType = mps.MPSDataType.FLOAT32) -> ArraySource:
    dtype = np.uint32 if data_type is mps.MPSDataType.UINT32 else np.float32
    weights = np.zeros((2, 1, 1, 1 if dtype is np.uint32 else 4), dtype)
    return ArraySource(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2), weights, np.zeros(2, np.float32), data_type)


def _image_descriptor() -> mps.MPSImageDescriptor:
    return mps.MPSImageDescriptor(FLOAT32, 2, 2, 4)


def _image(channels: int = 4) -> mps.MPSImage:
    return mps.MPSImage(CPU, mps.MPSImageDescriptor(FLOAT32, 2, 2, channels))


def _matrix() -> mps.MPSMatrix:
    return mps.MPSMatrix(CPU, mps.MPSMatrixDescriptor(3, 4))


def _command_buffer() -> Any:
    return CPU.new_command_queue().command_buffer()


def _result() -> mps.MPSNNImageNode:
    return mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image


def _labels() -> mps.MPSCNNLossDataDescriptor:
    return mps.MPSCNNLossDataDescriptor([1.0, 2.0])


VALUES: dict[str, Callable[[], Any]] = {
    "a": lambda: 0.25,
    "b": lambda: 0.5,
    "c": lambda: 2.0,
    "alpha": lambda: 0.25,
    "copy_columns": lambda: 4,
    "copy_rows": lambda: 3,
    "count": lambda: 2,
    "align_corners": lambda: True,
    "anchor_boxes": lambda: [[1.0, 2.0], [3.0, 4.0]],
    "apply_gradient_clipping": lambda: True,
    "background_color": lambda: (0.25, 0.5, 0.75),
    "beta": lambda: CPU.new_buffer(length=8),
    "beta1": lambda: 0.5,
    "beta2": lambda: 0.75,
    "bias_terms": lambda: [1.0, 2.0],
    "biases": lambda: CPU.new_buffer(length=8),
    "biases_offset": lambda: 0,
    "buffer": lambda: CPU.new_buffer(length=4096),
    "buffer_size": lambda: 64,
    "buffer_sizes": lambda: [4, 8],
    "center_weight": lambda: 0.5,
    "channel_format": lambda: FLOAT32,
    "classes_loss_type": lambda: TYPE.HINGE,
    "cnn_convolution_descriptor": lambda: mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2),
    "columns": lambda: 5,
    "command_buffer": _command_buffer,
    "command_queue": CPU.new_command_queue,
    "confidence_loss_type": lambda: TYPE.SIGMOID_CROSS_ENTROPY,
    "conversion_info": lambda: None,
    "convolution_data": lambda: _source(mps.MPSDataType.UINT32),
    "convolution_descriptor": lambda: mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2),
    "data": lambda: [1.0, 2.0],
    "data_source": lambda: BatchChannels(4, 2),
    "data_type": lambda: mps.MPSDataType.FLOAT16,
    "decay": lambda: 0.5,
    "dest_alpha": lambda: mps.MPSAlphaType.PREMULTIPLIED,
    "destination_matrices": lambda: [_matrix()],
    "destination_matrix": lambda: _matrix(),
    "destinations_are_transposed": lambda: False,
    "device": lambda: CPU,
    "dilation_rate_x": lambda: 4,
    "dilation_rate_y": lambda: 5,
    "dimensions": lambda: 3,
    "do_weighted_sum_by_non_zero_weights": lambda: True,
    "epsilon": lambda: 0.125,
    "feature_channels": lambda: 3,
    "fill_value_array": lambda: [1.0, 2.0],
    "flags": lambda: None,
    "fused_neuron_descriptor": lambda: mps.MPSNNNeuronDescriptor(),
    "gamma": lambda: CPU.new_buffer(length=8),
    "gradient_clip_max": lambda: 4.0,
    "gradient_clip_min": lambda: -4.0,
    "gradient_rescale": lambda: 0.5,
    "height": lambda: 6,
    "histogram_info": lambda: mps.MPSImageHistogramInfo(64, True),
    "image_descriptor": _image_descriptor,
    "input_bias_terms": lambda: [1.0] * 4,
    "input_feature_channels": lambda: 8,
    "input_scale_terms": lambda: [2.0] * 4,
    "integer_scale_factor_x": lambda: 2,
    "integer_scale_factor_y": lambda: 3,
    "is_secondary_source_filter": lambda: True,
    "keep_probability": lambda: 0.25,
    "interior_columns": lambda: 6,
    "kernel_diameter": lambda: 5,
    "kernel_height": lambda: 5,
    "kernel_size": lambda: 3,
    "kernel_weights": lambda: np.zeros((2, 1, 1, 4)),
    "kernel_width": lambda: 3,
    "labels_descriptor": _labels,
    "labels_image": lambda: _image(),
    "layout": lambda: mps.MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH,
    "learning_rate": lambda: 0.25,
    "length": lambda: 6,
    "linear_gray_color_transform": lambda: (0.25, 0.5, 0.125),
    "linear_to_gray_scale_transform": lambda: (0.25, 0.5, 0.125),
    "loss_descriptor": lambda: mps.MPSCNNLossDescriptor(TYPE.HUBER, SUM),
    "lower": lambda: True,
    "loss_image_size": lambda: mps.MTLSize(1, 1, 2),
    "mask_stride_in_pixels": lambda: mps.MTLSize(1, 1, 1),
    "matrices": lambda: 2,
    "matrix_bytes": lambda: 120,
    "matrix_descriptor": lambda: mps.MPSMatrixDescriptor(3, 4),
    "maximum_value": lambda: 2.5,
    "mean": lambda: CPU.new_buffer(length=8),
    "method": lambda: mps.MPSNNPaddingMethod.SIZE_SAME,
    "momentum_scale": lambda: 0.5,
    "neuron_descriptor": lambda: mps.MPSNNNeuronDescriptor(),
    "neuron_filter": lambda: mps.MPSCNNNeuronReLU(CPU, 0.0),
    "no_copy": lambda: True,
    "number_of_anchor_boxes": lambda: 2,
    "number_of_feature_channels": lambda: 3,
    "number_of_images": lambda: 2,
    "number_of_right_hand_sides": lambda: 2,
    "number_of_top_k_values": lambda: 3,
    "offset": lambda: 64,
    "offset_vector": lambda: None,
    "offsets": lambda: mps.MPSMatrixCopyOffsets(1, 2, 3, 4),
    "optimizer_descriptor": lambda: mps.MPSNNOptimizerDescriptor(0.75),
    "order": lambda: 3,
    "output_bias_terms": lambda: [1.0, 2.0],
    "output_feature_channels": lambda: 12,
    "output_scale_terms": lambda: [3.0, 4.0],
    "padding_size_after": lambda: mps.MPSImageCoordinate(1, 2, 0),
    "padding_size_before": lambda: mps.MPSImageCoordinate(2, 1, 0),
    "parent_image": lambda: _image(8),
    "reduction_type": lambda: SUM,
    "regularization_scale": lambda: 0.25,
    "regularization_type": lambda: mps.MPSNNRegularizationType.L1,
    "resize_height": lambda: 3,
    "resize_width": lambda: 2,
    "resource": lambda: CPU.new_buffer(length=8),
    "resource_list": lambda: MPSStateResourceList(buffer_sizes=[4]),
    "resources": lambda: [CPU.new_buffer(length=8)],
    "result_columns": lambda: 4,
    "result_image": _result,
    "result_image_is_needed": lambda: False,
    "result_images": lambda: [_result()],
    "result_rows": lambda: 3,
    "results_are_needed": lambda: [True],
    "right": lambda: False,
    "rnn_descriptor": lambda: mps.MPSRNNSingleGateDescriptor(2, 3),
    "rnn_descriptors": lambda: [mps.MPSGRUDescriptor(2, 3), mps.MPSLSTMDescriptor(3, 4)],
    "row_bytes": lambda: 40,
    "rows": lambda: 3,
    "scale_value": lambda: 0.5,
    "seed": lambda: 7,
    "sigma": lambda: 1.5,
    "size": lambda: mps.MTLSize(1, 1, 2),
    "slice_range": lambda: mps.NSRange(0, 1),
    "source_count": lambda: 3,
    "source_matrices": lambda: [_matrix()],
    "source_matrix": lambda: _matrix(),
    "sources_are_transposed": lambda: True,
    "src_alpha": lambda: mps.MPSAlphaType.NON_PREMULTIPLIED,
    "stride_in_pixels_x": lambda: 2,
    "stride_in_pixels_y": lambda: 3,
    "stride_in_x": lambda: 2,
    "stride_in_y": lambda: 3,
    "texture": lambda: CPU.new_texture(mps.MTLTextureDescriptor()),
    "texture_descriptor": _image_descriptor,
    "texture_descriptors": lambda: [_image_descriptor()],
    "threshold_value": lambda: 0.25,
    "time_step": lambda: 7,
    "trainable_weights": list,
    "transpose": lambda: True,
    "transpose_left": lambda: True,
    "transpose_right": lambda: False,
    "type": lambda: mps.MPSCNNBinaryConvolutionType.XNOR,
    "unit": lambda: True,
    "upper": lambda: False,
    "usage": lambda: mps.MTLTextureUsage.SHADER_READ,
    "use_nesterov_momentum": lambda: True,
    "use_nestrov_momentum": lambda: True,
    "values": lambda: [0.25] * 15,
    "variance": lambda: CPU.new_buffer(length=8),
    "vector_bytes": lambda: 64,
    "vectors": lambda: 3,
    "weights": _source,
    "weights_descriptor": _labels,
    "weights_image": lambda: _image(),
    "weights_offset": lambda: 0,
    "wh_loss_type": lambda: TYPE.HUBER,
    "width": lambda: 7,
    "window_in_x": lambda: 1,
    "window_in_y": lambda: 2,
    "xy_loss_type": lambda: TYPE.MEAN_SQUARED_ERROR,
}
"""A value for each argument, no two numbers of one selector alike."""
BY_NAME = {
    "+temporaryImageWithCommandBuffer:textureDescriptor:",
    "+temporaryImageWithCommandBuffer:textureDescriptor:featureChannels:",
}
"""Selectors that types cannot tell apart: one argument needs its name."""
FOR_CLASS: dict[tuple[str, str], Callable[[], Any]] = {
    **{
        (f"MPSCNN{kind}Normalization{gradient}", "kernel_height"): lambda: 3
        for kind in ("LocalContrast", "Spatial")
        for gradient in ("", "Gradient")
    },
    ("MPSNNNeuronDescriptor", "type"): lambda: mps.MPSCNNNeuronType.POWER,
    ("MPSCNNLossDescriptor", "type"): lambda: TYPE.HUBER,
    ("MPSMatrixMultiplication", "beta"): lambda: 0.5,
    ("MPSMatrixVectorMultiplication", "beta"): lambda: 0.5,
    ("MPSCNNNeuronPReLU", "a"): lambda: [1.0, 2.0, 3.0],
    ("MPSCNNConvolutionWeightsAndBiasesState", "weights"): lambda: CPU.new_buffer(length=32),
    ("MPSVector", "descriptor"): lambda: mps.MPSVectorDescriptor(6),
    ("MPSTemporaryVector", "descriptor"): lambda: mps.MPSVectorDescriptor(6),
    ("MPSMatrix", "descriptor"): lambda: mps.MPSMatrixDescriptor(3, 4),
    ("MPSCNNYOLOLoss", "loss_descriptor"): lambda: mps.MPSCNNYOLOLossDescriptor(*[TYPE.HUBER] * 4, SUM, [1.0, 2.0]),
    **{
        (kind, "weights"): lambda: [0.5] * 15
        for kind in ("MPSImageConvolution", *(f"MPSImage{each}Pyramid" for each in ("", "Gaussian", "Laplacian")))
    },
    ("MPSImageLaplacianPyramidSubtract", "weights"): lambda: [0.5] * 15,
    ("MPSImageLaplacianPyramidAdd", "weights"): lambda: [0.5] * 15,
    ("MPSImage", "feature_channels"): lambda: 4,
    ("MPSTemporaryImage", "feature_channels"): lambda: 4,
    ("MPSCNNBinaryConvolution", "flags"): lambda: mps.MPSCNNBinaryConvolutionFlags.USE_BETA_SCALING,
    ("MPSCNNBinaryFullyConnected", "flags"): lambda: mps.MPSCNNBinaryConvolutionFlags.USE_BETA_SCALING,
    ("MPSCNNConvolution", "flags"): lambda: mps.MPSCNNConvolutionFlags.NONE,
    ("MPSCNNFullyConnected", "flags"): lambda: mps.MPSCNNConvolutionFlags.NONE,
}
DROPPED = ("no_copy",)
"""Arguments that Python has no use for."""
_WORDS = {
    "RNNS": "RnnS",
    "GRUD": "GruD",
    "LSTMD": "LstmD",
    "UInt": "Uint",
    "TopKV": "TopK_V",
    "PReLU": "Prelu",
    "XYLoss": "XyLoss",
    "WHLoss": "WhLoss",
    "CNN": "Cnn",
}


def snake(name: str) -> str:
    """A name of the framework in Python."""
    for word, plain in _WORDS.items():
        name = name.replace(word, plain)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def parsed(selector: str) -> tuple[str, list[str]]:
    """The Python name of what a selector begins with, and its arguments."""
    first, *others = selector[1:].split(":")[: max(1, selector.count(":"))]
    name, argument = re.fullmatch(r"(.+?)(?:With|From)([A-Z]\w*)", first).groups() if ":" in selector else (first, "")  # type: ignore[union-attr]
    if name == "initForReading":
        argument = "data"
    return snake(name), [snake(each) for each in (argument, *others) if each]


def values(kind: str, arguments: list[str]) -> list[Any]:
    return [FOR_CLASS.get((kind, each), VALUES.get(each, lambda: pytest.fail("no value")))() for each in arguments]


def _is_tried(kind: str, selector: str) -> bool:
    is_elsewhere = kind.endswith("Node") or kind in NOT_HERE or selector in BY_NAME
    return not is_elsewhere and selector != "-initWithDevice:"


def check(thing: Any, arguments: list[str], given: list[Any]) -> None:
    """What the object tells of its arguments is what was given."""
    for name, value in zip(arguments, given, strict=True):
        found = getattr(thing, name, None)
        if isinstance(value, int | float | tuple) and isinstance(found, int | float | tuple):
            assert found == value, name


@in_one_test
@pytest.mark.parametrize(("kind", "selector"), [each for each in SELECTORS if _is_tried(*each)])
def test_initializers_in_the_selectors_order(kind: str, selector: str) -> None:
    name, arguments = parsed(selector)
    arguments = [each for each in arguments if each not in DROPPED]
    given = values(kind, arguments)
    cls = getattr(mps, kind)
    if selector[0] == "+":
        thing = getattr(cls, name)(*given)
        check(thing, arguments, given)
        assert isinstance(thing, cls)
        if name.startswith(("temporary_state", "temporary_cnn", "padding_for")) or len(given) == 0:
            return
    if name == "cnn_neuron_prelu_descriptor":
        return
    thing = cls(*given)
    assert type(thing) is cls
    check(thing, arguments, given)


@in_one_test
@pytest.mark.parametrize(
    "kind", sorted({kind for kind, selector in SELECTORS if kind.endswith("Node") and selector[0] == "+"})
)
def test_nodes_have_their_factory(kind: str) -> None:
    names = {parsed(selector)[0] for each, selector in SELECTORS if each == kind and selector[0] == "+"}
    cls = getattr(mps, kind)
    assert all(callable(getattr(cls, name)) for name in names)
    if kind == "MPSNNImageNode":
        assert type(cls.node(mps.Handle("x"))) is cls


@pytest.mark.parametrize(
    "kind",
    [
        *("MPSCNNArithmetic", "MPSCNNArithmeticGradient", "MPSMatrixRandom", "MPSNNReduceBinary", "MPSNNReduceUnary"),
        *("MPSMatrixBinaryKernel", "MPSMatrixUnaryKernel"),
    ],
)
def test_classes_without_an_initializer(kind: str) -> None:
    """Their initWithDevice: is marked unavailable, and they have no other; a user's subclass can be made."""
    cls = getattr(mps, kind)
    with pytest.raises(mps.MPSTypeError, match=f"^{kind}: device makes no kernel of this base class.*subclasses"):
        cls(CPU)
    assert type("Own", (cls,), {})(CPU).device is CPU


def test_a_factory_makes_what_the_constructor_makes() -> None:
    node = mps.MPSCNNPoolingMaxNode.node(mps.MPSNNImageNode(), 2, stride=3)
    assert type(node) is mps.MPSCNNPoolingMaxNode
    assert (node.kernel_width, node.stride_in_pixels_x) == (2, 3)
    with pytest.raises(AttributeError, match="image_descriptor"):
        mps.MPSImageDescriptor(FLOAT32, 1, 1, 1).image_descriptor = 5  # type: ignore[assignment]


def test_the_first_argument_tells_the_forms_apart() -> None:
    """As clients written apart from each other wrote it."""
    vectors, matrices = mps.MPSVectorDescriptor(6), mps.MPSMatrixDescriptor(2, 3)
    assert mps.MPSVector(CPU, vectors).numpy().tolist() == [0.0] * 6
    assert mps.MPSVector(CPU, descriptor=vectors).device is CPU
    assert mps.MPSMatrix(CPU, matrices).numpy().shape == (2, 3)
    buffer = CPU.new_buffer(length=64)
    assert mps.MPSVector(buffer, 8, vectors).offset == mps.MPSVector(buffer, vectors, 8).offset == 8
    source = _source()
    for kernel in (mps.MPSCNNConvolution(CPU, source), mps.MPSCNNFullyConnected(CPU, source)):
        assert kernel.data_source is source
    assert mps.MPSState(CPU, 64).buffer_size_at_index(0) == 64
    assert mps.MPSState(buffer).resource is buffer
    pooling = mps.MPSCNNPoolingMaxNode(mps.MPSNNImageNode(), 2, 3, 4, 5)
    sizes = (pooling.kernel_width, pooling.kernel_height, pooling.stride_in_pixels_x, pooling.stride_in_pixels_y)
    assert sizes == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: mps.MPSCNNConvolution(CPU, biasTerms=[1.0]),  # type: ignore[call-arg]
            "MPSCNNConvolution: biasTerms is no argument here. Use bias_terms",
        ),
        (
            lambda: mps.MPSMatrixDescriptor(2, 3, rowBytes=12),  # type: ignore[call-arg]
            "MPSMatrixDescriptor: rowBytes is no argument here. Use row_bytes",
        ),
        (
            lambda: mps.MPSVectorDescriptor(2, colour=12),  # type: ignore[call-arg]
            "MPSVectorDescriptor: colour is no argument here. "
            "The arguments are length, data_type, vectors, vector_bytes",
        ),
        (
            lambda: mps.MPSCNNPoolingMax(CPU, kernelWidth=2),  # type: ignore[call-arg]
            "MPSCNNPoolingMax: kernelWidth is no argument here. Use kernel_width",
        ),
        (
            lambda: mps.MPSCNNConvolutionDescriptor(3, 3, 1, 8, strideInPixelsX=2),  # type: ignore[call-arg]
            "MPSCNNConvolutionDescriptor: strideInPixelsX is no argument here. "
            "It is an attribute, stride_in_pixels_x: set it on the MPSCNNConvolutionDescriptor",
        ),
        (
            lambda: mps.MPSImageLanczosScale(CPU, scale_transform=None),  # type: ignore[call-arg]
            "MPSImageLanczosScale: scale_transform is no argument here. "
            "It is an attribute, scale_transform: set it on the MPSImageLanczosScale",
        ),
        (
            lambda: mps.MPSCNNLossDescriptor(lossType=mps.MPSCNNLossType.HINGE),  # type: ignore[call-arg]
            "MPSCNNLossDescriptor: lossType is no argument here. Use type",
        ),
    ],
)
def test_an_argument_in_another_spelling_names_the_right_one(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(mps.MPSTypeError) as fault:
        call()
    assert str(fault.value) == sentence


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: mps.MPSCNNPoolingMax(CPU, 2),  # type: ignore[call-arg]
            "MPSCNNPoolingMax: kernel_height must be given. "
            "The arguments are device, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y",
        ),
        (
            lambda: mps.MPSNDArrayDescriptor(mps.MPSDataType.FLOAT32, 4, 5, 6),  # type: ignore[call-overload]
            "MPSNDArrayDescriptor: arguments by place must be at most 3, got 4. "
            "The arguments are data_type, shape, dimension_sizes, dimension_count",
        ),
        (
            lambda: mps.MPSCNNPoolingMax(CPU, 2, 2, kernel_width=2),  # type: ignore[misc]
            "MPSCNNPoolingMax: kernel_width must be given once, got it by place and by name. Leave one of them out",
        ),
        (
            lambda: TrainingOptions(learning_rate=1e-3),  # type: ignore[call-arg]
            "TrainingOptions: epochs must be given. The arguments are epochs, batch_size, ",
        ),
        (
            lambda: mps.MPSCNNConvolution(CPU, mps.ArrayConvolutionDataSource),  # type: ignore[arg-type]
            "MPSCNNConvolution: weights must be a data source, got the class ArrayConvolutionDataSource. "
            "Make an object of it",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_said_of_the_class_that_was_called(
    call: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(mps.MPSTypeError) as fault:
        call()
    assert str(fault.value).startswith(sentence)


def test_no_constructor_of_a_public_class_is_called_by_a_private_name() -> None:
    called: dict[str, str] = {}
    for name in mps.__all__:
        kind = getattr(mps, name)
        is_error = isinstance(kind, type) and issubclass(kind, Exception)
        if isinstance(kind, type) and not is_error and getattr(kind.__init__, "__qualname__", "")[:1] == "_":
            try:
                kind(no_such_argument=1)
            except TypeError as fault:
                called[name] = str(fault)
    assert called
    assert {name: text for name, text in called.items() if text[:1] == "_"} == {}


def test_what_types_cannot_tell_apart_names_the_keyword() -> None:
    with pytest.raises(mps.MPSTypeError, match="feature_channels belongs to texture_descriptor=…"):
        mps.MPSTemporaryImage(_command_buffer(), _image_descriptor(), 3)
    with pytest.raises(
        mps.MPSTypeError, match="command_queue must be .* A command buffer is given as command_buffer=…"
    ):
        mps.MPSCommandBuffer(_command_buffer())


@pytest.mark.parametrize("kind", [mps.MPSVector, mps.MPSMatrix])
@pytest.mark.parametrize(
    "optimizer", ["MPSNNOptimizerAdam", "MPSNNOptimizerRMSProp", "MPSNNOptimizerStochasticGradientDescent"]
)
def test_optimizers_encode_in_the_selectors_order(kind: Any, optimizer: str) -> None:
    """The same numbers as by name, with and without what may be left out."""
    descriptor = mps.MPSVectorDescriptor(4) if kind is mps.MPSVector else mps.MPSMatrixDescriptor(2, 2)
    suffix = "vector" if kind is mps.MPSVector else "matrix"
    parts = {
        "MPSNNOptimizerAdam": ["momentum", "velocity"],
        "MPSNNOptimizerRMSProp": ["sum_of_squares"],
        "MPSNNOptimizerStochasticGradientDescent": ["momentum"],
    }[optimizer]
    names = ["input_gradient", "input_values", *(f"input_{part}" for part in parts)]
    orders = [[*names, "result_values"]]
    if optimizer.endswith("Adam"):
        orders.append([*names, "maximum_velocity", "result_values"])
    for order in orders:
        found: list[list[float]] = []
        for by_name in (True, False):
            operands = [
                kind(CPU.new_buffer(data=np.float32([1, 2, 3, 4]) + place), descriptor) for place in range(len(order))
            ]
            command_buffer = _command_buffer()
            made = getattr(mps, optimizer)(CPU, 0.25)
            named = {f"{name}_{suffix}": operand for name, operand in zip(order, operands, strict=True)}
            if by_name:
                made.encode(command_buffer, **named)
            else:
                made.encode(command_buffer, *operands)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            found.append(np.concatenate([each.numpy().ravel() for each in operands]).tolist())
        assert found[0] == found[1]
        assert found[0] != np.concatenate([np.float32([1, 2, 3, 4]) + place for place in range(len(order))]).tolist()
        with pytest.raises(mps.MPSTypeError, match=r"arguments must be \d operands, input_gradient_"):
            made.encode(_command_buffer(), *operands[:2])
        with pytest.raises(mps.MPSTypeError, match="must not be given twice"):
            made.encode(_command_buffer(), *operands, **{f"input_gradient_{suffix}": operands[0]})


def test_optimizers_encode_states_in_the_selectors_order() -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2)
    source = mps.ArrayConvolutionDataSource(descriptor, np.ones((2, 1, 1, 4)), np.zeros(2))
    found = []
    for by_name in (True, False):
        forward, backward = mps.MPSCNNConvolution(CPU, source), mps.MPSCNNConvolutionGradient(CPU, source)
        command_buffer = _command_buffer()
        image = mps.MPSImage.from_numpy(CPU, np.ones((1, 1, 4), np.float32))
        result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
        backward.encode(command_buffer, result, image, state)
        weights = mps.MPSCNNConvolutionWeightsAndBiasesState(
            CPU.new_buffer(data=np.ones(8, np.float32)), CPU.new_buffer(data=np.zeros(2, np.float32))
        )
        vectors = [[mps.MPSVector(CPU, mps.MPSVectorDescriptor(length)) for length in (8, 2)] for _ in range(2)]
        adam = mps.MPSNNOptimizerAdam(CPU, 0.25)
        if by_name:
            adam.encode(
                command_buffer, convolution_gradient_state=state, convolution_source_state=weights,
                input_momentum_vectors=vectors[0], input_velocity_vectors=vectors[1], result_state=weights,
            )  # fmt: skip
        else:
            adam.encode(command_buffer, state, weights, *vectors, weights)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(weights.weights.contents().view(np.float32).tolist())
    assert found[0] == found[1] != [1.0] * 8
