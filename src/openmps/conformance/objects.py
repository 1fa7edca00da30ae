"""Objects of the framework by their class, arguments and properties, which cases name as Objective-C does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import openmps.names as names
from openmps.conformance.arrays import array_of, number_of
from openmps.convention import NotingConventions
from openmps.formats.archive import forms
from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters
from openmps.spellings import respelt

Given = Mapping[str, Any]


class Maker:
    """Makes what the entries of cases describe on one device."""

    def __init__(self, device: names.MTLDevice, noted: NotingConventions | None = None) -> None:
        self.device, self.noted = device, noted

    def kernel(self, given: Given) -> Any:
        """A kernel whose encodes return images that can be read; it notes what it asks the conventions, if any do."""
        made = self.object(given)
        made.destination_image_allocator = names.MPSImage.default_allocator()
        return made if self.noted is None else made.noting(self.noted)

    def filter(self, given: Given) -> Any:
        """An image filter, which makes no images; it notes as kernels do."""
        made = self.object(given)
        return made if self.noted is None else made.noting(self.noted)

    def value(self, given: Any) -> Any:
        """What stands in a case for an argument or a property: a number, or a mapping whose names say what."""
        if isinstance(given, list):
            return [self.value(each) for each in given]
        if not isinstance(given, Mapping):
            return number_of(given) if isinstance(given, str) else given
        return next(make for name, make in _FORMS.items() if name in given)(self, given)

    def object(self, given: Given) -> Any:
        """An object of ``class``, made with ``arguments``, its ``properties`` set."""
        kind = getattr(names, given["class"])
        arguments = {respelt(name, forms.signature(kind).parameters): each for name, each in given["arguments"].items()}
        device = (self.device,) if forms.takes_device(kind) else ()
        made = kind(*device, **{str(name): self.value(each) for name, each in arguments.items()})
        for name, each in given.get("properties", {}).items():
            self.set(made, name, each)
        return made

    def set(self, thing: Any, name: str, given: Any) -> None:
        """Set a property, or one of an object that it holds: ``xyLossDescriptor.weight``."""
        *outer, last = name.split(".")
        for each in outer:
            thing = getattr(thing, attribute(thing, each))
        setattr(thing, attribute(thing, last), self.value(given))

    def padding(self, given: Given) -> Any:
        """A policy by its method, or one of the framework's presets by its selector."""
        asked = given["padding"]
        if isinstance(asked, int):
            return names.MPSNNDefaultPadding(names.MPSNNPaddingMethod(asked))
        return getattr(names.MPSNNDefaultPadding, attribute(names.MPSNNDefaultPadding, asked))()

    def weights(self, given: Given) -> ArchivedConvolutionWeights:
        """The data source of a convolution; words of binary weights have all bits set."""
        biases = given.get("biases")
        return ArchivedConvolutionWeights(
            self.object(given["descriptor"]),
            np.array(given["words"], np.uint32) if "words" in given else array_of(given["weights"]),
            None if biases is None else array_of(biases),
        )

    def normalization(self, given: Given) -> ArchivedNormalizationParameters:
        """The data source of a batch, instance or group normalization."""
        mean, variance = (array_of(given[name]) if name in given else None for name in ("mean", "variance"))
        return ArchivedNormalizationParameters(
            array_of(given["gamma"]), array_of(given["beta"]), mean, variance,
            epsilon_value=given["epsilon"], groups=given.get("groups", 1),
        )  # fmt: skip


def attribute(thing: object, name: str) -> str:
    """The attribute of an object or a class that the framework calls ``name``."""
    found = respelt(name, (each for each in dir(thing) if each == each.lower()))
    return name if found is None else found


def _distribution(_: Maker, given: Given) -> Any:
    kind = names.MPSMatrixRandomDistributionDescriptor
    if "uniform" in given:
        return kind.uniform_distribution_descriptor(*given["uniform"])
    return kind.normal_distribution_descriptor(*given["normal"])


def _coordinate(_: Maker, given: Given) -> Any:
    return names.MPSImageCoordinate(*given["coordinate"])


def _region(_: Maker, given: Given) -> Any:
    x, y, z, *size = (value % 2**64 for value in given["region"])  # -1 stands for all bits
    return names.MTLRegion(names.MTLOrigin(x, y, z), names.MTLSize(*size))


def _part(_: Maker, given: Given) -> Any:
    x, y, width, height = given["part"]
    return names.MPSRegion(names.MPSOrigin(x, y, 0.0), names.MPSSize(width, height, 1.0))


def _histogram(_: Maker, given: Given) -> Any:
    count, for_alpha, least, most = given["histogram"]
    return names.MPSImageHistogramInfo(count, for_alpha, tuple(least), tuple(most))


def _offset(_: Maker, given: Given) -> Any:
    return names.MPSOffset(*given["offset"])


_FORMS: Mapping[str, Callable[[Maker, Given], Any]] = {
    "class": Maker.object,
    "padding": Maker.padding,
    "descriptor": Maker.weights,
    "gamma": Maker.normalization,
    "coordinate": _coordinate,
    "region": _region,
    "origin": lambda _, given: names.MTLOrigin(*given["origin"]),
    "size": lambda _, given: names.MTLSize(*given["size"]),
    "part": _part,
    "histogram": _histogram,
    "offset": _offset,
    "uniform": _distribution,
    "normal": _distribution,
    "shape": lambda _, given: array_of(given),
}
"""What a mapping in the place of a value means, by a name that it has."""
