"""Neural networks of Core ML, as before ML programs: their layers, as a model in ONNX's terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from openmps.errors import MPSFileError
from openmps.formats.coreml.blobs import Array, unpacked
from openmps.formats.coreml.draft import FLOAT, Draft, unknown
from openmps.formats.coreml.features import Features, Image, image_input
from openmps.formats.coreml.layers import LAYERS
from openmps.formats.coreml.packages import READER
from openmps.formats.onnx.model import Model, Tensor
from openmps.formats.onnx.problems import NodeError

_EXACT = 1
"""Arrays keep the shapes of the description; otherwise they are C, or C, H, W."""
_FOUR = 4
_LARGEST = 1 << 31


class Layer:
    """One layer: its parameters, what it reads and makes, and how many axes that has."""

    def __init__(self, draft: Draft, given: Any, kind: str, rank: int, *, is_exact: bool) -> None:
        self.params = getattr(given, kind)
        self.inputs, self.outputs = [str(each) for each in given.input], [str(each) for each in given.output]
        self.rank, self.draft, self._is_exact = rank, draft, is_exact

    def becomes(self, operator: str, inputs: Sequence[Any], **attributes: Any) -> None:
        """The last operator of the layer."""
        self.draft.add(operator, inputs, self.outputs[0], **attributes)

    def several(self, operator: str, inputs: Sequence[Any], **attributes: Any) -> None:
        """An operator with all outputs of the layer."""
        self.draft.several(operator, inputs, self.outputs, **attributes)

    def step(self, operator: str, inputs: Sequence[Any], **attributes: Any) -> str:
        """An operator before the last; the name of its output."""
        return self.draft.step(operator, inputs, **attributes)

    def axis(self, axis: Any) -> int:
        """An axis of N, C, H, W: what is not exact has one more in front."""
        return int(axis) if self._is_exact or axis < 0 else max(0, int(axis) - 1)

    def weights(self, given: Any, shape: tuple[int, ...], axis: int = 0) -> Array:
        """Numbers of a shape; ``axis`` is that of scales, one a place."""
        found = weights_of(given, math.prod(shape))
        if found.size != math.prod(shape):
            raise NodeError(f"it has {found.size:,} numbers for {shape}")
        return scaled(given, found.reshape(shape), axis)

    def row(self, given: Any) -> Array:
        """Numbers of a row, as many as there are."""
        return weights_of(given, len(given.floatValue) or len(given.float16Value) // 2)


def weights_of(given: Any, count: int) -> Array:
    """The numbers of a ``WeightParams`` as they are stored: whole ones where scales or a table come with them."""
    if count > _LARGEST:
        raise NodeError(f"{count:,} numbers are no weights")
    if given.floatValue:
        return np.array(given.floatValue, np.float32)
    if given.float16Value:
        return np.frombuffer(given.float16Value, "<f2")
    if given.int8RawValue:
        raise NodeError("its weights are for inputs that are rounded to 8 bits")
    bits = int(given.quantization.numberOfBits)
    data = np.frombuffer(given.rawValue, np.uint8)
    if not 1 <= bits <= 8 or data.size != -(-count * bits // 8):
        raise NodeError(f"its {data.size:,} bytes are no {count:,} numbers of {bits} bits")
    return unpacked(data, bits, count, order="big")


def scaled(given: Any, numbers: Array, axis: int) -> Array:
    """Numbers as they are meant: ``scale numbers + bias``, one of each or one a place, or entries of a table."""
    of = given.quantization
    kind = of.WhichOneof("QuantizationType") if not given.floatValue and not given.float16Value else None
    if kind == "lookUpTableQuantization" or kind == "lookupTableQuantization":
        table = np.array(of.lookupTableQuantization.floatValue, np.float32)
        if int(numbers.max(initial=0)) >= table.size:
            raise NodeError(f"an index is none of its table of {table.size}")
        return table[numbers]
    if kind != "linearQuantization":
        return numbers
    shape = [-1 if place == axis else 1 for place in range(numbers.ndim)]
    scale, bias = (np.array(each, np.float32) for each in (of.linearQuantization.scale, of.linearQuantization.bias))
    rows = [
        each.reshape(shape) if each.size > 1 else each.reshape(()) for each in (scale, bias if bias.size else 0 * scale)
    ]
    return numbers.astype(np.float32) * rows[0] + rows[1]


class _Network:
    """A neural network on its way to a model."""

    def __init__(self, message: Any, kind: str, what: str) -> None:
        self._given, self._size, self._what = getattr(message, kind), message.ByteSize(), what
        self._is_exact = self._given.arrayInputShapeMapping == _EXACT
        self._ranks: dict[str, int] = {}
        self.draft = Draft()

    def model(self, features: Features) -> Model:
        inputs = [*(self._image(name, image) for name, image in features.images.items())]
        inputs += [self._array(name, shape) for name, shape in features.arrays.items()]
        layers = list(self._given.layers)
        for given in layers:
            self._layer(given)
        return self.draft.model(inputs, self._outputs(features, layers), self._size)

    def _outputs(self, features: Features, layers: Sequence[Any]) -> list[str]:
        """The outputs; of a classifier its probabilities, in the order of its labels."""
        if not features.predicted:
            return list(features.outputs)
        named = str(getattr(self._given, "labelProbabilityLayerName", ""))
        if not named and (not layers or not layers[-1].output):
            raise MPSFileError(READER, self._what, "must have layers, or an output", "none")
        gone = (features.predicted, features.probabilities)
        return [named or str(layers[-1].output[0]), *(name for name in features.outputs if name not in gone)]

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _image(self, name: str, image: Image) -> Tensor:
        """An image, with what the network does to its pixels first."""
        batch = 1 if self._is_exact else None
        sizes = [length or None for length in (image.height, image.width)]
        tensor = image_input(self.draft, name, (batch, image.channels, *sizes))
        self._ranks[name] = _FOUR
        for step in self._given.preprocessing:
            if step.featureName in ("", name):
                self.draft.kind = "preprocessing"
                source, output = self.draft.aliases[name], f"{name}:prepared"
                self.draft.tried(lambda step=step: self._prepare(step, image, name), [source], [output])
                self.draft.aliases[name] = output
        return tensor

    def _prepare(self, step: Any, image: Image, name: str) -> None:
        """``scale pixel + bias`` of each channel."""
        if step.WhichOneof("preprocessor") != "scaler":
            raise NodeError("it takes an image of means off, a number a pixel", "Take off a mean a channel")
        of = step.scaler
        biases = {"RGB": [of.redBias, of.greenBias, of.blueBias], "BGR": [of.blueBias, of.greenBias, of.redBias]}
        row = np.array(biases.get(image.order, [of.grayBias]), np.float32).reshape(1, -1, 1, 1)
        scaled = self.draft.step("Mul", [name, float(of.channelScale)])
        self.draft.add("Add", [scaled, row], f"{name}:prepared")

    def _array(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """An array; of C, or of C, H, W the batch varies."""
        if self._is_exact:
            self._ranks[name] = len(shape)
            return Tensor(name, FLOAT, shape)
        self._ranks[name] = _FOUR
        if len(shape) == 1:
            self.draft.title, self.draft.kind = name, "input"
            self.draft.aliases[name] = self.draft.add("Unsqueeze", [name, np.array([2, 3])], f"{name}:image")
            return Tensor(name, FLOAT, (None, *shape))
        if len(shape) != 3:
            rule = "must be C, or C, H, W: sequences are no images"
            raise MPSFileError(READER, self._what, f"its input {name[:80]!r} {rule}", shape)
        return Tensor(name, FLOAT, (None, *shape))

    # --- layers -------------------------------------------------------------------------------------------------------

    def _layer(self, given: Any) -> None:
        kind = given.WhichOneof("layer") or "layer"
        self.draft.title, self.draft.kind = str(given.name), kind
        inputs, outputs = [str(each) for each in given.input], [str(each) for each in given.output]
        rank = self._ranks.get(inputs[0], _FOUR) if inputs else _FOUR
        self._ranks.update(dict.fromkeys(outputs, rank))
        self.draft.tried(lambda: self._write(given, kind, rank), inputs, outputs)

    def _write(self, given: Any, kind: str, rank: int) -> None:
        if kind not in LAYERS:
            raise unknown(kind)
        layer = Layer(self.draft, given, kind, rank, is_exact=self._is_exact)
        LAYERS[kind](layer)
        self._ranks.update(dict.fromkeys(layer.outputs, layer.rank))


def read_neural_network(message: Any, kind: str, features: Features, what: str) -> tuple[Model, tuple[str, ...]]:
    """The model of a neural network, and the labels of its classes.

    Raises:
        MPSFileError: The file is damaged, or its inputs are no images.
    """
    network = _Network(message, kind, what)
    given = getattr(message, kind)
    labels: Sequence[Any] = ()
    if features.predicted and hasattr(given, "stringClassLabels"):
        labels = given.stringClassLabels.vector or given.int64ClassLabels.vector
    return network.model(features), tuple(map(str, labels))
