"""Who makes the data sources of a model's layers, and which of its constants each of them trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.core.arrays import numbers
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.problems import READER, NodeError
from openmps.formats.onnx.sources import DataSources, FixedSources, ImageNormalizationSources, MomentumSources
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.trainable import TrainableNode, offered_updates, training_of
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.types import MPSNNTrainingStyle

Row = NDArray[np.float32]
Arrange = Callable[[Array], Array]
"""Moves the numbers of a constant to where a data source has them, and changes none."""
_FIXED = FixedSources()
_APART = "Give each layer numbers of its own"


class Learns(NamedTuple):
    """The inputs of an operator that are the weights and biases of a layer, and the weights' order there, OHWI."""

    arrange: Arrange
    weights: int = 1
    biases: int = 2
    row: Arrange = np.ravel
    """The biases' order."""


class Learnt(NamedTuple):
    """A constant of a model that a data source trains."""

    name: str
    shape: tuple[int, ...]
    arrange: Arrange
    source: object
    method: str
    """Of the data source, which gives the numbers as they are now."""

    def array(self) -> Row:
        """The constant as it is now."""
        count = math.prod(self.shape)
        places = self.arrange(np.arange(count).reshape(self.shape)).reshape(-1)
        found = np.empty(count, np.float32)
        found[places] = numbers(READER, f"{self.name} of its data source", getattr(self.source, self.method)()).ravel()
        return found.reshape(self.shape)


class _Origin(NamedTuple):
    """Which constant of the model a value is, in another order or shape."""

    name: str
    arrange: Arrange


class _Layer(NamedTuple):
    """A data source of a convolution, and what it was made of."""

    source: Any
    biases: str
    descriptor: MPSCNNConvolutionDescriptor
    weights: Row


class Learning:
    """Makes the data sources of layers: those that train where a layer's numbers are trained, fixed ones elsewhere.

    ``parameters`` are the constants that are trained; None says that the model does not tell: all that layers have.
    """

    def __init__(self, sources: DataSources, constants: Mapping[str, Array], parameters: frozenset[str] | None) -> None:
        self._sources, self._constants, self._parameters = sources, constants, parameters
        self._origins: dict[str, _Origin] = {}
        self._layers: dict[str, _Layer] = {}
        self.learnt: list[Learnt] = []

    def follow(self, node: Node, fold: Callable[[Array], Array]) -> None:
        """Know that an operator moves the numbers of its first input, a constant, and does nothing else."""
        origin = self._origin(node.inputs[0])
        if origin is not None:
            self._origins[node.outputs[0]] = _Origin(origin.name, _composed(origin.arrange, fold))

    def trains(self, name: str) -> bool:
        """Whether a value is a constant that is trained."""
        origin = self._origin(name)
        return origin is not None and (self._parameters is None or origin.name in self._parameters)

    def _origin(self, name: str) -> _Origin | None:
        own = _Origin(name, np.asarray) if name in self._constants else None
        return own or self._origins.get(name)

    def _root(self, name: str) -> str:
        """The model's constant that a value is, or the value itself."""
        origin = self._origin(name)
        return name if origin is None else origin.name

    def _maker(self, names: Sequence[str]) -> DataSources:
        """Who makes the data source of a layer with these constants."""
        if not names or self._parameters is None:
            return self._sources if names else _FIXED
        trained = {self.trains(name) for name in names}
        if len(trained) > 1:
            rule = "a part of its numbers is trained, and a part is not: a layer trains all of them or none"
            raise NodeError(rule, "Freeze all parameters of the layer, or none of them")
        return self._sources if trained == {True} else _FIXED

    def _are_no_numbers(self, name: str, biases: Row) -> bool:
        """Whether biases are zeros that a model with data sources that train computes, and has no constant for."""
        return not isinstance(self._sources, FixedSources) and self._origin(name) is None and not biases.any()

    def _learn(self, name: str, source: object, method: str, arrange: Arrange = np.ravel) -> None:
        origin = self._origin(name)
        if origin is not None:
            shape = self._constants[origin.name].shape
            self.learnt.append(Learnt(origin.name, shape, _composed(origin.arrange, arrange), source, method))

    def still(self, images: Iterable[MPSNNImageNode]) -> None:
        """Have the layers before some images that nothing trains ask for no updates, where others are trained."""
        ahead, known = list(images), set[MPSNNFilterNode]()
        while ahead and not isinstance(self._sources, FixedSources):
            node = ahead.pop().producer
            if node is None or node in known:
                continue
            known.add(node)
            ahead.extend(node.sources)
            if isinstance(node, TrainableNode) and training_of(node) is not None and not offered_updates(node):
                node.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_NONE

    # --- layers -------------------------------------------------------------------------------------------------------

    def convolution(
        self,
        node: Node,
        descriptor: MPSCNNConvolutionDescriptor,
        weights: Row,
        biases: Row | None,
        learns: Learns | None,
    ) -> Any:
        """Of a convolution or a fully connected layer; numbers that are not the model's own stay fixed.

        Layers of the same weights and biases have one data source, which gets the sum of their gradients.
        """
        if learns is not None and biases is not None and self._are_no_numbers(node.inputs[learns.biases], biases):
            biases = None
        places = [] if learns is None else [learns.weights, *([] if biases is None else [learns.biases])]
        names = [node.inputs[place] for place in places]
        maker = self._maker(names)
        if learns is None or isinstance(maker, FixedSources):
            return maker.convolution(descriptor, weights, biases, node.title)
        own, other = self._root(names[0]), self._root(names[1]) if biases is not None else ""
        known = self._layers.get(own)
        if known is not None:
            return _shared(known, other, descriptor, weights)
        source = maker.convolution(descriptor, weights, biases, node.title)
        self._layers[own] = _Layer(source, other, descriptor.copy(), weights)
        self._learn(names[0], source, "weights", learns.arrange)
        if biases is not None:
            self._learn(names[1], source, "bias_terms", learns.row)
        return source

    def batch_normalization(self, node: Node, rows: tuple[Row, Row, Row, Row], epsilon: float, *, learns: bool) -> Any:
        """Of a batch normalization: gamma, beta, mean and variance."""
        maker = self._maker(node.inputs[1:3] if learns else ())
        if isinstance(maker, MomentumSources):
            maker = maker.with_momentum(_momentum(node))
        source = maker.batch_normalization(*rows, epsilon, node.title)
        if not isinstance(maker, FixedSources):
            self._check_momentum(node, source)
            for name, method in zip(node.inputs[1:], ("gamma", "beta", "mean", "variance"), strict=True):
                self._learn(name, source, method)
        return source

    def _check_momentum(self, node: Node, source: object) -> None:
        """Raise where a module says how far its running statistics move, and its data source moves them otherwise."""
        own, given = getattr(source, "momentum", None), _momentum(node)
        if self._parameters is not None and own is not None and not math.isclose(own, given, abs_tol=1e-6):
            why = f"its momentum is {given:g}, that of its data source {own:g}"
            raise NodeError(why, "Pass TrainableDataSources(…) without a momentum: each layer has its own then")

    def image_normalization(
        self, node: Node, rows: tuple[Row, Row], epsilon: float, groups: int | None, *, learns: bool = True
    ) -> Any:
        """Of an instance normalization, or of a group normalization by so many groups."""
        names = [name for name in node.inputs[1:3] if name] if learns else []
        maker = self._maker(names)
        able = maker if isinstance(maker, ImageNormalizationSources) else _FIXED
        if groups is None:
            source = able.instance_normalization(*rows, epsilon, node.title)
        else:
            source = able.group_normalization(*rows, groups, epsilon, node.title)
        if not isinstance(able, FixedSources):
            for name, method in zip(names, ("gamma", "beta"), strict=True):
                self._learn(name, source, method)
        return source


def _momentum(node: Node) -> float:
    """How far running statistics move to those of a batch, 0 to 1: ONNX says, in float32, what they keep."""
    kept = node.decimal("momentum", 0.9)
    if not 0 <= kept <= 1:
        raise NodeError(f"its momentum is {kept:g}, no share of 0 to 1", "Give it the share that statistics keep")
    return float(1 - Decimal(str(np.float32(kept))))


def _composed(first: Arrange, then: Arrange) -> Arrange:
    return lambda array: then(first(array))


def _shared(known: _Layer, biases: str, descriptor: MPSCNNConvolutionDescriptor, weights: Row) -> Any:
    """The data source of an earlier layer with the same weights, if it will do."""
    is_same = known.biases == biases and repr(known.descriptor) == repr(descriptor)
    if not is_same or not np.array_equal(known.weights, weights, equal_nan=True):
        raise NodeError("it has its weights in common with another layer, which has other biases or windows", _APART)
    return known.source
