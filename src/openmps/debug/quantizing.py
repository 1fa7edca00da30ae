"""Which form of 8-bit weights suits each layer of a network: the one with the smaller error on sample images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import of_kind
from openmps.core.data_source import loaded
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.debug.captured.layers import WEIGHTS, Change, Layer, Layers, arrays_for, check_infers
from openmps.errors import MPSArgumentError, MPSNonFiniteError, counted
from openmps.formats.archive.archiver import archived_with
from openmps.formats.archive.sources import ArchivedQuantizedWeights, convolution_numbers
from openmps.formats.quantization import QuantizedForm, is_smaller, quantized, quantized_bytes
from openmps.graph.graph import MPSNNGraph
from openmps.graph.run.trace import source_names
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionTranspose
from openmps.kernels.convolution.binary import MPSCNNBinaryConvolution
from openmps.kernels.convolution.data_source import load_weights
from openmps.selectors import name_arguments
from openmps.tables import printed_html, table
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat

_WHO = "openmps.debug.quantize"
_HEADINGS = ("layer", "form", "error", "linear", "table", "bytes", "of float32")
_NUMBERS = (False, False, True, True, True, True, True)
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_NO_UINT8 = "the framework takes float32 weights alone for transposed convolutions"
_BINARY = "its weights are of one bit"
_DONE = "its weights are of 8 bits already"
_SMALL = "ranges or a table would take more than its bytes"


@name_arguments
@dataclass(frozen=True)
class QuantizedLayer:
    """The weights of one convolution in 8 bits. Our addition.

    ``errors`` are those of the layer's results by form, ``|y - y'| / |y|`` over all numbers of the sample images
    (Euclidean norms), the layer being given what the layers before it give with their own weights. ``form`` is the one
    with the smallest; ``bytes`` what the weights take in float32, and with ``form``.
    """

    label: str
    form: QuantizedForm
    errors: Mapping[QuantizedForm, float]
    bytes: tuple[int, int]

    @property
    def error(self) -> float:
        """That of the form."""
        return self.errors[self.form]

    def facts(self) -> dict[str, Any]:
        """The layer as JSON has it."""
        before, after = self.bytes
        errors = {str(form): error for form, error in self.errors.items()}
        return {"layer": self.label, "form": str(self.form), "error": self.error, "errors": errors,
                "float32_bytes": before, "bytes": after}  # fmt: skip

    def cells(self) -> tuple[str, ...]:
        """The layer as a row of the table that `Quantization` prints."""
        errors = (f"{self.errors[form]:.1e}" if form in self.errors else "-" for form in QuantizedForm)
        before, after = self.bytes
        return (self.label, str(self.form), f"{self.error:.1e}", *errors, f"{after:,}", f"{100 * after / before:.0f} %")


@name_arguments
@dataclass(frozen=True)
class Quantization:
    """The 8-bit weights of a network, layer by layer; printable as a table. Our addition.

    ``left_out`` says why layers keep their weights, by label. `archived` gives an archive with the new ones.
    """

    layers: tuple[QuantizedLayer, ...]
    left_out: Mapping[str, str]
    sources: Mapping[int, ArchivedQuantizedWeights] = field(repr=False, default_factory=dict[int, Any])
    """The new data sources, by the `id` of those whose place they take."""

    @property
    def bytes(self) -> tuple[int, int]:
        """What the weights of all layers take in float32, and in 8 bits."""
        return sum(each.bytes[0] for each in self.layers), sum(each.bytes[1] for each in self.layers)

    def archived(self, root: Any) -> bytes:
        """What holds the graph, or the graph itself, as an archive with the 8-bit weights."""
        return archived_with(root, self.sources)

    def facts(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        before, after = self.bytes
        totals = {"float32_bytes": before, "bytes": after}
        return {"layers": [each.facts() for each in self.layers], "left_out": dict(self.left_out), **totals}

    def __str__(self) -> str:
        before, after = self.bytes
        lines = [table(_HEADINGS, [each.cells() for each in self.layers], _NUMBERS)]
        lines += [f"{label} keeps its weights: {why}" for label, why in self.left_out.items()]
        lines.append(f"weights of {counted(len(self.layers), 'layer')}: {after:,} bytes, {before:,} in float32")
        return "\n".join(lines)

    _repr_html_ = printed_html


def quantize(
    graph: MPSNNGraph, source_images: Sequence[NDArray[Any]], form: QuantizedForm | None = None
) -> Quantization:
    """The weights of a graph's convolutions in 8 bits, as data sources of the framework give them. Our addition.

    Each layer gets linear ranges a channel or a lookup table, whichever errs less in its results for the
    ``source_images``, a list of arrays ``[images, height, width, channels]``, one a source image; ``form`` takes one of
    them for all. Both compute as the framework does: from 8 bits to float16. The graph stays as it is.

    Raises:
        MPSTypeError: ``source_images`` is one array, and no list, or something else has the wrong type.
        MPSArgumentError: The graph trains, would refuse the images, or has no convolution whose weights can be of 8
            bits.
        MPSNonFiniteError: A weight is NaN or infinite, or what a convolution gives for the images.
    """
    check_infers(_WHO, graph)
    arrays = arrays_for(_WHO, graph, source_images)
    forms = tuple(QuantizedForm) if form is None else (of_kind(_WHO, "form", form, QuantizedForm),)
    found, left_out, sources = list[QuantizedLayer](), dict[str, str](), dict[int, ArchivedQuantizedWeights]()
    for layer, kernel in _layers_with_kernels(graph, arrays):
        why = _why_not(kernel, forms)
        if why is not None:
            left_out |= {layer.label: why} if why else {}
        elif id(kernel.data_source) not in sources:
            quantized_layer, source = _quantized(layer, kernel, forms)
            found.append(quantized_layer)
            sources[id(kernel.data_source)] = source
    if not found:
        why = "; ".join(f"{label}: {why}" for label, why in left_out.items()) or None
        raise MPSArgumentError(_WHO, "graph", "must have a convolution whose weights can be of 8 bits", why)
    return Quantization(tuple(found), left_out, sources)


def _layers_with_kernels(graph: MPSNNGraph, arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[Layer, Any]]:
    """Each filter over what those before it give in float32, with its kernel."""
    batches = [MPSImageBatch.from_numpy(graph.device, array) for array in arrays]
    shown: dict[str, Tensor] = {}
    for name, batch in zip(source_names(graph.interface.inputs), batches, strict=True):
        pixels = np.stack([image.numpy() for image in batch])
        shown[name] = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(graph.device.torch_device)
    images = [MPSImageDescriptor(_FLOAT32, each[0].width, each[0].height, each[0].feature_channels) for each in batches]
    layers = Layers(graph, images, len(batches[0]))
    stages = layers.program.stages
    last_reads = {image: place for place, stage in enumerate(stages) for image in stage.node.sources}
    labels = {stage.node.result_image: label for stage, label in zip(stages, layers.labels, strict=True)}
    for place, (stage, label) in enumerate(zip(stages, layers.labels, strict=True)):
        layer = layers.layer(label, shown)
        yield layer, graph.kernels[stage.node]
        shown[label] = layer.run()
        for image in {*stage.node.sources}:
            if last_reads[image] == place and image in labels:
                del shown[labels[image]]


def _why_not(kernel: Any, forms: Sequence[QuantizedForm]) -> str | None:
    """Why a kernel keeps its weights, nothing of one that has none; None where they can be of 8 bits."""
    if isinstance(kernel, MPSCNNBinaryConvolution):
        return _BINARY
    if isinstance(kernel, MPSCNNConvolutionTranspose):
        return _NO_UINT8
    if not isinstance(kernel, MPSCNNConvolution):
        return ""
    if _is_of_8_bits(kernel):
        return _DONE
    return None if any(is_smaller(convolution_numbers(kernel), form) for form in forms) else _SMALL


def _is_of_8_bits(kernel: MPSCNNConvolution) -> bool:
    source = kernel.data_source
    if source is None:
        return False
    with loaded(kernel.name, source):
        return source.data_type() is MPSDataType.UINT8


def _quantized(
    layer: Layer, kernel: Any, forms: Sequence[QuantizedForm]
) -> tuple[QuantizedLayer, ArchivedQuantizedWeights]:
    """The better form of one layer."""
    numbers = convolution_numbers(kernel)
    if not np.isfinite(numbers.weight_array).all():
        rule, remedy = "must be finite to be of 8 bits", "Look for them with openmps weights show"
        raise MPSNonFiniteError(_WHO, f"weights of {layer.label!r}", rule, None, remedy)
    wanted, made = layer.run().double(), dict[QuantizedForm, ArchivedQuantizedWeights]()
    if not wanted.isfinite().all():
        rule, remedy = "must be finite, for their errors are compared", "Give images whose numbers are finite"
        raise MPSNonFiniteError(_WHO, f"results of {layer.label!r}", rule, None, remedy)
    errors: dict[QuantizedForm, float] = {}
    for form in forms:
        if is_smaller(numbers, form):
            made[form] = quantized(numbers, form)
            difference = layer.run(_with_weights(layer, made[form])).double() - wanted
            errors[form] = float(difference.norm() / wanted.norm().clamp(min=torch.finfo(torch.float64).tiny))
    best = min(errors, key=errors.__getitem__)
    sizes = numbers.weight_array.size * 4, quantized_bytes(made[best])
    return QuantizedLayer(layer.label, best, errors, sizes), made[best]


def _with_weights(layer: Layer, source: ArchivedQuantizedWeights) -> Change:
    """The layer with other weights, rounded as the framework rounds those of 8 bits."""
    loaded = load_weights(_WHO, source)
    weights, fold = torch.from_numpy(loaded.weights), loaded.descriptor.batch_normalization
    if fold is not None:
        weights = weights * torch.from_numpy(fold.scale.copy()).reshape(-1, 1, 1, 1)
    rounded = weights.half().float()
    places = [value for value, name in layer.parameters.items() if name in WEIGHTS]
    return Change(given={value: rounded.to(layer.given[value].device) for value in places})
