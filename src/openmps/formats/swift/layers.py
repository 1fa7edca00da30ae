"""Data sources as Swift: the numbers that kernels hold as files, and the statements that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.archive.sources import ArchivedQuantizedWeights
from openmps.formats.swift.classes import normalization, quantized, template
from openmps.formats.swift.literals import camel, case, float32, literal, string, whole
from openmps.formats.swift.text import Text
from openmps.formats.swift.trained import Trained
from openmps.graph.nodes.neuron import SINCE
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.releases import FIRST
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import MPSCNNBinaryConvolution, MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.descriptor import (
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.kernels.group_normalization import MPSCNNGroupNormalization
from openmps.types import MPSCNNNeuronType, MPSDataType, MPSImageFeatureChannelFormat

_FLOAT16 = MPSDataType.FLOAT16
_STRIDES = ("stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "dilation_rate_y", "groups")
_SUB_PIXEL = "sub_pixel_scale_factor"
_ALIGNED = 4
"""Bytes at a multiple of which biases begin behind weights of float16."""
_PAIRS_ALIGNED = 8
"""Bytes at a multiple of which pairs of numbers begin behind weights of 8 bits."""
_QUANTIZED_SINCE = "10.14"
"""The first macOS that asks a data source how its weights are quantized."""


class _Normalization(NamedTuple):
    """What one kind of normalization is called in Swift."""

    kind: str
    since: str


_KINDS = {
    "batch": _Normalization("BatchNormalization", "10.13.4"),
    "instance": _Normalization("InstanceNormalization", "10.13.4"),
    "group": _Normalization("GroupNormalization", "10.15"),
}


class Layers:
    """Writes the data sources of one model, each once, with its file."""

    def __init__(self, text: Text, trained: Trained, *, half: bool, graph_format: MPSImageFeatureChannelFormat) -> None:
        self._text, self._trained, self._half = text, trained, half
        self._of_float32 = graph_format is MPSImageFeatureChannelFormat.FLOAT32
        self._known: dict[int, str] = {}

    def source_of(self, node: MPSNNFilterNode, kernel: Any) -> str:
        """The variable of a node's data source, written when it is met first; shared where weights are."""
        if isinstance(kernel, MPSCNNBinaryConvolution):
            return self._known.get(id(kernel)) or self._binary(node, kernel)
        if hasattr(kernel, "parameters"):
            return self._known.get(id(kernel.parameters)) or self._convolution(node, kernel)
        return self._known.get(id(kernel)) or self._normalization(node, kernel)

    # --- convolutions -------------------------------------------------------------------------------------------------

    def _convolution(self, node: MPSNNFilterNode, kernel: Any) -> str:
        held = kernel.parameters
        label = kernel.data_source.label()
        variable = self._text.names.take(f"{label or self._text.stem(node)}Weights")
        descriptor = self.descriptor(held.descriptor, variable)
        biases = b"" if held.biases_buffer is None else _numbers(held.biases_buffer).tobytes()
        if not biases and held.descriptor.batch_normalization is not None:
            biases = bytes(4 * held.shape[0])  # the header asks for zeros where batch normalization is folded in
        self._known[id(held)] = variable
        if isinstance(kernel.data_source, ArchivedQuantizedWeights):
            self._quantized(kernel.data_source, variable, biases, descriptor)
            return variable
        weights = _numbers(held.weights_buffer)
        if self._trained.asks(kernel):
            self._trained.convolution(label, variable, descriptor, weights, biases)
            return variable
        halves = self._half or held.precision is _FLOAT16
        content = weights.astype("<f2" if self._half else "<f4").tobytes()
        content += b"\0" * (-len(content) % _ALIGNED)
        precise = not halves and (held.precision is MPSDataType.FLOAT32 or self._of_float32)
        self._write(
            variable, label, content, biases, descriptor, (_FLOAT16 if self._half else MPSDataType.FLOAT32, precise)
        )
        return variable

    def _quantized(self, source: ArchivedQuantizedWeights, variable: str, biases: bytes, descriptor: str) -> None:
        """Weights of 8 bits, as they are."""
        text, label = self._text, source.label()
        ranges, table = source.ranges_for_uint8_kernel(), source.lookup_table_for_uint8_kernel()
        numbers = np.ascontiguousarray(table if ranges is None else ranges, "<f4").tobytes()
        content = np.ascontiguousarray(source.weights(), np.uint8).tobytes()
        content += b"\0" * (-len(content) % _PAIRS_ALIGNED)
        file = text.file(label or variable, content + numbers + biases)
        kind, swift = quantized(source.weights_quantization_type())
        text.use(swift)
        text.needs(_QUANTIZED_SINCE)
        text.call(
            f"let {variable} = try {text.model}{kind}",
            {
                "label": _text_or_nil(label),
                "file": text.path(file),
                "numberOffset": whole(len(content)),
                "biasOffset": whole(len(content) + len(numbers)),
                "biasCount": whole(len(biases) // 4),
                "descriptor": descriptor,
            },
        )

    def _binary(self, node: MPSNNFilterNode, kernel: MPSCNNBinaryConvolution) -> str:
        variable = self._text.names.take(f"{node.label or self._text.stem(node)}Weights")
        descriptor = self.descriptor(kernel.convolution_descriptor, variable)
        words = np.ascontiguousarray(kernel.weight_words(), "<u4").tobytes()
        self._write(variable, node.label, words, b"", descriptor, (MPSDataType.UINT32, False))
        self._known[id(kernel)] = variable
        return variable

    def _write(
        self,
        variable: str,
        label: str | None,
        weights: bytes,
        biases: bytes,
        descriptor: str,
        kind: tuple[MPSDataType, bool],
    ) -> None:
        text = self._text
        file = text.file(label or variable, weights + biases)
        text.use(template("convolution"))
        precision = MPSDataType.FLOAT32 if kind[1] else _FLOAT16
        text.call(
            f"let {variable} = try {text.model}Weights",
            {
                "label": _text_or_nil(label),
                "file": text.path(file),
                "dataType": case(kind[0]),
                "precision": case(precision),
                "biasOffset": whole(len(weights)),
                "biasCount": whole(len(biases) // 4),
                "descriptor": descriptor,
            },
        )

    def descriptor(self, descriptor: MPSCNNConvolutionDescriptor, variable: str) -> str:
        """The variable of a convolution's descriptor, which is written."""
        kinds = (MPSCNNSubPixelConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor, MPSCNNConvolutionDescriptor)
        kind = next(each for each in kinds if isinstance(descriptor, each))
        name = self._text.names.take(f"{variable.removesuffix('Weights')}Descriptor")
        sizes = ("kernel_width", "kernel_height", "input_feature_channels", "output_feature_channels")
        values = {camel(each): str(int(getattr(descriptor, each))) for each in sizes}
        self._text.call(f"let {name} = {kind.__name__}", values)
        further = [*_STRIDES, *[_SUB_PIXEL] * hasattr(descriptor, _SUB_PIXEL)]
        for each in further:
            if getattr(descriptor, each) != 1:
                self._text.line(f"{name}.{camel(each)} = {int(getattr(descriptor, each))}")
        fused = descriptor.fused_neuron_descriptor
        if fused is not None and fused.neuron_type is not MPSCNNNeuronType.NONE:
            self._text.line(f"{name}.fusedNeuronDescriptor = {self.neuron(fused, name)}")
        if descriptor.batch_normalization is not None:
            self._fold(name, descriptor)
        return name

    def _fold(self, name: str, descriptor: MPSCNNConvolutionDescriptor) -> None:
        """Batch normalization as scale and shift: those of mean 0, variance 1 and epsilon 0."""
        fold, text = descriptor.batch_normalization, self._text
        assert fold is not None
        same = np.ones_like(fold.scale)
        parts = {"mean": 0 * same, "variance": same, "gamma": fold.scale, "beta": fold.shift}
        rows = {part: self.numbers(f"{name}_{part}", row) for part, row in parts.items()}
        rest = {"variance": rows["variance"], "gamma": rows["gamma"], "beta": rows["beta"], "epsilon": "0"}
        listed = ", ".join([rows["mean"], *(f"{label}: {value}" for label, value in rest.items())])
        text.line(f"{name}.setBatchNormalizationParametersForInferenceWithMean({listed})")

    def neuron(self, descriptor: MPSNNNeuronDescriptor, owner: str) -> str:
        """A neuron's descriptor; PReLU's slopes are in a file."""
        self._text.needs("10.13.4")
        self._text.needs(SINCE.get(descriptor.neuron_type, FIRST))
        if descriptor.neuron_type is MPSCNNNeuronType.PRELU:
            return (
                f"MPSNNNeuronDescriptor.cnnNeuronPReLUDescriptor(with: {self.slopes(descriptor, owner)}, noCopy: false)"
            )
        numbers = ", ".join(f"{name}: {float32(getattr(descriptor, name))}" for name in "abc")
        return f"MPSNNNeuronDescriptor.cnnNeuronDescriptor(with: {case(descriptor.neuron_type)}, {numbers})"

    def slopes(self, descriptor: MPSNNNeuronDescriptor, owner: str) -> str:
        """PReLU's slopes, as data."""
        assert descriptor.data is not None
        content = np.ascontiguousarray(descriptor.data, "<f4").tobytes()
        file = self._text.file(f"{owner}_slopes", content)
        return (
            f"Data(referencing: try {self._text.model}Files.contents({self._text.path(file)}, {whole(len(content))}))"
        )

    def numbers(self, stem: str, values: Any) -> str:
        """A pointer to float32 numbers out of a file."""
        row = np.ascontiguousarray(values, "<f4").reshape(-1)
        self._text.use(template("numbers"))
        self._text.use(template("kept"))
        file = self._text.file(stem, row.tobytes())
        return f"try {self._text.model}Files.kept({self._text.path(file)}, {whole(row.size)})"

    # --- normalizations -----------------------------------------------------------------------------------------------

    def _normalization(self, node: MPSNNFilterNode, kernel: Any) -> str:
        text, label = self._text, kernel.data_source.label()
        variable = text.names.take(f"{label or text.stem(node)}Parameters")
        self._known[id(kernel)] = variable
        what = _kind_of(kernel)
        kind = _KINDS[what]
        rows, epsilon, groups = _parameters(kernel)
        content = np.concatenate(rows).astype("<f4").tobytes()
        text.needs(kind.since)
        if self._trained.asks(kernel):
            self._trained.normalization(label, variable, rows, content, epsilon, kernel.data_source)
            return variable
        text.use(template("numbers"))
        text.use(normalization(what))
        file = text.file(label or variable, content)
        values = {"label": _text_or_nil(label), "file": text.path(file), "channels": whole(rows[0].size)}
        if what == "group":
            values["groups"] = literal(groups)
        text.call(f"let {variable} = try {text.model}{kind.kind}", {**values, "epsilon": float32(epsilon)})
        return variable


def _kind_of(kernel: Any) -> str:
    if isinstance(kernel, MPSCNNBatchNormalization):
        return "batch"
    return "group" if isinstance(kernel, MPSCNNGroupNormalization) else "instance"


def _parameters(kernel: Any) -> tuple[Sequence[NDArray[np.float32]], float, int]:
    """The rows of a normalization, its epsilon, and its groups."""
    if isinstance(kernel, MPSCNNBatchNormalization):
        buffers = [buffer for pair in (kernel.gamma_and_beta, kernel.mean_and_variance) for buffer in pair]
        return [_numbers(buffer) for buffer in buffers], kernel.epsilon, 1
    rows = [_numbers(kernel.numbers.gamma.buffer), _numbers(kernel.numbers.beta.buffer)]
    return rows, kernel.settings.epsilon, kernel.settings.groups


def _numbers(buffer: Any) -> NDArray[np.float32]:
    """A copy of a buffer's float32 numbers."""
    return np.array(buffer.tensor(torch.float32).cpu().numpy())


def _text_or_nil(text: str | None) -> str:
    return "nil" if text is None else string(text)
