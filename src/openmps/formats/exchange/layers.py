"""What the layers of a network want: their arrays, the sizes that orders of axes are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openmps.checks import of_kind
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.formats.archive.sources import convolution_numbers, normalization_numbers
from openmps.graph.graph import MPSNNGraph
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import (
    MPSCNNBinaryConvolution,
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionTranspose,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected,
    MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.neuron import MPSCNNNeuron
from openmps.selectors import name_arguments
from openmps.types import MPSCNNNeuronType

_PRELU = MPSCNNNeuronType.PRELU


class LayerKind(StrEnum):
    """What a layer computes, which says in what order each framework keeps its numbers."""

    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise convolution"
    TRANSPOSED = "transposed convolution"
    SUB_PIXEL = "sub-pixel convolution"
    FULLY_CONNECTED = "fully connected"
    BATCH_NORMALIZATION = "batch normalization"
    NORMALIZATION = "instance or group normalization"
    PRELU = "PReLU"


@name_arguments
@dataclass(frozen=True)
class WeightLayer:
    """One layer with numbers.

    ``parts`` are its arrays, ``optional`` those of them that may be missing. ``sizes`` has the length of each letter in
    the orders of its kind: O output and I input channels (of a group), H rows and W columns of the kernel, g groups, o
    output channels of a group, m kernels a channel, f the enlargement of sub-pixels, C channels. A layer is made by one
    of the class methods, or by `network_layers`.
    """

    label: str
    kind: LayerKind
    parts: tuple[str, ...]
    sizes: Mapping[str, int] = field(repr=False)
    optional: frozenset[str] = frozenset()

    @classmethod
    def convolution(
        cls, label: str, descriptor: MPSCNNConvolutionDescriptor, biases: bool | None = None
    ) -> WeightLayer:
        """A convolution; ``biases`` says whether it has any, None that it may. What kind says the descriptor's class.

        A neuron of the type PReLU that is fused into the descriptor adds the part ``slopes``.
        """
        _check(label, descriptor)
        kinds = (
            (MPSCNNDepthWiseConvolutionDescriptor, LayerKind.DEPTHWISE),
            (MPSCNNSubPixelConvolutionDescriptor, LayerKind.SUB_PIXEL),
            (MPSCNNConvolutionDescriptor, LayerKind.CONVOLUTION),
        )
        return _convolution(label, next(kind for of, kind in kinds if isinstance(descriptor, of)), descriptor, biases)

    @classmethod
    def transposed(cls, label: str, descriptor: MPSCNNConvolutionDescriptor, biases: bool | None = None) -> WeightLayer:
        """A transposed convolution."""
        _check(label, descriptor)
        return _convolution(label, LayerKind.TRANSPOSED, descriptor, biases)

    @classmethod
    def fully_connected(
        cls, label: str, descriptor: MPSCNNConvolutionDescriptor, biases: bool | None = None
    ) -> WeightLayer:
        """A fully connected layer, whose kernel is as large as the image that other frameworks flatten."""
        _check(label, descriptor)
        return _convolution(label, LayerKind.FULLY_CONNECTED, descriptor, biases)

    @classmethod
    def batch_normalization(cls, label: str, channels: int) -> WeightLayer:
        """Batch normalization with gamma, beta, mean and variance."""
        parts = ("gamma", "beta", "mean", "variance")
        return cls(_label(label), LayerKind.BATCH_NORMALIZATION, parts, {"C": _count(channels)})

    @classmethod
    def normalization(cls, label: str, channels: int) -> WeightLayer:
        """Instance or group normalization with gamma and beta."""
        return cls(_label(label), LayerKind.NORMALIZATION, ("gamma", "beta"), {"C": _count(channels)})

    @classmethod
    def prelu(cls, label: str, channels: int) -> WeightLayer:
        """A PReLU neuron, with a slope for each channel."""
        return cls(_label(label), LayerKind.PRELU, ("slopes",), {"C": _count(channels)})


def _label(label: object) -> str:
    if not isinstance(label, str) or not label:
        raise MPSTypeError("WeightLayer", "label", "must be the name of the layer", repr(label))
    return label


def _count(channels: object) -> int:
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise MPSArgumentError("WeightLayer", "channels", "must be a whole number of 1 or more", repr(channels))
    return channels


def _check(label: object, descriptor: object) -> None:
    who = f"WeightLayer {_label(label)!r}"
    descriptor = of_kind(who, "descriptor", descriptor, MPSCNNConvolutionDescriptor)
    descriptor.validate(who)


def _convolution(
    label: str, kind: LayerKind, descriptor: MPSCNNConvolutionDescriptor, biases: bool | None
) -> WeightLayer:
    outputs, height, width, inputs = (int(length) for length in descriptor.weight_shape())
    sizes = {"O": outputs, "H": height, "W": width, "I": inputs, "g": 1, "o": outputs, "u": 1}
    if kind is LayerKind.DEPTHWISE:
        sizes |= {"C": int(descriptor.input_feature_channels), "m": int(descriptor.channel_multiplier)}
    elif kind is LayerKind.FULLY_CONNECTED:
        sizes |= {"C": inputs}
    elif isinstance(descriptor, MPSCNNSubPixelConvolutionDescriptor):
        factor = int(descriptor.sub_pixel_scale_factor)
        sizes |= {"C": int(descriptor.result_channels), "f": factor, "h": factor}
    else:
        sizes |= {"g": int(descriptor.groups), "o": outputs // int(descriptor.groups)}
    fused = descriptor.fused_neuron_descriptor
    slopes = ("slopes",) if fused is not None and fused.neuron_type is _PRELU else ()
    parts = ("weights", *(("biases",) if biases is not False else ()), *slopes)
    return WeightLayer(label, kind, parts, sizes, frozenset(("biases",) if biases is None else ()))


# --- layers of a network ----------------------------------------------------------------------------------------------

Network: TypeAlias = "MPSNNGraph | Mapping[str, MPSCNNConvolutionDescriptor | WeightLayer]"
"""A graph, or a mapping from labels to descriptors of convolutions or to layers."""


def network_layers(network: Network) -> dict[str, WeightLayer]:
    """The layers with numbers of a graph, in the order of its filters, or of a mapping, in its order.

    A layer of a graph is called as its data source, or its kernel, is labelled; one without a label by its kind and a
    number, ``convolution1``. Two kernels of one data source are one layer. A descriptor in a mapping is a plain,
    depthwise or sub-pixel convolution, with or without biases; `WeightLayer` says the rest.

    Raises:
        MPSArgumentError: Two layers have the same label and not the same data source, or a convolution has weights of
            one bit, which other frameworks do not know.
    """
    if isinstance(network, MPSNNGraph):
        return {layer.label: layer for layer, _, _, _ in labelled_kernels(network)}
    if not isinstance(network, Mapping):
        rule = "must be an MPSNNGraph, or a mapping from labels to descriptors or WeightLayers"
        raise MPSTypeError("network_layers", "network", rule, type(network).__name__)
    return {label: _of_entry(label, entry) for label, entry in network.items()}


def network_arrays(graph: MPSNNGraph) -> dict[str, NDArray[np.float32]]:
    """The numbers that a graph computes with now, by layer and part, ``conv1.weights`` (OHWI), ``conv1.biases``, ….

    Names as in `network_layers`. Call it when the command buffers that train them are done.
    """
    of_kind("network_arrays", "graph", graph, MPSNNGraph)
    return {
        f"{layer.label}.{part}": np.array(arrays[part].reshape(-1) if part != "weights" else arrays[part])
        for layer, arrays, _, _ in labelled_kernels(graph)
        for part in layer.parts
    }


def _of_entry(label: str, entry: object) -> WeightLayer:
    if isinstance(entry, WeightLayer):
        return replace(entry, label=_label(label))
    return WeightLayer.convolution(label, entry)  # pyright: ignore[reportArgumentType]  which it checks


_Found: TypeAlias = "tuple[WeightLayer, dict[str, NDArray[np.float32]]]"


def labelled_kernels(graph: MPSNNGraph) -> Iterator[tuple[WeightLayer, dict[str, NDArray[np.float32]], Any, Any]]:
    """The layer of each kernel that has numbers, its arrays, its node and itself; kernels may share a layer."""
    taken: dict[str, object] = {}
    counts: dict[str, int] = {}
    for node, kernel in graph.kernels.items():
        found = _of_kernel(kernel)
        if found is None:
            continue
        layer, arrays = found
        owner = getattr(kernel, "data_source", None) or kernel
        label = layer.label if layer.label != _UNNAMED else (node.label or kernel.label or "")
        if not label:
            stem = re.sub(r"\W+", "_", layer.kind.value)
            counts[stem] = counts.get(stem, 0) + 1
            label = f"{stem}{counts[stem]}"
        if taken.setdefault(label, owner) is not owner:
            rule = "must have a label of its own: another layer of the graph is called so"
            raise MPSArgumentError("network_layers", f"layer {label!r}", rule, None, "Label its data source otherwise")
        yield replace(layer, label=label), arrays, node, kernel


_UNNAMED = "\0"


def _of_kernel(kernel: Any) -> _Found | None:
    """The layer of a kernel and its arrays; None where it has no numbers of its own."""
    if isinstance(kernel, MPSCNNBinaryConvolution):
        rule = "has weights of one bit, which no other framework has"
        raise MPSArgumentError("network_layers", f"layer {kernel.label!r}", rule, None, "Archive the graph instead")
    if isinstance(kernel, MPSCNNNeuron):
        slopes = kernel.data if kernel.neuron_type is _PRELU else None
        return (
            None if slopes is None else (WeightLayer.prelu(kernel.label or _UNNAMED, slopes.size), {"slopes": slopes})
        )
    if isinstance(kernel, MPSCNNConvolution | MPSCNNConvolutionTranspose):
        return _of_convolution(kernel)
    if isinstance(kernel, MPSCNNBatchNormalization | MPSCNNGroupNormalization | MPSCNNInstanceNormalization):
        numbers = normalization_numbers(kernel)
        arrays = {"gamma": numbers.gamma_array, "beta": numbers.beta_array}
        label = numbers.name or _UNNAMED
        if numbers.mean_array is None or numbers.variance_array is None:
            return WeightLayer.normalization(label, numbers.gamma_array.size), arrays
        arrays |= {"mean": numbers.mean_array, "variance": numbers.variance_array}
        return WeightLayer.batch_normalization(label, numbers.gamma_array.size), arrays
    return None


def _of_convolution(kernel: MPSCNNConvolution | MPSCNNConvolutionTranspose) -> _Found:
    numbers = convolution_numbers(kernel)
    make = WeightLayer.convolution
    if isinstance(kernel, MPSCNNConvolutionTranspose):
        make = WeightLayer.transposed
    elif isinstance(kernel, MPSCNNFullyConnected):
        make = WeightLayer.fully_connected
    descriptor = numbers.convolution_descriptor
    layer = make(numbers.name or _UNNAMED, descriptor, numbers.bias_array is not None)
    arrays = {"weights": numbers.weight_array}
    if numbers.bias_array is not None:
        arrays["biases"] = numbers.bias_array
    if "slopes" in layer.parts and descriptor.fused_neuron_descriptor is not None:
        slopes = descriptor.fused_neuron_descriptor.data
        arrays["slopes"] = np.array(slopes, np.float32)[: layer.sizes["O"]]
    return layer, arrays
