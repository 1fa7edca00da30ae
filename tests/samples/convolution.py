"""Convolutions and fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openmps.kernels import convolution as kernels
from openmps.types import MPSDataType
from oracles import convolution
from samples.sample import (
    BOTTOM_RIGHT,
    CLAMP,
    FULL,
    VALID,
    Array,
    CountedSource,
    GradientSample,
    Reading,
    Sample,
    configured,
    exact,
)


class ArraySource(CountedSource):
    """A data source over arrays that counts what is asked of it."""

    def __init__(self, descriptor: Any, weights: Any, biases: Any = None, kind: MPSDataType = MPSDataType.FLOAT32):
        self._descriptor, self._weights, self._biases, self._kind = descriptor, weights, biases, kind

    def data_type(self) -> MPSDataType:
        return self._kind

    def descriptor(self) -> Any:
        return self._descriptor

    def weights(self) -> Any:
        self.check_loaded()
        return self._weights

    def bias_terms(self) -> Any:
        self.check_loaded()
        return self._biases


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
    sub_pixels: int = 1
    half: bool = False
    """Whether the weights are float16 numbers."""

    def descriptor(self) -> Any:
        kind = kernels.MPSCNNConvolutionDescriptor
        if self.depthwise:
            kind = kernels.MPSCNNDepthWiseConvolutionDescriptor
        if self.sub_pixels != 1:
            kind = kernels.MPSCNNSubPixelConvolutionDescriptor
        descriptor = kind(self.width, self.height, self.inputs, self.outputs)
        descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x = self.stride
        descriptor.dilation_rate_y, descriptor.dilation_rate_x = self.dilation
        descriptor.groups = self.groups
        if self.sub_pixels != 1:
            descriptor.sub_pixel_scale_factor = self.sub_pixels
        return descriptor

    def weights(self) -> Array:
        """OHWI; the same numbers each time."""
        inputs = 1 if self.depthwise else self.inputs // self.groups
        random = np.random.default_rng(self.inputs * 1000 + self.outputs)
        weights = exact(random.normal(size=(self.outputs, self.height, self.width, inputs)))
        return weights.astype(np.float16).astype(np.float64) if self.half else weights

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

    def sub_pixel_forward(self, sources: list[Array], how: list[Reading]) -> Array:
        """The plain convolution on a grid of one pixel a block, then the blocks."""
        ((rows, columns, edge),), factor = how, self.sub_pixels
        height, width = rows.result, columns.result
        grid = rows._replace(result=-(-height // factor)), columns._replace(result=-(-width // factor))
        return convolution.sub_pixels(self.forward(sources, [Reading(*grid, edge)]), factor, height, width)

    def transpose_forward(self, sources: list[Array], how: list[Reading]) -> Array:
        (x,), ((rows, columns, _),) = sources, how
        return convolution.transpose(x, self.weights(), self.bias_terms(), rows, columns, self.engine_groups)

    def transpose_gradient(self, g: Array, sources: list[Array], how: list[Reading]) -> tuple[Array, Array, Array]:
        (x,), ((rows, columns, _),) = sources, how
        return convolution.transpose_gradient(g, x, self.weights(), rows, columns, self.engine_groups)

    def gradient(self, g: Array, sources: list[Array], how: list[Reading]) -> tuple[Array, Array, Array]:
        (x,), ((rows, columns, edge),) = sources, how
        return convolution.gradient(g, x, self.weights(), rows, columns, self.engine_groups, edge)


def _convolution(name: str, layer: Layer, height: int, width: int, **properties: Any) -> Sample:
    return _layer(
        f"convolution {name}",
        layer,
        height,
        width,
        kernels.MPSCNNConvolution,
        kernels.MPSCNNConvolutionGradient,
        frozenset({"affine"}),
        properties,
    )


def _fully_connected(name: str, layer: Layer, height: int, width: int) -> Sample:
    return _layer(
        f"fully connected {name}",
        layer,
        height,
        width,
        kernels.MPSCNNFullyConnected,
        kernels.MPSCNNFullyConnectedGradient,
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
        lambda device: configured(kernel(device, weights=layer.source()), properties),
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
        half_forward=replace(layer, half=True).forward,
    )


def _sub_pixels(name: str, layer: Layer, height: int, width: int, **properties: Any) -> Sample:
    return Sample(
        f"convolution to sub-pixels {name}",
        lambda device: configured(kernels.MPSCNNConvolution(device, weights=layer.source()), properties),
        ((layer.inputs, height, width),),
        layer.sub_pixel_forward,
        traits=frozenset({"affine", "blocks"}),
        half_forward=replace(layer, half=True).sub_pixel_forward,
    )


def _transpose(name: str, layer: Layer, height: int, width: int, **properties: Any) -> Sample:
    return Sample(
        f"transposed convolution {name}",
        lambda device: configured(kernels.MPSCNNConvolutionTranspose(device, weights=layer.source()), properties),
        ((layer.inputs, height, width),),
        layer.transpose_forward,
        (
            GradientSample(
                lambda device: kernels.MPSCNNConvolutionTransposeGradient(device, weights=layer.source()),
                lambda g, sources, how: layer.transpose_gradient(g, sources, how)[0],
                needs_state=True,
                parameters=lambda g, sources, how: layer.transpose_gradient(g, sources, how)[1:],
                by_hand=lambda forward: {
                    "kernel_offset_x": forward.kernel_offset_x,
                    "kernel_offset_y": forward.kernel_offset_y,
                },
            ),
        ),
        traits=frozenset({"affine"}),
        half_forward=replace(layer, half=True).transpose_forward,
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
    _sub_pixels("2x2", Layer(3, 12, sub_pixels=2), 4, 3),
    _sub_pixels("3x3, strided, clamp", Layer(4, 9, 2, 3, stride=(2, 1), sub_pixels=3), 3, 4, edge_mode=CLAMP),
]
FULLY_CONNECTED = [
    _fully_connected("3x4", Layer(5, 7, 3, 4), 3, 4),
    _fully_connected("1x1", Layer(8, 3, 1, 1, biases=False), 1, 1),
    _fully_connected("on a larger image", Layer(4, 5, 2, 3), 4, 5),
]
TRANSPOSES = [
    _transpose("3x3", Layer(3, 5), 4, 5),
    _transpose("one pixel", Layer(1, 1, biases=False), 1, 1),
    _transpose("stride 2", Layer(4, 8, stride=(2, 2)), 3, 4),
    _transpose("even, stride 2x3, bottom right", Layer(5, 4, 2, 4, stride=(2, 3)), 3, 4, padding=BOTTOM_RIGHT),
    _transpose("stride above size, full", Layer(3, 4, 1, 2, stride=(3, 3)), 3, 2, padding=FULL),
    _transpose("valid", Layer(1, 4, 3, 2, stride=(2, 1), biases=False), 4, 5, padding=VALID),
    _transpose("even and dilated", Layer(4, 3, 2, 2, stride=(2, 2), dilation=(3, 2)), 4, 3),
    _transpose("groups", Layer(8, 16, groups=2, stride=(2, 2)), 3, 4),
    _transpose("depthwise, multiplier 2", Layer(3, 6, 2, 3, stride=(2, 2), depthwise=True), 4, 3),
]
EXTREME_CONVOLUTIONS = [
    _convolution("larger than the image", Layer(3, 5, 5, 7), 2, 3),
    _convolution("larger than the image, clamp", Layer(2, 4, 6, 8), 2, 3, edge_mode=CLAMP),
    _convolution("larger than one pixel", Layer(1, 1, 1, 20), 1, 1),
    _convolution("stride larger than the image", Layer(3, 5, stride=(50, 70)), 4, 5),
    _convolution("stride larger than the image, full", Layer(3, 5, stride=(50, 70)), 4, 5, padding=FULL),
    _convolution("taps beside the image", Layer(3, 5, 2, 2, dilation=(40, 50)), 4, 5),
    _convolution("taps beside the image, clamp", Layer(3, 5, 2, 2, dilation=(40, 50)), 4, 5, edge_mode=CLAMP),
    _convolution("taps beside the image, depthwise", Layer(4, 4, 2, 2, dilation=(40, 50), depthwise=True), 4, 5),
    _convolution("far apart in groups", Layer(8, 8, 4, 4, stride=(9, 9), dilation=(7, 9), groups=2), 4, 5),
    _sub_pixels("taps beside the image", Layer(3, 16, 2, 2, dilation=(40, 50), sub_pixels=4), 2, 3),
    _transpose("larger than the image", Layer(3, 5, 5, 7), 2, 3),
    _transpose("stride larger than the image", Layer(3, 5, stride=(6, 7)), 2, 3),
    _transpose("taps beside the image", Layer(3, 5, 2, 2, dilation=(40, 50)), 2, 3),
    _transpose("taps far apart, full", Layer(3, 5, 2, 2, stride=(3, 4), dilation=(10, 20)), 2, 3, padding=FULL),
    _transpose("taps beside the image, depthwise", Layer(4, 4, 2, 2, dilation=(40, 50), depthwise=True), 2, 3),
]
"""Windows and images that hardly meet; not among the samples of the sweeps, most of which ask for ordinary ones."""
