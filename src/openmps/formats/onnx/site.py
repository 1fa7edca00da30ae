"""What the builder of an operator may ask for, and what several builders make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from openmps.checks import FLT_MAX
from openmps.core.data_source import FLT_MIN
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters
from openmps.formats.onnx.constants import is_symbolic, known
from openmps.formats.onnx.layout import Layout
from openmps.formats.onnx.learning import Learning, Learns
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.pictures import (
    Mover,
    OpenConvolution,
    OpenNormalization,
    Picture,
    channels_of,
    vector,
)
from openmps.formats.onnx.problems import Budget, NodeError, ShapeError
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.neuron import MPSCNNNeuronLinearNode, MPSCNNNeuronNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.normalization import MPSCNNBatchNormalizationNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.types import MPSCNNBatchNormalizationFlags, MPSCNNNeuronType

Row = NDArray[np.float32]
Value = Picture | Array
Builder = Callable[["Site", Node], "Value | Sequence[Value | None]"]
"""Makes the nodes of one operator, and gives its outputs."""


@dataclass
class Site:
    """The values of a model so far, and how its nodes are to be made."""

    values: dict[str, Value]
    readers: Counter[str]
    opset: int
    trainable: bool
    learning: Learning
    budget: Budget

    def __post_init__(self) -> None:
        self.mover = Mover(self.budget)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def value(self, node: Node, index: int) -> Value | None:
        """An input, or None where it is left out."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        return self.values[name] if name else None

    def picture(self, node: Node, index: int = 0) -> Picture:
        """An input that depends on the model's inputs."""
        value = self.value(node, index)
        if not isinstance(value, Picture):
            raise NodeError(
                f"its input {index} is a constant" if value is not None else f"its input {index} is missing"
            )
        # Only what nobody else reads may change into what comes behind it.
        return (
            value
            if self.readers[node.inputs[index]] == 1 and not self.trainable
            else Picture(value.image, value.layout)
        )

    def planar(self, node: Node, index: int = 0, spatial: int | None = None) -> Picture:
        """An input as N, C, H, W."""
        return self.mover.planar(self.picture(node, index), spatial)

    def constant(self, node: Node, index: int, what: str) -> Array:
        """An input that must be a constant."""
        found = self.optional(node, index, what)
        if found is None:
            raise NodeError(f"an input is missing, its {what}")
        return found

    def optional(self, node: Node, index: int, what: str) -> Array | None:
        """A constant, or None where it is left out."""
        value = self.value(node, index)
        if isinstance(value, Picture):
            self.refuse_computed(what)
        return value

    def refuse_computed(self, what: str) -> NoReturn:
        """Say that an input must be a constant."""
        if "matri" in what:
            why = "it multiplies two values that depend on the model's inputs, as attention does"
            raise NodeError(
                f"{why}: its {what} is no constant",
                "End the model before it, with outputs=[…] or --result, or export it without",
            )
        raise NodeError(f"it computes its {what} from the model's inputs", "Export it as a constant")

    def integers(self, node: Node, index: int, what: str) -> list[int] | None:
        """A row of whole numbers, or None where it is left out."""
        value = self.optional(node, index, what)
        return None if value is None else known(value, what)

    def number(self, node: Node, index: int, what: str, default: float) -> float:
        """A constant of one number."""
        value = self.optional(node, index, what)
        if value is None:
            return default
        if value.size != 1 or is_symbolic(value):
            raise NodeError(f"its {what} is not one number")
        return float(value.reshape(()))

    def weights(self, node: Node, index: int, what: str) -> NDArray[np.float32]:
        """A constant of real numbers, as float32."""
        return reals(self.constant(node, index, what), what)

    def row(self, node: Node, index: int, what: str, count: int) -> NDArray[np.float32]:
        """A constant of one number a channel."""
        values = self.weights(node, index, what)
        if values.size != count:
            raise ShapeError(f"the shape {values.shape} of its {what} does not fit {count} channels")
        return np.array(values.reshape(-1))

    # --- nodes --------------------------------------------------------------------------------------------------------

    def made(self, node: MPSNNFilterNode, layout: Layout, title: str = "") -> Picture:
        """The result of a new node."""
        node.label = node.label or title or None
        return Picture(node.result_image, layout)

    def neuron(
        self, node: Node, picture: Picture, kind: MPSCNNNeuronType, *parameters: float, data: Any = None
    ) -> Picture:
        """A pointwise function of a picture; a convolution before it takes it over where it can."""
        descriptor = MPSNNNeuronDescriptor(kind, *parameters, data=data)
        if picture.open is not None and picture.open.neuron(descriptor):
            return Picture(picture.image, picture.layout)
        return self.made(MPSCNNNeuronNode(picture.image, descriptor), picture.layout, node.title)

    def affine(self, node: Node, picture: Picture, scale: Array, shift: Array, learns: Learns | None = None) -> Picture:
        """``scale x + shift``, a number a channel of the image or one for all; a layer that ``learns`` trains them."""
        if picture.open is not None and picture.open.affine(scale, shift):
            return picture
        if scale.size == shift.size == 1:
            return self._linear(node, picture, float(scale), float(shift))
        channels = channels_of(picture.layout.channels)
        scales, shifts = (np.array(np.broadcast_to(each, channels), np.float32) for each in (scale, shift))
        if self.trainable:
            return self._scaled(node, picture, scales, shifts, learns)
        none, one = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        return self.normalization(node, picture, (scales, shifts, none, one), FLT_MIN, learns=False)

    def _scaled(self, node: Node, picture: Picture, scales: Row, shifts: Row, learns: Learns | None) -> Picture:
        """``scale x + shift`` as a layer of its own; one that learns has biases only if the model has."""
        biases = None if learns is not None and self.value(node, learns.biases) is None else shifts
        descriptor = MPSCNNDepthWiseConvolutionDescriptor(1, 1, scales.size, scales.size)
        return self.convolution(
            node, picture.image, picture.layout, descriptor, scales.reshape(-1, 1, 1, 1), biases, learns=learns
        )

    def _linear(self, node: Node, picture: Picture, scale: float, shift: float) -> Picture:
        """A linear neuron; one before it becomes a part of it, and is left to nobody if nobody else reads it."""
        before = picture.image.producer
        joined = (scale * before.a, scale * before.b + shift) if isinstance(before, MPSCNNNeuronLinearNode) else None
        if before is not None and joined and not self.trainable and max(map(abs, joined)) <= FLT_MAX:
            scale, shift = joined
            picture = Picture(before.sources[0], picture.layout)
        return self.neuron(node, picture, MPSCNNNeuronType.LINEAR, scale, shift)

    def normalization(
        self, node: Node, picture: Picture, rows: tuple[Row, Row, Row, Row], epsilon: float, *, learns: bool = True
    ) -> Picture:
        """A batch normalization: gamma, beta, mean and variance of each channel."""
        source = self.learning.batch_normalization(node, rows, epsilon, learns=learns)
        made = MPSCNNBatchNormalizationNode(picture.image, source)
        if isinstance(source, ArchivedNormalizationParameters):
            made.flags = MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
            return Picture(made.result_image, picture.layout, OpenNormalization(source))
        return Picture(made.result_image, picture.layout)

    def convolution(
        self,
        node: Node,
        image: MPSNNImageNode,
        layout: Layout,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: NDArray[np.float32],
        biases: NDArray[np.float32] | None,
        kind: type[MPSCNNConvolutionNode] = MPSCNNConvolutionNode,
        padding: Any = None,
        learns: Learns | None = None,
    ) -> Picture:
        """A node with weights, OHWI; they stay as they are unless the layer ``learns`` them."""
        weights = np.ascontiguousarray(weights, np.float32)
        source = self.learning.convolution(node, descriptor, weights, biases, learns)
        made = kind(image, weights=source)
        if padding is not None:
            made.padding_policy = padding
        opened = OpenConvolution(source) if isinstance(source, ArchivedConvolutionWeights) else None
        return Picture(made.result_image, layout, opened)

    def spread(self, picture: Picture, value: Array, what: str) -> Array:
        """A constant as one number for each channel of a picture's image, or one for all."""
        if value.size > 1:
            channels_of(picture.layout.channels)  # no more than an image has
        found = vector(reals(value, what), picture.layout)
        if found is None:
            raise NodeError(f"its {what} varies over pixels, or is larger than its other input", _AS_INPUT)
        return found


_AS_INPUT = "Make the constant an input of the model"


def reals(value: Array, what: str) -> NDArray[np.float32]:
    """Numbers as float32."""
    if value.dtype.kind not in "fiub":
        raise NodeError(f"its {what} are no real numbers")
    with np.errstate(all="ignore"):
        return value.astype(np.float32, copy=False)
