"""The honest objects whose files are mutated."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from openmps.core.image.image import MPSImage
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.neuron import MPSCNNNeuronPReLUNode, MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingAverageNode, MPSCNNPoolingMaxNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxNode
from openmps.kernels.arithmetic import MPSCNNAdd, MPSCNNDivide
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import (
    MPSCNNBinaryConvolution,
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionTranspose,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected,
)
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.loss import MPSCNNLoss, MPSCNNLossDescriptor, MPSCNNYOLOLossDescriptor
from openmps.kernels.neuron import MPSCNNNeuron
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerDescriptor
from openmps.kernels.pooling import MPSCNNDilatedPoolingMax, MPSCNNPoolingAverage
from openmps.kernels.reduce import MPSNNReduceFeatureChannelsSum
from openmps.kernels.softmax import MPSCNNSoftMax
from openmps.kernels.upsampling import MPSCNNUpsamplingBilinear
from openmps.metal.device import MTLDevice
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.types import (
    MPSCNNBinaryConvolutionType,
    MPSCNNLossType,
    MPSCNNNeuronType,
    MPSCNNReductionType,
    MPSDataType,
    MPSImageFeatureChannelFormat,
    MPSNNPaddingMethod,
    MPSOffset,
)


class Source(ArrayConvolutionDataSource):
    """A data source of a user, restored through the registry."""

    def archived(self) -> dict[str, Any]:
        own = {"descriptor": self.descriptor(), "weights": self.weights(), "biases": self.bias_terms()}
        return {**own, "label": self.label()}


class Policy:
    """A padding policy of a user, restored through the registry."""

    def __init__(self, margin: int) -> None:
        if type(margin) is not int or not 0 <= margin < 100:
            raise ValueError("margin must be an integer of 0 to 99")
        self.margin = margin

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        suggested.width += self.margin
        return suggested

    def archived(self) -> dict[str, Any]:
        return {"margin": self.margin, "numbers": np.arange(4.0), "note": ["a", 1, None]}


REGISTRY = {
    "Source": lambda values: Source(values["descriptor"], values["weights"], values["biases"], values["label"]),
    "Policy": lambda values: Policy(values["margin"]),
}


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _source(outputs: int, size: int, inputs: int, label: str, kind: Any = ArrayConvolutionDataSource) -> Any:
    descriptor = MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
    return kind(descriptor, _numbers(outputs, size, size, inputs), _numbers(outputs), label)


class _Rows:
    """Parameters of a normalization of four channels."""

    def number_of_feature_channels(self) -> int:
        return 4

    def number_of_groups(self) -> int:
        return 2

    def gamma(self) -> Any:
        return np.array([1.0, 2.0, 3.0, 4.0], np.float32)

    def beta(self) -> Any:
        return np.array([0.0, 1.0, 0.0, 1.0], np.float32)

    mean, variance = beta, gamma

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str:
        return "rows"


class _Words(ArrayConvolutionDataSource):
    """Binary weights."""

    def data_type(self) -> Any:
        return MPSDataType.UINT32

    def weights(self) -> Any:
        return np.arange(2 * 3 * 3, dtype=np.uint32).reshape(2, 3, 3, 1)


def kernels(device: MTLDevice) -> list[Any]:
    """Kernels with few numbers, and every kind of descriptor."""
    prelu = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=[0.5, 0.25, 0.125, 2.0])
    pool = MPSCNNPoolingAverage(device, 3, 2, 2, 1)
    pool.label, pool.offset, pool.zero_pad_size_x = "pool", MPSOffset(1, -2, 3), 1
    pool.padding, pool.destination_image_allocator = Policy(2), MPSImage.default_allocator()
    yolo = MPSCNNYOLOLossDescriptor(
        MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNLossType.HUBER, MPSCNNLossType.SIGMOID_CROSS_ENTROPY,
        MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, MPSCNNReductionType.SUM, _numbers(2, 2) ** 2 + 1,
    )  # fmt: skip
    loss = MPSCNNLossDescriptor(MPSCNNLossType.HUBER, MPSCNNReductionType.MEAN)
    return [
        pool,
        MPSCNNDilatedPoolingMax(device, 2, 3, 2, 2, 3, 1),
        MPSCNNNeuron(device, prelu),
        MPSCNNBatchNormalization(device, _Rows()),
        MPSCNNInstanceNormalization(device, _Rows()),
        MPSCNNGroupNormalization(device, _Rows()),
        MPSCNNBinaryConvolution(
            device, _Words(MPSCNNConvolutionDescriptor(3, 3, 32, 2), _numbers(2, 3, 3, 32), None, "words"),
            scale_value=1.0, type=MPSCNNBinaryConvolutionType.BINARY_WEIGHTS,
        ),
        MPSCNNAdd(device),
        MPSCNNDivide(device),
        MPSCNNSoftMax(device),
        MPSCNNDropout(device, 0.75, 3),
        MPSCNNLoss(device, loss),
        MPSCNNUpsamplingBilinear(device, 2, 3),
        MPSNNReduceFeatureChannelsSum(device),
        MPSNNOptimizerAdam(device, optimizer_descriptor=MPSNNOptimizerDescriptor(0.25, 1.0), beta1=0.5, time_step=2),
        yolo,
        loss,
        prelu,
        1.5,
        "text",
        None,
    ]  # fmt: skip


def convolutions(device: MTLDevice) -> list[Any]:
    """Convolutions whose weights are most of the file."""
    descriptor = MPSCNNConvolutionDescriptor(5, 5, 16, 64)
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, 0.25)
    descriptor.set_batch_normalization_parameters_for_inference(np.arange(64.0), np.ones(64), np.ones(64), None, 0.5)
    folded = ArrayConvolutionDataSource(descriptor, _numbers(64, 5, 5, 16), _numbers(64), "folded")
    depthwise = MPSCNNDepthWiseConvolutionDescriptor(3, 3, 8, 8)
    own = _source(32, 3, 32, "own", Source)
    return [
        MPSCNNConvolution(device, weights=folded),
        MPSCNNConvolution(device, weights=own),
        MPSCNNConvolutionGradient(device, own),
        MPSCNNConvolution(device, weights=ArrayConvolutionDataSource(depthwise, _numbers(*depthwise.weight_shape()))),
        MPSCNNConvolutionTranspose(device, weights=_source(8, 3, 4, "up")),
        MPSCNNFullyConnected(device, weights=_source(10, 4, 8, "fc")),
    ]


def policies(device: MTLDevice) -> list[Any]:
    """Padding policies, handles and descriptors."""
    return [
        MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL),
        MPSNNDefaultPadding.tensorflow_same(),
        ExplicitPadding(1, 2, -1, 0, ceil_mode=True),
        ExplicitPadding(1, 1, 1, 1, count_include_pad=True),
        Policy(3),
        Handle("name"),
        MPSImage.default_allocator(),
    ]


def inference_graph(device: MTLDevice) -> MPSNNGraph:
    """Two inputs, an exported image, a shared data source, a custom policy."""
    a, b = MPSNNImageNode(Handle("a")), MPSNNImageNode()
    shared = _source(4, 3, 4, "shared")
    first = MPSCNNConvolutionNode(a, shared)
    second = MPSCNNConvolutionNode(MPSCNNNeuronPReLUNode(first.result_image, [0.5] * 4).result_image, shared)
    pool = MPSCNNPoolingAverageNode(b, kernel_width=3, kernel_height=3, stride_in_pixels_x=1, stride_in_pixels_y=1)
    pool.padding_policy = Policy(0)
    pool.result_image.export_from_graph, pool.result_image.handle = True, Handle("pooled")
    pool.result_image.image_allocator = MPSImage.default_allocator()
    total = MPSNNAdditionNode(second.result_image, pool.result_image)
    last = MPSCNNSoftMaxNode(MPSNNConcatenationNode([total.result_image, a]).result_image)
    graph = MPSNNGraph(device, last.result_image)
    graph.label, graph.format = "inference", MPSImageFeatureChannelFormat.FLOAT32
    return graph


def training_graph(device: MTLDevice) -> MPSNNGraph:
    """Data sources of a user, dropout, a loss, exported gradients."""
    image = MPSNNImageNode(Handle("image"))
    first = MPSCNNConvolutionNode(image, _source(4, 3, 1, "first", Source))
    pool = MPSCNNPoolingMaxNode(MPSCNNNeuronReLUNode(first.result_image).result_image, 2, 2)
    kept = MPSCNNDropoutNode(pool.result_image, 0.5, 9)
    last = MPSCNNFullyConnectedNode(kept.result_image, _source(10, 4, 4, "last", Source))
    loss = MPSCNNLossNode(last.result_image, MPSCNNLossDescriptor(MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY))
    first.convolution_gradient_state.export_from_graph = True
    (end,) = loss.training_graph(None, None) or []
    return MPSNNGraph(device, end.result_image, False)


def weights() -> dict[str, np.ndarray]:
    """Arrays of a small network, 760 kB."""
    shapes = {"conv1": (16, 5, 5, 1), "conv2": (32, 5, 5, 16), "fc": (64, 7, 7, 16)}
    return {
        f"{label}.{part}": _numbers(*(shape if part == "weights" else shape[:1]))
        for label, shape in shapes.items()
        for part in ("weights", "biases")
    }


def sparse_weights() -> dict[str, np.ndarray]:
    """The same with three numbers of four at 0, by other names: what packs well."""
    found = {name.replace("weights", "weight").replace("biases", "bias"): array for name, array in weights().items()}
    return {
        name: np.where(np.arange(array.size).reshape(array.shape) % 4, np.float32(0), array)
        for name, array in found.items()
    }


def hdf5_bytes() -> bytes:
    """Arrays of a network as Keras' files hold them: groups in groups, one of many, numbers of several formats."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        for layer in range(12):
            for place, shape in enumerate(((3, 3, 2, 4), (4,))):
                made.create_dataset(f"layers/conv2d_{layer}/vars/{place}", data=_numbers(*shape))
        for name, kind in (("half", "<f2"), ("double", "<f8"), ("big", ">f4"), ("bytes", "u1"), ("steps", "<i8")):
            made.create_dataset(f"optimizer/{name}", data=(100 * _numbers(5, 3)).astype(kind))
        made.attrs["layer_names"] = [b"conv2d"] * 12
    return file.getvalue()


def trained(device: MTLDevice) -> dict[str, Any]:
    """What a checkpoint keeps: a data source with an optimizer that has taken a step, a dropout, an optimizer."""
    source = _source(3, 2, 2, "conv", lambda *arrays: TrainableConvolutionDataSource(*arrays, optimizer=_adam))
    kernel = MPSCNNConvolution(device, weights=source)
    gradient_state = kernel.result_state(MPSImage.from_numpy(device, _numbers(4, 4, 2)))
    command_buffer = device.new_command_queue().command_buffer()
    source.update(command_buffer, gradient_state, kernel.export_weights_and_biases(command_buffer))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return {"conv": source, "dropout": MPSCNNDropout(device, 0.5, 3), "adam": _adam(device)}


def _adam(device: MTLDevice) -> MPSNNOptimizerAdam:
    return MPSNNOptimizerAdam(device, 1e-2)


def onnx_model() -> Any:
    """An ONNX model of many operators, whose shapes are partly computed; its largest tensor is written beside it."""
    from onnx import TensorProto, helper, numpy_helper

    def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
        return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)

    nodes = [
        node("Conv", "x w0 b0", "c0", pads=[1, 0, 1, 2], strides=[1, 2], kernel_shape=[3, 3]),
        node("BatchNormalization", "c0 gamma beta mean variance", "n0", epsilon=1e-5),
        node("Relu", "n0", "r0"),
        node("Conv", "r0 w1", "c1", group=8, auto_pad="SAME_UPPER"),
        node("Clip", "c1 low high", "h0"),
        node("MaxPool", "h0", "p0", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("AveragePool", "h0", "p1", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1),
        node("Split", "p0 lengths", "s0 s1", axis=1),
        node("Concat", "s1 p1 s0", "j0", axis=1),
        node("Constant", "", "scale", value=numpy_helper.from_array(np.float32(0.5))),
        node("Mul", "j0 scale", "m0"),
        node("PRelu", "m0 slopes", "m1"),
        node("ConvTranspose", "m1 w2", "t0", strides=[2, 2], output_padding=[1, 1]),
        node("Resize", "t0 none scales", "u0", mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("Slice", "u0 starts ends axes", "l0"),
        node("Pad", "l0 pads", "q0", mode="reflect"),
        node("LRN", "q0", "z0", size=3),
        node("Transpose", "z0", "z1", perm=[0, 2, 3, 1]),
        node("Softmax", "z1", "z2", axis=-1),
        node("ReduceMean", "z2", "g0", axes=[1, 2], keepdims=0),
        node("Shape", "g0", "shape"),
        node("Gather", "shape zero", "count", axis=0),
        node("Unsqueeze", "count zeros", "counts"),
        node("ConstantOfShape", "one", "minus", value=numpy_helper.from_array(np.array([-1]))),
        node("Concat", "counts minus", "flat", axis=0),
        node("Reshape", "g0 flat", "f0"),
        node("Gemm", "f0 w3 b3", "y", transB=1),
        node("Sigmoid", "g0", "gate"),
    ]  # fmt: skip
    constants = {
        "w0": _numbers(8, 3, 3, 3), "b0": _numbers(8), "gamma": _numbers(8), "beta": _numbers(8),
        "mean": _numbers(8), "variance": np.abs(_numbers(8)) + 1, "w1": _numbers(8, 1, 3, 3),
        "low": np.float32(0), "high": np.float32(6), "lengths": np.array([5, 3]), "slopes": _numbers(16, 1, 1),
        "w2": _numbers(16, 4, 3, 3), "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
        "starts": np.array([0, 1]), "ends": np.array([6, 2**40]), "axes": np.array([2, 3]),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.array(0), "zeros": np.array([0]), "one": np.array([1]),
        "w3": _numbers(5, 4), "b3": _numbers(5),
    }  # fmt: skip
    tensors = {name: numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()}
    graph = helper.make_graph(
        nodes, "seed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 9, 11])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "gate")],
        list(tensors.values()),
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
