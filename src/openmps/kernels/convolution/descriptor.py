"""Shapes and parameters of a convolution (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, number
from openmps.core.arrays import numbers, row, variances
from openmps.core.data_source import FLT_MIN
from openmps.core.kernel.configuration import FARTHEST
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError, warn_user
from openmps.selectors import Factory, name_arguments
from openmps.types import MPSCNNNeuronType

FloatArray = NDArray[np.float32]

_LARGEST_REACH = 2**24
"""Far beyond any texture. The engine's own arithmetic of padding and dilation ends at 2**31, not always with an error.
"""


@dataclass(frozen=True, slots=True)
class BatchNormalizationFold:
    """Inference statistics that are folded into the weights: ``W' = W I, b' = b I + J``, a row of numbers a channel."""

    scale: FloatArray
    shift: FloatArray


@name_arguments
class MPSCNNConvolutionDescriptor(NamedAttributes):
    """Shapes and parameters of a convolution (MPSCNNConvolution.h, macOS 10.13).

    ``MPSCNNConvolutionDescriptor(kernel_width, kernel_height, input_feature_channels, output_feature_channels)``.
    `stride_in_pixels_x`, `stride_in_pixels_y`, `dilation_rate_x`, `dilation_rate_y` and `groups` are 1 unless set.
    `fused_neuron_descriptor` names a neuron applied to the result; batch normalization with fixed statistics can be
    folded in with `set_batch_normalization_parameters_for_inference`.
    """

    kernel_width: int
    """Columns of the kernel."""
    kernel_height: int
    """Rows of the kernel."""
    input_feature_channels: int
    """Channels read."""
    output_feature_channels: int
    """Channels made."""
    stride_in_pixels_x: int = 1
    """Source columns from one window to the next."""
    stride_in_pixels_y: int = 1
    """Source rows from one window to the next."""
    dilation_rate_x: int = 1
    """Source columns from one tap to the next."""
    dilation_rate_y: int = 1
    """Source rows from one tap to the next."""
    groups: int = 1
    """Groups that input and output channels are divided into."""
    fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None
    """A neuron applied to the result."""
    batch_normalization: BatchNormalizationFold | None = None
    """Scale and shift that inference batch normalization folds into the weights."""

    cnn_convolution_descriptor = Factory(
        "cnnConvolutionDescriptorWithKernelWidth:kernelHeight:inputFeatureChannels:outputFeatureChannels:",
        "cnnConvolutionDescriptorWithKernelWidth:kernelHeight:inputFeatureChannels:outputFeatureChannels:neuronFilter:",
    )

    def __init__(
        self,
        kernel_width: int = 3,
        kernel_height: int = 3,
        input_feature_channels: int = 1,
        output_feature_channels: int = 1,
        neuron_filter: Any = None,
    ) -> None:
        self.kernel_width = kernel_width
        self.kernel_height = kernel_height
        self.input_feature_channels = input_feature_channels
        self.output_feature_channels = output_feature_channels
        self._neuron_filter: Any = None
        if neuron_filter is not None:
            self.neuron = neuron_filter

    supports_secure_coding = True

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel of a depthwise convolution; 0 for a regular one."""
        return 0

    @property
    def neuron(self) -> Any:
        """A neuron kernel applied to the result (deprecated in favour of `fused_neuron_descriptor`)."""
        return self._neuron_filter

    @neuron.setter
    def neuron(self, value: Any) -> None:
        if value is None:
            self._neuron_filter = self.fused_neuron_descriptor = None
            return
        kind = getattr(value, "neuron_type", None)
        if not (isinstance(kind, MPSCNNNeuronType) and hasattr(value, "data")):  # others have a type alone
            raise MPSTypeError("MPSCNNConvolutionDescriptor", "neuron", "must be an MPSCNNNeuron", type(value).__name__)
        self.fused_neuron_descriptor = MPSNNNeuronDescriptor(kind, value.a, value.b, value.c, data=value.data)
        self._neuron_filter = value

    def neuron_type(self) -> MPSCNNNeuronType:
        """Type of the fused neuron (deprecated)."""
        fused = self.fused_neuron_descriptor
        return MPSCNNNeuronType.NONE if fused is None else fused.neuron_type

    def neuron_parameter_a(self) -> float:
        """Parameter a of the fused neuron (deprecated)."""
        return 0.0 if self.fused_neuron_descriptor is None else self.fused_neuron_descriptor.a

    def neuron_parameter_b(self) -> float:
        """Parameter b of the fused neuron (deprecated)."""
        return 0.0 if self.fused_neuron_descriptor is None else self.fused_neuron_descriptor.b

    def set_neuron_type(
        self, neuron_type: MPSCNNNeuronType, parameter_a: float = 0.0, parameter_b: float = 0.0
    ) -> None:
        """Fuse a neuron (deprecated in favour of `fused_neuron_descriptor`)."""
        self.fused_neuron_descriptor = MPSNNNeuronDescriptor(neuron_type, parameter_a, parameter_b)

    def set_neuron_to_prelu(self, parameters_a: Sequence[float] | NDArray[Any] | bytes) -> None:
        """Fuse PReLU with one number an output channel (deprecated in favour of `fused_neuron_descriptor`)."""
        self.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=parameters_a)

    def set_batch_normalization_parameters_for_inference(
        self,
        mean: Sequence[float] | NDArray[Any] | None,
        variance: Sequence[float] | NDArray[Any] | None,
        gamma: Sequence[float] | NDArray[Any] | None = None,
        beta: Sequence[float] | NDArray[Any] | None = None,
        epsilon: float = FLT_MIN,
    ) -> None:
        """Fold ``(x - mean) gamma / sqrt(variance + epsilon) + beta`` into weights and biases.

        One number an output channel each; None stands for mean 0, variance 1, gamma 1, beta 0.
        """
        self._validate_count("MPSCNNConvolutionDescriptor", "output_feature_channels")
        channels = self.output_feature_channels
        mean_, variance_ = _row("mean", mean, 0.0, channels), _row("variance", variance, 1.0, channels)
        gamma_, beta_ = _row("gamma", gamma, 1.0, channels), _row("beta", beta, 0.0, channels)
        epsilon = number("MPSCNNConvolutionDescriptor", "epsilon", epsilon)
        if not np.all(variances("MPSCNNConvolutionDescriptor", "variance", variance_) + epsilon > 0):
            rule = "plus epsilon must be positive"
            raise MPSArgumentError("MPSCNNConvolutionDescriptor", "variance", rule, float(variance_.min()))
        scale = gamma_ / np.sqrt(variance_ + epsilon)
        shift = beta_ - scale * mean_
        rows = (np.broadcast_to(part.astype(np.float32), channels) for part in (scale, shift))
        self.batch_normalization = BatchNormalizationFold(*rows)

    result_channels = Shown[int](
        "output_feature_channels",
        "Feature channels of a result image: the output channels, unless they become pixels. Our addition.",
    )

    def weight_shape(self) -> tuple[int, int, int, int]:
        """OHWI: output channels, rows, columns, input channels of one group."""
        return (
            self.output_feature_channels,
            self.kernel_height,
            self.kernel_width,
            self.input_feature_channels // self.groups,
        )

    def validate(self, who: str) -> None:
        """Raise `MPSArgumentError` unless a kernel can be made from this descriptor."""
        for name in (
            "kernel_width",
            "kernel_height",
            "input_feature_channels",
            "output_feature_channels",
            "stride_in_pixels_x",
            "stride_in_pixels_y",
            "dilation_rate_x",
            "dilation_rate_y",
            "groups",
        ):
            self._validate_count(who, name)
        self._validate_reach(who)
        parts = (("fused_neuron_descriptor", MPSNNNeuronDescriptor), ("batch_normalization", BatchNormalizationFold))
        for name, kind in parts:
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                rule = f"must be an {kind.__name__} or None"
                raise MPSTypeError(who, f"descriptor.{name}", rule, type(value).__name__)
        self._validate_groups(who)

    def _validate_count(self, who: str, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise MPSArgumentError(who, f"descriptor.{name}", "must be an integer of at least 1", repr(value))
        if value > FARTHEST:
            raise MPSArgumentError(who, f"descriptor.{name}", f"must be at most {FARTHEST}", value)

    def _validate_reach(self, who: str) -> None:
        for axis, size in (("x", self.kernel_width), ("y", self.kernel_height)):
            reach = (size - 1) * getattr(self, f"dilation_rate_{axis}") + 1
            if reach > _LARGEST_REACH:
                rule = f"must leave the dilated kernel at most {_LARGEST_REACH} pixels: no image is larger"
                raise MPSArgumentError(who, f"descriptor.dilation_rate_{axis}", rule, f"{reach} pixels")

    def _validate_groups(self, who: str) -> None:
        inputs, outputs = self.input_feature_channels, self.output_feature_channels
        if inputs % self.groups or outputs % self.groups:
            rule = f"must divide {inputs} input and {outputs} output channels"
            raise MPSArgumentError(who, "descriptor.groups", rule, self.groups)
        if self.groups > 1 and ((inputs // self.groups) % 4 or (outputs // self.groups) % 4):
            warn_user(
                f"{who}: {self.groups} groups of {inputs // self.groups} input and {outputs // self.groups} output "
                "channels compute here, but Apple devices need multiples of 4 channels a group",
            )

    def copy(self) -> MPSCNNConvolutionDescriptor:
        """A descriptor of its own with the same values."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if self.fused_neuron_descriptor is not None:
            twin.fused_neuron_descriptor = self.fused_neuron_descriptor.copy()
        return twin

    __copy__ = copy

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.kernel_width}x{self.kernel_height}, "
            f"{self.input_feature_channels} -> {self.output_feature_channels} channels, "
            f"stride {self.stride_in_pixels_x}x{self.stride_in_pixels_y})"
        )


def _row(name: str, values: Sequence[float] | NDArray[Any] | None, default: float, channels: int) -> NDArray[Any]:
    if values is None:  # one number, however many channels the descriptor claims until a kernel is made from it
        return np.full(1, default, np.float64)
    who, rule = "MPSCNNConvolutionDescriptor", f"must hold one number an output channel, {channels}"
    return row(who, name, numbers(who, name, values), channels, rule).astype(np.float64)


class MPSCNNDepthWiseConvolutionDescriptor(MPSCNNConvolutionDescriptor):
    """A depthwise convolution: each input channel has its own kernels (MPSCNNConvolution.h, macOS 10.13).

    ``Y[k m + q] = X[k] * F[k][q]`` with ``m = channel_multiplier = output_feature_channels / input_feature_channels``.
    Weights are ``[O][kernel_height][kernel_width]``. `groups` must stay 1.
    """

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel; an error as long as either number is none that channels can have."""
        for name in ("input_feature_channels", "output_feature_channels"):
            self._validate_count("MPSCNNDepthWiseConvolutionDescriptor", name)
        return self.output_feature_channels // self.input_feature_channels

    def weight_shape(self) -> tuple[int, int, int, int]:
        """Output channels, rows, columns, 1."""
        return (self.output_feature_channels, self.kernel_height, self.kernel_width, 1)

    def _validate_groups(self, who: str) -> None:
        if self.groups != 1:
            raise MPSArgumentError(who, "descriptor.groups", "must be 1 for a depthwise convolution", self.groups)
        if self.output_feature_channels % self.input_feature_channels:
            rule = f"must be a multiple of the {self.input_feature_channels} input channels"
            raise MPSArgumentError(who, "descriptor.output_feature_channels", rule, self.output_feature_channels)


class MPSCNNSubPixelConvolutionDescriptor(MPSCNNConvolutionDescriptor):
    """A convolution whose output channels become blocks of pixels (MPSCNNConvolution.h, macOS 10.13).

    With ``f = sub_pixel_scale_factor``, ``C = output_feature_channels / f²`` and I the plain convolution's result, bias
    and neuron included, on a grid of ``ceil(height / f)`` by ``ceil(width / f)`` pixels::

        Y[c, y, x] = I[C (f (y mod f) + x mod f) + c, y // f, x // f]     c < C

    The order is that of TensorFlow's depth_to_space; PyTorch's pixel_shuffle has ``c`` outermost. Results that the
    kernel sizes are f times as large as the plain convolution's. f² must divide the output channels. There is no
    gradient.
    """

    sub_pixel_scale_factor: int = 1
    """Pixels that a plain result pixel becomes on each axis. Default 1."""

    @property
    def result_channels(self) -> int:
        """Feature channels of a result image: ``output_feature_channels / f²``. Our addition."""
        return self.output_feature_channels // self.sub_pixel_scale_factor**2

    def validate(self, who: str) -> None:
        """Raise `MPSArgumentError` unless a kernel can be made from this descriptor."""
        super().validate(who)
        factor, outputs = self.sub_pixel_scale_factor, self.output_feature_channels
        self._validate_count(who, "sub_pixel_scale_factor")
        if outputs % factor**2:
            rule = f"squared must divide the {outputs} output channels"
            raise MPSArgumentError(who, "descriptor.sub_pixel_scale_factor", rule, factor)
        if self.groups > 1 and self.result_channels % 4:
            warn_user(
                f"{who}: {self.groups} groups with {self.result_channels} channels a sub-pixel compute here, but Apple "
                "devices need multiples of 4 channels a sub-pixel with groups",
            )


def sub_pixel_factor(descriptor: MPSCNNConvolutionDescriptor) -> int:
    """The enlargement that a descriptor asks for; 1, none, unless it is a sub-pixel descriptor."""
    if isinstance(descriptor, MPSCNNSubPixelConvolutionDescriptor):
        return descriptor.sub_pixel_scale_factor
    return 1


def refuse_sub_pixels(who: str, descriptor: MPSCNNConvolutionDescriptor) -> None:
    """Raise `MPSArgumentError` for a descriptor that makes sub-pixels, in the name of a kernel that cannot."""
    factor = sub_pixel_factor(descriptor)
    if factor != 1:
        rule = "must be 1: only a forward convolution makes sub-pixels, and it has no gradient"
        remedy = "Use MPSCNNConvolutionDescriptor"
        raise MPSArgumentError(who, "descriptor.sub_pixel_scale_factor", rule, factor, remedy)
