"""Kernels of the catalogue, each with the bare PyTorch call that computes the same numbers.

Every kernel of tests/catalogue.py has a case, or stands in `WITHOUT` with the reason. A case's call gets the sources'
tensors, [N, C, H, W] in channels-last memory, and the parameters that `parameters` makes. Its gradient is measured
beside torch's own gradient of that call, which uses what autograd kept of the forward pass (the results of a sigmoid,
say); ours has what the framework gives its gradient kernel: the gradient, the source and the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import openmps as mps
from samples.batch_normalization import ChannelSource
from samples.group_normalization import GammaAndBetaSource
from samples.reshape import Shaped

Side = mps.MPSNNPaddingMethod
VALID = mps.MPSNNDefaultPadding(Side.SIZE_VALID_ONLY)


class Size(NamedTuple):
    """What images are measured: [N, C, H, H]."""

    images: int
    channels: int
    side: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of an image's tensor."""
        return self.images, self.channels, self.side, self.side


SIZES = {
    "cpu": (Size(2, 16, 16), Size(8, 32, 28), Size(16, 64, 56)),
    "cuda": (Size(2, 16, 16), Size(16, 64, 56), Size(256, 64, 56)),
}
"""By device; the largest of a GPU is that of a layer of ResNet-50 in training, 205 MB."""


class Case(NamedTuple):
    """A kernel, the call, and the gradient kernels of its sources."""

    kernel: str
    make: Callable[[mps.MTLDevice, Size], Any]
    call: Callable[..., Tensor]
    """Of the sources, and behind them of the parameters."""
    gradient: Callable[[mps.MTLDevice, Any], Any] | None = None
    """The gradient kernel, of the device and the forward kernel."""
    sources: int = 1
    parameters: Callable[[Size], tuple[Tensor, ...]] = lambda size: ()
    second: Callable[[Size], tuple[int, int, int, int]] | None = None
    """The shape of the second source, if it is another than the first's."""
    reads_result: bool = False
    """Whether the gradient kernel takes the forward result instead of the source."""
    is_positive: bool = False
    """Whether the sources are above 0."""
    trains: bool = False
    """Whether the gradient kernel makes gradients of the parameters too."""
    is_random: bool = False
    """Whether numbers are not those of the call."""


def _numbers(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).random(shape, np.float32) - 0.5) / 8


def _of(kernel: str, *arguments: Any, **properties: Any) -> Callable[[mps.MTLDevice, Size], Any]:
    def make(device: mps.MTLDevice, size: Size) -> Any:
        made = getattr(mps, kernel)(device, *arguments)
        for name, value in properties.items():
            setattr(made, name, value)
        return made

    return make


def _gradient_of(kernel: str, *arguments: Any) -> Callable[[mps.MTLDevice, Any], Any]:
    return lambda device, forward: getattr(mps, f"{kernel}Gradient")(device, *arguments)


def _neuron_gradient(device: mps.MTLDevice, forward: Any) -> Any:
    parameters = forward.neuron_type, forward.a, forward.b, forward.c
    descriptor = mps.MPSNNNeuronDescriptor(*parameters, data=forward.data)
    return mps.MPSCNNNeuronGradient(device, descriptor)


def _neuron(name: str, call: Callable[..., Tensor], *arguments: float, is_positive: bool = False) -> Case:
    kernel = f"MPSCNNNeuron{name}"
    return Case(kernel, _of(kernel, *arguments), call, _neuron_gradient, is_positive=is_positive)


# --- convolutions -----------------------------------------------------------------------------------------------------


def _source(size: Size, kernel: int, outputs: int, depthwise: bool, side: int | None = None) -> Any:
    kind = mps.MPSCNNDepthWiseConvolutionDescriptor if depthwise else mps.MPSCNNConvolutionDescriptor
    extent = side or kernel
    descriptor = kind(extent, extent, size.channels, outputs)
    inputs = 1 if depthwise else size.channels
    return mps.ArrayConvolutionDataSource(descriptor, _numbers(outputs, extent, extent, inputs), _numbers(outputs))


def _convolution(
    title: str,
    call: Callable[..., Tensor],
    kernel: int = 3,
    *,
    depthwise: bool = False,
    name: str = "MPSCNNConvolution",
    whole: bool = False,
    outputs: int = 0,
) -> Case:
    def source(size: Size) -> Any:
        return _source(size, kernel, outputs or size.channels, depthwise, size.side if whole else None)

    def make(device: mps.MTLDevice, size: Size) -> Any:
        made = getattr(mps, name)(device, weights=source(size))
        made.padding = VALID if whole else made.padding
        return made

    def parameters(size: Size) -> tuple[Tensor, ...]:
        given = source(size)
        weights = torch.from_numpy(given.weights()).permute(0, 3, 1, 2)
        return weights, torch.from_numpy(given.bias_terms())

    def gradient(device: mps.MTLDevice, forward: Any) -> Any:
        return getattr(mps, f"{name}Gradient")(device, weights=forward.data_source)

    return Case(f"{name}{title}", make, call, gradient, parameters=parameters, trains=True)


def _transposed(x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    # The framework's weights are those of the convolution that reads the result.
    return F.conv_transpose2d(x, weights.permute(1, 0, 2, 3).flip(2, 3), biases, padding=1)


# --- normalizations ---------------------------------------------------------------------------------------------------


def _rows(size: Size) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(_numbers(size.channels)) + each for each in (1.0, 0.0, 0.1, 1.0))


def _batch_normalization(device: mps.MTLDevice, size: Size) -> Any:
    gamma, beta, mean, variance = (row.numpy() for row in _rows(size))
    source = ChannelSource(size.channels, 1e-3, gamma=gamma, beta=beta, mean=mean, variance=variance)
    return mps.MPSCNNBatchNormalization(device, source)


def _group_normalization(kernel: str, groups: int | None) -> Callable[[mps.MTLDevice, Size], Any]:
    def make(device: mps.MTLDevice, size: Size) -> Any:
        gamma, beta, *_ = (row.numpy() for row in _rows(size))
        return getattr(mps, kernel)(device, GammaAndBetaSource(size.channels, groups, gamma, beta))

    return make


# --- others -----------------------------------------------------------------------------------------------------------


def _l2_pooling(x: Tensor) -> Tensor:
    return F.avg_pool2d(x.square(), 2, 2, divisor_override=1).sqrt()


def _gram(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return torch.bmm(flat, flat.transpose(1, 2))[:, :, None]


def _reduction(axis: str, operation: str, dimension: int) -> Case:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "Min": lambda x: x.amin(dimension, True),
        "Max": lambda x: x.amax(dimension, True),
        "Mean": lambda x: x.mean(dimension, True),
        "Sum": lambda x: x.sum(dimension, True),
        "ArgumentMin": lambda x: x.argmin(dimension, True).float(),
        "ArgumentMax": lambda x: x.argmax(dimension, True).float(),
    }
    kernel = f"MPSNNReduce{axis}{operation}"
    return Case(kernel, _of(kernel), calls[operation])


def _arithmetic(name: str, call: Callable[..., Tensor], has_gradient: bool = True) -> Case:
    kernel = f"MPSCNN{name}"

    def gradient(device: mps.MTLDevice, forward: Any) -> Any:
        return getattr(mps, f"{kernel}Gradient")(device, is_secondary_source_filter=False)

    return Case(kernel, _of(kernel), call, gradient if has_gradient else None, sources=2)


def _pad(device: mps.MTLDevice, size: Size) -> Any:
    edge = mps.MPSImageCoordinate(x=1, y=1, channel=0)
    return mps.MPSNNPad(device, edge, edge)


def _reshape(device: mps.MTLDevice, size: Size) -> Any:
    kernel = mps.MPSNNReshape(device)
    kernel.padding = Shaped((size.channels * size.side, 1, size.side))
    return kernel


def _reshaped(x: Tensor) -> Tensor:
    images, channels, height, width = x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(images, 1, width, channels * height)
    return pixels.clone().permute(0, 3, 1, 2)  # ours is an image of its own


def _shared(size: Size) -> tuple[int, int, int, int]:
    return size.images, 2, size.side, size.side


def _sampled(x: Tensor, grid: Tensor) -> Tensor:
    found = F.grid_sample(x, grid.permute(0, 2, 3, 1), align_corners=True)
    return found.contiguous(memory_format=torch.channels_last)  # the layout, which it forgets, for the next layer


_TINY = torch.finfo(torch.float32).tiny
_HALF = torch.tensor(0.5)

CASES: tuple[Case, ...] = (
    _convolution(", 3x3", lambda x, w, b: F.conv2d(x, w, b, padding=1)),
    _convolution(", 1x1", lambda x, w, b: F.conv2d(x, w, b), 1),
    _convolution(", depthwise 3x3", lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=x.shape[1]), depthwise=True),
    _convolution(
        "",
        lambda x, w, b: F.linear(x.permute(0, 2, 3, 1).flatten(1), w.permute(0, 2, 3, 1).flatten(1), b)[
            ..., None, None
        ],
        name="MPSCNNFullyConnected",
        whole=True,
        outputs=32,
    ),
    _convolution("", _transposed, name="MPSCNNConvolutionTranspose"),
    Case(
        "MPSCNNPoolingMax",
        _of("MPSCNNPoolingMax", 2, 2, 2, 2),
        lambda x: F.max_pool2d(x, 2, 2),
        _gradient_of("MPSCNNPoolingMax", 2, 2, 2, 2),
    ),
    Case(
        "MPSCNNPoolingAverage",
        _of("MPSCNNPoolingAverage", 2, 2, 2, 2),
        lambda x: F.avg_pool2d(x, 2, 2),
        _gradient_of("MPSCNNPoolingAverage", 2, 2, 2, 2),
    ),
    Case(
        "MPSCNNPoolingL2Norm",
        _of("MPSCNNPoolingL2Norm", 2, 2, 2, 2),
        _l2_pooling,
        _gradient_of("MPSCNNPoolingL2Norm", 2, 2, 2, 2),
    ),
    Case(
        "MPSCNNDilatedPoolingMax",
        _of("MPSCNNDilatedPoolingMax", 2, 2, 2, 2, 2, 2, padding=VALID),
        lambda x: F.max_pool2d(x, 2, 2, dilation=2),
        _gradient_of("MPSCNNDilatedPoolingMax", 2, 2, 2, 2, 2, 2),
    ),
    Case(
        "MPSCNNCrossChannelNormalization",
        _of("MPSCNNCrossChannelNormalization", 5),
        lambda x: F.local_response_norm(x, 5, 1.0, 5.0, 1.0),
        _gradient_of("MPSCNNCrossChannelNormalization", 5),
    ),
    _neuron("Absolute", torch.abs),
    _neuron("ELU", F.elu, 1.0),
    _neuron("Exponential", torch.exp, 1.0, 0.0, -1.0),
    _neuron("HardSigmoid", lambda x: (x * 0.2 + 0.5).clamp(0, 1), 0.2, 0.5),
    _neuron("Linear", lambda x: torch.add(_HALF, x, alpha=2.0), 2.0, 0.5),
    _neuron("Logarithm", torch.log, 1.0, 0.0, -1.0, is_positive=True),
    _neuron("Power", torch.square, 1.0, 0.0, 2.0),
    _neuron("ReLU", torch.relu, 0.0),
    _neuron("ReLUN", F.relu6, 0.0, 6.0),
    _neuron("Sigmoid", torch.sigmoid),
    _neuron("SoftPlus", F.softplus, 1.0, 1.0),
    _neuron("SoftSign", F.softsign),
    _neuron("TanH", torch.tanh, 1.0, 1.0),
    Case(
        "MPSCNNNeuronPReLU",
        lambda device, size: mps.MPSCNNNeuronPReLU(device, _numbers(size.channels)),
        F.prelu,
        _neuron_gradient,
        parameters=lambda size: (torch.from_numpy(_numbers(size.channels)),),
    ),
    Case(
        "MPSCNNSoftMax",
        _of("MPSCNNSoftMax"),
        lambda x: torch.softmax(x, 1),
        _gradient_of("MPSCNNSoftMax"),
        reads_result=True,
    ),
    Case(
        "MPSCNNLogSoftMax",
        _of("MPSCNNLogSoftMax"),
        lambda x: torch.log_softmax(x, 1),
        _gradient_of("MPSCNNLogSoftMax"),
        reads_result=True,
    ),
    Case(
        "MPSCNNDropout",
        _of("MPSCNNDropout", 0.5, 7),
        lambda x: F.dropout(x, 0.5),
        _gradient_of("MPSCNNDropout", 0.5, 7),
        is_random=True,
    ),
    Case(
        "MPSCNNBatchNormalization",
        _batch_normalization,
        lambda x, g, b, m, v: F.batch_norm(x, m, v, g, b, eps=1e-3),
        parameters=_rows,
    ),
    Case(
        "MPSCNNInstanceNormalization",
        _group_normalization("MPSCNNInstanceNormalization", None),
        lambda x, g, b: F.instance_norm(x, None, None, g, b, eps=_TINY),
        _gradient_of("MPSCNNInstanceNormalization"),
        parameters=lambda size: _rows(size)[:2],
        trains=True,
    ),
    Case(
        "MPSCNNGroupNormalization",
        _group_normalization("MPSCNNGroupNormalization", 4),
        lambda x, g, b: F.group_norm(x, 4, g, b, eps=_TINY),
        _gradient_of("MPSCNNGroupNormalization"),
        parameters=lambda size: _rows(size)[:2],
        trains=True,
    ),
    Case(
        "MPSNNGramMatrixCalculation",
        _of("MPSNNGramMatrixCalculation", 1.0),
        _gram,
        _gradient_of("MPSNNGramMatrixCalculation"),
    ),
    _arithmetic("Add", torch.add),
    _arithmetic("Subtract", torch.sub),
    _arithmetic("Multiply", torch.mul),
    _arithmetic("Divide", torch.div, has_gradient=False),
    Case("MPSNNCompare", _of("MPSNNCompare"), lambda x, y: (x == y).float(), sources=2),
    *(
        _reduction(axis, operation, dimension)
        for axis, dimension in (("Row", 3), ("Column", 2), ("FeatureChannels", 1))
        for operation in ("Min", "Max", "Mean", "Sum")
    ),
    _reduction("FeatureChannels", "ArgumentMin", 1),
    _reduction("FeatureChannels", "ArgumentMax", 1),
    Case("MPSNNReshape", _reshape, _reshaped, _gradient_of("MPSNNReshape")),
    Case("MPSNNPad", _pad, lambda x: F.pad(x, (1, 1, 1, 1)), _gradient_of("MPSNNPad")),
    Case(
        "MPSNNSlice",
        _of("MPSNNSlice", source_feature_channel_offset=4),
        lambda x: x[:, 4:].clone(memory_format=torch.channels_last),
    ),
    Case(
        "MPSCNNUpsamplingNearest",
        _of("MPSCNNUpsamplingNearest", 2, 2),
        lambda x: F.interpolate(x, scale_factor=2),
        _gradient_of("MPSCNNUpsamplingNearest", 2, 2),
    ),
    Case(
        "MPSCNNUpsamplingBilinear",
        _of("MPSCNNUpsamplingBilinear", 2, 2, True),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        _gradient_of("MPSCNNUpsamplingBilinear", 2, 2),
    ),
    Case(
        "MPSNNResizeBilinear",
        lambda device, size: mps.MPSNNResizeBilinear(device, size.side + 5, size.side + 5, True),
        lambda x: F.interpolate(x, size=(x.shape[2] + 5,) * 2, mode="bilinear", align_corners=True),
    ),
    Case(
        "MPSNNGridSample",
        _of("MPSNNGridSample"),
        _sampled,
        sources=2,
        second=_shared,
        is_random=True,
    ),
)

_COMPOSED = "no single call computes it"
WITHOUT: dict[str, str] = {
    "MPSCNNNeuron": "the classes of neurons are measured, one by one",
    "MPSCNNBinaryConvolution": _COMPOSED,
    "MPSCNNBinaryFullyConnected": _COMPOSED,
    "MPSCNNSpatialNormalization": _COMPOSED,
    "MPSCNNLocalContrastNormalization": _COMPOSED,
    "MPSCNNYOLOLoss": _COMPOSED,
    "MPSCNNLoss": "its value and gradient are one kernel: measured in the networks",
    "MPSNNForwardLoss": "measured in the networks as a part of MPSCNNLoss",
    "MPSNNLossGradient": "measured in the networks as a part of MPSCNNLoss",
    "MPSNNInitialGradient": "a fill",
    "MPSNNReduceFeatureChannelsAndWeightsMean": _COMPOSED,
    "MPSNNReduceFeatureChannelsAndWeightsSum": _COMPOSED,
    "MPSNNLocalCorrelation": _COMPOSED,
    "MPSNNCropAndResizeBilinear": _COMPOSED,
}


def tolerance(case: Case) -> float:
    """How far our numbers may lie from the call's, as a share of the largest: sums are in another order."""
    return math.inf if case.is_random else 1e-4
