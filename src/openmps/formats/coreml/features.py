"""What a model of Core ML takes and gives, as its description says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openmps.formats.coreml.draft import BYTE, FLOAT, Draft
from openmps.formats.coreml.packages import damaged
from openmps.formats.coreml.protos import Protos
from openmps.formats.onnx.model import Tensor

_MAIN = "main"


@dataclass(frozen=True)
class Image:
    """An input that is an image: the order of its channels, and its size where that is one."""

    order: str
    """``RGB``, ``BGR`` or ``GRAYSCALE``."""
    width: int
    height: int

    @property
    def channels(self) -> int:
        """Numbers of a pixel."""
        return 1 if self.order.startswith("GRAY") else 3


@dataclass(frozen=True)
class Features:
    """The description of a model."""

    function: str
    images: Mapping[str, Image]
    """Inputs that are images."""
    arrays: Mapping[str, tuple[int, ...]]
    """Shapes of the inputs that are arrays."""
    outputs: tuple[str, ...]
    predicted: str
    """The output that is the label of a classifier."""
    probabilities: str
    """The output that has the probabilities of a classifier."""


def features_of(protos: Protos, message: Any, what: str) -> Features:
    """What a model's description says.

    Raises:
        MPSFileError: Two inputs have one name.
    """
    description, function = message.description, message.description.defaultFunctionName or _MAIN
    own = next((each for each in description.functions if each.name == function), description)
    colours = {number: name for name, number in protos.features.ImageFeatureType.ColorSpace.items()}
    if len({each.name for each in own.input}) < len(own.input):
        raise damaged(what, "two of its inputs have one name")
    images = {
        str(each.name): Image(
            colours.get(each.type.imageType.colorSpace, ""), each.type.imageType.width, each.type.imageType.height
        )
        for each in own.input
        if each.type.WhichOneof("Type") == "imageType"
    }
    arrays = {
        str(each.name): tuple(int(length) for length in each.type.multiArrayType.shape)
        for each in own.input
        if each.type.WhichOneof("Type") == "multiArrayType"
    }
    outputs = tuple(str(each.name) for each in own.output)
    names = str(own.predictedFeatureName), str(own.predictedProbabilitiesName)
    return Features(str(function), images, arrays, outputs, *names)


def image_input(draft: Draft, name: str, lengths: tuple[int | str | None, ...]) -> Tensor:
    """An input of pixels of 0 to 255, which operations read as real numbers."""
    draft.title, draft.kind = name, "image"
    draft.aliases[name] = draft.add("Cast", [name], f"{name}:numbers", to=FLOAT)
    return Tensor(name, BYTE, lengths)
