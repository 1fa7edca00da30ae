"""Values of a model that images hold, and the nodes that move numbers where an operator needs them elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openmps.convention import current
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters
from openmps.formats.onnx.layout import Atom, Atoms, Layout, size_of
from openmps.formats.onnx.model import Array
from openmps.formats.onnx.problems import Budget, NodeError
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode, MPSNNBinaryArithmeticNode, MPSNNSubtractionNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.nodes.shape import MPSNNReshapeNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNSubPixelConvolutionDescriptor


def _folded(*products: Array) -> list[NDArray[np.float32]] | None:
    """Products as float32; None where one of them is none."""
    with np.errstate(over="ignore"):
        found = [product.astype(np.float32) for product in products]
    return found if all(np.isfinite(each).all() for each in found) else None


class OpenConvolution:
    """A convolution that no graph has read yet: what follows it may still become part of its weights."""

    def __init__(self, source: ArchivedConvolutionWeights) -> None:
        self._source = source

    def affine(self, scale: Array, shift: Array) -> bool:
        """Take over ``scale x + shift``, a number a channel or one for all; False once a neuron follows.

        False, too, where a product is beyond float32: the numbers that it meets may be small.
        """
        source, channels = self._source, self._source.convolution_descriptor.output_feature_channels
        if source.convolution_descriptor.fused_neuron_descriptor is not None:
            return False
        scale, shift = (np.broadcast_to(np.asarray(each, np.float64), channels) for each in (scale, shift))
        bias = np.zeros(channels) if source.bias_array is None else source.bias_array.astype(np.float64)
        folded = _folded(source.weight_array * scale.reshape(-1, 1, 1, 1), bias * scale + shift)
        if folded is None:
            return False
        source.weight_array, source.bias_array = folded
        return True

    def neuron(self, descriptor: MPSNNNeuronDescriptor) -> bool:
        """Take over a neuron; False where there is one."""
        own = self._source.convolution_descriptor
        if own.fused_neuron_descriptor is not None or isinstance(own, MPSCNNSubPixelConvolutionDescriptor):
            return False
        own.fused_neuron_descriptor = descriptor
        return True


class OpenNormalization:
    """A batch normalization by fixed numbers that no graph has read yet."""

    def __init__(self, source: ArchivedNormalizationParameters) -> None:
        self._source = source

    def affine(self, scale: Array, shift: Array) -> bool:
        """Take over ``scale x + shift``; False where a product is beyond float32."""
        source, channels = self._source, self._source.gamma_array.size
        scale, shift = (np.broadcast_to(np.asarray(each, np.float64), channels) for each in (scale, shift))
        folded = _folded(source.gamma_array * scale, source.beta_array * scale + shift)
        if folded is None:
            return False
        source.gamma_array, source.beta_array = folded
        return True

    def neuron(self, descriptor: MPSNNNeuronDescriptor) -> bool:
        """None can be taken."""
        return False


class OpenArithmetic:
    """Arithmetic on two pictures that no graph has read yet."""

    def __init__(self, node: MPSNNBinaryArithmeticNode) -> None:
        self._node = node

    def affine(self, scale: Array, shift: Array) -> bool:
        """Take over ``scale x + shift`` of one number each; False where a product is beyond float32."""
        if scale.size != 1 or shift.size != 1:
            return False
        factor, node = float(scale), self._node
        products = (node.primary_scale * factor, node.secondary_scale * factor, node.bias * factor + float(shift))
        if _folded(np.array(products)) is None:
            return False
        node.primary_scale *= factor
        if isinstance(node, MPSNNAdditionNode | MPSNNSubtractionNode):
            node.secondary_scale *= factor
        node.bias = node.bias * factor + float(shift)
        return True

    def neuron(self, descriptor: MPSNNNeuronDescriptor) -> bool:
        """None can be taken."""
        return False


Open = OpenConvolution | OpenNormalization | OpenArithmetic


@dataclass(frozen=True)
class Picture:
    """A value that an image holds: the node of the image, and which of its numbers are which of the tensor's."""

    image: MPSNNImageNode
    layout: Layout
    open: Open | None = None

    def over(self, layout: Layout) -> Picture:
        """The same image, described by other axes of the same atoms."""
        return Picture(self.image, layout, self.open if layout.places == self.layout.places else None)


class Mover:
    """Makes the nodes that move numbers within images, for those who need axes in other places."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._choices = budget, 0

    def placed(self, picture: Picture, channels: Atoms, rows: Atoms, columns: Atoms) -> Picture:
        """The same tensor in an image with other channels, rows and columns.

        Raises `NodeError` where numbers would have to change places between pixels, or pixels and channels.
        """
        layout = picture.layout
        if layout.places == (channels, rows, columns):
            return picture
        wanted = (*rows, *columns, *channels)
        if set(wanted) != set(layout.numbers) or len(wanted) != len(layout.numbers):
            raise NodeError("a part of its axes is missing")
        pixels = (*layout.rows, *layout.columns)
        if wanted[: len(pixels)] == pixels and wanted != layout.numbers:
            picture = self.permuted(picture, wanted[len(pixels) :])
        if picture.layout.numbers != wanted:
            raise NodeError(
                "it needs numbers of channels where there are pixels, or pixels in another order",
                "The framework has no transposition: let the model keep N, C, H, W here",
            )
        if picture.layout.places == (channels, rows, columns):
            return picture
        if current()["reshape_order"] != "pixels":
            raise NodeError("it reshapes pixels, and the convention reshape_order='planes' reads planes", _OUTSIDE)
        sizes = [size_of(each) for each in (columns, rows, channels)]
        if None in sizes:
            raise NodeError("it reshapes an image whose size is not known", _GIVE)
        node = MPSNNReshapeNode(picture.image, *(size or 1 for size in sizes))
        return Picture(node.result_image, replace(layout, channels=channels, rows=rows, columns=columns))

    def permuted(self, picture: Picture, channels: Atoms) -> Picture:
        """The channels in the order of other atoms."""
        own = picture.layout.channels
        self._budget.take(_known(own) ** 2, "an order of channels")
        places = np.arange(_known(own)).reshape([atom.size or 1 for atom in own])
        order = places.transpose([own.index(atom) for atom in channels]).reshape(-1)
        found = self.selected(picture, order.tolist())
        return Picture(found, replace(picture.layout, channels=channels))

    def selected(self, picture: Picture, places: Sequence[int | None]) -> MPSNNImageNode:
        """An image of some channels of another, by a convolution whose weights are 0 and 1; None gives zeros."""
        count = _known(picture.layout.channels)
        self._budget.take(4 * count * len(places), "a choice of channels")
        weights = np.zeros((len(places), 1, 1, count), np.float32)
        for result, source in enumerate(places):
            if source is not None:
                weights[result, 0, 0, source] = 1
        descriptor = MPSCNNConvolutionDescriptor(1, 1, count, len(places))
        self._choices += 1
        label = "choice of channels" + (f" {self._choices}" if self._choices > 1 else "")
        source = ArchivedConvolutionWeights(descriptor, weights, None, label)
        return MPSCNNConvolutionNode(picture.image, source).result_image

    def planar(self, picture: Picture, spatial: int | None = None) -> Picture:
        """A tensor N, C, H, W, or N, C, W, or N, C, as an image of C channels, H rows and W columns."""
        layout = picture.layout
        if not 2 <= layout.rank <= 4 or (spatial is not None and layout.rank != spatial + 2):
            if layout.rank > 4:
                raise NodeError("it has three spatial axes: images have two")
            raise NodeError(f"its input has {layout.rank} axes")
        if not layout.is_batched:
            raise NodeError("the first axis of its input is not the batch")
        rows = layout.axes[2] if layout.rank == 4 else ()
        columns = layout.axes[-1] if layout.rank > 2 else ()
        return self.placed(picture, layout.axes[1], rows, columns)


_GIVE = "Give the size of the input, as shapes={name: shape} or --shape NAME=1,3,224,224"
_OUTSIDE = "Read the model, and make its graph, where reshape_order is 'pixels'"


_MOST_CHANNELS = 1 << 22


def _known(axis: Atoms) -> int:
    size = size_of(axis)
    if size is None:
        raise NodeError("its number of channels is not known", _GIVE)
    if size > _MOST_CHANNELS:
        raise NodeError(f"it has {size} channels: no image has so many")
    return size


channels_of = _known
"""The number of channels of an image, which is always known."""


def vector(values: Array, layout: Layout) -> Array | None:
    """A constant that is broadcast to a tensor, as one number for each channel of its image, or one for all.

    None if it varies over pixels, or makes the tensor larger.
    """
    if values.size == 1:
        return values.reshape(()) if values.ndim <= layout.rank else None
    if values.ndim > layout.rank:
        return None
    values = values.reshape((1,) * (layout.rank - values.ndim) + values.shape)
    order: list[Atom] = []
    shape: list[int] = []
    for axis, length in zip(layout.axes, values.shape, strict=True):
        if length != 1 and size_of(axis) != length:
            return None
        for atom in axis:
            order.append(atom)
            shape.append(1 if length == 1 else atom.size or 1)
    values = values.reshape(shape)
    if any(length > 1 and atom not in layout.channels for atom, length in zip(order, shape, strict=True)):
        return None
    inner = [order.index(atom) for atom in layout.channels]
    others = [place for place in range(len(order)) if place not in inner]
    spread = values.transpose(*others, *inner).reshape([shape[place] for place in inner])
    return np.broadcast_to(spread, [atom.size or 1 for atom in layout.channels]).reshape(-1)
