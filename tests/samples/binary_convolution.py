"""Convolutions and fully connected layers with weights of one bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from openmps.kernels.convolution.binary import MPSCNNBinaryConvolution, MPSCNNBinaryFullyConnected
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.types import MPSCNNBinaryConvolutionFlags, MPSCNNBinaryConvolutionType, MPSDataType
from oracles import binary_convolution as oracle
from samples.convolution import ArraySource
from samples.sample import BOTTOM_RIGHT, CLAMP, FULL, VALID, Array, Reading, Sample, configured, exact

Type = MPSCNNBinaryConvolutionType
BINARY, XNOR, AND = Type.BINARY_WEIGHTS, Type.XNOR, Type.AND
TERMS = ("output_bias", "output_scale", "input_bias", "input_scale")


@dataclass(frozen=True)
class BinaryLayer:
    """The shape and the options of a binary convolution."""

    kind: MPSCNNBinaryConvolutionType
    inputs: int
    outputs: int
    height: int = 3
    width: int = 3
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    """Both (vertical, horizontal)."""
    terms: tuple[str, ...] = ()
    beta: bool = False
    scale_value: float | None = None

    def descriptor(self) -> Any:
        descriptor = MPSCNNConvolutionDescriptor(self.width, self.height, self.inputs, self.outputs)
        descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x = self.stride
        descriptor.dilation_rate_y, descriptor.dilation_rate_x = self.dilation
        return descriptor

    def words(self) -> Array:
        """The same words each time."""
        random = np.random.default_rng(self.inputs * 1000 + self.outputs)
        return oracle.pack(random.integers(0, 2, size=(self.outputs, self.height, self.width, self.inputs)))

    def numbers(self) -> dict[str, Array]:
        """The terms by the oracle's names; the same numbers each time."""
        random = np.random.default_rng(self.inputs)
        counts = {name: self.inputs if name.startswith("input") else self.outputs for name in TERMS}
        drawn = {name: exact(random.normal(size=count)) for name, count in counts.items()}
        return {name: drawn[name] for name in TERMS if name in self.terms}

    def biases(self) -> Array:
        return exact(np.linspace(-2.0, 3.0, self.outputs))

    def source(self) -> ArraySource:
        return ArraySource(self.descriptor(), self.words(), self.biases().astype(np.float32), MPSDataType.UINT32)

    def make(self, kernel: Any, device: Any) -> Any:
        flags = MPSCNNBinaryConvolutionFlags(int(self.beta))
        terms = {f"{name}_terms": row.astype(np.float32) for name, row in self.numbers().items()}
        return kernel(device, self.source(), type=self.kind, flags=flags, scale_value=self.scale_value, **terms)

    def forward(self, sources: list[Array], how: list[Reading]) -> Array:
        (x,), ((rows, columns, edge),) = sources, how
        terms = self.numbers()
        if self.scale_value is not None:
            terms = {"output_scale": np.full(self.outputs, self.scale_value), "output_bias": self.biases()}
        return oracle.forward(x, self.words(), int(self.kind), rows, columns, edge, beta=self.beta, **terms)


def _convolution(name: str, layer: BinaryLayer, height: int, width: int, **properties: Any) -> Sample:
    return Sample(
        f"binary convolution {name}",
        lambda device: configured(layer.make(MPSCNNBinaryConvolution, device), properties),
        ((layer.inputs, height, width),),
        layer.forward,
    )


def _fully_connected(name: str, layer: BinaryLayer, height: int, width: int) -> Sample:
    return Sample(
        f"binary fully connected {name}",
        lambda device: layer.make(MPSCNNBinaryFullyConnected, device),
        ((layer.inputs, height, width),),
        layer.forward,
        traits=frozenset({"ignores offset"}),
    )


BINARY_CONVOLUTIONS = [
    _convolution("weights", BinaryLayer(BINARY, 5, 4), 6, 7),
    _convolution("xnor", BinaryLayer(XNOR, 5, 4), 6, 7),
    _convolution("and", BinaryLayer(AND, 5, 4), 6, 7),
    _convolution("one pixel", BinaryLayer(XNOR, 1, 1, scale_value=0.25), 1, 1),
    _convolution(
        "xnor, 33 channels, even, stride 2x1, all terms, beta, bottom right",
        BinaryLayer(XNOR, 33, 3, 2, 4, stride=(2, 1), terms=TERMS, beta=True),
        5,
        6,
        padding=BOTTOM_RIGHT,
    ),
    _convolution(
        "weights, dilated, input terms, beta, clamp",
        BinaryLayer(BINARY, 4, 8, 2, 3, dilation=(3, 2), terms=("input_bias", "input_scale"), beta=True),
        6,
        5,
        edge_mode=CLAMP,
    ),
    _convolution(
        "and, valid, stride 3", BinaryLayer(AND, 32, 4, stride=(3, 3), scale_value=-0.5), 8, 11, padding=VALID
    ),
    _convolution(
        "weights, full, output terms", BinaryLayer(BINARY, 3, 5, 4, 3, terms=TERMS[:2], beta=True), 4, 3, padding=FULL
    ),
]
BINARY_FULLY_CONNECTED = [
    _fully_connected("weights 3x4", BinaryLayer(BINARY, 5, 7, 3, 4, scale_value=2.0), 3, 4),
    _fully_connected("xnor 2x3, beta", BinaryLayer(XNOR, 34, 4, 2, 3, terms=TERMS, beta=True), 2, 3),
    _fully_connected("and, on a larger image", BinaryLayer(AND, 4, 5, 2, 3), 4, 5),
]
EXTREME_BINARY_CONVOLUTIONS = [
    _convolution("xnor, larger than the image, beta", BinaryLayer(XNOR, 5, 4, 9, 8, beta=True), 2, 3),
    _convolution("weights, stride larger than the image", BinaryLayer(BINARY, 33, 3, stride=(50, 70)), 4, 5),
    _convolution("and, taps beside the image", BinaryLayer(AND, 5, 4, 2, 2, dilation=(40, 50)), 4, 5),
    _convolution(
        "weights, taps beside the image, clamp", BinaryLayer(BINARY, 5, 4, 2, 2, dilation=(9, 8)), 4, 5, edge_mode=CLAMP
    ),
]
"""Windows and images that hardly meet."""
