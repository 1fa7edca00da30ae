"""Every kernel class, with sample configurations, images that suit them, their gradient kernels and their oracles.

A property that all kernels share is tested once, over these samples (tests/sweeps). A kernel class that is missing here
fails tests/kernels/test_catalogue.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from encoding import Bench
from openmps.core.base_kernel import MPSKernel
from openmps.core.gradient_kernel import MPSCNNGradientKernel
from openmps.core.kernel import ImageKernel
from openmps.core.neuron_descriptor import MPSNNNeuronDescriptor
from openmps.core.padding import MPSNNDefaultPadding
from openmps.kernels import arithmetic as arithmetic_kernels
from openmps.kernels import convolution as convolution_kernels
from openmps.kernels import dropout as dropout_kernels
from openmps.kernels import loss as loss_kernels
from openmps.kernels import neuron as neuron_kernels
from openmps.kernels import optimizers as optimizer_kernels
from openmps.kernels import pooling as pooling_kernels
from openmps.kernels import softmax as softmax_kernels
from openmps.metal.device import MTLDevice
from openmps.types import (
    MPSCNNLossType,
    MPSCNNNeuronType,
    MPSCNNReductionType,
    MPSDataType,
    MPSImageEdgeMode,
    MPSNNPaddingMethod,
    MTLSize,
)
from oracles import arithmetic, convolution, dropout, loss, neuron, pooling, softmax
from oracles.geometry import Axis, gather, gather_adjoint

Array = np.ndarray
Shape = tuple[int, int, int]
"""Feature channels, height and width of one image."""


class Reading(NamedTuple):
    """How a kernel reads one of its sources."""

    rows: Axis
    columns: Axis
    edge: int

    def region(self, x: Array) -> Array:
        """The pixel under each result pixel, for kernels without a window."""
        return gather(x, self.rows, self.columns, self.edge)[..., 0, 0]

    def back(self, gradient: Array, shape: Sequence[int]) -> Array:
        """The adjoint of `region`."""
        return gather_adjoint(gradient[..., None, None], tuple(shape), self.rows, self.columns, self.edge)


Forward = Callable[[list[Array], list[Reading]], Array]
Gradient = Callable[[Array, list[Array], list[Reading]], Array]
Parameters = Callable[[Array, list[Array], list[Reading]], tuple[Array, Array]]


@dataclass(frozen=True)
class GradientSample:
    """The gradient kernel of one forward source."""

    make: Callable[[MTLDevice], MPSCNNGradientKernel]
    oracle: Gradient
    source: int = 0
    """The forward source that it differentiates."""
    reads_result: bool = False
    """Whether its secondary image is the forward result instead of that source."""
    needs_state: bool = False
    parameters: Parameters | None = None


@dataclass(frozen=True)
class Sample:
    """One configuration of a kernel."""

    name: str
    make: Callable[[MTLDevice], ImageKernel]
    shapes: tuple[Shape, ...]
    forward: Forward
    gradients: tuple[GradientSample, ...] = ()
    domain: str = "normal"
    traits: frozenset[str] = frozenset()
    labels: Callable[[Bench, int, int], list[Any]] | None = field(default=None, repr=False)
    """For losses: the labels of some images, from the first one on."""

    def random(self, what: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name} {what}".encode()))

    def sources(self, images: int = 2) -> list[Array]:
        """Random images for each source; float64 numbers that float32 holds exactly."""
        random = self.random("sources")
        draw = DOMAINS[self.domain]
        return [exact(draw(random, (images, *shape))) for shape in self.shapes]

    def incoming(self, shape: Sequence[int]) -> Array:
        """A random gradient of the result."""
        return exact(self.random("gradient").normal(size=tuple(shape)))

    def more(self, bench: Bench, count: int, first: int = 0, single: bool = False) -> tuple[Any, ...]:
        """What an encode takes between its sources and its destination."""
        if self.labels is None:
            return ()
        labels = self.labels(bench, first, count)
        return (labels[0],) if single and count == 1 else (labels,)

    def __str__(self) -> str:
        return self.name


DOMAINS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "positive": lambda random, shape: random.uniform(0.5, 2.0, size=shape),
    "unit": lambda random, shape: random.uniform(0.05, 0.95, size=shape),
    "wide": lambda random, shape: random.normal(scale=4.0, size=shape),
}


def exact(values: Array) -> Array:
    """Rounded to float32, as float64."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


def readings(kernel: Any, width: int, height: int) -> list[Reading]:
    """How a kernel reads its sources with its properties as they stand."""
    prefixes = ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)
    return [_reading(kernel, prefix, width, height) for prefix in prefixes]


def _reading(kernel: Any, prefix: str, width: int, height: int) -> Reading:
    def get(name: str) -> Any:
        return getattr(kernel, prefix + name)

    offset = get("offset")
    rows = Axis(height, get("kernel_height"), get("stride_in_pixels_y"), get("dilation_rate_y"), offset.y)
    columns = Axis(width, get("kernel_width"), get("stride_in_pixels_x"), get("dilation_rate_x"), offset.x)
    return Reading(rows, columns, int(get("edge_mode")))


def _configured(kernel: Any, properties: dict[str, Any]) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


CLAMP = MPSImageEdgeMode.CLAMP
VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
FULL = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL)
BOTTOM_RIGHT = MPSNNDefaultPadding.tensorflow_same()


# --- convolution -----------------------------------------------------------------------------------------------------


class ArraySource:
    """A data source over arrays that counts what is asked of it."""

    def __init__(self, descriptor: Any, weights: Any, biases: Any = None, kind: MPSDataType = MPSDataType.FLOAT32):
        self._descriptor, self._weights, self._biases, self._kind = descriptor, weights, biases, kind
        self.loads = self.purges = 0
        self.name: str | None = "source"

    def data_type(self) -> MPSDataType:
        return self._kind

    def descriptor(self) -> Any:
        return self._descriptor

    def weights(self) -> Any:
        assert self.loads == self.purges + 1, "read without load, or after purge"
        return self._weights

    def bias_terms(self) -> Any:
        assert self.loads == self.purges + 1, "read without load, or after purge"
        return self._biases

    def load(self) -> bool:
        self.loads += 1
        return True

    def purge(self) -> None:
        self.purges += 1

    def label(self) -> str | None:
        return self.name


@dataclass(frozen=True)
class Layer:
    """The shape of a convolution."""

    inputs: int
    outputs: int
    height: int = 3
    width: int = 3
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    """Both (vertical, horizontal)."""
    groups: int = 1
    depthwise: bool = False
    biases: bool = True

    def descriptor(self) -> Any:
        kind = convolution_kernels.MPSCNNConvolutionDescriptor
        if self.depthwise:
            kind = convolution_kernels.MPSCNNDepthWiseConvolutionDescriptor
        descriptor = kind(self.width, self.height, self.inputs, self.outputs)
        descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x = self.stride
        descriptor.dilation_rate_y, descriptor.dilation_rate_x = self.dilation
        descriptor.groups = self.groups
        return descriptor

    def weights(self) -> Array:
        """OHWI; the same numbers each time."""
        inputs = 1 if self.depthwise else self.inputs // self.groups
        random = np.random.default_rng(self.inputs * 1000 + self.outputs)
        return exact(random.normal(size=(self.outputs, self.height, self.width, inputs)))

    def bias_terms(self) -> Array | None:
        return exact(np.linspace(-1.0, 1.0, self.outputs)) if self.biases else None

    def source(self) -> ArraySource:
        biases = self.bias_terms()
        return ArraySource(
            self.descriptor(), self.weights().astype(np.float32), None if biases is None else biases.astype(np.float32)
        )

    @property
    def engine_groups(self) -> int:
        return self.inputs if self.depthwise else self.groups

    def forward(self, sources: list[Array], how: list[Reading]) -> Array:
        (x,), ((rows, columns, edge),) = sources, how
        return convolution.forward(x, self.weights(), self.bias_terms(), rows, columns, self.engine_groups, edge)

    def gradient(self, g: Array, sources: list[Array], how: list[Reading]) -> tuple[Array, Array, Array]:
        (x,), ((rows, columns, edge),) = sources, how
        return convolution.gradient(g, x, self.weights(), rows, columns, self.engine_groups, edge)


def _convolution(name: str, layer: Layer, height: int, width: int, **properties: Any) -> Sample:
    return _layer(
        f"convolution {name}",
        layer,
        height,
        width,
        convolution_kernels.MPSCNNConvolution,
        convolution_kernels.MPSCNNConvolutionGradient,
        frozenset({"affine"}),
        properties,
    )


def _fully_connected(name: str, layer: Layer, height: int, width: int) -> Sample:
    return _layer(
        f"fully connected {name}",
        layer,
        height,
        width,
        convolution_kernels.MPSCNNFullyConnected,
        convolution_kernels.MPSCNNFullyConnectedGradient,
        frozenset({"affine", "ignores offset"}),
        {},
    )


def _layer(
    name: str,
    layer: Layer,
    height: int,
    width: int,
    kernel: Any,
    gradient: Any,
    traits: frozenset[str],
    properties: dict[str, Any],
) -> Sample:
    return Sample(
        name,
        lambda device: _configured(kernel(device, weights=layer.source()), properties),
        ((layer.inputs, height, width),),
        layer.forward,
        (
            GradientSample(
                lambda device: gradient(device, weights=layer.source()),
                lambda g, sources, how: layer.gradient(g, sources, how)[0],
                needs_state=True,
                parameters=lambda g, sources, how: layer.gradient(g, sources, how)[1:],
            ),
        ),
        traits=traits,
    )


CONVOLUTIONS = [
    _convolution("3x3", Layer(3, 5), 6, 7),
    _convolution("one pixel", Layer(1, 1, biases=False), 1, 1),
    _convolution("even, stride 2x1, bottom right", Layer(4, 8, 2, 4, stride=(2, 1)), 7, 6, padding=BOTTOM_RIGHT),
    _convolution("even and dilated", Layer(4, 3, 2, 2, dilation=(3, 2)), 8, 7),
    _convolution("stride above size, clamp", Layer(5, 4, 2, 1, stride=(3, 2)), 8, 7, edge_mode=CLAMP),
    _convolution("clamp", Layer(3, 4, 3, 5), 4, 3, edge_mode=CLAMP),
    _convolution("valid, stride 3", Layer(1, 4, stride=(3, 3), biases=False), 8, 11, padding=VALID),
    _convolution("full", Layer(2, 3, 4, 3), 4, 3, padding=FULL),
    _convolution("groups", Layer(8, 16, groups=2), 5, 4),
    _convolution("depthwise", Layer(5, 5, depthwise=True), 5, 6),
    _convolution("depthwise, multiplier 2", Layer(3, 6, 2, 3, stride=(2, 2), depthwise=True), 5, 6),
]
FULLY_CONNECTED = [
    _fully_connected("3x4", Layer(5, 7, 3, 4), 3, 4),
    _fully_connected("1x1", Layer(8, 3, 1, 1, biases=False), 1, 1),
    _fully_connected("on a larger image", Layer(4, 5, 2, 3), 4, 5),
]


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pooling(
    name: str,
    kernel: Any,
    gradient: Any,
    oracle: Any,
    size: tuple[int, ...],
    shape: Shape,
    domain: str = "normal",
    **properties: Any,
) -> Sample:
    """``size``: kernel width, kernel height, stride x, stride y."""
    forward, backward, pad_argument = oracle
    taken = tuple(properties.get(f"zero_pad_size_{axis}", 0) for axis in "xy")
    pad = (taken,) if pad_argument else ()

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        about = sources[0].shape if pad_argument else sources[0]
        return backward(g, about, *how[0], *pad)

    return Sample(
        name,
        lambda device: _configured(kernel(device, *size), properties),
        (shape,),
        lambda sources, how: forward(sources[0], *how[0], *pad),
        (GradientSample(lambda device: gradient(device, *size), differentiate),),
        domain,
        frozenset({"affine"} if pad_argument else ()),
    )


def _max(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.maximum, pooling.maximum_gradient, False)
    kernels = pooling_kernels.MPSCNNPoolingMax, pooling_kernels.MPSCNNPoolingMaxGradient
    return _pooling(f"max pooling {name}", *kernels, oracle, size, shape, **properties)


def _average(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.average, pooling.average_gradient, True)
    kernels = pooling_kernels.MPSCNNPoolingAverage, pooling_kernels.MPSCNNPoolingAverageGradient
    return _pooling(f"average pooling {name}", *kernels, oracle, size, shape, **properties)


POOLINGS = [
    _max("2x2, stride 2", (2, 2, 2, 2), (4, 6, 8)),
    _max("3x2, stride 2x3, odd", (3, 2, 2, 3), (5, 7, 9)),
    _max("3x3, clamp", (3, 3), (3, 4, 5), edge_mode=CLAMP),
    _max("stride above size, clamp", (2, 2, 3, 3), (1, 8, 7), edge_mode=CLAMP, padding=VALID),
    _max("one pixel", (3, 3, 1, 1), (1, 1, 1), domain="positive"),
    _max("full", (4, 3, 2, 1), (8, 4, 3), padding=FULL),
    _average("2x2, stride 2", (2, 2, 2, 2), (4, 6, 8)),
    _average("3x3, zero", (3, 3), (5, 4, 5)),
    _average("3x3, clamp", (3, 3, 2, 1), (3, 4, 5), edge_mode=CLAMP),
    _average("4x3, zero pads", (4, 3, 2, 2), (4, 5, 6), edge_mode=CLAMP, zero_pad_size_x=1, zero_pad_size_y=1),
    _average("stride above size", (2, 2, 3, 3), (1, 8, 7), padding=BOTTOM_RIGHT),
    _average("one pixel, clamp", (3, 3), (1, 1, 1), edge_mode=CLAMP),
]


# --- neurons ---------------------------------------------------------------------------------------------------------

_NEURON_PARAMETERS: dict[MPSCNNNeuronType, tuple[tuple[float, ...], str]] = {
    MPSCNNNeuronType.NONE: ((), "normal"),
    MPSCNNNeuronType.RELU: ((0.1,), "normal"),
    MPSCNNNeuronType.LINEAR: ((1.5, 0.25), "normal"),
    MPSCNNNeuronType.SIGMOID: ((), "normal"),
    MPSCNNNeuronType.HARD_SIGMOID: ((0.3, 0.4), "wide"),
    MPSCNNNeuronType.TANH: ((1.5, 0.75), "normal"),
    MPSCNNNeuronType.ABSOLUTE: ((), "normal"),
    MPSCNNNeuronType.SOFT_PLUS: ((1.5, 2.0), "wide"),
    MPSCNNNeuronType.SOFT_SIGN: ((), "normal"),
    MPSCNNNeuronType.ELU: ((0.75,), "normal"),
    MPSCNNNeuronType.RELU_N: ((0.25, 1.0), "normal"),
    MPSCNNNeuronType.POWER: ((1.5, 0.5, 2.5), "positive"),
    MPSCNNNeuronType.EXPONENTIAL: ((0.5, 0.25, 2.0), "normal"),
    MPSCNNNeuronType.LOGARITHM: ((1.5, 0.5, 3.0), "positive"),
    MPSCNNNeuronType.GELU: ((), "normal"),
}
_SMOOTH = {
    MPSCNNNeuronType.SIGMOID,
    MPSCNNNeuronType.TANH,
    MPSCNNNeuronType.SOFT_PLUS,
    MPSCNNNeuronType.POWER,
    MPSCNNNeuronType.EXPONENTIAL,
    MPSCNNNeuronType.LOGARITHM,
    MPSCNNNeuronType.GELU,
}
_AFFINE = {MPSCNNNeuronType.NONE, MPSCNNNeuronType.LINEAR}


def _neuron(
    descriptor: MPSNNNeuronDescriptor,
    domain: str,
    shape: Shape,
    make: Callable[[MTLDevice], ImageKernel] | None = None,
    name: str | None = None,
) -> Sample:
    kind = descriptor.neuron_type
    defaults = neuron.DEFAULTS[neuron.NAMES[int(kind)]]
    used = tuple(
        float(value) for value in (descriptor.a, descriptor.b, descriptor.c)
    ) if kind in _NEURON_PARAMETERS else defaults  # fmt: skip
    data = None if descriptor.data is None else descriptor.data.astype(np.float64)
    arguments = (int(kind), *used, data)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        region = how[0].region(sources[0])
        return how[0].back(neuron.gradient(g, region, *arguments), sources[0].shape)

    traits = {"pointwise", "in place"}
    traits |= {"smooth"} if kind in _SMOOTH else set()
    traits |= {"affine"} if kind in _AFFINE else set()
    return Sample(
        name or f"neuron {kind.name.lower()}",
        make or (lambda device: neuron_kernels.MPSCNNNeuron(device, descriptor)),
        (shape,),
        lambda sources, how: neuron.forward(how[0].region(sources[0]), *arguments),
        (GradientSample(lambda device: neuron_kernels.MPSCNNNeuronGradient(device, descriptor), differentiate),),
        domain,
        frozenset(traits),
    )


def _neuron_class(kind: Any, *parameters: Any) -> Sample:
    """A kernel class of one neuron type, with its own arguments or its defaults."""
    code = _CLASS_TYPES[kind.__name__.removeprefix("MPSCNNNeuron")]
    positive = code in (MPSCNNNeuronType.POWER, MPSCNNNeuronType.LOGARITHM)
    if code is MPSCNNNeuronType.PRELU:
        descriptor = MPSNNNeuronDescriptor(code, data=parameters[0])
    else:
        descriptor = MPSNNNeuronDescriptor(code, *parameters)
    return _neuron(
        descriptor,
        "positive" if positive else "normal",
        (3, 2, 3),
        lambda device: kind(device, *parameters),
        f"neuron class {kind.__name__}",
    )


_CLASS_TYPES = {
    "Absolute": MPSCNNNeuronType.ABSOLUTE,
    "ELU": MPSCNNNeuronType.ELU,
    "Exponential": MPSCNNNeuronType.EXPONENTIAL,
    "HardSigmoid": MPSCNNNeuronType.HARD_SIGMOID,
    "Linear": MPSCNNNeuronType.LINEAR,
    "Logarithm": MPSCNNNeuronType.LOGARITHM,
    "PReLU": MPSCNNNeuronType.PRELU,
    "Power": MPSCNNNeuronType.POWER,
    "ReLU": MPSCNNNeuronType.RELU,
    "ReLUN": MPSCNNNeuronType.RELU_N,
    "Sigmoid": MPSCNNNeuronType.SIGMOID,
    "SoftPlus": MPSCNNNeuronType.SOFT_PLUS,
    "SoftSign": MPSCNNNeuronType.SOFT_SIGN,
    "TanH": MPSCNNNeuronType.TANH,
}
NEURONS = [
    *(
        _neuron(MPSNNNeuronDescriptor(kind, *parameters), domain, (channels, 3, 4))
        for channels, (kind, (parameters, domain)) in zip((1, 3, 4, 5, 8) * 3, _NEURON_PARAMETERS.items(), strict=True)
    ),
    _neuron(MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=[0.1, -0.2, 0.3, 0.4, 0.5]), "normal", (5, 3, 2)),
    _neuron(MPSNNNeuronDescriptor(MPSCNNNeuronType.TANH), "normal", (1, 1, 1), name="neuron tanh, default, one pixel"),
]
NEURON_CLASSES = [
    *(
        _neuron_class(getattr(neuron_kernels, f"MPSCNNNeuron{name}"))
        for name, kind in _CLASS_TYPES.items()
        if kind is not MPSCNNNeuronType.PRELU
    ),
    _neuron_class(neuron_kernels.MPSCNNNeuronPReLU, [0.5, -0.25, 0.125]),
]


# --- softmax, dropout ------------------------------------------------------------------------------------------------


def _softmax(shape: Shape) -> Sample:
    return _channel_function(
        f"softmax {shape}",
        softmax_kernels.MPSCNNSoftMax,
        softmax_kernels.MPSCNNSoftMaxGradient,
        softmax.softmax,
        softmax.softmax_gradient,
        shape,
    )


def _log_softmax(shape: Shape) -> Sample:
    return _channel_function(
        f"log-softmax {shape}",
        softmax_kernels.MPSCNNLogSoftMax,
        softmax_kernels.MPSCNNLogSoftMaxGradient,
        softmax.log_softmax,
        softmax.log_softmax_gradient,
        shape,
    )


def _channel_function(name: str, kernel: Any, gradient: Any, function: Any, derivative: Any, shape: Shape) -> Sample:
    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        y = function(how[0].region(sources[0]))
        return how[0].back(derivative(g, y), sources[0].shape)

    return Sample(
        name,
        lambda device: kernel(device),
        (shape,),
        lambda sources, how: function(how[0].region(sources[0])),
        (GradientSample(lambda device: gradient(device), differentiate, reads_result=True),),
        traits=frozenset({"pointwise", "smooth", "across channels"}),
    )


CHANNEL_FUNCTIONS = [
    *(_softmax(shape) for shape in ((1, 2, 2), (3, 1, 1), (5, 3, 2), (8, 2, 3))),
    *(_log_softmax(shape) for shape in ((3, 2, 2), (4, 1, 1), (10, 2, 3))),
]


def _dropout(keep: float, strides: tuple[int, int, int], shape: Shape) -> Sample:
    seed = 12345678901

    def mask(like: Array) -> Array:
        return dropout.mask(like.shape, keep, seed, 0, strides=strides)

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        region = how[0].region(sources[0])
        return dropout.forward(region, mask(region), keep)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        return how[0].back(dropout.forward(g, mask(g), keep), sources[0].shape)

    arguments = (keep, seed, MTLSize(*strides))
    return Sample(
        f"dropout {keep}, strides {strides}",
        lambda device: dropout_kernels.MPSCNNDropout(device, *arguments),
        (shape,),
        forward,
        (
            GradientSample(
                lambda device: dropout_kernels.MPSCNNDropoutGradient(device, *arguments),
                differentiate,
                needs_state=True,
            ),
        ),
        traits=frozenset({"pointwise", "affine", "one mask", *(["random"] if keep < 1 else [])}),
    )


DROPOUTS = [
    _dropout(0.5, (1, 1, 1), (5, 3, 4)),
    _dropout(0.8, (0, 0, 1), (8, 2, 3)),
    _dropout(0.3, (1, 1, 0), (3, 3, 3)),
    _dropout(0.5, (0, 1, 1), (1, 4, 5)),
    _dropout(1.0, (1, 1, 1), (4, 2, 2)),
]


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _add(name: str, shapes: tuple[Shape, Shape], **properties: Any) -> Sample:
    numbers = {
        "p": properties.get("primary_scale", 1.0),
        "q": properties.get("secondary_scale", 1.0),
        "bias": properties.get("bias", 0.0),
        "minimum": properties.get("minimum_value", -arithmetic.FLT_MAX),
        "maximum": properties.get("maximum_value", arithmetic.FLT_MAX),
    }

    def broadcast(side: str) -> bool:
        return properties.get(f"{side}_stride_in_feature_channels", 1) == 0

    def read(sources: list[Array], how: list[Reading]) -> list[Array]:
        regions = [reading.region(x) for x, reading in zip(sources, how, strict=True)]
        return [x[:, :1] if broadcast(side) else x for side, x in zip(("primary", "secondary"), regions, strict=True)]

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return arithmetic.forward("add", *read(sources, how), **numbers)[0]

    def differentiate(index: int, g: Array, sources: list[Array], how: list[Reading]) -> Array:
        x, y = read(sources, how)
        _, mask = arithmetic.forward("add", x, y, **numbers)
        # Every operand as large as the result: the sums over what was broadcast are the adjoint of the reading.
        x, y = np.broadcast_arrays(x, y)
        gradient = arithmetic.gradients("add", g, x, y, numbers["p"], numbers["q"], mask)[index]
        shape = list(sources[index].shape)
        if broadcast(("primary", "secondary")[index]):
            shape[1] = 1
            gradient = gradient.sum(axis=1, keepdims=True)
        found = how[index].back(gradient, shape)
        whole = np.zeros(sources[index].shape)
        whole[:, : found.shape[1]] = found
        return whole

    clamped = "minimum_value" in properties or "maximum_value" in properties
    return Sample(
        f"add {name}",
        lambda device: _configured(arithmetic_kernels.MPSCNNAdd(device), properties),
        shapes,
        forward,
        tuple(
            GradientSample(
                lambda device, second=bool(index): arithmetic_kernels.MPSCNNAddGradient(device, second),
                lambda g, sources, how, index=index: differentiate(index, g, sources, how),
                source=index,
                needs_state=clamped,
            )
            for index in range(2)
        ),
        traits=frozenset({"pointwise", *([] if clamped else ["affine"])}),
    )


ADDITIONS = [
    _add("plain", ((4, 3, 5), (4, 3, 5))),
    _add("scales and bias", ((5, 3, 2), (5, 3, 2)), primary_scale=0.5, secondary_scale=-2.0, bias=0.75),
    _add("limits", ((3, 4, 4), (3, 4, 4)), primary_scale=2.0, minimum_value=-0.5, maximum_value=1.0),
    _add(
        "broadcast a pixel",
        ((8, 3, 4), (8, 1, 1)),
        secondary_scale=3.0,
        secondary_stride_in_pixels_x=0,
        secondary_stride_in_pixels_y=0,
    ),
    _add("broadcast a channel", ((1, 3, 4), (5, 3, 4)), primary_stride_in_feature_channels=0),
    _add(
        "broadcast a number",
        ((4, 2, 3), (1, 1, 1)),
        secondary_stride_in_pixels_x=0,
        secondary_stride_in_pixels_y=0,
        secondary_stride_in_feature_channels=0,
    ),
    _add("broadcast a row", ((3, 1, 4), (3, 5, 4)), primary_stride_in_pixels_y=0, primary_scale=-1.5),
    _add("one pixel", ((1, 1, 1), (1, 1, 1))),
]


# --- losses ----------------------------------------------------------------------------------------------------------

LossType, Reduction = MPSCNNLossType, MPSCNNReductionType
_LOSS_DOMAINS = {
    LossType.CATEGORICAL_CROSS_ENTROPY: "unit",
    LossType.LOG: "unit",
}


def labels_for(kind: MPSCNNLossType, shape: tuple[int, ...]) -> Array:
    """Labels that suit a loss."""
    random = np.random.default_rng(int(kind) + sum(shape))
    if kind in (LossType.SOFT_MAX_CROSS_ENTROPY, LossType.CATEGORICAL_CROSS_ENTROPY):
        chosen = random.integers(0, shape[1], size=(shape[0], *shape[2:]))
        return np.moveaxis(np.eye(shape[1])[chosen], -1, 1).copy()
    if kind in (LossType.HINGE, LossType.SIGMOID_CROSS_ENTROPY, LossType.LOG):
        return random.integers(0, 2, size=shape).astype(np.float64)
    if kind is LossType.KULLBACK_LEIBLER_DIVERGENCE:
        return exact(random.uniform(0.1, 0.9, size=shape))
    return exact(random.normal(size=shape))


def _loss(kind: MPSCNNLossType, reduction: MPSCNNReductionType, shape: Shape, **parameters: Any) -> Sample:
    images = 4
    targets = labels_for(kind, (images, *shape))
    chosen = loss.Parameters(int(kind), int(reduction), **parameters)
    whole = reduction is Reduction.NONE

    def make(device: MTLDevice) -> ImageKernel:
        return loss_kernels.MPSCNNLoss(
            device, _configured(loss_kernels.MPSCNNLossDescriptor(kind, reduction), parameters)
        )

    def labels(bench: Bench, first: int, count: int) -> list[Any]:
        size = MTLSize(shape[2], shape[1], shape[0])
        rows = np.ascontiguousarray(targets.transpose(0, 2, 3, 1), dtype=np.float32)[first : first + count]
        return [
            loss_kernels.MPSCNNLossLabels(
                bench.device,
                loss_kernels.MPSCNNLossDataDescriptor(row, size=size),
                loss_image_size=size if whole else None,
            )
            for row in rows
        ]

    return Sample(
        f"loss {kind.name.lower()}, {reduction.name.lower()}",
        make,
        (shape,),
        lambda sources, how: loss.loss(how[0].region(sources[0]), targets[: len(sources[0])], None, chosen)[1],
        domain=_LOSS_DOMAINS.get(kind, "normal"),
        traits=frozenset({"pointwise", "across channels", "labels"}),
        labels=labels,
    )


LOSSES = [
    _loss(LossType.MEAN_ABSOLUTE_ERROR, Reduction.NONE, (3, 2, 2)),
    _loss(LossType.MEAN_SQUARED_ERROR, Reduction.MEAN, (4, 3, 2), weight=0.5),
    _loss(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, (10, 1, 1), weight=0.25),
    _loss(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, (5, 2, 3), label_smoothing=0.1, number_of_classes=5),
    _loss(LossType.SIGMOID_CROSS_ENTROPY, Reduction.SUM, (1, 2, 3), label_smoothing=0.2),
    _loss(LossType.CATEGORICAL_CROSS_ENTROPY, Reduction.SUM, (5, 1, 2)),
    _loss(LossType.HINGE, Reduction.MEAN, (3, 2, 2)),
    _loss(LossType.HUBER, Reduction.SUM, (4, 2, 2), delta=0.5),
    _loss(LossType.COSINE_DISTANCE, Reduction.SUM, (4, 2, 1), weight=2.0),
    _loss(LossType.LOG, Reduction.SUM_BY_NON_ZERO_WEIGHTS, (2, 2, 2), epsilon=1e-3),
    _loss(LossType.KULLBACK_LEIBLER_DIVERGENCE, Reduction.NONE, (8, 1, 1)),
]


# --- the list --------------------------------------------------------------------------------------------------------

SAMPLES: dict[type[MPSKernel], list[Sample]] = {
    convolution_kernels.MPSCNNConvolution: CONVOLUTIONS,
    convolution_kernels.MPSCNNFullyConnected: FULLY_CONNECTED,
    pooling_kernels.MPSCNNPoolingMax: [sample for sample in POOLINGS if sample.name.startswith("max")],
    pooling_kernels.MPSCNNPoolingAverage: [sample for sample in POOLINGS if sample.name.startswith("average")],
    neuron_kernels.MPSCNNNeuron: NEURONS,
    **{
        getattr(neuron_kernels, sample.name.split()[-1]): [sample]
        for sample in NEURON_CLASSES
    },
    softmax_kernels.MPSCNNSoftMax: [sample for sample in CHANNEL_FUNCTIONS if sample.name.startswith("softmax")],
    softmax_kernels.MPSCNNLogSoftMax: [sample for sample in CHANNEL_FUNCTIONS if sample.name.startswith("log")],
    dropout_kernels.MPSCNNDropout: DROPOUTS,
    arithmetic_kernels.MPSCNNAdd: ADDITIONS,
    loss_kernels.MPSCNNLoss: LOSSES,
}  # fmt: skip
"""Every kernel that makes images from images, forward."""

GRADIENTS: dict[type[MPSKernel], type[MPSKernel]] = {
    convolution_kernels.MPSCNNConvolutionGradient: convolution_kernels.MPSCNNConvolution,
    convolution_kernels.MPSCNNFullyConnectedGradient: convolution_kernels.MPSCNNFullyConnected,
    pooling_kernels.MPSCNNPoolingMaxGradient: pooling_kernels.MPSCNNPoolingMax,
    pooling_kernels.MPSCNNPoolingAverageGradient: pooling_kernels.MPSCNNPoolingAverage,
    neuron_kernels.MPSCNNNeuronGradient: neuron_kernels.MPSCNNNeuron,
    softmax_kernels.MPSCNNSoftMaxGradient: softmax_kernels.MPSCNNSoftMax,
    softmax_kernels.MPSCNNLogSoftMaxGradient: softmax_kernels.MPSCNNLogSoftMax,
    dropout_kernels.MPSCNNDropoutGradient: dropout_kernels.MPSCNNDropout,
    arithmetic_kernels.MPSCNNAddGradient: arithmetic_kernels.MPSCNNAdd,
}
"""Every gradient kernel, and the forward kernel in whose samples it stands."""

OPTIMIZERS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    optimizer_kernels.MPSNNOptimizerStochasticGradientDescent: lambda device: (
        optimizer_kernels.MPSNNOptimizerStochasticGradientDescent(device, 0.1, momentum_scale=0.9)
    ),
    optimizer_kernels.MPSNNOptimizerRMSProp: lambda device: optimizer_kernels.MPSNNOptimizerRMSProp(device, 0.1),
    optimizer_kernels.MPSNNOptimizerAdam: lambda device: optimizer_kernels.MPSNNOptimizerAdam(device, 0.1),
}
"""Every kernel that updates parameters; tests/kernels/test_optimizers.py holds their numbers."""

ABSTRACT: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    pooling_kernels.MPSCNNPooling: lambda device: pooling_kernels.MPSCNNPooling(device, 1, 1),
    pooling_kernels.MPSCNNPoolingGradient: lambda device: pooling_kernels.MPSCNNPoolingGradient(device, 1, 1),
    arithmetic_kernels.MPSCNNArithmetic: arithmetic_kernels.MPSCNNArithmetic,
    arithmetic_kernels.MPSCNNArithmeticGradient: arithmetic_kernels.MPSCNNArithmeticGradient,
    optimizer_kernels.MPSNNOptimizer: lambda device: optimizer_kernels.MPSNNOptimizer(
        device, optimizer_kernels.MPSNNOptimizerDescriptor()
    ),
}
"""Bases that the framework names but that compute nothing themselves."""

ALL = [sample for samples in SAMPLES.values() for sample in samples]
"""Every sample."""

SWEPT = [sample for sample in ALL if sample not in NEURON_CLASSES]
"""The samples for properties of all kernels: the neuron classes are one kernel under many names."""


def having(*traits: str, without: Sequence[str] = (), gradients: bool = False) -> list[Sample]:
    """The swept samples with all of some traits and none of others."""
    return [
        sample
        for sample in SWEPT
        if sample.traits.issuperset(traits)
        and not sample.traits.intersection(without)
        and (sample.gradients or not gradients)
    ]
